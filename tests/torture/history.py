"""Runs random histories of queues that are larger than their memory.

    python -m tests.torture.history --seed 1 --examples 2000

`ReadBehindMachine` defines the steps of a history and its checks. A seed always runs the same histories. The first
history that fails is shortened, and the shortest one that still fails is printed.
"""

from __future__ import annotations

import itertools
import sys
import time
import traceback
from pathlib import Path
from typing import Final

import hypothesis

from tests.storage.test_read_behind_history import ReadBehindMachine, run_histories
from tests.torture import command_line

HISTORIES_PER_LINE: Final = 100


class Progress:
    """Counts histories and steps, and prints the counts."""

    def __init__(self) -> None:
        self.histories = 0
        self.steps = 0
        self._began = time.monotonic()

    def ended(self, machine: ReadBehindMachine) -> None:
        """Count a history that has ended or failed."""
        self.histories += 1
        self.steps += machine.steps
        if self.histories % HISTORIES_PER_LINE == 0:
            self.print_counts("          ")

    def print_counts(self, mark: str) -> None:
        """Print a line with the counts."""
        seconds = time.monotonic() - self._began
        print(f"{mark}{self.histories:,} histories, {self.steps:,} steps, {seconds:.0f} s", flush=True)


def torture(folder: Path, *, seed: int, examples: int) -> int:
    """Run about that many histories and print the counts. Return the number of failures, at most one."""
    folders = (folder / str(number) for number in itertools.count())
    progress = Progress()
    print(f"seed {seed}, {examples:,} histories")

    class CountedMachine(ReadBehindMachine):
        def teardown(self) -> None:
            progress.ended(self)
            super().teardown()

    try:
        run_histories(
            hypothesis.seed(seed)(lambda: CountedMachine(next(folders))),
            examples=examples,
            database=None,  # otherwise failures of other seeds would run first
        )
    except Exception:
        traceback.print_exc()
        progress.print_counts("  FAILED  ")
        return 1
    progress.print_counts("  ok      ")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run_in_folder(torture, command_line.new_parser(__doc__, examples=2000)))
