"""Random histories on a failing disk: no refused item is delivered, and no acknowledged item is lost.

Items also have a delay, expire into another queue, or fail too often, so they move while the disk fails.
"""

from __future__ import annotations

import errno
import re
from collections import deque
from pathlib import Path
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kestrel.config.load import loads
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.contract.history import run_histories
from tests.config_tables import queue
from tests.memcache_text import END, set_
from tests.sample import examples
from tests.storage.threaded_server import ThreadedServer

CONFIG: Final = loads(
    "maxOpenTransactions = 100\n[default]\nsyncJournal = 0\n"
    + queue("work", "expireToQueue = 'late'\nmaxRedeliveries = 2\nerrorQueue = 'bad'")
)
QUEUES: Final = (b"work", b"late", b"bad")
KEYS: Final = (b"work", b"late", b"work/delay=1", b"late/delay=1", b"work/delay=2000")
REPLY: Final = re.compile(rb"(?:VALUE \S+ 0 \d+\r\n(\d+)\r\n)?([A-Z_]+)[^\r\n]*\r\n")
"""A reply to a put or a get. The data of each item is a number."""
LONG_S: Final = 5.0
"""More than all delays, expiry times and pauses."""

Storage = type[JournalStorage] | type[ScrollStorage]


class FailingDisk(RuleBasedStateMachine):
    """Three clients of a server. A step fails the disk, ends one job of a thread, or passes time."""

    def __init__(self, make_storage: Storage, folder: Path) -> None:
        super().__init__()
        self.server = ThreadedServer(folder, CONFIG, make_storage)
        self.server.end_threads()
        self.clients = [self.server.connect() for _ in range(3)]
        self.asked: list[deque[bytes | None]] = [deque() for _ in self.clients]
        """The requests of each client without a reply: the item of a put, or None for a get."""
        self.puts = 0
        self.acknowledged: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.delivered: set[bytes] = set()

    @rule(
        client=st.integers(0, 2),
        puts=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([0, -1, 1])), min_size=1, max_size=4),
    )
    def put(self, client: int, puts: list[tuple[bytes, int]]) -> None:
        for key, expiry in puts:
            self.puts += 1
            data = b"%d" % self.puts
            self.asked[client].append(data)
            self.clients[client].send(set_(key, data, expiry if key == b"work" else 0))

    @rule(client=st.integers(0, 2), name=st.sampled_from(QUEUES), end=st.sampled_from([b"close/open", b"abort"]))
    def get(self, client: int, name: bytes, end: bytes) -> None:
        self.asked[client].append(None)
        self.clients[client].send(b"get %b/%b\r\n" % (name, end))

    @rule(seconds=st.sampled_from([0.001, 1.0, LONG_S]))
    def pass_time(self, seconds: float) -> None:
        self.server.advance(seconds)

    @rule(
        operation=st.sampled_from(["sync", "write", "sync_folder"]),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
        times=st.integers(1, 3),
        after=st.integers(0, 3),
    )
    def fail(self, operation: str, error: int, times: int, after: int) -> None:
        self.server.disk.fail(operation, error, times=times, after=after)

    @rule()
    def mend(self) -> None:
        self.server.disk.mend()

    @precondition(lambda self: len(self.server.threads) > 0)
    @rule()
    def end_a_job(self) -> None:
        self.server.threads.run_one()

    @rule()
    def read_replies(self) -> None:
        for client, asked in zip(self.clients, self.asked, strict=True):
            for item, result in REPLY.findall(client.take()):
                data = asked.popleft()
                if item:
                    self.delivered.add(item)
                elif data is not None:
                    (self.acknowledged if result == b"STORED" else self.refused).add(data)

    def teardown(self) -> None:
        """Mend the disk, take all items, compare them with the replies, and stop the server, which closes its files."""
        try:
            self.compare()
        finally:
            self.server.stop()
            self.server.end_threads()

    def compare(self) -> None:
        server = self.server
        server.disk.mend()
        for _ in range(4):
            server.end_threads()
            server.advance(LONG_S)
        server.end_threads()
        self.read_replies()
        assert not any(self.asked), "every request has a reply"
        for client in self.clients:
            client.disconnect()
        server.end_threads()
        for name in QUEUES:
            self.take_all(name)
        assert not self.refused & self.delivered, "no refused item was delivered"
        assert self.acknowledged <= self.delivered, "no acknowledged item was lost"

    def take_all(self, name: bytes) -> None:
        client, reply = self.server.connect(), b""
        while reply != END:
            client.send(b"get %b\r\n" % name)
            self.server.end_threads()
            reply = client.take()
            self.delivered |= {item for item, _ in REPLY.findall(reply) if item}


@pytest.mark.parametrize("make_storage", [JournalStorage, ScrollStorage])
def test_failing_disk_delivers_no_refused_item_and_loses_none(make_storage: Storage, tmp_path: Path) -> None:
    run_histories(tmp_path, lambda folder: FailingDisk(make_storage, folder), examples(200), steps=60)
