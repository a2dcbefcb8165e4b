"""The command lines of the torture programs."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tests.cluster.zookeeper import ZooKeeper, running_zookeeper
from tests.server.running import Processes
from tests.server.storages import NAMES, new_storage


def new_parser(description: str | None, **numbers: int) -> argparse.ArgumentParser:
    """Return a parser with the first line of a description, `--seed`, and an option for each number and its default."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, help="random seed (default: the time)")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default:,}")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line. Without `--seed`, use the time as the seed."""
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = time.time_ns()
    return arguments


def run_in_folder(torture: Callable[..., int], parser: argparse.ArgumentParser) -> int:
    """Call a torture with a temporary folder and the options of the command line. Return the exit status.

    The torture returns the number of failed checks.
    """
    arguments = parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        return 1 if torture(Path(folder), **vars(arguments)) else 0


class Torture(Protocol):
    """A run that processes items while it kills the server. Returns the number of failed checks."""

    def __call__(self, processes: Processes, *, seed: int, item_count: int, kills: int) -> int: ...


def run(torture: Torture, description: str | None, *, items: int, kills: int, storage: str | None = "journal") -> int:
    """Run a torture as the command line says. Return the exit status.

    `items` and `kills` are defaults. With None for `storage` the torture creates its own storage.
    """
    parser = new_parser(description, items=items, kills=kills)
    if storage is not None:
        parser.add_argument("--storage", choices=NAMES, default=storage)

    def run_torture(folder: Path, *, seed: int, items: int, kills: int, storage: str | None = None) -> int:
        with Processes(folder) as processes, ExitStack() as stack:
            if storage is not None:
                processes.arguments = ("--storage", stack.enter_context(new_storage(storage)))
            return torture(processes, seed=seed, item_count=items, kills=kills)

    return run_in_folder(run_torture, parser)


class ZooKeeperTorture(Protocol):
    """A run of servers that have joined a ZooKeeper. Prints its results and returns the number of failed checks."""

    def __call__(self, zookeeper: ZooKeeper, processes: Processes, seed: int, rounds: int) -> int: ...


def run_with_zookeeper(torture: ZooKeeperTorture, description: str | None, *, option: str, default: int) -> int:
    """Run a torture with a ZooKeeper as the command line says. `option` sets the rounds. Return the exit status."""

    def run_torture(folder: Path, *, seed: int, **rounds: int) -> int:
        with running_zookeeper(folder / "zookeeper") as zookeeper, Processes(folder) as processes:
            return torture(zookeeper, processes, seed, rounds[option])

    return run_in_folder(run_torture, new_parser(description, **{option: default}))
