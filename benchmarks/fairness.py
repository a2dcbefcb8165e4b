"""Latency of fifty ordinary connections while another client disturbs the server.

    python -m benchmarks.fairness

Fifty connections of a real server process send sets and gets, one request in flight each. They are measured alone and
next to a disturbing client, in turn. The disturbing clients are: a flood of 100,000 pipelined requests, sent again and
again; items of 8 MiB; a client that requests much and reads little; and 10,000 idle connections. With two or more cores
the server gets its own. The server's memory growth is measured too.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import MB, Column, Results, options_parser, progress, scratch_folder, spread
from benchmarks.peers.generator import Figures, Generator, Load
from benchmarks.peers.servers import DEFAULT, KESTREL, Running, cores, on_core, running
from kestrel.config.units import MIB
from kestrel.server.process import raise_file_limit
from tests.server.running import Client

ORDINARY: Final = Load("memcache", connections=50, name="ordinary")
LEAST_OF_ALL: Final = 19
"""The nice value of disturbing generators: they must not take CPU time from the measured client."""
LEAD_S: Final = 0.2
"""Seconds that a disturbing client runs before the measurement starts."""
LOOKS_EVERY_S: Final = 0.05

COLUMNS: Final = (
    Column("beside", "beside"),
    Column("alone_p50_us", "alone: p50 us", ",.0f"),
    Column("alone_p99_us", "p99 us", ",.0f"),
    Column("p50_us", "beside it: p50 us", ",.0f"),
    Column("p99_us", "p99 us", ",.0f"),
    Column("p99_us_most", "worst round", ",.0f"),
    Column("max_us", "max us", ",.0f"),
    Column("throughput", "requests, to alone", ".2f"),
    Column("server_mb", "server grown by at most, MB", ",.1f"),
    Column("connections", "connections", ",d"),
    Column("bytes_each", "bytes each", ",.0f"),
)


class Sizes(NamedTuple):
    """The amount of work."""

    rounds: int
    seconds: float
    flood: int
    """Pipelined requests of the flood."""
    large_bytes: int
    slow_bytes: int
    """Bytes that the slow reader requests."""
    idle: int


FULL: Final = Sizes(3, 2.0, 100_000, 8 * MIB, 2_000 * MIB, 10_000)
QUICK: Final = Sizes(2, 0.5, 20_000, 8 * MIB, 500 * MIB, 10_000)
SHORT: Final = Sizes(1, 0.1, 2_000, MIB, 20 * MIB, 200)


class Memory:
    """The server's memory, sampled by a thread."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._before_bytes = self._most_bytes = server.memory_bytes()

    def look(self) -> None:
        """Sample the memory, and keep the maximum."""
        self._most_bytes = max(self._most_bytes, self._server.memory_bytes())

    @property
    def grown_bytes(self) -> int:
        """The maximum growth of the memory since the start."""
        return self._most_bytes - self._before_bytes


class Place(NamedTuple):
    """The server, generator and sizes that a disturbing client needs."""

    server: Running
    generator: Generator
    sizes: Sizes


Disturber = Callable[[Place], AbstractContextManager[None]]


@contextmanager
def _background(place: Place, load: Load) -> Iterator[None]:
    process = place.generator.start(load._replace(protocol="memcache"), place.server.port)
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, LEAST_OF_ALL)
        yield
        place.generator.finish(process, "the disturber")
    finally:
        process.kill()
        process.wait()


def flood(place: Place) -> AbstractContextManager[None]:
    """Run one connection that floods the server with pipelined requests."""
    sizes = place.sizes
    return _background(
        place, Load("", connections=1, pipeline=sizes.flood, seconds=sizes.seconds + LEAD_S, name="flood")
    )


def large(place: Place) -> AbstractContextManager[None]:
    """Run one connection that sets and gets large items."""
    sizes = place.sizes
    return _background(
        place, Load("", connections=1, size=sizes.large_bytes, seconds=sizes.seconds + LEAD_S, name="large")
    )


@contextmanager
def _now_and_then(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` every `LOOKS_EVERY_S` in a thread, while the block runs."""
    is_over = threading.Event()

    def act() -> None:
        while not is_over.wait(LOOKS_EVERY_S):
            action()

    acting = threading.Thread(target=act)
    acting.start()
    try:
        yield
    finally:
        is_over.set()
        acting.join()


@contextmanager
def slow_reader(place: Place) -> Iterator[None]:
    """Run a client that requests an item of 1 MiB many times, and reads 64 KiB now and then."""
    with Client(place.server.port, receive_buffer=1 << 16) as client, Client(place.server.port) as owner:
        owner.put(b"slow", bytes(MIB))
        client.send(b"get slow/peek\r\n" * (place.sizes.slow_bytes // MIB))
        try:
            with _now_and_then(lambda: client.receive(1 << 16)):
                yield
        finally:
            owner.send(b"delete slow\r\n")
            owner.expect(b"DELETED\r\n")


@contextmanager
def idle(place: Place) -> Iterator[None]:
    """Open idle connections. After each group, wait until the server has accepted it."""
    with ExitStack() as stack:
        for number in range(place.sizes.idle):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", place.server.port)))
            if number % 32 == 0:
                connection.sendall(b"version\r\n")
                connection.recv(100)
        yield


DISTURBERS: Final[dict[str, Disturber]] = {
    "a flood of requests": flood,
    "large items": large,
    "a slow reader": slow_reader,
    "idle connections": idle,
}


@contextmanager
def _watched(memory: Memory) -> Iterator[None]:
    try:
        with _now_and_then(memory.look):
            yield
    finally:
        memory.look()


def _beside(place: Place, disturber: Disturber, load: Load) -> tuple[Figures, int]:
    memory = Memory(place.server)
    with _watched(memory), disturber(place):
        time.sleep(LEAD_S)
        figures = place.server.work(place.generator, load)
    return figures, memory.grown_bytes


def measure(results: Results, sizes: Sizes, seed: int, generator: Generator, folder: Path, core: int) -> None:
    """Measure each disturbing client with a server of its own, and add the results."""
    raise_file_limit()
    load = ORDINARY._replace(seconds=sizes.seconds, seed=seed)
    for number, (name, disturber) in enumerate(DISTURBERS.items()):
        progress(f"fairness: beside {name}", number, len(DISTURBERS))
        with running(KESTREL, folder / f"fairness-{number}", DEFAULT, core) as server:
            place = Place(server, generator, sizes)
            # Warm up, so that the costs of a first run are not attributed to the disturbing client.
            server.work(generator, load)
            pairs = [(server.work(generator, load), *_beside(place, disturber, load)) for _ in range(sizes.rounds)]
        _add(results, name, pairs, sizes.idle if disturber is idle else 1)
    progress("", 1, 1)


def _add(results: Results, name: str, pairs: Sequence[tuple[Figures, Figures, int]], connections: int) -> None:
    alone, beside, grown = zip(*pairs, strict=True)
    most_grown = max(grown)
    worst = spread([each.p99_us for each in beside])
    results.add(
        beside=name,
        alone_p50_us=spread([each.p50_us for each in alone]).median,
        alone_p99_us=spread([each.p99_us for each in alone]).median,
        p50_us=spread([each.p50_us for each in beside]).median,
        p99_us=worst.median,
        p99_us_most=worst.most,
        max_us=max(each.max_us for each in beside),
        throughput=spread([there.requests_per_s / here.requests_per_s for here, there, _ in pairs]).median,
        server_mb=most_grown / MB,
        connections=connections,
        bytes_each=most_grown / connections,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: takes half a minute")
    options = parser.parse_args(arguments)
    sizes = SHORT if options.short else QUICK if options.quick else FULL
    where = cores()
    with (
        scratch_folder() as folder,
        on_core(where.generator),
        Results("fairness", COLUMNS, as_json=options.json) as results,
    ):
        measure(results, sizes, options.seed, Generator(folder), folder, where.server)


if __name__ == "__main__":
    main()
