"""How long the reactor is kept from other work while a storage does its heaviest work under traffic.

    python -m benchmarks.reactor

A storage runs under the real reactor, with real threads and files, while a little traffic goes on. Two journals of a
gigabyte: one of small items that fill the window, which is rewritten, or flushed; one of larger items that is read
behind, which is packed. Two scrolls of ten million small items: one that gets its checkpoint and its hint, another
reader, and is read forward faster than its window is long; and one that is released, and flushed. They are loaded
before, and most are deleted after. A timer of a millisecond says how late it comes.
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
from kestrel.server.reactor import use_monotonic_time
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
"""Are put, and as many taken, each time,"""

MANY_TAKES: Final = 64
"""and that many where items are read forward."""

SMALL_BYTES: Final = 64
LARGE_BYTES: Final = 1024
PATIENCE_S: Final = 120.0


class Sizes(NamedTuple):
    """How much is measured."""

    max_memory_bytes: int
    max_journal_bytes: int
    scroll_items: int
    checkpoints_every_s: float
    """How often a scroll writes what it writes from time to time."""
    phase_s: float
    """How long a phase is watched at least."""
    repeats: int

    @property
    def settings(self) -> QueueSettings:
        """Those of a queue whose journal is kept small."""
        return QueueSettings(
            max_memory_size_bytes=self.max_memory_bytes, max_journal_size_bytes=self.max_journal_bytes
        )

    @property
    def patient_settings(self) -> QueueSettings:
        """The same, but the journal may grow."""
        return QueueSettings(max_memory_size_bytes=self.max_memory_bytes, max_journal_size_bytes=1 << 50)


FULL: Final = Sizes(128 * MIB, GIB, 10_000_000, CHECKPOINTS_EVERY_S, 2.0, 3)
SHORT: Final = Sizes(8 * MIB, 64 * MIB, 400_000, 0.5, 0.3, 1)


class Traffic:
    """Puts to and takes from a queue, a little at each call."""

    def __init__(self, reactor: Any, storage: IStorage, item_bytes: int) -> None:
        self._reactor = reactor
        self._storage = storage
        self._data = bytes(item_bytes)
        self._call: IDelayedCall | None = None
        self.queue: Any = None
        """Which one; None for no traffic."""
        self.takes = TRAFFIC_ITEMS

    def start(self) -> None:
        """Begin, and go on to the end."""
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
                loading.addErrback(lambda _: None)  # the next call tries again
                break
        self._storage.commit((queue,))

    def stop(self) -> None:
        """No more of it."""
        if self._call is not None:
            self._call.cancel()


class Plan(NamedTuple):
    """A storage's files, and what is done with their queue: names of `Scene`'s steps."""

    storage: str
    item_bytes: int
    make: Callable[[Path, Sizes, int], None]
    steps: tuple[str, ...]


def _make_spent(folder: Path, sizes: Sizes, seed: int) -> None:
    """The items of a window that is nearly full, after many others that were taken."""
    window = sizes.max_memory_bytes // SMALL_BYTES * 19 // 20
    put_bytes = SMALL_BYTES + ADDX_HEADER_BYTES
    spent = (sizes.max_journal_bytes - window * put_bytes) // (put_bytes + len(REMOVE_RECORD))
    with JournalMaker(folder, seed, SMALL_BYTES, file_bytes=sizes.max_memory_bytes) as maker:
        maker.put(spent)
        maker.remove(spent)
        maker.put(window)


def _make_read_behind(folder: Path, sizes: Sizes, seed: int) -> None:
    """A queue that is read behind, half of it read by now."""
    items = sizes.max_journal_bytes // LARGE_BYTES * 5 // 4
    with JournalMaker(folder, seed, LARGE_BYTES, file_bytes=sizes.max_memory_bytes) as maker:
        maker.put(items)
        maker.remove(items * 11 // 20)


def _make_scroll(folder: Path, sizes: Sizes, seed: int) -> None:
    """Many items that nobody has read."""
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
    """A storage over a made journal, its traffic, and the heartbeat of its reactor."""

    def __init__(self, reactor: Any, threads: ThreadPool, folder: Path, sizes: Sizes, plan: Plan) -> None:
        self._reactor = reactor
        self._sizes = sizes
        self._folder = os.fsencode(folder)
        in_thread = partial(deferToThreadPool, reactor, threads)
        self._storage = make_storage(plan.storage, folder, reactor, in_thread)
        self._traffic = Traffic(reactor, self._storage, plan.item_bytes)
        self.heartbeat = Heartbeat(reactor)

    async def run(self, steps: Sequence[str]) -> None:
        """Load the queue, and do these steps."""
        self.heartbeat.start()
        self.heartbeat.phase("idle")
        await self._watch()
        self.heartbeat.phase("loading")
        queues = await self._storage.start(lambda _: self._sizes.patient_settings)
        queue = queues.pop(QUEUE)
        if isinstance(queue, Failure):
            queue.raiseException()
        self._traffic.queue = queue
        del queue  # the traffic alone keeps it, so that it can be freed
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
                raise TimeoutError("it did not come to an end")
            await deferLater(self._reactor, 0.01)

    def _queue(self) -> Any:
        return self._storage.queue(QUEUE, self._sizes.patient_settings)

    def _is_erased(self) -> bool:
        return not os.listdir(self._folder + b"/" + ERASE_FOLDER)

    async def make_smaller(self) -> None:
        """From now on the journal is to be small: its files are replaced, and the old ones erased."""
        queue: Any = self._storage.queue(QUEUE, self._sizes.settings)
        await self._watch(lambda: queue.rewrites + queue.packs > 0 and self._is_erased())

    async def flush(self) -> None:
        """Drop every item."""
        queue = self._queue()
        queue.clear()
        self._storage.commit((queue,))
        await self._watch()

    async def write_hint(self) -> None:
        """Wait for what a scroll does from time to time."""
        path = hint_path(self._folder, stem_of(QUEUE))
        await self._watch(lambda: os.path.exists(path))

    async def make_child(self) -> None:
        """Another reader comes."""
        child = self._storage.queue(QUEUE + b"+child", self._sizes.patient_settings)
        self._storage.commit((child,))
        await self._watch()

    async def read_forward(self) -> None:
        """Take as fast as items come from the files, for as long as a phase lasts."""
        self._traffic.takes = MANY_TAKES
        await self._watch()
        self._traffic.takes = TRAFFIC_ITEMS

    async def take_behind(self) -> None:
        """Hold the head, and go on: what is taken is beyond it."""
        self._queue().take(True)
        await self.read_forward()

    async def release(self) -> None:
        """Let half of the ids be done."""
        queue = self._queue()
        ranges = IItemRanges(queue)
        ranges.release((ranges.first_id + ranges.next_id) // 2)
        self._storage.commit((queue,))
        await self._watch()

    async def delete_scroll(self) -> None:
        """Delete the queue, with all that it has."""
        self._traffic.queue = self._storage.queue(b"other", self._sizes.settings)
        for name in (QUEUE + b"+child", QUEUE):
            queue = self._storage.queue(name, self._sizes.patient_settings)
            self._storage.delete(queue)
            self._storage.commit((queue,))
        stem = stem_of(QUEUE) + b"."
        await self._watch(lambda: not any(name.startswith(stem) for name in os.listdir(self._folder)))

    async def delete(self) -> None:
        """Delete the queue, and have its memory freed. The traffic goes on elsewhere."""
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
    """Run the plan of that number to its end in this process's reactor; returns the beats of its phases."""
    plan = PLANS[number]
    reactor: Any = import_module("twisted.internet.reactor")  # the one of this very process
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
    """All plans, each several times, each time over a new journal in a fresh process."""
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
