"""One target in a process of its own: what libFuzzer says meanwhile, and what came of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.child import Child
from tests.fuzz import target

TIMEOUT_S: Final = 10
"""An input that takes longer hangs."""

MOST_RSS_MIB: Final = 512
"""What is asked for at once and beyond that, `tests.fuzz.child` bounds."""

OVERTIME_S: Final = 60
"""A process that goes on for longer behind its time is ended."""

EVERY_S: Final = 5.0
"""From one sign of life to the next."""

LAST_LINES: Final = 40
"""So much of what the process said is told where it failed."""

_STATUS: Final = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)/.* rss: (\d+)Mb")
_STATISTIC: Final = re.compile(r"stat::(\w+):\s+(\d+)")
_ARTIFACT: Final = re.compile(r"Test unit written to (\S+)")


class Result(NamedTuple):
    """What came of one target. `artifact` is the input that failed; without it and not passed, the process did.

    The start of the process is in `seconds`, and not in `runs_per_s`.
    """

    name: str
    has_passed: bool
    seconds: float = 0.0
    runs: int = 0
    coverage: int = 0
    features: int = 0
    peak_mib: int = 0
    new_inputs: int = 0
    runs_per_s: int = 0
    artifact: Path | None = None

    def line(self) -> str:
        """All of it."""
        return (
            f"{self.name:<18} {self.seconds:6.1f} s  {self.runs:>9,} runs  {self.runs_per_s:>6,}/s"
            f"  coverage {self.coverage:>5} ({self.features} features)  peak {self.peak_mib:>4} MiB"
            f"  new inputs {self.new_inputs:>4}  findings {int(not self.has_passed)}"
        )


class Told:
    """Reads what libFuzzer says, line by line. `is_done`: it has summed up, and so has not just ended."""

    def __init__(self) -> None:
        self.runs = self.coverage = self.features = self.peak_mib = self.new_inputs = self.runs_per_s = 0
        self.is_done = False
        self.artifact: Path | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)

    def line(self, line: str) -> bool:
        """Take a line in; whether it told of progress."""
        if status := _STATUS.match(line):
            runs, coverage, features, _, rss = map(int, status.groups())
            self.runs, self.coverage, self.features = runs, coverage, features
            self.peak_mib = max(self.peak_mib, rss)
            return True
        if statistic := _STATISTIC.match(line):
            name, number = statistic[1], int(statistic[2])
            if name == "number_of_executed_units":
                self.runs, self.is_done = number, True
            elif name == "peak_rss_mb":
                self.peak_mib = number
            elif name == "average_exec_per_sec":
                self.runs_per_s = number
            elif name == "new_units_added":
                self.new_inputs = number
        elif artifact := _ARTIFACT.search(line):
            self.artifact = Path(artifact[1])
        elif not line.startswith("INFO: Instrumenting"):
            self.last_lines.append(line)
        return False


class Length(NamedTuple):
    """How long a target is fuzzed: for so many seconds, or until so many inputs were tried, however fast that is."""

    seconds: int
    runs: int | None = None


def fuzz(name: str, length: Length, seed: int, build: Path) -> Result:
    """Fuzz one target for so long, and say so."""
    began = time.monotonic()
    told = Told()
    with Child[str](
        command(name, length, seed, build),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "KESTREL_PURE": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            _follow(name, told, process.stdout)
            status = process.wait(OVERTIME_S)
        finally:
            process.kill()
    result = Result(
        name,
        status == 0 and told.is_done and told.artifact is None,
        time.monotonic() - began,
        told.runs,
        told.coverage,
        told.features,
        told.peak_mib,
        told.new_inputs,
        told.runs_per_s,
        told.artifact,
    )
    lines = [result.line(), *([] if result.has_passed else explained(result, status, told.last_lines))]
    print("\n".join(lines), flush=True)
    return result


def command(name: str, length: Length, seed: int, build: Path) -> list[str]:
    """The process for one target; makes the folders and the dictionary that it wants."""
    found = build / "corpus" / name
    found.mkdir(parents=True, exist_ok=True)
    kept = target.CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    dictionary = build / f"{name}.dict"
    dictionary.write_text("".join(f'"{escaped(word)}"\n' for word in target.load(name).words()))
    options = [
        f"-max_total_time={length.seconds}" if length.runs is None else f"-runs={length.runs}",
        f"-seed={seed}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MOST_RSS_MIB}",
        f"-dict={dictionary}",
        f"-artifact_prefix={build}/{name}-",
        "-print_final_stats=1",
        "-len_control=100",  # inputs grow when short ones bring nothing new: libFuzzer leaves that to a mutator of ours
        str(found),
        str(kept),
    ]
    most_s = length.seconds + OVERTIME_S
    return ["timeout", str(most_s), sys.executable, "-m", "tests.fuzz.child", name, *options]


def escaped(word: bytes) -> str:
    """A word as dictionaries of libFuzzer have it."""
    return "".join(f"\\x{byte:02x}" for byte in word)


def _follow(name: str, told: Told, lines: Iterable[str]) -> None:
    """Say every few seconds how far it is."""
    began = said = time.monotonic()
    for line in lines:
        is_progress = told.line(line.rstrip("\n"))
        now = time.monotonic()
        if is_progress and now - said >= EVERY_S:
            said = now
            print(f"{name}: {now - began:.0f} s, {told.runs:,} runs, coverage {told.coverage}", flush=True)


def explained(result: Result, status: int, last_lines: Iterable[str]) -> Iterator[str]:
    """What failed, where the input is, and how it is tried again."""
    yield from (f"    {line}" for line in last_lines)
    if result.artifact is None:
        yield f"{result.name}: the process ended with status {status} and left no input"
    else:
        yield f"{result.name}: the input is {result.artifact}"
        yield f"{result.name}: to try it again: python -m tests.fuzz {result.name} --replay {result.artifact}"
