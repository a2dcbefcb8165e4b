"""The command line of the tortures that kill a server."""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tests.cluster.zookeeper import ZooKeeper, running_zookeeper
from tests.server.running import Processes
from tests.server.storages import NAMES, new_storage


class Torture(Protocol):
    """One that puts so many items over so many kills. Returns how many checks failed."""

    def __call__(self, processes: Processes, *, seed: int, item_count: int, kills: int) -> int: ...


def run(torture: Torture, description: str, *, items: int, kills: int, storage: str | None = "journal") -> int:
    """Run it as the command line says, or with so many items and kills. The exit status says whether all checks passed.

    With None for `storage` it has its own.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=None, help="another one, another story; default: the time")
    parser.add_argument("--items", type=int, default=items)
    parser.add_argument("--kills", type=int, default=kills)
    if storage is not None:
        parser.add_argument("--storage", choices=NAMES, default=storage)
    arguments = parser.parse_args()
    seed = time.time_ns() if arguments.seed is None else arguments.seed
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = stack.enter_context(Processes(folder))
        if storage is not None:
            processes.arguments = ("--storage", stack.enter_context(new_storage(arguments.storage)))
        failed = torture(processes, seed=seed, item_count=arguments.items, kills=arguments.kills)
    return 1 if failed else 0


class TortureOverZooKeeper(Protocol):
    """One of servers that have joined a ZooKeeper, with so many rounds. Prints its figures; how many checks failed."""

    def __call__(self, zookeeper: ZooKeeper, processes: Processes, seed: int, rounds: int) -> int: ...


def run_over_zookeeper(torture: TortureOverZooKeeper, description: str, *, rounds: str, default: int) -> int:
    """Run it as the command line says, which calls the rounds by that name. The exit status is that of `run`."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="another one, another story")
    parser.add_argument(f"--{rounds}", type=int, default=default, dest="rounds")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_zookeeper(Path(folder, "zookeeper")) as zookeeper,
        Processes(Path(folder)) as processes,
    ):
        failed = torture(zookeeper, processes, arguments.seed, arguments.rounds)
    return 1 if failed else 0
