"""The hub alone: its turns, who is served before whom, and what it leaves to the reactor.

What its connections have in common with Twisted's is in test_tcp.py.
"""

from __future__ import annotations

import errno
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


def test_it_is_what_a_reactor_reads_from(hub_net: Net) -> None:
    assert verifyObject(IReadDescriptor, hub_net.hub)


def test_the_numbers_that_are_written_out_are_those_of_the_system() -> None:
    assert hub_transport.READABLE == select.EPOLLIN
    assert hub_transport.WRITABLE == select.EPOLLOUT
    assert hub_transport.BROKEN == select.EPOLLERR | select.EPOLLHUP
    assert hub_transport.PEER_ENDED == select.EPOLLRDHUP
    assert hub.IS_AVAILABLE


# Turns.


def test_all_who_are_ready_are_served_in_one_turn(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(5)]
    for client, protocol in pairs:
        protocol.on_data = lambda data: hub_net.turns.append("read")
        client.send(b"x")
    hub_net.turn()
    assert hub_net.turns == ["begin", "read", "read", "read", "read", "read", "end"]


def test_nothing_to_do_is_no_turn(hub_net: Net) -> None:
    hub_net.connect()
    hub_net.settle()
    assert hub_net.hub is not None
    hub_net.hub.doRead()
    assert hub_net.turns == []


def test_what_arrives_during_a_turn_is_served_in_another_before_the_reactor_goes_on(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    hub_net.seconds = lambda: 0.0

    def again(data: bytes) -> None:
        hub_net.turns.append(data.decode())
        if data != b"3":
            client.send(b"%d" % (int(data) + 1))

    protocol.on_data = again
    client.send(b"1")
    hub_net.turn()
    assert hub_net.turns == ["begin", "1", "end", "begin", "2", "end", "begin", "3", "end"]


def test_what_was_read_is_not_lost_though_another_client_has_it_paused(hub_net: Net) -> None:
    """All are read from before anything is handed over: what the system has given there is nobody else to keep."""
    pairs = [hub_net.connect() for _ in range(2)]
    seen: list[bytes] = []
    for (client, protocol), (_, other) in zip(pairs, reversed(pairs), strict=True):

        def first_pauses_the_other(data: bytes, other: Seen = other) -> None:
            if not seen:
                other.transport.pauseProducing()
            seen.append(data)

        protocol.on_data = first_pauses_the_other
        client.send(b"x")
    hub_net.turn()
    assert seen == [b"x", b"x"]


def test_a_fault_while_one_is_read_from_is_logged_and_loses_nothing_of_the_others(hub_net: Net) -> None:
    for fault in (MemoryError, KeyboardInterrupt):
        pairs = [hub_net.connect() for _ in range(3)]
        hub_net.settle()

        def fail(size: int, fault: type[BaseException] = fault) -> bytes:
            raise fault

        pairs[1][1].transport._recv = fail
        for client, _ in pairs:
            client.send(b"x")
        with capturedLogs() as logged:
            hub_net.turn()
        assert [bytes(protocol.received) for _, protocol in pairs] == [b"x", b"", b"x"]
        assert pairs[1][1].lost_by(ConnectionLost)
        assert [event["log_failure"].type for event in logged] == [fault]


def test_a_descriptor_that_a_protocol_closed_loses_nothing_of_the_others(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(4)]
    hub_net.settle()
    broken = pairs[0][1]

    def close_below_it(data: bytes) -> None:
        broken.transport.getHandle().close()
        raise ValueError("a fault of a protocol")

    broken.on_data = close_below_it
    for client, _ in pairs:
        client.send(b"x")
    hub_net.turn()
    assert [bytes(protocol.received) for _, protocol in pairs[1:]] == [b"x"] * 3
    assert broken.reason is not None


def test_the_end_of_the_input_waits_while_it_is_paused_by_another_client(hub_net: Net) -> None:
    """It can be read again, other than bytes."""
    (client, protocol), (other, paused) = hub_net.connect(HalfCloseable), hub_net.connect(HalfCloseable)
    hub_net.settle()
    real = paused.transport._recv
    paused.transport._recv = lambda size: b""
    protocol.on_data = lambda data: paused.transport.pauseProducing()
    client.send(b"x")
    other.send(b"x")
    hub_net.turn()
    assert "input ended" not in paused.told
    paused.transport._recv = real
    paused.transport.resumeProducing()
    hub_net.turn()
    assert paused.received == b"x"


def test_what_was_read_of_a_connection_that_is_over_meanwhile_is_dropped(hub_net: Net) -> None:
    for end in ("abortConnection", "loseConnection"):
        pairs = [hub_net.connect() for _ in range(2)]
        seen: list[bytes] = []
        for (client, protocol), (_, other) in zip(pairs, reversed(pairs), strict=True):

            def first_ends_the_other(data: bytes, other: Seen, end: str, seen: list[bytes]) -> None:
                seen.append(data)
                getattr(other.transport, end)()

            protocol.on_data = partial(first_ends_the_other, other=other, end=end, seen=seen)
            client.send(b"x")
        hub_net.turn()
        assert seen == [b"x"], end


def test_after_2_ms_the_reactor_goes_on(hub_net: Net) -> None:
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
    hub_net.turn()
    hub_net.reactor.callFromThread(lambda: timers.append(count))
    hub_net.turn()
    assert timers == [0, 4], "four rounds of half a millisecond"
    assert hub_net.turns == ["begin", "end"] * 8


def test_a_turn_serves_so_many_and_the_others_are_first_in_the_next(hub_net: Net) -> None:
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
    hub_net.turn()
    assert len(order) == MAX_EVENTS_PER_TICK
    for number in order:
        pairs[number][0].send(b"x")
    first, order[:] = set(order), []
    hub_net.turn()
    assert len(order) == MAX_EVENTS_PER_TICK
    assert set(order[:10]) == set(range(len(pairs))) - first


def test_one_read_of_each_a_turn(hub_net: Net) -> None:
    """So that nobody waits for the whole of somebody else's big input."""
    (big, big_protocol), (little, little_protocol) = hub_net.connect(), hub_net.connect()
    big_protocol.on_data = lambda data: hub_net.turns.append("big")
    little_protocol.on_data = lambda data: hub_net.turns.append("little")
    big.send(bytes(200_000))
    little.send(b"x")
    hub_net.turn()
    assert "little" in hub_net.turns[: hub_net.turns.index("end")]
    assert hub_net.turns[: hub_net.turns.index("end")].count("big") == 1


@pytest.mark.parametrize("how", ["close", "reset"])
def test_hang_ups_come_before_reads(hub_net: Net, how: str) -> None:
    pairs = [hub_net.connect() for _ in range(3)]
    (asking, asks), (leaving, leaves), (also_asking, also_asks) = pairs
    for protocol in (asks, also_asks):
        protocol.on_data = lambda data: hub_net.turns.append(f"asked, gone: {leaves.reason is not None}")
    asking.send(b"x")
    also_asking.send(b"x")
    getattr(leaving, how)()
    hub_net.turn()
    assert hub_net.turns[:4] == ["begin", "asked, gone: True", "asked, gone: True", "end"]


def test_a_fault_ends_no_turn_early(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(3)]

    def fail(data: bytes) -> None:
        hub_net.turns.append("fault")
        raise KeyboardInterrupt

    for client, protocol in pairs:
        protocol.on_data = fail
        client.send(b"x")
    with capturedLogs():
        hub_net.turn()
    assert hub_net.turns[:5] == ["begin", "fault", "fault", "fault", "end"]
    assert all(protocol.lost_by(KeyboardInterrupt) for _, protocol in pairs)


def test_a_fault_of_the_end_of_a_turn_is_logged_and_loses_nobody(hub_net: Net) -> None:
    def fail() -> None:
        raise ValueError("the end of a turn failed")

    broken = Hub(hub_net.seconds, lambda: None, fail, hub_net.reactor.callFromThread)
    ours, theirs = socket.socketpair()
    seen = Seen()
    seen.makeConnection(broken.connect(ours, seen, ("", 0)))
    theirs.send(b"x")
    with capturedLogs() as events:
        broken.doRead()
    theirs.close()
    assert [str(event["log_failure"].value) for event in events] == ["the end of a turn failed"]
    assert (seen.received, seen.reason) == (b"x", None)
    broken.close()


def test_an_end_that_comes_outside_of_a_turn_is_made_in_one(hub_net: Net) -> None:
    _, protocol = hub_net.connect()
    protocol.transport.abortConnection()
    hub_net.settle()
    assert (protocol.told, hub_net.turns) == (["lost"], ["begin", "end"])


def test_who_ended_its_input_is_read_once_a_turn_as_well(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    protocol.on_data = lambda data: hub_net.turns.append("read")
    client.send(bytes(200_000))
    client.half_close()
    hub_net.turn()
    assert hub_net.turns[:3] == ["begin", "read", "end"]


def test_while_a_crowd_leaves_the_others_are_served(hub_net: Net) -> None:
    now = 0.0

    class Leaving(Seen):
        def connectionLost(self, reason: Failure = connectionDone) -> None:
            nonlocal now
            super().connectionLost(reason)
            now += TIME_SLICE_S
            hub_net.turns.append("left")

    pairs = [hub_net.connect(Leaving) for _ in range(5)]
    client, other = hub_net.connect()
    hub_net.settle()
    hub_net.seconds = lambda: now
    for leaving, _ in pairs:
        leaving.close()
    other.on_data = lambda data: hub_net.turns.append("read")
    client.send(b"x")
    hub_net.turn()
    assert hub_net.turns == ["begin", "left", "read", "end"]
    hub_net.settle()
    assert hub_net.turns.count("left") == 5


def test_an_end_that_no_time_was_left_for_is_made_soon(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    now = 0.0

    def abort(data: bytes) -> None:
        nonlocal now
        now += TIME_SLICE_S
        protocol.transport.abortConnection()

    hub_net.seconds = lambda: now
    protocol.on_data = abort
    client.send(b"x")
    hub_net.turn()
    assert protocol.reason is None
    hub_net.settle()
    assert protocol.told == ["lost"]


class BrokenSocket(socket.socket):
    """Sends nothing, for a reason that the epoll set does not tell."""

    def send(self, data: Any, flags: int = 0) -> int:
        raise OSError(errno.EHOSTUNREACH, "no way there")


def test_a_send_that_fails_is_the_end_but_not_within_the_write(hub_net: Net) -> None:
    assert hub_net.hub is not None
    ours, theirs = socket.socketpair()
    seen = Seen()
    seen.makeConnection(hub_net.hub.connect(BrokenSocket(fileno=ours.detach()), seen, ("", 0)))
    seen.transport.write(b"x")
    seen.transport.write(b"x")
    assert seen.reason is None
    hub_net.settle()
    assert seen.lost_by(ConnectionLost)
    theirs.close()


# What a connection costs while nothing moves.


def test_a_half_closed_connection_is_left_in_peace_and_a_reset_is_noticed(hub_net: Net) -> None:
    client, protocol = hub_net.connect(HalfCloseable)
    client.half_close()
    hub_net.until(lambda: protocol.told == ["input ended"])
    assert hub_net.is_hub_idle
    protocol.transport.resumeProducing()
    hub_net.settle()
    assert protocol.told == ["input ended"], "it is told once"
    client.reset()
    hub_net.until(lambda: protocol.lost_by(ConnectionLost))


def test_a_paused_connection_is_left_in_peace_and_a_reset_is_noticed(hub_net: Net) -> None:
    client, protocol = hub_net.connect()
    protocol.transport.pauseProducing()
    client.send(b"x")
    client.half_close()
    hub_net.settle()
    assert hub_net.is_hub_idle
    client.reset()
    hub_net.until(lambda: protocol.lost_by(ConnectionLost))
    assert protocol.received == b""


def test_a_connection_whose_directions_have_both_ended_is_done(hub_net: Net) -> None:
    client, protocol = hub_net.connect(HalfCloseable)
    protocol.transport.loseWriteConnection()
    hub_net.until(client.is_at_the_end)
    client.half_close()
    hub_net.until(lambda: protocol.told == ["output ended", "input ended", "lost"])
    assert protocol.lost_by(ConnectionDone)


def test_a_client_that_does_not_read_costs_nothing_while_it_does_not(hub_net: Net) -> None:
    client, protocol = hub_net.connect(receive_buffer=LITTLE)
    protocol.transport.write(BIG)
    hub_net.settle()
    assert hub_net.is_hub_idle
    hub_net.until(lambda: client.has(len(BIG)))
    hub_net.settle()
    assert hub_net.is_hub_idle


class StingySocket(socket.socket):
    """Takes little at a time, and remembers what it was given."""

    given: list[memoryview]

    def send(self, data: Any, flags: int = 0) -> int:
        return super().send(memoryview(data)[:1000], flags)

    def sendmsg(self, buffers: Any, *args: Any) -> int:
        pieces = list(buffers)
        self.given += pieces
        return super().send(pieces[0][:1000])


def test_what_is_unsent_is_not_copied_however_little_is_taken(hub_net: Net) -> None:
    assert hub_net.hub is not None
    ours, theirs = socket.socketpair()
    stingy = StingySocket(fileno=ours.detach())
    stingy.given = []
    seen = Seen()
    seen.makeConnection(hub_net.hub.connect(stingy, seen, ("", 0)))
    item = bytes(16 << 20)
    seen.transport.write(item)
    for _ in range(100):
        hub_net.turn()
        theirs.recv(1 << 20)
    assert len(stingy.given) >= 100
    assert all(piece.obj is item for piece in stingy.given)
    theirs.close()
    hub_net.until(lambda: seen.reason is not None)


def test_an_address_of_ip_version_6_has_its_scope() -> None:
    ours, theirs = socket.socketpair()
    transport = HubTransport(ours, Seen(), ("fe80::1%eth0", 2000, 1, 3), select.epoll(), lambda *_: None)
    assert transport.getPeer() == IPv6Address("TCP", "fe80::1%eth0", 2000, 1, 3)
    ours.close()
    theirs.close()


# The end.


def test_a_hub_that_is_closed_ends_its_connections_and_is_quiet(hub_net: Net) -> None:
    pairs = [hub_net.connect() for _ in range(3)]
    assert hub_net.hub is not None
    assert len(hub_net.hub) == 3
    pairs[0][1].transport.abortConnection()
    hub_net.reactor.removeReader(hub_net.hub)
    hub_net.hub.close()
    hub_net.hub.close()
    assert all(protocol.lost_by(ConnectionLost) for _, protocol in pairs)
    hub_net.settle()
    assert (len(hub_net.hub), hub_net.turns) == (0, [])


def test_it_may_be_closed_when_its_last_client_goes(hub_net: Net) -> None:
    (client, protocol), (_, other) = hub_net.connect(), hub_net.connect()
    assert hub_net.hub is not None
    of_hub = hub_net.hub

    def close(data: bytes) -> None:
        hub_net.reactor.removeReader(of_hub)
        of_hub.close()

    protocol.on_data = close
    client.send(b"x")
    with capturedLogs() as events:
        of_hub.doRead()
        of_hub.doRead()
    assert (protocol.told, other.told, hub_net.turns, events) == (["lost"], ["lost"], ["begin", "end"], [])


def test_a_reactor_that_lets_go_of_everything_ends_it(hub_net: Net) -> None:
    _, protocol = hub_net.connect()
    assert hub_net.hub is not None
    hub_net.reactor.removeReader(hub_net.hub)
    hub_net.hub.connectionLost(Failure(ConnectionDone()))
    assert protocol.lost_by(ConnectionDone)


# With sessions.


class Served:
    """A server in memory whose memcache clients come by the hub."""

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

    def turn(self) -> None:
        """One of the hub, and one of the rest."""
        self.hub.doRead()
        self.server.tick()

    def end(self) -> None:
        for client in self._clients:
            client.close()
        self._net.until(lambda: not (self.turn() or len(self.hub)))
        self._port.stopListening()
        self._net.settle()
        self.hub.close()


@pytest.fixture
def served(hub_net: Net, tmp_path: Path) -> Any:
    served = Served(hub_net, tmp_path / "queues")
    yield served
    served.end()


def test_a_request_is_answered_within_the_turn_that_read_it(served: Served) -> None:
    client = served.connect()
    for request, reply in ((set_(b"work", b"hello"), b"STORED\r\n"), (b"get work\r\n", b"VALUE work 0 5\r\n")):
        client.send(request)
        served.hub.doRead()
        client.read()
        assert client.received.startswith(reply)
        assert served.server.is_at_rest, "nobody had to be asked to end the tick"
        client.received.clear()


def test_an_endless_pipeline_keeps_nobody_from_a_reply(served: Served) -> None:
    flooder, normal = served.connect(), served.connect()
    flood = set_(b"flood", b"x" * 50) * 100_000
    sent = 0
    for number in range(20):
        sent += flooder.send(flood[sent:])
        flooder.read()
        normal.send(b"version\r\n")
        for _ in range(3):
            served.turn()
        normal.read()
        assert normal.received.count(b"VERSION") == number + 1
    stored = flooder.received.count(b"STORED\r\n")
    assert 64 * 20 <= stored < sent // len(set_(b"flood", b"x" * 50)), "it is served as well, and never done"


def test_what_a_client_that_hangs_up_had_open_is_there_for_who_asks_in_the_same_turn(served: Served) -> None:
    holder, asker = served.connect(), served.connect()
    asker.send(set_(b"work", b"hello"))
    served.turn()
    holder.send(b"get work/open\r\n")
    served.turn()
    assert asker.has(8)
    asker.send(b"get work\r\n")
    holder.close()
    served._clients.remove(holder)
    served.turn()
    assert asker.has(33)
    assert asker.received == b"STORED\r\nVALUE work 0 5\r\nhello\r\nEND\r\n"


def test_a_burst_of_connections_is_accepted_a_few_a_turn(hub_net: Net) -> None:
    for _ in range(3):  # Twisted's own port takes in more with each burst
        before = len(hub_net.factory.made)
        clients = [hub_net.client() for _ in range(3 * MAX_ACCEPTS_PER_TICK)]
        taken_in = []
        while len(hub_net.factory.made) < before + len(clients):
            already = len(hub_net.factory.made)
            hub_net.turn()
            taken_in.append(len(hub_net.factory.made) - already)
        assert max(taken_in) <= MAX_ACCEPTS_PER_TICK
