"""The items of queues that were put together, one step at a time: what several of them hold next is one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kestrel.item import Item
from kestrel.tools.convert.families import FamilyItem


class QueueItems(NamedTuple):
    """The items of one queue in their order, and how many they are."""

    left: int
    items: Iterator[Item]


class _QueueHead(NamedTuple):
    """What a queue holds next. The least of these comes first."""

    add_ms: int
    left: int
    """How many items are left to that queue, negative: of items that were put at the same time, those of the queue that
    has taken the fewest are the oldest."""
    place: int
    item: Item

    def is_same_as(self, other: Item) -> bool:
        """Whether the other item can stand for it."""
        item = self.item
        return item.data == other.data and item.expiry_ms == other.expiry_ms


def merge_queues(streams: Sequence[QueueItems]) -> Iterator[FamilyItem]:
    """The steps of queues, by their places: each queue is given its items in its order.

    Steps go by add time as far as that order lets them. Items are one step if they are next in their queues at the same
    time, and have the same data, add time and expiry.
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
