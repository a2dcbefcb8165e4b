"""Reactor time of requests to the admin port, with 2,000 queues.

    python -m benchmarks.admin

The queues are kept in journals. Items were put to and taken from each of them. Responses are produced in time slices,
as the server does it, so that other work can run in between. The benchmark measures the total time of the slices of
each response, and the longest slice. It does not send or parse the responses.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import (
    Column,
    GoalMissed,
    Results,
    in_fresh_process,
    options_parser,
    progress,
    scratch_folder,
    spread,
)
from kestrel.admin.history import SAMPLES
from kestrel.admin.request_response import AdminRequest, AdminResponse
from kestrel.admin.routes import Routes
from kestrel.admin.server_view import ServerView
from kestrel.admin.time_slices import SLICE_S, make_cooperator
from kestrel.testing.server import MemoryServer

CALLS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "/metrics": (b"metrics",),
    "/api/overview": (b"api", b"overview"),
    "/api/server": (b"api", b"server"),
    "/stats.json": (b"stats.json",),
    "/api/history, of 100": (b"api", b"history"),
}
BOUNDED: Final = ("/metrics", "/api/overview")
"""The paths that dashboards and monitoring request again and again."""
MOST_MS: Final = 100.0
LONGEST_MS: Final = 10.0
SAMPLE: Final = "(a sample for the history)"

COLUMNS: Final = (
    Column("queues", "queues", ",d"),
    Column("call", "what is asked for"),
    Column("kb", "kB", ",.0f"),
    Column("total_ms", "ms in all", ".1f"),
    Column("total_ms_most", "worst", ".1f"),
    Column("slices", "slices", ",d"),
    Column("longest_ms", "longest", ".1f"),
    Column("longest_ms_most", "worst", ".1f"),
)


class Sizes(NamedTuple):
    """The number of queues and repetitions."""

    queues: int
    repeats: int


FULL: Final = Sizes(2_000, 15)
SHORT: Final = Sizes(100, 2)


class Made(NamedTuple):
    """A response: its size in bytes, and the seconds that each slice took."""

    size: int
    slices_s: Sequence[float]


def _made(pieces: Iterator[bytes]) -> Made:
    """Produce a response in slices, as the server does."""
    size, slices = 0, []
    is_over = False
    while not is_over:
        began = time.perf_counter()
        while True:
            piece = next(pieces, None)
            is_over = piece is None
            size += len(piece or b"")
            now = time.perf_counter()
            if is_over or now - began >= SLICE_S:
                break
        slices.append(now - began)
    return Made(size, slices)


def answers(folder: Path, queues: int, repeats: int) -> dict[str, list[Made]]:
    """Make each call `repeats` times to a server with that many queues. Return the responses by call."""
    server = MemoryServer(folder=folder)
    for number in range(queues):
        name = b"queue-%06d" % number
        for size in (10, 64, 300, 1000, 20_000):
            server.manager.put(name, b"x" * size, 0)
        server.manager.queue(name).take_now(opens=False)
        server.manager.queue(name).take_now(opens=True)
        if number % 100 == 0:
            server.settle()
            server.clock.advance(0.001 * number)
    server.settle()
    gc.collect()
    # The server does this after it has loaded its queues.
    gc.freeze()
    server_view = ServerView(server.core, server.control, "journal:/queues", time.monotonic, lambda: True)
    routes = Routes(server_view, server.clock, make_cooperator(server.clock))
    for _ in range(SAMPLES):
        _made(_without_words(routes.history.sampling))
    made: dict[str, list[Made]] = {call: [] for call in [*CALLS, SAMPLE]}
    for _ in range(repeats):
        for call, path in CALLS.items():
            answer = routes.handle(
                AdminRequest("GET", path, {"queue": [b"queue-%06d" % number for number in range(100)]})
            )
            assert isinstance(answer, AdminResponse)
            made[call].append(_made(iter(answer.pieces)))
            answer.done()
        made[SAMPLE].append(_made(_without_words(routes.history.sampling)))
    server.stop()
    return made


def _without_words(steps: Callable[[], Iterator[None]]) -> Iterator[bytes]:
    for _ in steps():
        yield b""


def measure(results: Results, sizes: Sizes) -> None:
    """Measure every call, and add the results."""
    progress("admin", 0, 1)
    with scratch_folder() as folder:
        made = in_fresh_process(answers, folder, sizes.queues, sizes.repeats)
    progress("", 1, 1)
    for call, each in made.items():
        total = spread([sum(one.slices_s) * 1000 for one in each])
        longest = spread([max(one.slices_s) * 1000 for one in each])
        results.add(
            queues=sizes.queues,
            call=call,
            kb=each[0].size / 1000,
            total_ms=total.median,
            total_ms_most=total.most,
            slices=len(each[0].slices_s),
            longest_ms=longest.median,
            longest_ms_most=longest.most,
        )


def check(results: Results) -> None:
    """Raise GoalMissed if a call in `BOUNDED` took longer than `MOST_MS`, or a slice of it longer than `LONGEST_MS`."""
    missed = [
        f"{row['call']} took {row['total_ms']:.0f} ms of the reactor, {row['longest_ms']:.1f} ms at a time"
        for row in results.rows
        if row["call"] in BOUNDED and (float(row["total_ms"]) >= MOST_MS or float(row["longest_ms"]) > LONGEST_MS)
    ]
    if missed:
        raise GoalMissed("; ".join(missed))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    with Results("admin", COLUMNS, as_json=options.json) as results:
        measure(results, SHORT if options.short else FULL)
        if not options.short:
            check(results)


if __name__ == "__main__":
    main()
