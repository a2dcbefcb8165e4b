"""The Twisted client of a server set, in memory. Servers come and go, and no item is lost."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from kestrel.client import client as client_module
from kestrel.client import openssl
from kestrel.client.client import Client
from kestrel.client.errors import CannotConnect, ConnectionFailed, NoServer
from kestrel.client.server import IDLE_S
from kestrel.testing.network import MemoryEndpoint, MemoryNetwork
from kestrel.testing.server import MemoryServer
from tests.client.following import SETS, FakeSets, members
from tests.client.memory_world import work_on
from tests.memcache_text import put, value
from tests.server.running import eventually

TIMEOUT_S = 10.0


class Reactor(Clock):
    """A clock that runs the calls from other threads in `settle`."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[Callable[[], object]] = []

    def callFromThread(self, work: Callable[..., object], *arguments: object) -> None:
        self.wanted.append(partial(work, *arguments))

    def settle(self) -> None:
        while self.wanted:
            self.wanted.pop(0)()


class Network(MemoryNetwork):
    """A network that also runs the calls from other threads."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.reactor = Reactor()

    def settle(self) -> None:
        super().settle()
        self.reactor.settle()
        super().settle()

    def result(self, deferred: Deferred[Any]) -> Any:
        self.settle()
        return super().result(deferred)


class World:
    """Servers in memory, their server sets, and a client that follows these."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, protocol: Any = "memcache", servers: int = 3) -> None:
        self.network = network = Network()
        self.reactor = network.reactor
        self.run, self.begin, self.result = network.run, network.begin, network.result
        self.advance, self.settle = network.advance, network.settle
        self.sets = FakeSets()
        self.protocol = protocol
        self.servers = [MemoryServer(clock=self.reactor) for _ in range(servers)]
        self.endpoints = [self.network.endpoint(server, protocol) for server in self.servers]
        monkeypatch.setattr(client_module, "follow_zookeeper", self.sets.follow)
        monkeypatch.setattr(openssl, "HostnameEndpoint", self._endpoint)
        self.client = Client(self.reactor, SETS, protocol, timeout_s=TIMEOUT_S)

    def _endpoint(self, reactor: object, host: str, port: int, timeout: float) -> MemoryEndpoint:
        return self.endpoints[int(host.removeprefix("mq"))]

    def become(self, *numbers: int, writes: list[int] | None = None) -> None:
        """Replace the members of the sets, and let the client see it."""
        self.tell(*numbers, writes=writes)
        self.settle()

    def tell(self, *numbers: int, writes: list[int] | None = None) -> None:
        """Replace the members of the sets. The client sees it when the reactor settles."""
        to_write = [f"mq{number}:1" for number in (numbers if writes is None else writes)]
        self.sets.become(members(*[f"mq{number}:1" for number in numbers], writes=to_write, protocol=self.protocol))

    def have_put(self, number: int, *items: bytes) -> None:
        """Put items at a server with another client."""
        put(self.servers[number].connect(), b"work", *items)

    def connections(self) -> list[int]:
        """Return the number of connections of each server."""
        self.settle()
        self.reactor.advance(0)
        self.settle()
        return [len(endpoint.connections) for endpoint in self.endpoints]

    def close(self) -> None:
        closing = self.begin(self.client.close())
        eventually(lambda: self._has_ended(closing), "the client is closed")
        self.result(closing)

    def _has_ended(self, closing: Deferred[Any]) -> bool:
        self.settle()
        return closing.called


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


# Members.


def test_requests_wait_for_the_first_members(world: World) -> None:
    waiting = [world.begin(world.client.put("work", b"a")), world.begin(world.client.version())]
    world.advance(TIMEOUT_S - 1)
    assert not any(each.called for each in waiting)
    world.become(0)
    assert world.result(waiting[0]) is True
    assert set(world.result(waiting[1])) == {"mq0:1"}
    assert len(world.sets.followers) == 1


def test_requests_fail_with_the_reason_while_members_are_unknown(world: World) -> None:
    for _ in range(2):
        waiting = world.begin(world.client.get("work", timeout=60))
        world.advance(TIMEOUT_S)
        with pytest.raises(NoServer, match="zk://zk1:2181/services/kestrel: Connection refused"):
            world.result(waiting)
    world.become(0)
    assert world.run(world.client.get("work")) is None
    assert len(world.sets.followers) == 1


def test_request_cancelled_while_members_are_unknown_ends(world: World) -> None:
    waiting = world.begin(world.client.put("work", b"a"))
    waiting.cancel()
    with pytest.raises(CancelledError):
        world.result(waiting)
    world.become(0)
    assert world.run(world.client.get("work")) is None


def test_empty_set_is_named_in_the_error(world: World) -> None:
    world.become(0, writes=[])
    with pytest.raises(NoServer, match="no server that speaks memcache is in the write set of zk://zk1:2181/services"):
        world.run(world.client.put_many("work", [b"a"]))
    assert world.run(world.client.get("work")) is None
    world.become()
    with pytest.raises(NoServer, match="is in the read set of"):
        world.run(world.client.get("work", timeout=5))
    with pytest.raises(NoServer, match="is in the sets of"):
        world.run(world.client.stats())


def test_puts_and_gets_use_their_own_sets(world: World) -> None:
    world.become(0, writes=[1])
    assert world.run(world.client.put("work", b"a"))
    assert world.run(world.client.get("work")) is None
    assert world.connections() == [1, 1, 0]
    assert list(world.run(world.client.status())) == ["mq0:1", "mq1:1"]


def test_remaining_server_keeps_its_connection(world: World) -> None:
    world.become(0)
    world.run(world.client.put("work", b"a"))
    world.become(0, 1)
    world.become(0)
    world.run(world.client.get("work"))
    assert world.endpoints[0].attempts == 1


# Servers that leave.


def test_connections_of_a_removed_server_end(world: World) -> None:
    world.become(0)
    world.run(world.client.put("work", b"a"))
    world.run(world.client.get("work", timeout=1))
    assert world.connections() == [2, 0, 0]
    world.become(1)
    assert world.connections() == [0, 0, 0]
    assert not [call for call in world.reactor.getDelayedCalls() if call.getTime() > IDLE_S + TIMEOUT_S]


@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
def test_item_of_removed_server_is_confirmed_before_disconnect(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, protocol)
    world.become(0)
    world.run(world.client.put("work", b"a"))
    go_on: Deferred[None] = Deferred()
    working = world.begin(work_on(world.client, go_on))
    world.become(1)
    assert world.connections() == [1, 0, 0]
    go_on.callback(None)
    assert world.result(working) == b"a"
    assert world.connections() == [0, 0, 0]
    world.become(0)
    assert world.run(world.client.get("work")) is None


def test_thrift_item_of_removed_server_is_confirmed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, "thrift")
    world.become(0)
    world.run(world.client.put("work", b"a"))
    go_on: Deferred[None] = Deferred()
    working = world.begin(work_on(world.client, go_on))
    world.become(1)
    world.endpoints[0].disconnect()
    world.settle()
    go_on.callback(None)
    assert world.result(working) == b"a"
    assert world.connections() == [0, 0, 0]
    world.become(0)
    assert world.run(world.client.get("work")) is None


def test_put_many_survives_changes_without_loss_or_duplicates(world: World) -> None:
    world.become(0)

    def items() -> Any:
        for number in range(3000):
            if number == 1000:
                world.become(1)
            if number == 2000:
                world.become(0, 1)
            yield b"%d" % number

    assert world.run(world.client.put_many("work", items())) == 3000
    world.become(0, 1)
    got = set()
    while (item := world.run(world.client.get("work"))) is not None:
        assert item not in got
        got.add(item)
    assert got == {b"%d" % number for number in range(3000)}


def test_monitor_of_a_removed_server_continues(world: World) -> None:
    world.become(0)
    seen: list[bytes] = []

    async def watch() -> None:
        async for item in world.client.monitor("work", 5, 1):
            seen.append(item)

    watching = world.begin(watch())
    world.become(1)
    assert world.connections() == [1, 0, 0]
    world.have_put(0, b"a")
    assert world.result(watching) is None and seen == [b"a"]
    assert world.connections() == [0, 0, 0]
    world.become(0)
    assert world.run(world.client.get("work")) is None, "it was confirmed"


def test_waiting_get_finds_a_new_server(world: World) -> None:
    world.become(0)
    waiting = world.begin(world.client.get("work", timeout=60))
    world.become(1)
    world.run(world.client.put("work", b"a"))
    world.advance(1)
    assert world.result(waiting) == b"a"
    assert world.connections()[0] == 0


def test_request_waiting_for_removed_server_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.client = Client(world.reactor, SETS, timeout_s=TIMEOUT_S, max_connections=2)
    world.become(0)
    first, second = [world.begin(world.client.get("work", timeout=30)) for _ in range(2)]
    world.become(1)
    world.advance(1)
    world.have_put(1, b"a", b"b")
    world.advance(3)
    assert {world.result(first), world.result(second)} == {b"a", b"b"}
    assert world.connections()[0] == 0


def test_put_goes_elsewhere_if_its_server_is_removed_while_connecting(world: World) -> None:
    world.endpoints[0].is_silent = True
    world.become(0)
    putting = world.begin(world.client.put("work", b"a"))
    world.become(1)
    world.advance(TIMEOUT_S)
    assert world.result(putting) is True, "it was not carried out there"
    assert world.connections() == [0, 1, 0]


@pytest.mark.parametrize("is_waiting", [False, True])
def test_connection_made_to_a_removed_server_ends_after_its_reply(
    is_waiting: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = world.endpoints[0]
    connect = endpoint.connect
    attempts: list[tuple[Any, Deferred[Any]]] = []

    def connect_later(factory: Any) -> Deferred[Any]:
        attempts.append((factory, Deferred()))
        return attempts[-1][1]

    monkeypatch.setattr(endpoint, "connect", connect_later)
    world.become(0)
    world.have_put(0, b"a")
    getting = [world.begin(world.client.get("work", timeout=5 if is_waiting else 0)) for _ in range(2)]
    world.become(1)
    while attempts:
        factory, attempt = attempts.pop(0)
        connect(factory).addCallback(attempt.callback)
        world.settle()
    for _ in range(10):
        world.advance(1)
    assert sorted(map(world.result, getting), key=str) == [None, b"a"]
    assert world.connections()[0] == 0


def test_returning_server_with_an_open_item_is_used_again(world: World) -> None:
    world.become(0)
    world.have_put(0, b"a", b"b")
    go_on: Deferred[None] = Deferred()
    working = world.begin(work_on(world.client, go_on))
    world.become(1)
    world.become(0)
    assert world.run(world.client.get("work")) == b"b"
    go_on.callback(None)
    assert world.result(working) == b"a"
    assert world.run(world.client.get("work")) is None
    assert world.connections()[0] == 1


def test_thousands_of_changes_leave_no_state(world: World) -> None:
    world.become(0)
    world.run(world.client.put("work", b"a"))
    for number in range(3000):
        world.tell(number % 2, 2)
    world.settle()
    world.become(0)
    assert world.run(world.client.get("work")) in (b"a", None)
    assert world.connections() == [1, 0, 0]
    assert len(world.client._roster.servers) == 1


# The end.


def test_close_ends_the_follower_in_a_thread_and_all_connections(world: World) -> None:
    world.become(0)
    world.run(world.client.put("work", b"a"))
    threads: list[threading.Thread] = []
    follower = world.sets.followers[0]
    original = follower.close

    def close() -> None:
        threads.append(threading.current_thread())
        original()

    follower.close = close  # type: ignore[method-assign]
    world.close()
    assert follower.is_closed and threads != [threading.current_thread()]
    assert world.connections() == [0, 0, 0]
    world.tell(1)
    with pytest.raises(CannotConnect, match="the client is closed"):
        world.run(world.client.put("work", b"a"))
    world.close()


def test_close_fails_requests_that_wait_for_members(world: World) -> None:
    waiting = [world.begin(world.client.put("work", data)) for data in (b"a", b"b")]
    world.close()
    for each in waiting:
        with pytest.raises(CannotConnect, match="the client is closed"):
            world.result(each)
    assert not world.reactor.getDelayedCalls()


def test_close_without_server_set_waits_for_no_thread(world: World) -> None:
    closing = world.network.begin(world.client.close())
    assert closing.called


def test_member_that_cannot_be_used_costs_no_item(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(reactor: object, host: str, port: int, timeout: float) -> MemoryEndpoint:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    world.become(0)
    world.have_put(0, b"a")
    world.run(world.client.version())
    monkeypatch.setattr(openssl, "HostnameEndpoint", unreadable)
    taking = world.begin(world.client.get("work", timeout=60))
    assert world.result(taking) == b"a"
    taking = world.begin(world.client.get("work", timeout=60))
    world.tell(0, 1)
    world.have_put(0, b"b")
    assert world.result(taking) == b"b"
    with pytest.raises(OSError, match="Permission denied"):
        world.run(world.client.get("work"))
    monkeypatch.setattr(openssl, "HostnameEndpoint", world._endpoint)
    world.have_put(1, b"c")
    assert world.run(world.client.get("work", timeout=1)) == b"c"


def test_request_failed_by_close_does_not_move(world: World) -> None:
    world.become(0)
    waiting = world.begin(world.client.get("work", timeout=60))
    world.have_put(1, b"kept")
    world.tell(1)
    world.close()
    with pytest.raises(ConnectionFailed):
        world.result(waiting)
    assert world.servers[1].connect().ask(b"get work\r\n") == value(b"work", b"kept")


def test_close_fails_requests_at_a_removed_server(world: World) -> None:
    world.become(0)
    waiting = world.begin(world.client.get("work", timeout=60))
    world.become(1)
    world.close()
    with pytest.raises(CannotConnect):
        world.result(waiting)
    assert world.connections() == [0, 0, 0]
