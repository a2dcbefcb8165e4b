"""Ranges of a scroll's items by their ids: the same answer every time, until they are released."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred
from zope.interface import implementer

from kestrel.item import Item
from kestrel.scroll.records import Held
from kestrel.storage.interfaces import IItemRanges


class RangeSource(Protocol):
    """A queue that items can be read of by their ids."""

    @property
    def held(self) -> Held | None:
        """Who reads by ids, and how far they are."""

    @property
    def released_id(self) -> int:
        """The last id that nobody may ask for any more."""

    @property
    def safe_id(self) -> int:
        """The last item that is as safe as was promised."""

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """Its items with these ids, done or not."""

    def release(self, end_id: int) -> None:
        """All below that id is done."""

    def hold(self, by: bytes | None) -> None:
        """Keep for them what is not done."""

    def end_of(self, first_id: int, max_items: int) -> int:
        """Where so many safe items end, from that id on."""


@implementer(IItemRanges)
class ItemRanges:
    """The ranges of one queue (`IItemRanges`)."""

    def __init__(self, queue: RangeSource) -> None:
        self._queue = queue

    @property
    def first_id(self) -> int:
        """The lowest id that is not yet released."""
        return self._queue.released_id + 1

    @property
    def reader(self) -> bytes | None:
        """For whom they are kept."""
        return None if self._queue.held is None else self._queue.held.by

    def hold(self, reader: bytes) -> None:
        """Keep from now on what that reader has not released."""
        self._queue.hold(reader)

    def end_hold(self) -> None:
        """Keep nothing for a reader any more."""
        self._queue.hold(None)

    def end_of(self, first_id: int, max_items: int) -> int:
        """Where so many of its safe items end, from that id on."""
        return self._queue.end_of(max(first_id, self.first_id), max_items)

    @property
    def next_id(self) -> int:
        """The id of the next safe item; what is released counts as safe, though it may have left before it was."""
        return max(self._queue.safe_id, self._queue.released_id) + 1

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """The items from `first_id` on and below `end_id`, up to `max_bytes` of data, and one if there is one."""
        return self._queue.read_range(max(first_id, self.first_id), min(end_id, self.next_id), max_bytes)

    def release(self, end_id: int) -> None:
        """Everything below is done."""
        self._queue.release(min(end_id, self.next_id))
