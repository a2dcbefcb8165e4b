"""Kestrel queues in one SQLite file: ``--storage sqlite:FILE``."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
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

SETUP = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = PERSIST;
PRAGMA journal_size_limit = {reserve_bytes};
PRAGMA synchronous = FULL;
PRAGMA secure_delete = OFF;
BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS queues (name BLOB PRIMARY KEY, items INTEGER, bytes INTEGER, floor INTEGER, last INTEGER);
CREATE TABLE IF NOT EXISTS items (queue BLOB, position INTEGER, data BLOB, add_ms INTEGER, expiry_ms INTEGER,
                                  errors INTEGER, PRIMARY KEY (queue, position));
CREATE TABLE IF NOT EXISTS owner (id INTEGER PRIMARY KEY, batch INTEGER);
REPLACE INTO owner VALUES (1, 0);
COMMIT;
"""
READ = """
SELECT position, data, add_ms, expiry_ms, errors FROM items WHERE queue = ? AND position > ? ORDER BY position LIMIT ?
"""
RESERVE_BYTES = 16 << 20
LOCK_TIMEOUT_S = 60.0


@implementer(IDatabase)
class SqliteDatabase:
    """A SQLite file with one connection, which one thread at a time uses.

    SQLite's rollback journal is kept `reserve_bytes` long, so that removes need no room on the disk.
    """

    def __init__(self, file: Path, in_thread: InThread, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._file = file.absolute()  # so that no name is special to SQLite, as ":memory:" would be
        self._in_thread = in_thread
        self._reserve_bytes = reserve_bytes
        self._lock = Lock()
        self._is_closed = False
        self._connection: sqlite3.Connection | None = None

    def list_queues(self) -> Deferred[Sequence[StoredQueue]]:
        """Open the file, lock it, and return the rows of all queues."""
        return self._in_thread(self._list_queues)

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        """Apply all changes of the batch in one transaction."""
        return self._in_thread(self._apply, batch)

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        """Return the items of a queue above a position, lowest first."""
        return self._in_thread(self._read_after, name, position, n, max_bytes)

    def close(self) -> Deferred[None]:
        """Close the file, and release its lock."""
        return self._in_thread(self._close)

    def _list_queues(self) -> list[StoredQueue]:
        with self._use(opens=True) as connection:
            connection.executescript(SETUP.format(reserve_bytes=self._reserve_bytes))
            self._reserve_room()
            return [StoredQueue(*row) for row in connection.execute("SELECT * FROM queues")]

    def _reserve_room(self) -> None:
        """Extend the rollback journal. SQLite ignores bytes behind its last record."""
        descriptor = os.open(f"{self._file}-journal", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._reserve_bytes)
        finally:
            os.close(descriptor)

    def _apply(self, batch: WriteBatch) -> None:
        with self._use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("SELECT batch FROM owner").fetchone() == (batch.number,):
                return  # applied before, and synced: SQLite syncs its journal again after an error
            connection.execute("UPDATE owner SET batch = ?", (batch.number,))
            for changes in batch.changes:
                _apply_changes(connection, changes)
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    raise
                # After a failed sync it is unknown if the batch is on the disk: the server sends it again.
                raise DatabaseAway(f"{self._file}: {error}") from error

    def _read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        found: list[StoredItem] = []
        with self._use() as connection:
            for row in connection.execute(READ, (name, position, n)):  # fetches one row at a time
                item = StoredItem(*row)
                max_bytes -= len(item.data)
                if found and max_bytes < 0:
                    break
                found.append(item)
        return found

    def _close(self) -> None:
        self._is_closed = True  # a pool of threads may run list_queues after this
        with suppress(StorageError), self._use() as connection:
            self._connection = None
            connection.close()

    @contextmanager
    def _use(self, opens: bool = False) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread, and roll back what the block has not committed."""
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise DatabaseAway(f"{self._file} does not answer")
        try:
            if opens and not self._is_closed:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._connection = sqlite3.connect(self._file, 1, isolation_level=None, check_same_thread=False)
            if self._connection is None:
                raise DatabaseAway(f"{self._file} is closed")
            yield self._connection
        except (sqlite3.Error, OSError) as error:
            raise self._storage_error(error) from error
        finally:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.rollback()
            self._lock.release()

    def _storage_error(self, error: Exception) -> StorageError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits hold SQLite's extended code
        if code == sqlite3.SQLITE_BUSY:
            return StorageInUse(f"{self._file} is in use by another process: stop it, or name another file")
        return (StorageRefused if code == sqlite3.SQLITE_FULL else StorageError)(f"{self._file}: {error}")


def _apply_changes(connection: sqlite3.Connection, changes: QueueChanges) -> None:
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
    """The factory of ``sqlite:FILE``."""

    name = "sqlite"
    help = "sqlite:FILE  keeps queues in a SQLite database in FILE"
    capabilities = CAPABILITIES
    unused_settings = UNUSED_SETTINGS

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> WindowedStorage:
        """Return a storage for that file. It opens nothing yet."""
        if not argument or options:
            raise BadStorageArgument("sqlite: needs a file, as in sqlite:/srv/kestrel.sqlite, and takes no options")
        return WindowedStorage(SqliteDatabase(Path(argument), in_thread), clock, memory)
