"""Merging the items of several queues. Equal items at the heads of several queues become one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kestrel.item import Item
from kestrel.tools.convert.families import FamilyItem


class QueueItems(NamedTuple):
    """The items of one queue in order, and their number."""

    left: int
    items: Iterator[Item]


class _QueueHead(NamedTuple):
    """The next item of a queue. The smallest head is merged first."""

    add_ms: int
    left: int
    """Negative number of the queue's remaining items. Among equal add times, the queue with most remaining comes first.
    """
    place: int
    item: Item

    def is_same_as(self, other: Item) -> bool:
        """Return whether the items have the same data and expiry."""
        item = self.item
        return item.data == other.data and item.expiry_ms == other.expiry_ms


def merge_queues(streams: Sequence[QueueItems]) -> Iterator[FamilyItem]:
    """Yield the merged steps of several queues, with indexes into `streams`. Each queue keeps the order of its items.

    Steps follow the add time as far as that order allows. Items become one step if they are at the heads of their
    queues together, and have the same data, add time and expiry.
    """
    left = [stream.left for stream in streams]
    heads: list[_QueueHead] = []
    for place, stream in enumerate(streams):
        if (item := next(stream.items, None)) is not None:
            heads.append(_QueueHead(item.add_ms, -left[place], place, item))
    heapify(heads)
    while heads:
        first = heappop(heads)
        taken, others = [first], list[_QueueHead]()
        while heads and heads[0].add_ms == first.add_ms:
            head = heappop(heads)
            (taken if head.is_same_as(first.item) else others).append(head)
        for head in others:
            heappush(heads, head)
        if len(taken) > 1:
            taken.sort(key=_place_of)
        for _, _, place, _ in taken:
            left[place] -= 1
            if (item := next(streams[place].items, None)) is not None:
                heappush(heads, _QueueHead(item.add_ms, -left[place], place, item))
        item = first.item
        yield FamilyItem(
            item.data,
            item.add_ms,
            item.expiry_ms,
            [head.place for head in taken],
            [head.item.errors for head in taken],
        )


def _place_of(head: _QueueHead) -> int:
    return head.place
