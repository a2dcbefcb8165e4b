"""The contract suites `StorageContract` and `DatabaseContract`, and base classes that inject faults into them."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from twisted.internet.task import Clock

from kestrel.errors import QueueFailed
from kestrel.storage.database import IDatabase
from kestrel.storage.interfaces import CAPABILITIES, InThread
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed import WindowedStorage
from kestrel.testing.contract.backend import Backend, StorageUnderTest
from kestrel.testing.contract.database_batches import BatchTests, DatabaseHistoryTests, FullDatabaseTests
from kestrel.testing.contract.database_contents import DatabaseContentsTests
from kestrel.testing.contract.database_crashes import CrashTests, DiskErrorTests
from kestrel.testing.contract.database_faults import DatabaseCommitFailureTests, DatabaseFaultTests
from kestrel.testing.contract.database_outages import DatabaseOutageTests
from kestrel.testing.contract.database_owners import CallOrderTests, OwnerTests
from kestrel.testing.contract.disk_faults import CommitFailureTests, DiskCommitFailureTests, DiskFaultTests
from kestrel.testing.contract.durability import CommitTests, RestartTests, UpkeepTests
from kestrel.testing.contract.fanout import SharedFanoutTests
from kestrel.testing.contract.history import HistoryTests
from kestrel.testing.contract.queue_operations import QueueOperationTests, ReadTests
from kestrel.testing.contract.ranges import RangeTests
from kestrel.testing.contract.requirements import overrides_hook, skip_unsupported
from kestrel.testing.contract.window import DatabaseReadTests, WindowFaultTests, WindowTests
from kestrel.testing.databases import FaultyDatabase
from kestrel.testing.faults import KillableDisk


class StorageContract(
    QueueOperationTests,
    ReadTests,
    WindowTests,
    CommitTests,
    RestartTests,
    UpkeepTests,
    CommitFailureTests,
    DiskCommitFailureTests,
    WindowFaultTests,
    DiskFaultTests,
    DatabaseCommitFailureTests,
    DatabaseFaultTests,
    DatabaseOutageTests,
    DatabaseReadTests,
    RangeTests,
    SharedFanoutTests,
    HistoryTests,
):
    """All tests of a storage backend. Inherit this class, set `factory` and define `make`.

    Tests are skipped by name if the backend lacks their capabilities or hooks. A class with only one of `factory` and
    `make` raises TypeError when it is defined: pytest would not collect it.
    """

    left_out: ClassVar[dict[str, str]] = {}
    """The skipped tests, each with the reason."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.left_out = {}
        is_made = overrides_hook(cls, "make") and overrides_hook(cls, "make_database")
        if is_made != hasattr(cls, "factory"):
            missing = "factory, the backend's IStorageFactory" if is_made else cls._how_it_is_made()
            raise TypeError(f"{cls.__name__} does not define {missing}: no test of the contract would run")
        for base in {OnFaultyDisk, OnFaultyDatabase}.intersection(cls.__mro__):
            if cls.__mro__.index(base) > cls.__mro__.index(StorageContract):
                raise TypeError(f"{cls.__name__} names {base.__name__} after StorageContract: name it before")
        if is_made:
            cls.left_out = skip_unsupported(cls, StorageContract, cls._has)

    @classmethod
    def _how_it_is_made(cls) -> str:
        return (
            "make_database, which returns an IDatabase"
            if overrides_hook(cls, "make")
            else "make, which returns a storage"
        )

    @classmethod
    def _has(cls, needed: str) -> bool:
        return needed in cls.factory.capabilities if needed in CAPABILITIES else bool(getattr(cls, needed))


class OnFaultyDisk(Backend):
    """A base class for storages whose `make` uses `self.disk`: enables tests of disk faults and crashes.

    Name it before `StorageContract`. Each storage gets its own disk, which records syncs without doing them.
    """

    disk = KillableDisk()
    commit_faults = ("sync", "write")

    def refuse_puts(self, subject: StorageUnderTest) -> None:
        """Make the disk full. A commit, which may fail, lets the storage find out."""
        queue = subject.queue(b"finds-the-disk-full")
        subject.faulty_disk.room = 0
        subject.put(queue, b"x")
        with suppress(QueueFailed):
            subject.commit(queue)
        subject.check_that_its_disk_is_used()


class OnFaultyDatabase(Backend):
    """A base class for a `WindowedStorage`: enables tests of failing, unreachable and slow databases.

    Name it before `StorageContract`, and define `make_database` in place of `make`.
    """

    has_window = True
    has_faulty_database = True
    commit_faults = ("apply",)

    @abstractmethod
    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        """Return a new database, not called yet. It has the queues that an earlier one left in the folder."""

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> WindowedStorage:
        self.database = FaultyDatabase(self.make_database(folder, in_thread), in_thread)
        return WindowedStorage(self.database, clock, MemoryLimit())

    def refuse_puts(self, subject: StorageUnderTest) -> None:
        """Make the database full. A commit, which fails, lets the storage find out."""
        queue = subject.queue(b"finds-no-room")
        subject.commit(queue)
        subject.faulty_database.refuse_puts()
        subject.put(queue, b"x")
        with suppress(QueueFailed):
            subject.commit(queue)


class DatabaseContract(
    DatabaseContentsTests,
    BatchTests,
    FullDatabaseTests,
    OwnerTests,
    CallOrderTests,
    CrashTests,
    DiskErrorTests,
    DatabaseHistoryTests,
):
    """All tests of an `IDatabase`. Inherit this class and define `make_database`.

    Tests are skipped by name if their hooks are not set.
    """

    left_out: ClassVar[dict[str, str]] = {}
    """The skipped tests, each with the reason."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.left_out = {}
        if overrides_hook(cls, "make_database"):
            cls.left_out = skip_unsupported(cls, DatabaseContract, lambda needed: bool(getattr(cls, needed)))
