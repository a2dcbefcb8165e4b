"""Fuzzes targets, or replays inputs. Each target runs in a process of its own.

    python -m tests.fuzz [TARGET ...] --seconds 60 --seed 1
    python -m tests.fuzz TARGET --replay FILE ...

Findings are stored in build/fuzz. A replay does not need atheris, and raises the exception where it occurs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz import target
from tests.fuzz.runner import Result, RunLimit, fuzz


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit status, which is 1 if there are findings."""
    arguments = _parser().parse_args(argv)
    names = arguments.targets or target.names()
    if unknown := sorted(set(names) - set(target.names())):
        sys.exit(f"unknown target {', '.join(unknown)}; the targets are {', '.join(target.names())}")
    if arguments.replay:
        for name in names:
            replay(name, arguments.replay)
        return 0
    if find_spec("atheris") is None:
        sys.exit("atheris is not installed; run `make fuzz` or pip install '.[fuzz]'")
    with ThreadPoolExecutor(arguments.jobs) as jobs:
        limit = RunLimit(arguments.seconds, arguments.runs)
        results = list(jobs.map(lambda name: fuzz(name, limit, arguments.seed, arguments.build), names))
    return print_summary(results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the targets, or replay inputs.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all ({', '.join(target.names())})")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target (default: 60)")
    parser.add_argument("--runs", type=int, help="number of inputs for each target, instead of a time")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="number of targets to run at once (default: 1)")
    parser.add_argument("--build", type=Path, default=Path("build/fuzz"), help="folder for findings and new inputs")
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="run the target with these inputs")
    return parser


def replay(name: str, files: Sequence[Path]) -> None:
    """Run a target with these inputs. Its exceptions are not caught."""
    check = target.load(name).check
    for file in files:
        check(file.read_bytes())
        print(f"{name}: {file}: no finding")


def print_summary(results: Sequence[Result]) -> int:
    """Print how many targets passed. Return the exit status."""
    failed = sum(not result.has_passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
