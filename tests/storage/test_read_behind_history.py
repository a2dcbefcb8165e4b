"""A queue larger than its memory, whose journal is rotated and rewritten, behaves like a list and a dict.

`ReadBehindMachine` runs random histories of one or two queues with tiny limits and compares them with a model. Threads
end at any time, limits change, and the reactor runs in the middle of a thread's job. The server is stopped, killed or
loses its power, also in the middle of an operation. The test uses only the storage interface
(`kestrel.storage.interfaces`) and the files on the disk.

`python -m tests.torture.history` runs more histories.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
from attrs import evolve
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.journal.fileset import group_by_queue
from kestrel.storage.interfaces import IQueueStorage
from kestrel.storage.journal.queue import JournalQueue
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.faults import FaultyDisk, KillableDisk
from kestrel.testing.threads import SteppedThreads
from tests.journal import reference
from tests.sample import examples
from tests.storage.read_behind_model import (
    CONTINUE_BYTES,
    REMOVE_BYTES,
    XID_RECORD_BYTES,
    Entry,
    ModelQueue,
    State,
    StateHistory,
    as_client_sees,
    record_bytes,
)
from tests.storage.storage_harness import RunningStorage

NOW_MS: Final = 1_700_003_600_000
NAMES: Final = (b"work", b"other")
PERIOD_MS: Final = 500
REWRITE_DELAY_MS: Final = 1000
LONG_S: Final = 2.0
"""Longer than any delay and period."""

FILLER: Final = (b"\x02\x10\x00\x00\x00" + bytes(16) + b"\x01\x05\x01\x00\x00\x00" + b"\xff\x08") * 11
"""Data that look like records to a reader at a wrong offset."""

ALL: Final = 100_000
"""More items than any queue has."""

UNKNOWN_XID: Final = 10**9

DISK_OPERATIONS: Final = ("list", "open", "write", "sync", "sync_folder", "cut", "rename", "erase", "allocate", "map")


def do_nothing() -> None:
    pass


class InterruptibleThreads(SteppedThreads):
    """Threads that know whether a job is running. `at_end` is called between the end of a job and its Deferred."""

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


@dataclass(eq=False)
class ComparedQueue:
    """A queue of the storage and its model."""

    name: bytes
    queue: IQueueStorage
    model: ModelQueue
    filling: DeferredOutcome | None = None
    commit: DeferredOutcome | None = None


class Crash(Enum):
    """The kinds of crashes."""

    KILL = "the server is killed"
    POWER_FAILURE = "the machine loses its power"


@dataclass
class CrashedFolder:
    """The files that a crash left, and for each queue the histories and the first state that they may hold."""

    folder: Path
    histories: Mapping[bytes, StateHistory]
    since: Mapping[bytes, int]


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
some_action = some_work | st.sampled_from(["time", "return", "clear", "drain", "another sync", "delete", "restart"])
rarely = st.sampled_from([False, False, True])
some_crash = st.sampled_from(Crash)


def step(**draws: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Make a method a rule that checks the queues afterwards."""

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
    """Random operations on one or two queues of a journal storage.

    `folder` is created, and removed in the teardown. An orderly restart keeps the disk. So unsynced data are lost in a
    power failure even after several servers have used them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.steps = 0
        self.is_sound = False
        """True if no step has failed. After a failure the teardown checks nothing, as a second error would hide it."""
        folder.mkdir()
        self._folder = folder
        self._folders = 0
        self._clock = Clock()
        self._settings: dict[bytes, QueueSettings] = {}
        self._names: Sequence[bytes] = ()
        self._queues: dict[bytes, ComparedQueue] = {}
        self._histories: dict[bytes, StateHistory] = {}
        self._deleted: list[IQueueStorage] = []
        """Stores of deleted queues, which the next commit must name."""
        self._orphans: list[DeferredOutcome] = []
        """Pending fills and commits of deleted queues."""
        self._deleting: bytes | None = None
        """The name of the queue that is being deleted."""
        self._largest_item = 0
        self._next_ms = 1
        self._running = self._new_storage(self._new_folder(), KillableDisk())

    def _new_storage(self, folder: Path, disk: FaultyDisk) -> RunningStorage:
        return RunningStorage(
            folder,
            self._settings.__getitem__,
            clock=self._clock,
            disk=disk,
            threads=InterruptibleThreads(),
            now_ms=NOW_MS,
        )

    @initialize(count=st.sampled_from([1, 2]), each=st.tuples(some_settings, some_settings))
    def begin(self, count: int, each: Sequence[QueueSettings]) -> None:
        self._names = NAMES[:count]
        self._settings.update(zip(NAMES, each, strict=True))
        self._histories = {name: StateHistory() for name in self._names}
        self._start(self._running.folder, self._running.disk, {})
        self.is_sound = True

    # Operations on queues.

    def _at(self, number: int) -> ComparedQueue:
        """Return the queue of that number, which is created if necessary."""
        name = self._names[number % len(self._names)]
        if name not in self._queues:
            queue = self._running.storage.queue(name, self._settings[name])
            assert (queue.items, queue.bytes, queue.open_reads, queue.replayed_items) == (0, 0, 0, 0)
            self._queues[name] = ComparedQueue(name, queue, ModelQueue(self._settings[name].max_memory_size_bytes))
        return self._queues[name]

    def _recorded(self, compared: ComparedQueue, size: int) -> None:
        """Add the state of the model after a record of that size."""
        self._histories[compared.name].add(compared.model)
        compared.model.batch_bytes += size
        compared.model.is_touched = True

    @step(numbers=st.sets(some_queue, min_size=1), sizes=some_sizes, expires=st.booleans())
    def put(self, numbers: set[int], sizes: list[int], expires: bool) -> None:
        self._put(list({each.name: each for each in map(self._at, sorted(numbers))}.values()), sizes, expires)

    def _put(self, queues: Sequence[ComparedQueue], sizes: Sequence[int], expires: bool) -> None:
        for size in sizes:
            self._next_ms += 1
            data = (b"%d;" % self._next_ms + FILLER)[:size]
            item = (data, self._next_ms, self._next_ms + 1000 if expires else 0)
            self._running.storage.put([each.queue for each in queues], *item)
            self._largest_item = max(self._largest_item, size)
            for each in queues:
                each.model.items.append(Entry(item, put_at=self._histories[each.name].last + 1))
                self._recorded(each, record_bytes(item))

    @step(number=some_queue, opened=st.booleans(), count=some_count, waits=st.booleans())
    def take(self, number: int, opened: bool, count: int, waits: bool) -> None:
        self._take(self._at(number), opened, count, waits)

    @step(
        number=some_queue,
        sizes=some_sizes,
        opened=st.booleans(),
        count=some_count,
        confirms=st.integers(0, 3),
        aborts=st.integers(0, 3),
        continues=st.integers(0, 3),
    )
    def work_and_commit(
        self, number: int, sizes: list[int], opened: bool, count: int, confirms: int, aborts: int, continues: int
    ) -> None:
        """Do what a busy server does most of the time: put, take, confirm, abort, continue and commit."""
        compared = self._at(number)
        self._put([compared], sizes, False)
        self._take(compared, opened, count, False)
        self._confirm(compared, list(compared.model.opened)[:confirms])
        self._put_back(compared, list(compared.model.opened)[:aborts], True)
        for xid in list(compared.model.opened)[:continues]:
            self._continue(compared, xid, sizes[0])
        self._commit()

    def _take(self, compared: ComparedQueue, opened: bool, count: int, waits: bool) -> None:
        model = compared.model
        for _ in range(count):
            item = self._head(compared, partial(compared.queue.take, opened), waits)
            if item is None:
                return
            entry = model.items.popleft()
            assert (item.xid > 0) == opened
            if opened:
                assert item.xid not in model.xids
                model.xids.add(item.xid)
                model.opened[item.xid] = entry
            self._recorded(compared, XID_RECORD_BYTES if opened else REMOVE_BYTES)

    @step(number=some_queue, waits=st.booleans())
    def peek(self, number: int, waits: bool) -> None:
        compared = self._at(number)
        item = self._head(compared, compared.queue.peek, waits)
        assert item is None or item.xid == 0

    def _head(self, compared: ComparedQueue, look: Callable[[], Item | None], waits: bool) -> Item | None:
        """Return the result of a take or peek: the model's head, or None if there is none.

        Return None also if the head is not in memory and `waits` is false.
        """
        head = compared.model.items[0] if compared.model.items else None
        item = look()
        if item is None and head is not None:
            if waits:
                filling, compared.filling = compared.filling, None
                item = self._running.head(compared.queue, look, filling)
            elif not self._begin_fill(compared):
                item = look()
            else:
                return None
        assert as_client_sees(item) == (head.seen if head else None)
        assert item is None or head is None or item.errors == head.errors
        return item

    def _begin_fill(self, compared: ComparedQueue) -> bool:
        """Ask for the head without waiting. Return False if it is in memory or the queue is empty."""
        self._end_outcomes()
        if compared.filling is None:
            deferred = compared.queue.fill()
            compared.filling = None if deferred is None else DeferredOutcome(deferred)
        return compared.filling is not None

    @step(number=some_queue)
    def fill(self, number: int) -> None:
        self._fill(self._at(number))

    def _fill(self, compared: ComparedQueue) -> None:
        if not self._begin_fill(compared):
            head = compared.model.items[0].seen if compared.model.items else None
            assert as_client_sees(compared.queue.peek()) == head

    def _some_open_reads(self, compared: ComparedQueue, which: Sequence[int]) -> list[int]:
        """Return some xids of open reads and an unknown one, in the order drawn. Open items first if none are open."""
        if not compared.model.opened:
            self._take(compared, True, 3, False)
        xids = [*sorted(compared.model.opened), UNKNOWN_XID]
        return [xids[index % len(xids)] for index in which]

    @step(number=some_queue, which=some_xids)
    def confirm(self, number: int, which: list[int]) -> None:
        compared = self._at(number)
        self._confirm(compared, self._some_open_reads(compared, which))

    def _confirm(self, compared: ComparedQueue, xids: Sequence[int]) -> None:
        were_open = [xid for xid in dict.fromkeys(xids) if xid in compared.model.opened]
        assert compared.queue.confirm(xids) == len(were_open)
        for xid in were_open:
            del compared.model.opened[xid]
            self._recorded(compared, XID_RECORD_BYTES)

    @step(number=some_queue, which=some_xids, size=st.integers(0, 300))
    def continue_(self, number: int, which: list[int], size: int) -> None:
        compared = self._at(number)
        for xid in self._some_open_reads(compared, which):
            self._continue(compared, xid, size)

    def _continue(self, compared: ComparedQueue, xid: int, size: int) -> None:
        """Confirm an open read and put an item at the same moment. If the xid is not open, only put the item."""
        self._next_ms += 2 if self._next_ms % 256 == 6 else 1  # `IContinue` would store 7 as 8
        item = ((b"%d;" % self._next_ms + FILLER)[:size], self._next_ms, 0)
        assert isinstance(compared.queue, JournalQueue)
        compared.queue.continue_(xid, *item)
        self._largest_item = max(self._largest_item, size)
        compared.model.opened.pop(xid, None)
        compared.model.items.append(Entry(item, put_at=self._histories[compared.name].last + 1))
        self._recorded(compared, record_bytes(item) + CONTINUE_BYTES)

    @step(number=some_queue, which=some_xids, failed=st.booleans())
    def put_back(self, number: int, which: list[int], failed: bool) -> None:
        compared = self._at(number)
        self._put_back(compared, list(dict.fromkeys(self._some_open_reads(compared, which))), failed)
        self._head(compared, compared.queue.peek, False)

    def _put_back(self, compared: ComparedQueue, xids: list[int], failed: bool) -> None:
        compared.queue.put_back(xids, failed)
        for xid in reversed(xids):
            entry = compared.model.opened.pop(xid, None)
            if entry is not None:
                entry.errors += failed
                entry.was_open = True
                compared.model.items.appendleft(entry)
                self._recorded(compared, XID_RECORD_BYTES if failed else 2 * XID_RECORD_BYTES)

    @step(number=some_queue, how=st.sampled_from(["clear", "delete", "delete and create"]))
    def make_empty(self, number: int, how: str) -> None:
        compared = self._at(number)
        if how == "clear":
            self._clear(compared)
            return
        self._delete(compared)
        if how == "delete and create":
            self._at(number)

    def _clear(self, compared: ComparedQueue) -> None:
        compared.queue.clear()
        while compared.model.items:
            compared.model.items.popleft()
            self._recorded(compared, REMOVE_BYTES)

    def _delete(self, compared: ComparedQueue) -> None:
        del self._queues[compared.name]
        self._histories[compared.name].delete()
        self._deleting = compared.name
        self._running.storage.delete(compared.queue)
        self._deleting = None
        assert compared.queue.failure is not None
        self._deleted.append(compared.queue)
        self._orphans += [each for each in (compared.filling, compared.commit) if each is not None]

    @step(number=some_queue, new=some_settings)
    def change_settings(self, number: int, new: QueueSettings) -> None:
        self._change_settings(self._names[number % len(self._names)], new)

    def _change_settings(self, name: bytes, new: QueueSettings) -> None:
        self._settings[name] = new
        compared = self._queues.get(name)
        if compared is not None:
            assert self._running.storage.queue(name, new) is compared.queue
            compared.model.memory_limit = max(compared.model.memory_limit, new.max_memory_size_bytes)

    # Commits, threads and time.

    @step(numbers=st.sets(some_queue, min_size=1))
    def commit(self, numbers: set[int]) -> None:
        """Commit these queues, even without changes."""
        names = [self._names[number] for number in sorted(numbers) if number < len(self._names)]
        self._commit_queues([self._queues[name] for name in names if name in self._queues])

    def _commit(self) -> None:
        """Commit all changed queues, as a server does at the end of a tick."""
        self._commit_queues([each for each in self._queues.values() if each.model.is_touched])

    def _commit_queues(self, queues: Sequence[ComparedQueue]) -> None:
        """Commit these queues, except those with a pending commit."""
        queues = [each for each in queues if each.commit is None]
        states = {each.name: self._histories[each.name].last for each in queues}
        for each in queues:
            each.model.end_batch()
        deleted, self._deleted = self._deleted, []
        pending: list[ComparedQueue] = []
        for group, deferred in self._running.storage.commit([*(each.queue for each in queues), *deleted]):
            members = [each for each in queues if any(queue is each.queue for queue in group)]
            assert len(members) + sum(any(queue is each for queue in group) for each in deleted) == len(group)
            pending += members
            promises = [partial(self._end_commit, each, states[each.name], self._is_synced(each)) for each in members]
            outcome = DeferredOutcome(deferred.addCallback(_call_all, promises))
            for each in members:
                assert each.commit is None, "a queue is in two pairs"
                each.commit = outcome
            if not members:
                self._orphans.append(outcome)
        for each in queues:
            if each not in pending:
                self._end_commit(each, states[each.name], self._is_synced(each))
        self._end_outcomes()

    def _is_synced(self, compared: ComparedQueue) -> bool:
        return self._settings[compared.name].sync_journal_ms == 0

    def _end_commit(self, compared: ComparedQueue, state: int, was_synced: bool) -> None:
        """Record that a commit has ended. It was synced if syncJournal was 0 when it began and still is."""
        if self._queues.get(compared.name) is compared:
            self._histories[compared.name].mark_written(state)
            if was_synced and self._is_synced(compared):
                self._histories[compared.name].mark_synced(state)

    def _end_outcomes(self) -> None:
        """Forget the commits and fills that have ended. None may have failed."""
        for each in self._queues.values():
            if each.commit is not None and each.commit.is_there:
                each.commit.result()
                each.commit = None
            if each.filling is not None and each.filling.is_there:
                each.filling.result()
                each.filling = None

    @property
    def has_jobs(self) -> bool:
        return bool(self._running.threads)

    @precondition(lambda self: self.has_jobs)
    @step()
    def run_one_job(self) -> None:
        self._running.threads.run_one()

    @precondition(lambda self: self.has_jobs)
    @step()
    def run_all_jobs(self) -> None:
        self._run_all()

    def _run_all(self) -> None:
        """Run all jobs. All commits and fills must have ended then."""
        self._running.run_all()
        self._end_outcomes()
        for each in self._queues.values():
            assert each.commit is None, "all jobs have run, but the commit has not ended"
            assert each.filling is None, "all jobs have run, but the fill has not ended"
            assert each.queue.disk_bytes == self._running.file_bytes(each.name)
        assert all(outcome.is_there for outcome in self._orphans)
        self._orphans.clear()

    @step(seconds=st.sampled_from([0.2, LONG_S]))
    def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)

    @step()
    def let_the_syncs_catch_up(self) -> None:
        self._settle(PERIOD_MS / 1000)

    def _settle(self, seconds: float) -> None:
        """Run all jobs, let the time pass, and run all jobs. All written states are synced then."""
        self._run_all()
        self._clock.advance(seconds)
        self._run_all()
        for name in self._queues:
            if self._settings[name].sync_journal_ms is not None:
                self._histories[name].mark_synced(self._histories[name].written)

    @step(
        number=some_queue,
        first=some_work,
        actions=st.lists(st.tuples(some_action, st.integers(0, 2)), min_size=1, max_size=3),
        looks=st.booleans(),
    )
    def act_while_threads_are_behind(
        self, number: int, first: str, actions: Sequence[tuple[str, int]], looks: bool
    ) -> None:
        """Run several actions with a few jobs in between, and check the files of a crash soon after."""
        for action, jobs in [(first, 0), *actions]:
            self._do(number, action)
            self._commit()
            for _ in range(jobs):
                if self.has_jobs:
                    self._running.threads.run_one()
                    self._end_outcomes()
        self._check_head(number, looks)

    @step(
        number=some_queue,
        first=some_work,
        action=some_action.filter(lambda action: action not in {"restart", "drain"}),
        operations=st.integers(0, 4),
        looks=st.booleans(),
    )
    def act_during_a_job(self, number: int, first: str, action: str, operations: int, looks: bool) -> None:
        """Run an action on the reactor after a thread has done that many disk operations."""
        self._do(number, first)
        self._commit()
        self._clock.advance(PERIOD_MS / 1000)
        running = self._running

        def is_due() -> bool:
            return running.threads.is_working and next(left, None) is None

        def interrupt() -> None:
            self._do(number, action)
            self._commit()

        left = iter(range(operations))
        with self._at_operation(is_due, interrupt):
            for _ in range(3):
                if self.has_jobs:
                    running.threads.run_one()
        self._check_head(number, looks)

    def _check_head(self, number: int, looks_at_crash: bool) -> None:
        compared = self._at(number)
        self._head(compared, compared.queue.peek, False)
        if looks_at_crash:
            self._settle(PERIOD_MS / 1000)
            self._check_crash(self._crashed_folder(Crash.POWER_FAILURE))

    @contextmanager
    def _at_operation(self, is_due: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
        """Act once, as soon as `is_due` returns True. It is called before each disk operation and after each job."""
        disk, threads = self._running.disk, self._running.threads
        is_over = False

        def reached(operation: str | None) -> None:
            nonlocal is_over
            if is_over:
                return
            if is_due():
                is_over = True
                act()
            elif operation is not None:
                disk.before(operation, partial(reached, operation))

        for each in DISK_OPERATIONS:
            disk.before(each, partial(reached, each))
        threads.at_end = partial(reached, None)
        yield
        is_over = True
        threads.at_end = do_nothing

    def _do(self, number: int, action: str) -> None:
        """Run an action that is likely to cause jobs."""
        compared = self._at(number)
        if action == "work":
            self._put([compared], [300] * 6, False)
            self._take(compared, True, 1, False)
        elif action == "fill":
            self._take(compared, False, ALL, False)
            self._fill(compared)
        elif action == "time":
            self._clock.advance(PERIOD_MS / 1000)
        elif action == "put back":
            self._put_back(compared, self._some_open_reads(compared, [1, 0]), True)
        elif action == "return":
            self._put_back(compared, self._some_open_reads(compared, [0, 1]), False)
        elif action == "abort and hold":
            self._put_back(compared, self._some_open_reads(compared, [0, 1]), True)
            self._take(compared, True, 1, False)
        elif action == "clear":
            self._clear(compared)
        elif action == "drain":
            self._take(compared, False, ALL, True)
        elif action == "another sync":
            old = self._settings[compared.name]
            period_ms = PERIOD_MS if old.sync_journal_ms is None else None
            self._change_settings(compared.name, evolve(old, sync_journal_ms=period_ms))
        elif action == "delete":
            self._delete(compared)
        elif action == "restart":
            self._restart()

    # Stops and crashes.

    @step(looks=st.booleans())
    def restart(self, looks: bool) -> None:
        self._restart()
        if looks:
            self._check_crash(self._crashed_folder(Crash.POWER_FAILURE))

    @step(crash=some_crash, is_quiet=st.booleans(), is_real=rarely)
    def crash(self, crash: Crash, is_quiet: bool, is_real: bool) -> None:
        """Check the files that a crash would leave. If it is real, continue with them."""
        if is_quiet:
            self._settle(PERIOD_MS / 1000)
        self._check_crash(self._crashed_folder(crash), is_real)

    def _restart(self) -> None:
        disk, folder = self._running.disk, self._running.folder
        found = {}
        for name, compared in self._queues.items():
            found[name] = self._histories[name].states[-1]
            assert found[name].items == tuple(entry.seen for entry in compared.model.after_restart())
        self._running.close()
        for name, compared in self._queues.items():
            self._check_closed_files(name, compared.model)
            history = self._histories[name]
            history.mark_written(history.last)
            if self._settings[name].sync_journal_ms is not None:
                history.mark_synced(history.last)
        self._start(folder, disk, found)

    def _check_closed_files(self, name: bytes, model: ModelQueue) -> None:
        """Check that the reference reader finds the items, open reads and errors of the model."""
        folder = self._running.folder
        files = group_by_queue(map(os.fsencode, os.listdir(folder)))[name].in_replay_order()
        queue = reference.replayed(*((folder / os.fsdecode(file)).read_bytes() for file in files), now_ms=NOW_MS)
        assert queue.items == [entry.seen for entry in model.items]
        assert queue.errors == [entry.errors for entry in model.items]
        opened = {xid: (queue.opened[xid], queue.opened_errors[xid]) for xid in queue.opened}
        assert opened == {xid: (entry.seen, entry.errors) for xid, entry in model.opened.items()}

    @step(number=some_queue, crash=some_crash, during=some_action, operations=st.integers(0, 9), is_real=rarely)
    def crash_during(self, number: int, crash: Crash, during: str, operations: int, is_real: bool) -> None:
        """Crash after that many disk operations of an action, if it has so many."""
        crashed: list[CrashedFolder] = []
        left = iter(range(operations))
        with self._at_operation(lambda: next(left, None) is None, lambda: crashed.append(self._crashed_folder(crash))):
            self._do(number, during)
            self._commit()
            self._run_all()
        if crashed:
            self._check_crash(crashed[0], is_real)

    def _crashed_folder(self, crash: Crash) -> CrashedFolder:
        """Return the files that a crash would leave now."""
        folder = self._new_folder()
        if crash is Crash.KILL:
            shutil.copytree(self._running.folder, folder)
            since = {name: history.written for name, history in self._histories.items()}
        else:
            self._running.disk.medium.copy(os.fsencode(self._running.folder), os.fsencode(folder))
            since = {name: history.synced for name, history in self._histories.items()}
        if self._deleting is not None:
            since[self._deleting] = 0  # docs/journal_format.md: the rest may be any earlier state
        return CrashedFolder(folder, {name: history.copy() for name, history in self._histories.items()}, since)

    def _check_crash(self, crashed: CrashedFolder, is_real: bool = False) -> None:
        """Check all items that a crash left. If it is real, check a copy, and then start over the files."""
        checked = crashed.folder
        if is_real:
            checked = self._new_folder()
            shutil.copytree(crashed.folder, checked)
        contents = self._drained(checked)
        shutil.rmtree(checked)
        found: dict[bytes, State] = {}
        for name, history in crashed.histories.items():
            items = contents.get(name, [])
            state = history.restore(
                [as_client_sees(item) for item in items], [item.errors for item in items], crashed.since[name]
            )
            if name in contents:
                found[name] = state
        assert contents.keys() == found.keys()
        if is_real:
            self._queues = {}
            self._running.close()
            shutil.rmtree(self._running.folder)
            self._histories = dict(crashed.histories)
            self._start(crashed.folder, KillableDisk(), found)

    def _drained(self, folder: Path) -> dict[bytes, list[Item]]:
        """Start another server over the folder. Take and return all items."""
        running = self._new_storage(folder, KillableDisk())
        try:
            running.start()
            contents = {name: list(running.drain(queue)) for name, queue in running.loaded.items()}
            running.close()
        finally:
            running.abandon()
        return contents

    def _new_folder(self) -> Path:
        self._folders += 1
        return self._folder / str(self._folders)

    def _start(self, folder: Path, disk: FaultyDisk, expected: Mapping[bytes, State]) -> None:
        """Start over the folder, which must have exactly the expected queues."""
        self._queues = {}
        self._deleted = []
        self._orphans = []
        self._deleting = None
        self._running = self._new_storage(folder, disk).start()
        assert self._running.loaded.keys() == expected.keys()
        for name, queue in self._running.loaded.items():
            state = expected[name]
            model = ModelQueue(self._settings[name].max_memory_size_bytes)
            for number, (item, errors) in enumerate(zip(state.items, state.errors, strict=True)):
                model.items.append(Entry(item, put_at=0, errors=errors, was_open=number < state.were_open))
            model.batch_bytes = 2 * XID_RECORD_BYTES * state.were_open
            self._queues[name] = ComparedQueue(name, queue, model)

    # Checks.

    def check(self) -> None:
        """Compare the queues with their models."""
        self._end_outcomes()
        assert self._running.storage.refusal is None
        for compared in self._queues.values():
            queue, model = compared.queue, compared.model
            size = sum(len(entry.seen[0]) for entry in model.items)
            assert queue.failure is None
            assert (queue.items, queue.bytes, queue.open_reads) == (len(model.items), size, len(model.opened))
            assert all(queue.is_open(xid) == (xid in model.opened) for xid in [*model.xids, 0, -1, UNKNOWN_XID])
            assert 0 <= queue.mem_items <= queue.items
            assert 0 <= queue.mem_bytes <= queue.bytes
            assert queue.mem_items < queue.items or queue.mem_bytes == queue.bytes
            assert queue.mem_bytes <= self._memory_bound(compared)

    def _memory_bound(self, compared: ComparedQueue) -> int:
        """Return the most bytes of a queue that may be in memory. They are the sum of:

        - the largest maxMemorySize so far, since a smaller one removes nothing from memory;
        - the largest item, since the head must be in memory whatever its size;
        - items that were open reads, since they are delivered before items that come earlier in the files. A restart
          does not change that;
        - items that are not safe yet, since they are nowhere else.
        """
        written = self._histories[compared.name].written
        unbounded = sum(
            len(entry.seen[0]) for entry in compared.model.items if entry.was_open or entry.put_at > written
        )
        return compared.model.memory_limit + self._largest_item + unbounded

    def _check_disk_bound(self) -> None:
        """Check the size of the files after two small commits, each followed by a pause.

        Limits are checked at a write. A rewrite that would come too early is left to a later commit.
        """
        for _ in range(2):
            for compared in self._queues.values():
                was_empty = not compared.model.items
                self._put([compared], [0], False)
                if was_empty:
                    self._drain(compared)
            self._commit()
            self._settle(LONG_S)
        for name, compared in self._queues.items():
            limits, model = self._settings[name], compared.model
            bound = (
                2 * model.live_bytes()
                + limits.max_journal_size_bytes
                + limits.default_journal_size_bytes
                + limits.max_memory_size_bytes
                + model.largest_batch_bytes
            )
            assert self._running.file_bytes(name) <= bound

    def _drain(self, compared: ComparedQueue) -> None:
        """Take all items, and compare them with the model."""
        for item in self._running.drain(compared.queue):
            assert compared.model.items, "there is an item too many"
            entry = compared.model.items.popleft()
            assert (as_client_sees(item), item.errors) == (entry.seen, entry.errors)
            self._recorded(compared, REMOVE_BYTES)
        assert not compared.model.items, "items are missing"

    def _end(self) -> None:
        """Check that each item is there once, that the files become small, and that all files are closed."""
        self._run_all()
        self._commit()
        self._settle(PERIOD_MS / 1000)
        self._check_crash(self._crashed_folder(Crash.POWER_FAILURE))
        self._check_disk_bound()
        for compared in self._queues.values():
            self._put_back(compared, list(compared.model.opened), False)
            self._drain(compared)
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
    """Run that many histories. If one fails, report the shortest form that fails."""
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


def test_any_history_matches_the_model(tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())
    run_histories(lambda: ReadBehindMachine(next(folders)), examples=examples(50))
