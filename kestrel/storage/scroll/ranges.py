"""Reads of a scroll's items by ranges of ids. A range can be read repeatedly until it is released."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred
from zope.interface import implementer

from kestrel.item import Item
from kestrel.scroll.records import Held
from kestrel.storage.interfaces import IItemRanges


class RangeSource(Protocol):
    """A queue whose items can be read by id."""

    @property
    def held(self) -> Held | None:
        """The hold of the reader by ids and its last released id, or None."""

    @property
    def released_id(self) -> int:
        """The last id that has been released."""

    @property
    def safe_id(self) -> int:
        """Id of the last item that is as durable as syncJournal requires."""

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """Read the queue's items with ids from `first_id` to below `end_id`, even if they are done.

        Read at most `max_bytes` of data, but at least one item if there is one.
        """

    def release(self, end_id: int) -> None:
        """Mark all items with ids below `end_id` as done and released."""

    def hold(self, by: bytes | None) -> None:
        """Keep items for the reader `by` until it releases them, or end the hold if `by` is None."""

    def end_of(self, first_id: int, max_items: int) -> int:
        """Return an end id for a range of at most `max_items` safe items that begins at `first_id`."""


@implementer(IItemRanges)
class ItemRanges:
    """The ranges of one queue (`IItemRanges`)."""

    def __init__(self, queue: RangeSource) -> None:
        self._queue = queue

    @property
    def first_id(self) -> int:
        """The lowest id that is not released."""
        return self._queue.released_id + 1

    @property
    def reader(self) -> bytes | None:
        """Name of the reader that holds the items, or None."""
        return None if self._queue.held is None else self._queue.held.by

    def hold(self, reader: bytes) -> None:
        """Keep items until `reader` releases them."""
        self._queue.hold(reader)

    def end_hold(self) -> None:
        """End the hold. Items that the queue is done with are no longer kept."""
        self._queue.hold(None)

    def end_of(self, first_id: int, max_items: int) -> int:
        """Return an end id for a range of at most `max_items` safe items that begins at `first_id`."""
        return self._queue.end_of(max(first_id, self.first_id), max_items)

    @property
    def next_id(self) -> int:
        """Id of the next safe item. Released items count as safe, even if they were released before their sync."""
        return max(self._queue.safe_id, self._queue.released_id) + 1

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """Read the items with ids from `first_id` to below `end_id`.

        Read at most `max_bytes` of data, but at least one item if there is one.
        """
        return self._queue.read_range(max(first_id, self.first_id), min(end_id, self.next_id), max_bytes)

    def release(self, end_id: int) -> None:
        """Mark all safe items with ids below `end_id` as done and released."""
        self._queue.release(min(end_id, self.next_id))
