"""Ranges of a scroll's items by their ids: the same answer every time, until they are released."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred
from zope.interface import implementer

from kestrel.item import Item
from kestrel.storage.interfaces import IItemRanges


class Ranged(Protocol):
    """A queue that items can be read of by their ids."""

    @property
    def head(self) -> int:
        """Everything up to that id is done."""

    @property
    def safe_id(self) -> int:
        """The last item that is as safe as was promised."""

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """Its items with these ids, done or not."""

    def release(self, end_id: int) -> None:
        """All below that id is done."""


@implementer(IItemRanges)
class ItemRanges:
    """The ranges of one queue (`IItemRanges`)."""

    def __init__(self, queue: Ranged) -> None:
        self._queue = queue

    @property
    def first_id(self) -> int:
        """The lowest id that is not yet released."""
        return self._queue.head + 1

    @property
    def next_id(self) -> int:
        """The id of the next safe item."""
        return self._queue.safe_id + 1

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """The items from `first_id` on and below `end_id`, up to `max_bytes` of data, and one if there is one."""
        return self._queue.read_range(max(first_id, self.first_id), min(end_id, self.next_id), max_bytes)

    def release(self, end_id: int) -> None:
        """Everything below is done."""
        self._queue.release(min(end_id, self.next_id))
