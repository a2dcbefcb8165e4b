"""The Twisted client and its servers, in memory: which of them is asked, over which connection, and when again."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import ISSLTransport, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from zope.interface import implementer

from kestrel.client.client import Client
from kestrel.client.errors import CannotConnect, ConnectionFailed, RequestError, ServerError
from kestrel.client.server import IDLE_S
from kestrel.testing.network import MemoryEndpoint, MemoryNetwork
from kestrel.testing.server import MemoryServer
from kestrel.tls import TlsOptions
from tests.client import memory_world
from tests.client.first_choice import FirstOfAll

TIMEOUT_S = 10.0


class World(memory_world.World):
    """Some servers in memory, and a client that asks them in their order."""

    def __init__(self, servers: int = 1, **options: Any) -> None:
        super().__init__(servers, **{"timeout_s": TIMEOUT_S, "random": FirstOfAll(), **options})

    def connections(self) -> list[int]:
        """How many each server has."""
        return [len(endpoint.connections) for endpoint in self.endpoints]

    def attempts(self) -> list[int]:
        """How often each was connected to."""
        return [endpoint.attempts for endpoint in self.endpoints]

    def items(self, queue: bytes = b"work") -> list[int]:
        """How many items each server has in the queue."""
        return [_number(server, queue, "items") for server in self.servers]

    def have_put(self, number: int, *items: bytes) -> None:
        """Another client has put these at a server."""
        other = self.servers[number].connect()
        for data in items:
            assert other.ask(b"set work 0 0 %d\r\n%b\r\n" % (len(data), data)) == b"STORED\r\n"

    def refuse_writes(self, number: int) -> None:
        """Have a server refuse puts from now on."""
        assert self.servers[number].connect().ask(b"status readonly\r\n") == b"END\r\n"

    def failing(self, work: Any) -> BaseException:
        """The error that the coroutine ends with."""
        with pytest.raises(Exception) as caught:
            self.run(work)
        return caught.value


def _number(server: MemoryServer, queue: bytes, name: str) -> int:
    lines = server.connect().ask(b"dump_stats %b\r\n" % queue).decode().split("\r\n")
    return int(next((line.partition("=")[2] for line in lines if line.startswith(f"  {name}=")), 0))


# Connections.


def test_nothing_is_connected_before_it_is_needed() -> None:
    assert World().attempts() == [0]


def test_puts_share_a_connection_and_do_not_wait_for_each_other() -> None:
    world = World()
    puts = [world.begin(world.client.put("work", b"%d" % number)) for number in range(100)]
    assert all(world.result(put) for put in puts)
    assert world.attempts() == [1]
    assert [world.run(world.client.get("work")) for _ in puts] == [b"%d" % number for number in range(100)]
    assert world.attempts() == [1]


def test_all_who_wait_for_the_connection_get_it_or_the_failure() -> None:
    world = World()
    world.endpoints[0].is_silent = True
    puts = [world.begin(world.client.put("work", b"a")) for _ in range(3)]
    assert world.attempts() == [1]
    world.advance(TIMEOUT_S)
    for put in puts:
        with pytest.raises(CannotConnect, match="no connection within 10 s"):
            world.result(put)


def test_one_who_gives_up_does_not_take_the_connection_from_the_others() -> None:
    world = World()
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


def test_a_get_that_waits_holds_nobody_up() -> None:
    world = World()
    waiting = world.begin(world.client.get("work", timeout=5))
    assert world.run(world.client.put("other", b"a"))
    assert world.run(world.client.peek("other")) == b"a"
    assert not waiting.called
    assert world.run(world.client.put("work", b"b"))
    assert world.result(waiting) == b"b"
    assert world.connections() == [2]


def test_a_connection_of_its_own_is_kept_for_the_next() -> None:
    world = World()
    for _ in range(3):
        waiting = world.begin(world.client.get("work", timeout=5))
        world.advance(5)
        assert world.result(waiting) is None
    assert world.attempts() == [1]


def test_connections_that_nobody_wants_any_more_are_closed_after_a_while() -> None:
    world = World()
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
    world.result(world.begin(world.client.close()))
    assert world.network.clock.getDelayedCalls() == []
    for each in waiting:
        each.addErrback(lambda failure: failure.trap(ConnectionFailed))


def test_no_more_connections_are_made_than_may_be() -> None:
    world = World(max_connections=3)
    waiting = [world.begin(world.client.get("work", timeout=30)) for _ in range(3)]
    assert world.run(world.client.put_many("work", [b"a", b"b", b"c"])) == 3
    assert [world.result(each) for each in waiting] == [b"a", b"b", b"c"]
    assert world.connections() == [3]


def test_who_gets_no_connection_in_time_is_told() -> None:
    world = World(max_connections=2)
    waiting = world.begin(world.client.get("work", timeout=60))
    late = world.begin(world.client.get("work", timeout=5))
    world.advance(5 + TIMEOUT_S - 0.25)  # the time that it may wait is for waiting in line as well
    assert not late.called
    world.advance(0.25)
    with pytest.raises(CannotConnect, match="in use"):
        world.result(late)
    world.have_put(0, b"a")
    world.network.settle()
    assert world.result(waiting) == b"a"


def test_who_stands_in_line_gets_the_place_of_a_connection_that_ended() -> None:
    world = World(max_connections=2)
    waiting = world.begin(world.client.get("work", timeout=30)).addErrback(lambda _: "cancelled")
    gone = world.begin(world.client.get("work", timeout=30)).addErrback(lambda _: "cancelled")
    late = world.begin(world.client.get("work", timeout=30))
    gone.cancel()
    waiting.cancel()
    world.network.settle()
    world.have_put(0, b"a")
    world.network.settle()
    assert world.result(late) == b"a"
    assert world.connections() == [1]


def test_an_idle_connection_that_the_server_ended_is_not_used_again() -> None:
    world = World(max_connections=2)
    waiting = world.begin(world.client.get("work", timeout=5))
    world.run(world.client.version())
    world.advance(5)
    assert world.result(waiting) is None
    world.endpoints[0].disconnect()
    world.network.settle()
    assert world.connections() == [0]
    world.have_put(0, b"a")
    assert world.run(world.client.version())
    assert world.result(world.begin(world.client.get("work", timeout=5))) == b"a"


def test_an_idle_connection_on_which_the_server_spoke_unasked_is_not_used_again() -> None:
    world = World()
    waiting = world.begin(world.client.get("work", timeout=5))
    world.advance(5)
    assert world.result(waiting) is None
    world.endpoints[0].connections[0].transport.arrive(b"END\r\n")
    waiting = Deferred.fromCoroutine(world.client.get("work", timeout=5))
    world.advance(5)
    assert world.result(waiting) is None
    assert world.attempts() == [2]


# A server that is away.


def test_a_server_that_cannot_be_reached_has_not_carried_it_out() -> None:
    world = World()
    world.endpoints[0].is_away = True
    error = world.failing(world.client.put("work", b"a"))
    assert isinstance(error, CannotConnect)
    assert str(error).startswith("servers[0]: Connection was refused")


def test_a_server_that_was_away_is_asked_again_after_pauses_that_grow() -> None:
    world = World()
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


def test_a_request_that_waited_for_the_server_is_carried_out_when_it_is_back() -> None:
    world = World()
    assert world.run(world.client.put("work", b"a"))
    world.endpoints[0].disconnect()
    world.network.settle()
    world.endpoints[0].is_away = True
    world.failing(world.client.put("work", b"b"))
    put = world.begin(world.client.put("work", b"c"))
    world.endpoints[0].is_away = False
    world.advance(0.5)
    assert world.result(put)
    assert world.items() == [2]
    assert world.run(world.client.version())  # and the next failure is the first again
    world.endpoints[0].disconnect()
    world.network.settle()
    world.endpoints[0].is_away = True
    world.failing(world.client.version())
    last = world.begin(world.client.version())
    world.endpoints[0].is_away = False
    world.advance(0.5)
    assert world.result(last)


def test_a_request_under_way_when_the_connection_ends_may_have_been_carried_out() -> None:
    world = World()
    waiting = world.begin(world.client.get("work", timeout=5))
    world.endpoints[0].disconnect()
    world.network.settle()
    with pytest.raises(ConnectionFailed) as caught:
        world.result(waiting)
    assert not isinstance(caught.value, CannotConnect)


# Several servers.


def test_a_put_goes_elsewhere_when_a_server_is_away_and_that_one_is_left_alone() -> None:
    world = World(2)
    world.endpoints[0].is_away = True
    assert all(world.run(world.client.put("work", b"a")) for _ in range(3))
    assert world.items() == [0, 3]
    assert world.attempts() == [1, 1]
    world.endpoints[0].is_away = False
    world.advance(0.5)
    assert world.run(world.client.put("work", b"a"))
    assert world.items() == [1, 3]


def test_a_put_goes_elsewhere_on_a_server_error() -> None:
    world = World(2)
    world.refuse_writes(0)
    assert world.run(world.client.put("work", b"a"))
    assert world.items() == [0, 1]


def test_many_puts_go_elsewhere_on_a_server_error_each_once() -> None:
    world = World(2)
    world.refuse_writes(0)
    items = [b"%d" % number for number in range(1200)]
    assert world.run(world.client.put_many("work", items)) == 1200
    assert world.items() == [0, 1200]
    assert [world.run(world.client.get("work")) for _ in items] == items


def test_puts_behind_one_that_was_refused_go_elsewhere_as_well() -> None:
    world = World(2)
    world.run(world.client.version())
    world.refuse_writes(0)
    puts = [world.begin(world.client.put("work", b"%d" % number)) for number in range(10)]
    assert all(world.result(put) for put in puts)
    assert world.items() == [0, 10]


def test_one_bad_request_does_not_spoil_what_others_ask_behind_it() -> None:
    world = World()
    world.run(world.client.version())
    bad = Deferred.fromCoroutine(world.client.set_status("sleepy"))
    bad.addErrback(lambda failure: failure.trap(RequestError))
    put = Deferred.fromCoroutine(world.client.put("work", b"a"))
    many = Deferred.fromCoroutine(world.client.put_many("work", [b"b", b"c"]))
    world.network.settle()
    assert (world.result(bad), world.result(put), world.result(many)) == (RequestError, True, 2)
    assert world.items() == [3]
    assert world.attempts() == [2]


def test_gets_are_served_beside_puts_that_are_refused_and_all_are_told_what_is_the_matter() -> None:
    world = World()
    world.have_put(0, b"a", b"b", b"c")
    world.run(world.client.version())
    world.refuse_writes(0)
    asked = []
    for _ in range(3):
        asked.append(Deferred.fromCoroutine(world.client.put("work", b"x")))
        asked.append(Deferred.fromCoroutine(world.client.put("work", b"x")))
        asked.append(Deferred.fromCoroutine(world.client.get("work")))
        asked.append(Deferred.fromCoroutine(world.client.status()))
    world.network.settle()
    told = []
    for each in asked:
        try:
            told.append(world.result(each))
        except ServerError as error:
            told.append(str(error))
    no, status = "servers[0]: the server is ReadOnly", {"servers[0]": "ReadOnly"}
    assert [told[:2], told[4:6], told[8:10]] == [[no, no]] * 3
    assert told[3::4] == [status] * 3
    assert sorted(told[2::4]) == [b"a", b"b", b"c"]


def test_a_put_that_everyone_refuses_fails_as_the_last_one_said() -> None:
    world = World(2)
    world.refuse_writes(0)
    world.refuse_writes(1)
    assert isinstance(world.failing(world.client.put("work", b"a")), ServerError)
    assert isinstance(world.failing(world.client.put_many("work", [b"a"])), ServerError)


def silenced(world: World, number: int) -> None:
    """Let the server hear nothing more on the connections that it has."""
    for connection in world.endpoints[number].connections:
        connection.server_end.transport.pauseProducing()


def test_many_requests_that_fail_together_are_one_failure_of_their_server() -> None:
    world = World(2)
    world.run(world.client.version())
    silenced(world, 0)
    puts = [world.begin(world.client.put("work", b"a")) for _ in range(40)]
    world.advance(TIMEOUT_S)
    for put in puts:
        with pytest.raises(ConnectionFailed):
            world.result(put)
    world.advance(0.5)
    assert world.run(world.client.put("work", b"b"))
    assert world.items() == [1, 0]


@pytest.mark.parametrize("repeats", [False, True])
def test_a_put_that_nobody_knows_of_is_repeated_only_if_items_may_come_twice(repeats: bool) -> None:
    world = World(2, repeats=repeats)
    world.run(world.client.version())
    silenced(world, 0)
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


def test_gets_stay_with_a_server_for_so_many_and_then_go_to_another() -> None:
    world = World(2, gets_per_server=3)
    world.have_put(0, *[b"0"] * 10)
    world.have_put(1, *[b"1"] * 10)
    assert [world.run(world.client.get("work")) for _ in range(9)] == [b"0"] * 3 + [b"1"] * 3 + [b"0"] * 3


def test_gets_move_on_when_a_server_is_empty() -> None:
    world = World(2)
    world.have_put(0, b"a")
    world.have_put(1, b"b", b"c")
    assert [world.run(world.client.get("work")) for _ in range(4)] == [b"a", b"b", b"c", None]


def test_gets_move_on_when_a_server_is_away() -> None:
    world = World(2)
    world.endpoints[0].is_away = True
    world.have_put(1, b"a")
    assert world.run(world.client.get("work")) == b"a"
    assert world.run(world.client.get("work")) is None
    assert world.attempts() == [1, 1]


def test_a_get_waits_at_each_server_for_a_second_in_turn_and_for_its_time_in_all() -> None:
    world = World(2)
    waiting = world.begin(world.client.get("work", timeout=2.5))
    world.advance(1)  # at the first
    world.have_put(1, b"a")
    world.network.settle()
    assert world.result(waiting) == b"a"
    waiting = world.begin(world.client.get("work", timeout=2.5))
    for pause_s in (1, 1, 0.25):
        world.advance(pause_s)
        assert not waiting.called
    world.advance(0.25)
    assert world.result(waiting) is None


def test_figures_are_those_of_each_server() -> None:
    world = World(2)
    world.have_put(1, b"a")
    stats = world.run(world.client.stats())
    assert {name: figures["curr_items"] for name, figures in stats.items()} == {"servers[0]": "0", "servers[1]": "1"}
    assert world.run(world.client.version()) == {"servers[0]": "1.2.3", "servers[1]": "1.2.3"}
    world.run(world.client.set_status("ReadOnly"))
    assert world.run(world.client.status()) == {"servers[0]": "ReadOnly", "servers[1]": "ReadOnly"}
    assert set(world.run(world.client.dump_config("work"))) == {"servers[0]", "servers[1]"}


def test_all_servers_are_asked_also_when_one_of_them_fails() -> None:
    world = World(2)
    world.have_put(1, b"a")
    world.endpoints[0].is_away = True
    assert isinstance(world.failing(world.client.flush("work")), CannotConnect)
    assert world.items() == [0, 0]


# TLS: a connection is there before anybody knows with whom.


@implementer(ISSLTransport)
class TlsTransport(StringTransport):
    """Says that it is one."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """As TCP does."""


@implementer(IStreamClientEndpoint)
class ShakingHands:
    """Connects at once; whether the other side proves who it is, is for a test to say."""

    def __init__(self) -> None:
        self.transport = TlsTransport()
        self.protocol: Any = None

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        self.protocol = protocolFactory.buildProtocol(None)
        self.protocol.makeConnection(self.transport)
        return succeed(self.protocol)


def test_nothing_is_said_before_the_server_has_proved_who_it_is() -> None:
    clock, endpoint = Clock(), ShakingHands()
    client = Client(clock, endpoint)
    asked = Deferred.fromCoroutine(client.version())
    assert endpoint.transport.value() == b""
    endpoint.protocol.handshakeCompleted()
    assert endpoint.transport.value() == b"version\r\n"
    endpoint.protocol.dataReceived(b"VERSION 1\r\n")
    assert asked.result == {"servers[0]": "1"}


def test_a_server_that_does_not_prove_in_time_who_it_is_is_hung_up_on() -> None:
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


def test_closing_ends_everything_and_leaves_no_timer() -> None:
    world = World(max_connections=2)
    assert world.run(world.client.put("other", b"a"))
    waiting = world.begin(world.client.get("work", timeout=60))
    in_line = world.begin(world.client.get("work", timeout=60))
    world.result(world.begin(world.client.close()))
    with pytest.raises(ConnectionFailed, match="the client was closed"):
        world.result(waiting)
    with pytest.raises(CannotConnect, match="the client is closed"):
        world.result(in_line)
    assert world.network.clock.getDelayedCalls() == []
    assert world.connections() == [0]
    world.run(world.client.close())


def test_closing_ends_the_attempts_to_connect() -> None:
    world = World(2)
    for endpoint in world.endpoints:
        endpoint.is_silent = True
    asked = world.begin(world.client.version())
    world.run(world.client.close())
    with pytest.raises(CannotConnect, match="the client is closed"):
        world.result(asked)
    assert world.network.clock.getDelayedCalls() == []


def test_closing_ends_the_wait_for_a_server_that_is_away() -> None:
    world = World()
    world.endpoints[0].is_away = True
    world.failing(world.client.version())
    waiting = world.begin(world.client.put("work", b"a"))
    world.run(world.client.close())
    with pytest.raises(CannotConnect, match="the client is closed"):
        world.result(waiting)
    assert world.network.clock.getDelayedCalls() == []


def test_a_closed_client_connects_to_nobody() -> None:
    world = World()
    assert world.run(world.client.put("work", b"a"))

    async def use_it() -> None:
        async with world.client as client:
            assert client is world.client

    closed = world.begin(use_it())
    world.network.settle()
    world.result(closed)
    for work in (world.client.put("work", b"a"), world.client.get("work", timeout=5), world.client.stats()):
        assert str(world.failing(work)) == "servers[0]: the client is closed"
    assert world.attempts() == [1]


def test_a_get_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    world = World()
    waiting = world.begin(world.client.get("work", timeout=60))
    waiting.cancel()
    with pytest.raises(CancelledError):
        world.result(waiting)
    world.network.settle()
    world.have_put(0, b"a")
    world.network.settle()
    assert world.items() == [1]
    assert world.connections() == [0]
    assert world.network.clock.getDelayedCalls() == []


@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
def test_a_get_with_a_timeout_that_is_cancelled_before_it_was_sent_takes_nothing_of_several_servers(
    protocol: str,
) -> None:
    network = MemoryNetwork()
    servers = [MemoryServer(clock=network.clock) for _ in range(2)]
    client = Client(network.clock, [network.endpoint(each, protocol) for each in servers], protocol)
    network.run(client.put_many("work", [b"a"]))
    waiting = Deferred.fromCoroutine(client.get("work", timeout=60))
    waiting.addErrback(lambda failure: failure.trap(CancelledError)).cancel()
    network.settle()
    assert network.run(client.get("work")) == b"a"


def test_a_client_that_is_closed_asks_nobody_else() -> None:
    world = World(3)
    for number in (1, 2):
        world.have_put(number, b"a")
    world.endpoints[0].is_silent = True
    get, put = world.begin(world.client.get("work")), world.begin(world.client.put("work", b"b"))
    world.result(world.begin(world.client.close()))
    for each in (get, put):
        with pytest.raises(CannotConnect, match="the client is closed"):
            world.result(each)
    assert world.attempts() == [1, 0, 0]
    assert world.items() == [0, 1, 1]


# What a client is made of.


def test_a_client_must_have_servers_a_protocol_and_room_for_connections() -> None:
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
