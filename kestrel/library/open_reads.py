"""The open reads of a reader."""

from __future__ import annotations

from kestrel.errors import QueueFailed
from kestrel.item import Item


class ReaderOpenReads:
    """The items that were given and are not done yet, by their ids."""

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        """In the order in which they were given."""
        self._lost: set[int] = set()
        """Those whose storage failed while they were open."""
        self.bytes = 0
        """Their data."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def xids(self) -> list[int]:
        """The numbers by which the contents know them."""
        return [item.xid for item in self._items.values()]

    def add(self, item_id: int, item: Item) -> None:
        """It was given."""
        self._items[item_id] = item
        self._lost.discard(item_id)
        self.bytes += len(item.data)

    def end(self, item_id: int) -> Item | None:
        """It is not open any more; None when it was not. Raises `QueueFailed` if its storage has failed since."""
        item = self._items.pop(item_id, None)
        if item is not None:
            self.bytes -= len(item.data)
        elif item_id in self._lost:
            self._lost.discard(item_id)
            raise QueueFailed("the queue's storage failed while the read was open: its item is back in the queue")
        return item

    def end_all(self) -> None:
        """None is open any more."""
        self._items.clear()
        self.bytes = 0

    def mark_all_lost(self) -> None:
        """Their storage failed: the items are back in the queue."""
        self._lost.update(self._items)
        self.end_all()
