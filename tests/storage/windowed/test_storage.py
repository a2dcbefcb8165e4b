"""A storage over a database: what it does while the database takes its time, refuses, or answers at once."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Sequence

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.errors import DatabaseAway, OwnershipLost, QueueFailed, StorageError, StorageRefused
from kestrel.storage.database import IDatabase, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import IQueueStorage
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed.queue import READ_ITEMS, UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL, WindowedQueue
from kestrel.storage.windowed.storage import LAST_WRITES_S, WindowedStorage
from kestrel.storage.windowed.writer import BATCH_BYTES, BATCH_ITEMS, FIRST_PAUSE_S
from kestrel.testing.server import MemoryServer

STORED = b"STORED\r\n"
SETTINGS = QueueSettings()
MANY = 500
"""More than can call each other on one stack."""


class PromptDatabase:
    """Answers at once; `failure` is what it answers to a batch, if not that it was applied."""

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
class HeldDatabase:
    """Answers when a test says so. The queue "work" has an item, "hello", from the start."""

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


def storage_over(database: object, limit: MemoryLimit | None = None, clock: Clock | None = None) -> WindowedStorage:
    storage = WindowedStorage(database, clock or Clock(), limit or MemoryLimit())
    storage.start(lambda name: SETTINGS)
    return storage


def put(storage: WindowedStorage, queue: WindowedQueue, data: bytes = b"x") -> None:
    storage.put([queue], data, 1, 0)


def outcomes_of(storage: WindowedStorage, queues: Sequence[IQueueStorage]) -> list[object]:
    """What becomes of a commit: None for each queue that is safe by now, or its Failure."""
    told: list[object] = []
    for _, outcome in storage.commit(queues):  # type: ignore[arg-type]
        outcome.addBoth(told.append)
    return told


# A database that answers at once.


def test_a_database_that_answers_at_once_may_refuse_any_number_of_queues_together() -> None:
    database = PromptDatabase()
    storage = storage_over(database)
    queues = [storage.queue(b"%d" % number, SETTINGS) for number in range(MANY)]
    database.failure = OSError("no")
    assert len([each for each in outcomes_of(storage, queues) if each is not None]) == MANY
    database.failure = None
    again = [storage.queue(b"%d" % number, SETTINGS) for number in range(MANY)]
    assert outcomes_of(storage, again) == [None] * MANY


def test_a_name_may_be_deleted_and_used_again_any_number_of_times_in_one_tick() -> None:
    database = PromptDatabase()
    storage = storage_over(database)
    deleted = []
    for _ in range(MANY):
        deleted.append(storage.queue(b"work", SETTINGS))
        put(storage, deleted[-1])
        storage.delete(deleted[-1])
    assert outcomes_of(storage, deleted) == [None] * MANY
    assert len(database.batches) == MANY


def test_close_waits_for_all_that_a_database_that_answers_at_once_is_still_to_be_told() -> None:
    database = PromptDatabase()
    storage = storage_over(database)
    for _ in range(3):
        queue = storage.queue(b"work", SETTINGS)
        storage.delete(queue)
    put(storage, storage.queue(b"work", SETTINGS))
    closed: list[object] = []
    storage.close().addCallback(closed.append)
    assert closed == [None]
    assert [len(change.puts) for batch in database.batches for change in batch.changes] == [0, 0, 0, 1]


def queue_names(batch: WriteBatch) -> list[bytes]:
    return [changes.queue.name for changes in batch.changes]


def test_a_batch_that_is_full_of_bytes_is_followed_by_another_one() -> None:
    database = PromptDatabase()
    storage = storage_over(database)
    queues = [storage.queue(name, SETTINGS) for name in (b"a", b"b", b"c")]
    for queue in queues:
        put(storage, queue, b"x" * (BATCH_BYTES // 2))
    assert outcomes_of(storage, queues) == [None] * 3
    assert [queue_names(batch) for batch in database.batches] == [[b"a", b"b"], [b"c"]]


def test_a_batch_that_is_full_of_items_is_followed_by_another_one() -> None:
    database = PromptDatabase()
    storage = storage_over(database)
    queues = [storage.queue(name, SETTINGS) for name in (b"a", b"b", b"c")]
    for _ in range(BATCH_ITEMS // 2):
        storage.put(queues, b"", 1, 0)
    assert outcomes_of(storage, queues) == [None] * 3
    assert [queue_names(batch) for batch in database.batches] == [[b"a", b"b"], [b"c"]]


def test_while_the_database_is_away_the_same_batch_comes_again_with_its_number() -> None:
    database, clock = PromptDatabase(), Clock()
    storage = storage_over(database, clock=clock)
    queue = storage.queue(b"fast", SETTINGS)
    put(storage, queue)
    database.failure = DatabaseAway("no answer")
    told: list[object] = []
    ((_, outcome),) = storage.commit([queue])
    outcome.addBoth(told.append)
    clock.advance(FIRST_PAUSE_S)
    assert told == []
    database.failure = None
    clock.advance(2 * FIRST_PAUSE_S)
    assert told == [None]
    assert [batch.number for batch in database.batches] == [1, 1, 1]
    assert database.batches[0] == database.batches[1] == database.batches[2]


@pytest.mark.parametrize("answer", [None, StorageError("no")], ids=["applied", "refused"])
def test_a_database_that_is_away_is_asked_after_longer_and_longer_pauses_until_it_answers(
    answer: Exception | None,
) -> None:
    database, clock = PromptDatabase(), Clock()
    storage = storage_over(database, clock=clock)

    def pauses(count: int) -> list[float]:
        queue = storage.queue(b"fast", SETTINGS)
        put(storage, queue)
        database.failure = DatabaseAway("no answer")
        ((_, outcome),) = storage.commit([queue])
        outcome.addErrback(lambda failure: None)
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


def test_no_put_is_taken_for_five_seconds_after_the_last_time_that_there_was_no_room() -> None:
    database, clock = PromptDatabase(), Clock()
    storage = storage_over(database, clock=clock)
    database.failure = StorageRefused("no space left")
    for _ in range(2):  # and all of it again, when there was room meanwhile
        queues = [storage.queue(b"%d" % number, SETTINGS) for number in range(2)]
        for queue in queues:
            put(storage, queue)
        for queue in queues:  # the second one was recorded before the first one was refused
            (told,) = outcomes_of(storage, [queue])
            assert told is not None
            assert storage.refusal == "the database has no room"
            clock.advance(3)
        assert storage.refusal == "the database has no room"
        clock.advance(1.5)
        assert storage.refusal == "the database has no room"
        clock.advance(0.5)
        assert storage.refusal is None


# One that takes its time.


def test_who_waits_for_the_head_is_served_although_a_batch_of_its_queue_is_lost() -> None:
    database = HeldDatabase()
    server = MemoryServer(storage_over(database))
    reader, writer = server.connect(), server.connect()
    reader.send(b"get work/open/t=5000\r\n")
    assert reader.take() == b""
    assert writer.ask(b"set work 0 0 4\r\nlost\r\n") == b""
    database.batches.popleft().errback(OSError("no"))
    assert writer.take() == b"SERVER_ERROR the database refused it\r\n"
    database.answer_reads()
    assert reader.take() == b"VALUE work 0 5\r\nhello\r\nEND\r\n"


def test_when_another_server_owns_the_database_nobody_gets_what_is_still_in_memory_or_was_being_read() -> None:
    database = HeldDatabase()
    server = MemoryServer(storage_over(database))
    reader, waiter, writer = server.connect(), server.connect(), server.connect()
    assert writer.ask(b"set mail 0 0 1\r\nx\r\n") == b""
    database.batches.popleft().callback(None)
    assert writer.take() == STORED
    assert waiter.ask(b"get work/open/t=5000\r\n") == b""
    assert writer.ask(b"set other 0 0 1\r\nx\r\n") == b""
    database.batches.popleft().errback(OwnershipLost("another server has it"))
    assert writer.take() == b"SERVER_ERROR another server has it\r\n"
    database.answer_reads()
    assert reader.ask(b"get mail/open\r\n") == b"SERVER_ERROR another server has it\r\n"
    assert waiter.take() == b"SERVER_ERROR another server has it\r\n"


def test_a_fill_ends_with_its_queue_though_the_database_never_answers() -> None:
    database = HeldDatabase()
    storage = storage_over(database)
    ended = []
    for _ in range(2):
        queue = storage.queue(b"work", SETTINGS)
        filling = queue.fill()
        assert filling is not None
        filling.addCallback(ended.append)
        put(storage, queue)
        assert outcomes_of(storage, [queue]) == []
        database.batches.popleft().errback(OSError("no"))
    assert ended == [None, None]
    queue = storage.queue(b"work", SETTINGS)
    filling = queue.fill()
    assert filling is not None
    filling.addCallback(ended.append)
    storage.delete(queue)
    assert ended == [None, None, None]


def test_a_queue_whose_deletion_failed_can_be_deleted_again() -> None:
    database = HeldDatabase()
    server = MemoryServer(storage_over(database))
    client = server.connect()
    client.send(b"delete work\r\n")
    server.settle()
    database.batches.popleft().errback(OSError("no"))
    assert client.take() == b"SERVER_ERROR the database refused it\r\n"
    assert client.ask(b"delete work\r\n") == b"", "it is still there, so it has to be deleted first"
    database.batches.popleft().callback(None)
    assert client.take() == b"DELETED\r\n"


@pytest.mark.parametrize(("command", "reply"), [(b"delete work", b"DELETED"), (b"flush work", b"END")])
def test_a_queue_is_not_said_to_be_gone_before_the_database_has_deleted_it(command: bytes, reply: bytes) -> None:
    database = HeldDatabase()
    server = MemoryServer(storage_over(database))
    first, second = server.connect(), server.connect()
    assert first.ask(b"delete work\r\n") == b""
    assert second.ask(command + b"\r\n") == b""
    database.batches.popleft().callback(None)
    assert first.take() == b"DELETED\r\n"
    assert second.take() == reply + b"\r\n"


def test_while_memory_is_full_a_queue_takes_no_more_than_a_mebibyte_that_the_database_does_not_have_yet() -> None:
    database, limit = HeldDatabase(), MemoryLimit(1000)
    storage = storage_over(database, limit)
    queue = storage.queue(b"work", SETTINGS)
    put(storage, queue)
    storage.commit([queue])
    taken = 0
    with pytest.raises(StorageRefused, match="the server's memory is full, and the database is slow"):
        for _ in range(100):
            put(storage, queue, b"x" * (UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL // 4))
            taken += 1
    assert taken == 4
    assert limit.used_bytes > UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL, "it counts before the next commit begins"
    database.batches.popleft().callback(None)
    storage.commit([queue])
    database.batches.popleft().callback(None)
    put(storage, queue)
    assert limit.used_bytes < 1000


def test_an_item_that_was_taken_counts_as_long_as_it_is_in_memory_to_be_written() -> None:
    database, limit = HeldDatabase(), MemoryLimit(1 << 30)
    storage = storage_over(database, limit)
    queue = storage.queue(b"fast", SETTINGS)
    put(storage, queue, b"x" * (1 << 20))
    storage.commit([queue])
    assert queue.take(opened=False) is not None
    put(storage, queue)
    assert limit.used_bytes > 1 << 20
    database.batches.popleft().callback(None)
    assert limit.used_bytes < 1000


def test_a_queue_takes_no_more_than_128_mebibytes_that_a_slow_database_does_not_have_yet() -> None:
    database = HeldDatabase()
    storage = storage_over(database)
    queue = storage.queue(b"slow", SETTINGS)
    large = b"x" * (16 << 20)
    put(storage, queue, large)
    storage.commit([queue])
    for _ in range(7):
        put(storage, queue, large)
    with pytest.raises(StorageRefused, match="the database is slow"):
        put(storage, queue, b"one more")
    database.batches.popleft().callback(None)
    put(storage, queue, b"and another")


def test_of_what_the_database_does_not_have_yet_no_more_comes_into_the_window_at_once_than_is_read() -> None:
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


def test_however_often_a_queue_is_cleared_while_the_database_is_slow_it_takes_the_same_memory() -> None:
    storage = storage_over(PromptDatabase())
    queue = storage.queue(b"work", SETTINGS)
    for _ in range(1000):
        put(storage, queue)
    storage.commit([queue])
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


# What is said to whom.


def test_clients_are_told_that_the_database_is_away_and_the_log_each_time_why() -> None:
    database, clock = HeldDatabase(), Clock()
    storage = storage_over(database, clock=clock)
    queue = storage.queue(b"fast", SETTINGS)
    put(storage, queue)
    storage.commit([queue])
    reasons = ["connection to db1 refused", "connection to db1 refused", "no password for account kestrel"]
    with capturedLogs() as captured:
        for reason in reasons:
            database.batches.popleft().errback(DatabaseAway(reason))
            assert storage.refusal == "the database is away"
            clock.advance(1)
    assert [event["reason"] for event in captured if event["log_level"] == LogLevel.error] == reasons[1:]


def test_a_client_is_told_that_the_database_refused_something_and_the_log_why() -> None:
    database = HeldDatabase()
    storage = storage_over(database)
    queue = storage.queue(b"fast", SETTINGS)
    put(storage, queue)
    (told,) = [outcome for _, outcome in storage.commit([queue])]
    failed: list[str] = []
    told.addErrback(lambda failure: failed.append(failure.getErrorMessage()))
    with capturedLogs() as captured:
        database.batches.popleft().errback(StorageError("relation items of account kestrel"))
    assert failed == ["the database refused it"]
    assert [event["reason"] for event in captured] == ["relation items of account kestrel"]


def test_who_is_refused_for_another_reason_soon_after_there_was_no_room_is_not_told_that_there_is_none() -> None:
    database = HeldDatabase()
    storage = storage_over(database)
    told: list[str] = []
    for error in (StorageRefused("disk full"), StorageError("no such table")):
        queue = storage.queue(b"fast", SETTINGS)
        for _, outcome in storage.commit([queue]):
            outcome.addErrback(lambda failure: told.append(failure.getErrorMessage()))
        database.batches.popleft().errback(error)
    assert told == ["the database has no room for it", "the database refused it"]


def test_that_a_queue_cannot_be_read_is_logged_once_for_each_reason() -> None:
    database = HeldDatabase()
    storage = storage_over(database)
    queue = storage.queue(b"work", SETTINGS)
    told: list[str] = []
    with capturedLogs() as captured:
        for reason in ("no more connections", "no more connections", "no such table"):
            filling = queue.fill()
            assert filling is not None
            filling.addErrback(lambda failure: told.append(failure.getErrorMessage()))
            database.reads.popleft().errback(StorageError(reason))
    assert told == ["the queue cannot be read from the database"] * 3
    assert [event["reason"] for event in captured] == ["no more connections", "no such table"]


@pytest.mark.parametrize("finds_out", ["a batch", "a read"])
def test_a_storage_whose_database_another_server_has_taken_tells_that_it_has_ended(finds_out: str) -> None:
    database = HeldDatabase()
    storage = storage_over(database)
    ended: list[object] = []
    storage.ended.addCallback(ended.append)
    queue, other = storage.queue(b"work", SETTINGS), storage.queue(b"other", SETTINGS)
    lost = OwnershipLost("another server has the database")
    if finds_out == "a batch":
        put(storage, other)
        for _, outcome in storage.commit([other]):
            outcome.addErrback(lambda failure: None)
        database.batches.popleft().errback(lost)
    else:
        filling = queue.fill()
        assert filling is not None
        filling.addErrback(lambda failure: None)
        database.reads.popleft().errback(lost)
    assert ended == [lost]
    with pytest.raises(QueueFailed, match="another server has the database"):
        other.take(opened=False)


@pytest.mark.parametrize("failure", [None, StorageRefused("no space left")], ids=["sound", "without room"])
def test_a_storage_that_is_closed_leaves_no_timer_behind(failure: Exception | None) -> None:
    database, clock = PromptDatabase(), Clock()
    database.failure = failure
    storage = storage_over(database, clock=clock)
    queue = storage.queue(b"fast", SETTINGS)
    put(storage, queue)
    assert len(outcomes_of(storage, [queue])) == 1
    closed: list[object] = []
    storage.close().addCallback(closed.append)
    assert closed == [None]
    assert clock.getDelayedCalls() == []


def test_a_close_gives_a_database_that_is_away_ten_seconds_and_then_writes_nothing_any_more() -> None:
    database, clock = HeldDatabase(), Clock()
    storage = storage_over(database, clock=clock)
    queue = storage.queue(b"fast", SETTINGS)
    put(storage, queue)
    ((_, outcome),) = storage.commit([queue])
    failed: list[str] = []
    outcome.addErrback(lambda failure: failed.append(failure.getErrorMessage()))
    database.batches.popleft().errback(DatabaseAway("no answer"))
    closed: list[object] = []
    storage.close().addCallback(closed.append)
    clock.advance(LAST_WRITES_S - 0.1)
    assert (failed, closed) == ([], [])
    pending = database.batches.popleft()
    clock.advance(0.1)
    assert (failed, closed) == (["the server stopped while the database was away"], [None])
    pending.errback(DatabaseAway("no answer"))
    assert clock.getDelayedCalls() == []
    assert not database.batches


def test_a_storage_that_is_closed_reads_nothing_any_more() -> None:
    database = HeldDatabase()
    storage = storage_over(database)
    queue = storage.queue(b"work", SETTINGS)
    put(storage, queue)
    storage.commit([queue])
    storage.close()  # which waits for that
    filling = queue.fill()
    assert filling is not None
    failed: list[type] = []
    filling.addErrback(lambda failure: failed.append(failure.type))
    assert (failed, len(database.reads)) == ([QueueFailed], 0)


def test_a_close_writes_nothing_that_stands_on_a_batch_that_was_not_applied() -> None:
    database = HeldDatabase()
    storage = storage_over(database)
    queue = storage.queue(b"fast", SETTINGS)
    put(storage, queue)
    ((_, outcome),) = storage.commit([queue])
    outcome.addErrback(lambda failure: None)
    put(storage, queue)
    closed: list[object] = []
    storage.close().addCallback(closed.append)
    database.batches.popleft().errback(OSError("no"))
    assert closed == [None]
    assert not database.batches


def test_a_storage_that_is_closed_has_not_ended_by_itself() -> None:
    storage = storage_over(PromptDatabase())
    storage.close()
    assert not storage.ended.called
