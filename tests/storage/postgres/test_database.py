"""Tests of `PostgresDatabase`: the contents of the tables, and reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import capturedLogs
from zope.interface.verify import verifyObject

from kestrel.storage.database import IDatabase, StoredItem, StoredQueue
from kestrel.storage.postgres import queries
from kestrel.storage.postgres.database import PostgresDatabase
from kestrel.testing.threads import SteppedThreads
from tests.sample import examples
from tests.server.storages import ON_POSTGRES
from tests.storage.postgres.batches import ALL, Schemas, batch, changes, deletion, fired, first, item, items, read

pytestmark = ON_POSTGRES

EVERY_BYTE = bytes(range(256))


@pytest.fixture
def database(schemas: Schemas, tmp_path: Path) -> Iterator[PostgresDatabase]:
    """A database that owns its queues. There are none yet."""
    database = schemas.listed(tmp_path)
    yield database
    fired(database.close())


def reopened(database: PostgresDatabase, schemas: Schemas, folder: Path) -> dict[bytes, StoredQueue]:
    """Close the database, and return the queues that the next owner lists, by name."""
    fired(database.close())
    again = schemas.database(folder)
    found = {queue.name: queue for queue in fired(again.list_queues())}
    fired(again.close())
    return found


def test_provides_its_interface(database: PostgresDatabase) -> None:
    assert verifyObject(IDatabase, database)


def test_no_job_runs_on_the_reactor_thread(schemas: Schemas, tmp_path: Path) -> None:
    threads = SteppedThreads()
    database = schemas.database(tmp_path, threads)
    asked: list[Deferred[Any]] = [database.list_queues()]
    assert schemas.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kestrel'") == [(0,)]
    threads.run_all()
    asked.append(database.apply(batch(1, first(b"work", *items(1)))))
    assert schemas.count(tmp_path, "items") == 0
    threads.run_all()
    asked.append(database.read_after(b"work", 0, ALL, ALL))
    assert len(threads) == 1
    threads.run_all()
    asked.append(database.close())
    threads.run_all()
    assert [fired(each) for each in asked] == [[], None, items(1), None]


# Bytes.


def test_queue_names_may_have_any_bytes(database: PostgresDatabase, schemas: Schemas, tmp_path: Path) -> None:
    names = [*(bytes([byte]) for byte in EVERY_BYTE), EVERY_BYTE[:255], EVERY_BYTE[1:], b"\0" * 255, b"a\0", b"a\0b"]
    fired(database.apply(batch(1, *(first(name, item(1, name)) for name in names))))
    fired(database.apply(batch(2, *(deletion(name) for name in names[::2]))))
    assert [read(database, name) for name in names[1::2]] == [[item(1, name)] for name in names[1::2]]
    assert all(read(database, name) == [] for name in names[::2])
    assert set(reopened(database, schemas, tmp_path)) == set(names[1::2])


@pytest.mark.parametrize("size", [0, 1, 1999, 2000, 2048, 8191, 8192, 65536, 1 << 20])
def test_data_of_any_size_is_read_unchanged(database: PostgresDatabase, size: int) -> None:
    put = [item(1, (EVERY_BYTE * (size // 256 + 1))[:size]), item(2, bytes(size)), item(3, b"\xff" * size)]
    fired(database.apply(batch(1, first(b"work", *put))))
    assert read(database) == put


def test_batch_larger_than_one_statement_keeps_its_order(database: PostgresDatabase) -> None:
    put = [item(1, b"large" * (1 << 20)), *(item(position, bytes([position]) * 700_000) for position in range(2, 25))]
    fired(database.apply(batch(1, first(b"work", *put[:20]), first(b"other", *put[20:]))))
    assert (read(database), read(database, b"other")) == (put[:20], put[20:])


def test_numbers_up_to_63_bits_are_stored(database: PostgresDatabase, schemas: Schemas, tmp_path: Path) -> None:
    high = (1 << 63) - 1
    queue = StoredQueue(b"work", 1, high, high - 1, high)
    put = StoredItem(high, b"data", high, high, (1 << 31) - 1)
    fired(database.apply(batch(1, changes(queue, [put], is_new=True))))
    assert read(database, b"work", high - 1) == [put]
    assert reopened(database, schemas, tmp_path) == {b"work": queue}


# Batches.


def test_changes_of_a_batch_are_applied_in_order(database: PostgresDatabase) -> None:
    fired(database.apply(batch(1, first(b"a", *items(1, 2, 3, 4)), first(b"b", *items(1, 2)), first(b"c", *items(1)))))
    a = changes(StoredQueue(b"a", 3, 3, 1, 6), items(6), [(1, 1), (3, 3)], {4: 7})
    b = changes(StoredQueue(b"b", 1, 1, 0, 2), [item(2, b"n")], is_new=True)
    fired(database.apply(batch(2, a, b, deletion(b"c"), first(b"d", *items(9)))))
    assert read(database, b"a") == [item(2), item(4)._replace(errors=7), item(6)]
    assert (read(database, b"b"), read(database, b"c"), read(database, b"d")) == ([item(2, b"n")], [], items(9))


def test_batches_are_applied_in_sequence(database: PostgresDatabase) -> None:
    fired(database.apply(batch(1, first(b"work", *items(1, 2)))))
    for last in range(3, 30):
        taken = changes(StoredQueue(b"work", 2, 2, last - 2, last), items(last), [(last - 2, last - 2)])
        fired(database.apply(batch(last, taken)))
    assert read(database) == items(28, 29)


def test_repeated_batch_changes_nothing(database: PostgresDatabase) -> None:
    put = batch(1, first(b"work", *items(1, 2)))
    for each in (put, put, batch(1, deletion(b"work")), put):
        fired(database.apply(each))
    assert read(database) == items(1, 2)


def test_recreated_queue_has_no_old_items(database: PostgresDatabase, schemas: Schemas, tmp_path: Path) -> None:
    fired(database.apply(batch(1, first(b"work", *items(1, 2, 3)))))
    fired(database.apply(batch(2, first(b"work", *items(2)))))
    assert read(database) == items(2)
    fired(database.apply(batch(3, deletion(b"work"))))
    fired(database.apply(batch(4, first(b"work", *items(3)))))
    assert read(database) == items(3)
    assert reopened(database, schemas, tmp_path) == {b"work": StoredQueue(b"work", 1, 1, 0, 3)}


# Large queues.


def test_many_items_are_read_in_windows(database: PostgresDatabase) -> None:
    batches = examples(100)
    many = batches * 10_000
    size = 0
    for number in range(1, batches + 1):
        puts = items(*range((number - 1) * 10_000 + 1, number * 10_000 + 1))
        size += sum(len(item.data) for item in puts)
        queue = StoredQueue(b"work", number * 10_000, size, 0, number * 10_000)
        fired(database.apply(batch(number, changes(queue, puts, is_new=number == 1))))
    position = windows = 0
    while window := fired(database.read_after(b"work", position, 10_000, ALL)):
        assert [item.position for item in window] == list(range(position + 1, position + len(window) + 1))
        assert all(item.data == b"%d" % item.position for item in window)
        position += len(window)
        windows += 1
    assert (position, windows) == (many, batches)
    gone = changes(StoredQueue(b"work", 10, 70, many - 10, many), removed=[(1, many - 10)])
    fired(database.apply(batch(batches + 1, gone)))
    assert read(database, b"work", many - 10) == items(*range(many - 9, many + 1))


@pytest.mark.parametrize("known_bytes", [0, 50 << 20, 1 << 40])
def test_read_obeys_its_byte_limit_despite_a_wrong_queue_size(database: PostgresDatabase, known_bytes: int) -> None:
    put = [item(position, b"x" * (1 << 20)) for position in range(1, 51)]
    queue = first(b"work", *put)
    queue = queue._replace(queue=queue.queue._replace(bytes=known_bytes))
    fired(database.apply(batch(1, queue)))
    positions = [item.position for item in fired(database.read_after(b"work", 4, 10_000, (5 << 20) + 17))]
    assert positions == [5, 6, 7, 8, 9]
    assert fired(database.read_after(b"work", 4, 10_000, 1)) == put[4:5]


# Erasing.


def put_many(database: PostgresDatabase) -> None:
    """Put 12,000 items into the queue work, and one into the queue other."""
    fired(database.apply(batch(1, first(b"work", *items(*range(1, 12_001))), first(b"other", *items(1)))))


def test_items_of_a_deleted_queue_are_erased(database: PostgresDatabase, schemas: Schemas, tmp_path: Path) -> None:
    put_many(database)
    fired(database.apply(batch(2, deletion(b"work"))))
    assert (schemas.count(tmp_path, "items"), schemas.count(tmp_path, "leftovers")) == (1, 0)
    assert read(database, b"other") == items(1)


def test_flush_keeps_open_items(database: PostgresDatabase, schemas: Schemas, tmp_path: Path) -> None:
    put_many(database)
    left = StoredQueue(b"work", 3, 13, 6, 12_001)
    flush = changes(left, items(12_001), [(1, 6), (8, 11_999)], {7: 2})
    fired(database.apply(batch(2, flush)))
    kept = [item(7)._replace(errors=2), *items(12_000, 12_001)]
    assert read(database) == kept
    assert (schemas.count(tmp_path, "items"), schemas.count(tmp_path, "leftovers")) == (4, 0)
    gone = changes(StoredQueue(b"work", 2, 10, 7, 12_001), removed=[(7, 7)])
    fired(database.apply(batch(3, gone)))
    assert read(database) == kept[1:]
    assert reopened(database, schemas, tmp_path)[b"work"] == gone.queue


def test_next_owner_continues_erasing(schemas: Schemas, tmp_path: Path) -> None:
    threads = SteppedThreads()
    database = schemas.database(tmp_path, threads)
    asked: list[Deferred[Any]] = [database.list_queues()]
    threads.run_all()
    asked.append(database.apply(batch(1, first(b"work", *items(*range(1, 12_001))))))
    threads.run_all()
    asked.append(database.apply(batch(2, deletion(b"work"))))
    for _ in range(2):  # the batch, and one slice
        threads.run_one()
    asked.append(database.close())
    threads.run_all()
    assert 0 < schemas.count(tmp_path, "items") < 12_000
    assert [fired(each) for each in asked] == [[], None, None, None]
    fired(schemas.listed(tmp_path).close())
    assert (schemas.count(tmp_path, "items"), schemas.count(tmp_path, "leftovers")) == (0, 0)


def test_failed_erasing_is_logged_once(schemas: Schemas, tmp_path: Path) -> None:
    held: list[Deferred[None]] = []

    def in_thread(function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        if args != (queries.erase_slice,):
            return maybeDeferred(function, *args)
        held.append(Deferred())
        return held[-1].addCallback(lambda _: function(*args))

    database = schemas.database(tmp_path, in_thread)
    fired(database.list_queues())
    for number in range(1, 21, 2):
        fired(database.apply(batch(number, first(b"work", *items(1)))))
        fired(database.apply(batch(number + 1, deletion(b"work"))))
    assert len(held) == 1
    with capturedLogs() as logs:
        while held:
            held.pop().errback(OSError("no"))
    assert ["is not erased yet" in event["log_format"] for event in logs] == [True]
    fired(database.apply(batch(21, first(b"work"), deletion(b"other"))))
    fired(database.apply(batch(22, deletion(b"work"))))
    while held:
        held.pop().callback(None)
    assert (schemas.count(tmp_path, "items"), schemas.count(tmp_path, "leftovers")) == (0, 0)
    fired(database.close())
