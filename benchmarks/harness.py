"""Shared code of the benchmarks: options, fresh processes, scratch folders, statistics and tables."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, Self, TypeVar

from kestrel.tools.formatting import align_table
from kestrel.tools.progress import TerminalLine

_P = ParamSpec("_P")
_T = TypeVar("_T")

Figure = str | int | float

MB: Final = 1_000_000
_BAR: Final = 24


# Options.


def options_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark. The first line of `about` is the description in --help."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="random seed of data and order (default 1)")
    parser.add_argument("--short", action="store_true", help="small sizes, to check that the benchmark works")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line instead of a table")
    return parser


# Environment.


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Provide a folder that is removed when the block ends, even on SIGTERM."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="kestrel-benchmark-") as folder:
        yield Path(folder)


def require_room(size: int) -> None:
    """Exit with a message if there is not enough space for scratch folders."""
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < size:
        sys.exit(f"{folder} has less than {size // MB:,} MB of free space: set TMPDIR to another folder")


def in_fresh_process(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a module's function in a new process, whose memory is like that of a server that has just started."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


_LINE: Final = TerminalLine()


def progress(what: str, done: int, total: int) -> None:
    """Show a progress bar if standard error is a terminal."""
    if done >= total:
        _LINE.clear()
    elif _LINE.is_terminal:
        _LINE.draw(f"[{'#' * (_BAR * done // total):{_BAR}}] {what}")


class RunProgress:
    """A number of steps of about equal length. On a terminal, shows them and the remaining time."""

    def __init__(self, steps: int, seconds: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._seconds = seconds
        self._began = seconds()
        self._done = 0

    def show(self, what: str) -> None:
        """Show the current step."""
        progress(f"{what}{self.left()}", min(self._done, self._steps - 1), self._steps)

    def step(self, count: int = 1) -> None:
        """Count steps as done."""
        self._done += count

    def left(self) -> str:
        """Return the remaining time as text; empty before the first step is done."""
        if not self._done:
            return ""
        left_s = (self._seconds() - self._began) / self._done * max(0, self._steps - self._done)
        return f", {left_s:.0f} s left" if left_s < 90 else f", {left_s / 60:.0f} min left"

    def close(self) -> None:
        """Clear the progress bar."""
        progress("", 1, 1)


# Statistics.


class Spread(NamedTuple):
    """The median, minimum and maximum of repeated measurements."""

    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of these values."""
    return Spread(statistics.median(values), min(values), max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that at least `share` percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


class GoalMissed(SystemExit):
    """A missed goal. Ends the program with a message and exit status 1."""


# Results.


class Column(NamedTuple):
    """A column of a table: its key in JSON, its heading, and the format of its numbers."""

    key: str
    heading: str
    form: str = ""


class Results:
    """The results of one benchmark. Prints a table at the end, or each row as JSON at once."""

    def __init__(self, benchmark: str, columns: Sequence[Column], *, as_json: bool) -> None:
        self._benchmark = benchmark
        self._columns = columns
        self._as_json = as_json
        self.rows: list[dict[str, Figure]] = []

    def add(self, **figures: Figure) -> None:
        """Add a row. A column without a figure stays empty."""
        self.rows.append(figures)
        if self._as_json:
            print(json.dumps({"benchmark": self._benchmark, **figures}), flush=True)

    def lines(self) -> list[str]:
        """Return the lines of the table."""
        cells = [[_shown(row.get(column.key, ""), column.form) for column in self._columns] for row in self.rows]
        texts = [place for place, column in enumerate(self._columns) if not column.form]
        return list(align_table([[column.heading for column in self._columns], *cells], texts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._as_json:
            print(f"\n{self._benchmark}\n")
            print("\n".join(self.lines()), flush=True)


def _shown(figure: Figure, form: str) -> str:
    return figure if isinstance(figure, str) else format(figure, form)
