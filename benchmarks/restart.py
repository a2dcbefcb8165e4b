"""Start time over a queue of ten million items, in each storage.

    python -m benchmarks.restart

Each storage starts after an orderly stop, after a crash some time after its last note for the next start (the
journal's checkpoint, the scroll's hint), and without notes. Each start runs in a fresh process with a warm page cache,
and the cases take turns. Then one item is taken. Bytes read are counted at the disk interface.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

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
    spread,
)
from benchmarks.journals import ADD_MS
from benchmarks.storages import JOURNAL, SCROLL, Opened, bytes_in, make_backlog
from kestrel.config.units import GIB, MIB
from kestrel.disk.folders import PRIVATE_FOLDER

ITEM_BYTES: Final = 64
BATCH: Final = 64

COLUMNS: Final = (
    Column("case", "start"),
    Column("items", "items", ",d"),
    Column("start_s", "s", ",.3f"),
    Column("start_s_least", "least", ",.3f"),
    Column("start_s_most", "most", ",.3f"),
    Column("cpu_s", "s of CPU", ",.3f"),
    Column("mb_read", "MB read", ",.1f"),
    Column("mb_on_disk", "MB on disk", ",.0f"),
    Column("memory_mib", "memory, MiB", ",.1f"),
    Column("first_get_ms", "first get, ms", ",.1f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    items: int
    since_hint: int
    """The number of items put between the last hint of a scroll and the crash."""
    repeats: int
    disk_bytes: int
    """The disk space needed."""


FULL: Final = Sizes(10_000_000, 1_000_000, 5, 6 * GIB)
SHORT: Final = Sizes(200_000, 20_000, 2, GIB // 2)


def leave_after_stop(storage: str, folder: Path, items: int) -> None:
    """Leave the files of a server that has stopped in order."""
    _opened(storage, folder, items).storage.close()


def leave_after_crash(storage: str, folder: Path, items: int, since_hint: int) -> None:
    """Leave the files of a server that wrote a scroll's hint, then stored that many puts, and crashed."""
    opened = _opened(storage, folder, items - since_hint)
    opened.let_checkpoints_come()
    queue, data = opened.queue(), bytes(ITEM_BYTES)
    for start in range(0, since_hint, BATCH):
        for _ in range(min(BATCH, since_hint - start)):
            opened.storage.put((queue,), data, ADD_MS, 0)
        opened.storage.commit((queue,))


def _opened(storage: str, folder: Path, items: int) -> Opened:
    opened = Opened(storage, folder)
    if opened.queue().items != items:
        raise ValueError("the queue does not hold the items that were put")
    return opened


def copy_files(source: Path, target: Path) -> None:
    """Make `target` hold the files of `source`. Queue files are links, because a start knows them by their inodes."""
    shutil.rmtree(target, ignore_errors=True)
    private = source / os.fsdecode(PRIVATE_FOLDER)

    def copy(path: str, copied: str) -> None:
        if Path(path).is_relative_to(private):
            shutil.copy2(path, copied)
        else:
            os.link(path, copied)

    shutil.copytree(source, target, copy_function=copy)


class Start(NamedTuple):
    """The cost of a start."""

    seconds: float
    cpu_seconds: float
    bytes_read: int
    memory_bytes: int
    first_get_s: float


def start(storage: str, folder: Path, items: int) -> Start:
    """Start over that folder, and take an item without committing. Return the cost."""
    before = resident_bytes()
    began, cpu_began = time.perf_counter(), time.process_time()
    opened = Opened(storage, folder)
    started, cpu_started = time.perf_counter(), time.process_time()
    memory_bytes, bytes_read = resident_bytes() - before, opened.disk.bytes_read
    queue = opened.queue()
    if queue.items != items:
        raise ValueError(f"there are {queue.items} items, not {items}")
    asked = time.perf_counter()
    if opened.take(queue) is None:
        raise ValueError("the head could not be taken")
    got = time.perf_counter()
    return Start(started - began, cpu_started - cpu_began, bytes_read, memory_bytes, got - asked)


class Case(NamedTuple):
    """A storage, and the way in which its last server ended. `leave` makes the files."""

    name: str
    storage: str
    leave: Callable[[str, Path, Sizes, int], object]


def _leave(storage: str, folder: Path, sizes: Sizes, seed: int) -> None:
    make_backlog(storage, folder, seed, ITEM_BYTES, sizes.items)


def _leave_stopped(storage: str, folder: Path, sizes: Sizes, seed: int) -> None:
    _leave(storage, folder, sizes, seed)
    in_fresh_process(leave_after_stop, storage, folder, sizes.items)


def _leave_crashed(storage: str, folder: Path, sizes: Sizes, seed: int) -> None:
    make_backlog(storage, folder, seed, ITEM_BYTES, sizes.items - sizes.since_hint)
    in_fresh_process(leave_after_crash, storage, folder, sizes.items, sizes.since_hint)


CASES: Final = (
    Case("journal, after a stop", JOURNAL, _leave_stopped),
    Case("journal, after a crash", JOURNAL, _leave_crashed),
    Case("journal, without a segment log", JOURNAL, _leave),
    Case("scroll, after a stop", SCROLL, _leave_stopped),
    Case("scroll, after a crash", SCROLL, _leave_crashed),
    Case("scroll, without a hint", SCROLL, _leave),
)


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure all cases in turn, and add the results."""
    with scratch_folder() as folder:
        for number, case in enumerate(CASES):
            progress(f"restart: {case.name}", number, len(CASES))
            case.leave(case.storage, folder / f"{number} left", sizes, seed)
        starts: dict[Case, list[Start]] = {case: [] for case in CASES}
        for repeat in range(sizes.repeats):
            for number, case in enumerate(CASES):
                progress(f"restart: {case.name}", repeat * len(CASES) + number, sizes.repeats * len(CASES))
                copy_files(folder / f"{number} left", folder / str(number))
                starts[case].append(in_fresh_process(start, case.storage, folder / str(number), sizes.items))
        progress("", 1, 1)
        for number, case in enumerate(CASES):
            _add(results, case, sizes, starts[case], bytes_in(folder / str(number)))


def _add(results: Results, case: Case, sizes: Sizes, starts: Sequence[Start], bytes_on_disk: int) -> None:
    seconds = spread([each.seconds for each in starts])
    results.add(
        case=case.name,
        items=sizes.items,
        start_s=seconds.median,
        start_s_least=seconds.least,
        start_s_most=seconds.most,
        cpu_s=spread([each.cpu_seconds for each in starts]).median,
        mb_read=spread([each.bytes_read for each in starts]).median / MB,
        mb_on_disk=bytes_on_disk / MB,
        memory_mib=spread([each.memory_bytes for each in starts]).median / MIB,
        first_get_ms=spread([each.first_get_s for each in starts]).median * 1000,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    sizes = SHORT if options.short else FULL
    require_room(sizes.disk_bytes)
    with Results("restart", COLUMNS, as_json=options.json) as results:
        measure(results, sizes, options.seed)


if __name__ == "__main__":
    main()
