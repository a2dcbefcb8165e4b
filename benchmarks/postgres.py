"""PostgreSQL beside the journal: requests per second through a server, with and without a synchronous standby.

The storages alternate, and each server starts with empty queues. Clients send one request after another. They put items
of 1 KiB, and take them as open reads, which they close. One process runs all clients. Both databases sync each commit.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import Column, Results, RunProgress, options_parser, scratch_folder, spread
from kestrel.testing.postgres import PrivateServer, programs
from tests.server.running import Processes

PUT: Final = b"set work 0 0 1024\r\n" + b"x" * 1024 + b"\r\n"
GET: Final = b"get work/close/open\r\n"
REPLY_BYTES: Final = {
    PUT: len(b"STORED\r\n"),
    GET: len(b"VALUE work/close/open 0 1024\r\n") + 1024 + len(b"\r\nEND\r\n"),
}
NAMES: Final = {PUT: "put", GET: "get and close"}

SYNCED: Final = "journal, syncJournal = 0"
NEVER: Final = 'journal, "never"'
POSTGRES: Final = "postgres"
REPLICATED: Final = "postgres, synchronous standby"
STORAGES: Final = (SYNCED, NEVER, POSTGRES, REPLICATED)

PATIENCE_S: Final = 60.0

COLUMNS: Final = (
    Column("request", "request"),
    Column("clients", "clients", "d"),
    Column("storage", "storage"),
    Column("per_s", "requests/s", ",.0f"),
    Column("ratio", "of the synced journal", ".2f"),
    Column("least", "least", ".2f"),
    Column("most", "most", ".2f"),
    Column("of_never", 'of "never"', ".2f"),
)


class Sizes(NamedTuple):
    """How much is measured: rounds, and items of all clients together by the number of clients."""

    rounds: int
    items: Mapping[int, int]


USUAL: Final = Sizes(7, {1: 400, 50: 8000})
SHORT: Final = Sizes(1, {1: 10, 2: 20})


@contextmanager
def described(storage: str, folder: Path) -> Iterator[str]:
    """Provide the description of an empty storage, whose database runs as long as the block."""
    with ExitStack() as stack:
        if storage == POSTGRES:
            yield f"postgres:{stack.enter_context(PrivateServer(is_synced=True)).conninfo}"
        elif storage == REPLICATED:
            primary = stack.enter_context(PrivateServer(is_synced=True, synchronous_standby_names="*"))
            stack.enter_context(PrivateServer(is_synced=True, standby_of=primary))
            yield f"postgres:{primary.conninfo}"
        else:
            yield f"journal:{folder / 'queues'}"


def per_second(port: int, clients: int, request: bytes, count: int) -> float:
    """Return the requests per second. Each client sends one request at a time."""
    reply_bytes = REPLY_BYTES[request]
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        missing: dict[socket.socket, int] = {}
        for _ in range(clients):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ)
            missing[connection] = reply_bytes
        begin = time.perf_counter()
        for connection in missing:
            connection.sendall(request)
        sent, done = clients, 0
        while done < count:
            ready = selector.select(PATIENCE_S)
            assert ready, "the server does not reply"
            for key, _ in ready:
                connection = key.fileobj  # type: ignore[assignment]
                missing[connection] -= len(connection.recv(reply_bytes))
                if missing[connection] == 0:
                    done += 1
                    if sent < count:
                        missing[connection] = reply_bytes
                        connection.sendall(request)
                        sent += 1
        return count / (time.perf_counter() - begin)


Rates = dict[tuple[bytes, int], float]
"""Requests per second, by request and number of clients."""


def rates_of(storage: str, sizes: Sizes) -> Rates:
    """Return the rates of a server with that storage."""
    with scratch_folder() as folder, described(storage, folder) as description, Processes(folder) as processes:
        sync = '"never"' if storage == NEVER else "0"
        server = processes.serve(f"[default]\nsyncJournal = {sync}\n", "--storage", description)
        rates = {
            (request, clients): per_second(server.port, clients, request, count)
            for clients, count in sizes.items.items()
            for request in (PUT, GET)
        }
        server.stop()
        return rates


def measure(results: Results, sizes: Sizes) -> None:
    """Add a row for each storage, request and number of clients."""
    progress = RunProgress(sizes.rounds * len(STORAGES))
    rounds: list[dict[str, Rates]] = []
    for _ in range(sizes.rounds):
        rounds.append({})
        for storage in STORAGES:
            progress.show(storage)
            rounds[-1][storage] = rates_of(storage, sizes)
            progress.step()
    progress.close()
    for clients in sizes.items:
        for request, name in NAMES.items():
            case = request, clients
            for storage in STORAGES:
                ratio = spread([each[storage][case] / each[SYNCED][case] for each in rounds])
                results.add(
                    request=name,
                    clients=clients,
                    storage=storage,
                    per_s=spread([each[storage][case] for each in rounds]).median,
                    ratio=ratio.median,
                    least=ratio.least,
                    most=ratio.most,
                    of_never=spread([each[storage][case] / each[NEVER][case] for each in rounds]).median,
                )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=USUAL.rounds, help=f"rounds (default {USUAL.rounds})")
    options = parser.parse_args(arguments)
    if programs() is None:
        sys.exit("postgres: PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with Results("postgres", COLUMNS, as_json=options.json) as results:
        measure(results, SHORT if options.short else USUAL._replace(rounds=options.rounds))


if __name__ == "__main__":
    main()
