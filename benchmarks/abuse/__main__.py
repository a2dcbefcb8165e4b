"""Run all abuses, or the named ones, and print a line for each."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.abuse.abuse_process import NICE, SHARE, Abuse
from benchmarks.abuse.catalogue import ABUSES, NEED_ROOT
from benchmarks.abuse.connections import may_repair
from benchmarks.abuse.measurement import Arena, Outcome
from benchmarks.abuse.verdict import FLOOR_MS, LINES_PER_S, MOST_RATIO, SHORT_MS, failures
from benchmarks.peers.servers import cores, on_core
from kestrel.compiled import BUILD
from kestrel.server.process import raise_file_limit

ROUND_S: Final = 3.0
MOST_ROUNDS: Final = 3
IN_MEMORY: Final = "/dev/shm"


def rounds_of(seconds: float) -> int:
    """Return the number of rounds for that many seconds."""
    return max(1, min(MOST_ROUNDS, int(seconds / ROUND_S)))


def row(abuse: Abuse, outcome: Outcome, failed: list[str]) -> str:
    """Return the line of one abuse: the figures, and the most frequent outcomes for the abuser."""
    seen = outcome.seen
    figures = f"{'-':>9} {'-':>9} {'-':>6}"
    if seen.rounds:
        figures = f"{seen.quiet_ms:9.2f} {seen.abuse_ms:9.2f} {seen.ratio:6.1f}"
    fates = ", ".join(f"{count:,} {what}" for what, count in outcome.fates.most_common(4)) or "no outcome"
    mark = "FAILED" if failed else "ok"
    return (
        f"{mark:6}  {abuse.name:28} {figures} {seen.grown_bytes / (1 << 20):7.1f} {abuse.most_mib:5} "
        f"{seen.log_lines:6}  {fates}"
    )


def main() -> int:
    """Run from the command line. Return the exit status: 0 if all abuses passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="random seed (default 1)")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds for each abuse, including quiet rounds")
    parser.add_argument("--short", action="store_true", help="for noisy machines: raises the p99 floor a hundredfold")
    parser.add_argument("names", nargs="*", metavar="name", help="run only abuses whose name contains this")
    options = parser.parse_args()
    chosen = [each for each in ABUSES if not options.names or any(name in each.name for name in options.names)]
    if not chosen:
        parser.error(f"no abuse matches; choose from: {', '.join(each.name for each in ABUSES)}")
    floor_ms = SHORT_MS if options.short else FLOOR_MS
    rounds = rounds_of(options.seconds)
    raise_file_limit()
    print(
        f"seed {options.seed}, {options.seconds:g} s for each abuse in {rounds} rounds, a third of it quiet; {BUILD}.\n"
        f"The abuser is a process of nice value {NICE} that uses at most {SHARE:.0%} of a core, not the server's.\n"
        f"An abuse fails if p99 is over {MOST_RATIO:g} times the quiet p99 and at least {floor_ms:g} ms; if the"
        f" server exceeds its memory growth;\nif the ordinary client gets an error; or if the log has a traceback or "
        f"over {LINES_PER_S:g} lines a second.\n\n"
        f"        {'':28} {'p99 quiet':>9} {'abuse':>9} {'ratio':>6} {'growth':>7} {'limit':>5} {'log':>6}\n"
        f"        {'':28} {'ms':>9} {'ms':>9} {'':6} {'MiB':>7} {'MiB':>5} {'lines':>6}"
    )
    passed = failed_count = 0
    where = cores()
    folder = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kestrel-abuse-", dir=folder) as scratch, on_core(where.generator):
        arena = Arena(Path(scratch), where, seconds=options.seconds, rounds=rounds, seed=options.seed)
        for abuse in chosen:
            if abuse in NEED_ROOT and not may_repair():
                print(f"skipped  {abuse.name}: needs root, to close a connection without sending a packet", flush=True)
                continue
            outcome = arena.measure(abuse, _progress)
            _progress("")
            failed = failures(outcome.seen, abuse.most_mib << 20, floor_ms)
            passed += not failed
            failed_count += bool(failed)
            print(row(abuse, outcome, failed), flush=True)
            for each in failed:
                print(f"        {each}", flush=True)
    print(f"\n{passed} passed, {failed_count} failed, in {time.monotonic() - began:.0f} s")
    return 1 if failed_count else 0


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
