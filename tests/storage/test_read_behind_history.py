"""A queue that is larger than its memory, whose journal is rotated and rewritten meanwhile, is still a plain queue.

`ReadBehindMachine` tries random histories of one or two queues with tiny limits against a model: threads end whenever
they like, limits change, the reactor goes on while a thread is in the middle of its job, and the server is stopped,
killed or loses its power, also in the middle of an operation. All that is asked is the contract
(`kestrel.storage.interfaces`), and all that is looked at are the files on the disk.

`python -m tests.torture.history` runs it for longer.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
from attrs import evolve
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.journal.fileset import group_by_queue
from kestrel.storage.interfaces import IQueueStorage, SettingsFor
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.contract.model_check import Seen, as_client_sees
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.threads import SteppedThreads
from tests.journal import reference
from tests.sample import examples

NOW_MS: Final = 1_700_003_600_000
RESERVE_BYTES: Final = 1
NAMES: Final = (b"work", b"other")
PERIOD_MS: Final = 500
REWRITE_DELAY_MS: Final = 1000
LONG_S: Final = 2.0
"""Longer than any delay and any period."""

ADDX_HEADER_BYTES: Final = 21
XID_RECORD_BYTES: Final = 5
ERRORS_BYTES: Final = 15
"""An opening, and a way back with so many errors."""
REMOVE_BYTES: Final = 1
CONTINUE_BYTES: Final = 4
"""What it takes more than the item alone."""

FILLER: Final = (b"\x02\x10\x00\x00\x00" + bytes(16) + b"\x01\x05\x01\x00\x00\x00" + b"\xff\x08") * 11
"""Data that look like records, to a reader who begins at a wrong offset."""

ALL: Final = 100_000
"""More items than any of these queues has."""

OPERATIONS: Final = ("list", "open", "write", "sync", "sync_folder", "cut", "rename", "erase", "allocate", "map")

MAX_FILLS: Final = 100
"""So often may the head be asked for before it must be there. Once is usual, but each fill reads on in one file, and
files that are tiny may hold no item."""

MAX_JOBS: Final = 1000
"""Whoever waits for more jobs than that waits for ever."""


def record_bytes(item: Seen) -> int:
    """What an item takes in a journal."""
    return ADDX_HEADER_BYTES + len(item[0])


def do_nothing() -> None:
    """Nothing."""


# A storage that runs.


class QuickDisk(FaultyDisk):
    """A disk on which the medium alone remembers what was synced: nothing here ends with the system itself."""

    def sync(self, descriptor: int) -> None:
        self._check("sync")
        self.medium.synced(descriptor)

    def sync_folder(self, path: bytes) -> None:
        self._check("sync_folder")
        self.medium.folder_synced(path)


class Threads(SteppedThreads):
    """Threads of which one knows whether they are at work. `at_end` is called when a job is done, but not told yet."""

    def __init__(self) -> None:
        super().__init__()
        self.is_working = False
        self.at_end: Callable[[], None] = do_nothing

    def __call__(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        return super().__call__(self._work, function, *args)

    def _work(self, function: Callable[..., Any], *args: object) -> Any:
        self.is_working = True
        try:
            result = function(*args)
            self.at_end()
            return result
        finally:
            self.is_working = False


class Outcome:
    """Whether a Deferred has fired, and its failure if it failed."""

    def __init__(self, deferred: Deferred[Any]) -> None:
        self.is_there = False
        self.result: object = None
        self.failure: Failure | None = None
        deferred.addBoth(self._fired)

    def _fired(self, result: object) -> None:
        self.is_there = True
        if isinstance(result, Failure):
            self.failure = result
        else:
            self.result = result


class Running:
    """A storage over a folder, and the words for waiting for it."""

    def __init__(self, folder: Path, clock: Clock, disk: FaultyDisk) -> None:
        self.folder = folder
        self.disk = disk
        self.threads = Threads()
        self._clock = clock
        self._is_closed = False
        self.storage = JournalStorage(
            os.fsencode(folder),
            clock,
            self.threads,
            reserve_bytes=RESERVE_BYTES,
            now_ms=lambda: NOW_MS + int(clock.seconds() * 1000),
            disk=disk,
        )

    def start(self, settings_for: SettingsFor) -> dict[bytes, IQueueStorage]:
        """The queues that there are."""
        queues = self.wait(Outcome(self.storage.start(settings_for)))
        assert isinstance(queues, dict)
        for queue in queues.values():
            assert not isinstance(queue, Failure), queue
            assert (queue.open_reads, queue.replayed_items) == (0, queue.items)
        return queues

    def run_all(self) -> None:
        """Do all jobs, and those that they lead to."""
        for _ in range(MAX_JOBS):
            if not self.threads:
                self._clock.advance(0)  # what was put off to the next turn of the reactor
                if not self.threads:
                    return
            self.threads.run_one()
        raise AssertionError("the jobs do not come to an end")

    def wait(self, outcome: Outcome) -> object:
        """Run jobs until that is there, and no longer."""
        for _ in range(MAX_JOBS):
            if outcome.is_there:
                break
            if self.threads:
                self.threads.run_one()
            else:
                self._clock.advance(0)
        assert outcome.is_there, "all threads have run, and it does not fire"
        if outcome.failure is not None:
            outcome.failure.raiseException()
        return outcome.result

    def head(
        self, queue: IQueueStorage, look: Callable[[], Item | None], filling: Outcome | None = None
    ) -> Item | None:
        """What a take or a peek answers when the head is in memory; `filling` is a fill that is under way."""
        for _ in range(MAX_FILLS):
            item = look()
            if item is not None:
                return item
            if filling is None:
                deferred = queue.fill()
                if deferred is None:
                    return look()
                filling = Outcome(deferred)
            self.wait(filling)
            filling = None
        raise AssertionError(f"after {MAX_FILLS} fills the head is not in memory")

    def drain(self, queue: IQueueStorage) -> Iterator[Item]:
        """Take every item for good."""
        while (item := self.head(queue, partial(queue.take, False))) is not None:
            yield item
        assert (queue.items, queue.bytes, queue.mem_items, queue.mem_bytes) == (0, 0, 0, 0)

    def close(self) -> None:
        """Stop; every descriptor has been given back then."""
        if self._is_closed:
            return
        self._is_closed = True
        self.wait(Outcome(self.storage.close()))
        assert not self.threads, "a job was begun that nobody waits for"
        assert not self.disk.open_descriptors

    def abandon(self) -> None:
        """Give back what can be, whatever state this is in."""
        with suppress(Exception):
            self.close()
        while self.disk.open_descriptors:
            os.close(self.disk.open_descriptors.pop())

    def file_bytes(self, name: bytes) -> int:
        """What the files of that queue take."""
        beginnings = (name + b".", name + b"~~")
        with os.scandir(os.fsencode(self.folder)) as entries:
            return sum(
                entry.stat().st_size for entry in entries if entry.name == name or entry.name.startswith(beginnings)
            )


# The model.


@dataclass(slots=True)
class Entry:
    """An item of the model. `came_back` says that it has been an open read, of this server or an earlier one."""

    seen: Seen
    put_at: int
    """The state of the history that it came with."""
    errors: int = 0
    """They are kept over restarts."""
    came_back: bool = False


@dataclass
class ModelQueue:
    """What a queue is: a list and a dict."""

    memory_limit: int
    """The greatest maxMemorySize that this object has had."""
    items: deque[Entry] = field(default_factory=deque)
    opened: dict[int, Entry] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)
    batch_bytes: int = 0
    """What was recorded since the last commit."""
    largest_batch_bytes: int = 0
    is_touched: bool = False
    """Whether something was recorded since the last commit."""

    def after_a_restart(self) -> list[Entry]:
        """The items then: open reads are back at the head, the lowest xid first."""
        return [*(self.opened[xid] for xid in sorted(self.opened)), *self.items]

    def end_batch(self) -> None:
        """What was recorded is being committed."""
        self.largest_batch_bytes = max(self.largest_batch_bytes, self.batch_bytes)
        self.batch_bytes = 0
        self.is_touched = False

    def live_bytes(self) -> int:
        """What a journal takes that holds this and nothing else."""
        items = sum(record_bytes(entry.seen) for entry in self.items)
        opened = sum(record_bytes(entry.seen) + XID_RECORD_BYTES for entry in self.opened.values())
        last_with_errors = max((place for place, entry in enumerate(self.items, 1) if entry.errors), default=0)
        counts = last_with_errors + sum(entry.errors > 0 for entry in self.opened.values())
        return items + opened + counts * ERRORS_BYTES


@dataclass(slots=True)
class State:
    """What a restart would find, with the errors of each, and how many of these items, all at the head, have been
    open reads."""

    items: tuple[Seen, ...] = ()
    errors: tuple[int, ...] = ()
    came_back: int = 0


class History:
    """All that the queue of one name has ever been, a state for each record, over deletions and restarts.

    A kill may leave any state from the last one that a commit answered for, `written`. A power failure may leave
    an earlier one, but none before the last that is known to have been synced. So whatever is lost is the end of
    the history, never a part of its middle.
    """

    def __init__(self) -> None:
        self.states = [State()]
        self.written = 0
        self.synced = 0
        self._deletion = -1

    @property
    def last(self) -> int:
        return len(self.states) - 1

    def add(self, model: ModelQueue) -> None:
        """Something was recorded."""
        entries = model.after_a_restart()
        came_back = len(model.opened) + sum(entry.came_back for entry in model.items)
        seen, errors = (entry.seen for entry in entries), (entry.errors for entry in entries)
        self.states.append(State(tuple(seen), tuple(errors), came_back))

    def delete(self) -> None:
        """The queue was deleted. No later server finds it; but until something is synced, a power failure does."""
        self.states.append(State())
        self._deletion = self.written = self.last

    def is_written(self, state: int) -> None:
        """Nothing up to there is lost when the server is killed."""
        self.written = max(self.written, state)

    def is_synced(self, state: int) -> None:
        """Nothing up to there is lost in a power failure. A deletion alone is not synced, what follows it is."""
        self.is_written(state)
        if state > self._deletion:
            self.synced = max(self.synced, state)

    def copy(self) -> History:
        copy = History()
        copy.states = self.states.copy()
        copy.written, copy.synced, copy._deletion = self.written, self.synced, self._deletion
        return copy

    def found(self, items: Sequence[Seen], errors: Sequence[int], since: int) -> State:
        """A crash left these items, which must be a state since that one. What came after it has never been."""
        state = State(tuple(items), tuple(errors))
        states = self.states[since:]
        matching = [
            number
            for number, each in enumerate(states, since)
            if (each.items, each.errors) == (state.items, state.errors)
        ]
        assert matching, (
            f"{len(items)} items were found ({_add_times_and_errors(state)} by add time and errors), which is none of"
            f" the states {[_add_times_and_errors(each) for each in states]}"
        )
        state.came_back = max(self.states[number].came_back for number in matching)
        del self.states[matching[-1] + 1 :]
        self.written = self.synced = self.last
        self._deletion = -1
        return state


def _add_times_and_errors(state: State) -> list[tuple[int, int]]:
    return [(item[1], errors) for item, errors in zip(state.items, state.errors, strict=True)]


@dataclass(eq=False)
class Live:
    """A queue's object and what the model makes of it."""

    name: bytes
    queue: IQueueStorage
    model: ModelQueue
    filling: Outcome | None = None
    commit: Outcome | None = None


# What may happen.


class Crash(Enum):
    """What ends a server out of turn."""

    KILL = "the server is killed"
    POWER_FAILURE = "the machine loses its power"


some_settings = st.builds(
    QueueSettings,
    max_memory_size_bytes=st.sampled_from([1, 50, 200, 1000]),
    max_journal_size_bytes=st.sampled_from([200, 1000, 5000]),
    default_journal_size_bytes=st.sampled_from([64, 500]),
    min_journal_compact_delay_ms=st.sampled_from([None, REWRITE_DELAY_MS]),
    sync_journal_ms=st.sampled_from([0, PERIOD_MS, None]),
)
some_queue = st.integers(0, 1)
some_count = st.sampled_from([1, 2, 5, 20, ALL])
some_xids = st.lists(st.integers(0, 6), min_size=1, max_size=4)
some_sizes = st.builds(lambda sizes, times: sizes * times, st.lists(st.integers(0, 300), min_size=1), st.integers(1, 5))

some_work = st.sampled_from(["fill", "work", "put back", "abort and hold"])
some_deed = some_work | st.sampled_from(["time", "return", "clear", "drain", "another sync", "delete", "restart"])
some_luck = st.sampled_from([False, False, True])
some_crash = st.sampled_from(Crash)


@dataclass
class Wreck:
    """What a crash left on the disk, what it may have been, and since when."""

    folder: Path
    histories: Mapping[bytes, History]
    since: Mapping[bytes, int]


def step(**draws: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A rule. The machine is not sound from when it begins until it has ended well."""

    def decorate(function: Callable[..., None]) -> Any:
        @wraps(function)
        def whole(self: ReadBehindMachine, **drawn: object) -> None:
            self.steps += 1
            self.is_sound = False
            function(self, **drawn)
            self.check()
            self.is_sound = True

        return rule(**draws)(whole)

    return decorate


class ReadBehindMachine(RuleBasedStateMachine):
    """Anything that may happen to one or two queues of a journal storage.

    `folder` is a folder of its own, which is gone after the teardown. An orderly restart goes on with the same disk,
    so that what was never synced is lost in a power failure even if several servers have had it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.steps = 0
        self.is_sound = False
        """Whether no step has failed: a teardown that failed as well would hide why."""
        folder.mkdir()
        self._folder = folder
        self._folders = 0
        self._clock = Clock()
        self._running = Running(self._new_folder(), self._clock, QuickDisk())
        self._names: Sequence[bytes] = ()
        self._settings: dict[bytes, QueueSettings] = {}
        self._live: dict[bytes, Live] = {}
        self._histories: dict[bytes, History] = {}
        self._deleted: list[IQueueStorage] = []
        """Objects of queues that the next commit will name for the last time."""
        self._orphans: list[Outcome] = []
        """What was under way for queues that have been deleted."""
        self._is_deleting: bytes | None = None
        self._largest_item = 0
        self._next_ms = 1

    @initialize(count=st.sampled_from([1, 2]), each=st.tuples(some_settings, some_settings))
    def begin(self, count: int, each: Sequence[QueueSettings]) -> None:
        self._names = NAMES[:count]
        self._settings = dict(zip(NAMES, each, strict=True))
        self._histories = {name: History() for name in self._names}
        self._start(self._running.folder, self._running.disk, {})
        self.is_sound = True

    # The queues.

    def _at(self, number: int) -> Live:
        """That queue, which is made when there is none."""
        name = self._names[number % len(self._names)]
        if name not in self._live:
            queue = self._running.storage.queue(name, self._settings[name])
            assert (queue.items, queue.bytes, queue.open_reads, queue.replayed_items) == (0, 0, 0, 0)
            self._live[name] = Live(name, queue, ModelQueue(self._settings[name].max_memory_size_bytes))
        return self._live[name]

    def _changed(self, live: Live, size: int) -> None:
        """A record of that size was recorded."""
        self._histories[live.name].add(live.model)
        live.model.batch_bytes += size
        live.model.is_touched = True

    @step(numbers=st.sets(some_queue, min_size=1), sizes=some_sizes, expires=st.booleans())
    def put(self, numbers: set[int], sizes: list[int], expires: bool) -> None:
        self._put(list({live.name: live for live in map(self._at, sorted(numbers))}.values()), sizes, expires)

    def _put(self, queues: Sequence[Live], sizes: Sequence[int], expires: bool) -> None:
        for size in sizes:
            self._next_ms += 1
            data = (b"%d;" % self._next_ms + FILLER)[:size]
            item = (data, self._next_ms, self._next_ms + 1000 if expires else 0)
            self._running.storage.put([live.queue for live in queues], *item)
            self._largest_item = max(self._largest_item, size)
            for live in queues:
                live.model.items.append(Entry(item, put_at=self._histories[live.name].last + 1))
                self._changed(live, record_bytes(item))

    @step(number=some_queue, opened=st.booleans(), count=some_count, waits=st.booleans())
    def take(self, number: int, opened: bool, count: int, waits: bool) -> None:
        self._take(self._at(number), opened, count, waits)

    @step(
        number=some_queue,
        sizes=some_sizes,
        opened=st.booleans(),
        count=some_count,
        closes=st.integers(0, 3),
        aborts=st.integers(0, 3),
        continues=st.integers(0, 3),
    )
    def work_and_commit(
        self, number: int, sizes: list[int], opened: bool, count: int, closes: int, aborts: int, continues: int
    ) -> None:
        """What a busy server does most of the time: put, take, close, abort and go on with some, and commit."""
        live = self._at(number)
        self._put([live], sizes, False)
        self._take(live, opened, count, False)
        self._confirm(live, list(live.model.opened)[:closes])
        self._put_back(live, list(live.model.opened)[:aborts], True)
        for xid in list(live.model.opened)[:continues]:
            self._continue(live, xid, sizes[0])
        self._commit()

    def _take(self, live: Live, opened: bool, count: int, waits: bool) -> None:
        for _ in range(count):
            item = self._look(live, partial(live.queue.take, opened), waits)
            if item is None:
                return
            model = live.model
            taken = model.items.popleft()
            assert (item.xid > 0) == opened
            if opened:
                assert item.xid not in model.given
                model.given.add(item.xid)
                model.opened[item.xid] = taken
            self._changed(live, XID_RECORD_BYTES if opened else REMOVE_BYTES)

    @step(number=some_queue, waits=st.booleans())
    def peek(self, number: int, waits: bool) -> None:
        live = self._at(number)
        item = self._look(live, live.queue.peek, waits)
        assert item is None or item.xid == 0

    def _look(self, live: Live, look: Callable[[], Item | None], waits: bool) -> Item | None:
        """Take or peek: the model's head, or None if there is none, or if it is not in memory and nobody waits."""
        head = live.model.items[0] if live.model.items else None
        item = look()
        if item is None and head is not None:
            if waits:
                filling, live.filling = live.filling, None
                item = self._running.head(live.queue, look, filling)
            elif not self._begins_to_fill(live):
                item = look()
            else:
                return None
        assert as_client_sees(item) == (head.seen if head else None)
        assert item is None or head is None or item.errors == head.errors
        return item

    def _begins_to_fill(self, live: Live) -> bool:
        """Ask for the head without waiting; False when take and peek tell the truth already."""
        self._notice()
        if live.filling is None:
            deferred = live.queue.fill()
            live.filling = None if deferred is None else Outcome(deferred)
        return live.filling is not None

    @step(number=some_queue)
    def fill(self, number: int) -> None:
        self._fill(self._at(number))

    def _fill(self, live: Live) -> None:
        if not self._begins_to_fill(live):
            head = live.model.items[0].seen if live.model.items else None
            assert as_client_sees(live.queue.peek()) == head

    def _some_open_reads(self, live: Live, which: Sequence[int]) -> list[int]:
        """These of the open reads, and an xid that never was, in the order drawn. Opens some if there are none."""
        if not live.model.opened:
            self._take(live, True, 3, False)
        xids = [*sorted(live.model.opened), 10**9]
        return [xids[index % len(xids)] for index in which]

    @step(number=some_queue, which=some_xids)
    def confirm(self, number: int, which: list[int]) -> None:
        live = self._at(number)
        self._confirm(live, self._some_open_reads(live, which))

    def _confirm(self, live: Live, xids: Sequence[int]) -> None:
        were_open = [xid for xid in dict.fromkeys(xids) if xid in live.model.opened]
        assert live.queue.confirm(xids) == len(were_open)
        for xid in were_open:
            del live.model.opened[xid]
            self._changed(live, XID_RECORD_BYTES)

    @step(number=some_queue, which=some_xids, size=st.integers(0, 300))
    def continue_(self, number: int, which: list[int], size: int) -> None:
        live = self._at(number)
        for xid in self._some_open_reads(live, which):
            self._continue(live, xid, size)

    def _continue(self, live: Live, xid: int, size: int) -> None:
        """Confirm and put at once; an xid that is not open, and nothing but an item is put."""
        self._next_ms += 2 if self._next_ms % 256 == 6 else 1  # 7 would be stored as 8: `IContinue`
        item = ((b"%d;" % self._next_ms + FILLER)[:size], self._next_ms, 0)
        assert isinstance(live.queue, JournalQueue)
        live.queue.continue_(xid, *item)
        self._largest_item = max(self._largest_item, size)
        live.model.opened.pop(xid, None)
        live.model.items.append(Entry(item, put_at=self._histories[live.name].last + 1))
        self._changed(live, record_bytes(item) + CONTINUE_BYTES)

    @step(number=some_queue, which=some_xids, failed=st.booleans())
    def put_back(self, number: int, which: list[int], failed: bool) -> None:
        live = self._at(number)
        self._put_back(live, list(dict.fromkeys(self._some_open_reads(live, which))), failed)
        self._look(live, live.queue.peek, False)

    def _put_back(self, live: Live, xids: list[int], failed: bool) -> None:
        live.queue.put_back(xids, failed)
        for xid in reversed(xids):
            entry = live.model.opened.pop(xid, None)
            if entry is not None:
                entry.errors += failed
                entry.came_back = True
                live.model.items.appendleft(entry)
                self._changed(live, XID_RECORD_BYTES if failed else 2 * XID_RECORD_BYTES)

    @step(number=some_queue, how=st.sampled_from(["clear", "delete", "delete and make again"]))
    def make_empty(self, number: int, how: str) -> None:
        live = self._at(number)
        if how == "clear":
            self._clear(live)
            return
        self._delete(live)
        if how == "delete and make again":
            self._at(number)

    def _clear(self, live: Live) -> None:
        live.queue.clear()
        while live.model.items:
            live.model.items.popleft()
            self._changed(live, REMOVE_BYTES)

    def _delete(self, live: Live) -> None:
        del self._live[live.name]
        self._histories[live.name].delete()
        self._is_deleting = live.name
        self._running.storage.delete(live.queue)
        self._is_deleting = None
        assert live.queue.failure is not None
        self._deleted.append(live.queue)
        self._orphans += [each for each in (live.filling, live.commit) if each is not None]

    @step(number=some_queue, new=some_settings)
    def change_settings(self, number: int, new: QueueSettings) -> None:
        self._change_settings(self._names[number % len(self._names)], new)

    def _change_settings(self, name: bytes, new: QueueSettings) -> None:
        self._settings[name] = new
        live = self._live.get(name)
        if live is not None:
            assert self._running.storage.queue(name, new) is live.queue
            live.model.memory_limit = max(live.model.memory_limit, new.max_memory_size_bytes)

    # Commits, threads and time.

    @step(numbers=st.sets(some_queue, min_size=1))
    def commit(self, numbers: set[int]) -> None:
        """Commit these queues, those with nothing to commit too."""
        names = [self._names[number] for number in sorted(numbers) if number < len(self._names)]
        self._commit_queues([live for name in names if (live := self._live.get(name)) is not None])

    def _commit(self) -> None:
        """Commit all queues that something was recorded on: what a server does at the end of a tick."""
        self._commit_queues([live for live in self._live.values() if live.model.is_touched])

    def _commit_queues(self, queues: Sequence[Live]) -> None:
        """Commit these queues, but for those whose earlier commit is pending."""
        queues = [live for live in queues if live.commit is None]
        at = {live.name: self._histories[live.name].last for live in queues}
        for live in queues:
            live.model.end_batch()
        deleted, self._deleted = self._deleted, []
        pairs = self._running.storage.commit([*(live.queue for live in queues), *deleted])
        waiting: list[Live] = []
        for group, deferred in pairs:
            members = [live for live in queues if any(each is live.queue for each in group)]
            assert len(members) + sum(any(each is queue for each in group) for queue in deleted) == len(group)
            waiting += members
            promises = [
                partial(self._is_safe, live, at[live.name], self._settings[live.name].sync_journal_ms == 0)
                for live in members
            ]
            outcome = Outcome(deferred.addCallback(_call_all, promises))
            for live in members:
                assert live.commit is None, "a queue is in two pairs"
                live.commit = outcome
            if not members:
                self._orphans.append(outcome)
        for live in queues:
            if live not in waiting:
                self._is_safe(live, at[live.name], self._settings[live.name].sync_journal_ms == 0)
        self._notice()

    def _is_safe(self, live: Live, state: int, is_synced: bool) -> None:
        """What a commit was asked for is done; it was promised to be synced if syncJournal was 0, and is still."""
        if self._live.get(live.name) is not live:
            return
        self._histories[live.name].is_written(state)
        if is_synced and self._settings[live.name].sync_journal_ms == 0:
            self._histories[live.name].is_synced(state)

    def _notice(self) -> None:
        """What was waited for is there."""
        for live in self._live.values():
            if live.commit is not None and live.commit.is_there:
                assert live.commit.failure is None, live.commit.failure
                live.commit = None
            if live.filling is not None and live.filling.is_there:
                assert live.filling.failure is None, live.filling.failure
                live.filling = None

    @precondition(lambda self: self.has_jobs)
    @step()
    def run_one_job(self) -> None:
        self._running.threads.run_one()

    @property
    def has_jobs(self) -> bool:
        """Whether a thread has something to do."""
        return bool(self._running.threads)

    @precondition(lambda self: self.has_jobs)
    @step()
    def run_all_jobs(self) -> None:
        self._run_all()

    def _run_all(self) -> None:
        """Run all jobs. Nobody waits for anything then."""
        self._running.run_all()
        self._notice()
        for live in self._live.values():
            assert live.commit is None, "all threads have run, and the commit does not fire"
            assert live.filling is None, "all threads have run, and the fill does not fire"
            assert live.queue.disk_bytes == self._running.file_bytes(live.name)
        assert all(outcome.is_there for outcome in self._orphans)
        self._orphans.clear()

    @step(seconds=st.sampled_from([0.2, LONG_S]))
    def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)

    @step()
    def let_the_syncs_catch_up(self) -> None:
        """Threads that are not behind, and a whole period: more than that is not lost in a power failure."""
        self._settle(PERIOD_MS / 1000)

    def _settle(self, seconds: float) -> None:
        self._run_all()
        self._clock.advance(seconds)
        self._run_all()
        for name in self._live:
            if self._settings[name].sync_journal_ms is not None:
                self._histories[name].is_synced(self._histories[name].written)

    @step(
        number=some_queue,
        first=some_work,
        deeds=st.lists(st.tuples(some_deed, st.integers(0, 2)), min_size=1, max_size=3),
        looks=st.booleans(),
    )
    def do_while_threads_are_behind(
        self, number: int, first: str, deeds: Sequence[tuple[str, int]], looks: bool
    ) -> None:
        """Do one thing after the other, with a few jobs run in between; and look at what is safe soon after."""
        for deed, jobs in [(first, 0), *deeds]:
            self._do(number, deed)
            self._commit()
            for _ in range(jobs):
                if self.has_jobs:
                    self._running.threads.run_one()
                    self._notice()
        self._look_at_the_head(number, looks)

    @step(
        number=some_queue,
        first=some_work,
        deed=some_deed.filter(lambda deed: deed not in {"restart", "drain"}),
        operations=st.integers(0, 4),
        looks=st.booleans(),
    )
    def do_during_a_job(self, number: int, first: str, deed: str, operations: int, looks: bool) -> None:
        """Let the reactor do something while a thread has done so many operations of the disk."""
        self._do(number, first)
        self._commit()
        self._clock.advance(PERIOD_MS / 1000)
        running = self._running

        def is_there() -> bool:
            return running.threads.is_working and next(left, None) is None

        def interrupt() -> None:
            self._do(number, deed)
            self._commit()

        left = iter(range(operations))
        with self._at_operation(is_there, interrupt):
            for _ in range(3):
                if self.has_jobs:
                    running.threads.run_one()
        self._look_at_the_head(number, looks)

    def _look_at_the_head(self, number: int, looks_at_wreck: bool) -> None:
        live = self._at(number)
        self._look(live, live.queue.peek, False)
        if looks_at_wreck:
            self._settle(PERIOD_MS / 1000)
            self._suffer(self._wreck(Crash.POWER_FAILURE), is_real=False)

    @contextmanager
    def _at_operation(self, when: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
        """Act once, when `when` says so: it is asked before each operation of the disk and at the end of each job."""
        disk, threads = self._running.disk, self._running.threads
        is_over = False

        def comes_to(operation: str | None) -> None:
            nonlocal is_over
            if is_over:
                return
            if when():
                is_over = True
                act()
            elif operation is not None:
                disk.before(operation, partial(comes_to, operation))

        for each in OPERATIONS:
            disk.before(each, partial(comes_to, each))
        threads.at_end = partial(comes_to, None)
        yield
        is_over = True
        threads.at_end = do_nothing

    def _do(self, number: int, deed: str) -> None:
        """Something that threads are likely to have to do with."""
        live = self._at(number)
        if deed == "work":
            self._put([live], [300] * 6, False)
            self._take(live, True, 1, False)
        elif deed == "fill":
            self._take(live, False, ALL, False)
            self._fill(live)
        elif deed == "time":
            self._clock.advance(PERIOD_MS / 1000)
        elif deed == "put back":
            self._put_back(live, self._some_open_reads(live, [1, 0]), True)
        elif deed == "return":
            self._put_back(live, self._some_open_reads(live, [0, 1]), False)
        elif deed == "abort and hold":
            self._put_back(live, self._some_open_reads(live, [0, 1]), True)
            self._take(live, True, 1, False)
        elif deed == "clear":
            self._clear(live)
        elif deed == "drain":
            self._take(live, False, ALL, True)
        elif deed == "another sync":
            is_never = self._settings[live.name].sync_journal_ms is None
            other = PERIOD_MS if is_never else None
            self._change_settings(live.name, evolve(self._settings[live.name], sync_journal_ms=other))
        elif deed == "delete":
            self._delete(live)
        elif deed == "restart":
            self._restart()

    # Stops and crashes.

    @step(looks=st.booleans())
    def restart(self, looks: bool) -> None:
        self._restart()
        if looks:
            self._suffer(self._wreck(Crash.POWER_FAILURE), is_real=False)

    @step(crash=some_crash, is_quiet=st.booleans(), is_real=some_luck)
    def crash(self, crash: Crash, is_quiet: bool, is_real: bool) -> None:
        """Look at what a crash would leave, and go on with it if it is a real one."""
        if is_quiet:
            self._settle(PERIOD_MS / 1000)
        self._suffer(self._wreck(crash), is_real)

    def _restart(self) -> None:
        disk, folder = self._running.disk, self._running.folder
        found = {}
        for name in self._live:
            state = self._histories[name].states[-1]
            assert state.items == tuple(entry.seen for entry in self._live[name].model.after_a_restart())
            found[name] = state
        self._running.close()
        for name in self._live:
            self._check_that_another_reader_finds_the_same(name)
            history = self._histories[name]
            history.is_written(history.last)
            if self._settings[name].sync_journal_ms is not None:
                history.is_synced(history.last)
        self._start(folder, disk, found)

    def _check_that_another_reader_finds_the_same(self, name: bytes) -> None:
        """The files are closed: so the items, open reads and errors in them are those of the model."""
        folder, model = self._running.folder, self._live[name].model
        files = group_by_queue(map(os.fsencode, os.listdir(folder)))[name].in_replay_order()
        contents = [(folder / os.fsdecode(file)).read_bytes() for file in files]
        queue = reference.replayed(*contents, now_ms=NOW_MS)
        assert queue.items == [entry.seen for entry in model.items]
        assert queue.errors == [entry.errors for entry in model.items]
        opened = {xid: (queue.opened[xid], queue.opened_errors[xid]) for xid in queue.opened}
        assert opened == {xid: (entry.seen, entry.errors) for xid, entry in model.opened.items()}

    @step(
        number=some_queue,
        crash=some_crash,
        during=some_deed,
        operations=st.integers(0, 9),
        is_real=some_luck,
    )
    def crash_during(self, number: int, crash: Crash, during: str, operations: int, is_real: bool) -> None:
        """Do something, and crash in the middle of it, after so many operations of the disk, if it comes to that."""
        wrecks: list[Wreck] = []
        left = iter(range(operations))
        with self._at_operation(lambda: next(left, None) is None, lambda: wrecks.append(self._wreck(crash))):
            self._do(number, during)
            self._commit()
            self._run_all()
        if wrecks:
            self._suffer(wrecks[0], is_real)

    def _wreck(self, crash: Crash) -> Wreck:
        """What is there when the server, or the machine, ends now."""
        folder = self._new_folder()
        if crash is Crash.KILL:
            shutil.copytree(self._running.folder, folder)
            since = {name: history.written for name, history in self._histories.items()}
        else:
            self._running.disk.medium.copy(os.fsencode(self._running.folder), os.fsencode(folder))
            since = {name: history.synced for name, history in self._histories.items()}
        if self._is_deleting is not None:
            since[self._is_deleting] = 0  # what is left is as it once was: docs/journal_format.md
        return Wreck(folder, {name: history.copy() for name, history in self._histories.items()}, since)

    def _suffer(self, wreck: Wreck, is_real: bool) -> None:
        """Look through what a crash left, to the end; if it is a real one, through a copy, and then start over it."""
        looked_in = wreck.folder
        if is_real:
            looked_in = self._new_folder()
            shutil.copytree(wreck.folder, looked_in)
        looked_at = self._look_through(looked_in)
        shutil.rmtree(looked_in)
        found: dict[bytes, State] = {}
        for name, history in wreck.histories.items():
            items = looked_at.get(name, [])
            state = history.found(
                [as_client_sees(item) for item in items], [item.errors for item in items], wreck.since[name]
            )
            if name in looked_at:
                found[name] = state
        assert looked_at.keys() == found.keys()
        if is_real:
            self._live = {}
            self._running.close()
            shutil.rmtree(self._running.folder)
            self._histories = dict(wreck.histories)
            self._start(wreck.folder, QuickDisk(), found)

    def _look_through(self, folder: Path) -> dict[bytes, list[Item]]:
        """What another server finds in that folder, and takes from it."""
        running = Running(folder, self._clock, QuickDisk())
        try:
            queues = running.start(self._settings.__getitem__)
            contents = {name: list(running.drain(queue)) for name, queue in queues.items()}
            running.close()
        finally:
            running.abandon()
        return contents

    def _new_folder(self) -> Path:
        self._folders += 1
        return self._folder / str(self._folders)

    def _start(self, folder: Path, disk: FaultyDisk, expected: Mapping[bytes, State]) -> None:
        """Start over that folder, in which there are these queues."""
        self._live = {}
        self._deleted = []
        self._orphans = []
        self._is_deleting = None
        self._running = Running(folder, self._clock, disk)
        queues = self._running.start(self._settings.__getitem__)
        assert queues.keys() == expected.keys()
        for name, queue in queues.items():
            state = expected[name]
            model = ModelQueue(self._settings[name].max_memory_size_bytes)
            for number, (item, errors) in enumerate(zip(state.items, state.errors, strict=True)):
                model.items.append(Entry(item, put_at=0, errors=errors, came_back=number < state.came_back))
            model.batch_bytes = 2 * XID_RECORD_BYTES * state.came_back
            self._live[name] = Live(name, queue, model)

    # What holds at any time, and at the end.

    def check(self) -> None:
        """What holds after every step."""
        self._notice()
        assert self._running.storage.refusal is None
        for live in self._live.values():
            queue, model = live.queue, live.model
            size = sum(len(entry.seen[0]) for entry in model.items)
            assert queue.failure is None
            assert (queue.items, queue.bytes, queue.open_reads) == (len(model.items), size, len(model.opened))
            assert all(queue.is_open(xid) == (xid in model.opened) for xid in [*model.given, 0, -1, 10**9])
            assert 0 <= queue.mem_items <= queue.items
            assert 0 <= queue.mem_bytes <= queue.bytes
            assert queue.mem_items < queue.items or queue.mem_bytes == queue.bytes
            assert queue.mem_bytes <= self._memory_bound(live)

    def _memory_bound(self, live: Live) -> int:
        """The most that may be in memory of a queue.

        - maxMemorySize, the greatest so far: a smaller one does not throw out what is there.
        - The largest item: there is no half of an item, and the head must come into memory whatever its size.
        - What has been an open read: it stands before items that come earlier in the files, so there is no place in
          a file from which it could be read in its turn. A restart changes nothing about that.
        - What is not safe yet: it can be nowhere else.
        """
        written = self._histories[live.name].written
        unbounded = sum(len(entry.seen[0]) for entry in live.model.items if entry.came_back or entry.put_at > written)
        return live.model.memory_limit + self._largest_item + unbounded

    def _check_disk_bound(self) -> None:
        """After two commits of next to nothing, each with time behind it, the files are not much larger than need be.

        A limit is looked at when something is written, and a rewriting that comes too early is left to a later
        commit: hence the two.
        """
        for _ in range(2):
            for live in self._live.values():
                is_empty = not live.model.items
                self._put([live], [0], False)
                if is_empty:
                    self._drain(live)
            self._commit()
            self._settle(LONG_S)
        for name, live in self._live.items():
            limits, model = self._settings[name], live.model
            bound = (
                2 * model.live_bytes()
                + limits.max_journal_size_bytes
                + limits.default_journal_size_bytes
                + limits.max_memory_size_bytes
                + model.largest_batch_bytes
            )
            assert self._running.file_bytes(name) <= bound

    def _drain(self, live: Live) -> None:
        """Take what is there, which is what the model holds, item by item."""
        for item in self._running.drain(live.queue):
            assert live.model.items, "there is an item too many"
            entry = live.model.items.popleft()
            assert (as_client_sees(item), item.errors) == (entry.seen, entry.errors)
            self._changed(live, REMOVE_BYTES)
        assert not live.model.items, "items are missing"

    def _end(self) -> None:
        """Nothing more happens: every item is there, once, and every file is closed."""
        self._run_all()
        self._commit()
        self._settle(PERIOD_MS / 1000)
        self._suffer(self._wreck(Crash.POWER_FAILURE), is_real=False)
        self._check_disk_bound()
        for live in self._live.values():
            self._put_back(live, list(live.model.opened), False)
            self._drain(live)
        self._commit()
        self._settle(LONG_S)
        self._check_disk_bound()
        self.check()
        self._running.close()

    def teardown(self) -> None:
        try:
            if self.is_sound:
                self._end()
        finally:
            self._running.abandon()
            shutil.rmtree(self._folder)


def _call_all(_: object, calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def run_histories(new_machine: Callable[[], ReadBehindMachine], *, examples: int, **options: Any) -> None:
    """Try that many histories. One that fails is made as short as can be, which takes its time, and told."""
    run_state_machine_as_test(
        new_machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            report_multiple_bugs=False,
            phases=set(Phase) - {Phase.explain},
            **options,
        ),
    )


def test_any_history_of_a_queue_beyond_its_memory_is_that_of_a_plain_model(tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())
    run_histories(lambda: ReadBehindMachine(next(folders)), examples=examples(50))
