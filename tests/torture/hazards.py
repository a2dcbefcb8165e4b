"""Exposes a real server to single hazards. Each hazard has a module with its own checks.

    python -m tests.torture.hazards --seed 1 --storage journal

    files    damage of a file while the server is down
    names    unusual queue names, over deletions and restarts
    replies  clients that do not read long replies
    inodes   a file system without free inodes
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from tests.torture import command_line, damage_while_down, no_inodes, unread_replies, unusual_names
from tests.torture.check_report import CheckReport

STORAGES: Final = ("journal", "scroll")


class Hazard(Protocol):
    """A function that exposes a server in a folder to a hazard and checks the result."""

    def __call__(self, folder: Path, storage: str, seed: int, report: CheckReport) -> None: ...


HAZARDS: Final[dict[str, Hazard]] = {
    "files": damage_while_down.torture,
    "names": unusual_names.torture,
    "replies": unread_replies.torture,
    "inodes": no_inodes.torture,
}


def torture(names: Sequence[str], storages: Sequence[str], seed: int) -> int:
    """Run these hazards with these storages and print a report. Return the number of failed checks."""
    report = CheckReport()
    for name in names:
        for storage in storages:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                HAZARDS[name](Path(folder), storage, seed, report)
            print(f"{name}, {storage}, seed {seed}: {time.monotonic() - began:.1f} s", flush=True)
    return report.finish()


def main() -> int:
    """Run from the command line. Return the exit status."""
    parser = command_line.new_parser(__doc__)
    parser.add_argument("--storage", choices=STORAGES, help="default: each of them")
    parser.add_argument("--hazard", action="append", choices=list(HAZARDS), help="only this hazard (repeatable)")
    arguments = command_line.parse(parser)
    storages = [arguments.storage] if arguments.storage else STORAGES
    return 1 if torture(arguments.hazard or list(HAZARDS), storages, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
