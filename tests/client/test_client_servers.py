"""The Twisted client and its servers, in memory: the choice of server and connection, and retries."""

from __future__ import annotations

import re
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import ISSLTransport, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from zope.interface import implementer

from kestrel.client.client import Client
from kestrel.client.errors import CannotConnect, ConnectionFailed, RequestError
from kestrel.client.server import IDLE_S
from kestrel.testing.network import MemoryEndpoint, MemoryNetwork
from kestrel.testing.server import MemoryServer
from kestrel.tls import TlsOptions
from tests import memcache_text
from tests.client import memory_world
from tests.client.first_choice import FirstOfAll

TIMEOUT_S = 10.0


class World(memory_world.World):
    """Some servers in memory, and a client that asks them in their order."""

    def __init__(self, servers: int = 1, **options: Any) -> None:
        super().__init__(servers, **{"timeout_s": TIMEOUT_S, "random": FirstOfAll(), **options})

    def connections(self) -> list[int]:
        """Return the number of connections of each server."""
        return [len(endpoint.connections) for endpoint in self.endpoints]

    def attempts(self) -> list[int]:
        """Return how often the client connected to each server."""
        return [endpoint.attempts for endpoint in self.endpoints]

    def items(self) -> list[int]:
        """Return the number of items of each server."""
        replies = [server.connect().ask(b"dump_stats work\r\n") for server in self.servers]
        return [int(found[1]) if (found := re.search(rb"  items=(\d+)", reply)) else 0 for reply in replies]

    def have_put(self, number: int, *items: bytes) -> None:
        """Put items at a server with another client."""
        memcache_text.put(self.servers[number].connect(), b"work", *items)

    def refuse_writes(self, number: int) -> None:
        """Have a server refuse puts from now on."""
        assert self.servers[number].connect().ask(b"status readonly\r\n") == b"END\r\n"

    def wait_in_vain(self, timeout: float) -> None:
        """Wait for an item on a connection of its own until the timeout."""
        waiting = self.begin(self.client.get("work", timeout=timeout))
        self.advance(timeout)
        assert self.result(waiting) is None

    def end_connections(self) -> None:
        """Have the first server end its connections."""
        self.endpoints[0].disconnect()
        self.settle()

    def failing(self, work: Any) -> BaseException:
        """Return the error of a coroutine."""
        with pytest.raises(Exception) as caught:
            self.run(work)
        return caught.value


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def pair() -> World:
    """Return a world with two servers."""
    return World(2)


# Connections.


def test_client_connects_only_when_needed() -> None:
    assert World().attempts() == [0]


def test_puts_share_a_connection_without_waiting(world: World) -> None:
    puts = [world.begin(world.client.put("work", b"%d" % number)) for number in range(100)]
    assert all(map(world.result, puts))
    assert world.attempts() == [1]
    assert [world.run(world.client.get("work")) for _ in puts] == [b"%d" % number for number in range(100)]
    assert world.attempts() == [1]


def test_all_requests_fail_when_the_connection_times_out(world: World) -> None:
    world.endpoints[0].is_silent = True
    puts = [world.begin(world.client.put("work", b"a")) for _ in range(3)]
    assert world.attempts() == [1]
    world.advance(TIMEOUT_S)
    for each in puts:
        with pytest.raises(CannotConnect, match="no connection within 10 s"):
            world.result(each)


def test_cancelled_request_leaves_the_connection_to_the_others(world: World) -> None:
    world.endpoints[0].is_away = True
    world.failing(world.client.version())
    world.endpoints[0].is_away = False
    first, second = (world.begin(world.client.put("work", b"a")) for _ in range(2))
    first.cancel()
    world.advance(0.5)
    assert world.result(second)
    with pytest.raises(CancelledError):
        world.result(first)
    assert world.items() == [1]


def test_waiting_get_does_not_block_other_requests(world: World) -> None:
    waiting = world.begin(world.client.get("work", timeout=5))
    assert world.run(world.client.put("other", b"a"))
    assert world.run(world.client.peek("other")) == b"a"
    assert not waiting.called
    assert world.run(world.client.put("work", b"b"))
    assert world.result(waiting) == b"b"
    assert world.connections() == [2]


def test_connection_of_a_waiting_get_is_kept(world: World) -> None:
    for _ in range(3):
        world.wait_in_vain(5)
    assert world.attempts() == [1]


def test_idle_connections_are_closed_after_a_while(world: World) -> None:
    for seconds in (1, 1):
        waiting = [world.begin(world.client.get("work", timeout=seconds)) for _ in range(10)]
        world.advance(seconds)
        assert [world.result(each) for each in waiting] == [None] * 10
        assert world.connections() == world.attempts() == [10]
    world.advance(IDLE_S - 0.25)
    assert world.connections() == [10]
    world.advance(0.25)
    assert world.connections() == [0]
    waiting = [world.begin(world.client.get("work", timeout=1)) for _ in range(99)]
    assert world.connections() == [99]
    world.run(world.client.close())
    assert world.network.clock.getDelayedCalls() == []
    for each in waiting:
        each.addErrback(lambda failure: failure.trap(ConnectionFailed))


def test_connections_are_limited() -> None:
    world = World(max_connections=3)
    waiting = [world.begin(world.client.get("work", timeout=30)) for _ in range(3)]
    assert world.run(world.client.put_many("work", [b"a", b"b", b"c"])) == 3
    assert [world.result(each) for each in waiting] == [b"a", b"b", b"c"]
    assert world.connections() == [3]


def test_request_fails_when_no_connection_becomes_free_in_time() -> None:
    world = World(max_connections=2)
    waiting = world.begin(world.client.get("work", timeout=60))
    late = world.begin(world.client.get("work", timeout=5))
    world.advance(5 + TIMEOUT_S - 0.25)  # the timeout includes the wait for a connection
    assert not late.called
    world.advance(0.25)
    with pytest.raises(CannotConnect, match="in use"):
        world.result(late)
    world.have_put(0, b"a")
    world.settle()
    assert world.result(waiting) == b"a"


def test_waiting_request_replaces_a_connection_that_ended() -> None:
    world = World(max_connections=2)
    waiting = world.begin(world.client.get("work", timeout=30)).addErrback(lambda _: "cancelled")
    gone = world.begin(world.client.get("work", timeout=30)).addErrback(lambda _: "cancelled")
    late = world.begin(world.client.get("work", timeout=30))
    gone.cancel()
    waiting.cancel()
    world.settle()
    world.have_put(0, b"a")
    world.settle()
    assert world.result(late) == b"a"
    assert world.connections() == [1]


def test_idle_connection_closed_by_the_server_is_not_reused() -> None:
    world = World(max_connections=2)
    waiting = world.begin(world.client.get("work", timeout=5))
    world.run(world.client.version())
    world.advance(5)
    assert world.result(waiting) is None
    world.end_connections()
    assert world.connections() == [0]
    world.have_put(0, b"a")
    assert world.run(world.client.version())
    assert world.result(world.begin(world.client.get("work", timeout=5))) == b"a"


def test_idle_connection_with_unexpected_data_is_not_reused(world: World) -> None:
    world.wait_in_vain(5)
    world.endpoints[0].connections[0].transport.arrive(b"END\r\n")
    world.wait_in_vain(5)
    assert world.attempts() == [2]


# A server that is away.


def test_put_to_an_unreachable_server_raises_cannot_connect(world: World) -> None:
    world.endpoints[0].is_away = True
    error = world.failing(world.client.put("work", b"a"))
    assert isinstance(error, CannotConnect)
    assert str(error).startswith("servers[0]: Connection was refused")


def test_pauses_between_attempts_grow(world: World) -> None:
    world.endpoints[0].is_away = True
    world.failing(world.client.version())
    for attempts, pause_s in enumerate([0.5, 1, 2, 4, 8, 10, 10], start=1):
        waiting = [world.begin(world.client.version()), world.begin(world.client.get("work", timeout=1))]
        world.advance(pause_s - 0.25)
        assert world.attempts() == [1 + 2 * (attempts - 1)]
        world.advance(0.25)
        for each in waiting:
            with pytest.raises(CannotConnect):
                world.result(each)


def test_waiting_request_is_sent_when_the_server_returns(world: World) -> None:
    assert world.run(world.client.put("work", b"a"))
    for data in (b"b", b"c"):  # the second failure has a short pause again
        world.end_connections()
        world.endpoints[0].is_away = True
        world.failing(world.client.put("work", b"lost"))
        waiting = world.begin(world.client.put("work", data))
        world.endpoints[0].is_away = False
        world.advance(0.5)
        assert world.result(waiting)
        assert world.run(world.client.version())
    assert world.items() == [3]


# Several servers.


def test_refused_puts_go_to_another_server_once(pair: World) -> None:
    pair.refuse_writes(0)
    assert pair.run(pair.client.put("work", b"first"))
    items = [b"%d" % number for number in range(1200)]
    assert pair.run(pair.client.put_many("work", items)) == 1200
    assert pair.items() == [0, 1201]
    assert [pair.run(pair.client.get("work")) for _ in range(1201)] == [b"first", *items]


def test_pipelined_puts_after_a_refusal_go_to_another_server(pair: World) -> None:
    pair.run(pair.client.version())
    pair.refuse_writes(0)
    puts = [pair.begin(pair.client.put("work", b"%d" % number)) for number in range(10)]
    assert all(map(pair.result, puts))
    assert pair.items() == [0, 10]


def test_bad_request_does_not_fail_requests_after_it(world: World) -> None:
    world.run(world.client.version())
    bad = Deferred.fromCoroutine(world.client.set_status("sleepy"))
    bad.addErrback(lambda failure: failure.trap(RequestError))
    put = Deferred.fromCoroutine(world.client.put("work", b"a"))
    many = Deferred.fromCoroutine(world.client.put_many("work", [b"b", b"c"]))
    world.settle()
    assert (world.result(bad), world.result(put), world.result(many)) == (RequestError, True, 2)
    assert world.items() == [3]
    assert world.attempts() == [2]


def test_read_only_server_serves_gets_and_explains_refused_puts(world: World) -> None:
    world.have_put(0, b"a", b"b", b"c")
    world.run(world.client.version())
    world.refuse_writes(0)
    client = world.client
    asked = [
        Deferred.fromCoroutine(work).addErrback(lambda failure: str(failure.value))
        for _ in range(3)
        for work in (client.put("work", b"x"), client.put("work", b"x"), client.get("work"), client.status())
    ]
    world.settle()
    results = [world.result(each) for each in asked]
    assert results[::4] == results[1::4] == ["servers[0]: the server is ReadOnly"] * 3
    assert sorted(results[2::4]) == [b"a", b"b", b"c"]
    assert results[3::4] == [{"servers[0]": "ReadOnly"}] * 3


def silence(world: World) -> None:
    """Have the first server read nothing more on its connections."""
    for connection in world.endpoints[0].connections:
        connection.server_end.transport.pauseProducing()


@pytest.mark.parametrize("repeats", [False, True])
def test_uncertain_put_is_repeated_only_if_duplicates_are_allowed(repeats: bool) -> None:
    world = World(2, repeats=repeats)
    world.run(world.client.version())
    silence(world)
    put = world.begin(world.client.put("work", b"a"))
    many = world.begin(world.client.put_many("work", [b"b", b"c"]))
    world.advance(TIMEOUT_S)
    if repeats:
        assert (world.result(put), world.result(many)) == (True, 2)
        assert world.items() == [0, 3]
    else:
        for each in (put, many):
            with pytest.raises(ConnectionFailed, match="no data received for 10 s"):
                world.result(each)
        assert world.items() == [0, 0]


def test_statistics_are_returned_for_each_server(pair: World) -> None:
    pair.have_put(1, b"a")
    stats = pair.run(pair.client.stats())
    assert {name: figures["curr_items"] for name, figures in stats.items()} == {"servers[0]": "0", "servers[1]": "1"}
    assert pair.run(pair.client.version()) == {"servers[0]": "1.2.3", "servers[1]": "1.2.3"}
    pair.run(pair.client.set_status("ReadOnly"))
    assert pair.run(pair.client.status()) == {"servers[0]": "ReadOnly", "servers[1]": "ReadOnly"}
    assert set(pair.run(pair.client.dump_config("work"))) == {"servers[0]", "servers[1]"}


def test_flush_reaches_all_servers_even_if_one_fails(pair: World) -> None:
    pair.have_put(1, b"a")
    pair.endpoints[0].is_away = True
    assert isinstance(pair.failing(pair.client.flush("work")), CannotConnect)
    assert pair.items() == [0, 0]


# TLS: the connection exists before the server is verified.


@implementer(ISSLTransport)
class TlsTransport(StringTransport):
    def setTcpNoDelay(self, enabled: bool) -> None: ...


@implementer(IStreamClientEndpoint)
class ShakingHands:
    """Connects at once. A test completes the handshake."""

    def __init__(self) -> None:
        self.transport = TlsTransport()
        self.protocol: Any = None

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        self.protocol = protocolFactory.buildProtocol(None)
        self.protocol.makeConnection(self.transport)
        return succeed(self.protocol)


def test_nothing_is_sent_before_the_tls_handshake() -> None:
    clock, endpoint = Clock(), ShakingHands()
    client = Client(clock, endpoint)
    asked = Deferred.fromCoroutine(client.version())
    assert endpoint.transport.value() == b""
    endpoint.protocol.handshakeCompleted()
    assert endpoint.transport.value() == b"version\r\n"
    endpoint.protocol.dataReceived(b"VERSION 1\r\n")
    assert asked.result == {"servers[0]": "1"}


def test_slow_tls_handshake_ends_the_connection() -> None:
    clock, endpoint = Clock(), ShakingHands()
    asked = Deferred.fromCoroutine(Client(clock, endpoint, timeout_s=TIMEOUT_S).version())
    clock.advance(TIMEOUT_S - 0.25)
    assert not asked.called
    clock.advance(0.25)
    with pytest.raises(CannotConnect, match="no connection within 10 s"):
        asked.result.raiseException()
    asked.addErrback(lambda _: None)
    assert endpoint.transport.disconnected and endpoint.transport.value() == b""
    assert clock.getDelayedCalls() == []


# The end.


def test_close_fails_pending_requests_and_leaves_no_timer() -> None:
    world = World(max_connections=2)
    assert world.run(world.client.put("other", b"a"))
    waiting = world.begin(world.client.get("work", timeout=60))
    in_line = world.begin(world.client.get("work", timeout=60))
    world.run(world.client.close())
    with pytest.raises(ConnectionFailed, match="the client was closed"):
        world.result(waiting)
    with pytest.raises(CannotConnect, match="the client is closed"):
        world.result(in_line)
    assert world.network.clock.getDelayedCalls() == []
    assert world.connections() == [0]
    world.run(world.client.close())


def test_close_fails_a_request_that_waits_for_a_server(world: World) -> None:
    world.endpoints[0].is_away = True
    world.failing(world.client.version())
    waiting = world.begin(world.client.put("work", b"a"))
    world.run(world.client.close())
    with pytest.raises(CannotConnect, match="the client is closed"):
        world.result(waiting)
    assert world.network.clock.getDelayedCalls() == []


def test_closed_client_does_not_connect(world: World) -> None:
    assert world.run(world.client.put("work", b"a"))

    async def use_it() -> None:
        async with world.client as client:
            assert client is world.client

    world.run(use_it())
    for work in (world.client.put("work", b"a"), world.client.get("work", timeout=5), world.client.stats()):
        assert str(world.failing(work)) == "servers[0]: the client is closed"
    assert world.attempts() == [1]


def test_cancelled_waiting_get_takes_no_item(world: World) -> None:
    waiting = world.begin(world.client.get("work", timeout=60))
    waiting.cancel()
    with pytest.raises(CancelledError):
        world.result(waiting)
    world.settle()
    world.have_put(0, b"a")
    world.settle()
    assert world.items() == [1]
    assert world.connections() == [0]
    assert world.network.clock.getDelayedCalls() == []


@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
def test_get_cancelled_before_it_is_sent_takes_no_item(protocol: str) -> None:
    network = MemoryNetwork()
    servers = [MemoryServer(clock=network.clock) for _ in range(2)]
    client = Client(network.clock, [network.endpoint(each, protocol) for each in servers], protocol)
    network.run(client.put_many("work", [b"a"]))
    waiting = Deferred.fromCoroutine(client.get("work", timeout=60))
    waiting.addErrback(lambda failure: failure.trap(CancelledError)).cancel()
    network.settle()
    assert network.run(client.get("work")) == b"a"


def test_closed_client_asks_no_other_server() -> None:
    world = World(3)
    for number in (1, 2):
        world.have_put(number, b"a")
    world.endpoints[0].is_silent = True
    get, put = world.begin(world.client.get("work")), world.begin(world.client.put("work", b"b"))
    world.run(world.client.close())
    for each in (get, put):
        with pytest.raises(CannotConnect, match="the client is closed"):
            world.result(each)
    assert world.attempts() == [1, 0, 0]
    assert world.items() == [0, 1, 1]


# Construction.


def test_constructor_rejects_invalid_arguments() -> None:
    network = MemoryNetwork()
    endpoint: MemoryEndpoint = network.endpoint(MemoryServer(clock=network.clock))
    for arguments, why in [
        (([],), "at least one server"),
        ((["no port:x"],), "is no address"),
        (([endpoint], "carrier pigeon"), "unknown protocol"),
    ]:
        with pytest.raises(ValueError, match=why):
            Client(network.clock, *arguments)
    with pytest.raises(ValueError, match="max_connections must be at least 2"):
        Client(network.clock, endpoint, max_connections=1)
    with pytest.raises(ValueError, match="server_name"):
        Client(network.clock, endpoint, tls=TlsOptions())
