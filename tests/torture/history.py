"""Tries random histories of queues that are larger than their memory, for as long as you like.

    python -m tests.torture.history --seed 1 --examples 2000

What may happen in a history, and what must hold, is `ReadBehindMachine`. The same seed tries the same histories. The
first one that fails is tried again in shorter and shorter forms, and the shortest is printed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Final

import hypothesis

from tests.storage.test_read_behind_history import ReadBehindMachine, run_histories

HISTORIES_A_LINE: Final = 100


class Progress:
    """What was tried so far, printed line by line."""

    def __init__(self) -> None:
        self.histories = 0
        self.steps = 0
        self._began = time.monotonic()

    def ended(self, machine: ReadBehindMachine) -> None:
        """One more history, to its end or to where it failed."""
        self.histories += 1
        self.steps += machine.steps
        if self.histories % HISTORIES_A_LINE == 0:
            self.tell("          ")

    def tell(self, mark: str) -> None:
        """A line of its own."""
        seconds = time.monotonic() - self._began
        print(f"{mark}{self.histories:,} histories, {self.steps:,} steps, {seconds:.0f} s", flush=True)


def torture(folder: Path, *, seed: int, examples: int) -> bool:
    """Try so many histories, a few more or less, and print how it goes. Returns whether all of them went well."""
    folders = (folder / str(number) for number in itertools.count())
    progress = Progress()
    print(f"seed {seed}, {examples:,} histories")

    class Told(ReadBehindMachine):
        def teardown(self) -> None:
            progress.ended(self)
            super().teardown()

    try:
        run_histories(
            hypothesis.seed(seed)(lambda: Told(next(folders))),
            examples=examples,
            database=None,  # what failed under another seed would be tried first
        )
    except Exception:
        traceback.print_exc()
        progress.tell("  FAILED  ")
        return False
    progress.tell("  ok      ")
    return True


def main() -> int:
    """Run from the command line. The exit status says whether every history went well."""
    parser = argparse.ArgumentParser(description="Try random histories of queues that are larger than their memory.")
    parser.add_argument("--seed", type=int, default=None, help="another one, other histories; default: the time")
    parser.add_argument("--examples", type=int, default=2000)
    arguments = parser.parse_args()
    seed = time.time_ns() if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as folder:
        is_well = torture(Path(folder), seed=seed, examples=arguments.examples)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
