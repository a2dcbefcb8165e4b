"""Memory and files of a scroll for ids that are done out of order, behind a reader that is stuck.

    python -m benchmarks.slow_reader

In two cases all ten million items of a queue are taken, except one open read at its head, or many open reads far from
each other. In two more cases items are put to two children in turn: to both, and to one alone. That child takes
everything. Its sibling opens its first item, and takes either nothing else or everything after it.

The benchmark records the number of ranges of done ids and the size of the reader file. Checkpoints happen at regular
intervals. At the end the process exits without a stop, and a fresh one starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import (
    MB,
    Column,
    Results,
    in_fresh_process,
    options_parser,
    progress,
    require_room,
    resident_bytes,
    scratch_folder,
)
from benchmarks.journals import ADD_MS, QUEUE
from benchmarks.storages import SCROLL, Opened, bytes_in, make_backlog
from kestrel.config.units import GIB, MIB

ITEM_BYTES: Final = 64
BATCH: Final = 64
SLOW: Final = QUEUE + b"+slow"
FAST: Final = QUEUE + b"+fast"

COLUMNS: Final = (
    Column("case", "held, and taken"),
    Column("items", "items", ",d"),
    Column("held", "held", ",d"),
    Column("done_ranges", "most ranges", ",d"),
    Column("reader_file_kib", "largest reader file, KiB", ",.1f"),
    Column("memory_mib", "memory grown, MiB", ",.1f"),
    Column("take_us", "us of CPU a take", ",.2f"),
    Column("mb_on_disk", "MB on disk", ",.0f"),
    Column("start_s", "start then, s", ",.3f"),
    Column("start_cpu_s", "of CPU", ",.3f"),
    Column("mb_read", "MB read", ",.1f"),
    Column("done_ranges_then", "ranges then", ",d"),
    Column("memory_mib_then", "memory, MiB", ",.1f"),
    Column("items_then", "items then", ",d"),
    Column("drain_cpu_s", "to take them, s of CPU", ",.3f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    items: int
    held_every: int
    """The distance between open reads, where there are many."""
    child_items: int
    """Items put to the children, half of them to one child alone."""
    checkpoint_items: int
    """Items taken between two checkpoints."""
    disk_bytes: int
    """The disk space needed."""


FULL: Final = Sizes(10_000_000, 10_000, 2_000_000, 1_000_000, 2 * GIB)
SHORT: Final = Sizes(200_000, 1_000, 50_000, 70_000, GIB // 4)


class Slow:
    """The reader that is stuck, and the maximum that the storage kept for it."""

    def __init__(self, opened: Opened, name: bytes, sizes: Sizes) -> None:
        self._opened = opened
        self.queue: Any = opened.queue(name)
        self._sizes = sizes
        self._until_checkpoint = sizes.checkpoint_items
        self._before = resident_bytes()
        self.taken = self.held = 0
        self.cpu_s = 0.0
        self.most_ranges = self.most_file_bytes = self.most_memory_bytes = 0

    def hold(self) -> None:
        """Open the head and keep it open."""
        if self._opened.take(self.queue, opened=True) is None:
            raise ValueError("the queue has no item to open")
        self._opened.storage.commit((self.queue,))
        self.held += 1

    def take(self, count: int) -> None:
        """Take that many items."""
        queue, opened = self.queue, self._opened
        began = time.process_time()
        for _ in range(count):
            if opened.take(queue) is None:
                raise ValueError("the queue has no item to take")
        opened.storage.commit((queue,))
        self.cpu_s += time.process_time() - began
        self.taken += count
        self.gone_by(count)

    def gone_by(self, count: int) -> None:
        """Count that many items taken by any reader. Sample the sizes, and run a checkpoint if one is due."""
        self._until_checkpoint -= count
        self.look()
        if self._until_checkpoint <= 0:
            self._until_checkpoint = self._sizes.checkpoint_items
            self._opened.let_checkpoints_come()
            self.look()

    def look(self) -> None:
        """Sample the sizes, and keep the maximum."""
        self.most_ranges = max(self.most_ranges, len(self.queue.done))
        self.most_file_bytes = max(self.most_file_bytes, self.queue.file.size)
        self.most_memory_bytes = max(self.most_memory_bytes, resident_bytes() - self._before)


def hold_one(folder: Path, sizes: Sizes) -> Slow:
    """Open one read at the head, and take all items after it."""
    slow = Slow(Opened(SCROLL, folder), QUEUE, sizes)
    slow.hold()
    for start in range(1, sizes.items, BATCH):
        slow.take(min(BATCH, sizes.items - start))
    return slow


def hold_many(folder: Path, sizes: Sizes) -> Slow:
    """Open reads far from each other, and take all items between them."""
    slow = Slow(Opened(SCROLL, folder), QUEUE, sizes)
    for first in range(0, sizes.items, sizes.held_every):
        slow.hold()
        rest = min(sizes.held_every, sizes.items - first) - 1
        for start in range(0, rest, BATCH):
            slow.take(min(BATCH, rest - start))
    return slow


def child_stands_still(folder: Path, sizes: Sizes) -> Slow:
    """Let one child open its first item and take nothing else, while its sibling takes everything."""
    return _with_sibling(folder, sizes, takes=False)


def child_takes_behind(folder: Path, sizes: Sizes) -> Slow:
    """Let one child open its first item and take all items after it, while its sibling takes everything."""
    return _with_sibling(folder, sizes, takes=True)


def _with_sibling(folder: Path, sizes: Sizes, *, takes: bool) -> Slow:
    opened = Opened(SCROLL, folder)
    fast, slow = opened.queue(FAST), Slow(opened, SLOW, sizes)
    data = bytes(ITEM_BYTES)
    for _ in range(0, sizes.child_items, BATCH):
        for _ in range(BATCH // 2):
            opened.storage.put((slow.queue, fast), data, ADD_MS, 0)
            opened.storage.put((fast,), data, ADD_MS, 0)
        opened.storage.commit((slow.queue, fast))
        for _ in range(BATCH):
            if opened.take(fast) is None:
                raise ValueError("the queue has no item to take")
        opened.storage.commit((fast,))
        if not slow.held:
            slow.hold()
        if takes:
            slow.take(slow.queue.items)
        slow.gone_by(BATCH)
    return slow


class Case(NamedTuple):
    """The items that stay open and the items that are taken. `queue` is the measured queue."""

    name: str
    act: Callable[[Path, Sizes], Slow]
    queue: bytes


CASES: Final = (
    Case("one read, all behind it", hold_one, QUEUE),
    Case("many reads, all between them", hold_many, QUEUE),
    Case("a child's first, nothing", child_stands_still, SLOW),
    Case("a child's first, all behind it", child_takes_behind, SLOW),
)


class Kept(NamedTuple):
    """The maximum that was kept while items were taken."""

    held: int
    done_ranges: int
    reader_file_bytes: int
    memory_bytes: int
    take_cpu_s: float | None
    items: int
    """Items that are delivered again after a crash."""


class Start(NamedTuple):
    """The cost of a start, and what is kept after it."""

    seconds: float
    cpu_seconds: float
    bytes_read: int
    done_ranges: int
    memory_bytes: int
    drain_cpu_s: float


def use(folder: Path, case: Case, sizes: Sizes) -> Kept:
    """Run the case in this process, which then ends without a stop. Return the maximum that was kept."""
    slow = case.act(folder, sizes)
    return Kept(
        slow.held,
        slow.most_ranges,
        slow.most_file_bytes,
        slow.most_memory_bytes,
        slow.cpu_s / slow.taken if slow.taken else None,
        slow.queue.items + slow.held,
    )


def start(folder: Path, case: Case, items: int) -> Start:
    """Start over the files of a case, and take the remaining items. Return the cost."""
    before = resident_bytes()
    began, cpu_began = time.perf_counter(), time.process_time()
    opened = Opened(SCROLL, folder)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    memory_bytes, bytes_read = resident_bytes() - before, opened.disk.bytes_read
    queue = opened.queue(case.queue)
    done_ranges = len(queue.done)
    if queue.items != items:
        raise ValueError(f"there are {queue.items} items, not {items}")
    cpu_began = time.process_time()
    for number in range(1, items + 1):
        if opened.take(queue) is None:
            raise ValueError("an item is missing")
        if not number % BATCH:
            opened.storage.commit((queue,))
    drain_cpu_s = time.process_time() - cpu_began
    return Start(seconds, cpu_seconds, bytes_read, done_ranges, memory_bytes, drain_cpu_s)


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure all cases in turn, and add the results."""
    for number, case in enumerate(CASES):
        progress(f"slow_reader: {case.name}", number, len(CASES))
        with scratch_folder() as folder:
            items = sizes.child_items
            if case.queue == QUEUE:
                items = sizes.items
                make_backlog(SCROLL, folder, seed, ITEM_BYTES, items)
            kept = in_fresh_process(use, folder, case, sizes)
            bytes_on_disk = bytes_in(folder)
            started = in_fresh_process(start, folder, case, kept.items)
        progress("", 1, 1)
        _add(results, case, items, kept, bytes_on_disk, started)


def _add(results: Results, case: Case, items: int, kept: Kept, bytes_on_disk: int, started: Start) -> None:
    results.add(
        case=case.name,
        items=items,
        held=kept.held,
        done_ranges=kept.done_ranges,
        reader_file_kib=kept.reader_file_bytes / 1024,
        memory_mib=kept.memory_bytes / MIB,
        **({} if kept.take_cpu_s is None else {"take_us": kept.take_cpu_s * 1_000_000}),
        mb_on_disk=bytes_on_disk / MB,
        start_s=started.seconds,
        start_cpu_s=started.cpu_seconds,
        mb_read=started.bytes_read / MB,
        done_ranges_then=started.done_ranges,
        memory_mib_then=started.memory_bytes / MIB,
        items_then=kept.items,
        drain_cpu_s=started.drain_cpu_s,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    sizes = SHORT if options.short else FULL
    require_room(sizes.disk_bytes)
    with Results("slow_reader", COLUMNS, as_json=options.json) as results:
        measure(results, sizes, options.seed)


if __name__ == "__main__":
    main()
