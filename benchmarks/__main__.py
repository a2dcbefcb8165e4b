"""All benchmarks, or those that are named, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks import backlog, memory, open_files, reactor, replay
from benchmarks.harness import options_parser

BENCHMARKS: Final[Mapping[str, Callable[[Sequence[str]], None]]] = {
    "replay": replay.main,
    "memory": memory.main,
    "backlog": backlog.main,
    "reactor": reactor.main,
    "open_files": open_files.main,
}


def main() -> None:
    """Run from the command line; the options are passed on."""
    parser = options_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; default: all")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no benchmark {sorted(unknown)[0]}; there are {', '.join(BENCHMARKS)}")
    passed_on = [each for each in sys.argv[1:] if each not in BENCHMARKS]
    for name in options.names or BENCHMARKS:
        BENCHMARKS[name](passed_on)


if __name__ == "__main__":
    main()
