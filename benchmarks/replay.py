"""Speed of replaying the journal of one queue, as at a start.

    python -m benchmarks.replay

There are three cases: puts that fit in memory; the same puts with the default maxMemorySize, so that most of them stay
on disk; and alternating puts and removes. Each replay runs in a fresh process with a warm page cache. Rates are given
by wall-clock time and by CPU time, which depends less on other load.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import MB, Column, Results, in_fresh_process, options_parser, progress, scratch_folder, spread
from benchmarks.journals import ADD_MS, QUEUE, JournalMaker
from kestrel.config.model import QueueSettings
from kestrel.config.units import GIB, MIB
from kestrel.disk.files import Disk
from kestrel.journal.fileset import group_by_queue
from kestrel.journal.records import ADDX_HEADER_BYTES
from kestrel.journal.writer import JournalWriter
from kestrel.storage.journal.load import load_queue

ITEM_BYTES: Final = (64, 1024)

COLUMNS: Final = (
    Column("case", "journal"),
    Column("item_bytes", "item", ",d"),
    Column("mb_per_s", "MB/s", ",.0f"),
    Column("mb_per_s_least", "least", ",.0f"),
    Column("mb_per_s_most", "best", ",.0f"),
    Column("records_per_s", "records/s", ",.0f"),
    Column("cpu_mb_per_s", "MB/s of CPU", ",.0f"),
    Column("cpu_mb_per_s_most", "best", ",.0f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    file_bytes: int
    repeats: int


FULL: Final = Sizes(500 * MB, 3)
SHORT: Final = Sizes(20 * MB, 1)


class Case(NamedTuple):
    """A kind of journal, and the memory limit of its queue."""

    name: str
    folder: str
    max_memory_bytes: int


CASES: Final = (
    Case("puts, in memory", "puts", 4 * GIB),
    Case("puts, read-behind", "puts", 128 * MIB),
    Case("put, remove, put, ...", "alternating", 128 * MIB),
)


def replay_seconds(folder: Path, max_memory_bytes: int) -> tuple[float, float]:
    """Load the queue in that folder. Return the wall-clock seconds and the CPU seconds."""
    disk, path = Disk(), os.fsencode(folder)
    files = group_by_queue(disk.list_files(path))[QUEUE]
    writer = JournalWriter(disk, path, QUEUE, lambda: ADD_MS)
    settings = QueueSettings(max_memory_size_bytes=max_memory_bytes)
    began, cpu_began = time.perf_counter(), time.process_time()
    queue = load_queue(disk, path, files, settings, writer, ADD_MS)
    seconds = time.perf_counter() - began, time.process_time() - cpu_began
    if queue.repaired_bytes:
        raise ValueError("the replay repaired a journal that should be intact")
    return seconds


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure all cases in turn, with items of each size, and add the results."""
    for item_bytes in ITEM_BYTES:
        with scratch_folder() as folder:
            journals = _make(folder, sizes, seed, item_bytes)
            seconds: dict[Case, list[tuple[float, float]]] = {case: [] for case in CASES}
            for repeat in range(sizes.repeats):
                for number, case in enumerate(CASES):
                    done = repeat * len(CASES) + number
                    progress(f"replay, {item_bytes} B: {case.name}", done, sizes.repeats * len(CASES))
                    seconds[case].append(in_fresh_process(replay_seconds, folder / case.folder, case.max_memory_bytes))
            progress("", 1, 1)
            for case in CASES:
                _add(results, case, item_bytes, journals[case.folder], seconds[case])


def _make(folder: Path, sizes: Sizes, seed: int, item_bytes: int) -> dict[str, JournalMaker]:
    count = sizes.file_bytes // (item_bytes + ADDX_HEADER_BYTES)
    with JournalMaker(folder / "puts", seed, item_bytes) as puts:
        puts.put(count)
    with JournalMaker(folder / "alternating", seed, item_bytes) as alternating:
        alternating.put_and_remove(count)
    return {"puts": puts, "alternating": alternating}


def _add(
    results: Results, case: Case, item_bytes: int, journal: JournalMaker, seconds: Sequence[tuple[float, float]]
) -> None:
    rates = spread([journal.size / MB / clock for clock, _ in seconds])
    cpu_rates = spread([journal.size / MB / cpu for _, cpu in seconds])
    results.add(
        case=case.name,
        item_bytes=item_bytes,
        mb_per_s=rates.median,
        mb_per_s_least=rates.least,
        mb_per_s_most=rates.most,
        records_per_s=rates.median * MB / journal.size * journal.records,
        cpu_mb_per_s=cpu_rates.median,
        cpu_mb_per_s_most=cpu_rates.most,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    with Results("replay", COLUMNS, as_json=options.json) as results:
        measure(results, SHORT if options.short else FULL, options.seed)


if __name__ == "__main__":
    main()
