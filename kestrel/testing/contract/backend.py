"""The base class of a backend's test class, and the started storage that each test uses."""

from __future__ import annotations

import errno
import itertools
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed, StorageError
from kestrel.item import Item
from kestrel.storage.interfaces import InThread, IQueueStorage, IStorage, IStorageFactory
from kestrel.testing.contract.requirements import ADD_MS
from kestrel.testing.databases import FaultyDatabase
from kestrel.testing.faults import KillableDisk
from kestrel.testing.threads import SteppedThreads

MAX_FILLS: Final = 1000
"""The number of fills after which the head must be in memory."""

MAX_JOBS: Final = 10_000
"""The number of jobs or delayed calls after which a test is considered stuck."""

HOUR_S: Final = 3600.0

LONG_S: Final = 60.0
"""Longer than any storage waits before it makes a batch durable."""


def started_storage(folder: str, **options: Any) -> Any:
    """Return a fixture, a method of a `Backend`. It provides a storage that was started over an empty folder.

    The options are settings of all queues.
    """

    @pytest.fixture
    def fixture(self: Backend, tmp_path: Path) -> Iterator[StorageUnderTest]:
        subject = StorageUnderTest(self, tmp_path / folder, **options)
        yield subject
        subject.end()

    return fixture


class Backend(ABC):
    """The base class of a backend's tests: how to make a storage, and hooks that enable more tests."""

    factory: ClassVar[IStorageFactory]
    """The backend's factory. Its capabilities decide which tests run."""

    has_window: ClassVar[bool] = False
    """Hook: items beyond `max_memory_size_bytes` stay out of memory, and `fill` loads them."""

    disk: KillableDisk | None = None
    """Hook, set by `OnFaultyDisk`: the disk that `make` must pass to the next storage."""

    has_faulty_database: ClassVar[bool] = False
    """Hook, set by `OnFaultyDatabase`: `make` stores a `FaultyDatabase` in `database`."""

    database: FaultyDatabase | None = None
    """The database of the last storage, set by `OnFaultyDatabase`."""

    commit_faults: ClassVar[tuple[str, ...]] = ()
    """Hook, set by `OnFaultyDisk` and `OnFaultyDatabase`: the names for `StorageUnderTest.fail_commit`."""

    refuse_puts: ClassVar[Callable[[Any, StorageUnderTest], None] | None] = None
    """Hook: make a storage refuse puts, for example by filling its disk."""

    upkeep_settings: ClassVar[Mapping[str, Any]] = {
        "max_memory_size_bytes": 1000,
        "default_journal_size_bytes": 1000,
        "max_journal_size_bytes": 4000,
        "min_journal_compact_delay_ms": None,
    }
    """Queue settings that make a few kilobytes trigger compaction."""

    max_examples: ClassVar[int] = 60
    """The number of random histories to try."""

    @abstractmethod
    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> IStorage:
        """Return a storage that is not started. It has the queues that a durable storage left in the folder."""

    def after_a_kill(self, subject: StorageUnderTest, folder: Path) -> None:
        """Fill `folder` with the files that a kill would leave now. Default: a copy of the storage's folder."""
        shutil.copytree(subject.folder, folder)

    def after_a_power_failure(self, subject: StorageUnderTest, folder: Path) -> None:
        """Fill `folder` with the files a power failure would leave now. Default: the faulty disk's durable data."""
        subject.faulty_disk.medium.copy(os.fsencode(subject.folder), os.fsencode(folder))

    def compact(self, subject: StorageUnderTest, queue: IQueueStorage) -> None:
        """Make the backend compact a queue without uncommitted changes. Default: advance the clock by an hour."""
        subject.clock.advance(HOUR_S)
        subject.run_threads()

    def taken_bytes(self, subject: StorageUnderTest) -> int:
        """Return the bytes that the storage takes on its medium. Default: the lengths of the files in its folder."""
        return sum(path.stat().st_size for path in subject.folder.rglob("*") if path.is_file())

    @property
    def capabilities(self) -> frozenset[str]:
        return self.factory.capabilities

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test with `commit_fault` for each fault, and one with `event` also after a restart and a kill.

        A test with `is_late` also runs with answers of the database that are held back, if there is a faulty database.
        """
        if "is_late" in metafunc.fixturenames:
            metafunc.parametrize("is_late", [False, True] if self.has_faulty_database else [False])
        if "commit_fault" in metafunc.fixturenames:
            metafunc.parametrize("commit_fault", self.commit_faults)
        if "event" in metafunc.fixturenames:
            metafunc.parametrize(
                "event", ["nothing", "restart", "kill"] if "durable" in self.capabilities else ["nothing"]
            )

    subject = started_storage("queues")


class StorageUnderTest:
    """A started storage with its clock and threads, and shortcuts for tests.

    Thread jobs run when a test asks for it or waits for a result. `take`, `peek` and the methods built on them call
    `fill` while the head is not in memory. They commit if the fill needs it.
    """

    def __init__(self, backend: Backend, folder: Path, **options: Any) -> None:
        """Make and start a storage over that folder. The options are settings of all queues."""
        self.backend = backend
        self.folder = folder
        self.settings = QueueSettings(**options)
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.disk: KillableDisk | None = None
        if backend.disk is not None:
            self.disk = backend.disk = KillableDisk()
        self.storage = backend.make(folder, self.clock, self.threads)
        self.database = backend.database
        self.commit_to_fill: Callable[[IQueueStorage], object] = self.commit
        """Called to commit a queue whose fill does not fire otherwise."""
        self._is_closed = False
        self._successors: list[StorageUnderTest] = [self]
        self.loaded: dict[bytes, IQueueStorage | Failure] = self.wait(self.storage.start(lambda name: self.settings))

    @property
    def faulty_disk(self) -> KillableDisk:
        """The storage's disk, for tests that require the hook `disk`."""
        assert self.disk is not None, "this backend's test class has no faulty disk"
        return self.disk

    @property
    def faulty_database(self) -> FaultyDatabase:
        """The storage's database, for tests that require the hook `has_faulty_database`."""
        assert self.database is not None, "this backend's test class has no faulty database"
        return self.database

    def fail_commit(self, fault: str) -> None:
        """Make the next commit of the queue b"work" fail: "write" and "sync" on the disk, "apply" in the database.

        Call `mend` afterwards.
        """
        if fault == "apply":
            self.faulty_database.fail_changes_of(b"work")
        else:
            self.faulty_disk.fail(fault, errno.EIO, times=1)

    def fail_reads(self) -> None:
        """Make reads of items fail until `mend`."""
        if self.database is not None:
            self.database.fail("read_after", StorageError("it cannot be read"))
        else:
            for operation in ("read", "open_read"):
                self.faulty_disk.fail(operation, errno.EIO)

    def mend(self) -> None:
        """Remove all faults of the disk and the database."""
        for medium in (self.disk, self.database):
            if medium is not None:
                medium.mend()

    def check_that_its_disk_is_used(self) -> None:
        """Fail if the storage, which has written something, made no call on the faulty disk."""
        assert self.faulty_disk.calls, "the storage did not use self.disk: make() must pass it to the storage"

    # Waiting.

    def run_threads(self) -> None:
        """Run all jobs, including those they add. A tick of the reactor ends after each job."""
        for _ in range(MAX_JOBS):
            self.end_turn()
            if not self.threads:
                return
            self.threads.run_one()
        raise AssertionError("jobs add more jobs without end")

    def end_turn(self) -> None:
        """Run the calls scheduled for the next tick, and the calls that these schedule, until none is due."""
        for _ in range(MAX_JOBS):
            if self._next_call_s() > self.clock.seconds():
                return
            self.clock.advance(0)
        raise AssertionError("calls schedule more calls without end")

    def wait(self, deferred: Deferred[Any]) -> Any:
        """Run jobs until the Deferred fires. Return its result, or raise its failure."""
        return self.until(DeferredOutcome(deferred))

    def until(self, outcome: DeferredOutcome) -> Any:
        """Run jobs until the Deferred fires. Return its result, or raise its failure."""
        self.until_fired(outcome)
        return outcome.result()

    def until_fired(self, outcome: DeferredOutcome) -> None:
        """Run jobs until the Deferred fires, and move the clock forward while no job waits."""
        until_s = self.clock.seconds() + LONG_S
        while not outcome.is_there and (self.threads or self._next_call_s() <= until_s):
            if self.threads:
                self.threads.run_one()
                self.end_turn()
            else:
                self.clock.advance(max(0.0, self._next_call_s() - self.clock.seconds()))
        assert outcome.is_there, "all jobs have run, but the Deferred has not fired"

    def _next_call_s(self) -> float:
        return min((call.getTime() for call in self.clock.getDelayedCalls()), default=math.inf)

    def wait_for_fill(self, queue: IQueueStorage, filling: DeferredOutcome) -> None:
        """Wait until a fill fires, and commit if it does not fire otherwise. Raise its failure."""
        self.run_threads()
        if not filling.is_there:
            self.commit_to_fill(queue)
            self.run_threads()
        assert filling.is_there, "all jobs have run and all changes are committed, but fill has not fired"
        filling.result()

    # Operations.

    def queue(self, name: bytes = b"work", **options: Any) -> IQueueStorage:
        """Return the queue of that name, with the storage's settings except for these options."""
        return self.storage.queue(name, attrs.evolve(self.settings, **options))

    def queue_with(self, *items: bytes, name: bytes = b"work", **options: Any) -> IQueueStorage:
        """Return the queue of that name after these items were put to it."""
        queue = self.queue(name, **options)
        self.put(queue, *items)
        return queue

    def reopened(self, name: bytes = b"work") -> IQueueStorage:
        """Return the queue of that name. A failed queue may need some jobs to run before it can be opened."""
        for _ in range(10):
            with suppress(QueueFailed):
                return self.queue(name)
            self.run_threads()
        return self.queue(name)

    def put(self, queue: IQueueStorage, *items: bytes) -> None:
        """Put items that never expire, one after the other."""
        for data in items:
            self.storage.put((queue,), data, ADD_MS, 0)

    def store(self, queue: IQueueStorage, *items: bytes) -> None:
        """Put items that never expire, and commit the queue."""
        self.put(queue, *items)
        self.commit(queue)

    def stored_queue(self, *items: bytes, name: bytes = b"work", **options: Any) -> IQueueStorage:
        """Return the queue of that name after these items were put to it and committed."""
        queue = self.queue(name, **options)
        self.store(queue, *items)
        return queue

    def store_in_all(self, queues: Sequence[IQueueStorage], data: bytes) -> None:
        """Put an item that never expires to each of these queues, and commit them."""
        self.storage.put(queues, data, ADD_MS, 0)
        self.commit(*queues)

    def commit(self, *queues: IQueueStorage) -> None:
        """Commit these queues and wait. Raise a failure."""
        self.finish(self.begin_commit(*queues))

    def begin_commit(self, *queues: IQueueStorage) -> list[DeferredOutcome]:
        """Commit these queues, and return the pending outcomes without waiting."""
        return [DeferredOutcome(deferred) for _, deferred in self.storage.commit(queues)]

    def failed_queues(self, queues: Sequence[IQueueStorage]) -> list[IQueueStorage]:
        """Commit these queues, run the threads, check that no commit is pending, and return the queues that failed."""
        outcomes = [(group, DeferredOutcome(deferred)) for group, deferred in self.storage.commit(queues)]
        self.run_threads()
        assert all(outcome.is_there for _, outcome in outcomes)
        return [queue for group, outcome in outcomes if outcome.has_failed for queue in group]

    def finish(self, outcomes: Iterable[DeferredOutcome]) -> None:
        """Wait for these outcomes. Raise a failure."""
        for outcome in outcomes:
            self.until(outcome)

    def peek(self, queue: IQueueStorage) -> Item | None:
        """Return the head; None if the queue is empty."""
        return self._head(queue, queue.peek)

    def take(self, queue: IQueueStorage, opened: bool = False) -> Item | None:
        """Remove and return the head; None if the queue is empty. With `opened` it becomes an open read."""
        return self._head(queue, lambda: queue.take(opened))

    def get(self, queue: IQueueStorage) -> Item:
        """Remove and return the head of a queue that is not empty."""
        item = self.take(queue)
        assert item is not None, "the queue is empty, but should have an item"
        return item

    def open(self, queue: IQueueStorage) -> Item:
        """Open the head of a queue that is not empty, and return it."""
        item = self.take(queue, True)
        assert item is not None, "the queue is empty, but should have an item"
        return item

    def _head(self, queue: IQueueStorage, look: Callable[[], Item | None]) -> Item | None:
        for _ in range(MAX_FILLS):
            item = look()
            if item is not None:
                return item
            filling = queue.fill()
            if filling is None:
                return look()
            self.wait_for_fill(queue, DeferredOutcome(filling))
        raise AssertionError(f"the head is not in memory after {MAX_FILLS} fills")

    def take_all(self, queue: IQueueStorage) -> list[Item]:
        return list(iter(lambda: self.take(queue), None))

    def take_all_data(self, queue: IQueueStorage | None = None) -> list[bytes]:
        """Remove all items, and return their data. The default is the queue b"work"."""
        return [item.data for item in self.take_all(self.queue() if queue is None else queue)]

    def look_through(self, queue: IQueueStorage) -> list[Item]:
        """Return all items of a queue, and put them back."""
        items = list(iter(lambda: self.take(queue, True), None))
        xids = [item.xid for item in items]
        queue.put_back(xids, False)
        return items

    def data_in(self, queue: IQueueStorage | None = None) -> list[bytes]:
        """Return the data of all items of a queue, and put them back. The default is the queue b"work"."""
        return [item.data for item in self.look_through(self.queue() if queue is None else queue)]

    # Restarts and crashes.

    def restarted(self) -> StorageUnderTest:
        """Close the storage, and start another one over the same folder."""
        self.close()
        return self._succeeded(self.folder)

    def killed(self) -> StorageUnderTest:
        """Start another storage over the files that remain if the process is killed now."""
        folder = new_folder(self.folder)
        self.backend.after_a_kill(self, folder)
        return self._succeeded(folder)

    def without_power(self) -> StorageUnderTest:
        """Start another storage over the files that remain if the machine loses power now."""
        folder = new_folder(self.folder)
        self.backend.after_a_power_failure(self, folder)
        return self._succeeded(folder)

    def after(self, event: str) -> StorageUnderTest:
        """Return the storage after a "restart", a "kill", or "nothing"."""
        if event == "nothing":
            return self
        return self.restarted() if event == "restart" else self.killed()

    def _succeeded(self, folder: Path) -> StorageUnderTest:
        successor = StorageUnderTest(self.backend, folder, **attrs.asdict(self.settings, recurse=False))
        successor._successors = self._successors
        self._successors.append(successor)
        return successor

    def close(self) -> None:
        if not self._is_closed:
            self.until(self.begin_close())

    def begin_close(self) -> DeferredOutcome:
        self._is_closed = True
        return DeferredOutcome(self.storage.close())

    def bury(self) -> None:
        """Close the open files in the storage's folder, as the system does when a process ends. This releases locks."""
        self._is_closed = True
        # Without /proc the files stay open until the tests end.
        with suppress(OSError):
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    if Path(os.readlink(f"/proc/self/fd/{name}")).is_relative_to(self.folder.resolve()):
                        os.close(int(name))

    def end(self) -> None:
        """Close this storage and all that derive from it. Fail if one of them broke the rules of `IDatabase`."""
        for subject in self._successors:
            subject.mend()
            if subject.disk is not None:
                subject.disk.room = subject.disk.inodes = None
            subject.close()
        for subject in self._successors:
            if subject.database is not None:
                assert subject.database.complaints == [], "the storage broke rules of IDatabase"


_numbers = itertools.count(1)


def new_folder(folder: Path) -> Path:
    """Return the path of a folder beside that one which no test has used."""
    return folder.with_name(f"{folder.name.partition('~')[0]}~{next(_numbers)}")


class DeferredOutcome:
    """The result of a Deferred, once it has fired."""

    def __init__(self, deferred: Deferred[Any]) -> None:
        self.is_there = False
        self._result: object = None
        deferred.addBoth(self._fired)

    def _fired(self, result: object) -> None:
        self.is_there = True
        self._result = result

    @property
    def has_failed(self) -> bool:
        """True if the Deferred has fired with a failure."""
        return isinstance(self._result, Failure)

    def result(self) -> Any:
        if isinstance(self._result, Failure):
            self._result.raiseException()
        return self._result
