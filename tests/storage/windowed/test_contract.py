"""The storage contract over a database in memory, and the contract of that database."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.errors import BadStorageArgument
from kestrel.storage.database import IDatabase, QueueChanges, StoredQueue
from kestrel.storage.interfaces import InThread, IStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed import CAPABILITIES, WindowedStorage
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.database_backend import OwnedDatabase
from kestrel.testing.contract.suite import DatabaseContract, OnFaultyDatabase, StorageContract
from kestrel.testing.databases import MemoryDatabase, MemoryTables
from tests.sample import examples

OVERHEAD_BYTES = 40
"""The most that a database needs for an item or a queue in addition to its bytes."""


@implementer(IStorageFactory)
class TablesStorageFactory:
    """The storage ``tables:``. Each has its own database in memory."""

    name = "tables"
    help = "tables:  keeps queues in a database in memory"
    capabilities = CAPABILITIES

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> WindowedStorage:
        if options:
            raise BadStorageArgument("tables: takes no options")
        return WindowedStorage(MemoryDatabase(MemoryTables(), in_thread), clock, memory)


class OverTables:
    """Databases in memory. Those of one folder share their tables."""

    tables_class: type[MemoryTables] = MemoryTables

    @cached_property
    def all_tables(self) -> dict[Path, MemoryTables]:
        """The tables by folder. A folder is only a name here."""
        return {}

    def make_database(self, folder: Path, in_thread: InThread) -> MemoryDatabase:
        return MemoryDatabase(self.all_tables.setdefault(folder, self.tables_class()), in_thread)

    def after_a_kill(self, subject: StorageUnderTest | OwnedDatabase, folder: Path) -> None:
        self.all_tables[folder] = self.all_tables[subject.folder].copy()


class TestMemoryDatabase(OverTables, DatabaseContract):
    max_examples = examples(60)

    def lose_hold(self, database: IDatabase) -> None:
        assert isinstance(database, MemoryDatabase)
        database.tables.owner = None

    def fill_database(self, database: IDatabase) -> None:
        assert isinstance(database, MemoryDatabase)
        database.tables.room = 0

    def impossible(self, queue: StoredQueue) -> QueueChanges:
        return QueueChanges(queue, False, False, (), (), {5: 1})


class TestWindowed(OverTables, OnFaultyDatabase, StorageContract):
    factory = TablesStorageFactory()
    max_examples = examples(60)

    def taken_bytes(self, subject: StorageUnderTest) -> int:
        tables = self.all_tables[subject.folder]
        sizes = [len(each.data) for items in tables.items.values() for each in items]
        return sum(sizes) + OVERHEAD_BYTES * (len(sizes) + len(tables.queues))
