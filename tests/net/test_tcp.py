"""Behaviour of TCP transports, tested with Twisted's and with the hub's."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IConsumer, IPushProducer, ISystemHandle, ITCPTransport
from twisted.logger import LogEvent, capturedLogs
from zope.interface.verify import verifyObject

from tests.net.sockets import LITTLE, Client, HalfCloseable, Net, Seen

MIB = 1 << 20
BIG = os.urandom(10 * MIB)


def faults(events: Sequence[LogEvent]) -> list[str]:
    """Return the messages of the failures in these events. Twisted's transports use its old log."""
    failures = [event.get("log_failure") or event.get("failure") for event in events]
    return [str(failure.value) for failure in failures if failure is not None]


# Bytes.


def test_transport_provides_its_interfaces(net: Net) -> None:
    _, protocol = net.connect()
    for interface in (ITCPTransport, IConsumer, IPushProducer, ISystemHandle):
        if interface is not ITCPTransport or net.hub is None:
            assert interface.providedBy(protocol.transport)
        verifyObject(interface, protocol.transport)


def test_writes_are_sent_in_order(net: Net) -> None:
    client, protocol = net.connect()
    protocol.transport.write(b"one ")
    protocol.transport.writeSequence([b"two ", b"", b"three "])
    protocol.transport.write(b"")
    protocol.transport.writeSequence(())
    protocol.transport.write(b"four")
    net.until(lambda: client.has(18))
    assert client.received == b"one two three four"


@pytest.mark.parametrize("piece_bytes", [1, 100, 1000])
def test_ten_thousand_small_writes_are_sent_as_one_stream(net: Net, piece_bytes: int) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    pieces = [b"%*d" % (piece_bytes, number % 10) for number in range(10_000)]
    for piece in pieces:
        protocol.transport.write(piece)
    net.until(lambda: client.has(10_000 * piece_bytes))
    assert client.received == b"".join(pieces)


def test_large_input_arrives_in_64_kib_pieces(net: Net) -> None:
    client, protocol = net.connect()
    pieces: list[int] = []
    protocol.on_data = lambda data: pieces.append(len(data))
    sent = 0

    def all_came() -> bool:
        nonlocal sent
        sent += client.send(BIG[sent : 8 * MIB])
        return len(protocol.received) == 8 * MIB

    net.until(all_came)
    assert protocol.received == BIG[: 8 * MIB]
    assert max(pieces) <= 64 * 1024


@pytest.mark.parametrize("data", ["text", bytearray(b"x"), memoryview(b"x"), None])
def test_only_bytes_can_be_written(net: Net, data: object) -> None:
    client, protocol = net.connect()
    with pytest.raises(TypeError):
        protocol.transport.write(data)
    protocol.transport.write(b"fine")
    net.until(lambda: client.has(4))
    assert client.received == b"fine"


# Producers of output.


class Pusher:
    """A streaming producer that writes while it is not paused and has pieces."""

    def __init__(self, protocol: Seen, pieces: int = 0) -> None:
        self.calls: list[str] = []
        self._is_paused = True
        self._transport = protocol.transport
        self._pieces = pieces

    def pauseProducing(self) -> None:
        self.calls.append("pause")
        self._is_paused = True

    def resumeProducing(self) -> None:
        self.calls.append("resume")
        self._is_paused = False
        while self._pieces and not self._is_paused:
            self._pieces -= 1
            self._transport.write(b"p" * MIB)
        if not self._pieces:
            self._transport.unregisterProducer()

    def stopProducing(self) -> None:
        self.calls.append("stop")


class Puller:
    """A pull producer that writes one piece each time it is resumed."""

    def __init__(self, protocol: Seen, pieces: list[bytes]) -> None:
        self.is_stopped = False
        self.depth = 0
        self.deepest = 0
        self._transport = protocol.transport
        self._pieces = pieces

    def resumeProducing(self) -> None:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        if self._pieces:
            self._transport.write(self._pieces.pop(0))
        else:
            self._transport.unregisterProducer()
        self.depth -= 1

    def stopProducing(self) -> None:
        self.is_stopped = True


def fill(protocol: Seen) -> int:
    """Write more than the system accepts and the transport buffers, and return the number of bytes."""
    protocol.transport.write(BIG)
    return len(BIG)


def test_full_transport_pauses_producer_until_empty(net: Net) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    producer = Pusher(protocol)
    protocol.transport.registerProducer(producer, True)
    protocol.transport.write(b"little")
    net.settle()
    assert producer.calls == []
    size = 6 + fill(protocol)
    assert producer.calls == ["pause"]
    net.until(lambda: client.has(size))
    net.settle()
    assert producer.calls == ["pause", "resume"]


def test_producer_that_writes_when_resumed_is_paused_again(net: Net) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    producer = Pusher(protocol, pieces=12)
    protocol.transport.registerProducer(producer, True)
    size = fill(protocol)
    net.until(lambda: client.has(size + 12 * MIB))
    assert client.received[size:] == b"p" * 12 * MIB
    assert producer.calls.count("pause") > 1


def test_pull_producer_is_resumed_each_time_the_transport_is_empty(net: Net) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    producer = Puller(protocol, [b"a", b"b" * MIB, b"c", b"d" * 4 * MIB, b"e"])
    protocol.transport.registerProducer(producer, False)
    net.until(lambda: client.has(3 + 5 * MIB))
    assert client.received == b"a" + b"b" * MIB + b"c" + b"d" * 4 * MIB + b"e"
    assert producer.deepest == 1, "it is not resumed within its own write"
    protocol.transport.registerProducer(Puller(protocol, [b"next"]), False)
    net.until(lambda: client.has(7 + 5 * MIB))


def test_second_producer_is_refused(net: Net) -> None:
    _, protocol = net.connect()
    protocol.transport.registerProducer(Pusher(protocol), True)
    with pytest.raises(RuntimeError):
        protocol.transport.registerProducer(Pusher(protocol), True)
    protocol.transport.unregisterProducer()
    protocol.transport.registerProducer(Pusher(protocol), True)


@pytest.mark.parametrize("streaming", [True, False])
def test_producer_is_stopped_when_the_connection_is_lost(net: Net, streaming: bool) -> None:
    client, protocol = net.connect()
    producer = Pusher(protocol) if streaming else Puller(protocol, [b"x"])
    protocol.transport.registerProducer(producer, streaming)
    client.close()
    net.until(lambda: protocol.reason is not None)
    late = Pusher(protocol)
    protocol.transport.registerProducer(late, True)
    assert late.calls == ["stop"], "also a producer that is registered too late"
    assert producer.calls == ["stop"] if isinstance(producer, Pusher) else producer.is_stopped


# Pausing the input.


def test_paused_transport_reads_no_input_until_resumed(net: Net) -> None:
    client, protocol = net.connect()
    protocol.transport.pauseProducing()
    protocol.transport.pauseProducing()
    client.send(b"later")
    net.settle()
    assert protocol.received == b""
    protocol.transport.resumeProducing()
    protocol.transport.resumeProducing()
    net.until(lambda: protocol.received == b"later")


def test_pause_in_data_received_takes_effect_at_once(net: Net) -> None:
    client, protocol = net.connect()
    protocol.on_data = lambda data: protocol.transport.pauseProducing()
    client.send(b"x" * 200_000)
    net.until(lambda: protocol.received)
    net.settle()
    read = len(protocol.received)
    assert read <= 64 * 1024
    protocol.transport.resumeProducing()
    net.until(lambda: len(protocol.received) > read)


def test_replies_are_sent_while_the_input_is_paused(net: Net) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    protocol.transport.pauseProducing()
    protocol.transport.write(BIG)
    net.until(lambda: client.has(len(BIG)))
    client.send(b"x")
    net.settle()
    assert protocol.received == b""


def test_end_of_paused_input_is_reported_after_resume(net: Net) -> None:
    client, protocol = net.connect()
    protocol.transport.pauseProducing()
    client.send(b"last words")
    client.half_close()
    net.settle()
    assert (protocol.received, protocol.reason) == (b"", None)
    protocol.transport.resumeProducing()
    net.until(lambda: protocol.reason is not None)
    assert (protocol.received, protocol.lost_by(ConnectionDone)) == (b"last words", True)


# Connections that the client ends.


def test_client_that_closes_ends_the_connection_cleanly(net: Net) -> None:
    client, protocol = net.connect()
    client.send(b"last words")
    client.close()
    net.until(lambda: protocol.reason is not None)
    assert (protocol.received, protocol.lost_by(ConnectionDone)) == (b"last words", True)
    assert not protocol.transport.connected
    assert protocol.transport.disconnected


def test_client_that_resets_loses_the_connection(net: Net) -> None:
    client, protocol = net.connect()
    client.reset()
    net.until(lambda: protocol.reason is not None)
    assert protocol.lost_by(ConnectionLost)


def test_bytes_sent_before_a_reset_are_received(net: Net) -> None:
    client, protocol = net.connect()
    client.send(b"x" * 100_000)
    client.reset()
    net.until(lambda: protocol.reason is not None)
    assert len(protocol.received) == 100_000
    assert protocol.lost_by(ConnectionLost)


def test_half_closed_client_is_answered(net: Net) -> None:
    client, protocol = net.connect(HalfCloseable, receive_buffer=LITTLE)
    client.send(b"question")
    client.half_close()
    net.until(lambda: protocol.calls == ["input ended"])
    net.settle()
    assert (protocol.received, protocol.reason) == (b"question", None)
    protocol.transport.write(BIG)
    protocol.transport.loseConnection()
    net.until(client.is_at_the_end)
    net.until(lambda: protocol.calls == ["input ended", "lost"])
    assert (client.received, protocol.lost_by(ConnectionDone)) == (BIG, True)


def test_both_directions_may_end_separately(net: Net) -> None:
    client, protocol = net.connect(HalfCloseable)
    protocol.transport.loseWriteConnection()
    net.until(client.is_at_the_end)
    client.send(b"still here")
    client.half_close()
    protocol.on_input_end = lambda: protocol.transport.loseConnection()
    net.until(lambda: protocol.calls == ["output ended", "input ended", "lost"])
    assert (protocol.received, protocol.lost_by(ConnectionDone)) == (b"still here", True)


# Connections that the server ends.


def test_lose_connection_sends_pending_bytes_first(net: Net) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    protocol.transport.write(BIG)
    protocol.transport.loseConnection()
    protocol.transport.write(b"!")
    assert protocol.transport.disconnecting
    net.until(client.is_at_the_end)
    assert client.received == BIG + b"!"
    net.until(lambda: protocol.lost_by(ConnectionDone))


def test_lose_connection_disconnects_after_the_call(net: Net) -> None:
    client, protocol = net.connect()
    protocol.transport.loseConnection()
    protocol.transport.loseConnection()
    assert protocol.reason is None
    net.until(lambda: protocol.lost_by(ConnectionDone))
    net.until(client.is_at_the_end)


def test_lose_connection_ends_reading(net: Net) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    fill(protocol)
    protocol.transport.loseConnection()
    client.send(b"too late")
    protocol.transport.resumeProducing()
    net.settle()
    assert protocol.received == b""


def test_lose_connection_waits_for_a_pull_producer(net: Net) -> None:
    client, protocol = net.connect()
    protocol.transport.registerProducer(Puller(protocol, [b"a", b"b", b"c"]), False)
    protocol.transport.loseConnection()
    net.until(client.is_at_the_end)
    assert client.received == b"abc"


class Silent(Pusher):
    """A producer that writes nothing when it is resumed."""

    def resumeProducing(self) -> None:
        self.calls.append("resume")


@pytest.mark.parametrize(
    ("finish", "last"),
    [(lambda transport: transport.write(b"end"), b"end"), (lambda transport: transport.unregisterProducer(), b"")],
    ids=["last write", "unregistered"],
)
def test_lose_connection_waits_for_a_silent_producer(net: Net, finish: Callable[[Any], None], last: bytes) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    protocol.transport.registerProducer(Silent(protocol), True)
    size = fill(protocol)
    protocol.transport.loseConnection()
    net.until(lambda: client.has(size))
    net.settle()
    assert protocol.reason is None
    finish(protocol.transport)
    net.until(client.is_at_the_end)
    assert client.received[size:] == last


def test_lose_write_connection_sends_pending_bytes_and_continues_reading(net: Net) -> None:
    client, protocol = net.connect(HalfCloseable, receive_buffer=LITTLE)
    protocol.transport.write(BIG)
    protocol.transport.loseWriteConnection()
    net.until(client.is_at_the_end)
    assert client.received == BIG
    assert protocol.calls == ["output ended"]
    protocol.transport.write(b"dropped")
    client.send(b"still here")
    net.until(lambda: protocol.received == b"still here")
    protocol.transport.loseConnection()
    net.until(lambda: protocol.calls == ["output ended", "lost"])
    assert protocol.lost_by(ConnectionDone)


def test_stop_producing_disconnects(net: Net) -> None:
    client, protocol = net.connect()
    protocol.transport.stopProducing()
    net.until(lambda: protocol.lost_by(ConnectionDone))
    net.until(client.is_at_the_end)


def test_abort_drops_pending_bytes_and_resets(net: Net) -> None:
    client, protocol = net.connect(receive_buffer=LITTLE)
    fill(protocol)
    protocol.transport.abortConnection()
    protocol.transport.abortConnection()
    protocol.transport.write(b"dropped")
    assert protocol.reason is None, "not within the call"
    net.until(lambda: protocol.lost_by(ConnectionAborted))
    net.until(client.is_reset)
    assert len(client.received) < len(BIG)


def test_abort_in_data_received_disconnects_after_it(net: Net) -> None:
    client, protocol = net.connect()

    def abort(data: bytes) -> None:
        protocol.transport.abortConnection()
        protocol.transport.loseConnection()
        protocol.calls.append("aborted")

    protocol.on_data = abort
    client.send(b"x")
    net.until(lambda: protocol.lost_by(ConnectionAborted))
    assert protocol.calls == ["aborted", "lost"]


def test_calls_after_the_end_have_no_effect(net: Net) -> None:
    client, protocol = net.connect()
    client.close()
    net.until(lambda: protocol.reason is not None)
    transport = protocol.transport
    transport.write(b"x")
    transport.writeSequence([b"x"])
    transport.loseConnection()
    transport.abortConnection()
    transport.unregisterProducer()
    transport.resumeProducing()
    net.settle()
    assert protocol.calls == ["lost"]
    assert isinstance(transport.getPeer(), IPv4Address)


def test_write_to_a_reset_client_disconnects_after_the_call(net: Net) -> None:
    client, protocol = net.connect()
    protocol.transport.pauseProducing()
    client.reset()
    for _ in range(3):
        protocol.transport.write(b"x" * 1000)
        assert protocol.reason is None
    net.until(lambda: protocol.lost_by(ConnectionLost))


# Faults.


def test_fault_in_data_received_ends_only_that_connection(net: Net) -> None:
    bad_client, bad = net.connect()
    good_client, good = net.connect()
    fault = ValueError("unknown input")

    def fail(data: bytes) -> None:
        raise fault

    bad.on_data = fail
    good.on_data = lambda data: good.transport.write(b"fine")
    with capturedLogs() as events:
        bad_client.send(b"x")
        good_client.send(b"x")
        net.until(lambda: bad.reason is not None)
        net.until(lambda: good_client.has(4))
    assert bad.reason.value is fault
    assert faults(events) == ["unknown input"]
    net.until(bad_client.is_at_the_end)
    assert good.reason is None


@pytest.mark.parametrize("where", ["input end", "resume"])
def test_fault_of_another_callback_is_logged_and_ends_the_connection(net: Net, where: str) -> None:
    client, protocol = net.connect(HalfCloseable, receive_buffer=LITTLE)

    def fail() -> None:
        raise ValueError("no")

    if where == "input end":
        protocol.on_input_end = fail
    else:
        producer = Pusher(protocol)
        producer.resumeProducing = fail  # type: ignore[method-assign]
        protocol.transport.registerProducer(producer, True)
        fill(protocol)
    with capturedLogs() as events:
        if where == "input end":
            client.half_close()
        net.until(lambda: client.is_at_the_end() and protocol.reason is not None)
    assert protocol.lost_by(ValueError)
    assert faults(events) == ["no"]


def test_fault_in_connection_lost_is_logged(net: Net) -> None:
    client, protocol = net.connect()

    def fail(reason: object) -> None:
        Seen.connectionLost(protocol)
        raise ValueError("no")

    protocol.connectionLost = fail
    with capturedLogs() as events:
        client.close()
        net.until(lambda: protocol.reason is not None)
        net.settle()
    assert faults(events) == ["no"]


# Options and addresses.


def test_addresses_are_those_of_both_ends(net: Net) -> None:
    client, protocol = net.connect()
    assert protocol.transport.getHost() == IPv4Address("TCP", *net.address)
    assert protocol.transport.getPeer() == IPv4Address("TCP", *client.socket.getsockname())


def test_socket_options_can_be_set_and_read(net: Net) -> None:
    _, protocol = net.connect()
    transport = protocol.transport
    for enabled in (True, False):
        transport.setTcpNoDelay(enabled)
        transport.setTcpKeepAlive(enabled)
        assert (transport.getTcpNoDelay(), transport.getTcpKeepAlive()) == (enabled, enabled)
    assert transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


# The port.


def test_stopped_port_refuses_new_clients_and_serves_existing_ones(net: Net) -> None:
    client, protocol = net.connect()
    protocol.on_data = lambda data: protocol.transport.write(data)
    stopped: list[object] = []
    net.port.stopListening().addCallback(stopped.append)
    net.until(lambda: stopped)
    with pytest.raises(ConnectionRefusedError):
        Client(net.address)
    client.send(b"here")
    net.until(lambda: client.has(4))


def test_client_that_the_factory_refuses_is_disconnected(net: Net) -> None:
    net.factory.make = lambda: None
    client = net.client()
    net.until(client.is_at_the_end)


@contextmanager
def no_descriptor_is_left() -> Iterator[None]:
    """Use up the descriptors that the process may open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, limits[1]))
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError as error:
                assert error.errno == errno.EMFILE
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def test_descriptor_shortage_disconnects_only_affected_client(net: Net) -> None:
    one = net.client()
    with no_descriptor_is_left(), capturedLogs():
        net.until(one.is_at_the_end)
    client, protocol = net.connect()
    protocol.transport.write(b"welcome")
    net.until(lambda: client.has(7))
