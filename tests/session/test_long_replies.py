"""Lists of all queues, which the server makes as the client reads so that they take little memory."""

from __future__ import annotations

import pytest

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.session.disconnects import closes_after

KIB = 1024
QUEUES = 700
MOST_HELD_BYTES = 160 * KIB
"""64 KiB in the transport, the replies of one tick, and the figures of one queue."""

LISTS = [
    ("memcache", b"stats\r\n", b"END\r\n"),
    ("memcache", b"dump_stats\r\n", b"END\r\n"),
    ("memcache", b"dump_config\r\n", b"END\r\n"),
    ("text", b"dump_stats\n", b"*\n"),
    ("text", b"dump_config\n", b"*\n"),
]
TIMEOUT_S = 120


def name(number: int) -> bytes:
    return b"%03d" % number + b"x" * 190


@pytest.fixture
def server() -> MemoryServer:
    server = MemoryServer(config=loads(f'requestTimeout = "{TIMEOUT_S}s"\n'))
    for number in range(QUEUES):
        server.manager.queue(name(number))
    server.settle()
    return server


def unread(server: MemoryServer, request: bytes, protocol: str = "memcache") -> MemoryClient:
    """Return a client that sends this request and reads nothing."""
    client = server.connect(protocol)
    client.reads = False
    client.send(request)
    server.settle()
    return client


def held_bytes(server: MemoryServer, client: MemoryClient) -> int:
    return len(client.transport.unsent) + server.manager.memory_limit.used_bytes


@pytest.mark.parametrize(("protocol", "request_", "end"), LISTS)
def test_unread_list_holds_one_piece(server: MemoryServer, protocol: str, request_: bytes, end: bytes) -> None:
    client = unread(server, request_, protocol)
    assert server.manager.memory_limit.used_bytes > 0
    assert held_bytes(server, client) < MOST_HELD_BYTES
    client.reads = True
    server.settle()
    reply = client.take()
    assert len(reply) > 2 * MOST_HELD_BYTES
    assert all(name(number) in reply for number in range(QUEUES))
    assert reply.endswith(end) and reply.count(b"\n" + end) == 1
    assert server.manager.memory_limit.used_bytes == 0


def test_pipelined_lists_hold_one_piece(server: MemoryServer) -> None:
    client = unread(server, b"stats\r\n" * 10_000)
    assert held_bytes(server, client) < MOST_HELD_BYTES
    client.transport.lost(ConnectionError())
    assert server.manager.memory_limit.used_bytes == 0


def test_pipelined_lists_are_answered_in_order(server: MemoryServer) -> None:
    reply = server.connect().ask(b"dump_stats\r\nversion\r\ndump_config\r\n")
    stats, version, config = reply.partition(b"END\r\nVERSION 1.2.3\r\n")
    assert version and stats.startswith(b"queue '000") and config.endswith(b"END\r\n")


def test_half_closed_client_gets_the_whole_list(server: MemoryServer) -> None:
    client = unread(server, b"stats\r\n")
    client.half_close()
    client.reads = True
    server.settle()
    assert client.is_closed
    assert client.take().endswith(b"END\r\n")


@pytest.mark.parametrize("request_", [b"stats\r\n", b"dump_stats\r\n", b"dump_config\r\n"])
def test_queues_may_come_and_go_during_a_list(server: MemoryServer, request_: bytes) -> None:
    client = unread(server, request_)
    server.manager.delete(name(QUEUES - 2))
    server.manager.queue(b"zzz")
    server.settle()
    client.reads = True
    server.settle()
    reply = client.take()
    assert name(QUEUES - 2) not in reply
    assert name(QUEUES - 1) in reply and b"zzz" in reply
    assert reply.endswith(b"END\r\n")


def test_client_that_does_not_read_a_list_is_dropped(server: MemoryServer) -> None:
    client = unread(server, b"stats\r\n")
    assert closes_after(server, client, TIMEOUT_S)
    assert server.manager.memory_limit.used_bytes == 0


def test_sending_does_not_delay_the_drop(server: MemoryServer) -> None:
    client = unread(server, b"stats\r\n" * 10)
    for _ in range(TIMEOUT_S // 10 + 1):
        client.send(b"version\r\n")
        server.advance(10)
        server.settle()
    assert client.is_closed


def test_slow_reader_of_a_list_is_not_dropped(server: MemoryServer) -> None:
    client = unread(server, b"stats\r\n")
    for _ in range(5):
        server.advance(TIMEOUT_S - 1)
        client.reads = True
        server.tick()
        client.reads = False
        server.settle()
    client.reads = True
    server.settle()
    assert client.take().endswith(b"END\r\n")
    server.advance(2 * TIMEOUT_S)
    assert not client.is_closed, "the timeout ended with the list"


def test_client_timeout_also_drops_slow_list_reader() -> None:
    server = MemoryServer(config=loads('requestTimeout = "none"\nclientTimeout = "10s"\n'))
    for number in range(QUEUES):
        server.manager.queue(name(number))
    client = unread(server, b"stats\r\n")
    for _ in range(4):
        server.advance(10)
        server.settle()
    assert client.is_closed


def test_many_children_are_listed_in_pieces() -> None:
    server = MemoryServer()
    children = [b"parent+%04d" % number + b"x" * 180 for number in range(3000)]
    for child in children:
        server.manager.queue(child)
    server.manager.queue(b"parent")
    client = unread(server, b"dump_stats parent\r\n" * 10)
    assert held_bytes(server, client) < MOST_HELD_BYTES
    client.disconnect()
    for request in (b"dump_stats parent\r\n", b"stats\r\n"):
        lines = server.connect().ask(request).splitlines()
        (line,) = [line for line in lines if b"children" in line]
        assert line.endswith(b",".join(children))
        assert lines[-1] == b"END"
