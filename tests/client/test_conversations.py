"""The memcache calls with a server in memory, where the tests of the clients do not use them."""

from __future__ import annotations

from typing import TypeVar

import pytest

from kestrel.client.call import NOT_YET, Call
from kestrel.client.errors import OpenReadsError, ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.testing.server import MemoryServer

T = TypeVar("T")

CALLS = MemcacheCalls()


class Talk:
    """One client of a server in memory."""

    def __init__(self, server: MemoryServer) -> None:
        self.client = server.connect()

    def ask(self, call: Call[T]) -> T:
        """Send the request, and return the value of the reply, which must arrive at once and alone."""
        buffer = ReceiveBuffer()
        buffer.receive(self.client.ask(call.request))
        value = call.read(buffer)
        assert value is not NOT_YET and not buffer.size
        return value


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def talk(server: MemoryServer) -> Talk:
    return Talk(server)


def test_refused_confirm_keeps_the_connection(talk: Talk) -> None:
    with pytest.raises(OpenReadsError):
        talk.ask(CALLS.confirm(b"work", 1))
    assert talk.ask(CALLS.version()) == "1.2.3"


def test_requests_about_queues(server: MemoryServer, talk: Talk) -> None:
    for queue in (b"a", b"b", b"c"):
        talk.ask(CALLS.put(queue, b"x", 1))
    talk.ask(CALLS.flush(b"a"))
    talk.ask(CALLS.delete(b"b"))
    stats = talk.ask(CALLS.dump_stats(b"a", b"b", b"c"))
    assert (stats[b"a"]["items"], stats[b"b"], stats[b"c"]["items"]) == ("0", {}, "1")
    server.advance(2)
    assert talk.ask(CALLS.flush_expired(b"a")) == 0
    assert talk.ask(CALLS.flush_all_expired()) == 1
    talk.ask(CALLS.flush_all())
    assert talk.ask(CALLS.dump_config(b"a"))[b"a"]["maxItems"] == "none"


def test_requests_about_the_server(server: MemoryServer, talk: Talk) -> None:
    assert talk.ask(CALLS.stats())["version"] == "1.2.3"
    talk.ask(CALLS.reload())
    assert server.control.reloads == 1
    talk.ask(CALLS.set_status("ReadOnly"))
    assert talk.ask(CALLS.status()) == "READONLY"
    with pytest.raises(ServerError):
        talk.ask(CALLS.put(b"work", b"a"))


def test_shutdown_is_answered_by_closing(server: MemoryServer, talk: Talk) -> None:
    call = CALLS.shutdown()
    assert talk.client.ask(call.request) == b"" and talk.client.is_closed
    call.connection_ended()
    assert server.control.is_shut_down


def test_replies_that_name_the_queue_are_read() -> None:
    talk = Talk(MemoryServer(make_codec=lambda: MemcacheCodec(echo_requested_key=False)))
    talk.ask(CALLS.put(b"work", b"a"))
    assert talk.ask(CALLS.get(b"work", 50, opens=True)) == b"a"
