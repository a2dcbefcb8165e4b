"""Comparison of kestrel with beanstalkd, Redis and memcached under the same work.

    python -m benchmarks.peers [--quick] [--before CHECKOUT] [--results FILE.json] [--picture FILE.svg]

Each server has its own folder below TMPDIR, listens on the loopback, and runs on one core. The load generator checks
every reply and runs on another core. In a round every server gets the same work for a short time, one after the other.
The result of kestrel is divided by that of each other server in the same round. Servers that are not installed are left
out. docs/performance.md describes the cases. Each case varies one parameter.

Missed goals are reported. The exit status is 0 unless a reply was wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import fairness
from benchmarks.harness import Results, options_parser, require_room, scratch_folder
from benchmarks.peers.cases import FULL, QUICK, SHORT
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.goals import OURS, Goal, goals, memory_goal
from benchmarks.peers.machine import IN_MEMORY, describe
from benchmarks.peers.ratio_chart import draw
from benchmarks.peers.report import COLUMNS, MEMORY_COLUMNS, curves, rows
from benchmarks.peers.servers import cores, on_core
from kestrel.config.units import GIB, MIB
from kestrel.server.process import raise_file_limit

TITLE: Final = "Items per second of kestrel, as a multiple of another server's"
SIZES: Final = {
    "full": (FULL, fairness.FULL, 6 * GIB),
    "quick": (QUICK, fairness.QUICK, 2 * GIB),
    "short": (SHORT, fairness.SHORT, GIB // 2),
}
"""The amount of work by form, and the disk space needed."""


def compare(
    form: str,
    seed: int,
    *,
    as_json: bool = False,
    checkout: Path | None = None,
    results_path: Path | None = None,
    picture_path: Path | None = None,
) -> list[Goal]:
    """Measure, print and write the results. Return the goals."""
    sizes, fairness_sizes, disk_bytes = SIZES[form]
    require_room(disk_bytes)
    raise_file_limit()
    where, machine = cores(), describe()
    if not as_json:
        for line in notes(machine):
            print(line)
    with scratch_folder() as folder, on_core(where.generator):
        comparison = Comparison(folder, where.server, sizes, seed, checkout)
        with Results("peers", COLUMNS, as_json=as_json) as results:
            measured = comparison.measure()
            for row in rows(measured):
                results.add(**row)
        with Results("memory", MEMORY_COLUMNS, as_json=as_json) as memory_results:
            memory = comparison.memory()
            for each in memory:
                memory_results.add(**each.row())
        with Results("fairness", fairness.COLUMNS, as_json=as_json) as fair:
            fairness.measure(fair, fairness_sizes, seed, comparison.generator, folder, where.server)
        longest_ms = comparison.longest_tick_ms()
    judged = goals(measured, comparison.build)
    limit_bytes = sizes.memory_mib * MIB
    of_ours = [each for each in memory if each.server in OURS]
    judged += [memory_goal(each.server, each.items, each.after_bytes, limit_bytes) for each in of_ours]
    if results_path is not None:
        told = {
            **machine,
            "form": form,
            "seed": seed,
            "build": comparison.build,
            "versions": comparison.versions,
            "commands": comparison.commands,
            "cases": results.rows,
            "memory": memory_results.rows,
            "fairness": fair.rows,
            "longest_tick_ms": longest_ms,
            "goals": [{**goal._asdict(), "is_seen": goal.is_seen} for goal in judged],
        }
        _write(results_path, json.dumps(told, indent=1) + "\n")
    if picture_path is not None:
        _write(picture_path, draw(TITLE, curves(measured)))
    if as_json:
        for goal in judged:
            print(json.dumps({"benchmark": "goals", **goal._asdict(), "is_seen": goal.is_seen}))
    else:
        print(f"\nLongest work of the reactor between two polls, syncing each reply: {longest_ms:.1f} ms\n")
        if form != "full":
            print("The goals apply to a full run. This run is too short to judge them.\n")
        print("\n".join(goal.line() for goal in judged))
    return judged


def notes(machine: dict[str, object]) -> list[str]:
    """Return warnings about the machine that readers of the figures need to know."""
    said = []
    if machine["cores"] == 1:
        said.append("There is only one core: the servers share it with the load generator, which slows them all.")
    if machine["file_system"] in IN_MEMORY:
        said.append(f"{machine['folder']} is in memory: a sync costs nothing there. Set TMPDIR to a folder on a disk.")
    return said


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"written: {path}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: takes under three minutes")
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="include the kestrel of that folder, such as an older commit's"
    )
    parser.add_argument("--results", type=Path, help="write all results to this JSON file")
    parser.add_argument("--picture", type=Path, help="draw the ratios to this SVG file")
    options = parser.parse_args(arguments)
    form = "short" if options.short else "quick" if options.quick else "full"
    if options.before is not None and not (options.before / "kestrel" / "__init__.py").is_file():
        parser.error(f"{options.before} is not a checkout of kestrel")
    compare(
        form,
        options.seed,
        as_json=options.json,
        checkout=options.before,
        results_path=options.results,
        picture_path=options.picture,
    )


if __name__ == "__main__":
    main()
