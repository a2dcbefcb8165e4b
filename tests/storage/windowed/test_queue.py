"""One queue over a database: what it records, and what it keeps in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.logger import capturedLogs

from kestrel.config.model import QueueSettings
from kestrel.errors import StorageRefused
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed.queue import READ_BYTES, READ_ITEMS, WindowedQueue


class Table:
    """What a database has of the queue."""

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


def queue_over(table: Table, **settings: Any) -> WindowedQueue:
    stored = StoredQueue(b"work", 0, 0, 0, 0)
    return WindowedQueue(stored, True, QueueSettings(**settings), table.read_after, lambda size: None, MemoryLimit())


def test_what_is_put_and_taken_between_two_commits_is_never_written() -> None:
    table = Table()
    queue = queue_over(table)
    for number in range(3):
        queue.append(b"%d" % number, 1, 0)
    queue.take(False)
    opened = queue.take(True)
    assert opened is not None
    queue.confirm([opened.xid])
    changes = table.write(queue)
    assert changes is not None
    assert [item.data for item in changes.puts] == [b"2"]
    assert (changes.removed, changes.queue) == ([], StoredQueue(b"work", 1, 1, 2, 3))


def test_what_is_taken_from_the_head_is_one_range_however_it_was_taken() -> None:
    table = Table()
    queue = queue_over(table)
    for _ in range(100):
        queue.append(b"x", 1, 0)
    table.write(queue)
    opened = [queue.take(number % 2 == 0) for number in range(50)]
    queue.confirm([item.xid for item in reversed(opened) if item is not None and item.xid])
    changes = table.write(queue)
    assert changes is not None
    assert changes.removed == [(1, 50)]
    assert changes.queue.floor == 50


def test_what_is_held_keeps_the_rest_from_being_gone_and_not_from_being_removed() -> None:
    table = Table()
    queue = queue_over(table)
    for _ in range(6):
        queue.append(b"x", 1, 0)
    table.write(queue)
    queue.take(False)
    queue.take(True)
    for _ in range(3):
        queue.take(False)
    changes = table.write(queue)
    assert changes is not None
    assert (changes.removed, changes.queue.floor) == ([(1, 1), (3, 5)], 1)
    assert sorted(table.items) == [2, 6]


def test_an_open_read_stays_open_where_the_item_that_is_to_go_on_from_it_is_refused() -> None:
    def refuse(size: int) -> None:
        raise StorageRefused("the database has no room")

    queue = queue_over(Table())
    queue.append(b"x", 1, 0)
    opened = queue.take(True)
    assert opened is not None
    queue.check_put = refuse
    with pytest.raises(StorageRefused):
        queue.continue_(opened.xid, b"y", 1, 0)
    assert (queue.is_open(opened.xid), queue.items) == (True, 0)


def test_when_all_items_are_in_memory_it_is_known_how_many_they_are_whatever_the_database_said() -> None:
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
    """How many items and bytes are asked for, at most, where the head of a queue is not in memory."""
    asked: list[tuple[int, int]] = []

    def read_after(name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        asked.append((n, max_bytes))
        return succeed([StoredItem(position + 1, b"x", 1, 0, 0)])

    settings = QueueSettings(max_memory_size_bytes=queue_memory)
    stored = StoredQueue(b"work", 9, 9, 0, 9)
    assert WindowedQueue(stored, False, settings, read_after, lambda size: None, limit).fill() is not None
    return asked


def test_no_more_is_read_at_once_than_a_mebibyte_and_than_the_queue_may_have_in_memory() -> None:
    assert reads_of(1 << 30, MemoryLimit()) == [(READ_ITEMS, READ_BYTES)]
    assert reads_of(1000, MemoryLimit()) == [(READ_ITEMS, 1000)]
    assert reads_of(0, MemoryLimit()) == [(READ_ITEMS, 1)]


def test_while_the_servers_memory_is_full_one_item_is_read() -> None:
    assert reads_of(1 << 30, MemoryLimit(0)) == [(1, 1)]


def test_behind_a_held_read_any_number_of_items_is_read_in_the_same_memory() -> None:
    table = Table()
    queue = queue_over(table)
    queue.append(b"held", 1, 0)
    queue.take(True)

    def pass_by(count: int) -> None:
        for number in range(count):
            queue.append(b"x", 1, 0)
            item = queue.take(True)
            assert item is not None
            queue.confirm([item.xid])
            if number % 100 == 0:
                table.write(queue)

    pass_by(5000)
    tracemalloc.start()
    try:
        pass_by(20_000)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 200_000
