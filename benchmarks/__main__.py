"""Run all benchmarks, or the named ones, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks import (
    admin,
    backlog,
    calls,
    expiry,
    fanout,
    hot_path,
    memory,
    open_files,
    operations,
    postgres,
    reactor,
    reload,
    replay,
    restart,
    scale,
    slow_reader,
    spark,
    streams,
)
from benchmarks.harness import GoalMissed, options_parser

BENCHMARKS: Final[Mapping[str, Callable[[Sequence[str]], None]]] = {
    "admin": admin.main,
    "hot_path": hot_path.main,
    "calls": calls.main,
    "replay": replay.main,
    "memory": memory.main,
    "backlog": backlog.main,
    "reactor": reactor.main,
    "open_files": open_files.main,
    "expiry": expiry.main,
    "fanout": fanout.main,
    "reload": reload.main,
    "operations": operations.main,
    "restart": restart.main,
    "postgres": postgres.main,
    "scale": scale.main,
    "slow_reader": slow_reader.main,
    "spark": spark.main,
    "streams": streams.main,
}


def main() -> None:
    """Run from the command line. Options are passed on to the benchmarks."""
    parser = options_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {sorted(unknown)[0]}; choose from {', '.join(BENCHMARKS)}")
    passed_on = [each for each in sys.argv[1:] if each not in BENCHMARKS]
    missed = []
    for name in options.names or BENCHMARKS:
        try:
            BENCHMARKS[name](passed_on)
        except GoalMissed as goal_missed:
            missed.append(str(goal_missed))
    if missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
