"""Runs one target in a process of its own, and reads the output of libFuzzer."""

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
"""Time after which an input counts as hanging."""

MAX_RSS_MIB: Final = 512
"""Limit of resident memory. `tests.fuzz.child` limits the address space."""

OVERTIME_S: Final = 60
"""Time after which a process that does not end in time is killed."""

PROGRESS_INTERVAL_S: Final = 5.0
"""Time between two lines of progress."""

MAX_OUTPUT_LINES: Final = 40
"""Number of output lines shown after a failure."""

_STATUS: Final = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)/.* rss: (\d+)Mb")
_STATISTIC: Final = re.compile(r"stat::(\w+):\s+(\d+)")
_ARTIFACT: Final = re.compile(r"Test unit written to (\S+)")


class Result(NamedTuple):
    """The result of a target. `artifact` is the input of a finding; without it, a failure is one of the process.

    `seconds` includes the start of the process, and `runs_per_s` does not.
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
        """Return the result as one line."""
        return (
            f"{self.name:<18} {self.seconds:6.1f} s  {self.runs:>9,} runs  {self.runs_per_s:>6,}/s"
            f"  coverage {self.coverage:>5} ({self.features} features)  peak {self.peak_mib:>4} MiB"
            f"  new inputs {self.new_inputs:>4}  findings {int(not self.has_passed)}"
        )


class LibFuzzerOutput:
    """Reads the output of libFuzzer by lines. `is_done` is set by the final statistics."""

    def __init__(self) -> None:
        self.runs = self.coverage = self.features = self.peak_mib = self.new_inputs = self.runs_per_s = 0
        self.is_done = False
        self.artifact: Path | None = None
        self.last_lines: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)

    def line(self, line: str) -> bool:
        """Read a line. Return whether it is a progress report."""
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


class RunLimit(NamedTuple):
    """How long a target is fuzzed: for a time, or for a number of inputs."""

    seconds: int
    runs: int | None = None


def fuzz(name: str, limit: RunLimit, seed: int, build: Path) -> Result:
    """Fuzz one target, and print the result."""
    began = time.monotonic()
    output = LibFuzzerOutput()
    with Child[str](
        command(name, limit, seed, build),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "KESTREL_PURE": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            _follow(name, output, process.stdout)
            status = process.wait(OVERTIME_S)
        finally:
            process.kill()
    result = Result(
        name,
        status == 0 and output.is_done and output.artifact is None,
        time.monotonic() - began,
        output.runs,
        output.coverage,
        output.features,
        output.peak_mib,
        output.new_inputs,
        output.runs_per_s,
        output.artifact,
    )
    lines = [result.line(), *([] if result.has_passed else failure_lines(result, status, output.last_lines))]
    print("\n".join(lines), flush=True)
    return result


def command(name: str, limit: RunLimit, seed: int, build: Path) -> list[str]:
    """Return the command that fuzzes a target. Create its folders and its dictionary."""
    found = build / "corpus" / name
    found.mkdir(parents=True, exist_ok=True)
    kept = target.CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    dictionary = build / f"{name}.dict"
    dictionary.write_text("".join(f'"{escaped(word)}"\n' for word in target.load(name).words()))
    options = [
        f"-max_total_time={limit.seconds}" if limit.runs is None else f"-runs={limit.runs}",
        f"-seed={seed}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MAX_RSS_MIB}",
        f"-dict={dictionary}",
        f"-artifact_prefix={build}/{name}-",
        "-print_final_stats=1",
        "-len_control=100",  # with a custom mutator, libFuzzer does not let inputs grow by default
        str(found),
        str(kept),
    ]
    max_s = limit.seconds + OVERTIME_S
    return ["timeout", str(max_s), sys.executable, "-m", "tests.fuzz.child", name, *options]


def escaped(word: bytes) -> str:
    """Return a word as written in a dictionary of libFuzzer."""
    return "".join(f"\\x{byte:02x}" for byte in word)


def _follow(name: str, output: LibFuzzerOutput, lines: Iterable[str]) -> None:
    """Read the output, and print progress every few seconds."""
    began = printed = time.monotonic()
    for line in lines:
        is_progress = output.line(line.rstrip("\n"))
        now = time.monotonic()
        if is_progress and now - printed >= PROGRESS_INTERVAL_S:
            printed = now
            print(f"{name}: {now - began:.0f} s, {output.runs:,} runs, coverage {output.coverage}", flush=True)


def failure_lines(result: Result, status: int, last_lines: Iterable[str]) -> Iterator[str]:
    """Yield the last output, the input of the finding, and how to run it again."""
    yield from (f"    {line}" for line in last_lines)
    if result.artifact is None:
        yield f"{result.name}: the process exited with status {status} without an input"
    else:
        yield f"{result.name}: input: {result.artifact}"
        yield f"{result.name}: to run it again: python -m tests.fuzz {result.name} --replay {result.artifact}"
