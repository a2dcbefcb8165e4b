"""The memcache calls and a server understand each other: each request is sent, and what comes back is read."""

from __future__ import annotations

from typing import TypeVar

import pytest

from kestrel.client.call import NOT_YET, Call
from kestrel.client.errors import OpenReadsError, ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.session.settings import SessionSettings
from kestrel.testing.server import MemoryServer

T = TypeVar("T")

CALLS = MemcacheCalls()


class Talk:
    """One client of a server in memory."""

    def __init__(self, server: MemoryServer) -> None:
        self.client = server.connect()
        self.buffer = ReceiveBuffer()

    def send(self, call: Call[T]) -> Call[T]:
        """Send the request."""
        self.client.send(call.request)
        return call

    def read(self, call: Call[T]) -> T:
        """The value that has come; nothing else may have."""
        self.buffer.receive(self.client.take())
        value = call.read(self.buffer)
        assert value is not NOT_YET
        return value

    def ask(self, call: Call[T]) -> T:
        """Send the request; the value must come at once, and nothing else."""
        value = self.read(self.send(call))
        assert not self.buffer.size
        return value


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(session_settings=SessionSettings(max_open_reads=3))


@pytest.fixture
def talk(server: MemoryServer) -> Talk:
    return Talk(server)


def test_items_come_back_as_they_were_put(talk: Talk) -> None:
    for data in (b"", b"hello", b"\r\nEND\r\n", bytes(range(256)) * 300):
        assert talk.ask(CALLS.put(b"w\xc3\xb6rk", data)) is True
        assert talk.ask(CALLS.get(b"w\xc3\xb6rk", peeks=True)) == data
        assert talk.ask(CALLS.get(b"w\xc3\xb6rk")) == data
    assert talk.ask(CALLS.get(b"w\xc3\xb6rk")) is None


def test_an_expiry_is_seconds_from_now(server: MemoryServer, talk: Talk) -> None:
    talk.ask(CALLS.put(b"work", b"a", 30))
    talk.ask(CALLS.put(b"work", b"b", 32))
    server.advance(31)
    assert talk.ask(CALLS.get(b"work")) == b"b"


def test_reliable_reads_are_finished_or_put_back(talk: Talk) -> None:
    for data in (b"a", b"b"):
        talk.ask(CALLS.put(b"work", data))
    assert talk.ask(CALLS.get(b"work", opens=True)) == b"a"
    assert talk.ask(CALLS.get(b"work", aborts=True)) is None
    assert talk.ask(CALLS.get(b"work", opens=True)) == b"a"
    assert talk.ask(CALLS.get(b"work", opens=True, closes=True)) == b"b"
    talk.ask(CALLS.confirm(b"work", 1))
    assert talk.ask(CALLS.get(b"work")) is None


def test_a_monitor_brings_items_that_a_confirm_finishes(server: MemoryServer, talk: Talk) -> None:
    for data in (b"a", b"b"):
        talk.ask(CALLS.put(b"work", data))
    stream = CALLS.monitor(b"work", 10, 5)
    talk.client.send(stream.request)
    talk.buffer.receive(talk.client.take())
    assert [stream.read(talk.buffer), stream.read(talk.buffer)] == [b"a", b"b"]
    assert stream.read(talk.buffer) is NOT_YET
    server.advance(10)
    talk.buffer.receive(talk.client.take())
    assert stream.read(talk.buffer) is None
    talk.ask(CALLS.confirm(b"work", 2))
    assert talk.ask(CALLS.dump_stats(b"work"))[b"work"]["open_transactions"] == "0"


def test_to_confirm_what_is_not_open_is_an_error_after_which_the_connection_goes_on(talk: Talk) -> None:
    with pytest.raises(OpenReadsError):
        talk.ask(CALLS.confirm(b"work", 1))
    assert talk.ask(CALLS.version()) == "1.2.3"


def test_what_is_asked_of_queues(server: MemoryServer, talk: Talk) -> None:
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


def test_what_is_asked_of_the_server(server: MemoryServer, talk: Talk) -> None:
    assert talk.ask(CALLS.stats())["version"] == "1.2.3"
    talk.ask(CALLS.reload())
    assert server.control.reloads == 1
    talk.ask(CALLS.set_status("ReadOnly"))
    assert talk.ask(CALLS.status()) == "READONLY"
    with pytest.raises(ServerError):
        talk.ask(CALLS.put(b"work", b"a"))


def test_a_shutdown_is_answered_by_hanging_up(server: MemoryServer, talk: Talk) -> None:
    call = talk.send(CALLS.shutdown())
    assert talk.client.take() == b"" and talk.client.is_closed
    call.connection_ended()
    assert server.control.is_shut_down


def test_replies_that_name_the_whole_key_are_understood() -> None:
    talk = Talk(MemoryServer(make_codec=lambda: MemcacheCodec(echo_requested_key=True)))
    talk.ask(CALLS.put(b"work", b"a"))
    assert talk.ask(CALLS.get(b"work", 50, opens=True)) == b"a"
