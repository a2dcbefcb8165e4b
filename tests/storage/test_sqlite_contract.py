"""A storage over an embedded database, in under 150 lines, keeps the contracts; nothing was opened to it that is not on
docs/storage_plugins.md."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

from kestrel.storage.database import IDatabase, QueueChanges, StoredItem, StoredQueue
from kestrel.storage.interfaces import InThread
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.suite import DatabaseContract, OnFaultyDatabase, StorageContract
from tests.storage import kestrel_sqlite
from tests.storage.kestrel_sqlite import SqliteDatabase, SqliteStorageFactory

FILE = "queues.sqlite"


class OnSqlite:
    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        return SqliteDatabase(folder / FILE, in_thread)


class TestSqliteDatabase(OnSqlite, DatabaseContract):
    is_embedded = True
    max_examples = 20

    def impossible(self, queue: StoredQueue) -> QueueChanges:
        """A put at a position that is taken."""
        return QueueChanges(queue, False, False, [], [StoredItem(1, b"again", 0, 0, 0)], {})

    def fill_database(self, database: IDatabase) -> None:
        """It may have no more pages than it has."""
        assert isinstance(database, SqliteDatabase)
        assert database._connection is not None
        database._connection.execute("PRAGMA max_page_count = 1")


class TestSqlite(OnSqlite, OnFaultyDatabase, StorageContract):
    factory = SqliteStorageFactory()
    max_examples = 20

    def taken_bytes(self, subject: StorageUnderTest) -> int:
        """Pages in use, of a copy, since the file is locked: SQLite keeps free ones for later items."""
        with tempfile.TemporaryDirectory() as name:
            copy = Path(name) / "copy"
            shutil.copytree(subject.folder, copy)
            connection = sqlite3.connect(copy / FILE)
            pragmas = ("page_count", "freelist_count", "page_size")
            (pages,), (free,), (size,) = (connection.execute(f"PRAGMA {each}").fetchone() for each in pragmas)
            connection.close()
            return (pages - free) * size


def test_it_is_as_short_as_it_is_said_to_be() -> None:
    assert len(Path(kestrel_sqlite.__file__).read_text().splitlines()) < 150
