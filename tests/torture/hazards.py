"""Single hazards for a real server. Each has a module and checks of its own.

    python -m tests.torture.hazards --seed 1 --storage journal

    files    damage of a file while the server is down
    names    queue names of every kind, over deletions and restarts
    replies  clients that do not read long replies
    inodes   a file system without inodes
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from tests.torture import damage_while_down, no_inodes, strange_names, unread_replies
from tests.torture.kill_restart import Ledger

STORAGES: Final = ("journal", "scroll")


class Hazard(Protocol):
    """Exposes a server in this folder to one hazard, and checks the result."""

    def __call__(self, folder: Path, storage: str, seed: int, ledger: Ledger) -> None: ...


HAZARDS: Final[dict[str, Hazard]] = {
    "files": damage_while_down.torture,
    "names": strange_names.torture,
    "replies": unread_replies.torture,
    "inodes": no_inodes.torture,
}


def torture(names: Sequence[str], storages: Sequence[str], seed: int) -> int:
    """Run these hazards over these storages and print the ledger. Returns how many checks failed."""
    ledger = Ledger()
    for name in names:
        for storage in storages:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                HAZARDS[name](Path(folder), storage, seed, ledger)
            print(f"{name}, {storage}, seed {seed}: {time.monotonic() - began:.1f} s", flush=True)
    ledger.close()
    return ledger.failed


def main() -> int:
    """Run from the command line. The exit status says whether every check passed."""
    parser = argparse.ArgumentParser(description="Expose a server to single hazards.")
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--storage", choices=STORAGES, help="default: each of them")
    parser.add_argument("--hazard", action="append", choices=list(HAZARDS), help="only that one; may be repeated")
    arguments = parser.parse_args()
    seed = time.time_ns() if arguments.seed is None else arguments.seed
    storages = [arguments.storage] if arguments.storage else STORAGES
    return 1 if torture(arguments.hazard or list(HAZARDS), storages, seed) else 0


if __name__ == "__main__":
    sys.exit(main())
