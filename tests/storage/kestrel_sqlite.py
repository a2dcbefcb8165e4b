"""Queues in one SQLite file, ``--storage sqlite:FILE``: written from docs/storage_plugins.md alone.

SQLite's lock on the file says who owns it. PERSIST keeps the journal's room, so that a full disk still takes removes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.errors import BadStorageArgument, DatabaseAway, StorageError, StorageInUse, StorageRefused
from kestrel.storage.database import IDatabase, QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread, IStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed import CAPABILITIES, UNUSED_SETTINGS, WindowedStorage

OPENING = """
PRAGMA locking_mode = EXCLUSIVE; PRAGMA secure_delete = OFF; PRAGMA journal_mode = PERSIST; PRAGMA synchronous = FULL;
PRAGMA journal_size_limit = 4194304; BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS queues (name BLOB PRIMARY KEY, items INTEGER, bytes INTEGER, gone_to INTEGER, last INTEGER);
CREATE TABLE IF NOT EXISTS items (queue BLOB, position INTEGER, data BLOB, add_ms INTEGER, expiry_ms INTEGER,
                                  errors INTEGER, PRIMARY KEY (queue, position));
CREATE TABLE IF NOT EXISTS owner (one INTEGER PRIMARY KEY, batch INTEGER); REPLACE INTO owner VALUES (1, 0); COMMIT;
"""
READ = """
SELECT position, data, add_ms, expiry_ms, errors FROM items WHERE queue = ? AND position > ? ORDER BY position LIMIT ?
"""
PATIENCE_S = 60.0  # how long a call waits for the one before it, and so for a disk that does not answer


@implementer(IDatabase)
class SqliteDatabase:
    """One connection, which one thread at a time may use: each call runs in a thread and has the lock meanwhile."""

    def __init__(self, file: Path, in_thread: InThread) -> None:
        self._file = file.absolute()  # so no name is special to SQLite, as ":memory:" would be
        self._in_thread = in_thread
        self._lock, self._is_closed = Lock(), False
        self._connection: sqlite3.Connection | None = None

    def list_queues(self) -> Deferred[list[StoredQueue]]:
        return self._in_thread(self._list_queues)

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        return self._in_thread(self._apply, batch)

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[list[StoredItem]]:
        return self._in_thread(self._read_after, name, position, n, max_bytes)

    def close(self) -> Deferred[None]:
        return self._in_thread(self._close)

    def _list_queues(self) -> list[StoredQueue]:
        with self._use(opens=True) as connection:
            connection.executescript(OPENING)
            return [StoredQueue(*row) for row in connection.execute("SELECT * FROM queues")]

    def _apply(self, batch: WriteBatch) -> None:
        with self._use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("SELECT batch FROM owner").fetchone() == (batch.number,):
                return
            connection.execute("UPDATE owner SET batch = ?", (batch.number,))
            for changes in batch.changes:
                _change(connection, changes)
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    raise
                # What a failed sync left on the disk is not known: the same batch has to come again.
                raise DatabaseAway(f"{self._file}: {error}") from error

    def _read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        found: list[StoredItem] = []
        with self._use() as connection:
            for item in map(StoredItem._make, connection.execute(READ, (name, position, n))):  # reads row by row
                max_bytes -= len(item.data)
                if found and max_bytes < 0:
                    break
                found.append(item)
        return found

    def _close(self) -> None:
        self._is_closed = True  # list_queues may run later, and must not take ownership then
        with suppress(StorageError), self._use() as connection:
            self._connection = None
            connection.close()

    @contextmanager
    def _use(self, opens: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread. What the block does not commit is rolled back."""
        if not self._lock.acquire(timeout=PATIENCE_S):
            raise DatabaseAway(f"{self._file} does not answer")
        try:
            if opens and not self._is_closed:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._connection = sqlite3.connect(self._file, 1, isolation_level=None, check_same_thread=False)
            if self._connection is None:
                raise DatabaseAway(f"{self._file} is closed")
            yield self._connection
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error
        finally:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.rollback()
            self._lock.release()

    def _failure(self, error: Exception) -> StorageError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # extended codes have more in their upper bits
        if code == sqlite3.SQLITE_BUSY:
            return StorageInUse(f"{self._file} is in use by another process")
        return (StorageRefused if code == sqlite3.SQLITE_FULL else StorageError)(f"{self._file}: {error}")


def _change(connection: sqlite3.Connection, changes: QueueChanges) -> None:
    name = changes.queue.name
    if changes.is_new or changes.is_deleted:
        connection.execute("DELETE FROM items WHERE queue = ?", (name,))
        connection.execute("DELETE FROM queues WHERE name = ?", (name,))
    if changes.is_deleted:
        return
    removed = [(name, first, last) for first, last in changes.removed]
    connection.executemany("DELETE FROM items WHERE queue = ? AND position BETWEEN ? AND ?", removed)
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", [(name, *item) for item in changes.puts])
    errors = [(errors, name, position) for position, errors in changes.errors.items()]
    connection.executemany("UPDATE items SET errors = ? WHERE queue = ? AND position = ?", errors)
    connection.execute("REPLACE INTO queues VALUES (?, ?, ?, ?, ?)", changes.queue)


@implementer(IStorageFactory)
class SqliteStorageFactory:
    name, help = "sqlite", "sqlite:FILE  keeps queues in a SQLite database in FILE"
    capabilities, unused_settings = CAPABILITIES, UNUSED_SETTINGS

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> WindowedStorage:
        if not argument or options:
            raise BadStorageArgument("sqlite: needs a file, as in sqlite:/srv/kestrel.sqlite, and takes no options")
        return WindowedStorage(SqliteDatabase(Path(argument), in_thread), clock, memory)
