"""The example in examples/storage-sqlite passes both contract suites, by the hooks of docs/storage_plugins.md only."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

import kestrel_sqlite
from kestrel_sqlite import SqliteDatabase, SqliteStorageFactory

from kestrel.storage.database import IDatabase, QueueChanges, StoredItem, StoredQueue
from kestrel.storage.interfaces import InThread
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.suite import DatabaseContract, OnFaultyDatabase, StorageContract
from tests.sample import examples

FILE = "queues.sqlite"
RESERVE_BYTES = 256 << 10
"""Enough for the suite, which copies the files of a database hundreds of times."""


class OnSqlite:
    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        return SqliteDatabase(folder / FILE, in_thread, RESERVE_BYTES)


class TestSqliteDatabase(OnSqlite, DatabaseContract):
    is_embedded = True
    max_examples = examples(20)

    def impossible(self, queue: StoredQueue) -> QueueChanges:
        """Return a put at a position that has an item."""
        return QueueChanges(queue, False, False, [], [StoredItem(1, b"again", 0, 0, 0)], {})

    def fill_database(self, database: IDatabase) -> None:
        """Allow the file no more pages than it has."""
        assert isinstance(database, SqliteDatabase)
        assert database._connection is not None
        database._connection.execute("PRAGMA max_page_count = 1")


class TestSqlite(OnSqlite, OnFaultyDatabase, StorageContract):
    factory = SqliteStorageFactory()
    max_examples = examples(20)

    def taken_bytes(self, subject: StorageUnderTest) -> int:
        """Return the bytes of the pages in use. SQLite keeps free pages for later items."""
        with tempfile.TemporaryDirectory() as name:
            copy = Path(name) / "copy"  # the file itself is locked
            shutil.copytree(subject.folder, copy)
            connection = sqlite3.connect(copy / FILE)
            pragmas = ("page_count", "freelist_count", "page_size")
            (pages,), (free,), (size,) = (connection.execute(f"PRAGMA {each}").fetchone() for each in pragmas)
            connection.close()
            return (pages - free) * size


def test_plugin_has_at_most_250_lines() -> None:
    assert len(Path(kestrel_sqlite.__file__).read_text().splitlines()) <= 250
