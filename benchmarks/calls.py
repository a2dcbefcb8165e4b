"""Python calls that one request makes in the server: a measure of the length of the hot path.

    KESTREL_PURE=1 python -m benchmarks.calls [--list]

A server without network stores its queue in a journal. Each request is traced with `sys.setprofile` from the received
bytes to the end of its tick. Functions in C are not counted, and neither are compiled modules, so this needs
`KESTREL_PURE=1`. `--list` prints every call, indented by its depth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from benchmarks.harness import Column, Results, options_parser, scratch_folder
from benchmarks.hot_path import SocketlessServer
from kestrel.compiled import BUILD

REQUESTS: Final[tuple[tuple[str, bytes], ...]] = (
    ("set", b"set work 0 0 5\r\nhello\r\n"),
    ("get/open", b"get work/open\r\n"),
    ("get/close", b"get work/close\r\n"),
)

COLUMNS: Final = (
    Column("request", "request"),
    Column("calls", "calls", ",d"),
    Column("changes_of_file", "changes of file", ",d"),
)


class Call(NamedTuple):
    """A call of a Python function."""

    depth: int
    file: str
    function: str


def calls_of(work: Callable[[], None]) -> list[Call]:
    """Return the calls of Python functions that `work` makes, in order."""
    calls: list[Call] = []
    depth = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth
        if event == "call":
            code = frame.f_code
            calls.append(Call(depth, code.co_filename, code.co_qualname))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls[1:]  # without `work` itself


def trace() -> dict[str, list[Call]]:
    """Return the calls of each request, once the server has seen it before."""
    with scratch_folder() as folder:
        # The clock does not advance, because a histogram makes one more call for an item of 16 ms or more.
        server = SocketlessServer(folder, now_ms=lambda: 1_700_000_000_000)
        server.request(REQUESTS[0][1])  # the queue is never empty
        traced = {}
        for _ in range(3):
            for name, request in REQUESTS:
                traced[name] = calls_of(lambda request=request: server.request(request))  # type: ignore[misc]
        return traced


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--list", action="store_true", help="print every call")
    options = parser.parse_args(arguments)
    if BUILD != "pure":
        parser.error("compiled modules hide their calls; run it with KESTREL_PURE=1")
    traced = trace()
    if options.list:
        for name, calls in traced.items():
            print(f"{name}:")
            for call in calls:
                print(f"{'  ' * call.depth}{Path(call.file).name}: {call.function}")
    with Results("calls", COLUMNS, as_json=options.json) as results:
        for name, calls in traced.items():
            files = [call.file for call in calls]
            changes = sum(before != after for before, after in pairwise(files))
            results.add(request=name, calls=len(calls), changes_of_file=changes)


if __name__ == "__main__":
    main()
