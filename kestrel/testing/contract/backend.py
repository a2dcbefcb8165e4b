"""What an author tells of a backend, and a storage of it that runs: all that the tests of the suite are given."""

from __future__ import annotations

import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.storage.interfaces import InThread, IQueueStorage, IStorage, IStorageFactory
from kestrel.testing.contract.samples import ADD_MS
from kestrel.testing.databases import FaultyDatabase
from kestrel.testing.faults import KillableDisk
from kestrel.testing.threads import SteppedThreads

MAX_FILLS: Final = 1000
"""So often may the head be asked for before it must be there."""

MAX_JOBS: Final = 10_000
"""Whoever waits for more jobs than that waits for ever."""

HOUR_S: Final = 3600.0

LONG_S: Final = 60.0
"""Longer than any storage waits before it makes something safe."""


class Backend(ABC):
    """How the suite makes a storage, and the hooks by which an author opens further tests."""

    factory: ClassVar[IStorageFactory]
    """The backend's factory: its capabilities say which tests it has to pass."""

    has_window: ClassVar[bool] = False
    """Hook: items beyond `max_memory_size_bytes` stay out of memory, and `fill` brings them."""

    disk: KillableDisk | None = None
    """Hook, given by `OnFaultyDisk`: the disk that the next storage is to be made with."""

    has_faulty_database: ClassVar[bool] = False
    """Hook, set by `OnFaultyDatabase`: `make` leaves a `database` that can fail."""

    database: FaultyDatabase | None = None
    """What the last storage was made with, given by `OnFaultyDatabase`."""

    refuse_puts: ClassVar[Callable[[Any, StorageUnderTest], None] | None] = None
    """Hook: bring a storage to where it takes no put (a full disk), by whatever means."""

    upkeep_settings: ClassVar[Mapping[str, Any]] = {
        "max_memory_size_bytes": 1000,
        "default_journal_size_bytes": 1000,
        "max_journal_size_bytes": 4000,
        "min_journal_compact_delay_ms": None,
    }
    """Settings of a queue with which a few kilobytes bring the backend to keep its medium small."""

    max_examples: ClassVar[int] = 60
    """How many random histories are tried."""

    @abstractmethod
    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> IStorage:
        """A storage that is not started yet; a durable one that is made of the same folder again has the same
        queues."""

    def after_a_kill(self, subject: StorageUnderTest, folder: Path) -> None:
        """Let `folder` be what is left if the process of that storage dies now. Here: a copy of its folder."""
        shutil.copytree(subject.folder, folder)

    def after_a_power_failure(self, subject: StorageUnderTest, folder: Path) -> None:
        """The same if the whole machine does. Here: what the medium of its faulty disk holds."""
        subject.faulty_disk.medium.copy(os.fsencode(subject.folder), os.fsencode(folder))

    def compact(self, subject: StorageUnderTest, queue: IQueueStorage) -> None:
        """Have the backend do its upkeep of that queue, all of which is committed. Here: an hour goes by."""
        subject.clock.advance(HOUR_S)
        subject.run_threads()

    def taken_bytes(self, subject: StorageUnderTest) -> int:
        """What the whole storage takes on its medium. Here: the lengths of the files in its folder."""
        return sum(path.stat().st_size for path in subject.folder.rglob("*") if path.is_file())

    @property
    def capabilities(self) -> frozenset[str]:
        """What the factory says."""
        return self.factory.capabilities

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[StorageUnderTest]:
        """A storage that was started over nothing."""
        subject = StorageUnderTest(self, tmp_path / "queues")
        yield subject
        subject.end()


class StorageUnderTest:
    """A started storage with its clock and threads, and short words for what tests do with it.

    Threads run when told, or when something is waited for. `take`, `peek` and what is made of them fill the
    window where the head is not in memory, and commit before if nothing else brings it.
    """

    def __init__(self, backend: Backend, folder: Path, **options: Any) -> None:
        """Make one over that folder and start it; the options are settings of all queues."""
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
        """Makes safe what was recorded on a queue whose head does not come otherwise."""
        self._is_closed = False
        self._successors: list[StorageUnderTest] = [self]
        self.loaded: dict[bytes, IQueueStorage | Failure] = self.wait(
            self.storage.start(lambda name: self.settings)
        )

    @property
    def faulty_disk(self) -> KillableDisk:
        """Its disk, for tests that need that hook."""
        assert self.disk is not None, "this backend's test class has no faulty disk"
        return self.disk

    @property
    def faulty_database(self) -> FaultyDatabase:
        """Its database, for tests that need that hook."""
        assert self.database is not None, "this backend's test class has no faulty database"
        return self.database

    def check_that_its_disk_is_used(self) -> None:
        """Say so when a storage that has written something did not do it on the faulty disk."""
        assert self.faulty_disk.calls, "the storage did nothing on self.disk: make has to hand it over"

    # Waiting.

    def run_threads(self) -> None:
        """Do all jobs, and what they lead to; the reactor's turn ends after each."""
        for _ in range(MAX_JOBS):
            self.end_turn()
            if not self.threads:
                return
            self.threads.run_one()
        raise AssertionError("the jobs do not come to an end")

    def end_turn(self) -> None:
        """Do what was put off to the next turn of the reactor, and what that puts off to the one after."""
        for _ in range(MAX_JOBS):
            if self._next_call_s() > self.clock.seconds():
                return
            self.clock.advance(0)
        raise AssertionError("the turns do not come to an end")

    def wait(self, deferred: Deferred[Any]) -> Any:
        """What it fires with, when the threads have run; raises its failure."""
        return self.until(DeferredOutcome(deferred))

    def until(self, outcome: DeferredOutcome) -> Any:
        """What it fires with, when the threads have run; raises its failure."""
        self.until_fired(outcome)
        return outcome.result()

    def until_fired(self, outcome: DeferredOutcome) -> None:
        """Let threads run, and time go by where nothing else is to be done, until it has fired."""
        until_s = self.clock.seconds() + LONG_S
        while not outcome.is_there and (self.threads or self._next_call_s() <= until_s):
            if self.threads:
                self.threads.run_one()
                self.end_turn()
            else:
                self.clock.advance(max(0.0, self._next_call_s() - self.clock.seconds()))
        assert outcome.is_there, "all threads have run, and the Deferred has not fired"

    def _next_call_s(self) -> float:
        return min((call.getTime() for call in self.clock.getDelayedCalls()), default=math.inf)

    def wait_for_fill(self, queue: IQueueStorage, filling: Deferred[None]) -> None:
        """Until that fires, with a commit if it takes one; raises its failure."""
        outcome = DeferredOutcome(filling)
        self.run_threads()
        if not outcome.is_there:
            self.commit_to_fill(queue)
            self.run_threads()
        assert outcome.is_there, "all threads have run, all is committed, and fill has not fired"
        outcome.result()

    # What tests do.

    def queue(self, name: bytes = b"work", **options: Any) -> IQueueStorage:
        """The queue of that name, with the settings of this storage but for these."""
        return self.storage.queue(name, attrs.evolve(self.settings, **options))

    def reopened(self, name: bytes = b"work") -> IQueueStorage:
        """The same; a queue that failed may take its time to be opened."""
        for _ in range(10):
            with suppress(QueueFailed):
                return self.queue(name)
            self.run_threads()
        return self.queue(name)

    def put(self, queue: IQueueStorage, *items: bytes) -> None:
        """One item after the other, which never expire."""
        for data in items:
            self.storage.put((queue,), data, ADD_MS, 0)

    def commit(self, *queues: IQueueStorage) -> None:
        """Commit and wait for it; raises the failure."""
        for outcome in [DeferredOutcome(each) for _, each in self.storage.commit(queues)]:
            self.until(outcome)

    def peek(self, queue: IQueueStorage) -> Item | None:
        """The head."""
        return self._head(queue, queue.peek)

    def take(self, queue: IQueueStorage, opened: bool = False) -> Item | None:
        """The head, removed."""
        return self._head(queue, lambda: queue.take(opened))

    def get(self, queue: IQueueStorage) -> Item:
        """The head, removed, of a queue that has one."""
        item = self.take(queue)
        assert item is not None, "the queue says that it is empty"
        return item

    def open(self, queue: IQueueStorage) -> Item:
        """The head, as an open read, of a queue that has one."""
        item = self.take(queue, True)
        assert item is not None, "the queue says that it is empty"
        return item

    def _head(self, queue: IQueueStorage, look: Callable[[], Item | None]) -> Item | None:
        for _ in range(MAX_FILLS):
            item = look()
            if item is not None:
                return item
            filling = queue.fill()
            if filling is None:
                return look()
            self.wait_for_fill(queue, filling)
        raise AssertionError(f"after {MAX_FILLS} fills the head is not in memory")

    def take_all(self, queue: IQueueStorage) -> list[Item]:
        """Every item, taken for good."""
        return list(iter(lambda: self.take(queue), None))

    def take_all_data(self, queue: IQueueStorage) -> list[bytes]:
        """The data of every item, taken for good."""
        return [item.data for item in self.take_all(queue)]

    def look_through(self, queue: IQueueStorage) -> list[Item]:
        """Every item of a queue, which is as it was afterwards."""
        items = list(iter(lambda: self.take(queue, True), None))
        xids = [item.xid for item in items]
        queue.put_back(xids, False)
        return items

    def data_in(self, queue: IQueueStorage) -> list[bytes]:
        """The data of every item of a queue, which is as it was afterwards."""
        return [item.data for item in self.look_through(queue)]

    # Ends and new beginnings.

    def restarted(self) -> StorageUnderTest:
        """Closed, and another storage over the same folder."""
        self.close()
        return self._succeeded(self.folder)

    def killed(self) -> StorageUnderTest:
        """Another storage over what is left when the process dies now."""
        folder = self.new_folder()
        self.backend.after_a_kill(self, folder)
        return self._succeeded(folder)

    def without_power(self) -> StorageUnderTest:
        """Another storage over what is left when the machine dies now."""
        folder = self.new_folder()
        self.backend.after_a_power_failure(self, folder)
        return self._succeeded(folder)

    def new_folder(self) -> Path:
        """The path of one that is not there yet, and that none of these storages was made of."""
        taken = {subject.folder for subject in self._successors}
        base = self.folder.name.partition("~")[0]
        numbered = (self.folder.with_name(f"{base}~{number}") for number in range(1, 1 << 30))
        return next(path for path in numbered if path not in taken and not path.exists())

    def _succeeded(self, folder: Path) -> StorageUnderTest:
        successor = StorageUnderTest(self.backend, folder, **attrs.asdict(self.settings, recurse=False))
        successor._successors = self._successors
        self._successors.append(successor)
        return successor

    def close(self) -> None:
        """Stop in order, once."""
        if not self._is_closed:
            self.until(self.begin_close())

    def begin_close(self) -> DeferredOutcome:
        """Begin to stop in order."""
        self._is_closed = True
        return DeferredOutcome(self.storage.close())

    def bury(self) -> None:
        """Close what the system closes when a process ends: the files of its folder, a lock among them."""
        self._is_closed = True
        with suppress(OSError):  # where the system does not tell, they stay open until the tests end
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    if Path(os.readlink(f"/proc/self/fd/{name}")).is_relative_to(self.folder.resolve()):
                        os.close(int(name))

    def end(self) -> None:
        """Close this, and all that came after it."""
        for subject in self._successors:
            if subject.disk is not None:
                subject.disk.mend()
                subject.disk.room = subject.disk.inodes = None
            if subject.database is not None:
                subject.database.mend()
            subject.close()
        for subject in self._successors:
            if subject.database is not None:
                assert subject.database.complaints == [], "the database was called otherwise than IDatabase says"


class DeferredOutcome:
    """Whether a Deferred has fired, and with what."""

    def __init__(self, deferred: Deferred[Any]) -> None:
        self.is_there = False
        self._result: object = None
        deferred.addBoth(self._fired)

    def _fired(self, result: object) -> None:
        self.is_there = True
        self._result = result

    @property
    def has_failed(self) -> bool:
        """Whether it has fired, with a failure."""
        return isinstance(self._result, Failure)

    def result(self) -> Any:
        """What it fired with; raises its failure."""
        if isinstance(self._result, Failure):
            self._result.raiseException()
        return self._result
