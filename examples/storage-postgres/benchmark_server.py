"""A benchmark of servers with PostgreSQL and with journals: `python benchmark_server.py [--rounds 5]`.

Three servers alternate, each with empty queues: a journal that syncs before each reply, a journal without syncs (the
default of Kestrel), and a private PostgreSQL. Clients send one request after another. They put items of 1 KiB, and take
them as open reads, which they close. One process runs all clients.
"""

from __future__ import annotations

import argparse
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from kestrel_postgres.testing import PrivateServer

PUT: Final = b"set work 0 0 1024\r\n" + b"x" * 1024 + b"\r\n"
GET: Final = b"get work/close/open\r\n"

JOURNAL: Final = "journal, syncJournal = 0"
NEVER: Final = 'journal, syncJournal = "never"'
POSTGRES: Final = "postgres"

MEASURES: Final = {"1 client": (1, 400), "50 clients": (50, 8000)}
"""Number of clients and total number of items of each measurement."""

PATIENCE_S: Final = 30.0


@contextmanager
def server(storage: str, sync: str) -> Iterator[int]:
    """Run a server with this storage and `syncJournal`, and give its memcache port."""
    with tempfile.TemporaryDirectory(prefix="kestrel-benchmark-") as folder, ExitStack() as stack:
        config = Path(folder, "kestrel.toml")
        config.write_text(f"[default]\nsyncJournal = {sync}\n")
        command = [str(Path(sys.executable).with_name("twistd")), "--nodaemon", "--pidfile=", "kestrel"]
        command += ["--config", str(config), "--storage", storage.format(folder=folder)]
        for protocol in ("memcache", "text", "thrift"):
            command += [f"--{protocol}", "tcp:0:interface=127.0.0.1"]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        assert process.stdout is not None
        port = 0
        for line in process.stdout:
            if found := re.search(r"memcache: listening on 127\.0\.0\.1:(\d+)", line):
                port = int(found[1])
            if " serves " in line:
                break
        yield port


def per_second(port: int, clients: int, request: bytes, reply_bytes: int, count: int) -> float:
    """Return the requests per second. Each client sends one request at a time; a reply has `reply_bytes`."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(clients):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ)
        sent = done = 0
        missing: dict[object, int] = {}
        begin = time.perf_counter()
        for key in selector.get_map().values():
            missing[key.fileobj] = reply_bytes
            key.fileobj.sendall(request)  # type: ignore[union-attr]
            sent += 1
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


def figures(storage: str, sync: str) -> dict[str, float]:
    """Return the result of each measurement on a server with empty queues."""
    found = {}
    with server(storage, sync) as port:
        for name, (clients, count) in MEASURES.items():
            found[f"put, {name}"] = per_second(port, clients, PUT, len(b"STORED\r\n"), count)
            value = len(b"VALUE work/close/open 0 1024\r\n") + 1024 + len(b"\r\nEND\r\n")
            found[f"get and close, {name}"] = per_second(port, clients, GET, value, count)
    return found


def main() -> None:
    """Measure the three servers alternately, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds: dict[str, list[dict[str, float]]] = {JOURNAL: [], NEVER: [], POSTGRES: []}
    for _ in range(parser.parse_args().rounds):
        rounds[JOURNAL].append(figures("journal:{folder}/queues", "0"))
        rounds[NEVER].append(figures("journal:{folder}/queues", '"never"'))
        with PrivateServer(is_synced=True) as database:
            rounds[POSTGRES].append(figures(f"postgres:{database.conninfo}", "0"))
    print(f"{'requests per second':26} {JOURNAL:>26} {NEVER:>32} {POSTGRES:>10}   ratio to both (minimum to maximum)")
    for name in rounds[JOURNAL][0]:
        middle = [median(each[name] for each in side) for side in rounds.values()]
        ratios = [
            [theirs[name] / ours[name] for ours, theirs in zip(rounds[kind], rounds[POSTGRES], strict=True)]
            for kind in (JOURNAL, NEVER)
        ]
        spreads = [f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in ratios]
        print(f"{name:26} {middle[0]:26,.0f} {middle[1]:32,.0f} {middle[2]:10,.0f}   {'; '.join(spreads)}")


if __name__ == "__main__":
    main()
