"""Clients request long replies and do not read them. The server's memory must stay bounded."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.server.running import PATIENCE_S, Processes, Server
from tests.torture.check_report import CheckReport

MIB: Final = 1 << 20
CONFIG: Final = 'queuePath = "queues"\nmaxTotalMemory = "32MiB"\n'
QUEUES: Final = 4000
CLIENTS: Final = 30
REQUESTS: Final = (b"stats\r\n", b"dump_stats\r\n")
MOST_GROWTH_BYTES: Final = 132 * MIB
"""`maxTotalMemory` and 100 MiB."""
RECEIVE_BUFFER_BYTES: Final = 4096
IDLE_S: Final = 1.0


def wait_until_idle(server: Server) -> None:
    """Wait until the server is idle, has used too much memory, or is busy for too long."""
    deadline = time.monotonic() + PATIENCE_S
    worked_s = -1.0
    while server.cpu_s() > worked_s + 0.05 * IDLE_S and time.monotonic() < deadline:
        worked_s = server.cpu_s()
        if server.memory_bytes() > 1024 * MIB:
            return
        time.sleep(IDLE_S)


def torture(folder: Path, storage: str, seed: int, report: CheckReport) -> None:
    """Create many queues, and request their statistics on many connections without reading the replies."""
    with Processes(folder) as processes, ExitStack() as stack:
        processes.arguments = ("--storage", f"{storage}:queues?reserve=64KiB")
        server = processes.serve(CONFIG)
        other = stack.enter_context(server.connect())
        for number in range(QUEUES):
            other.put(b"%05d" % number + b"q" * 120, b"x")
        before = server.memory_bytes()
        for number in range(CLIENTS):
            client = stack.enter_context(server.connect(receive_buffer=RECEIVE_BUFFER_BYTES))
            client.send(REQUESTS[number % len(REQUESTS)] * 5)
        wait_until_idle(server)
        growth = server.peak_memory_bytes() - before
        bound = f"grow the server by {growth / MIB:.0f} MiB, limit {MOST_GROWTH_BYTES / MIB:.0f}"
        report.check(growth <= MOST_GROWTH_BYTES, f"{storage}: {CLIENTS} clients that read no reply {bound}")
        other.send(b"set work 0 0 5\r\nhello\r\n")
        reply = other.line()
        report.check(reply == b"STORED\r\n", f"{storage}: other clients can put ({reply.decode().strip()})")
        server.kill()
