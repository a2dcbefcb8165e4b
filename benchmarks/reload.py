"""Time that a reload of the configuration holds the reactor, with 10,000 queues.

    python -m benchmarks.reload

The queues are kept in journals and hold one item each. The server parses configurations in a thread, so they are parsed
beforehand. The benchmark measures the step that applies one. Configurations are applied in random order, and the empty
one between any two of them.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from twisted.internet.defer import execute

from benchmarks.harness import (
    Column,
    Results,
    in_fresh_process,
    options_parser,
    progress,
    scratch_folder,
    spread,
)
from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.config.resolved import ResolvedConfig
from kestrel.net.queue_server import QueueServer
from kestrel.server.assembly import Environment, assemble_server
from kestrel.server.process import raise_file_limit, use_monotonic_time
from kestrel.storage.folder_resources import wall_clock_ms
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.server import MemoryStatusFile

COLUMNS: Final = (
    Column("queues", "queues", ",d"),
    Column("change", "what is new"),
    Column("held_ms", "ms held", ".1f"),
    Column("held_ms_least", "best", ".1f"),
    Column("held_ms_most", "worst", ".1f"),
    Column("cpu_ms", "ms of CPU", ".1f"),
)

NOTHING: Final = "nothing"


class Sizes(NamedTuple):
    """The amount of work."""

    queues: int
    repeats: int


FULL: Final = Sizes(10_000, 5)
SHORT: Final = Sizes(1_000, 1)


class Held(NamedTuple):
    """The time that a tick held the reactor, in milliseconds."""

    clock_ms: float
    cpu_ms: float


def _names(count: int) -> list[str]:
    return [f"queue-{number:06d}" for number in range(count)]


def _table_for_each(count: int) -> str:
    return "".join(f'[[queues]]\nname = "{name}"\nmaxItems = {1 + len(name)}\n' for name in _names(count))


def _alias_for_each(count: int) -> str:
    return "".join(
        f'[[aliases]]\nname = "to-{name}"\ndestinationQueues = ["{name}"]\n' for name in _names(count)
    )


CHANGES: Final[Mapping[str, Callable[[int], str]]] = {
    NOTHING: lambda count: "",
    "a default": lambda count: "[default]\nmaxItems = 1_000_000\n",
    "syncJournal": lambda count: '[default]\nsyncJournal = "100ms"\n',
    "a table for each queue": _table_for_each,
    "an alias for each queue": _alias_for_each,
}
"""Functions that return a configuration for that many queues."""


class _Turns:
    """A replacement for the reactor's ticks: the calls scheduled for later."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], object]] = deque()

    def later(self, call: Callable[[], object]) -> None:
        self._soon.append(call)

    def settle(self) -> list[Held]:
        """Run all calls, tick by tick. Return the time that each tick held the reactor."""
        held = []
        while self._soon:
            began, cpu_began = time.perf_counter(), time.thread_time()
            for _ in range(len(self._soon)):
                self._soon.popleft()()
            held.append(Held((time.perf_counter() - began) * 1000, (time.thread_time() - cpu_began) * 1000))
        return held


def _server(folder: Path, config: Config, turns: _Turns) -> QueueServer:
    """Start a server in this process. Its timers belong to the real reactor, which does not run."""
    raise_file_limit()
    reactor: Any = import_module("twisted.internet.reactor")
    use_monotonic_time(reactor)
    environment = Environment(
        clock=reactor,
        seconds=time.monotonic,
        now_ms=wall_clock_ms,
        schedule=turns.later,
        in_thread=execute,
        make_storage=lambda limit: JournalStorage(
            os.fsencode(folder), reactor, execute, reserve_bytes=0, memory=limit
        ),
        status_file=MemoryStatusFile(),
    )
    control: Any = None  # no client connects
    server = assemble_server(ResolvedConfig(config), environment, control).core
    server.start()
    server.serve()
    return server


def reload(folder: Path, queues: int, changes: Sequence[str]) -> list[Held]:
    """Apply each of these changes to the empty configuration. Return the longest tick of each."""
    turns = _Turns()
    nothing = loads("")
    server = _server(folder, nothing, turns)
    for name in _names(queues):
        server.manager.put(name.encode(), b"x" * 64, 0)
    turns.settle()
    gc.collect()
    # The server does this after it has loaded its queues.
    gc.freeze()
    held = []
    for change in changes:
        # The server does this in a thread.
        resolved = ResolvedConfig(loads(CHANGES[change](queues)))
        turns.later(partial(server.use, resolved))
        held.append(max(turns.settle()))
        server.use(ResolvedConfig(nothing))
        turns.settle()
    server.close()
    return held


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure every change several times, and add the results."""
    dice = random.Random(seed)
    changes = [change for _ in range(sizes.repeats) for change in dice.sample(list(CHANGES), len(CHANGES))]
    progress("reload", 0, 1)
    with scratch_folder() as folder:
        all_held = in_fresh_process(reload, folder, sizes.queues, changes)
    progress("", 1, 1)
    for change in CHANGES:
        held = [each for name, each in zip(changes, all_held, strict=True) if name == change]
        by_clock = spread([each.clock_ms for each in held])
        results.add(
            queues=sizes.queues,
            change=change,
            held_ms=by_clock.median,
            held_ms_least=by_clock.least,
            held_ms_most=by_clock.most,
            cpu_ms=spread([each.cpu_ms for each in held]).median,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    with Results("reload", COLUMNS, as_json=options.json) as results:
        measure(results, SHORT if options.short else FULL, options.seed)


if __name__ == "__main__":
    main()
