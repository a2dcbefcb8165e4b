"""The hub: its ticks, the order of clients in a tick, and its use of the reactor.

test_tcp.py contains the tests that connections of the hub share with Twisted's.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv6Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.protocol import connectionDone
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from zope.interface.verify import verifyObject

from kestrel.net import hub, hub_transport
from kestrel.net.hub import MAX_EVENTS_PER_TICK, TIME_SLICE_S, Hub
from kestrel.net.hub_transport import HubTransport
from kestrel.net.ports import MAX_ACCEPTS_PER_TICK, HubListener
from kestrel.testing.server import MemoryServer
from tests.memcache_text import set_
from tests.net.sockets import LITTLE, Client, HalfCloseable, Net, Seen

BIG = bytes(10 << 20)


def test_hub_is_a_read_descriptor_of_the_reactor(hub_net: Net) -> None:
    assert verifyObject(IReadDescriptor, hub_net.hub)


def test_event_constants_are_those_of_the_system() -> None:
    assert hub_transport.READABLE == select.EPOLLIN
    assert hub_transport.WRITABLE == select.EPOLLOUT
    assert hub_transport.BROKEN == select.EPOLLERR | select.EPOLLHUP
    assert hub_transport.PEER_ENDED == select.EPOLLRDHUP
    assert hub.IS_AVAILABLE


# Ticks.


def test_all_ready_clients_are_served_in_one_tick(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(5)]
    for client, protocol in pairs:
        protocol.on_data = lambda data: hub_net.ticks.append("read")
        client.send(b"x")
    hub_net.iterate()
    assert hub_net.ticks == ["begin", "read", "read", "read", "read", "read", "end"]


def test_idle_hub_makes_no_tick(hub_net: Net) -> None:
    hub_net.connect()
    hub_net.settle()
    hub_net.hub.doRead()
    assert hub_net.ticks == []


def test_input_during_tick_is_served_in_next_tick(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    hub_net.seconds = lambda: 0.0

    def again(data: bytes) -> None:
        hub_net.ticks.append(data.decode())
        if data != b"3":
            client.send(b"%d" % (int(data) + 1))

    protocol.on_data = again
    client.send(b"1")
    hub_net.iterate()
    assert hub_net.ticks == ["begin", "1", "end", "begin", "2", "end", "begin", "3", "end"]


def test_input_already_read_is_delivered_despite_a_pause(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(2)]
    seen: list[bytes] = []
    for (client, protocol), (_, other) in zip(pairs, reversed(pairs), strict=True):

        def pause_the_other(data: bytes, other: Seen = other) -> None:
            if not seen:
                other.transport.pauseProducing()
            seen.append(data)

        protocol.on_data = pause_the_other
        client.send(b"x")
    hub_net.iterate()
    assert seen == [b"x", b"x"]


def test_fault_while_reading_one_client_loses_no_input_of_others(hub_net: Net) -> None:
    for fault in (MemoryError, KeyboardInterrupt):
        pairs = [hub_net.connect() for _ in range(3)]
        hub_net.settle()

        def fail(descriptor: int, size: int, fault: type[BaseException] = fault) -> bytes:
            raise fault

        pairs[1][1].transport._read = fail
        for client, _ in pairs:
            client.send(b"x")
        with capturedLogs() as logged:
            hub_net.iterate()
        assert [bytes(protocol.received) for _, protocol in pairs] == [b"x", b"", b"x"]
        assert pairs[1][1].lost_by(ConnectionLost)
        assert [event["log_failure"].type for event in logged] == [fault]


def test_descriptor_closed_by_a_protocol_loses_no_input_of_others(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(4)]
    hub_net.settle()
    broken = pairs[0][1]

    def close_below_it(data: bytes) -> None:
        broken.transport.getHandle().close()
        raise ValueError("a fault of a protocol")

    broken.on_data = close_below_it
    for client, _ in pairs:
        client.send(b"x")
    hub_net.iterate()
    assert [bytes(protocol.received) for _, protocol in pairs[1:]] == [b"x"] * 3
    assert broken.reason is not None


def test_end_of_input_is_not_reported_while_paused(hub_net: Net) -> None:
    (client, protocol), (other, paused) = hub_net.connect(HalfCloseable), hub_net.connect(HalfCloseable)
    hub_net.settle()
    real = paused.transport._read
    paused.transport._read = lambda descriptor, size: b""
    protocol.on_data = lambda data: paused.transport.pauseProducing()
    client.send(b"x")
    other.send(b"x")
    hub_net.iterate()
    assert "input ended" not in paused.calls
    paused.transport._read = real
    paused.transport.resumeProducing()
    hub_net.iterate()
    assert paused.received == b"x"


def test_input_of_connection_closed_in_tick_is_dropped(hub_net: Net) -> None:
    for end in ("abortConnection", "loseConnection"):
        pairs = [hub_net.connect() for _ in range(2)]
        seen: list[bytes] = []
        for (client, protocol), (_, other) in zip(pairs, reversed(pairs), strict=True):

            def end_the_other(data: bytes, other: Seen, end: str, seen: list[bytes]) -> None:
                seen.append(data)
                getattr(other.transport, end)()

            protocol.on_data = partial(end_the_other, other=other, end=end, seen=seen)
            client.send(b"x")
        hub_net.iterate()
        assert seen == [b"x"], end


def test_hub_returns_to_the_reactor_after_2_ms(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    now = 0.0
    hub_net.seconds = lambda: now
    count = 0

    def never_enough(data: bytes) -> None:
        nonlocal now, count
        now += TIME_SLICE_S / 4
        count += 1
        client.send(b"x")

    protocol.on_data = never_enough
    client.send(b"x")
    timers: list[int] = []
    hub_net.reactor.callFromThread(lambda: timers.append(count))
    hub_net.iterate()
    hub_net.reactor.callFromThread(lambda: timers.append(count))
    hub_net.iterate()
    assert timers == [0, 4], "four rounds of half a millisecond"
    assert hub_net.ticks == ["begin", "end"] * 8


def test_clients_above_tick_limit_are_first_next_tick(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(MAX_EVENTS_PER_TICK + 10)]
    order: list[int] = []
    for number, (client, protocol) in enumerate(pairs):
        protocol.on_data = lambda data, number=number: order.append(number)
        client.send(b"x")
    now = 0.0

    def seconds() -> float:
        nonlocal now
        now += TIME_SLICE_S
        return now

    hub_net.seconds = seconds
    hub_net.iterate()
    assert len(order) == MAX_EVENTS_PER_TICK
    for number in order:
        pairs[number][0].send(b"x")
    first, order[:] = set(order), []
    hub_net.iterate()
    assert len(order) == MAX_EVENTS_PER_TICK
    assert set(order[:10]) == set(range(len(pairs))) - first


def test_each_client_is_read_once_in_a_tick(hub_net: Net) -> None:
    (big, big_protocol), (little, little_protocol) = hub_net.connect(), hub_net.connect()
    big_protocol.on_data = lambda data: hub_net.ticks.append("big")
    little_protocol.on_data = lambda data: hub_net.ticks.append("little")
    big.send(bytes(200_000))
    little.send(b"x")
    hub_net.iterate()
    assert "little" in hub_net.ticks[: hub_net.ticks.index("end")]
    assert hub_net.ticks[: hub_net.ticks.index("end")].count("big") == 1


@pytest.mark.parametrize("how", ["close", "reset"])
def test_disconnects_are_handled_before_reads(hub_net: Net, how: str) -> None:
    pairs = [hub_net.connect() for _ in range(3)]
    (asking, asks), (leaving, leaves), (also_asking, also_asks) = pairs
    for protocol in (asks, also_asks):
        protocol.on_data = lambda data: hub_net.ticks.append(f"asked, disconnected: {leaves.reason is not None}")
    asking.send(b"x")
    also_asking.send(b"x")
    getattr(leaving, how)()
    hub_net.iterate()
    assert hub_net.ticks[:4] == ["begin", "asked, disconnected: True", "asked, disconnected: True", "end"]


def test_faults_of_protocols_do_not_end_a_tick_early(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(3)]

    def fail(data: bytes) -> None:
        hub_net.ticks.append("fault")
        raise KeyboardInterrupt

    for client, protocol in pairs:
        protocol.on_data = fail
        client.send(b"x")
    with capturedLogs():
        hub_net.iterate()
    assert hub_net.ticks[:5] == ["begin", "fault", "fault", "fault", "end"]
    assert all(protocol.lost_by(KeyboardInterrupt) for _, protocol in pairs)


def test_fault_at_tick_end_is_logged_without_disconnects(hub_net: Net) -> None:
    def fail() -> None:
        raise ValueError("the end of a tick failed")

    broken = Hub(hub_net.seconds, lambda: None, fail, hub_net.reactor.callFromThread)
    ours, theirs = socket.socketpair()
    seen = Seen()
    seen.makeConnection(broken.connect(ours, seen, ("", 0)))
    theirs.send(b"x")
    with capturedLogs() as events:
        broken.doRead()
    theirs.close()
    assert [str(event["log_failure"].value) for event in events] == ["the end of a tick failed"]
    assert (seen.received, seen.reason) == (b"x", None)
    broken.close()


def test_disconnect_between_ticks_is_handled_in_a_tick(hub_net: Net) -> None:
    _, protocol = hub_net.connect()
    protocol.transport.abortConnection()
    hub_net.settle()
    assert (protocol.calls, hub_net.ticks) == (["lost"], ["begin", "end"])


def test_half_closed_client_is_read_once_in_a_tick(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    protocol.on_data = lambda data: hub_net.ticks.append("read")
    client.send(bytes(200_000))
    client.half_close()
    hub_net.iterate()
    assert hub_net.ticks[:3] == ["begin", "read", "end"]


def test_clients_are_served_while_many_others_disconnect(hub_net: Net) -> None:
    now = 0.0

    class Leaving(Seen):
        def connectionLost(self, reason: Failure = connectionDone) -> None:
            nonlocal now
            super().connectionLost(reason)
            now += TIME_SLICE_S
            hub_net.ticks.append("left")

    pairs = [hub_net.connect(Leaving) for _ in range(5)]
    client, other = hub_net.connect()
    hub_net.settle()
    hub_net.seconds = lambda: now
    for leaving, _ in pairs:
        leaving.close()
    other.on_data = lambda data: hub_net.ticks.append("read")
    client.send(b"x")
    hub_net.iterate()
    assert hub_net.ticks == ["begin", "left", "read", "end"]
    hub_net.settle()
    assert hub_net.ticks.count("left") == 5


def test_disconnect_after_the_time_slice_is_handled_soon(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    now = 0.0

    def abort(data: bytes) -> None:
        nonlocal now
        now += TIME_SLICE_S
        protocol.transport.abortConnection()

    hub_net.seconds = lambda: now
    protocol.on_data = abort
    client.send(b"x")
    hub_net.iterate()
    assert protocol.reason is None
    hub_net.settle()
    assert protocol.calls == ["lost"]


def fail_to_send(descriptor: int, data: bytes) -> int:
    """Fail with an error that epoll does not report."""
    raise OSError(errno.EHOSTUNREACH, "no way there")


def test_failed_send_disconnects_after_the_write(hub_net: Net) -> None:
    ours, theirs = socket.socketpair()
    seen = Seen()
    seen.makeConnection(hub_net.hub.connect(ours, seen, ("", 0)))
    seen.transport._write = fail_to_send
    seen.transport.write(b"x")
    seen.transport.write(b"x")
    assert seen.reason is None
    hub_net.settle()
    assert seen.lost_by(ConnectionLost)
    theirs.close()


# Idle connections.


def test_half_closed_connection_costs_nothing_and_its_reset_is_noticed(hub_net: Net) -> None:
    client, protocol = hub_net.connect(HalfCloseable)
    client.half_close()
    hub_net.until(lambda: protocol.calls == ["input ended"])
    assert hub_net.is_hub_idle
    protocol.transport.resumeProducing()
    hub_net.settle()
    assert protocol.calls == ["input ended"], "it is reported once"
    client.reset()
    hub_net.until(lambda: protocol.lost_by(ConnectionLost))


def test_paused_connection_costs_nothing_and_its_reset_is_noticed(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    protocol.transport.pauseProducing()
    client.send(b"x")
    client.half_close()
    hub_net.settle()
    assert hub_net.is_hub_idle
    client.reset()
    hub_net.until(lambda: protocol.lost_by(ConnectionLost))
    assert protocol.received == b""


def test_client_that_does_not_read_costs_nothing(hub_net: Net) -> None:
    client, protocol = hub_net.connect(receive_buffer=LITTLE)
    protocol.transport.write(BIG)
    hub_net.settle()
    assert hub_net.is_hub_idle
    hub_net.until(lambda: client.has(len(BIG)))
    hub_net.settle()
    assert hub_net.is_hub_idle


class StingySocket(socket.socket):
    """A socket that sends little at a time, and records the buffers."""

    given: list[memoryview]

    def sendmsg(self, buffers: Any, *args: Any) -> int:
        pieces = list(buffers)
        self.given += pieces
        return super().send(pieces[0][:1000])


def test_unsent_bytes_are_not_copied_between_small_sends(hub_net: Net) -> None:
    ours, theirs = socket.socketpair()
    stingy = StingySocket(fileno=ours.detach())
    stingy.given = []
    seen = Seen()
    seen.makeConnection(hub_net.hub.connect(stingy, seen, ("", 0)))
    seen.transport._write = lambda descriptor, data: os.write(descriptor, data[:1000])
    item = bytes(16 << 20)
    seen.transport.write(item)
    for _ in range(100):
        hub_net.iterate()
        theirs.recv(1 << 20)
    assert len(stingy.given) >= 100
    assert all(piece.obj is item for piece in stingy.given)
    theirs.close()
    hub_net.until(lambda: seen.reason is not None)


def test_ipv6_address_has_its_scope() -> None:
    ours, theirs = socket.socketpair()
    transport = HubTransport(ours, Seen(), ("fe80::1%eth0", 2000, 1, 3), select.epoll(), lambda *_: None)
    assert transport.getPeer() == IPv6Address("TCP", "fe80::1%eth0", 2000, 1, 3)
    ours.close()
    theirs.close()


# Closing.


def test_closed_hub_disconnects_its_clients_and_makes_no_tick(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(3)]
    assert len(hub_net.hub) == 3
    pairs[0][1].transport.abortConnection()
    hub_net.reactor.removeReader(hub_net.hub)
    hub_net.hub.close()
    hub_net.hub.close()
    assert all(protocol.lost_by(ConnectionLost) for _, protocol in pairs)
    hub_net.settle()
    assert (len(hub_net.hub), hub_net.ticks) == (0, [])


def test_hub_may_be_closed_by_a_protocol_during_a_tick(hub_net: Net) -> None:
    (client, protocol), (_, other) = hub_net.connect(), hub_net.connect()

    def close(data: bytes) -> None:
        hub_net.reactor.removeReader(hub_net.hub)
        hub_net.hub.close()

    protocol.on_data = close
    client.send(b"x")
    with capturedLogs() as events:
        hub_net.hub.doRead()
        hub_net.hub.doRead()
    assert (protocol.calls, other.calls, hub_net.ticks, events) == (["lost"], ["lost"], ["begin", "end"], [])


def test_reactor_that_removes_all_readers_disconnects_the_clients(hub_net: Net) -> None:
    _, protocol = hub_net.connect()
    hub_net.reactor.removeReader(hub_net.hub)
    hub_net.hub.connectionLost(Failure(ConnectionDone()))
    assert protocol.lost_by(ConnectionDone)


# With sessions.


class Served:
    """A server in memory whose memcache clients connect through the hub."""

    def __init__(self, net: Net, folder: Path) -> None:
        self.server = MemoryServer(folder=folder)
        self._net = net
        barrier = self.server.barrier
        self.hub = Hub(self.server.clock.seconds, barrier.begin_tick, barrier.end_of_tick, self.server.soon)
        self._port: Any = HubListener(net.reactor, self.hub).listenTCP(0, self.server.factories["memcache"])
        self._clients: list[Client] = []

    def connect(self) -> Client:
        client = Client(("127.0.0.1", self._port.getHost().port))
        self._clients.append(client)
        self._net.until(lambda: len(self.hub) == len(self._clients))
        return client

    def tick(self) -> None:
        """Run one tick of the hub and of the server."""
        self.hub.doRead()
        self.server.tick()

    def end(self) -> None:
        for client in self._clients:
            client.close()
        self._net.until(lambda: not (self.tick() or len(self.hub)))
        self._port.stopListening()
        self._net.settle()
        self.hub.close()


@pytest.fixture
def served(hub_net: Net, tmp_path: Path) -> Any:
    served = Served(hub_net, tmp_path / "queues")
    yield served
    served.end()


def test_request_is_answered_in_the_tick_that_reads_it(served: Served) -> None:
    client = served.connect()
    for request, reply in ((set_(b"work", b"hello"), b"STORED\r\n"), (b"get work\r\n", b"VALUE work 0 5\r\n")):
        client.send(request)
        served.hub.doRead()
        client.read()
        assert client.received.startswith(reply)
        assert served.server.is_at_rest, "the tick has ended"
        client.received.clear()


def test_endless_pipeline_delays_no_other_client(served: Served) -> None:
    flooder, normal = served.connect(), served.connect()
    flood = set_(b"flood", b"x" * 50) * 100_000
    sent = 0
    for number in range(20):
        sent += flooder.send(flood[sent:])
        flooder.read()
        normal.send(b"version\r\n")
        for _ in range(3):
            served.tick()
        normal.read()
        assert normal.received.count(b"VERSION") == number + 1
    stored = flooder.received.count(b"STORED\r\n")
    assert 64 * 20 <= stored < sent // len(set_(b"flood", b"x" * 50)), "it is also served, and has not finished"


def test_burst_of_connections_is_accepted_a_few_per_tick(hub_net: Net) -> None:
    for _ in range(3):  # Twisted's own port accepts more with each burst
        before = len(hub_net.factory.made)
        clients = [hub_net.client() for _ in range(3 * MAX_ACCEPTS_PER_TICK)]
        accepted = []
        while len(hub_net.factory.made) < before + len(clients):
            already = len(hub_net.factory.made)
            hub_net.iterate()
            accepted.append(len(hub_net.factory.made) - already)
        assert max(accepted) <= MAX_ACCEPTS_PER_TICK
