"""Wherever the process or the machine dies: what was acknowledged is there at the next start, once and in order.

A *scenario* is what happens to one queue, step by step; each step ends with a commit. It is lived through once to
count the disk's operations, and then once for each of them, with a death in its place and a half-done write. What
a start makes of the files that are left (the process died) and of what the medium holds (the machine did) must be
a state that the queue was in after one of its records, and none before the last that was promised.

The limits are so small that a backlog of a few items is several times what memory and journal may hold.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

import pytest
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.storage.interfaces import IQueueStorage
from kestrel.storage.journal import JournalStorage
from kestrel.testing import faults
from kestrel.testing.faults import Died
from kestrel.testing.threads import SteppedThreads
from tests.journal.made import REMOVE, addx, open_

NAME = b"work"
ADD_MS = 1_700_000_000_000
NOW_MS = 1_700_003_600_000
PERIOD_S = 0.5
STEP_S = 0.25
"""The time from one step to the next; a sum of such has no rounding."""

SYNCS = {"synced": 0, "never synced": None, "synced once a period": int(PERIOD_S * 1000)}
"""syncJournal, in milliseconds."""

NO_JOURNALS = ("/.kestrel/lock", "/.kestrel/reserve")

FILLS = 100
"""More than it takes to bring a head into memory."""


def tiny(sync_journal_ms: int | None) -> QueueSettings:
    """Limits that a few items exceed."""
    return QueueSettings(
        max_memory_size_bytes=200,
        max_journal_size_bytes=1000,
        default_journal_size_bytes=300,
        min_journal_compact_delay_ms=None,
        sync_journal_ms=sync_journal_ms,
    )


# Items are numbers.


def item_of(number: int) -> tuple[bytes, int, int]:
    """The data (0 to 100 bytes; the second item's are none), add time and expiry of the item of that number."""
    data = (b"%d." % number * 100)[: (37 * number + 27) % 101]
    return data, ADD_MS + number, 0 if number % 3 else ADD_MS + 10**9


def is_put_off(add_ms: int) -> bool:
    """Whether an item of that add time that is continued with is stored 1 ms later (`IContinue`)."""
    return add_ms % 256 == 7


def number_of(item: Item) -> int:
    """The number of an item, which must be as it was put."""
    number = item.add_ms - ADD_MS
    seen = item.data, item.add_ms, item.expiry_ms
    assert seen == item_of(number), f"{seen} was never put"
    return number


State: TypeAlias = tuple[int, ...]
"""What a start finds: the numbers of the items, in order, those of open reads first."""


class History:
    """What the queue was after each of its records, as a restart would show it; and what of that was promised."""

    def __init__(self, items: State = ()) -> None:
        self.items = list(items)
        self.opened: dict[int, int] = {}
        self.states: list[State] = [items]
        self.acknowledged = 0
        """The state of the last commit that was acknowledged, by its place in `states`. What is later may be lost."""
        self.synced = 0
        """The same of the last commit whose period is over."""
        self._born = 0
        self._deleted: int | None = None

    def put(self, number: int) -> None:
        self.items.append(number)
        self._changed()

    def take(self, number: int, xid: int) -> None:
        assert [number] == self.items[:1], "another item than the head was taken"
        del self.items[0]
        if xid:
            assert xid not in self.opened
            self.opened[xid] = number
        self._changed()

    def confirm(self, xid: int) -> None:
        del self.opened[xid]
        self._changed()

    def continue_(self, xid: int, number: int) -> None:
        del self.opened[xid]
        self.items.append(number)
        self._changed()

    def put_back(self, xid: int) -> None:
        self.items.insert(0, self.opened.pop(xid))
        self._changed()

    def clear(self) -> None:
        while self.items:
            del self.items[0]
            self._changed()

    def delete(self) -> None:
        self.items.clear()
        self.opened.clear()
        self._changed()
        self._deleted = self.recorded

    def _changed(self) -> None:
        self.states.append(tuple(self.opened[xid] for xid in sorted(self.opened)) + tuple(self.items))

    @property
    def recorded(self) -> int:
        """The place of the present state."""
        return len(self.states) - 1

    def acknowledge(self, place: int) -> None:
        """The commit that was made then is safe."""
        self.acknowledged = place
        if self._deleted is not None and place >= self._deleted:
            self._born, self._deleted = self._deleted, None

    def promised(self, sync_journal_ms: int | None, *, has_machine_died: bool) -> list[State]:
        """The states that a crash may leave now.

        A queue whose deletion is under way may be there again as it once was, since it was made.
        """
        first = self.acknowledged if self._deleted is None else self._born
        if has_machine_died and sync_journal_ms != 0:
            first = 0 if sync_journal_ms is None else min(first, self.synced)
        return self.states[first:]


# One run of a storage.


class MortalDisk(faults.MortalDisk):
    """One that knows which files of a folder a power failure would bring back."""

    def __init__(self, folder: Path) -> None:
        """What lies in that folder is safe."""
        super().__init__()
        self.erased: set[str] = set()
        """The names of files that are on the medium still, where it was not told yet that they are erased."""
        self._folder = os.fsencode(folder)
        self._on_medium: dict[bytes, int] = {}
        self.medium.know(self._folder)
        self._look_around()

    def _look_around(self) -> None:
        self._on_medium = {entry.path: entry.inode() for entry in os.scandir(self._folder)}
        self.erased.clear()

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
    """One run of a storage over a folder: what is done to its queue, and what has become of it.

    Each method raises Died when the disk let the process die, whoever has caught that first.
    """

    def __init__(self, folder: Path, settings: QueueSettings, pace: Pace, disk: MortalDisk, items: State = ()) -> None:
        self.folder = folder
        self.disk = disk
        self.history = History(items)
        self._settings = settings
        self._pace = pace
        self._jobs = cycle(pace.jobs)
        self._numbers = count(1)
        self._clock = Clock()
        self._threads = SteppedThreads()
        self._storage = JournalStorage(
            os.fsencode(folder), self._clock, self._threads, reserve_bytes=1, now_ms=lambda: NOW_MS, disk=disk
        )
        self._has_let_go = False
        self._live: IQueueStorage | None = None
        self._deleted: list[IQueueStorage] = []
        self._committed: list[object] = [None]
        """What the last commit came to, or nothing yet."""
        self._filled: list[object] | None = None
        """What the fill under way has come to, or nothing yet; None if there is none."""
        self._quiet: list[tuple[float, int]] = []
        """The latest times at which no job waited, and what was acknowledged by then."""

    def _do(self, call: Callable[..., Any], *args: object) -> Any:
        result = call(*args)
        self._look_alive()
        return result

    def _look_alive(self) -> None:
        if self.disk.is_dead:
            raise Died

    def _wait(self, results: list[object]) -> object:
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
        self._look_alive()
        return self._wait(results)

    # Beginning and end.

    def begin(self) -> None:
        """Start, and let everything happen that a start leads to."""
        loaded = self._result_of(self._storage.start(lambda name: self._settings))
        assert isinstance(loaded, dict)
        assert not [each for each in loaded.values() if isinstance(each, Failure)]
        self._run(ALL)

    def end(self) -> None:
        """Stop in order."""
        self.commit()
        self._wait(self._committed)
        self._result_of(self._storage.close())
        self._has_let_go = True
        self.history.synced = self.history.acknowledged

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

    # What is done to the queue.

    @property
    def queue(self) -> IQueueStorage:
        """The live queue."""
        if self._live is None:
            self._live = self._do(self._storage.queue, NAME, self._settings)
        return self._live

    def put(self, items: int = 1) -> None:
        for _ in range(items):
            number = next(self._numbers)
            self.history.put(number)
            self._do(self._storage.put, [self.queue], *item_of(number))

    def get(self, items: int = 1) -> None:
        for _ in range(items):
            self._take(False)

    def get_from_memory(self, at_most: int) -> None:
        """Take what is there without waiting, and ask for the next, which may come whenever it likes."""
        for _ in range(at_most):
            item = self._do(self.queue.take, False)
            if item is None:
                break
            self.history.take(number_of(item), 0)
        self._ask_for_head()

    def open(self) -> int:
        """Open the head; returns the xid."""
        item = self._take(True)
        assert item is not None
        return item.xid

    def confirm(self, *xids: int) -> None:
        for xid in xids:
            self.history.confirm(xid)
        assert self._do(self.queue.confirm, xids) == len(xids)

    def continue_(self, *xids: int) -> None:
        for xid in xids:
            number = next(number for number in self._numbers if not is_put_off(ADD_MS + number))
            self.history.continue_(xid, number)
            self._do(self.queue.continue_, xid, *item_of(number))

    def put_back(self, *xids: int) -> None:
        for xid in reversed(xids):
            self.history.put_back(xid)
        self._do(self.queue.put_back, xids, True)

    def clear(self) -> None:
        self.history.clear()
        self._do(self.queue.clear)

    def delete(self) -> None:
        self.history.delete()
        deleted, self._live, self._filled = self.queue, None, None
        self._deleted.append(deleted)
        self._do(self._storage.delete, deleted)

    def take_whatever_is_there(self, opened: bool) -> State:
        """The whole queue, which is empty then."""
        assert self.queue.open_reads == 0
        counted = self.queue.items
        found: list[int] = []
        while (item := self._head(opened)) is not None:
            found.append(number_of(item))
        assert len(found) == counted
        assert (self.queue.items, self.queue.bytes) == (0, 0)
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
            item = self._do(self.queue.take, opened)
            if item is not None or not self.queue.items:
                return item
            self._ask_for_head()
            if self._filled is not None:
                self.commit()
                self._wait(self._filled)
                self._filled = None
        raise AssertionError("the head does not come into memory")

    def _ask_for_head(self) -> None:
        if self._filled is None:
            loading = self.queue.fill()
            if loading is not None:
                self._filled = []
                loading.addBoth(self._filled.append)
            self._look_alive()

    # Steps.

    def commit(self) -> None:
        """Begin to make safe what was recorded, once the commit before is acknowledged."""
        self._wait(self._committed)
        place = self.history.recorded
        queues = [*self._deleted] if self._live is None else [*self._deleted, self._live]
        self._deleted.clear()
        committed = self._committed = []

        def acknowledge(_: object) -> None:
            if not self.disk.is_dead:
                self.history.acknowledge(place)

        outcomes = [outcome for _, outcome in self._storage.commit(queues)]
        safe = gatherResults(outcomes, consumeErrors=True)
        safe.addCallbacks(acknowledge, lambda failure: failure.value.subFailure).addBoth(committed.append)
        self._look_alive()

    def step(self) -> None:
        """A step is over."""
        self.commit()
        if not self._pace.overlaps:
            self._wait(self._committed)
        self._do(self._clock.advance, STEP_S)
        self._run(next(self._jobs))
        self._note_what_is_synced()

    def _run(self, jobs: int) -> None:
        """Let so many jobs of the threads be done, or as many as there are."""
        while jobs and len(self._threads):
            self._do(self._threads.run_one)
            self._do(self._clock.advance, 0)
            jobs -= 1

    def _note_what_is_synced(self) -> None:
        """What was acknowledged a period ago is synced when no job has waited then, and none waits now."""
        if len(self._threads):
            return
        now = self._clock.seconds()
        self._quiet.append((now, self.history.acknowledged))
        while self._quiet[0][0] + PERIOD_S <= now:
            self.history.synced = self._quiet.pop(0)[1]


# Scenarios.

Scenario: TypeAlias = Callable[[Life], Iterator[None]]
"""What happens to a queue; each yield ends a step."""


def many_puts_then_a_drain(life: Life) -> Iterator[None]:
    for _ in range(5):
        life.put(4)
        yield
    while life.history.items:
        life.get(4)
        yield


def puts_and_plain_gets_interleaved_at_a_depth(life: Life) -> Iterator[None]:
    life.put(4)
    yield
    life.put(5)
    yield
    for _ in range(5):
        life.put()
        life.get()
        yield
        life.get()
        life.put()
        yield


def open_reads_held_across_everything_then_confirmed_or_put_back(life: Life) -> Iterator[None]:
    life.put(4)
    held = [life.open()]
    yield
    for _ in range(4):
        life.put(3)
        held.append(life.open())
        yield
        life.get()
        yield
    life.put_back(held[3], held[1])
    yield
    life.confirm(held[0])
    again = life.open()
    yield
    life.put_back(held[4])
    life.confirm(again)
    yield
    life.get(3)
    yield


def emptied_again_and_again(life: Life) -> Iterator[None]:
    for each in range(5):
        life.put(2)
        yield
        if each % 2:
            life.get(2)
        else:
            life.get()
            xid = life.open()
            yield
            life.confirm(xid)
        yield


def clear_in_the_middle_of_a_backlog(life: Life) -> Iterator[None]:
    for puts in (3, 1):
        for _ in range(puts):
            life.put(5)
            yield
        held = life.open()
        life.get_from_memory(at_most=5)
        yield
        life.clear()
        yield
        life.put(2)
        life.put_back(held)
        yield
        life.clear()
        life.put()
        yield
        life.get()
        yield


def delete_and_re_create(life: Life) -> Iterator[None]:
    for _ in range(4):
        life.put(4)
        yield
    life.open()
    life.get_from_memory(at_most=5)
    life.delete()
    life.put(5)
    yield
    for _ in range(2):
        life.put(5)
        yield
    life.get(2)
    yield
    life.delete()
    yield
    life.put(2)
    yield
    life.get(2)
    yield


def drain_while_more_is_put(life: Life) -> Iterator[None]:
    for _ in range(3):
        life.put(4)
        yield
    while life.history.items:
        life.get()
        life.put()
        yield
        life.get(2)
        yield


def open_reads_only_and_many(life: Life) -> Iterator[None]:
    held: list[int] = []
    for _ in range(6):
        life.put(2)
        held += [life.open(), life.open()]
        yield
    life.confirm(*held[3:6])
    yield
    life.put_back(held[10], held[2], held[0])
    yield
    held += [life.open(), life.open(), life.open()]
    yield
    life.confirm(*held[11:])
    yield
    life.put_back(held[1])
    life.get()
    yield


def work_that_goes_on_in_steps(life: Life) -> Iterator[None]:
    for _ in range(3):
        life.put(4)
        yield
    for _ in range(5):
        held = [life.open(), life.open(), life.open()]
        yield
        life.continue_(held[1], held[0])
        yield
        life.get()
        life.continue_(held[2])
        yield


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (
        many_puts_then_a_drain,
        puts_and_plain_gets_interleaved_at_a_depth,
        open_reads_held_across_everything_then_confirmed_or_put_back,
        emptied_again_and_again,
        clear_in_the_middle_of_a_backlog,
        delete_and_re_create,
        drain_while_more_is_put,
        open_reads_only_and_many,
        work_that_goes_on_in_steps,
    )
}


# What is left.


def files_under(folder: Path) -> dict[str, bytes]:
    """The files of a queue folder with their contents, by their paths in it; not the lock and the reserve."""
    paths = (os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names)
    return {path[len(str(folder)) + 1 :]: contents_of(path) for path in paths if not path.endswith(NO_JOURNALS)}


def contents_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """A folder with these files."""
    folder.mkdir(exist_ok=True)
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)


class Restarts:
    """What starts find in folders. The same files are started over once only."""

    def __init__(self) -> None:
        self._found: dict[frozenset[tuple[str, bytes]], State] = {}

    def found_in(self, folder: Path) -> State:
        """The items that a start finds there. The folder is used up by that."""
        files = frozenset(files_under(folder).items())
        if files not in self._found:
            self._found[files] = self._start_twice(folder)
        shutil.rmtree(folder)
        return self._found[files]

    def _start_twice(self, folder: Path) -> State:
        """What the first start finds, which opens every item and stops, and the second one has to find again."""
        first = self._start(folder, True)
        second = self._start(folder, False)
        assert first == second, f"a start found {first}, opened all of it and stopped, and the next one found {second}"
        return first

    def _start(self, folder: Path, opened: bool) -> State:
        life = Life(folder, tiny(None), PACES["threads run at once"], MortalDisk(folder))
        try:
            life.begin()
            found = life.take_whatever_is_there(opened)
            life.end()
        finally:
            life.bury()
        return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for a great many small files: in memory, where the system has one there."""
    memory = "/dev/shm"
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def _frozen() -> Iterator[None]:
    """What was there before is not looked at when garbage is collected."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _last_words(_frozen: None) -> Iterator[None]:
    """What Deferreds of the dead have to say, because nobody handled their failure, they say now and not later."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def restarts() -> Restarts:
    """Shared, since many a death leaves the same files."""
    return Restarts()


# Deaths.


def in_short(states: list[State]) -> str:
    """The first and the last of them."""
    return " ".join(map(str, states if len(states) < 8 else [*states[:4], "...", *states[-3:]]))


class Trial:
    """A scenario under certain settings, to be lived through until its end or a death, over files with these items."""

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        sync_journal_ms: int | None,
        pace: Pace,
        *,
        files: dict[str, bytes] | None = None,
        items: State = (),
        make_disk: Callable[[Path], MortalDisk] = MortalDisk,
    ) -> None:
        self._folders = (folder / f"queues-{number}" for number in count())
        self._scenario = scenario
        self._sync_journal_ms = sync_journal_ms
        self._pace = pace
        self._files = files or {}
        self._items = items
        self._make_disk = make_disk

    def live(self, die_after: int | None = None) -> Life:
        """The whole of it, or as far as it goes; whatever was open is closed."""
        folder = next(self._folders)
        write_files(folder, self._files)
        disk = self._make_disk(folder)
        if die_after is not None:
            disk.die_after(die_after)
        life = Life(folder, tiny(self._sync_journal_ms), self._pace, disk, self._items)
        try:
            life.begin()
            for _ in self._scenario(life):
                life.step()
            life.end()
        except Died:
            pass
        finally:
            life.bury()
        return life

    def check(self, life: Life, restarts: Restarts) -> None:
        """Restart over what that life has left."""
        for who, folder in self._left_by(life):
            promised = life.history.promised(self._sync_journal_ms, has_machine_died="machine" in who)
            found = restarts.found_in(folder)
            assert found in promised, (
                f"when the {who} after {len(life.disk.calls)} operations of the disk, the last being"
                f" {' '.join(life.disk.calls[-8:])}, a start found {found}; the queue was {in_short(promised)}"
            )

    def _left_by(self, life: Life) -> Iterator[tuple[str, Path]]:
        """What is left in the folder, and what the medium may hold of it.

        A system may write out what it was not asked to sync, in any order: what was erased before what was renamed,
        and the folder before the files.
        """
        folder, disk = os.fsencode(life.folder), life.disk
        yield "machine died", self._left_on(disk, folder)
        if disk.erased:
            left = self._left_on(disk, folder)
            for name in disk.erased:
                (left / name).unlink()
            yield "machine died, not all of whose folder was written out,", left
        disk.medium.folder_synced(folder)
        yield "machine died, all of whose folder was written out,", self._left_on(disk, folder)
        yield "process died", life.folder

    def _left_on(self, disk: MortalDisk, folder: bytes) -> Path:
        left = next(self._folders)
        disk.medium.copy(folder, os.fsencode(left))
        return left

    def check_every_death(self, restarts: Restarts) -> None:
        """Die before each operation of the disk, and at the end."""
        whole = self.live()
        assert not whole.disk.is_dead
        self.check(whole, restarts)
        for calls in range(len(whole.disk.calls)):
            life = self.live(calls)
            assert life.disk.is_dead, "the same life has had fewer operations this time"
            self.check(life, restarts)


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_wherever_the_process_or_the_machine_dies_the_queue_is_there_once_and_in_order(
    folder: Path, restarts: Restarts, scenario: Scenario, sync_journal_ms: int | None, pace: Pace
) -> None:
    Trial(folder, scenario, sync_journal_ms, pace).check_every_death(restarts)


# The harness itself: a storage that breaks its word is found out.


class LyingDisk(MortalDisk):
    """Says that it has synced a file, and has not."""

    def sync(self, descriptor: int) -> None:
        self._check("sync")


class ForgetfulDisk(MortalDisk):
    """Says that it has written, and every other time it has not."""

    def write(self, descriptor: int, data: bytes) -> None:
        if self.calls.count("write") % 2:
            self._check("write")
        else:
            super().write(descriptor, data)


class RepeatingDisk(MortalDisk):
    """Writes everything twice."""

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data)
        super().write(descriptor, data)


class SwappingDisk(MortalDisk):
    """Writes the second before the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._first: bytes | None = None

    def write(self, descriptor: int, data: bytes) -> None:
        if self._first is None:
            self._first = data
            self._check("write")
        else:
            super().write(descriptor, data)
            super().write(descriptor, self._first)
            self._first = None


def too_little_for_a_second_file(life: Life) -> Iterator[None]:
    for _ in range(4):
        life.put()
        yield
    life.get()
    yield


@pytest.mark.parametrize(
    ("make_disk", "sync_journal_ms", "who"),
    [
        (LyingDisk, 0, "machine"),
        (LyingDisk, 500, "machine"),
        (ForgetfulDisk, None, "process"),
        (RepeatingDisk, None, "process"),
        (SwappingDisk, None, "process"),
    ],
)
def test_what_a_disk_does_wrong_is_found_out(
    folder: Path, restarts: Restarts, make_disk: Callable[[Path], MortalDisk], sync_journal_ms: int | None, who: str
) -> None:
    pace = PACES["threads run at once"]
    trial = Trial(folder, too_little_for_a_second_file, sync_journal_ms, pace, make_disk=make_disk)
    with pytest.raises(AssertionError, match=f"the {who} died.* a start found"):
        trial.check_every_death(restarts)


@pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
def test_a_disk_that_does_nothing_wrong_is_not_found_out(
    folder: Path, restarts: Restarts, sync_journal_ms: int | None
) -> None:
    pace = PACES["threads run at once"]
    Trial(folder, too_little_for_a_second_file, sync_journal_ms, pace).check_every_death(restarts)


# Each byte of a write.


def a_record_of_each_kind(life: Life) -> None:
    life.put(3)
    held = life.open()
    life.get()
    life.put_back(held)
    life.confirm(life.open())
    life.continue_(life.open())


@pytest.mark.parametrize("pace", [PACES["threads run at once"], PACES["threads run seldom"]], ids=["at once", "seldom"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_of_a_write_that_was_cut_short_at_any_byte_the_whole_records_count(
    folder: Path, restarts: Restarts, scenario: Scenario, pace: Pace
) -> None:
    queues = folder / "queues"
    write_files(queues, {})
    life = Life(queues, tiny(None), pace, MortalDisk(queues))
    before: list[tuple[dict[str, bytes], dict[int, str]]] = []
    try:
        life.begin()
        for _ in scenario(life):
            life.step()
        a_record_of_each_kind(life)
        acknowledged = life.history.acknowledged
        life.disk.before("write", lambda: before.append((files_under(life.folder), names_by_inode(life.folder))))
        life.commit()
    finally:
        life.bury()
    (files, names), after = before[0], names_by_inode(life.folder)
    written = {
        name: (life.folder / after[inode]).read_bytes()[len(files[name]) :]
        for inode, name in names.items()
        if inode in after
    }
    ((name, appended),) = [(name, appended) for name, appended in written.items() if appended]
    states = life.history.states[acknowledged:]
    assert len(appended) >= len(states) > 1
    for size in range(len(appended) + 1):
        left = folder / "left"
        write_files(left, {**files, name: files[name] + appended[:size]})
        found = restarts.found_in(left)
        assert found in states, f"after {size} of {len(appended)} bytes a start found {found}, not one of {states}"
        del states[: states.index(found)]
        assert size or found == states[0]
    assert found == life.history.states[-1]


def names_by_inode(folder: Path) -> dict[int, str]:
    """The files in a folder, by what they keep when they are renamed."""
    return {path.stat().st_ino: path.name for path in folder.iterdir() if path.is_file()}


# A start that dies.


def records(*numbers: int) -> bytes:
    """These items, put."""
    return b"".join(addx(*item_of(number)) for number in numbers)


class Ruin(NamedTuple):
    """What was left of a queue, and the items that a start finds in it. Their numbers are greater than a life's."""

    items: State
    files: dict[str, bytes]


PACK = {
    "work.1000": records(1001, 1002, 1003) + open_(7),
    "work.2000": open_(8) + REMOVE + records(1004, 1005),
    "work.2000.pack": records(1001) + open_(7) + records(1002) + open_(8) + records(1004, 1005),
}

RUINS = {
    "a last record that is cut short": Ruin(
        (1001, 1002, 1003), {"work": records(1001, 1002) + open_(1) + records(1003, 1004)[:-7]}
    ),
    "zeros at the end": Ruin((1002,), {"work": records(1001, 1002) + REMOVE + bytes(99)}),
    "a temporary file": Ruin((1001,), {"work": records(1001), "work~~123": records(1002, 1003)[:-1]}),
    "a temporary file alone": Ruin((), {"work~~123": records(1001)}),
    "open reads": Ruin(
        (1002, 1001, 1003, 1004), {"work": records(1003, 1002, 1001) + open_(6) + open_(3) + open_(5) + records(1004)}
    ),
    "a pack and what it replaces": Ruin(
        (1001, 1002, 1004, 1005, 1006), {**PACK, "work.3000": records(1006), "work": records(1007)[:-1]}
    ),
    "a pack and a part of what it replaces": Ruin(
        (1002, 1004, 1005),
        {"work.2000": PACK["work.2000"], "work.2000.pack": PACK["work.2000.pack"], "work": b"\6\7\0\0\0"},
    ),
    "two packs": Ruin(
        (1001, 1002, 1004, 1005, 1006), {**PACK, "work.1500.pack": PACK["work.1000"], "work": records(1006)}
    ),
    "damage in a rotated file": Ruin(
        (1001, 1002, 1004, 1005),
        {"work.1000": records(1001, 1002) + b"\xff" + records(1003), "work.2000": records(1004), "work": records(1005)},
    ),
    "a rotated file that is no journal": Ruin(
        (1001, 1002), {"work.1000": records(1001), "work.2000": b"\xffsomething else", "work": records(1002)}
    ),
    "no current file": Ruin((1001, 1002), {"work.1000": records(1001), "work.2000": records(1002)}),
    "files of a deleted queue": Ruin((1001,), {"work": records(1001), ".kestrel/erase/17": records(1002)}),
    "many rotated files": Ruin(
        tuple(range(1004, 1013)),
        {
            **{f"work.{number}": records(number) + REMOVE * (number < 1004) for number in range(1001, 1012)},
            "work": records(1012),
        },
    ),
    "all of it": Ruin(
        (1001, 1002, 1004, 1005, 1006, 1008),
        {
            **PACK,
            "work.3000": records(1006) + b"\xff" + records(1007),
            "work": records(1008, 1009)[:-9],
            "work~~123": records(1010),
            ".kestrel/erase/17": records(1011),
            ".kestrel/damaged/work.3000.5": b"an older copy",
        },
    ),
}


def nothing_more(life: Life) -> Iterator[None]:
    yield


def a_little_more(life: Life) -> Iterator[None]:
    life.put()
    yield
    life.get()
    life.put()
    yield


@pytest.mark.parametrize("scenario", [nothing_more, a_little_more])
@pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_a_start_that_dies_anywhere_is_taken_up_by_the_next(
    folder: Path, restarts: Restarts, ruin: Ruin, sync_journal_ms: int | None, scenario: Scenario
) -> None:
    pace = PACES["threads run at once"]
    trial = Trial(folder, scenario, sync_journal_ms, pace, files=ruin.files, items=ruin.items)
    trial.check_every_death(restarts)


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_starts_that_die_one_after_the_other_each_a_little_later_are_taken_up_by_the_next(
    folder: Path, restarts: Restarts, ruin: Ruin
) -> None:
    write_files(folder, ruin.files)
    for calls in count():
        disk = MortalDisk(folder)
        disk.die_after(calls)
        life = Life(folder, tiny(0), PACES["threads run at once"], disk)
        try:
            life.begin()
        except Died:
            continue
        finally:
            life.bury()
        break
    assert restarts.found_in(folder) == ruin.items
