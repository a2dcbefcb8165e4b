"""A storage over a database that answers at once, slowly or with an error."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from zope.interface import implementer

from kestrel.config.load import loads
from kestrel.config.model import QueueSettings
from kestrel.errors import DatabaseAway, OwnershipLost, QueueFailed, StorageError, StorageRefused
from kestrel.storage.database import IDatabase, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed.queue import READ_ITEMS, UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL, WindowedQueue
from kestrel.storage.windowed.storage import LAST_WRITES_S, WindowedStorage
from kestrel.storage.windowed.writer import BATCH_BYTES, BATCH_ITEMS
from kestrel.testing.databases import MemoryDatabase, MemoryTables
from kestrel.testing.server import MemoryServer
from tests.config_tables import queue as queue_table
from tests.memcache_text import END, STORED, items, set_, stat

SETTINGS = QueueSettings()
MANY = 500
"""More than the recursion limit allows to call each other."""


class PromptDatabase:
    """A database that answers at once. `failure` is its answer to a batch, or None to apply it."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.batches: list[WriteBatch] = []

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        return succeed([])

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        return succeed([])

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        self.batches.append(batch)
        return succeed(None) if self.failure is None else fail(self.failure)

    def close(self) -> Deferred[None]:
        return succeed(None)


@implementer(IDatabase)
class SlowDatabase:
    """A database whose answers the test gives. The queue "work" has the item "hello" from the start."""

    def __init__(self) -> None:
        self.batches: deque[Deferred[None]] = deque()
        self.reads: deque[Deferred[Sequence[StoredItem]]] = deque()

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        return succeed([StoredQueue(b"work", 1, 5, 0, 1)])

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        self.reads.append(Deferred())
        return self.reads[-1]

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        self.batches.append(Deferred())
        return self.batches[-1]

    def close(self) -> Deferred[None]:
        return succeed(None)

    def answer_reads(self) -> None:
        while self.reads:
            self.reads.popleft().callback([StoredItem(1, b"hello", 1, 0, 0)])

    def answer(self, error: Exception | None = None) -> None:
        """Apply the oldest batch, or fail it."""
        batch = self.batches.popleft()
        batch.callback(None) if error is None else batch.errback(error)


def storage_over(database: object, limit: MemoryLimit | None = None, clock: Clock | None = None) -> WindowedStorage:
    storage = WindowedStorage(database, clock or Clock(), limit or MemoryLimit())
    storage.start(lambda name: SETTINGS)
    return storage


def slow_storage(
    name: bytes = b"fast", limit: MemoryLimit | None = None, clock: Clock | None = None
) -> tuple[SlowDatabase, WindowedStorage, WindowedQueue]:
    """Return a slow database, a storage over it, and one of its queues."""
    database = SlowDatabase()
    storage = storage_over(database, limit, clock)
    return database, storage, storage.queue(name, SETTINGS)


def put(storage: WindowedStorage, queue: WindowedQueue, data: bytes = b"x") -> None:
    storage.put([queue], data, 1, 0)


def results_of(*deferreds: Deferred[Any] | None) -> list[Any]:
    """Return a list that receives the result of each of these Deferreds: the message of an error, or the value."""
    results: list[Any] = []
    for deferred in deferreds:
        assert deferred is not None
        deferred.addErrback(lambda failure: failure.getErrorMessage())
        deferred.addCallback(results.append)
    return results


def commit(storage: WindowedStorage, *queues: WindowedQueue) -> list[Any]:
    """Commit, and return a list that receives the results."""
    return results_of(*[outcome for _, outcome in storage.commit(queues)])


def put_and_commit(storage: WindowedStorage, queue: WindowedQueue) -> list[Any]:
    """Put an item and commit it, and return a list that receives the result."""
    put(storage, queue)
    return commit(storage, queue)


# A database that answers at once.


def test_prompt_database_may_refuse_many_queues_together() -> None:
    database = PromptDatabase()
    storage = storage_over(database)
    for failure in (OSError("no"), None):
        queues = [storage.queue(b"%d" % number, SETTINGS) for number in range(MANY)]
        database.failure = failure
        assert commit(storage, *queues) == [failure and "the database refused it"] * MANY


def test_name_can_be_reused_many_times_in_one_tick() -> None:
    database = PromptDatabase()
    storage = storage_over(database)
    deleted = []
    for _ in range(MANY):
        deleted.append(storage.queue(b"work", SETTINGS))
        put(storage, deleted[-1])
        storage.delete(deleted[-1])
    assert commit(storage, *deleted) == [None] * MANY
    assert len(database.batches) == MANY


@pytest.mark.parametrize(
    ("items", "item_bytes"), [(1, BATCH_BYTES // 2), (BATCH_ITEMS // 2, 0)], ids=["bytes", "items"]
)
def test_full_batch_is_followed_by_another(items: int, item_bytes: int) -> None:
    database = PromptDatabase()
    storage = storage_over(database)
    queues = [storage.queue(name, SETTINGS) for name in (b"a", b"b", b"c")]
    for _ in range(items):
        storage.put(queues, b"x" * item_bytes, 1, 0)
    assert commit(storage, *queues) == [None] * 3
    names = [[changes.queue.name for changes in batch.changes] for batch in database.batches]
    assert names == [[b"a", b"b"], [b"c"]]


@pytest.mark.parametrize("answer", [None, StorageError("no")], ids=["applied", "refused"])
def test_pauses_grow_until_an_absent_database_answers(answer: Exception | None) -> None:
    database, clock = PromptDatabase(), Clock()
    storage = storage_over(database, clock=clock)

    def pauses(count: int) -> list[float]:
        database.failure = DatabaseAway("no answer")
        put_and_commit(storage, storage.queue(b"fast", SETTINGS))
        found = []
        for number in range(count):
            (call,) = clock.getDelayedCalls()
            found.append(call.getTime() - clock.seconds())
            if number == count - 1:
                database.failure = answer
            clock.advance(found[-1])
        return [round(pause, 3) for pause in found]

    assert pauses(8) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert storage.refusal is None
    assert pauses(2) == [0.1, 0.2]


def test_puts_are_refused_for_five_seconds_after_lack_of_room() -> None:
    database, clock = PromptDatabase(), Clock()
    storage = storage_over(database, clock=clock)
    database.failure = StorageRefused("no space left")
    for _ in range(2):  # the second time after there was room
        queues = [storage.queue(b"%d" % number, SETTINGS) for number in range(2)]
        for queue in queues:
            put(storage, queue)
        for queue in queues:  # the second one was recorded before the first one was refused
            (result,) = commit(storage, queue)
            assert result is not None
            assert storage.refusal == "the database has no room"
            clock.advance(3)
        assert storage.refusal == "the database has no room"
        clock.advance(1.5)
        assert storage.refusal == "the database has no room"
        clock.advance(0.5)
        assert storage.refusal is None


def test_item_that_has_moved_is_removed_from_its_queue() -> None:
    config = loads(queue_table("work", "expireToQueue = 'late'"))
    server = MemoryServer(WindowedStorage(MemoryDatabase(MemoryTables()), Clock(), MemoryLimit()), config=config)
    client = server.connect()
    assert client.ask(set_(b"work", b"x", expiry=1)) == STORED
    server.advance(2)
    assert client.ask(b"get work\r\n") == END
    assert items(client, b"late") == [b"x"]
    assert stat(client, b"work", "open_transactions") == "0"


# A slow database.


def test_waiter_is_served_although_a_batch_of_its_queue_failed() -> None:
    database = SlowDatabase()
    server = MemoryServer(storage_over(database))
    reader, writer = server.connect(), server.connect()
    reader.send(b"get work/open/t=5000\r\n")
    assert reader.take() == b""
    assert writer.ask(b"set work 0 0 4\r\nlost\r\n") == b""
    database.answer(OSError("no"))
    assert writer.take() == b"SERVER_ERROR the database refused it\r\n"
    database.answer_reads()
    assert reader.take() == b"VALUE work/open/t=5000 0 5\r\nhello\r\nEND\r\n"


def test_lost_ownership_stops_delivery_of_items() -> None:
    database = SlowDatabase()
    server = MemoryServer(storage_over(database))
    reader, waiter, writer = server.connect(), server.connect(), server.connect()
    assert writer.ask(b"set mail 0 0 1\r\nx\r\n") == b""
    database.answer()
    assert writer.take() == STORED
    assert waiter.ask(b"get work/open/t=5000\r\n") == b""
    assert writer.ask(b"set other 0 0 1\r\nx\r\n") == b""
    database.answer(OwnershipLost("another server has it"))
    assert writer.take() == b"SERVER_ERROR another server has it\r\n"
    database.answer_reads()
    assert reader.ask(b"get mail/open\r\n") == b"SERVER_ERROR another server has it\r\n"
    assert waiter.take() == b"SERVER_ERROR another server has it\r\n"


@pytest.mark.parametrize("is_deleted", [False, True], ids=["failed", "deleted"])
def test_fill_ends_with_its_queue_without_an_answer(is_deleted: bool) -> None:
    database, storage, _ = slow_storage(b"work")
    for _ in range(2):
        queue = storage.queue(b"work", SETTINGS)
        filled = results_of(queue.fill())
        if is_deleted:
            storage.delete(queue)
            assert filled == [None]
            return
        assert put_and_commit(storage, queue) == []
        database.answer(OSError("no"))
        assert filled == [None]


@pytest.mark.parametrize(("command", "reply"), [(b"delete work", b"DELETED"), (b"flush work", b"END")])
def test_reply_waits_until_the_database_has_deleted_the_queue(command: bytes, reply: bytes) -> None:
    database = SlowDatabase()
    server = MemoryServer(storage_over(database))
    first, second = server.connect(), server.connect()
    assert first.ask(b"delete work\r\n") == b""
    assert second.ask(command + b"\r\n") == b""
    database.answer()
    assert first.take() == b"DELETED\r\n"
    assert second.take() == reply + b"\r\n"


# Memory.


def test_full_memory_bounds_unwritten_items_of_a_queue() -> None:
    limit = MemoryLimit(1000)
    database, storage, queue = slow_storage(b"work", limit)
    put_and_commit(storage, queue)
    puts = 0
    with pytest.raises(StorageRefused, match="the server's memory is full, and the database is slow"):
        for _ in range(100):
            put(storage, queue, b"x" * (UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL // 4))
            puts += 1
    assert puts == 4
    assert limit.used_bytes > UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL, "it counts before the next commit begins"
    database.answer()
    commit(storage, queue)
    database.answer()
    put(storage, queue)
    assert limit.used_bytes < 1000


def test_taken_item_counts_as_memory_until_it_is_written() -> None:
    limit = MemoryLimit(1 << 30)
    database, storage, queue = slow_storage(limit=limit)
    put(storage, queue, b"x" * (1 << 20))
    commit(storage, queue)
    assert queue.take(opened=False) is not None
    put(storage, queue)
    assert limit.used_bytes > 1 << 20
    database.answer()
    assert limit.used_bytes < 1000


def test_queue_accepts_at_most_128_mebibytes_of_unwritten_items() -> None:
    database, storage, queue = slow_storage()
    large = b"x" * (16 << 20)
    put(storage, queue, large)
    commit(storage, queue)
    for _ in range(7):
        put(storage, queue, large)
    with pytest.raises(StorageRefused, match="the database is slow"):
        put(storage, queue, b"one more")
    database.answer()
    put(storage, queue, b"and another")


def test_unwritten_items_enter_the_window_in_bounded_parts() -> None:
    storage = storage_over(PromptDatabase())
    queue = storage.queue(b"work", QueueSettings(max_memory_size_bytes=1))
    for number in range(3 * READ_ITEMS):
        put(storage, queue, b"%06d" % number)
    assert queue.mem_items == 1
    storage.queue(b"work", SETTINGS)
    taken = []
    while (item := queue.take(opened=False)) is not None:
        assert queue.mem_items <= READ_ITEMS
        taken.append(int(item.data))
    assert taken == list(range(3 * READ_ITEMS))


def test_repeated_clears_take_no_more_memory() -> None:
    storage = storage_over(PromptDatabase())
    queue = storage.queue(b"work", SETTINGS)
    for _ in range(1000):
        put(storage, queue)
    commit(storage, queue)
    opened = [item for item in (queue.take(opened=True) for _ in range(1000)) if item is not None]
    queue.confirm([item.xid for item in opened[::2]])
    queue.clear()
    tracemalloc.start()
    try:
        for _ in range(100):
            queue.clear()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 200_000


# Messages for clients and for the log.


def test_absent_database_is_reported_and_each_reason_logged() -> None:
    clock = Clock()
    database, storage, queue = slow_storage(clock=clock)
    put_and_commit(storage, queue)
    reasons = ["connection to db1 refused", "connection to db1 refused", "no password for account kestrel"]
    with capturedLogs() as captured:
        for reason in reasons:
            database.answer(DatabaseAway(reason))
            assert storage.refusal == "the database is away"
            clock.advance(1)
    assert [event["reason"] for event in captured if event["log_level"] == LogLevel.error] == reasons[1:]


def test_refusal_is_reported_without_its_reason_which_is_logged() -> None:
    database, storage, queue = slow_storage()
    results = put_and_commit(storage, queue)
    with capturedLogs() as captured:
        database.answer(StorageError("relation items of account kestrel"))
    assert results == ["the database refused it"]
    assert [event["reason"] for event in captured] == ["relation items of account kestrel"]


def test_each_refusal_is_reported_with_its_own_message() -> None:
    database, storage, _ = slow_storage()
    results = []
    for error in (StorageRefused("disk full"), StorageError("no such table")):
        pending = commit(storage, storage.queue(b"fast", SETTINGS))
        database.answer(error)
        results += pending
    assert results == ["the database has no room for it", "the database refused it"]


def test_failed_reads_are_logged_once_for_each_reason() -> None:
    database, _, queue = slow_storage(b"work")
    with capturedLogs() as captured:
        for reason in ("no more connections", "no more connections", "no such table"):
            results = results_of(queue.fill())
            database.reads.popleft().errback(StorageError(reason))
            assert results == ["the queue cannot be read from the database"]
    assert [event["reason"] for event in captured] == ["no more connections", "no such table"]


# The end of a storage.


@pytest.mark.parametrize("detected_by", ["a batch", "a read"])
def test_lost_ownership_ends_the_storage(detected_by: str) -> None:
    database, storage, queue = slow_storage(b"work")
    ended: list[object] = []
    storage.ended.addCallback(ended.append)
    other = storage.queue(b"other", SETTINGS)
    lost = OwnershipLost("another server has the database")
    if detected_by == "a batch":
        put_and_commit(storage, other)
        database.answer(lost)
    else:
        results_of(queue.fill())
        database.reads.popleft().errback(lost)
    assert ended == [lost]
    with pytest.raises(QueueFailed, match="another server has the database"):
        other.take(opened=False)


@pytest.mark.parametrize("failure", [None, StorageRefused("no space left")], ids=["working", "without room"])
def test_closed_storage_leaves_no_timer_and_has_not_ended(failure: Exception | None) -> None:
    database, clock = PromptDatabase(), Clock()
    database.failure = failure
    storage = storage_over(database, clock=clock)
    assert len(put_and_commit(storage, storage.queue(b"fast", SETTINGS))) == 1
    assert results_of(storage.close()) == [None]
    assert clock.getDelayedCalls() == []
    assert not storage.ended.called


def test_close_waits_ten_seconds_for_an_absent_database() -> None:
    clock = Clock()
    database, storage, queue = slow_storage(clock=clock)
    results = put_and_commit(storage, queue)
    database.answer(DatabaseAway("no answer"))
    closed = results_of(storage.close())
    clock.advance(LAST_WRITES_S - 0.1)
    assert (results, closed) == ([], [])
    pending = database.batches.popleft()
    clock.advance(0.1)
    assert (results, closed) == (["the server stopped while the database was away"], [None])
    pending.errback(DatabaseAway("no answer"))
    assert clock.getDelayedCalls() == []
    assert not database.batches


def test_closing_storage_starts_no_read() -> None:
    database, storage, queue = slow_storage(b"work")
    put_and_commit(storage, queue)
    storage.close()  # waits for the batch
    failed: list[type] = []
    filling = queue.fill()
    assert filling is not None
    filling.addErrback(lambda failure: failed.append(failure.type))
    assert (failed, len(database.reads)) == ([QueueFailed], 0)
