"""clientTimeout: when a client is idle, and what happens to it then."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from kestrel.config.load import loads
from kestrel.errors import StorageError
from kestrel.session.timeouts import IdleTimeout
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import END, STORED, set_, value
from tests.session.disconnects import closes_after
from tests.session.servers import store_of

VERSION = b"VERSION 1.2.3\r\n"

TEN_SECONDS = 'clientTimeout = "10s"\nmaxOpenTransactions = 10\n'


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(config=loads(TEN_SECONDS))


# Idle clients.


def test_client_sending_large_item_in_pieces_is_not_idle(server: MemoryServer) -> None:
    client = server.connect()
    for piece in (b"set work 0 0 8\r\n", b"12", b"34", b"56", b"78"):
        assert client.ask(piece) == b""
        server.advance(9)
    assert client.ask(b"\r\n") == STORED


# Waiting clients.


@pytest.mark.parametrize("error", [None, StorageError("disk failed")])
def test_client_waiting_for_storage_is_not_idle(error: StorageError | None) -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=loads(TEN_SECONDS))
    client = server.connect()
    assert client.ask(set_(b"work", b"one")) == STORED
    store_of(server).page_out()
    assert client.ask(b"get work\r\n") == b""
    server.advance(60)
    assert not client.is_closed
    store_of(server).end_fill(error)
    assert client.take() == (value(b"work", b"one") if error is None else b"SERVER_ERROR disk failed\r\n")
    assert closes_after(server, client, 10)


def test_client_whose_reply_waits_for_commit_is_not_idle() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=loads(TEN_SECONDS))
    client, other = server.connect(), server.connect()
    assert other.ask(set_(b"work", b"held")) == STORED
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"held")
    storage.holds_commits = True
    assert client.ask(b"set other 0 0 1\r\nx\r\n") == b""
    server.advance(60)
    assert not client.is_closed
    storage.end_commits()
    assert client.take() == STORED
    storage.holds_commits = False
    assert client.ask(b"get work/close\r\n") == END, "it kept its open read"
    assert closes_after(server, client, 10)


# Effects of the timeout.


@pytest.mark.parametrize("is_half_closed", [False, True])
@pytest.mark.parametrize("last_request", [b"", b"quit\r\n"])
def test_client_that_reads_no_replies_is_dropped(
    server: MemoryServer, last_request: bytes, is_half_closed: bool
) -> None:
    stuck, other = server.connect(), server.connect()
    assert other.ask(b"set held 0 0 1\r\nx\r\n" + set_(b"work", b"x" * 50_000) * 20) == STORED * 21
    stuck.reads = False
    stuck.send(b"get held/open\r\n" + b"get work\r\n" * 20 + last_request)
    if is_half_closed:
        stuck.half_close()
    server.settle()
    for _ in range(16):  # a client could read the held replies within a minute
        server.advance(5)
        assert other.ask(b"version\r\n") == VERSION
    assert stuck.is_closed
    assert server.manager.counters.curr_connections == 1
    assert other.ask(b"get held\r\n") == b"VALUE held 0 1\r\nx\r\nEND\r\n"


def test_disconnected_client_leaves_no_timer(server: MemoryServer) -> None:
    leaves, quits = server.connect(), server.connect()
    leaves.disconnect()
    quits.ask(b"quit\r\n")
    server.settle()
    assert server.clock.getDelayedCalls() == []


def test_many_requests_use_one_timer(server: MemoryServer) -> None:
    client = server.connect()
    for _ in range(50):
        server.advance(0.1)
        client.ask(b"version\r\n")
    assert len(server.clock.getDelayedCalls()) == 1


# Reload.


@pytest.mark.parametrize(
    ("before", "after", "closes_after_s"),
    [("", "10s", 10), ("10s", "60s", 55), ("10s", "", None)],
    ids=["set", "longer", "removed"],
)
def test_reloaded_timeout_applies_to_existing_connections(
    before: str, after: str, closes_after_s: float | None
) -> None:
    first, then = (f'clientTimeout = "{each}"' if each else "" for each in (before, after))
    server = MemoryServer(config=loads(first))
    client = server.connect()
    server.advance(5)
    server.reload(loads(then))
    if closes_after_s is None:
        server.advance(1000)
        assert client.ask(b"version\r\n") == VERSION
    else:
        assert closes_after(server, client, closes_after_s)


# The timer.


class Bench:
    """An `IdleTimeout` that records its calls."""

    def __init__(self, timeout_ms: int | None) -> None:
        self.clock = Clock()
        self.timeout_ms = timeout_ms
        self.is_idle = True
        self.ends = 0
        self.idleness = IdleTimeout(self.clock, lambda: self.timeout_ms, lambda: not self.is_idle, self._timed_out)

    def _timed_out(self) -> None:
        self.ends += 1


def test_timeout_ends_despite_float_rounding() -> None:
    watched = Bench(10)
    for _ in range(1000):
        watched.clock.advance(0.1)
        watched.ends = 0
        watched.idleness.reset()
        watched.clock.advance(0.0099)
        assert watched.ends == 0
        watched.clock.advance(0.0001)
        watched.clock.advance(0.0001)
        assert watched.ends == 1


def test_client_reading_one_large_reply_slowly_is_not_idle() -> None:
    server = MemoryServer(config=loads(TEN_SECONDS))
    client = server.connect()
    assert client.ask(set_(b"work", b"x" * 5_000_000)) == STORED
    client.reads = False
    client.send(b"get work\r\n")
    server.settle()
    while len(client.received) < 5_000_000:  # 128 KiB a second
        server.advance(1)
        assert not client.is_closed
        client.reads = True
        server.tick()
        client.reads = False
    assert server.clock.seconds() > 30, "reading took longer than the timeout"
    client.reads = True
    server.settle()
    assert closes_after(server, client, 10), "the idle time starts when it has read everything"
