"""The cost of a report on many servers, for planning a cluster.

    python -m benchmarks.fleet_scale

The default is a thousandth of 1,000 servers with 20 TB of journals: 20 GB in 500 queues. All queues are links to the
same few files, so the disk does not limit the speed. The report's views are queried once each. Memory is the peak of
the resident memory of the processes of Spark's workers.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from benchmarks.harness import MB, Column, Results, in_fresh_process, options_parser, scratch_folder
from benchmarks.journals import JournalMaker
from kestrel.disk.files import Disk
from kestrel.spark.report.views import drop_views, register_views
from kestrel.spark.session import session
from kestrel.spark.table.files import files_of
from kestrel.spark.table.options import find_locations
from kestrel.tools.progress import TerminalLine

FILES: Final = 3
"""Files of a queue: rotated ones and the current one."""
FILE_BYTES: Final = 40 * MB // FILES
ITEM_BYTES: Final = 1024
VIEWS: Final = ("histories", "queues", "rankings", "throughput", "depth", "waiting", "redeliveries", "expired")
NOW_MS: Final = 1_700_100_000_000

COLUMNS: Final = (
    Column("what", "step"),
    Column("seconds", "s", ",.1f"),
    Column("cpu_s", "JVM CPU s", ",.1f"),
    Column("tasks", "tasks", ",d"),
    Column("shuffle_mb", "shuffled MB", ",.1f"),
    Column("spilled_mb", "spilled MB", ",.1f"),
    Column("note", "note"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    servers: int
    queues: int
    """Queues of a server."""
    cores: int


FULL: Final = Sizes(10, 50, 2)
SHORT: Final = Sizes(2, 2, 2)


def make(folder: Path, sizes: Sizes, seed: int) -> int:
    """Make the folders of the servers. Return the number of items."""
    with JournalMaker(folder / "made", seed, ITEM_BYTES) as journal:
        count = FILE_BYTES // (ITEM_BYTES + 22)
        journal.put(count // 100)
        journal.put_and_remove(count - count // 100)
    (made,) = (folder / "made").iterdir()
    for server in range(sizes.servers):
        spool = folder / f"server{server}" / "spool"
        spool.mkdir(parents=True)
        for queue in range(sizes.queues):
            names = [f"q{queue}.{number}" for number in range(1, FILES)]
            for name in (*names, f"q{queue}"):
                (spool / name).hardlink_to(made)
    return count * FILES * sizes.queues * sizes.servers


def measure(folder: Path, sizes: Sizes, items: int) -> list[dict[str, Any]]:
    """Plan, read and query. Called in a process of its own, because it leaves a JVM behind."""
    began = time.perf_counter()
    files = files_of(Disk(), find_locations([f"{folder}/server*/spool"], None))
    planned_s = time.perf_counter() - began
    size = sum(file.size for file in files)
    note = f"{size // MB:,} MB, {len(files):,} files, {len(pickle.dumps(files)) // len(files)} bytes each in the driver"
    rows: list[dict[str, Any]] = [{"what": "planning", "seconds": planned_s, "note": note}]
    settings = {"spark.master": f"local[{sizes.cores}]", "spark.log.level": "ERROR", "spark.driver.memory": "2g"}
    spark = session("fleet scale", settings=settings)
    line = TerminalLine()
    try:
        register_views(spark, files, NOW_MS, None)
        with _peak_of_workers() as peak:
            for view in VIEWS:
                if line.is_terminal:
                    line.draw(view)
                rows.append({"what": view, **_timed(spark, view)})
        cached = spark.sparkContext._jsc.sc().getRDDStorageInfo()[0]
        rows[1]["note"] = (
            f"{items:,} items; cached {(cached.memSize() + cached.diskSize()) / items:.0f} bytes each;"
            f" workers of {max(peak, default=0) // MB} MB"
        )
        drop_views(spark)
    finally:
        line.clear()
        spark.stop()
    return rows


def _timed(spark: SparkSession, view: str) -> dict[str, Any]:
    """Query all rows of a view, and return what Spark counted."""
    before = _stages(spark)
    began = time.perf_counter()
    spark.table(view).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - began
    stages = [stage for key, stage in _stages(spark).items() if key not in before]
    return {
        "seconds": seconds,
        "cpu_s": sum(stage.executorCpuTime() for stage in stages) / 1e9,
        "tasks": sum(stage.numTasks() for stage in stages if str(stage.status()) == "COMPLETE"),
        "shuffle_mb": sum(stage.shuffleWriteBytes() for stage in stages) / MB,
        "spilled_mb": sum(stage.diskBytesSpilled() for stage in stages) / MB,
        "note": "",
    }


def _stages(spark: SparkSession) -> dict[int, Any]:
    """Return what Spark counted for each of its stages."""
    context: Any = spark.sparkContext
    jvm = context._gateway.jvm
    no_quantiles = context._gateway.new_array(jvm.double, 0)
    stages = context._jsc.sc().statusStore().stageList(None, False, False, no_quantiles, jvm.java.util.ArrayList())
    return {stages.apply(place).stageId(): stages.apply(place) for place in range(stages.size())}


@contextmanager
def _peak_of_workers() -> Iterator[list[int]]:
    """Collect the resident bytes of the largest Python process below this one, until the context ends."""
    found: list[int] = []
    has_ended = threading.Event()

    def sample() -> None:
        while not has_ended.wait(0.2):
            found.append(max(_resident_of_children(), default=0))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        has_ended.set()
        thread.join()


def _resident_of_children() -> Iterator[int]:
    page = os.sysconf("SC_PAGE_SIZE")
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"pyspark.daemon" in (path / "cmdline").read_bytes() and path.stat().st_uid == os.getuid():
                yield int((path / "statm").read_text().split()[1]) * page


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--servers", type=int, default=FULL.servers, help="servers of 2 GB each (default %(default)s)")
    options = parser.parse_args(arguments)
    sizes = SHORT if options.short else FULL._replace(servers=options.servers)
    with Results("fleet_scale", COLUMNS, as_json=options.json) as results, scratch_folder() as folder:
        items = make(folder, sizes, options.seed)
        for row in in_fresh_process(measure, folder, sizes, items):
            results.add(**row)


if __name__ == "__main__":
    main()
