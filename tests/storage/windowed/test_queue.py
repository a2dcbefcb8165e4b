"""A queue over a database: its recorded changes, and its items in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.logger import capturedLogs

from kestrel.config.model import QueueSettings
from kestrel.errors import StorageRefused
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed.queue import READ_BYTES, READ_ITEMS, WindowedQueue


class Table:
    """The rows of the queue in a database."""

    def __init__(self) -> None:
        self.items: dict[int, StoredItem] = {}

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        return succeed([item for _, item in sorted(self.items.items()) if item.position > position][:n])

    def write(self, queue: WindowedQueue) -> QueueChanges | None:
        changes = queue.seal()
        if changes is not None:
            self.items.update((item.position, item) for item in changes.puts)
            for first, last in changes.removed:
                for position in range(first, last + 1):
                    self.items.pop(position, None)
            queue.written(changes)
        return changes


def queue_over(table: Table, *items: bytes) -> WindowedQueue:
    """Return a new queue with these items, which are not written."""
    stored = StoredQueue(b"work", 0, 0, 0, 0)
    queue = WindowedQueue(stored, True, QueueSettings(), table.read_after, lambda size: None, MemoryLimit())
    for data in items:
        queue.append(data, 1, 0)
    return queue


def test_items_put_and_taken_in_one_batch_are_never_written() -> None:
    table = Table()
    queue = queue_over(table, b"0", b"1", b"2")
    queue.take(False)
    opened = queue.take(True)
    assert opened is not None
    queue.confirm([opened.xid])
    changes = table.write(queue)
    assert changes is not None
    assert [item.data for item in changes.puts] == [b"2"]
    assert (changes.removed, changes.queue) == ([], StoredQueue(b"work", 1, 1, 2, 3))


def test_removals_from_the_head_are_one_range() -> None:
    table = Table()
    queue = queue_over(table, *[b"x"] * 100)
    table.write(queue)
    opened = [queue.take(number % 2 == 0) for number in range(50)]
    queue.confirm([item.xid for item in reversed(opened) if item is not None and item.xid])
    changes = table.write(queue)
    assert changes is not None
    assert changes.removed == [(1, 50)]
    assert changes.queue.floor == 50


def test_open_read_holds_the_floor_but_not_later_removals() -> None:
    table = Table()
    queue = queue_over(table, *[b"x"] * 6)
    table.write(queue)
    queue.take(False)
    queue.take(True)
    for _ in range(3):
        queue.take(False)
    changes = table.write(queue)
    assert changes is not None
    assert (changes.removed, changes.queue.floor) == ([(1, 1), (3, 5)], 1)
    assert sorted(table.items) == [2, 6]


def test_refused_continue_leaves_the_read_open() -> None:
    def refuse(size: int) -> None:
        raise StorageRefused("the database has no room")

    queue = queue_over(Table(), b"x")
    opened = queue.take(True)
    assert opened is not None
    queue.check_put = refuse
    with pytest.raises(StorageRefused):
        queue.continue_(opened.xid, b"y", 1, 0)
    assert (queue.is_open(opened.xid), queue.items) == (True, 0)


def test_counts_are_corrected_when_all_items_are_in_memory() -> None:
    table = Table()
    table.items = {position: StoredItem(position, b"xy", 1, 0, 0) for position in (1, 2)}
    stored = StoredQueue(b"work", 5, 99, 0, 2)
    settings = QueueSettings()
    queue = WindowedQueue(stored, False, settings, table.read_after, lambda size: None, MemoryLimit())
    assert (queue.items, queue.bytes) == (5, 99)
    with capturedLogs() as captured:
        queue.fill()
    assert (queue.items, queue.bytes) == (2, 4)
    assert [(event["items"], event["said"]) for event in captured] == [(2, 5)]


def reads_of(queue_memory: int, limit: MemoryLimit) -> list[tuple[int, int]]:
    """Return the limits of items and bytes of each read when the head of a queue is not in memory."""
    asked: list[tuple[int, int]] = []

    def read_after(name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        asked.append((n, max_bytes))
        return succeed([StoredItem(position + 1, b"x", 1, 0, 0)])

    settings = QueueSettings(max_memory_size_bytes=queue_memory)
    stored = StoredQueue(b"work", 9, 9, 0, 9)
    assert WindowedQueue(stored, False, settings, read_after, lambda size: None, limit).fill() is not None
    return asked


def test_read_is_bounded_by_one_mebibyte_and_queue_memory() -> None:
    assert reads_of(1 << 30, MemoryLimit()) == [(READ_ITEMS, READ_BYTES)]
    assert reads_of(1000, MemoryLimit()) == [(READ_ITEMS, 1000)]
    assert reads_of(0, MemoryLimit()) == [(READ_ITEMS, 1)]


def test_one_item_is_read_while_memory_is_full() -> None:
    assert reads_of(1 << 30, MemoryLimit(0)) == [(1, 1)]


def test_items_behind_an_open_read_need_constant_memory() -> None:
    table = Table()
    queue = queue_over(table, b"open")
    queue.take(True)

    def put_and_confirm(count: int) -> None:
        for number in range(count):
            queue.append(b"x", 1, 0)
            item = queue.take(True)
            assert item is not None
            queue.confirm([item.xid])
            if number % 100 == 0:
                table.write(queue)

    put_and_confirm(5000)
    tracemalloc.start()
    try:
        put_and_confirm(20_000)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 200_000
