"""CPU time of the server's own code for a put and a get, without network and reactor.

    python -m benchmarks.hot_path [--profile]
    KESTREL_PURE=1 python -m benchmarks.hot_path

Fifty connections share a queue, or have one each, in journals. Every connection receives its bytes, then the tick ends,
as in a reactor. Replies are counted and dropped. The CPU time of this process is divided by the number of requests.
`--profile` prints the functions that took the time. Functions of compiled modules appear only if they are called from
outside their module.
"""

from __future__ import annotations

import cProfile
import gc
import os
import pstats
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from twisted.internet.defer import execute
from twisted.internet.task import Clock

from benchmarks.harness import Column, Results, in_fresh_process, options_parser, scratch_folder, spread
from kestrel.compiled import BUILD
from kestrel.config.model import Config
from kestrel.config.resolved import ResolvedConfig
from kestrel.net.connection import Connection
from kestrel.server.assembly import Environment, assemble_server
from kestrel.storage.folder_resources import wall_clock_ms
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.server import MemoryStatusFile

CONNECTIONS: Final = 50
ITEM_BYTES: Final = 64
SHOWN: Final = 30
"""The number of functions shown in a profile."""

COLUMNS: Final = (
    Column("build", "build"),
    Column("queues", "queues", ",d"),
    Column("pipeline", "in flight", ",d"),
    Column("cpu_us", "us of CPU a request", ".2f"),
    Column("cpu_us_least", "best", ".2f"),
    Column("cpu_us_most", "worst", ".2f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    requests: int
    """Requests of each repetition."""
    repeats: int


FULL: Final = Sizes(200_000, 5)
SHORT: Final = Sizes(2_000, 1)
CASES: Final = tuple((queues, pipeline) for queues in (1, CONNECTIONS) for pipeline in (1, 16))


class _Replies:
    """A transport that counts replies and drops them."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: bytes) -> None:
        self.count += data.count(b"\r\nEND\r\n") + data.count(b"STORED\r\n")

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Do nothing: this transport never has to pause a producer."""


class SocketlessServer:
    """A server over journals in that folder, with its connections. Its ticks end when `end_tick` is called."""

    status: Any

    def __init__(self, folder: Path, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._soon: list[Callable[[], None]] = []
        clock = Clock()
        environment = Environment(
            clock=clock,
            seconds=time.monotonic,
            now_ms=now_ms,
            schedule=self._soon.append,
            in_thread=execute,
            make_storage=lambda _: JournalStorage(os.fsencode(folder), clock, execute, reserve_bytes=1),
            status_file=MemoryStatusFile(),
        )
        # Only `status` of the control object is used.
        parts = assemble_server(ResolvedConfig(Config()), environment, self)  # type: ignore[arg-type]
        self.status = parts.core.status
        parts.core.start()
        parts.core.serve()
        factory = parts.factories["memcache"]
        self.replies = _Replies()
        self.connections: list[Connection] = []
        for _ in range(CONNECTIONS):
            connection = factory.buildProtocol(None)
            assert isinstance(connection, Connection)
            connection.makeConnection(self.replies)
            self.connections.append(connection)

    def end_tick(self) -> None:
        """Run the calls that were scheduled for this tick."""
        soon = self._soon[:]
        self._soon.clear()
        for call in soon:
            call()

    def request(self, data: bytes) -> None:
        """Receive bytes on the first connection, and end the ticks that they begin."""
        self.connections[0].dataReceived(data)
        while self._soon:
            self.end_tick()

    def work(self, requests: int, queues: int, pipeline: int) -> int:
        """Send at least that many requests, half of them puts. Return the number of requests answered."""
        names = [b"q%d" % (number % queues) for number in range(CONNECTIONS)]
        puts = [b"set %b 0 0 %d\r\n%b\r\n" % (name, ITEM_BYTES, bytes(ITEM_BYTES)) * pipeline for name in names]
        gets = [b"get %b\r\n" % name * pipeline for name in names]
        wanted = self.replies.count + requests
        before = self.replies.count
        while self.replies.count < wanted:
            for each in (puts, gets):
                for connection, data in zip(self.connections, each, strict=True):
                    connection.dataReceived(data)
                # A tick may end before all pipelined requests are done.
                while self._soon:
                    self.end_tick()
        return self.replies.count - before


def cpu_us(folder: Path, queues: int, pipeline: int, sizes: Sizes) -> list[float]:
    """Return the CPU microseconds of a request, for each repetition."""
    server = SocketlessServer(folder)
    server.work(sizes.requests // 10, queues, pipeline)
    gc.collect()
    times = []
    for _ in range(sizes.repeats):
        began = time.process_time()
        count = server.work(sizes.requests, queues, pipeline)
        times.append((time.process_time() - began) / count * 1e6)
    return times


def measure(results: Results, sizes: Sizes) -> None:
    """Measure every case in a process of its own, and add the results."""
    for queues, pipeline in CASES:
        with scratch_folder() as folder:
            times = spread(in_fresh_process(cpu_us, folder, queues, pipeline, sizes))
        results.add(
            build=BUILD,
            queues=queues,
            pipeline=pipeline,
            cpu_us=times.median,
            cpu_us_least=times.least,
            cpu_us_most=times.most,
        )


def profile(sizes: Sizes) -> None:
    """Print a profile of one queue with 16 requests in flight."""
    with scratch_folder() as folder:
        server = SocketlessServer(folder)
        server.work(sizes.requests // 10, 1, 16)
        profiler = cProfile.Profile()
        profiler.enable()
        server.work(sizes.requests, 1, 16)
        profiler.disable()
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(SHOWN)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--profile", action="store_true", help="show the functions that take the time")
    options = parser.parse_args(arguments)
    sizes = SHORT if options.short else FULL
    if options.profile:
        profile(sizes)
        return
    with Results("hot_path", COLUMNS, as_json=options.json) as results:
        measure(results, sizes)


if __name__ == "__main__":
    main()
