"""A storage measures how long its work in files takes, for the queue and for the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel.config.load import loads
from kestrel.storage.interfaces import IMeasuring
from kestrel.storage.memory import MemoryStorage
from kestrel.testing.server import MemoryClient
from tests.storage.backends import Backend, MakeStorage, journal_only
from tests.storage.threaded_server import ThreadedServer

SYNCED = "[default]\nsyncJournal = 0\n"
SMALL = """
[default]
defaultJournalSize = 2000
maxMemorySize = 1000
maxJournalSize = 4000
minJournalCompactDelay = "1s"
"""
STORED = b"STORED\r\n"
PUT = b"set work 0 0 100\r\n%b\r\n" % (b"x" * 100)
PUT_LARGE = b"set work 0 0 8000\r\n%b\r\n" % (b"y" * 8000)
GET = b"get work\r\n"


class SlowServer(ThreadedServer):
    """A server whose thread jobs take a second each."""

    def __init__(self, make_storage: MakeStorage, folder: Path, config: str) -> None:
        super().__init__(folder, loads(config), make_storage)
        self.run_jobs()

    def run_jobs(self) -> None:
        """Run all jobs and ticks."""
        self.settle()
        while len(self.threads):
            self.clock.advance(1)
            self.threads.run_one()
            self.settle()

    def ask(self, *requests: bytes, client: MemoryClient | None = None) -> bytes:
        """Send requests, run the jobs of each, and return all replies."""
        client = client or self.connect()
        for request in requests:
            client.send(request)
            self.run_jobs()
        return client.take()

    def measured(self, name: str) -> tuple[int, int]:
        """Return the count and the sum of a histogram of "work"."""
        histogram = self.manager.known(b"work").histograms.all()[name]
        return histogram.count, histogram.sum

    def stat(self, name: str) -> int:
        return self.manager.known(b"work").store.stats[name]


Start = Callable[[str], SlowServer]


@pytest.fixture
def start(tmp_path: Path, backend: Backend) -> Start:
    """A function that starts a server with a configuration."""
    return lambda config: SlowServer(backend.make, tmp_path, config)


def test_sync_delay_runs_from_the_write_to_the_sync(start: Start) -> None:
    server = start(SYNCED)
    assert server.ask(PUT) == STORED
    assert server.measured("fsync_delay_usec") == (1, 1_000_000)
    assert server.measured("set_latency_usec") == (1, 1_000_000)


def test_sync_delay_includes_the_wait_for_a_running_sync(start: Start) -> None:
    server = start(SYNCED)
    first, second = server.connect(), server.connect()
    first.send(PUT)
    server.settle()
    server.clock.advance(2)
    assert server.ask(PUT, client=second) == STORED
    assert first.take() == STORED
    count, total = server.measured("fsync_delay_usec")
    assert count == 2
    assert total >= 3_000_000 + 1_000_000


def test_unsynced_queue_has_no_sync_delay(start: Start) -> None:
    server = start("")
    server.ask(PUT)
    assert server.measured("fsync_delay_usec") == (0, 0)


def test_rotations_are_measured(start: Start) -> None:
    server = start(SMALL)
    server.ask(*[PUT] * 60)
    count, _ = server.measured("journal_rotation_usec")
    assert count >= server.stat("journal_rotations") > 0


def test_reads_from_disk_are_measured(start: Start) -> None:
    server = start(SMALL)
    server.ask(*[PUT_LARGE] * 100, *[GET] * 100)
    count, total = server.measured("fill_readbehind_usec")
    assert count > 0
    assert total >= count * 1_000_000


@journal_only
def test_rewrites_are_measured(start: Start) -> None:
    server = start(SMALL)
    server.ask(*[PUT, PUT, GET] * 100)
    count, total = server.measured("journal_rewrite_usec")
    assert count == server.stat("journal_rewrites") + server.stat("journal_packs") > 0
    assert total >= count * 1_000_000


def test_server_keeps_the_times_of_deleted_queues(start: Start) -> None:
    server = start(SYNCED)
    server.ask(PUT, b"delete work\r\n")
    assert server.manager.deleted_queue_histograms.all()["fsync_delay_usec"].count >= 1
    assert server.manager.deleted_queue_histograms.puts == 1


def test_memory_storage_measures_nothing() -> None:
    assert IMeasuring(MemoryStorage(), None) is None
