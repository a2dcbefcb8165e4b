"""`StorageContract` and `DatabaseContract`, which test classes inherit; what lets a disk or a database fail in them."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from twisted.internet.task import Clock

from kestrel.errors import QueueFailed
from kestrel.storage.capabilities import CAPABILITIES
from kestrel.storage.database import IDatabase
from kestrel.storage.interfaces import InThread
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed import WindowedStorage
from kestrel.testing.contract.backend import Backend, StorageUnderTest
from kestrel.testing.contract.commits import CommitTests
from kestrel.testing.contract.database_batches import BatchTests
from kestrel.testing.contract.database_calls import CallOrderTests
from kestrel.testing.contract.database_contents import DatabaseContentsTests
from kestrel.testing.contract.database_crashes import CrashTests, DiskErrorTests
from kestrel.testing.contract.database_faults import DatabaseCommitFailureTests, DatabaseFaultTests
from kestrel.testing.contract.database_full import FullDatabaseTests
from kestrel.testing.contract.database_history import DatabaseHistoryTests
from kestrel.testing.contract.database_outages import DatabaseOutageTests
from kestrel.testing.contract.database_owners import OwnerTests
from kestrel.testing.contract.database_reads import DatabaseReadTests
from kestrel.testing.contract.disk_faults import CommitFailureTests, DiskFaultTests
from kestrel.testing.contract.fanout import SharedFanoutTests
from kestrel.testing.contract.history import HistoryTests
from kestrel.testing.contract.queue_operations import QueueOperationTests
from kestrel.testing.contract.ranges import RangeTests
from kestrel.testing.contract.reads import ReadTests
from kestrel.testing.contract.requirements import overrides_hook, skip_unsupported
from kestrel.testing.contract.restarts import RestartTests
from kestrel.testing.contract.upkeep import UpkeepTests
from kestrel.testing.contract.window import WindowFaultTests, WindowTests
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
    """Inherit this, name the factory, and say how to make a storage: the tests are all that it has to pass.

    Those that its capabilities and hooks do not call for are skipped by name. A class that has only one of `factory`
    and `make` raises TypeError when it is made: pytest would leave it out without a word.
    """

    left_out: ClassVar[dict[str, str]] = {}
    """The tests that this backend need not pass, and why."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.left_out = {}
        is_made = overrides_hook(cls, "make") and overrides_hook(cls, "make_database")
        if is_made != hasattr(cls, "factory"):
            missing = "factory, the backend's IStorageFactory" if is_made else cls._how_it_is_made()
            raise TypeError(f"{cls.__name__} has no {missing}: no test of the contract could run")
        for base in {OnFaultyDisk, OnFaultyDatabase}.intersection(cls.__mro__):
            if cls.__mro__.index(base) > cls.__mro__.index(StorageContract):
                raise TypeError(f"{cls.__name__} names {base.__name__} behind StorageContract: name it before that")
        if is_made:
            cls.left_out = skip_unsupported(cls, StorageContract, cls._has)

    @classmethod
    def _how_it_is_made(cls) -> str:
        return (
            "make_database, which gives an IDatabase" if overrides_hook(cls, "make") else "make, which gives a storage"
        )

    @classmethod
    def _has(cls, needed: str) -> bool:
        return needed in cls.factory.capabilities if needed in CAPABILITIES else bool(getattr(cls, needed))


class OnFaultyDisk(Backend):
    """Mix this in before `StorageContract` when `make` hands `self.disk` to the storage: it will fail and die there.

    Each storage has a disk of its own, on which syncs are remembered and not made.
    """

    disk = KillableDisk()

    def refuse_puts(self, subject: StorageUnderTest) -> None:
        """The disk is full: found by a commit, which may fail."""
        queue = subject.queue(b"finds-the-disk-full")
        subject.faulty_disk.room = 0
        subject.put(queue, b"x")
        with suppress(QueueFailed):
            subject.commit(queue)
        subject.check_that_its_disk_is_used()


class OnFaultyDatabase(Backend):
    """Mix this in before `StorageContract` for a `WindowedStorage`: its database will fail, be away and be slow.

    In place of `make` the test class has `make_database`.
    """

    has_window = True
    has_faulty_database = True

    @abstractmethod
    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        """A database that nobody has called yet; made of the same folder again, it has the same queues."""

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> WindowedStorage:
        """A storage over that database."""
        self.database = FaultyDatabase(self.make_database(folder, in_thread), in_thread)
        return WindowedStorage(self.database, clock, MemoryLimit())

    def refuse_puts(self, subject: StorageUnderTest) -> None:
        """The database has no room: found by a commit, which fails."""
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
    """All tests of an `IDatabase` by itself.

    Inherit this class and define `make_database`. Tests whose hook is not given are skipped by name.
    """

    left_out: ClassVar[dict[str, str]] = {}
    """The tests that are not run here, each with the reason."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.left_out = {}
        if overrides_hook(cls, "make_database"):
            cls.left_out = skip_unsupported(cls, DatabaseContract, lambda needed: bool(getattr(cls, needed)))
