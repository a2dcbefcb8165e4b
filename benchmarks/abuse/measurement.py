"""The measurement of one abuse: an ordinary client's latency without and with it, in turn, on a new server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.abuse.abuse_process import Abuse, Fates, at_work
from benchmarks.abuse.ordinary_client import Bystander
from benchmarks.abuse.verdict import Round, Seen
from benchmarks.peers.servers import Cores, on_core
from tests.server.running import ANY_PORT, Processes, Server, eventually

CONFIG: Final = """queuePath = "queues"
maxOpenTransactions = 100
diskReserveSize = 0
requestTimeout = "{timeout}"
"""
TIMEOUT: Final = "10s"
PROTOCOLS: Final = ("memcache", "text", "thrift", "admin")
QUIET_SHARE: Final = 1 / 3
LET_GO_S: Final = 20.0
BURST: Final = ":backlog=1024"
"""A larger backlog: with a full one, connections of a burst are delayed by a second each."""
GONE: Final = (OSError, AssertionError, ValueError, IndexError, RuntimeError)
"""Errors of a client or check that count as a failure of the server."""


class Outcome(NamedTuple):
    """The measured figures, and the outcomes for the abuser."""

    seen: Seen
    fates: Fates


class Arena:
    """A folder with a server for each abuse."""

    def __init__(self, folder: Path, where: Cores, *, seconds: float, rounds: int, seed: int) -> None:
        self._folder = folder
        self._where = where
        self._seconds = seconds / rounds
        self._rounds = rounds
        self._seed = seed

    def measure(self, abuse: Abuse, progress: Callable[[str], None]) -> Outcome:
        """Run all rounds of an abuse, and return the result."""
        folder = self._folder / abuse.name.replace(" ", "-").replace("/", "-")
        folder.mkdir()
        for name, text in abuse.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        with Processes(folder) as processes:
            began = time.monotonic()
            config = CONFIG.format(timeout=TIMEOUT) if "requestTimeout" not in abuse.config else _OWN_TIMEOUT
            with on_core(self._where.server):
                server = processes.serve(config + abuse.config, *abuse.arguments(folder), endpoint=ANY_PORT + BURST)
            rounds: list[Round] = []
            fates: Fates = Counter()
            wrong: list[str] = []
            grown = lines = 0
            try:
                abuse.prepare(server)
                with server.connect() as client:
                    # The queue must exist before the abuse starts.
                    client.put(b"late", b"x")
                lines_before = server.logged().count("\n")
                ports = {protocol: server.port_of(protocol) for protocol in PROTOCOLS}
                with closing(Bystander(server)) as bystander:
                    # Warm up: the first requests take longer.
                    bystander.p99_ms(0.1)
                    before = server.memory_bytes()
                    # Reset the peak of the resident memory.
                    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
                    for number in range(self._rounds):
                        progress(f"{abuse.name}: round {number + 1} of {self._rounds}")
                        quiet_ms = bystander.p99_ms(self._seconds * QUIET_SHARE)
                        under_s = self._seconds * (1 - QUIET_SHARE)
                        with at_work(abuse, ports, folder, under_s, self._seed + number) as these:
                            rounds.append(Round(quiet_ms, bystander.p99_ms(under_s)))
                        fates.update(these)
                        grown = max(grown, server.peak_memory_bytes() - before)
                        _let_go(server)
                    bystander.p99_ms(0.05)
                with server.connect() as late:
                    late.put(b"late", b"y")
                    if [late.get(b"late"), late.get(b"late")] != [b"x", b"y"]:
                        raise ValueError("a client that connected after the abuse was not served")
                wrong += abuse.check(server)
                lines = server.logged().count("\n") - lines_before
            except GONE as error:
                wrong.append(f"{type(error).__name__}: {error}")
            if server.process.poll() is None:
                server.stop()
            if server.exit_status():
                wrong.append(f"the server ended with {server.exit_status()}")
            said = server.logged() + server.stdout() + server.stderr()
            if "Traceback" in said:
                wrong.append("a traceback in the log: " + _traceback_in(said))
            return Outcome(Seen(rounds, grown, lines, time.monotonic() - began, wrong), fates)


_OWN_TIMEOUT: Final = "\n".join(line for line in CONFIG.splitlines() if not line.startswith("requestTimeout")) + "\n"


def _let_go(server: Server) -> None:
    """Wait until the server has closed the abuser's connections."""

    def is_alone() -> bool:
        try:
            with server.connect() as client:
                client.send(b"stats\r\n")
                while not (line := client.line()).startswith(b"STAT curr_connections "):
                    if not line:
                        return False
                # Leave the figures of the queues unread. There may be many.
                return line.split()[-1] == b"2"
        # The server was still at its connection limit.
        except GONE:
            return False

    eventually(is_alone, "the server lets go of the abuser", within_s=LET_GO_S)


def _traceback_in(said: str) -> str:
    lines = said[said.index("Traceback") :].splitlines()
    return next((line.strip() for line in lines[1:] if line and not line[0].isspace()), "?")
