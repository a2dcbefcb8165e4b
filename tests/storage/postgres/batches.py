"""Helpers that create batches and databases for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.errors import DatabaseAway
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from kestrel.storage.postgres.database import PostgresDatabase

TIMEOUT_S: Final = 30.0

LOCK_S: Final = 0.2
"""Lock timeout of tests. It is short, because the server notices ended sessions of tests at once."""

PATIENCE_S: Final = 60.0
"""Time limit for a job in a thread."""

MANY_ATTEMPTS: Final = 100
"""Limit of attempts while the database is away."""

ALL: Final = 1 << 30
"""Exceeds the number of items and bytes of every test."""


class Schemas:
    """Databases of a server, in one schema per folder."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self._kept: psycopg.Connection | None = None

    def database(
        self, folder: Path, in_thread: InThread = maybeDeferred, clock: Clock | None = None, lock_s: float = LOCK_S
    ) -> PostgresDatabase:
        """Return the unused database of a folder. By default jobs run without threads and time does not advance."""
        clock = clock or Clock()
        return PostgresDatabase(self.conninfo, schema_of(folder), TIMEOUT_S, clock, in_thread, lock_s=lock_s)

    def listed(self, folder: Path) -> PostgresDatabase:
        """Return the database of a folder after it has taken the queues."""
        database = self.database(folder)
        fired(database.list_queues())
        return database

    def copy(self, folder: Path, new_folder: Path) -> None:
        """Copy the committed tables of a folder's database to the database of a new folder."""
        old, new = sql.Identifier(schema_of(folder)), sql.Identifier(schema_of(new_folder))
        connection = self._kept_connection()
        with connection.transaction():
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(new))
            for table in ("owner", "queues", "items", "leftovers"):
                names = {"old": old, "new": new, "table": sql.Identifier(table)}
                for statement in (
                    sql.SQL("CREATE TABLE {new}.{table} (LIKE {old}.{table} INCLUDING ALL)"),
                    sql.SQL("INSERT INTO {new}.{table} SELECT * FROM {old}.{table}"),
                ):
                    connection.execute(statement.format(**names))

    def end_sessions(self) -> None:
        """End all sessions in the server. Their clients notice only at their next use."""
        self.close()
        self.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def close(self) -> None:
        """Close the connection for copies. The next copy opens a new one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _kept_connection(self) -> psycopg.Connection:
        """Return the connection for copies. Reusing it halves the time of a copy, because its catalog cache is warm."""
        if self._kept is None:
            self._kept = psycopg.connect(self.conninfo, autocommit=True)
        return self._kept

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement on a new connection, and return its rows."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def count(self, folder: Path, table: str) -> int:
        """Return the number of rows of a table."""
        [(count,)] = self.execute(f'SELECT count(*) FROM "{schema_of(folder)}".{table}')
        return int(count)


def schema_of(folder: Path) -> str:
    """Return the name of a folder's schema. It has to be quoted in SQL."""
    return f"Of a test: {sha256(bytes(folder)).hexdigest()[:32]}"


def fired(deferred: Deferred[Any]) -> Any:
    """Return the result of a Deferred that has fired, or raise its failure."""
    results: list[Any] = []
    deferred.addBoth(results.append)
    assert results, "it has not fired"
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]


class RealThreads:
    """An `InThread` that runs jobs in real threads. Their Deferreds fire in `finish`."""

    def __init__(self) -> None:
        self._running: list[tuple[Deferred[Any], Future[Any]]] = []
        self._threads = ThreadPoolExecutor(max_workers=4)

    def __call__(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        """Start a job."""
        done: Deferred[Any] = Deferred()
        self._running.append((done, self._threads.submit(function, *args)))
        return done

    def finish(self) -> None:
        """Wait for all jobs, including those that their results start."""
        while self._running:
            ended, _ = wait([running for _, running in self._running], PATIENCE_S, FIRST_COMPLETED)
            assert ended, "a job does not end"
            fired = [each for each in self._running if each[1] in ended]
            self._running = [each for each in self._running if each[1] not in ended]
            for done, running in fired:
                try:
                    result = running.result()
                except Exception:
                    done.errback()
                else:
                    done.callback(result)


def item(position: int, data: bytes | None = None, errors: int = 0) -> StoredItem:
    """Return an item at a position. Its default data is the position."""
    return StoredItem(position, b"%d" % position if data is None else data, 1000 + position, position % 3, errors)


def items(*positions: int) -> list[StoredItem]:
    """Return items at these positions."""
    return [item(position) for position in positions]


def changes(
    queue: StoredQueue,
    puts: Sequence[StoredItem] = (),
    removed: Sequence[tuple[int, int]] = (),
    errors: Mapping[int, int] | None = None,
    *,
    is_new: bool = False,
) -> QueueChanges:
    """Return changes of a queue. `queue` is its state after them."""
    return QueueChanges(queue, is_new, False, removed, puts, errors or {})


def first(name: bytes, *puts: StoredItem) -> QueueChanges:
    """Return changes that create a queue with these items."""
    size = sum(len(item.data) for item in puts)
    last = max([0, *(item.position for item in puts)])
    return changes(StoredQueue(name, len(puts), size, 0, last), puts, is_new=True)


def deletion(name: bytes) -> QueueChanges:
    """Return changes that delete a queue."""
    return QueueChanges(StoredQueue(name, 0, 0, 0, 0), False, True, (), (), {})


def batch(number: int, *changes: QueueChanges) -> WriteBatch:
    """Return a batch with a number and changes."""
    return WriteBatch(number, changes)


def applied(database: PostgresDatabase, batch: WriteBatch) -> int:
    """Apply a batch, and retry while the database is away. Return the number of failed attempts."""
    for attempt in range(MANY_ATTEMPTS):
        with suppress(DatabaseAway):
            fired(database.apply(batch))
            return attempt
    raise AssertionError("the database does not come back")


def read(database: PostgresDatabase, name: bytes = b"work", position: int = 0) -> list[StoredItem]:
    """Return all items of a queue above a position. Retry while the database is away."""
    for _ in range(MANY_ATTEMPTS):
        with suppress(DatabaseAway):
            return list(fired(database.read_after(name, position, ALL, ALL)))
    raise AssertionError("the database does not come back")
