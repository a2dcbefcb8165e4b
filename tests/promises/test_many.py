"""maxQueues and maxConnections: requests and connections beyond them are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.logger import capturedLogs

from kestrel.config.load import loads
from kestrel.net.connection import Connection, RejectingProtocol
from kestrel.net.queue_server import CODEC_FACTORIES
from kestrel.testing.server import MemoryServer
from tests.memcache_text import STORED, put, set_

TOO_MANY_QUEUES = b"SERVER_ERROR too many queues; limit=3\r\n"


# Queues.


@pytest.fixture
def full() -> MemoryServer:
    """Return a server that has maxQueues queues."""
    server = MemoryServer(config=loads("maxQueues = 3"))
    for name in (b"a", b"b", b"parent"):
        put(server.connect(), name, b"x")
    return server


@pytest.mark.parametrize(
    "request_", [set_(b"c", b"x"), b"get c\r\n", b"get c/t=1000\r\n", b"monitor c 1\r\n", set_(b"a+c", b"x")]
)
def test_request_beyond_max_queues_is_refused_and_connection_stays(full: MemoryServer, request_: bytes) -> None:
    client = full.connect()
    assert client.ask(request_) == TOO_MANY_QUEUES
    assert not client.is_closed
    assert client.ask(set_(b"a", b"x") + b"get b\r\n") == STORED + b"VALUE b 0 1\r\nx\r\nEND\r\n"
    assert sorted(queue.name for queue in full.manager.all_queues()) == [b"a", b"b", b"parent"]


def test_text_and_thrift_also_report_too_many_queues(full: MemoryServer) -> None:
    assert full.connect("text").ask(b"put c:\nx\n\n") == b"-too many queues; limit=3\n"
    put = b"\x80\x01\0\x01\0\0\0\x03put\0\0\0\0\x0b\0\x01\0\0\0\x01c\x0f\0\x02\x0b\0\0\0\x01\0\0\0\x01x\0"
    assert b"too many queues" in full.connect("thrift").ask(len(put).to_bytes(4, "big") + put)


def test_illegal_name_is_reported_before_the_limit(full: MemoryServer) -> None:
    assert full.connect().ask(set_(b"a~b", b"x")).startswith(b"CLIENT_ERROR")


def test_deletion_makes_room_for_a_queue(full: MemoryServer) -> None:
    client = full.connect()
    assert client.ask(b"delete a\r\n" + set_(b"c", b"x")) == b"DELETED\r\n" + STORED


def test_existing_queues_above_max_queues_stay(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    for number in range(5):
        assert server.connect().ask(set_(b"q%d" % number, b"x")) == STORED
    server.restart(loads("maxQueues = 3"))
    assert len(server.manager.all_queues()) == 5
    assert server.connect().ask(b"get q4\r\n") == b"VALUE q4 0 1\r\nx\r\nEND\r\n"
    assert server.connect().ask(set_(b"q5", b"x")) == TOO_MANY_QUEUES


def test_expire_to_queue_is_exempt_from_max_queues() -> None:
    server = MemoryServer(config=loads('maxQueues = 1\n[[queues]]\nname = "work"\nexpireToQueue = "late"'))
    client = server.connect()
    assert client.ask(b"set work 0 1 1\r\nx\r\n") == STORED
    server.advance(2)
    assert client.ask(b"get work\r\n") == b"END\r\n"
    assert client.ask(b"get late\r\n") == b"VALUE late 0 1\r\nx\r\nEND\r\n"


@pytest.mark.parametrize(
    "named",
    ['[[queues]]\nname = "c"', '[[aliases]]\nname = "c"\ndestinationQueues = ["d", "e"]'],
    ids=["table", "alias"],
)
def test_configured_names_are_exempt_from_max_queues(full: MemoryServer, named: str) -> None:
    full.reload(loads(f"maxQueues = 3\n{named}"))
    put(full.connect(), b"c", b"x")
    assert full.connect().ask(set_(b"other", b"x")) == TOO_MANY_QUEUES


def test_reload_raises_max_queues(full: MemoryServer) -> None:
    full.reload(loads("maxQueues = 4"))
    put(full.connect(), b"c", b"x")


# Connections.


REFUSALS = {
    "memcache": b"SERVER_ERROR too many connections; limit=2\r\n",
    "text": b"-too many connections; limit=2\n",
    "thrift": b"too many connections; limit=2",
}


@pytest.mark.parametrize("protocol", REFUSALS)
def test_connection_beyond_max_connections_is_refused_with_error(protocol: str) -> None:
    server = MemoryServer(config=loads("maxConnections = 2"))
    first, second = server.connect("text"), server.connect()
    refused = server.connect(protocol)
    assert REFUSALS[protocol] in refused.take()
    assert refused.is_closed
    put(second, b"work", b"x")
    assert not first.is_closed
    assert "STAT curr_connections 2\r\nSTAT total_connections 2\r\n" in second.ask(b"stats\r\n").decode()
    assert "STAT rejected_connections 1\r\n" in second.ask(b"stats\r\n").decode()
    first.disconnect()
    server.settle()
    assert server.connect().ask(b"version\r\n") == b"VERSION 1.2.3\r\n"


def test_trusted_connection_is_exempt_from_max_connections() -> None:
    server = MemoryServer(config=loads("maxConnections = 1"))
    server.connect()
    for is_trusted, kind in ((False, RejectingProtocol), (True, Connection)):
        factory = server.core.connections(
            "memcache", CODEC_FACTORIES["memcache"], server.control, is_trusted=is_trusted
        )
        assert isinstance(factory.buildProtocol(None), kind)


def test_request_of_refused_client_is_not_executed() -> None:
    server = MemoryServer(config=loads("maxConnections = 1"))
    server.connect()
    refused = server.connect()
    refused.send(set_(b"work", b"x"))
    server.settle()
    assert server.manager.existing(b"work") is None


def test_flood_of_refused_connections_logs_ten_lines() -> None:
    server = MemoryServer(config=loads("maxConnections = 1"))
    server.connect()
    with capturedLogs() as events:
        for _ in range(100):
            server.connect()
    assert {event["what"] for event in events} == {"too many connections; limit=1"}
    assert len(events) == 10
