"""Runs of a storage that crash at a chosen disk operation, and restarts over the files that each crash leaves.

A `StorageRun` is one run of a storage over a folder. A `TrackedQueue` is one of its queues with the history of its
operations. A scenario is a generator of steps, and each step ends with a commit. A `CrashTrial` runs a scenario and
crashes before each disk operation in turn. It can also run a scenario once, and check at each operation the files that
a crash would leave.

The limits are so small that a few items are several times more than memory and files may hold.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import pytest
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.faults import KillableDisk, ProcessDied
from kestrel.testing.threads import SteppedThreads
from tests.sample import beside_changes, is_tried
from tests.storage.backends import Backend
from tests.storage.histories import ADD_MS, History, OneFile, State, TwoFiles, is_put_off, is_short, item_of, number_of

NAME: Final = b"work"
NOW_MS: Final = ADD_MS + 3_600_000
PERIOD_S: Final = 0.5
STEP_S: Final = 0.25
"""The time from one step to the next. Sums of it are not rounded."""

SYNCS: Final = {"synced": 0, "never synced": None, "synced once a period": int(PERIOD_S * 1000)}
"""Values of syncJournal, in milliseconds."""

WITHOUT_ITEMS: Final = ("/.kestrel/lock", "/.kestrel/reserve")
"""Ends of the paths of files that hold no items."""

CUT_STEP: Final = 7
"""Distance in bytes of the places where a write is cut short. In successive records it meets different fields."""

MAX_FILLS: Final = 100
"""The number of fills after which the head must be in memory."""

PROBE_ITEM: Final = 5000
"""The number of the item that a test puts after a restart. It is greater than all other numbers."""


def small_limits(sync_journal_ms: int | None) -> QueueSettings:
    """Return settings with limits that a few items exceed."""
    return QueueSettings(
        max_memory_size_bytes=200,
        max_journal_size_bytes=1000,
        default_journal_size_bytes=300,
        min_journal_compact_delay_ms=None,
        sync_journal_ms=sync_journal_ms,
    )


Found: TypeAlias = Mapping[bytes, State]
"""The items that a start finds, by queue."""

NOTHING: Final[Found] = {}


class CrashDisk(KillableDisk):
    """A disk that knows which erased files of a folder a power failure could bring back."""

    def __init__(self, folder: Path) -> None:
        """Treat the present files of the folder as durable."""
        super().__init__()
        self.erased: set[str] = set()
        """The names of files that were erased since the last sync of the folder."""
        self.before_each: Callable[[], None] | None = None
        """Called before each operation."""
        self.half_written: tuple[str, bytes] | None = None
        """The path of the file that is being written, and the half of the data that a crash would leave."""
        self._folder = os.fsencode(folder)
        self._durable_inodes: dict[bytes, int] = {}
        self.medium.know(self._folder)
        self._list_durable_files()

    def _list_durable_files(self) -> None:
        self._durable_inodes = {entry.path: entry.inode() for entry in os.scandir(self._folder)}
        self.erased.clear()

    def _check(self, operation: str) -> None:
        if self.before_each is not None:
            self.before_each()
        super()._check(operation)

    def write(self, descriptor: int, data: bytes) -> None:
        if self.before_each is not None:
            self.half_written = os.readlink(f"/proc/self/fd/{descriptor}"), data[: len(data) // 2]
        try:
            super().write(descriptor, data)
        finally:
            self.half_written = None

    def erase(self, path: bytes) -> None:
        inode = os.stat(path).st_ino if os.path.exists(path) else 0
        super().erase(path)
        if inode and self._durable_inodes.get(path) == inode:
            self.erased.add(os.fsdecode(os.path.basename(path)))

    def sync_folder(self, path: bytes) -> None:
        super().sync_folder(path)
        if path == self._folder:
            self._list_durable_files()


class LyingDisk(CrashDisk):
    """A disk that only claims to sync."""

    def sync(self, descriptor: int) -> None:
        self._check("sync")


class Pace(NamedTuple):
    """The numbers of thread jobs that run after each step, in a cycle.

    With `overlaps` the changes of a step are recorded before the previous commit is acknowledged.
    """

    jobs: tuple[int, ...]
    overlaps: bool = False


ALL = sys.maxsize

PACES = {
    "threads run at once": Pace((ALL,)),
    "threads run a job every other step": Pace((0, 1), overlaps=True),
    "threads run seldom": Pace((0, 0, 0, 0, 2, 0, 0, ALL)),
}


class StorageRun:
    """One run of a storage over a folder. As a context manager it closes all files at the end.

    Each method raises `ProcessDied` if the disk has simulated a crash, even if the storage has caught that exception.
    """

    def __init__(
        self,
        folder: Path,
        settings: QueueSettings,
        pace: Pace,
        disk: CrashDisk,
        backend: Backend,
        items: Found = NOTHING,
    ) -> None:
        """`items` are the items in the files of the folder."""
        self.folder = folder
        self.disk = disk
        self.settings = settings
        self.backend = backend
        self.numbers: Iterator[int] = count(1)
        self.queues: dict[bytes, TrackedQueue] = {}
        self._items = items
        self._pace = pace
        self._jobs = cycle(pace.jobs)
        self._clock = Clock()
        self._threads = SteppedThreads()
        self.storage = backend.make(
            os.fsencode(folder), self._clock, self._threads, reserve_bytes=1, now_ms=lambda: NOW_MS, disk=disk
        )
        self._is_unlocked = False
        for name in items:
            self.queue(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files and release the lock, as the system does when a process ends."""
        self.disk.before_each = None
        for descriptor in tuple(self.disk.open_descriptors):
            self.disk.close(descriptor)
        if not self._is_unlocked:
            lock = os.path.realpath(self.folder / ".kestrel" / "lock")
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{name}") == lock:
                        os.close(int(name))

    def queue(self, name: bytes = NAME) -> TrackedQueue:
        """Return the queue of that name. Its first operation creates it if necessary."""
        if name not in self.queues:
            self.queues[name] = self.unused(name)
        return self.queues[name]

    def unused(self, name: bytes) -> TrackedQueue:
        """Return a queue without operations, which is not added to `queues`."""
        history = OneFile if self.backend.keeps_order else TwoFiles
        return TrackedQueue(self, name, history(self._items.get(name, ())))

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function of the storage, and raise `ProcessDied` if the process has crashed."""
        result = function(*args)
        self.check_alive()
        return result

    def check_alive(self) -> None:
        if self.disk.is_dead:
            raise ProcessDied

    def wait(self, results: list[object]) -> object:
        """Run jobs until the list has a result. Return it, or raise its failure."""
        while not results:
            assert len(self._threads), "all jobs have run, but there is no result"
            self._run_jobs(1)
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]

    def _wait_for(self, deferred: Deferred[Any]) -> object:
        results: list[object] = []
        deferred.addBoth(results.append)
        self.check_alive()
        return self.wait(results)

    def _run_jobs(self, jobs: int) -> None:
        """Run that many jobs, or as many as there are."""
        while jobs and len(self._threads):
            self.call(self._threads.run_one)
            self.call(self._clock.advance, 0)
            jobs -= 1

    def start(self) -> list[bytes]:
        """Start the storage, and run all jobs. Return the names of the queues that it found."""
        loaded = self._wait_for(self.storage.start(lambda name: self.settings))
        assert isinstance(loaded, dict)
        assert not [each for each in loaded.values() if isinstance(each, Failure)]
        self._run_jobs(ALL)
        return sorted(loaded)

    def stop(self) -> None:
        """Commit, and close the storage."""
        self.commit()
        for queue in self.queues.values():
            self.wait(queue.committed)
        self._wait_for(self.storage.close())
        self._is_unlocked = True
        for queue in self.queues.values():
            queue.history.sync(queue.history.last_acknowledged())

    def put(self, queues: Sequence[TrackedQueue], number: int | None = None) -> None:
        """Put an item to all these queues: the one of that number, or the next one."""
        number = next(self.numbers) if number is None else number
        stores = [queue.store for queue in queues]
        for queue in queues:
            queue.history.put(number)
            queue.is_touched = True
        self.call(self.storage.put, stores, *item_of(number))

    def commit(self) -> None:
        """Begin the commit of all changed queues. Wait first until their previous commits are acknowledged."""
        touched = [queue for queue in self.queues.values() if queue.is_touched]
        for queue in touched:
            self.wait(queue.committed)
        stores_of = [(queue, queue.to_commit()) for queue in touched]
        pairs = self.storage.commit([store for _, stores in stores_of for store in stores])
        for queue, stores in stores_of:
            queue.await_commit([safe for group, safe in pairs if any(store in group for store in stores)])
        for _, safe in pairs:
            safe.addErrback(lambda failure: None)  # each queue has recorded it
        self.check_alive()

    def end_step(self) -> None:
        """Commit, advance the clock, and run the jobs of the pace."""
        self.commit()
        if not self._pace.overlaps:
            for queue in self.queues.values():
                self.wait(queue.committed)
        self.call(self._clock.advance, STEP_S)
        self._run_jobs(next(self._jobs))
        if not len(self._threads):
            for queue in self.queues.values():
                queue.threads_are_idle(self._clock.seconds())


class TrackedQueue:
    """A queue of a run, and the history of its operations."""

    def __init__(self, run: StorageRun, name: bytes, history: History) -> None:
        self.run = run
        self.name = name
        self.history = history
        self.is_touched = False
        """True if something may have been recorded since the last commit."""
        self.committed: list[object] = [None]
        """The result of the last commit, or empty while it is pending."""
        self._call = run.call
        self._store: IQueueStorage | None = None
        self._deleted: list[IQueueStorage] = []
        self._filled: list[object] | None = None
        """The result of the fill, empty while it is pending; None if there is none."""
        self._idle: list[tuple[float, object]] = []
        """Recent times at which no job waited, each with the last acknowledged commit."""

    @property
    def store(self) -> IQueueStorage:
        """The queue store, which is created if necessary."""
        if self._store is None:
            self._store = self._call(self.run.storage.queue, self.name, self.run.settings)
            self.is_touched = True
        return self._store

    @property
    def exists(self) -> bool:
        """True if the queue was used since its last deletion."""
        return self._store is not None

    def put(self, items: int = 1) -> None:
        for _ in range(items):
            self.run.put([self])

    def get(self, items: int = 1) -> None:
        for _ in range(items):
            self._take(False)

    def get_from_memory(self, at_most: int) -> None:
        """Take items that are in memory, and begin to load the next one without waiting for it."""
        for _ in range(at_most):
            item = self._call(self.store.take, False)
            if item is None:
                break
            self.history.take(number_of(item), 0)
            self.is_touched = True
        self._begin_fill()

    def open(self) -> int:
        """Open the head. Return the xid."""
        item = self._take(True)
        assert item is not None
        return item.xid

    def confirm(self, *xids: int) -> None:
        for xid in xids:
            self.history.confirm(xid)
        self.is_touched = True
        assert self._call(self.store.confirm, xids) == len(xids)

    def continue_(self, *xids: int) -> None:
        """Confirm each of these open reads and put an item at the same moment."""
        for xid in xids:
            number = next(number for number in self.run.numbers if not is_put_off(ADD_MS + number))
            self.history.continue_(xid, number)
            self.is_touched = True
            self._call(self.store.continue_, xid, *item_of(number))

    def put_back(self, *xids: int) -> None:
        """Put open reads back at the head, with an error each."""
        for xid in reversed(xids):
            self.history.put_back(xid)
        self.is_touched = True
        self._call(self.store.put_back, xids, True)

    def clear(self) -> None:
        self.history.clear()
        self.is_touched = True
        self._call(self.store.clear)

    def delete(self) -> None:
        """Delete the queue. Its next use creates it again."""
        self.history.delete()
        deleted, self._store, self._filled = self.store, None, None
        self._deleted.append(deleted)
        self.is_touched = True
        self._call(self.run.storage.delete, deleted)

    def drain(self, opened: bool) -> State:
        """Take all items, which are not in the history. Return their numbers."""
        assert self.store.open_reads == 0
        items = self.store.items
        found: list[int] = []
        while (item := self._head(opened)) is not None:
            found.append(number_of(item))
        assert len(found) == items
        assert (self.store.items, self.store.bytes) == (0, 0)
        return tuple(found)

    def _take(self, opened: bool) -> Item | None:
        item = self._head(opened)
        if item is None:
            assert not self.history.items, "the queue claims to be empty, but should have items"
        else:
            assert bool(item.xid) == opened
            self.history.take(number_of(item), item.xid)
        return item

    def _head(self, opened: bool) -> Item | None:
        """Take the head. If it is not in memory, commit and wait for it."""
        for _ in range(MAX_FILLS):
            item = self._call(self.store.take, opened)
            if item is not None:
                self.is_touched = True
            if item is not None or not self.store.items:
                return item
            self._begin_fill()
            if self._filled is not None:
                self.run.commit()
                self.run.wait(self._filled)
                self._filled = None
        raise AssertionError(f"the head is not in memory after {MAX_FILLS} fills")

    def _begin_fill(self) -> None:
        if self._filled is None:
            filling = self.store.fill()
            if filling is not None:
                self._filled = []
                filling.addBoth(self._filled.append)
            self.run.check_alive()

    # Commits.

    def to_commit(self) -> list[IQueueStorage]:
        """Return the stores that the next commit must name."""
        self.is_touched = False
        deleted, self._deleted = self._deleted, []
        return deleted if self._store is None else [*deleted, self._store]

    def await_commit(self, outcomes: Iterable[Deferred[Any]]) -> None:
        """Record the commit that has begun as acknowledged when all these Deferreds have fired."""
        moment = self.history.commit()
        committed: list[object] = []
        self.committed = committed

        def acknowledge(_: object) -> None:
            if not self.run.disk.is_dead:
                self.history.acknowledge(moment)

        safe = gatherResults([_branch_of(outcome) for outcome in outcomes], consumeErrors=True)
        safe.addCallbacks(acknowledge, lambda failure: failure.value.subFailure).addBoth(committed.append)

    def threads_are_idle(self, now_s: float) -> None:
        """Record as synced what was acknowledged at an idle moment a period ago."""
        self._idle.append((now_s, self.history.last_acknowledged()))
        while self._idle[0][0] + PERIOD_S <= now_s:
            self.history.sync(self._idle.pop(0)[1])


def _branch_of(outcome: Deferred[Any]) -> Deferred[Any]:
    """Return a Deferred with the same result and its own callbacks."""
    branch: Deferred[Any] = Deferred()

    def both(result: object) -> object:
        branch.callback(result)
        return result

    outcome.addBoth(both)
    return branch


# Restarts over files.


def files_under(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files that can hold items, by their paths in the folder."""
    paths = (os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names)
    return {path[len(str(folder)) + 1 :]: Path(path).read_bytes() for path in paths if not path.endswith(WITHOUT_ITEMS)}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write these files into the folder, which is created if necessary."""
    folder.mkdir(exist_ok=True)
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)


class RestartCache:
    """The items that restarts find in files. Equal files are tried only once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._found: dict[frozenset[tuple[str, bytes]], Found] = {}

    def found_in(self, folder: Path) -> Found:
        """Return the items that a start finds in the folder, and remove the folder."""
        files = files_under(folder)
        shutil.rmtree(folder)
        return self.found(files, folder)

    def found(self, files: Mapping[str, bytes], folder: Path) -> Found:
        """Return the items that a start finds in these files. `folder` is created for the start and removed."""
        key = frozenset(files.items())
        if key not in self._found:
            write_files(folder, files)
            self._found[key] = self._restart_twice(folder)
            shutil.rmtree(folder)
        return self._found[key]

    def _restart_twice(self, folder: Path) -> Found:
        """Return the items of the first start, which opens all items, puts one more to each queue and stops.

        The second start must find the same items and the new one.
        """
        first = self._restart(folder, True)
        second = self._restart(folder, False)
        assert second == {name: (*items, PROBE_ITEM) for name, items in first.items()}, (
            f"a start found {first}, opened all of it, put {PROBE_ITEM} and stopped, and the next one found {second}"
        )
        return first

    def _restart(self, folder: Path, is_first: bool) -> Found:
        with StorageRun(
            folder, small_limits(None), PACES["threads run at once"], CrashDisk(folder), self._backend
        ) as run:
            queues = [run.queue(name) for name in run.start()]
            found = {queue.name: queue.drain(opened=is_first) for queue in queues}
            if is_first and queues:
                run.put(queues, PROBE_ITEM)
            run.stop()
        return found


# Crashes of a scenario.


class CrashTrial:
    """A scenario with its settings, the files that it starts with, and their items."""

    def __init__(
        self,
        folder: Path,
        scenario: Callable[[StorageRun], Iterator[None]],
        sync_journal_ms: int | None,
        pace: Pace,
        backend: Backend,
        *,
        files: Mapping[str, bytes] | None = None,
        items: Found = NOTHING,
        make_disk: Callable[[Path], CrashDisk] = CrashDisk,
    ) -> None:
        self._folders = (folder / f"queues-{number}" for number in count())
        self._scenario = scenario
        self._sync_journal_ms = sync_journal_ms
        self._pace = pace
        self._backend = backend
        self._files = files or {}
        self._items = items
        self._make_disk = make_disk

    def run(self, crash_after: int | None = None, look: Callable[[StorageRun], None] | None = None) -> StorageRun:
        """Run the scenario, to its end or until it crashes after that many disk operations.

        Before each operation call `look` with the run.
        """
        folder = next(self._folders)
        write_files(folder, self._files)
        disk = self._make_disk(folder)
        if crash_after is not None:
            disk.die_after(crash_after)
        with StorageRun(
            folder, small_limits(self._sync_journal_ms), self._pace, disk, self._backend, self._items
        ) as run:
            if look is not None:
                disk.before_each = partial(look, run)
            with suppress(ProcessDied):
                run.start()
                for _ in self._scenario(run):
                    run.end_step()
                run.stop()
        return run

    def check(self, run: StorageRun, restarts: RestartCache) -> None:
        """Check the items that a restart finds after a crash of the run now."""
        queues = dict(run.queues)
        if NAME not in queues:
            queues[NAME] = run.unused(NAME)
        for crash, files in files_after_crash(run):
            found = restarts.found(files, next(self._folders))
            assert {*found} <= {*queues}, f"when the {crash}, a start found {found}"
            for name, queue in queues.items():
                promise = queue.history.promise(self._sync_journal_ms, has_machine_died="machine" in crash)
                items = found.get(name, ())
                assert promise.admits(items), (
                    f"when the {crash} after {len(run.disk.calls)} operations of the disk, the last being"
                    f" {' '.join(run.disk.calls[-8:])}, a start found {items} in {name!r}; the queue was {promise}"
                )

    def check_every_crash(self, restarts: RestartCache) -> None:
        """Run the scenario once. Check the files that a crash would leave before each disk operation and at the end.

        With a small sample, check before some operations only.
        """
        errors: list[Exception] = []

        def look(run: StorageRun) -> None:
            if not errors and is_tried(len(run.disk.calls)):
                try:
                    self.check(run, restarts)
                except Exception as error:  # the storage would catch it
                    errors.append(error)

        run = self.run(look=look)
        if errors:
            raise errors[0]
        assert run.disk.calls
        self.check(run, restarts)


def files_after_crash(run: StorageRun) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """Yield each kind of crash with the files that it would leave now, or has left.

    A process that dies in a write has written half of the data. After a power failure the medium may also contain
    changes that were not synced, in any order: erased files before renamed ones, and the folder before the files.
    """
    disk, folder = run.disk, os.fsencode(run.folder)
    synced = {os.fsdecode(name): contents for name, contents in disk.medium.left_of(folder).items()}
    yield "machine died", synced
    if disk.erased:
        left = {name: contents for name, contents in synced.items() if name not in disk.erased}
        yield "machine died, not all of whose folder was written out,", left
    left_as_now = disk.medium.left_of(folder, names_as_now=True)
    written_out = {os.fsdecode(name): contents for name, contents in left_as_now.items()}
    yield "machine died, all of whose folder was written out,", written_out
    files = files_under(run.folder)
    if disk.half_written is not None:
        path, half = disk.half_written
        files[os.path.relpath(path, os.path.realpath(run.folder))] += half
    yield "process died", files


# Crashes in a start.


class CrashedFolder(NamedTuple):
    """The files that a crash left, and the items that a start finds, with numbers above those of a scenario."""

    items: Found
    files: Mapping[str, bytes]


def no_changes(run: StorageRun) -> Iterator[None]:
    yield


def a_few_changes(run: StorageRun) -> Iterator[None]:
    queues = [*run.queues.values()] or [run.queue()]
    for queue in queues:
        assert queue.store.items == len(queue.history.items)
    run.put(queues)
    yield
    queues[0].get()
    queues[-1].put()
    yield


class CrashedStartTests:
    """Tests of starts over `folders` that crash and are repeated."""

    folders: ClassVar[Mapping[str, CrashedFolder]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.parametrize("crashed", self.folders.values(), ids=self.folders)

    @pytest.mark.parametrize("scenario", [no_changes, a_few_changes])
    @pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
    def test_start_after_a_crash_in_a_start_loses_nothing(
        self,
        folder: Path,
        restarts: RestartCache,
        backend: Backend,
        crashed: CrashedFolder,
        sync_journal_ms: int | None,
        scenario: Callable[[StorageRun], Iterator[None]],
    ) -> None:
        pace, (items, files) = PACES["threads run at once"], crashed
        trial = CrashTrial(folder, scenario, sync_journal_ms, pace, backend, files=files, items=items)
        trial.check_every_crash(restarts)

    def test_series_of_crashes_in_starts_loses_nothing(
        self, folder: Path, restarts: RestartCache, backend: Backend, crashed: CrashedFolder
    ) -> None:
        queues = folder / "left"
        write_files(queues, crashed.files)
        for operations in count():
            disk = CrashDisk(queues)
            disk.die_after(operations)
            run = StorageRun(queues, small_limits(0), PACES["threads run at once"], disk, backend)
            with run, suppress(ProcessDied):
                run.start()
                break
        assert restarts.found_in(queues) == crashed.items


# Writes that are cut short.


class TornWrite(NamedTuple):
    """A write, and the files before it."""

    files: Mapping[str, bytes]
    name: str
    data: bytes

    def cut_at(self, size: int) -> Mapping[str, bytes]:
        """Return the files after that many bytes of the write."""
        return {**self.files, self.name: self.files[self.name] + self.data[:size]}


class RecordingDisk(CrashDisk):
    """A disk that records writes while `writes` is a list."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._recorded_folder = folder
        self.writes: list[TornWrite] | None = None

    def write(self, descriptor: int, data: bytes) -> None:
        if self.writes is not None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            name = os.path.relpath(path, os.path.realpath(self._recorded_folder))
            self.writes.append(TornWrite(files_under(self._recorded_folder), name, data))
        super().write(descriptor, data)


def check_torn_writes(
    folder: Path,
    scenario: Callable[[StorageRun], Iterator[None]],
    pace: Pace,
    backend: Backend,
    last_batch: Callable[[StorageRun], None],
    restarts: RestartCache,
) -> list[TornWrite]:
    """Run a scenario and one more batch, cut the writes of that batch short, and check that whole records count.

    The cuts are a sample: every CUT_STEP-th byte, and the bytes around each place where a restart finds other items
    than at the byte before. Return the writes.
    """
    queues = folder / "queues"
    write_files(queues, {})
    disk = RecordingDisk(queues)
    with StorageRun(queues, small_limits(None), pace, disk, backend) as run:
        run.start()
        for _ in scenario(run):
            run.end_step()
        run.numbers = filter(is_short, run.numbers)
        last_batch(run)
        states_of = {name: queue.history.on_the_way() for name, queue in run.queues.items()}
        disk.writes = []
        run.commit()
        for queue in run.queues.values():
            run.wait(queue.committed)
    writes = [write for write in disk.writes if not write.name.startswith(".kestrel/")]
    first = {name: states[0] for name, states in states_of.items()}
    last = {name: states[-1] for name, states in states_of.items()}
    assert sum(len(write.data) for write in writes) >= sum(len(states) - 1 for states in states_of.values()) > 0
    found: Found = {}
    for number, write in enumerate(writes):

        def found_after(size: int, write: TornWrite = write) -> Found:
            return restarts.found(write.cut_at(size), folder / "left")

        for size, found in beside_changes(len(write.data), CUT_STEP, found_after).items():
            assert {*found} <= {*states_of}
            for name, states in states_of.items():
                items = found.get(name, ())
                assert items in states, (
                    f"after {size} of {len(write.data)} bytes of write {number + 1}, which is to {write.name}, a start"
                    f" found {items} in {name!r}, not one of {states}"
                )
                del states[: states.index(items)]
                assert number or size or items == first[name]
    assert {name: found.get(name, ()) for name in last} == last
    return writes
