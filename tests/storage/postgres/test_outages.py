"""Tests of outages of the database: no item is lost or duplicated."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.errors import DatabaseAway, StorageError, StorageRefused
from kestrel.storage.database import QueueChanges, StoredQueue
from kestrel.storage.postgres.connection import CLOSE_S
from kestrel.storage.postgres.database import PostgresDatabase
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed import WindowedStorage
from kestrel.testing.postgres import PrivateServer
from kestrel.testing.threads import SteppedThreads
from tests.server.storages import ON_POSTGRES
from tests.storage.postgres.batches import (
    TIMEOUT_S,
    RealThreads,
    Schemas,
    applied,
    batch,
    changes,
    deletion,
    fired,
    first,
    item,
    items,
    read,
    schema_of,
)
from tests.storage.postgres.proxy import Proxy

pytestmark = ON_POSTGRES


def step(number: int) -> QueueChanges:
    """Return the changes of batch `number`: remove one item, set an error count to `number`, and put two items."""
    if number == 1:
        return first(b"work", *items(1, 2, 3))
    last = 2 * number + 1
    queue = StoredQueue(b"work", number + 2, 0, number - 1, last)
    return changes(queue, items(last - 1, last), [(number - 1, number - 1)], {last - 2: number})


def after(number: int) -> list[tuple[int, int]]:
    """Return the expected positions and error counts after this many steps."""
    last = 2 * number + 1
    counted = {2 * other - 1: other for other in range(2, number + 1)}
    return [(position, counted.get(position, 0)) for position in range(number, last + 1)]


def found(database: PostgresDatabase) -> list[tuple[int, int]]:
    """Return the positions and error counts in the database."""
    return [(item.position, item.errors) for item in read(database)]


# Lost replies.


@pytest.mark.parametrize("tells_server", [True, False])
def test_batch_is_applied_once_if_the_reply_to_its_commit_is_lost(
    server: PrivateServer, tmp_path: Path, tells_server: bool
) -> None:
    with TemporaryDirectory() as folder, Proxy(Path(folder), server.socket) as proxy:
        database = Schemas(server.conninfo.replace(str(server.folder), folder)).listed(tmp_path)
        there = Schemas(server.conninfo)
        for number in range(1, 6):
            new, old = b"new %d" % number, b"new %d" % (number - 1)
            lost = batch(number, step(number), first(new, *items(number)), deletion(old))
            proxy.loses, proxy.tells_server = b"COMMIT\0", tells_server
            with pytest.raises(DatabaseAway):
                fired(database.apply(lost))
            assert there.execute(f'SELECT batch FROM "{schema_of(tmp_path)}".owner') == [(number,)], "it was applied"
            proxy.loses, proxy.tells_server = None, True
            assert applied(database, lost) == 0
            assert found(database) == after(number)
            assert (read(database, new), there.count(tmp_path, "queues")) == (items(number), 2)
        fired(database.close())


def test_connection_may_break_after_any_byte(server: PrivateServer, tmp_path: Path) -> None:
    with TemporaryDirectory() as folder, Proxy(Path(folder), server.socket) as proxy:
        database = Schemas(server.conninfo.replace(str(server.folder), folder)).listed(tmp_path)
        broken = 0
        for number, allowed in enumerate(range(1, 4000, 61), start=1):
            proxy.allowed = allowed
            try:
                fired(database.apply(batch(number, step(number))))
            except DatabaseAway:
                broken += 1
            proxy.allowed = None
            applied(database, batch(number, step(number)))
            assert found(database) == after(number)
        assert 5 < broken < number, "some broke within the batch, and some went through"
        fired(database.close())


# Crashes.


def test_database_may_be_killed_at_any_moment(own_server: PrivateServer, tmp_path: Path) -> None:
    database = Schemas(own_server.conninfo).listed(tmp_path)
    number = 0
    for turn in range(12):
        killing = threading.Thread(target=own_server.kill)
        for place in itertools.count():
            number += 1
            if place == turn:
                killing.start()
            try:
                fired(database.apply(batch(number, step(number))))
            except DatabaseAway:
                break
        killing.join()
        own_server.start()
        applied(database, batch(number, step(number)))
        assert found(database) == after(number)
    fired(database.close())
    again = Schemas(own_server.conninfo).listed(tmp_path)
    assert found(again) == after(number)
    fired(again.close())


def test_storage_survives_a_restart_of_its_database(own_server: PrivateServer, tmp_path: Path) -> None:
    clock = Clock()

    def make() -> WindowedStorage:
        return WindowedStorage(Schemas(own_server.conninfo).database(tmp_path), clock, MemoryLimit())

    storage = make()
    fired(storage.start(lambda name: QueueSettings()))
    queue = storage.queue(b"work", QueueSettings())
    expected = []
    for turn in range(5):
        storage.put([queue], b"before %d" % turn, 0, 0)
        [(_, committing)] = storage.commit([queue])
        fired(committing)
        storage.put([queue], b"during %d" % turn, 0, 0)
        taken = queue.take(False)
        assert taken is not None
        expected += [b"before %d" % turn, b"during %d" % turn]
        assert taken.data == expected.pop(0)
        own_server.kill()
        outcomes: list[object] = []
        [(_, committing)] = storage.commit([queue])
        committing.addBoth(outcomes.append)
        clock.pump([0.1] * 20)
        assert outcomes == [], "the outcome is unknown"
        with pytest.raises(StorageRefused):
            storage.put([queue], b"refused", 0, 0)
        own_server.start()
        clock.pump([1.0] * 6)
        assert outcomes == [None]
    fired(storage.close())
    storage = make()
    fired(storage.start(lambda name: QueueSettings()))
    queue = storage.queue(b"work", QueueSettings())
    assert queue.items == len(expected)
    filling = queue.fill()
    if filling is not None:
        fired(filling)
    assert [item.data for item in iter(lambda: queue.take(False), None)] == expected
    fired(storage.close())


def test_missing_database_at_the_start_is_reported_in_one_line(tmp_path: Path) -> None:
    conninfo = f"host={tmp_path} dbname=queues user=kestrel password=not-to-be-told"
    database = Schemas(conninfo).database(tmp_path)
    with pytest.raises(DatabaseAway, match="the database cannot be used: connection ") as raised:
        fired(database.list_queues())
    assert "not-to-be-told" not in str(raised.value)
    assert "\n" not in str(raised.value)
    fired(database.close())


MANY = 3000
"""Exceeds the recursion limit."""


def test_failed_connection_fails_all_waiting_jobs(tmp_path: Path) -> None:
    threads = SteppedThreads()
    database = Schemas(f"host={tmp_path} dbname=queues").database(tmp_path, threads)
    for _ in range(2):
        reading = [database.read_after(b"work", 0, 1, 1) for _ in range(MANY)]
        threads.run_one()
        assert len(threads) == 0
        for each in reading:
            with pytest.raises(DatabaseAway, match="the database cannot be used: connection "):
                fired(each)
    closing = database.close()
    threads.run_all()
    fired(closing)


def test_close_fails_any_number_of_waiting_jobs(server: PrivateServer, tmp_path: Path) -> None:
    threads = SteppedThreads()
    database = Schemas(server.conninfo).database(tmp_path, threads)
    reading = [database.read_after(b"work", 0, 1, 1) for _ in range(MANY)]
    closing = database.close()
    threads.run_all()
    fired(closing)
    for each in reading[1:]:
        with pytest.raises(DatabaseAway, match="the storage is closed"):
            fired(each)
    with pytest.raises(StorageError, match="does not exist"):
        # The first job had started. The tables do not exist yet.
        fired(reading[0])


# A database that does not reply.


def in_threads(own_server: PrivateServer, folder: Path) -> tuple[PostgresDatabase, RealThreads, Clock]:
    """Return a database with real threads, after its first batch, and its threads and clock."""
    threads, clock = RealThreads(), Clock()
    database = Schemas(own_server.conninfo).database(folder, threads, clock)
    beginning: list[Callable[[], Deferred[Any]]] = [
        database.list_queues,
        lambda: database.apply(batch(1, step(1))),
        lambda: database.read_after(b"", 0, 1, 1),
    ]
    for ask in beginning:
        asked = ask()
        threads.finish()
        fired(asked)
    assert clock.getDelayedCalls() == []
    return database, threads, clock


@pytest.mark.parametrize(
    "ask",
    [
        lambda database: database.apply(batch(2, step(2))),
        lambda database: database.read_after(b"work", 0, 10, 10),
    ],
    ids=["apply", "read_after"],
)
def test_silent_database_is_away_after_the_timeout(
    own_server: PrivateServer, tmp_path: Path, ask: Callable[[PostgresDatabase], Deferred[Any]]
) -> None:
    database, threads, clock = in_threads(own_server, tmp_path)
    own_server.freeze()
    asked = ask(database)
    clock.advance(TIMEOUT_S)
    threads.finish()
    own_server.thaw()
    with pytest.raises(DatabaseAway, match="did not answer in time"):
        fired(asked)
    asked = database.apply(batch(2, step(2)))
    threads.finish()
    fired(asked)
    reading = database.read_after(b"work", 0, 100, 100)
    threads.finish()
    assert [(item.position, item.errors) for item in fired(reading)] == after(2)
    closing = database.close()
    threads.finish()
    fired(closing)


def test_batch_has_one_more_second_for_each_mebibyte(own_server: PrivateServer, tmp_path: Path) -> None:
    database, threads, clock = in_threads(own_server, tmp_path)
    put = [item(position, b"x" * (1 << 20)) for position in range(1, 5)]
    for name, pause_s, error in [(b"late", TIMEOUT_S + 4, DatabaseAway), (b"large", TIMEOUT_S + 3, None)]:
        own_server.freeze()
        asked = database.apply(batch(2, first(name, *put)))
        clock.advance(pause_s)
        own_server.thaw()
        threads.finish()
        if error is None:
            fired(asked)
        else:
            with pytest.raises(error, match="did not answer in time"):
                fired(asked)
    closing = database.close()
    threads.finish()
    fired(closing)


def test_close_does_not_wait_long_for_a_silent_database(own_server: PrivateServer, tmp_path: Path) -> None:
    database, threads, clock = in_threads(own_server, tmp_path)
    own_server.freeze()
    pending: list[Deferred[Any]] = [database.apply(batch(2, step(2)))]
    pending += [database.read_after(b"work", 0, 10, 10) for _ in range(3)]
    closing = database.close()
    clock.advance(CLOSE_S)
    threads.finish()
    fired(closing)
    own_server.thaw()
    for each in pending:
        with pytest.raises(DatabaseAway):
            fired(each)
    assert clock.getDelayedCalls() == []


# Refusals.


@pytest.mark.parametrize("when", ["BEFORE INSERT", "at the commit"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("53100", StorageRefused),
        ("40001", DatabaseAway),
        ("40P01", DatabaseAway),
        ("53200", DatabaseAway),
        ("55P03", DatabaseAway),
        ("57014", DatabaseAway),
        ("25006", DatabaseAway),
        ("23514", StorageError),
        ("XX000", StorageError),
    ],
)
def test_refused_batch_is_not_applied_and_raises_the_error_of_its_code(
    server: PrivateServer, tmp_path: Path, code: str, error: type[StorageError], when: str
) -> None:
    schemas = Schemas(server.conninfo)
    database = schemas.listed(tmp_path)
    fired(database.apply(batch(1, step(1))))
    schema = f'"{schema_of(tmp_path)}"'
    schemas.execute(
        f"CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" RAISE 'not today' USING ERRCODE = '{code}', DETAIL = encode(new.data, 'escape'); END $$"
    )
    kind, timing = ("", when) if when != "at the commit" else ("CONSTRAINT", "AFTER INSERT")
    deferred = "DEFERRABLE INITIALLY DEFERRED" if kind else ""
    schemas.execute(
        f"CREATE {kind} TRIGGER refuse {timing} ON {schema}.items {deferred}"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
    )
    for _ in range(2):
        with pytest.raises(error, match=r"\w+ \w+") as raised:
            fired(database.apply(batch(2, first(b"other", item(1, b"secret")), step(2))))
        assert type(raised.value) is error
        assert "secret" not in str(raised.value)
        assert found(database) == after(1)
        assert read(database, b"other") == []
    schemas.execute(f"DROP TRIGGER refuse ON {schema}.items")
    fired(database.apply(batch(3, step(2))))
    assert found(database) == after(2)
    fired(database.close())
