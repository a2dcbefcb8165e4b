"""Speed of Spark reading journals, compared with a plain reader in Python.

    python -m benchmarks.spark

A set of 200 journal files with 1 GB is read in several ways. The plain reader (`kestrel.journal.cursor`) reads
one of the files on one core. The Spark source reads all files, with one and with two parallel tasks, into a sink that
accepts and drops all rows. It reads all columns, all columns except the items, or only the times and sizes of items. It
also counts the rows, and filters them. Spark's own sources read the same items beside it: `text` as lines as long as
the records, `binaryFile` as the journal files, and `parquet` as a table with all columns. A single file of 3 GB is read
by the Spark source only.

MB are those of the journal files in all cases. The page cache is warm, each Spark session is warmed up, and the cases
are interleaved. *planned* is the time to assign files to tasks. *start* is the time of a query over an empty file:
Spark starts several Python processes for each query. With one task at a time, Spark's Java process and the Python
process still use two cores, so the CPU seconds say what a core can do.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from benchmarks.harness import (
    MB,
    Column,
    GoalMissed,
    Results,
    in_fresh_process,
    options_parser,
    require_room,
    scratch_folder,
    spread,
)
from benchmarks.journals import ADD_MS, RUN_BYTES, JournalMaker
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.journal.cursor import JournalCursor
from kestrel.journal.records import ADDX_HEADER_BYTES
from kestrel.spark.session import session
from kestrel.spark.source import KestrelSource

ITEM_BYTES: Final = (297, 4096)
ONE_FILE_ITEM_BYTES: Final = 297
ONE_FILE_SETS: Final = 3
"""The size of the single file, in sets."""

PRUNING_ITEM_BYTES: Final = 4096
PRUNING_GOAL: Final = 3.0
"""The minimum speed of reading times and sizes, relative to reading all columns."""

COLUMNS: Final = (
    Column("files", "files", ",d"),
    Column("item_bytes", "item", ",d"),
    Column("read", "read"),
    Column("where", "by"),
    Column("mb_per_s", "MB/s", ",.0f"),
    Column("mb_per_s_least", "least", ",.0f"),
    Column("mb_per_s_most", "best", ",.0f"),
    Column("rows_per_s", "rows/s", ",.0f"),
    Column("cpu_s_per_gb", "CPU s/GB", ",.2f"),
    Column("to_plain", "to plain", ".1f"),
    Column("to_one_core", "to one core", ".2f"),
    Column("to_all", "to all columns", ".2f"),
    Column("to_all_reading", "without its start", ".2f"),
    Column("idle_s", "start in s", ".2f"),
    Column("planned_s", "planned in s", ".2f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    set_bytes: int
    files: int
    repeats: int
    warming: int
    """Unmeasured rounds, which warm up the JVM's compiler."""
    item_bytes: Sequence[int] = ITEM_BYTES
    masters: Sequence[str] = ("local[1]", "local[2]")


FULL: Final = Sizes(1000 * MB, 200, 3, 1)
SHORT: Final = Sizes(4 * MB, 2, 1, 0, (4096,), ("local[2]",))


class Set(NamedTuple):
    """A set of journal files."""

    folder: Path
    item_bytes: int
    files: int
    size: int
    records: int


class Case(NamedTuple):
    """A way to read a set."""

    read: str
    where: str


PLAIN: Final = Case("all columns", "plain Python")
ALL, NO_ITEMS, TIMES_AND_SIZES, FILTERED = "all columns", "no items", "times and sizes", "a tenth, filtered"
COUNT, COUNT_FEW = "count()", "count() of times and sizes"
TEXT, BINARY_FILE, PARQUET = "text", "binaryFile", "parquet"
BUILT_IN: Final = (TEXT, BINARY_FILE, PARQUET)
FEW_COLUMNS: Final = "queue STRING, op STRING, add_time TIMESTAMP, expiry_time TIMESTAMP, data_bytes BIGINT"
READS: Final = (ALL, TEXT, BINARY_FILE, PARQUET, NO_ITEMS, TIMES_AND_SIZES, COUNT, COUNT_FEW, FILTERED)


class Timed(NamedTuple):
    """The cost of reading a set once."""

    case: Case
    size: int
    records: int
    seconds: float
    cpu_s: float
    planned_s: float = 0.0
    idle_s: float = 0.0
    """The duration of the same query over an empty file."""

    @property
    def reading_s(self) -> float:
        """The duration without `idle_s`."""
        return max(1e-9, self.seconds - self.idle_s)


def make(folder: Path, seed: int, item_bytes: int, size: int, files: int) -> Set:
    """Make a journal with about that many files."""
    with JournalMaker(folder, seed, item_bytes, file_bytes=size // files) as journal:
        journal.put(size // (item_bytes + ADDX_HEADER_BYTES))
    return Set(folder, item_bytes, len(list(folder.iterdir())), journal.size, journal.records)


def plain(journal: Set) -> Timed:
    """Read one file of the set, record by record. Called in a process of its own."""
    path = min(journal.folder.iterdir())
    began, cpu_began = time.perf_counter(), time.process_time()
    with FileReader(Disk(), os.fsencode(path)) as reader:
        records = sum(1 for _ in JournalCursor(reader).records())
        size = reader.size
    return Timed(PLAIN, size, records, time.perf_counter() - began, time.process_time() - cpu_began)


def by_spark(journals: Sequence[Set], sizes: Sizes) -> list[list[Timed]]:
    """Read each set with Spark several times. Called in a process of its own, because it leaves a JVM behind."""
    found: list[list[Timed]] = [[] for _ in journals]
    for round_number in range(-sizes.warming, sizes.repeats):
        for where in sizes.masters:
            settings = {"spark.master": where, "spark.log.level": "ERROR", "spark.driver.memory": "2g"}
            spark = session("benchmark", settings=settings)
            try:
                empty = _empty(journals[0].folder.parent / "empty")
                # This starts the workers.
                _read(spark, journals[0]._replace(folder=min(journals[0].folder.iterdir())), Case(ALL, where))
                idle_s = _timed(spark, empty, Case(ALL, where), 0.0).seconds
                for journal, turns in zip(journals, found, strict=True):
                    timed = [
                        _timed(spark, journal, Case(read, where), idle_s)
                        for read in READS
                        if read not in BUILT_IN or _others(journal).exists()
                    ]
                    turns += timed if round_number >= 0 else []
            finally:
                spark.stop()
    return found


def _empty(folder: Path) -> Set:
    folder.mkdir(exist_ok=True)
    (folder / "work").touch()
    return Set(folder, 0, 1, 0, 0)


def _timed(spark: SparkSession, journal: Set, case: Case, idle_s: float) -> Timed:
    began, cpu_began = time.perf_counter(), _cpu_s()
    _read(spark, journal, case)
    seconds, cpu_s = time.perf_counter() - began, _cpu_s() - cpu_began
    planned_s = 0.0 if case.read in BUILT_IN else _planning_s(_options(journal, case))
    return Timed(case, journal.size, journal.records, seconds, cpu_s, planned_s, idle_s)


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants: the JVM and its workers, which keep running."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            # These fields are its own times and those of its ended children.
            ticks[pid] = sum(map(int, fields[11:15]))
    total = 0
    for pid in ticks:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            total += ticks[pid]
    return total / os.sysconf("SC_CLK_TCK")


def _options(journal: Set, case: Case) -> dict[str, str]:
    return {
        "path": str(journal.folder),
        "payload": "false" if case.read == NO_ITEMS else "true",
        "filterPushdown": "true" if case.read == FILTERED else "false",
        "parallelism": case.where[6:-1],
    }


def _read(spark: SparkSession, journal: Set, case: Case) -> None:
    """Read the set, and count or drop the rows."""
    if case.read in BUILT_IN:
        folder = journal.folder if case.read == BINARY_FILE else _others(journal) / case.read
        table = spark.read.format(case.read).load(str(folder))
    else:
        reader = spark.read.format("kestrel").options(**_options(journal, case))
        table = (reader.schema(FEW_COLUMNS) if case.read in (TIMES_AND_SIZES, COUNT_FEW) else reader).load()
    if case.read == FILTERED:
        run = max(1, RUN_BYTES // (journal.item_bytes + ADDX_HEADER_BYTES))
        table = table.where(f"add_time < timestamp_millis({ADD_MS + run // 10})")
    if case.read in (COUNT, COUNT_FEW):
        table.count()
    else:
        table.write.format("noop").mode("overwrite").save()


def _others(journal: Set) -> Path:
    """Return the folder with the set as text and Parquet, beside its journal."""
    return journal.folder.with_name(f"{journal.folder.name}.others")


def make_others(journals: Sequence[Set]) -> None:
    """Write each set as text and Parquet, too. Called in a process of its own, because it leaves a JVM behind."""
    spark = session("benchmark", settings={"spark.log.level": "ERROR", "spark.driver.memory": "2g"})
    try:
        for journal in journals:
            table = spark.read.format("kestrel").load(str(journal.folder))
            table.write.option("compression", "none").parquet(str(_others(journal) / PARQUET))
            line_bytes = journal.item_bytes + ADDX_HEADER_BYTES - 1
            lines = table.selectExpr(f"substr(base64(data), 1, {line_bytes}) AS line")
            lines.write.text(str(_others(journal) / TEXT))
    finally:
        spark.stop()


def _planning_s(options: dict[str, str]) -> float:
    source = KestrelSource(options)
    began = time.perf_counter()
    source.reader(source.schema()).partitions()
    return time.perf_counter() - began


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Make all sets, read them, and add the results."""
    require_room(int(1.1 * sizes.set_bytes * (3 * len(sizes.item_bytes) + ONE_FILE_SETS)))
    with scratch_folder() as folder:
        journals = [
            make(folder / str(item_bytes), seed, item_bytes, sizes.set_bytes, sizes.files)
            for item_bytes in sizes.item_bytes
        ]
        in_fresh_process(make_others, journals)
        journals.append(make(folder / "one", seed, ONE_FILE_ITEM_BYTES, ONE_FILE_SETS * sizes.set_bytes, 1))
        plain_turns = [[in_fresh_process(plain, journal) for _ in range(sizes.repeats)] for journal in journals[:-1]]
        for journal, turns, before in zip(
            journals, in_fresh_process(by_spark, journals, sizes), [*plain_turns, []], strict=True
        ):
            for figures in _rows(before + turns):
                results.add(files=journal.files, item_bytes=journal.item_bytes, **figures)


def _rows(turns: Sequence[Timed]) -> Iterator[dict[str, str | float]]:
    rates: defaultdict[Case, list[float]] = defaultdict(list)
    for turn in turns:
        rates[turn.case].append(turn.size / MB / turn.seconds)
    for case, found in rates.items():
        rate = spread(found)
        of_case = [turn for turn in turns if turn.case == case]
        row: dict[str, str | float] = {
            "read": case.read,
            "where": case.where,
            "mb_per_s": rate.median,
            "mb_per_s_least": rate.least,
            "mb_per_s_most": rate.most,
            "rows_per_s": rate.median * MB * of_case[0].records / of_case[0].size,
            "cpu_s_per_gb": statistics.median(turn.cpu_s * 1000 * MB / turn.size for turn in of_case),
        }
        if case != PLAIN:
            one_core, everything = Case(case.read, "local[1]"), Case(ALL, case.where)
            if PLAIN in rates:
                row["to_plain"] = _ratio(found, rates[PLAIN])
            if case != one_core and one_core in rates:
                row["to_one_core"] = _ratio(found, rates[one_core])
            if case != everything:
                row["to_all"] = _ratio(found, rates[everything])
        if case != PLAIN and case.read not in BUILT_IN:
            row["idle_s"] = statistics.median(turn.idle_s for turn in of_case)
            row["planned_s"] = statistics.median(turn.planned_s for turn in of_case)
            if case != everything:
                row["to_all_reading"] = _ratio(
                    [turn.size / turn.reading_s for turn in of_case],
                    [turn.size / turn.reading_s for turn in turns if turn.case == everything],
                )
        yield row


def _ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of adjacent runs."""
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


def check(results: Results) -> None:
    """Raise GoalMissed if reading times and sizes is too slow."""
    for row in results.rows:
        is_judged = row["item_bytes"] == PRUNING_ITEM_BYTES and row["read"] == TIMES_AND_SIZES
        if is_judged and float(row["to_all_reading"]) < PRUNING_GOAL:
            raise GoalMissed(
                f"items of {PRUNING_ITEM_BYTES} B: {row['where']} reads times and sizes {row['to_all_reading']:.1f}"
                f" times as fast as all columns; the goal is {PRUNING_GOAL:.0f} times"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=FULL.set_bytes // MB, help="MB of a set (default %(default)s)")
    parser.add_argument("--items", type=int, nargs="+", default=ITEM_BYTES, help="item sizes in bytes")
    parser.add_argument("--repeats", type=int, default=FULL.repeats, help="runs of each case (default %(default)s)")
    options = parser.parse_args(arguments)
    full = FULL._replace(set_bytes=options.megabytes * MB, repeats=options.repeats, item_bytes=options.items)
    with Results("spark", COLUMNS, as_json=options.json) as results:
        measure(results, SHORT if options.short else full, options.seed)
    if not options.short:
        check(results)


if __name__ == "__main__":
    main()
