"""The figures of one queue or alias for `stats` and `dump_stats`: Kestrel's first, in its order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from kestrel.errors import KestrelError
from kestrel.escaping import show_names
from kestrel.queues.manager import QueueManager
from kestrel.queues.stat_definitions import QueueSnapshot, Stat, alias_stats, queue_stats

CHILDREN_PER_BATCH: Final = 64
"""Limit of children in one piece of a reply."""

CHILDREN_PLACEHOLDER: Final = b"/"
"""Placeholder for the list of children. No name contains a slash, and escaping adds none."""


def iter_encoded_stats(manager: QueueManager, name: bytes, encode: Callable[[list[Stat]], bytes]) -> Iterator[bytes]:
    """Yield the encoded figures of a queue or alias, in several pieces if it has many children."""
    if len(manager.children_of(name)) <= CHILDREN_PER_BATCH:
        yield encode(stats_of(manager, name))
        return
    before, _, after = encode(stats_of(manager, name, (CHILDREN_PLACEHOLDER,))).partition(CHILDREN_PLACEHOLDER)
    yield before
    comma = b""
    for children in iter_child_batches(manager, name):
        marked = encode([("children", show_names((CHILDREN_PLACEHOLDER, *children, CHILDREN_PLACEHOLDER)))])
        yield comma + marked.split(CHILDREN_PLACEHOLDER)[1].strip(b",")
        comma = b","
    yield after


def iter_child_batches(manager: QueueManager, name: bytes) -> Iterator[Sequence[bytes]]:
    """Yield the names of a queue's children in batches, in order. Children may be added and removed meanwhile."""
    last = b""
    while True:
        children = manager.children_of(name)
        place = bisect_right(children, last)
        piece = children[place : place + CHILDREN_PER_BATCH]
        if not piece:
            return
        yield piece
        last = piece[-1]


def stats_of(manager: QueueManager, name: bytes, children: Sequence[bytes] | None = None) -> list[Stat]:
    """Return the figures of a queue or alias, or an empty list if it is missing. Try to reopen a failed queue.

    `children` replaces the names of the queue's children in the figures.
    """
    alias = manager.aliases.get(name)
    if alias is not None:
        return alias_stats(alias)
    queue = manager.known(name)
    if queue is None:
        return []
    with suppress(KestrelError):
        queue.reopen()
    return queue_stats(QueueSnapshot(queue, manager.children_of(name) if children is None else children))
