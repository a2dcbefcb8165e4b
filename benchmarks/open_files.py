"""Cost of many small queues: descriptors, memory, and the time of the next start.

    python -m benchmarks.open_files

An item is put to each queue of one storage and taken again, which leaves the queue empty.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from benchmarks.harness import (
    Column,
    Results,
    in_fresh_process,
    options_parser,
    progress,
    resident_bytes,
    scratch_folder,
    spread,
)
from benchmarks.journals import ADD_MS
from kestrel.config.model import QueueSettings
from kestrel.server.process import raise_file_limit
from kestrel.storage.interfaces import IQueueStorage
from kestrel.storage.journal.storage import JournalStorage

COLUMNS: Final = (
    Column("queues", "queues", ",d"),
    Column("most_open_files", "most open files", ",d"),
    Column("bytes_per_queue", "bytes a queue", ",.0f"),
    Column("use_ms", "ms a queue, put and get", ".3f"),
    Column("start_s", "start, s", ".2f"),
    Column("start_s_least", "best", ".2f"),
    Column("start_cpu_s", "s of CPU", ".2f"),
    Column("bytes_per_queue_started", "bytes a queue then", ",.0f"),
)

SETTINGS: Final = QueueSettings()
Loaded = dict[bytes, IQueueStorage | Failure]


class Sizes(NamedTuple):
    """The amount of work."""

    queues: int
    starts: int


FULL: Final = Sizes(10_000, 3)
SHORT: Final = Sizes(1_000, 1)


class Use(NamedTuple):
    """The cost of using the queues."""

    most_open_files: int
    bytes_per_queue: float
    seconds: float


class Start(NamedTuple):
    """The cost of loading the queues."""

    seconds: float
    cpu_seconds: float
    bytes_per_queue: float


def _open(folder: Path) -> tuple[JournalStorage, Loaded]:
    """Start the storage of a folder, and return it with its queues. Thread work is done at once."""
    # The server does this too.
    raise_file_limit()
    storage = JournalStorage(os.fsencode(folder), Clock(), execute, reserve_bytes=0)
    loaded: list[Loaded] = []
    starting: Deferred[Loaded] = storage.start(lambda _: SETTINGS)
    starting.addCallback(loaded.append)
    return storage, loaded[0]


def use(folder: Path, count: int) -> Use:
    """Put an item to each of that many queues, and take it again. Return the cost."""
    storage, _ = _open(folder)
    before, most_open_files = resident_bytes(), 0
    began = time.perf_counter()
    for number in range(count):
        queue = storage.queue(b"queue-%06d" % number, SETTINGS)
        for _ in range(2):
            if queue.items:
                queue.take(False)
            else:
                storage.put((queue,), b"x" * 64, ADD_MS, 0)
            storage.commit((queue,))
        if number % 100 == 99:
            most_open_files = max(most_open_files, len(os.listdir("/proc/self/fd")))
    seconds = time.perf_counter() - began
    bytes_per_queue = (resident_bytes() - before) / count
    storage.close()
    return Use(most_open_files, bytes_per_queue, seconds)


def start(folder: Path, count: int) -> Start:
    """Load the queues, and return the cost."""
    before = resident_bytes()
    began, cpu_began = time.perf_counter(), time.process_time()
    storage, loaded = _open(folder)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    bytes_per_queue = (resident_bytes() - before) / count
    if len(loaded) != count or any(isinstance(each, Failure) for each in loaded.values()):
        raise ValueError("some queues were not loaded")
    storage.close()
    return Start(seconds, cpu_seconds, bytes_per_queue)


def measure(results: Results, sizes: Sizes) -> None:
    """Use the queues once, then load them several times, each in a fresh process. Add the results."""
    with scratch_folder() as folder:
        progress("open_files: using the queues", 0, sizes.starts + 1)
        used = in_fresh_process(use, folder, sizes.queues)
        starts = []
        for number in range(sizes.starts):
            progress("open_files: starting", number + 1, sizes.starts + 1)
            starts.append(in_fresh_process(start, folder, sizes.queues))
        progress("", 1, 1)
    seconds = spread([each.seconds for each in starts])
    results.add(
        queues=sizes.queues,
        most_open_files=used.most_open_files,
        bytes_per_queue=used.bytes_per_queue,
        use_ms=used.seconds / sizes.queues * 1000,
        start_s=seconds.median,
        start_s_least=seconds.least,
        start_cpu_s=spread([each.cpu_seconds for each in starts]).median,
        bytes_per_queue_started=spread([each.bytes_per_queue for each in starts]).median,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    with Results("open_files", COLUMNS, as_json=options.json) as results:
        measure(results, SHORT if options.short else FULL)


if __name__ == "__main__":
    main()
