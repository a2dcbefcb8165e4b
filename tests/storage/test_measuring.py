"""What a storage does in files it tells the time of: to the queue that it was for, and to the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from kestrel.config.load import loads
from kestrel.storage.interfaces import IMeasuring
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.threads import SteppedThreads

SYNCED = "[default]\nsyncJournal = 0\n"
SMALL = """
[default]
defaultJournalSize = 2000
maxMemorySize = 1000
maxJournalSize = 4000
minJournalCompactDelay = "1s"
"""
ITEM = b"x" * 100


class SlowServer(MemoryServer):
    """A server over files, what is done to which in a thread takes a second."""

    def __init__(self, make: Any, folder: Path, config: str) -> None:
        self.threads = SteppedThreads()
        clock = Clock()
        storage = make(os.fsencode(folder), clock, self.threads, reserve_bytes=1000, now_ms=self.now_ms)
        super().__init__(storage, config=loads(config), clock=clock)
        self.work()

    def work(self) -> None:
        """Until nothing is left to be done."""
        self.settle()
        while len(self.threads):
            self.clock.advance(1)
            self.threads.run_one()
            self.settle()

    def ask(self, client: MemoryClient, *requests: bytes) -> bytes:
        """What is answered when all is done."""
        for request in requests:
            client.send(request)
            self.work()
        return client.take()

    def told(self, name: bytes, what: str) -> tuple[int, int]:
        """How often that was measured of a queue, and the sum."""
        queue = self.manager.known(name)
        assert queue is not None
        histogram = queue.histograms.all()[what]
        return histogram.count, histogram.sum


@pytest.fixture(params=[JournalStorage, ScrollStorage], ids=["journal", "scroll"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def put(name: bytes, data: bytes = ITEM) -> bytes:
    return b"set %b 0 0 %d\r\n%b\r\n" % (name, len(data), data)


def test_the_delay_of_a_sync_is_that_from_the_record_to_its_safety(make: Any, tmp_path: Path) -> None:
    server = SlowServer(make, tmp_path, SYNCED)
    assert server.ask(server.connect(), put(b"work")) == b"STORED\r\n"
    assert server.told(b"work", "fsync_delay_usec") == (1, 1_000_000)
    assert server.told(b"work", "set_latency_usec") == (1, 1_000_000)


def test_what_waits_for_a_sync_under_way_has_waited_since_it_was_written(make: Any, tmp_path: Path) -> None:
    server = SlowServer(make, tmp_path, SYNCED)
    one, other = server.connect(), server.connect()
    one.send(put(b"work"))
    server.settle()
    server.clock.advance(2)
    other.send(put(b"work"))
    server.settle()
    server.work()
    assert (one.take(), other.take()) == (b"STORED\r\n", b"STORED\r\n")
    count, total = server.told(b"work", "fsync_delay_usec")
    assert count == 2
    assert total >= 3_000_000 + 1_000_000


def test_without_a_sync_there_is_no_delay(make: Any, tmp_path: Path) -> None:
    server = SlowServer(make, tmp_path, "")
    server.ask(server.connect(), put(b"work"))
    assert server.told(b"work", "fsync_delay_usec") == (0, 0)


def test_going_over_to_another_file_is_measured(make: Any, tmp_path: Path) -> None:
    server = SlowServer(make, tmp_path, SMALL)
    server.ask(server.connect(), *[put(b"work")] * 60)
    queue = server.manager.known(b"work")
    assert queue is not None
    count, _ = server.told(b"work", "journal_rotation_usec")
    assert count >= queue.store.stats["journal_rotations"] > 0


def test_reading_what_is_on_disk_alone_is_measured(make: Any, tmp_path: Path) -> None:
    server = SlowServer(make, tmp_path, SMALL)
    large = b"y" * 8000
    client = server.connect()
    server.ask(client, *[put(b"work", large)] * 100)
    server.ask(client, *[b"get work\r\n"] * 100)
    count, total = server.told(b"work", "fill_readbehind_usec")
    assert count > 0
    assert total >= count * 1_000_000


def test_a_journal_that_is_written_anew_is_measured(tmp_path: Path) -> None:
    server = SlowServer(JournalStorage, tmp_path, SMALL)
    client = server.connect()
    server.ask(client, *[put(b"work"), put(b"work"), b"get work\r\n"] * 100)
    queue = server.manager.known(b"work")
    assert queue is not None
    stats = queue.store.stats
    count, total = server.told(b"work", "journal_rewrite_usec")
    assert count == stats["journal_rewrites"] + stats["journal_packs"] > 0
    assert total >= count * 1_000_000


def test_what_was_measured_of_a_deleted_queue_stays_the_servers(make: Any, tmp_path: Path) -> None:
    server = SlowServer(make, tmp_path, SYNCED)
    server.ask(server.connect(), put(b"work"), b"delete work\r\n")
    assert server.manager.deleted_queue_histograms.all()["fsync_delay_usec"].count >= 1
    assert server.manager.deleted_queue_histograms.puts == 1


def test_a_storage_without_files_measures_nothing() -> None:
    assert IMeasuring(MemoryStorage(), None) is None
