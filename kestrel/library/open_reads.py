"""The open reads of a reader."""

from __future__ import annotations

from kestrel.errors import QueueFailed
from kestrel.item import Item


class ReaderOpenReads:
    """The delivered, uncommitted items of a reader by id."""

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        """Items by id, in order of delivery."""
        self._lost: set[int] = set()
        """Ids of open reads whose storage failed."""
        self.bytes = 0
        """Bytes of data in the open reads."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def xids(self) -> list[int]:
        """The queue store's xids of the open reads."""
        return [item.xid for item in self._items.values()]

    def add(self, item_id: int, item: Item) -> None:
        """Add an item that was delivered."""
        self._items[item_id] = item
        self._lost.discard(item_id)
        self.bytes += len(item.data)

    def end(self, item_id: int) -> Item | None:
        """Remove an open read and return its item, or None if it is not open.

        Raises `QueueFailed` if the storage failed while the read was open.
        """
        item = self._items.pop(item_id, None)
        if item is not None:
            self.bytes -= len(item.data)
        elif item_id in self._lost:
            self._lost.discard(item_id)
            raise QueueFailed("the queue's storage failed while the read was open: its item is back in the queue")
        return item

    def end_all(self) -> None:
        """Remove all open reads."""
        self._items.clear()
        self.bytes = 0

    def mark_all_lost(self) -> None:
        """Mark all open reads as lost: their storage failed, so the items are in the queue again."""
        self._lost.update(self._items)
        self.end_all()
