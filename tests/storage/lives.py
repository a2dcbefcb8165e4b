"""Lives of a storage that end where a test says, and what a start makes of what each has left.

A *life* is one run of a storage over a folder. In it a *queue* is what a test does to one queue and what has become of
it; a *scenario* does so step by step, and each step ends with a commit. A `Trial` lives through a scenario again and
again, with a death in the place of another operation of the disk each time; or once, and looks before each operation
what a death in its place would leave.

The limits are so small that a backlog of a few items is several times what memory and files may hold.
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
from typing import Any, Final, NamedTuple, TypeAlias

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing import faults
from kestrel.testing.faults import ProcessDied
from kestrel.testing.threads import SteppedThreads
from tests.sample import beside_changes, is_tried
from tests.storage.backends import Backend
from tests.storage.histories import (
    ADD_MS,
    History,
    OneFile,
    State,
    TwoFiles,
    is_put_off,
    is_short,
    item_of,
    number_of,
)

NAME: Final = b"work"
NOW_MS: Final = ADD_MS + 3_600_000
PERIOD_S: Final = 0.5
STEP_S: Final = 0.25
"""The time from one step to the next; a sum of such has no rounding."""

SYNCS: Final = {"synced": 0, "never synced": None, "synced once a period": int(PERIOD_S * 1000)}
"""syncJournal, in milliseconds."""

NO_JOURNALS: Final = ("/.kestrel/lock", "/.kestrel/reserve")

CUT_STEP: Final = 7
"""So far apart are the bytes at which a write is cut short: in one record and the next it is another field."""

FILLS: Final = 100
"""More than it takes to bring a head into memory."""

THE_NEXT: Final = 5000
"""The number of the item that is put after a restart, greater than those of any life."""


def tiny(sync_journal_ms: int | None) -> QueueSettings:
    """Limits that a few items exceed."""
    return QueueSettings(
        max_memory_size_bytes=200,
        max_journal_size_bytes=1000,
        default_journal_size_bytes=300,
        min_journal_compact_delay_ms=None,
        sync_journal_ms=sync_journal_ms,
    )


Found: TypeAlias = Mapping[bytes, State]
"""What a start finds in each queue that there is."""

NOTHING: Final[Found] = {}


# The disk.


class MortalDisk(faults.KillableDisk):
    """One that knows which files of a folder a power failure would bring back."""

    def __init__(self, folder: Path) -> None:
        """What lies in that folder is safe."""
        super().__init__()
        self.erased: set[str] = set()
        """The names of files that are on the medium still, where it was not told yet that they are erased."""
        self.before_each: Callable[[], None] | None = None
        """Called before each operation, which it must not disturb."""
        self.half_written: tuple[str, bytes] | None = None
        """The path of the file that is about to be written, and what a death in the midst of that would leave of it."""
        self._folder = os.fsencode(folder)
        self._on_medium: dict[bytes, int] = {}
        self.medium.know(self._folder)
        self._look_around()

    def _look_around(self) -> None:
        self._on_medium = {entry.path: entry.inode() for entry in os.scandir(self._folder)}
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
        if inode and self._on_medium.get(path) == inode:
            self.erased.add(os.fsdecode(os.path.basename(path)))

    def sync_folder(self, path: bytes) -> None:
        super().sync_folder(path)
        if path == self._folder:
            self._look_around()


class Pace(NamedTuple):
    """When threads run: so many jobs after each step, again and again.

    With `overlaps` a step's changes are recorded before the commit of the one before is acknowledged.
    """

    jobs: tuple[int, ...]
    overlaps: bool = False


ALL = sys.maxsize

PACES = {
    "threads run at once": Pace((ALL,)),
    "threads run a job every other step": Pace((0, 1), overlaps=True),
    "threads run seldom": Pace((0, 0, 0, 0, 2, 0, 0, ALL)),
}


class Life:
    """One run of a storage over a folder, with the queues that a test uses.

    Each method raises ProcessDied when the disk let the process die, whoever has caught that first.
    """

    def __init__(
        self,
        folder: Path,
        settings: QueueSettings,
        pace: Pace,
        disk: MortalDisk,
        backend: Backend,
        items: Found = NOTHING,
    ) -> None:
        """`items` are those that the queues have when it begins."""
        self.folder = folder
        self.disk = disk
        self.settings = settings
        self.backend = backend
        self.numbers: Iterator[int] = count(1)
        self.queues: dict[bytes, LivedQueue] = {}
        self._items = items
        self._pace = pace
        self._jobs = cycle(pace.jobs)
        self._clock = Clock()
        self._threads = SteppedThreads()
        self.storage = backend.make(
            os.fsencode(folder), self._clock, self._threads, reserve_bytes=1, now_ms=lambda: NOW_MS, disk=disk
        )
        self._has_let_go = False
        for name in items:
            self.queue(name)

    def queue(self, name: bytes = NAME) -> LivedQueue:
        """The queue of that name, which need not be there."""
        if name not in self.queues:
            self.queues[name] = self.unused(name)
        return self.queues[name]

    def unused(self, name: bytes) -> LivedQueue:
        """A queue of that name to which nothing was done."""
        history = OneFile if self.backend.keeps_order else TwoFiles
        return LivedQueue(self, name, history(self._items.get(name, ())))

    def do(self, call: Callable[..., Any], *args: object) -> Any:
        """Call it, and look whether the process is still alive."""
        result = call(*args)
        self.look_alive()
        return result

    def look_alive(self) -> None:
        """Raise ProcessDied if the process is dead."""
        if self.disk.is_dead:
            raise ProcessDied

    def wait(self, results: list[object]) -> object:
        """Let threads run until there is a result; raises its failure."""
        while not results:
            assert len(self._threads), "nothing is under way that could end this waiting"
            self._run(1)
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]

    def _result_of(self, deferred: Deferred[Any]) -> object:
        results: list[object] = []
        deferred.addBoth(results.append)
        self.look_alive()
        return self.wait(results)

    # Beginning and end.

    def begin(self) -> list[bytes]:
        """Start, and let everything happen that a start leads to. Returns the names of the queues that there are."""
        loaded = self._result_of(self.storage.start(lambda name: self.settings))
        assert isinstance(loaded, dict)
        assert not [each for each in loaded.values() if isinstance(each, Failure)]
        self._run(ALL)
        return sorted(loaded)

    def end(self) -> None:
        """Stop in order."""
        self.commit()
        for queue in self.queues.values():
            self.wait(queue.committed)
        self._result_of(self.storage.close())
        self._has_let_go = True
        for queue in self.queues.values():
            queue.history.sync(queue.history.last_acknowledged())

    def bury(self) -> None:
        """Close what the system closes when a process ends: files, and the lock, which nobody else knows of."""
        for descriptor in tuple(self.disk.open_descriptors):
            self.disk.close(descriptor)
        if not self._has_let_go:
            lock = os.path.realpath(self.folder / ".kestrel" / "lock")
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{name}") == lock:
                        os.close(int(name))

    # What is done.

    def put(self, queues: Sequence[LivedQueue], number: int | None = None) -> None:
        """Put one item, the next or the one of that number, to all of these."""
        number = next(self.numbers) if number is None else number
        contents = [queue.contents for queue in queues]
        for queue in queues:
            queue.history.put(number)
            queue.is_touched = True
        self.do(self.storage.put, contents, *item_of(number))

    def commit(self) -> None:
        """Begin to make safe what was recorded, of each queue once its commit before is acknowledged."""
        touched = [queue for queue in self.queues.values() if queue.is_touched]
        for queue in touched:
            self.wait(queue.committed)
        each = [(queue, queue.to_commit()) for queue in touched]
        pairs = self.storage.commit([contents for _, all_contents in each for contents in all_contents])
        for queue, all_contents in each:
            queue.await_commit([safe for group, safe in pairs if any(own in group for own in all_contents)])
        for _, safe in pairs:
            safe.addErrback(lambda failure: None)  # each queue has taken note of it
        self.look_alive()

    def step(self) -> None:
        """A step is over."""
        self.commit()
        if not self._pace.overlaps:
            for queue in self.queues.values():
                self.wait(queue.committed)
        self.do(self._clock.advance, STEP_S)
        self._run(next(self._jobs))
        if not len(self._threads):
            for queue in self.queues.values():
                queue.nothing_is_under_way(self._clock.seconds())

    def _run(self, jobs: int) -> None:
        """Let so many jobs of the threads be done, or as many as there are."""
        while jobs and len(self._threads):
            self.do(self._threads.run_one)
            self.do(self._clock.advance, 0)
            jobs -= 1


class LivedQueue:
    """What is done to one queue of a life, and what has become of it."""

    def __init__(self, life: Life, name: bytes, history: History) -> None:
        self.life = life
        self.name = name
        self.history = history
        self.is_touched = False
        """Whether something may have been recorded since the last commit."""
        self.committed: list[object] = [None]
        """What the last commit came to, or nothing yet."""
        self._do = life.do
        self._live: IQueueStorage | None = None
        self._deleted: list[IQueueStorage] = []
        self._filled: list[object] | None = None
        """What the fill under way has come to, or nothing yet; None if there is none."""
        self._quiet: list[tuple[float, object]] = []
        """The latest times at which no job waited, and what was acknowledged by then."""

    @property
    def contents(self) -> IQueueStorage:
        """The live queue, which comes into being if it must."""
        if self._live is None:
            self._live = self._do(self.life.storage.queue, self.name, self.life.settings)
            self.is_touched = True
        return self._live

    @property
    def is_there(self) -> bool:
        """Whether it has been used and not deleted since."""
        return self._live is not None

    def put(self, items: int = 1) -> None:
        """Put so many items."""
        for _ in range(items):
            self.life.put([self])

    def get(self, items: int = 1) -> None:
        """Take so many items for good."""
        for _ in range(items):
            self._take(False)

    def get_from_memory(self, at_most: int) -> None:
        """Take what is there without waiting, and ask for the next, which may come whenever it likes."""
        for _ in range(at_most):
            item = self._do(self.contents.take, False)
            if item is None:
                break
            self.history.take(number_of(item), 0)
            self.is_touched = True
        self._ask_for_head()

    def open(self) -> int:
        """Open the head; returns the xid."""
        item = self._take(True)
        assert item is not None
        return item.xid

    def confirm(self, *xids: int) -> None:
        """End open reads for good."""
        for xid in xids:
            self.history.confirm(xid)
        self.is_touched = True
        assert self._do(self.contents.confirm, xids) == len(xids)

    def continue_(self, *xids: int) -> None:
        """End each of these open reads and put an item in its place."""
        for xid in xids:
            number = next(number for number in self.life.numbers if not is_put_off(ADD_MS + number))
            self.history.continue_(xid, number)
            self.is_touched = True
            self._do(self.contents.continue_, xid, *item_of(number))

    def put_back(self, *xids: int) -> None:
        """Return open reads to the head."""
        for xid in reversed(xids):
            self.history.put_back(xid)
        self.is_touched = True
        self._do(self.contents.put_back, xids, True)

    def clear(self) -> None:
        """Drop all but the open reads."""
        self.history.clear()
        self.is_touched = True
        self._do(self.contents.clear)

    def delete(self) -> None:
        """Delete it; its next use makes it anew."""
        self.history.delete()
        deleted, self._live, self._filled = self.contents, None, None
        self._deleted.append(deleted)
        self.is_touched = True
        self._do(self.life.storage.delete, deleted)

    def take_whatever_is_there(self, opened: bool) -> State:
        """The whole queue, which is empty then."""
        assert self.contents.open_reads == 0
        counted = self.contents.items
        found: list[int] = []
        while (item := self._head(opened)) is not None:
            found.append(number_of(item))
        assert len(found) == counted
        assert (self.contents.items, self.contents.bytes) == (0, 0)
        return tuple(found)

    def _take(self, opened: bool) -> Item | None:
        item = self._head(opened)
        if item is None:
            assert not self.history.items, "the queue says that it is empty, and it is not"
        else:
            assert bool(item.xid) == opened
            self.history.take(number_of(item), item.xid)
        return item

    def _head(self, opened: bool) -> Item | None:
        """Take the head; where it is not in memory, end the tick and wait for it."""
        for _ in range(FILLS):
            item = self._do(self.contents.take, opened)
            if item is not None:
                self.is_touched = True
            if item is not None or not self.contents.items:
                return item
            self._ask_for_head()
            if self._filled is not None:
                self.life.commit()
                self.life.wait(self._filled)
                self._filled = None
        raise AssertionError("the head does not come into memory")

    def _ask_for_head(self) -> None:
        if self._filled is None:
            loading = self.contents.fill()
            if loading is not None:
                self._filled = []
                loading.addBoth(self._filled.append)
            self.life.look_alive()

    # Its commits.

    def to_commit(self) -> list[IQueueStorage]:
        """What is to be named in a commit."""
        self.is_touched = False
        deleted, self._deleted = self._deleted, []
        return deleted if self._live is None else [*deleted, self._live]

    def await_commit(self, outcomes: Iterable[Deferred[Any]]) -> None:
        """A commit has begun, and is safe when all of these are."""
        moment = self.history.commit()
        committed: list[object] = []
        self.committed = committed

        def acknowledge(_: object) -> None:
            if not self.life.disk.is_dead:
                self.history.acknowledge(moment)

        safe = gatherResults([_branch_of(outcome) for outcome in outcomes], consumeErrors=True)
        safe.addCallbacks(acknowledge, lambda failure: failure.value.subFailure).addBoth(committed.append)

    def nothing_is_under_way(self, now: float) -> None:
        """What was acknowledged a period ago is synced when no job has waited then, and none waits now."""
        self._quiet.append((now, self.history.last_acknowledged()))
        while self._quiet[0][0] + PERIOD_S <= now:
            self.history.sync(self._quiet.pop(0)[1])


def _branch_of(outcome: Deferred[Any]) -> Deferred[Any]:
    """One that comes to the same, and has callbacks of its own."""
    branch: Deferred[Any] = Deferred()

    def both(result: object) -> object:
        branch.callback(result)
        return result

    outcome.addBoth(both)
    return branch


# What is left.


def files_under(folder: Path) -> dict[str, bytes]:
    """The files of a queue folder with their contents, by their paths in it; not the lock and the reserve."""
    paths = (os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names)
    return {path[len(str(folder)) + 1 :]: contents_of(path) for path in paths if not path.endswith(NO_JOURNALS)}


def contents_of(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """A folder with these files."""
    folder.mkdir(exist_ok=True)
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)


class Restarts:
    """What starts find in folders. The same files are started over once only."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._found: dict[frozenset[tuple[str, bytes]], Found] = {}

    def found_in(self, folder: Path) -> Found:
        """The items that a start finds there. The folder is used up by that."""
        files = frozenset(files_under(folder).items())
        if files not in self._found:
            self._found[files] = self._start_twice(folder)
        shutil.rmtree(folder)
        return self._found[files]

    def found(self, files: Mapping[str, bytes], folder: Path) -> Found:
        """The items that a start finds in these files. The folder is one that can be made, and is gone thereafter."""
        known = frozenset(files.items())
        if known not in self._found:
            write_files(folder, files)
            self._found[known] = self._start_twice(folder)
            shutil.rmtree(folder)
        return self._found[known]

    def _start_twice(self, folder: Path) -> Found:
        """What the first start finds, which opens every item, puts one more to all queues and stops. The second one has
        to find that again."""
        first = self._start(folder, True)
        second = self._start(folder, False)
        assert second == {name: (*items, THE_NEXT) for name, items in first.items()}, (
            f"a start found {first}, opened all of it, put {THE_NEXT} and stopped, and the next one found {second}"
        )
        return first

    def _start(self, folder: Path, is_first: bool) -> Found:
        life = Life(folder, tiny(None), PACES["threads run at once"], MortalDisk(folder), self._backend)
        try:
            queues = [life.queue(name) for name in life.begin()]
            found = {queue.name: queue.take_whatever_is_there(opened=is_first) for queue in queues}
            if is_first and queues:
                life.put(queues, THE_NEXT)
            life.end()
        finally:
            life.bury()
        return found


# Deaths.


class Trial:
    """A scenario under certain settings, to be lived through until its end or a death, over files with these items."""

    def __init__(
        self,
        folder: Path,
        scenario: Callable[[Life], Iterator[None]],
        sync_journal_ms: int | None,
        pace: Pace,
        backend: Backend,
        *,
        files: Mapping[str, bytes] | None = None,
        items: Found = NOTHING,
        make_disk: Callable[[Path], MortalDisk] = MortalDisk,
    ) -> None:
        self._folders = (folder / f"queues-{number}" for number in count())
        self._scenario = scenario
        self._sync_journal_ms = sync_journal_ms
        self._pace = pace
        self._backend = backend
        self._files = files or {}
        self._items = items
        self._make_disk = make_disk

    def live(self, die_after: int | None = None, look: Callable[[Life], None] | None = None) -> Life:
        """The whole of it, or as far as it goes; whatever was open is closed.

        `look` is called before each operation of the disk, with the life as it is then.
        """
        folder = next(self._folders)
        write_files(folder, self._files)
        disk = self._make_disk(folder)
        if die_after is not None:
            disk.die_after(die_after)
        life = Life(folder, tiny(self._sync_journal_ms), self._pace, disk, self._backend, self._items)
        if look is not None:
            disk.before_each = partial(look, life)
        try:
            life.begin()
            for _ in self._scenario(life):
                life.step()
            life.end()
        except ProcessDied:
            pass
        finally:
            disk.before_each = None
            life.bury()
        return life

    def check(self, life: Life, restarts: Restarts) -> None:
        """Restart over what that life has left, or would leave if it ended now."""
        queues = dict(life.queues)
        if NAME not in queues:  # nothing was done to it so far
            queues[NAME] = life.unused(NAME)
        for who, files in left_by(life):
            found = restarts.found(files, next(self._folders))
            assert {*found} <= {*queues}, f"when the {who}, a start found {found}"
            for name, queue in queues.items():
                promise = queue.history.promise(self._sync_journal_ms, has_machine_died="machine" in who)
                items = found.get(name, ())
                assert promise.admits(items), (
                    f"when the {who} after {len(life.disk.calls)} operations of the disk, the last being"
                    f" {' '.join(life.disk.calls[-8:])}, a start found {items} in {name!r}; the queue was {promise}"
                )

    def check_every_death(self, restarts: Restarts) -> None:
        """Die before each operation of the disk, or in a small sample before some, and at the end.

        It is lived through once: what a death leaves is known without one (`left_by`).
        """
        wrong: list[Exception] = []

        def look(life: Life) -> None:
            if not wrong and is_tried(len(life.disk.calls)):
                try:
                    self.check(life, restarts)
                except Exception as error:  # the storage would catch it
                    wrong.append(error)

        whole = self.live(look=look)
        if wrong:
            raise wrong[0]
        assert whole.disk.calls
        self.check(whole, restarts)


def left_by(life: Life) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """The files that are left in the folder of a life that has ended or ends now, and those that the medium may hold.

    A process that dies in a write has done half of it. A system may write out what it was not asked to sync, in any
    order: what was erased before what was renamed, and the folder before the files.
    """
    disk, folder = life.disk, os.fsencode(life.folder)
    synced = {os.fsdecode(name): contents for name, contents in disk.medium.left_of(folder).items()}
    yield "machine died", synced
    if disk.erased:
        left = {name: contents for name, contents in synced.items() if name not in disk.erased}
        yield "machine died, not all of whose folder was written out,", left
    left_as_now = disk.medium.left_of(folder, names_as_now=True)
    written_out = {os.fsdecode(name): contents for name, contents in left_as_now.items()}
    yield "machine died, all of whose folder was written out,", written_out
    files = files_under(life.folder)
    if disk.half_written is not None:
        path, half = disk.half_written
        files[path[len(os.path.realpath(life.folder)) + 1 :]] += half
    yield "process died", files


def check_deaths_one_after_the_other(folder: Path, backend: Backend) -> None:
    """Start over a folder, dying at the first operation of the disk, again at the second, and so on up to a start that
    comes to its end."""
    for calls in count():
        disk = MortalDisk(folder)
        disk.die_after(calls)
        life = Life(folder, tiny(0), PACES["threads run at once"], disk, backend)
        try:
            life.begin()
        except ProcessDied:
            continue
        finally:
            life.bury()
        break


# Each byte of a write.


class Torn(NamedTuple):
    """A write, and the files as they were before it."""

    files: Mapping[str, bytes]
    name: str
    data: bytes

    def cut_at(self, size: int) -> Mapping[str, bytes]:
        """The files as they are when so many bytes of it are written."""
        return {**self.files, self.name: self.files[self.name] + self.data[:size]}


class WatchedDisk(MortalDisk):
    """A disk that remembers each write while it is watched."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._watched = folder
        self.torn: list[Torn] | None = None
        """What was written since this is a list."""

    def write(self, descriptor: int, data: bytes) -> None:
        """Write, and remember."""
        if self.torn is not None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            name = path[len(os.path.realpath(self._watched)) + 1 :]
            self.torn.append(Torn(files_under(self._watched), name, data))
        super().write(descriptor, data)


def check_each_byte(
    folder: Path,
    scenario: Callable[[Life], Iterator[None]],
    pace: Pace,
    backend: Backend,
    last_batch: Callable[[Life], None],
    restarts: Restarts,
) -> list[Torn]:
    """Live through a scenario and one more batch, whose writes are cut short at any byte: the whole records count.

    The bytes are a sample: each of which a start makes something else than of the one before, those on both sides of
    it, and every CUT_STEP-th. Returns these writes.
    """
    queues = folder / "queues"
    write_files(queues, {})
    disk = WatchedDisk(queues)
    life = Life(queues, tiny(None), pace, disk, backend)
    try:
        life.begin()
        for _ in scenario(life):
            life.step()
        life.numbers = filter(is_short, life.numbers)
        last_batch(life)
        ways = {name: queue.history.on_the_way() for name, queue in life.queues.items()}
        disk.torn = []
        life.commit()
        for queue in life.queues.values():
            life.wait(queue.committed)
    finally:
        life.bury()
    written = [torn for torn in disk.torn if not torn.name.startswith(".kestrel/")]
    last = {name: way[-1] for name, way in ways.items()}
    first = {name: way[0] for name, way in ways.items()}
    assert sum(len(torn.data) for torn in written) >= sum(len(way) - 1 for way in ways.values()) > 0
    found: Found = {}
    for number, torn in enumerate(written):

        def found_after(size: int, torn: Torn = torn) -> Found:
            return restarts.found(torn.cut_at(size), folder / "left")

        for size, found in beside_changes(len(torn.data), CUT_STEP, found_after).items():
            assert {*found} <= {*ways}
            for name, way in ways.items():
                items = found.get(name, ())
                assert items in way, (
                    f"after {size} of {len(torn.data)} bytes of write {number + 1}, which is to {torn.name}, a start"
                    f" found {items} in {name!r}, not one of {way}"
                )
                del way[: way.index(items)]
                assert number or size or items == first[name]
    assert {name: found.get(name, ()) for name in last} == last
    return written
