"""The command line of the tortures that kill a server."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Protocol

from tests.server.running import Processes


class Torture(Protocol):
    """One that puts so many items over so many kills. Returns how many checks failed."""

    def __call__(self, processes: Processes, *, seed: int, item_count: int, kills: int) -> int: ...


def run(torture: Torture, description: str, *, items: int, kills: int) -> int:
    """Run it as the command line says, or with so many items and kills. The exit status says whether all checks passed.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=None, help="another one, another story; default: the time")
    parser.add_argument("--items", type=int, default=items)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--storage", default="journal", help="the backend: journal or scroll")
    arguments = parser.parse_args()
    seed = time.time_ns() if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        processes.arguments = ("--storage", f"{arguments.storage}:queues")
        failed = torture(processes, seed=seed, item_count=arguments.items, kills=arguments.kills)
    return 1 if failed else 0
