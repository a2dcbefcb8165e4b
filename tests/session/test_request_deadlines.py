"""Incomplete requests: their time limit, and their total memory limit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import chain

import pytest
from twisted.logger import LogLevel, capturedLogs

from kestrel.config.load import loads
from kestrel.errors import RequestTooSlow
from kestrel.session.timeouts import MAX_TIMED_OUT_REQUESTS_PER_SLICE
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.costs import costs_about_the_same
from tests.session.disconnects import closes_after

TEN_SECONDS = 'requestTimeout = "10s"'
STORED = b"STORED\r\n"
TOO_LONG = b"CLIENT_ERROR the request took too long\r\n"

BEGINNINGS = [
    ("memcache", b"se"),
    ("memcache", b"set work 0 0 100\r\n"),
    ("memcache", b"set work 0 0 100\r\nhalf"),
    ("text", b"pu"),
    ("text", b"put work:\n"),
    ("text", b"put work:\nhel"),
    ("text", b"get work:\nignored\n"),
    ("thrift", b"\0"),
    ("thrift", b"\0\0\0\x64"),
    ("thrift", b"\0\0\0\x64\x80\x01"),
    ("thrift", b"\x7f\0\0\0\x80\x01"),
]


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(config=loads(TEN_SECONDS))


def request_deadlines(server: MemoryServer) -> tuple[int, int]:
    """Return the number of incomplete requests and their bytes."""
    return len(server.core.session_context.request_deadlines), server.core.session_context.request_deadlines.bytes


# Time.


@pytest.mark.parametrize(("protocol", "beginning"), BEGINNINGS)
def test_incomplete_request_ends_connection_after_timeout(
    server: MemoryServer, protocol: str, beginning: bytes
) -> None:
    client = server.connect(protocol)
    assert client.ask(beginning) == b""
    assert closes_after(server, client, 10)
    assert b"the request took too long" in client.take()
    assert request_deadlines(server) == (0, 0)
    assert server.clock.getDelayedCalls() == []


def test_slow_bytes_do_not_extend_the_timeout(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(b"set work 0 0 100\r\n")
    for _ in range(9):
        server.advance(1)
        client.ask(b"x")
    assert closes_after(server, client, 1)
    assert client.take() == TOO_LONG
    assert server.manager.existing(b"work") is None


def test_each_request_has_its_own_timeout(server: MemoryServer) -> None:
    client = server.connect()
    request = b"set work 0 0 5\r\nhello\r\n"
    client.ask(request[:3])
    for _ in range(5):
        server.advance(9)
        assert client.ask(request[3:] + request[:3]) == STORED
    assert closes_after(server, client, 10)


def test_without_timeout_request_may_take_any_time() -> None:
    server = MemoryServer(config=loads('requestTimeout = "none"'))
    client = server.connect()
    client.ask(b"set work 0 0 5\r\n")
    server.advance(86_400)
    assert client.ask(b"hello\r\n") == STORED


def test_request_behind_a_wait_is_not_late(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(b"get work/t=60000\r\nset wo")
    for _ in range(8):
        server.advance(7.5)
        assert not client.is_closed
    assert client.take() == b"END\r\n"
    assert closes_after(server, client, 10), "now the client's time counts"


def test_client_waiting_for_storage_is_not_late() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=loads(TEN_SECONDS))
    client = server.connect()
    storage.holds_commits = True
    assert client.ask(b"set work 0 0 5\r\nhello\r\nset wo") == b""
    server.advance(60)
    assert not client.is_closed
    storage.end_commits()
    assert client.take() == STORED


def test_time_while_server_does_not_read_is_not_counted(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(b"set big 0 0 300000\r\n" + bytes(300_000) + b"\r\n")
    client.reads = False
    client.ask(b"get big\r\n")
    client.ask(b"set work 0 0 100000\r\n" + bytes(90_000))
    assert not client.transport.is_listening
    server.advance(9)
    client.reads = True
    server.settle()
    server.advance(9)
    assert not client.is_closed
    client.take()
    assert client.ask(bytes(10_000) + b"\r\n") == STORED


def test_client_that_does_not_read_the_last_replies_is_dropped(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(b"set work 0 0 100000\r\n" + bytes(100_000) + b"\r\n")
    client.reads = False
    client.send(b"get work\r\nquit\r\n")
    server.settle()
    assert not client.is_closed
    server.advance(30)
    server.settle()
    assert client.is_closed


def test_reload_applies_new_timeout_to_pending_requests(server: MemoryServer) -> None:
    client = server.connect()
    client.ask(b"set wo")
    server.advance(3)
    server.reload(loads('requestTimeout = "5s"'))
    assert closes_after(server, client, 2)


def test_late_requests_are_ended_in_bounded_slices(server: MemoryServer) -> None:
    late = [server.connect() for _ in range(2 * MAX_TIMED_OUT_REQUESTS_PER_SLICE + 1)]
    for client in late:
        client.send(b"se")
    server.settle()
    server.clock.rightNow += 10
    server.core.session_context.request_deadlines._look()
    connections = server.factories["memcache"]._connections
    assert sum(connection.session._state.has_ended for connection in connections) == MAX_TIMED_OUT_REQUESTS_PER_SLICE
    server.settle()
    assert all(client.is_closed for client in late)


def test_requests_in_time_cost_nothing() -> None:
    def prepared(count: int) -> Callable[[], object]:
        server = MemoryServer(config=loads(TEN_SECONDS))
        for _ in range(count):
            server.connect().send(b"se")
        look = server.core.session_context.request_deadlines._look
        return lambda: [look() for _ in range(100)]

    assert costs_about_the_same(partial(prepared, 10), partial(prepared, 3000))


# Memory.


LITTLE_ROOM = 'maxTotalRequestSize = "1MiB"'


def half_a_request(size: int) -> bytes:
    return b"set work 0 0 10000000\r\n" + bytes(size)


def test_full_memory_disconnects_slowest_client_above_its_share() -> None:
    server = MemoryServer(config=loads(LITTLE_ROOM))
    small = server.connect()
    small.ask(half_a_request(100))
    large = [server.connect() for _ in range(5)]
    for client in large:
        client.ask(half_a_request(250_000))
        server.advance(1)
    assert [client.is_closed for client in large] == [True, False, False, False, False]
    assert not small.is_closed
    assert b"too many incomplete requests" in large[0].take()
    assert request_deadlines(server) == (5, 4 * 250_000 + 100)


def test_lower_limit_after_reload_disconnects_all_excess_at_once() -> None:
    server = MemoryServer()
    clients = [server.connect() for _ in range(400)]
    for client in clients:
        client.ask(half_a_request(60_000))
    server.reload(loads(LITTLE_ROOM))
    server.settle()
    count, size = request_deadlines(server)
    assert size <= 1 << 20
    assert [client.is_closed for client in clients] == [True] * (400 - count) + [False] * count


def test_held_bytes_never_exceed_the_limit() -> None:
    server = MemoryServer(config=loads(LITTLE_ROOM))
    clients = [server.connect() for _ in range(20)]
    most = 0
    for client in chain.from_iterable([clients] * 10):
        if not client.is_closed:
            client.ask(half_a_request(90_000) if not client.transport.unread else bytes(90_000))
        most = max(most, request_deadlines(server)[1])
    assert most <= 1 << 20


def test_complete_request_is_served_while_others_fill_memory() -> None:
    server = MemoryServer(config=loads(LITTLE_ROOM))
    others = [server.connect() for _ in range(10)]
    client = server.connect()
    for other in others:
        other.ask(half_a_request(100_000))
        assert client.ask(b"set mine 0 0 300000\r\n" + bytes(300_000) + b"\r\n") == STORED
    assert server.manager.queue(b"mine").store.items == 10


def test_disconnect_forgets_incomplete_request() -> None:
    server = MemoryServer()
    clients = [server.connect(protocol) for protocol, _ in BEGINNINGS]
    for client, (_, beginning) in zip(clients, BEGINNINGS, strict=True):
        client.ask(beginning)
    assert request_deadlines(server)[0] == len(BEGINNINGS)
    for client in clients:
        client.disconnect()
    server.settle()
    assert request_deadlines(server) == (0, 0)
    assert server.clock.getDelayedCalls() == []


@pytest.mark.parametrize("protocol", ["memcache", "text"])
def test_answered_client_holds_no_data_of_its_put(protocol: str) -> None:
    server = MemoryServer()
    clients = [server.connect(protocol) for _ in range(8)]
    tracemalloc.start()
    try:
        for client in clients:
            data = bytes([120]) * 1_000_000
            client.ask(b"put work:\n%b\n\n" % data if protocol == "text" else b"set work 0 0 1000000\r\n%b\r\n" % data)
            server.connect().ask(b"flush work\r\n")
        del data
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
    finally:
        tracemalloc.stop()


def test_fault_while_disconnecting_one_client_does_not_affect_others(server: MemoryServer) -> None:
    other = server.connect()
    other.ask(b"set wo")
    unfinished_ = server.core.session_context.request_deadlines
    (second,) = unfinished_._pending

    class Broken:
        def waits_for_server(self) -> bool:
            return False

        def abandon(self, why: RequestTooSlow) -> None:
            raise ValueError("internal fault")

    unfinished_.untrack(second)
    unfinished_.track(Broken(), 1, is_new=True)
    unfinished_.track(second, 1, is_new=True)
    with capturedLogs() as events:
        server.advance(10)
    assert [event for event in events if event["log_level"] is LogLevel.critical] != []
    assert other.is_closed
