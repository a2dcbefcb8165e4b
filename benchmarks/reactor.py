"""Delay of the reactor while a storage does its heaviest work under traffic.

    python -m benchmarks.reactor

A storage runs in a real reactor, with real threads and files, and with a little traffic. Two kinds of journals of 1 GB
are loaded first. One holds small items that fill the window; it is rewritten or flushed. The other holds larger items
and is read behind; it is packed. The two scrolls hold ten million small items. One writes its checkpoint and hint, gets
another reader, and is read faster than its window holds. The other is released and flushed. Most queues are deleted at
the end. A timer of one millisecond measures the delay.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from benchmarks.harness import (
    Column,
    Results,
    in_fresh_process,
    options_parser,
    percentile,
    progress,
    require_room,
    scratch_folder,
    spread,
)
from benchmarks.heartbeat import Beats, Heartbeat
from benchmarks.journals import ADD_MS, QUEUE, JournalMaker
from benchmarks.scrolls import ScrollMaker
from benchmarks.storages import JOURNAL, SCROLL, make_storage
from kestrel.config.model import QueueSettings
from kestrel.config.units import GIB, MIB
from kestrel.disk.folders import ERASE_FOLDER
from kestrel.journal.records import ADDX_HEADER_BYTES, REMOVE_RECORD
from kestrel.scroll.hints import hint_path
from kestrel.scroll.name_encoding import stem_of
from kestrel.server.process import use_monotonic_time
from kestrel.server.service import STORAGE_THREADS
from kestrel.storage.interfaces import IItemRanges, IStorage
from kestrel.storage.scroll.storage import CHECKPOINTS_EVERY_S

COLUMNS: Final = (
    Column("storage", "storage"),
    Column("item_bytes", "item", ",d"),
    Column("phase", "while"),
    Column("late_ms", "worst ms late", ",.1f"),
    Column("late_ms_least", "best run", ",.1f"),
    Column("late_ms_most", "worst run", ",.1f"),
    Column("late_ms_999", "99.9 %", ",.1f"),
    Column("busy_ms", "worst ms of CPU", ",.1f"),
    Column("busy_ms_999", "99.9 %", ",.1f"),
    Column("beats", "beats", ",d"),
)

TRAFFIC_S: Final = 0.001
TRAFFIC_ITEMS: Final = 8
"""Items put in each call, and usually also the number of items taken."""

MANY_TAKES: Final = 64
"""Items taken in each call while items are read from files."""

SMALL_BYTES: Final = 64
LARGE_BYTES: Final = 1024
PATIENCE_S: Final = 120.0


class Sizes(NamedTuple):
    """The amount of work."""

    max_memory_bytes: int
    max_journal_bytes: int
    scroll_items: int
    checkpoints_every_s: float
    """The interval of a scroll's checkpoints in seconds."""
    phase_s: float
    """The minimum duration of a phase in seconds."""
    repeats: int

    @property
    def settings(self) -> QueueSettings:
        """Settings of a queue whose journal is kept small."""
        return QueueSettings(
            max_memory_size_bytes=self.max_memory_bytes, max_journal_size_bytes=self.max_journal_bytes
        )

    @property
    def patient_settings(self) -> QueueSettings:
        """Settings of a queue whose journal may grow without a limit."""
        return QueueSettings(max_memory_size_bytes=self.max_memory_bytes, max_journal_size_bytes=1 << 50)


FULL: Final = Sizes(128 * MIB, GIB, 10_000_000, CHECKPOINTS_EVERY_S, 2.0, 3)
SHORT: Final = Sizes(8 * MIB, 64 * MIB, 400_000, 0.5, 0.3, 1)


class Traffic:
    """Traffic of a queue: a few puts and takes in each call."""

    def __init__(self, reactor: Any, storage: IStorage, item_bytes: int) -> None:
        self._reactor = reactor
        self._storage = storage
        self._data = bytes(item_bytes)
        self._call: IDelayedCall | None = None
        self.queue: Any = None
        """The queue; None for no traffic."""
        self.takes = TRAFFIC_ITEMS

    def start(self) -> None:
        """Put and take items now, and again every `TRAFFIC_S`."""
        self._call = self._reactor.callLater(TRAFFIC_S, self.start)
        queue = self.queue
        if queue is None:
            return
        for _ in range(TRAFFIC_ITEMS):
            self._storage.put((queue,), self._data, ADD_MS, 0)
        for _ in range(self.takes):
            if queue.take(False) is None:
                loading = queue.fill()
                if loading is None:
                    continue
                # The next call tries again.
                loading.addErrback(lambda _: None)
                break
        self._storage.commit((queue,))

    def stop(self) -> None:
        """Stop the traffic."""
        if self._call is not None:
            self._call.cancel()


class Plan(NamedTuple):
    """A storage's files, and the steps to run with its queue: keys of `STEPS`."""

    storage: str
    item_bytes: int
    make: Callable[[Path, Sizes, int], None]
    steps: tuple[str, ...]


def _make_spent(folder: Path, sizes: Sizes, seed: int) -> None:
    """Make a journal that holds a nearly full window of items, after many others that were taken."""
    window = sizes.max_memory_bytes // SMALL_BYTES * 19 // 20
    put_bytes = SMALL_BYTES + ADDX_HEADER_BYTES
    spent = (sizes.max_journal_bytes - window * put_bytes) // (put_bytes + len(REMOVE_RECORD))
    with JournalMaker(folder, seed, SMALL_BYTES, file_bytes=sizes.max_memory_bytes) as maker:
        maker.put(spent)
        maker.remove(spent)
        maker.put(window)


def _make_read_behind(folder: Path, sizes: Sizes, seed: int) -> None:
    """Make a journal that is read behind, with half of its items taken."""
    items = sizes.max_journal_bytes // LARGE_BYTES * 5 // 4
    with JournalMaker(folder, seed, LARGE_BYTES, file_bytes=sizes.max_memory_bytes) as maker:
        maker.put(items)
        maker.remove(items * 11 // 20)


def _make_scroll(folder: Path, sizes: Sizes, seed: int) -> None:
    """Make a scroll of many items that no reader has taken."""
    with ScrollMaker(folder, seed, SMALL_BYTES) as maker:
        maker.put(sizes.scroll_items)


PLANS: Final = (
    Plan(JOURNAL, SMALL_BYTES, _make_spent, ("rewriting", "collecting garbage")),
    Plan(JOURNAL, SMALL_BYTES, _make_spent, ("flushing",)),
    Plan(JOURNAL, LARGE_BYTES, _make_read_behind, ("packing", "collecting garbage")),
    Plan(SCROLL, SMALL_BYTES, _make_scroll, ("checkpoint and hint", "a child comes", "reading forward", "deleting")),
    Plan(SCROLL, SMALL_BYTES, _make_scroll, ("taking behind an open read", "releasing half", "flushing")),
)


class Scene:
    """A storage over prepared files, with its traffic and the heartbeat of its reactor."""

    def __init__(self, reactor: Any, threads: ThreadPool, folder: Path, sizes: Sizes, plan: Plan) -> None:
        self._reactor = reactor
        self._sizes = sizes
        self._folder = os.fsencode(folder)
        in_thread = partial(deferToThreadPool, reactor, threads)
        self._storage = make_storage(plan.storage, folder, reactor, in_thread)
        self._traffic = Traffic(reactor, self._storage, plan.item_bytes)
        self.heartbeat = Heartbeat(reactor)

    async def run(self, steps: Sequence[str]) -> None:
        """Load the queue, and run these steps."""
        self.heartbeat.start()
        self.heartbeat.phase("idle")
        await self._watch()
        self.heartbeat.phase("loading")
        queues = await self._storage.start(lambda _: self._sizes.patient_settings)
        queue = queues.pop(QUEUE)
        if isinstance(queue, Failure):
            queue.raiseException()
        self._traffic.queue = queue
        # Only the traffic keeps a reference, so that the queue can be freed.
        del queue
        self._traffic.start()
        self.heartbeat.phase("traffic alone")
        await self._watch()
        for step in steps:
            self.heartbeat.phase(step)
            await STEPS[step](self)
        self.heartbeat.stop()
        self._traffic.stop()
        await self._storage.close()

    async def _watch(self, is_over: Callable[[], bool] = lambda: True) -> None:
        ends_at = self._reactor.seconds() + self._sizes.phase_s
        gives_up_at = ends_at + PATIENCE_S
        while self._reactor.seconds() < ends_at or not is_over():
            if self._reactor.seconds() > gives_up_at:
                raise TimeoutError("the phase did not end in time")
            await deferLater(self._reactor, 0.01)

    def _queue(self) -> Any:
        return self._storage.queue(QUEUE, self._sizes.patient_settings)

    def _is_erased(self) -> bool:
        return not os.listdir(self._folder + b"/" + ERASE_FOLDER)

    async def make_smaller(self) -> None:
        """Lower the journal's size limit. Wait until its files are replaced and the old ones erased."""
        queue: Any = self._storage.queue(QUEUE, self._sizes.settings)
        await self._watch(lambda: queue.rewrites + queue.packs > 0 and self._is_erased())

    async def flush(self) -> None:
        """Drop all items."""
        queue = self._queue()
        queue.clear()
        self._storage.commit((queue,))
        await self._watch()

    async def write_hint(self) -> None:
        """Wait until the scroll has written its hint."""
        path = hint_path(self._folder, stem_of(QUEUE))
        await self._watch(lambda: os.path.exists(path))

    async def make_child(self) -> None:
        """Add a reader to the scroll."""
        child = self._storage.queue(QUEUE + b"+child", self._sizes.patient_settings)
        self._storage.commit((child,))
        await self._watch()

    async def read_forward(self) -> None:
        """Take items as fast as they are read from the files."""
        self._traffic.takes = MANY_TAKES
        await self._watch()
        self._traffic.takes = TRAFFIC_ITEMS

    async def take_behind(self) -> None:
        """Open the head, and take the items after it."""
        self._queue().take(True)
        await self.read_forward()

    async def release(self) -> None:
        """Release half of the ids."""
        queue = self._queue()
        ranges = IItemRanges(queue)
        ranges.release((ranges.first_id + ranges.next_id) // 2)
        self._storage.commit((queue,))
        await self._watch()

    async def delete_scroll(self) -> None:
        """Delete the scroll's queues, and wait until their files are erased."""
        self._traffic.queue = self._storage.queue(b"other", self._sizes.settings)
        for name in (QUEUE + b"+child", QUEUE):
            queue = self._storage.queue(name, self._sizes.patient_settings)
            self._storage.delete(queue)
            self._storage.commit((queue,))
        stem = stem_of(QUEUE) + b"."
        await self._watch(lambda: not any(name.startswith(stem) for name in os.listdir(self._folder)))

    async def delete(self) -> None:
        """Delete the queue, and wait until its memory is freed and its files are erased. Traffic uses another queue."""
        self._traffic.queue = self._storage.queue(b"other", self._sizes.settings)
        gc.collect()
        await self._watch()
        self.heartbeat.phase("deleting")
        self._storage.delete(self._storage.queue(QUEUE, self._sizes.settings))
        await self._watch(self._is_erased)
        self.heartbeat.phase("collecting garbage then")
        gc.collect()
        await self._watch()


STEPS: Final[Mapping[str, Callable[[Scene], Awaitable[None]]]] = {
    "rewriting": Scene.make_smaller,
    "packing": Scene.make_smaller,
    "flushing": Scene.flush,
    "collecting garbage": Scene.delete,
    "checkpoint and hint": Scene.write_hint,
    "a child comes": Scene.make_child,
    "reading forward": Scene.read_forward,
    "taking behind an open read": Scene.take_behind,
    "releasing half": Scene.release,
    "deleting": Scene.delete_scroll,
}


def play(folder: Path, sizes: Sizes, number: int) -> dict[str, Beats]:
    """Run the plan of that number in this process's reactor. Return the beats of its phases."""
    plan = PLANS[number]
    # The import must happen in the process that runs this reactor.
    reactor: Any = import_module("twisted.internet.reactor")
    use_monotonic_time(reactor)
    threads = ThreadPool(0, STORAGE_THREADS)
    threads.start()
    scene = Scene(reactor, threads, folder, sizes, plan)
    outcome: list[object] = []

    def over(result: object) -> None:
        outcome.append(result)
        threads.stop()
        reactor.stop()

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(scene.run(plan.steps)).addBoth(over))
    with mock.patch("kestrel.storage.scroll.storage.CHECKPOINTS_EVERY_S", sizes.checkpoints_every_s):
        reactor.run(installSignalHandlers=False)
    if isinstance(outcome[0], Failure):
        outcome[0].raiseException()
    return scene.heartbeat.phases


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Run each plan several times, each over new files in a fresh process. Add the results."""
    for number, plan in enumerate(PLANS):
        runs: list[dict[str, Beats]] = []
        for repeat in range(sizes.repeats):
            progress(f"reactor, {plan.storage}, {plan.item_bytes} B: {', '.join(plan.steps)}", repeat, sizes.repeats)
            with scratch_folder() as folder:
                plan.make(folder, sizes, seed)
                runs.append(in_fresh_process(play, folder, sizes, number))
        progress("", 1, 1)
        for phase in runs[0]:
            _add(results, plan, phase, [run[phase] for run in runs])


def _add(results: Results, plan: Plan, phase: str, runs: Sequence[Beats]) -> None:
    late = spread([max(run.late) for run in runs])
    results.add(
        storage=plan.storage,
        item_bytes=plan.item_bytes,
        phase=phase,
        late_ms=late.median,
        late_ms_least=late.least,
        late_ms_most=late.most,
        late_ms_999=spread([percentile(run.late, 99.9) for run in runs]).median,
        busy_ms=spread([max(run.busy) for run in runs]).median,
        busy_ms_999=spread([percentile(run.busy, 99.9) for run in runs]).median,
        beats=sum(len(run.late) for run in runs),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    sizes = SHORT if options.short else FULL
    require_room(4 * sizes.max_journal_bytes)
    with Results("reactor", COLUMNS, as_json=options.json) as results:
        measure(results, sizes, options.seed)


if __name__ == "__main__":
    main()
