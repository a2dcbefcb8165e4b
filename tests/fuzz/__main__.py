"""Fuzzes the targets, each in a process of its own; replays inputs; writes the seeds.

    python -m tests.fuzz [TARGET ...] --seconds 60 --seed 1
    python -m tests.fuzz TARGET --replay FILE ...
    python -m tests.fuzz [TARGET ...] --seeds

What was found lies in build/fuzz afterwards. Replaying needs no atheris: the exception is raised where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz import target
from tests.fuzz.running import Length, Result, fuzz


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status: 1 where something was found."""
    arguments = _parser().parse_args(argv)
    names = arguments.targets or target.names()
    if unknown := sorted(set(names) - set(target.names())):
        sys.exit(f"there is no target {', '.join(unknown)}: there are {', '.join(target.names())}")
    if arguments.seeds:
        for name in names:
            write_seeds(name, target.CORPUS)
        return 0
    if arguments.replay:
        for name in names:
            replay(name, arguments.replay)
        return 0
    if find_spec("atheris") is None:
        sys.exit("atheris is not installed: `make fuzz` installs it, or pip install '.[fuzz]'")
    with ThreadPoolExecutor(arguments.jobs) as jobs:
        length = Length(arguments.seconds, arguments.runs)
        results = list(jobs.map(lambda name: fuzz(name, length, arguments.seed, arguments.build), names))
    return summed_up(results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the targets, or replay inputs.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(target.names())}; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target; default: 60")
    parser.add_argument("--runs", type=int, help="for each target, in place of a time: the same inputs each time")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers; default: 1")
    parser.add_argument("--jobs", type=int, default=1, help="how many targets at once; default: 1")
    parser.add_argument("--build", type=Path, default=Path("build/fuzz"), help="where findings and new inputs go")
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="give the target these inputs")
    parser.add_argument("--seeds", action="store_true", help="write the well-formed inputs to the corpus")
    return parser


def replay(name: str, files: Sequence[Path]) -> None:
    """Give a target these inputs; what they raise is raised."""
    check = target.load(name).check
    for file in files:
        check(file.read_bytes())
        print(f"{name}: {file}: nothing found")


def write_seeds(name: str, corpus: Path) -> None:
    """Write a target's seeds; whatever else lies there stays."""
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed, data in target.load(name).seeds().items():
        (folder / seed).write_bytes(data)


def summed_up(results: Sequence[Result]) -> int:
    """Say how many targets held. The exit status."""
    failed = sum(not result.has_passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
