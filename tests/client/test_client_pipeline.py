"""One connection of the Twisted client: the order of replies, timeouts, and the errors when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from kestrel.client.dialect import closes_connection, never_closes_connection
from kestrel.client.errors import (
    BadReply,
    CannotConnect,
    ConnectionFailed,
    OpenReadsError,
    Refused,
    RequestError,
    ServerError,
)
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.pipeline import ClosedByEarlierRefusal, Pipeline
from kestrel.client.thrift import ThriftCalls
from kestrel.protocols import thrift_binary as binary

CALLS = MemcacheCalls()
TIMEOUT_S = 10.0
ITEM = b"VALUE work 0 5\r\nhello\r\nEND\r\n"
FULL = b"SERVER_ERROR disk full\r\n"
READ_ONLY = b"SERVER_ERROR the server is ReadOnly\r\n"


class Wire:
    """A pipeline on a transport in memory."""

    def __init__(self, closes_connection: Callable[[Refused], bool] = closes_connection) -> None:
        self.clock = Clock()
        self.pipeline = Pipeline(self.clock, TIMEOUT_S, closes_connection)
        self.transport: Any = StringTransport()
        self.pipeline.makeConnection(self.transport)

    def sent(self) -> bytes:
        data = self.transport.value()
        self.transport.clear()
        return data

    def receive(self, data: bytes) -> None:
        self.pipeline.dataReceived(data)

    def lose(self, reason: Exception) -> None:
        self.pipeline.connectionLost(Failure(reason))

    @property
    def is_dropped(self) -> bool:
        return bool(self.transport.disconnected)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def outcome(deferred: Deferred[Any]) -> Any:
    """Return the value or the error, or `...` without a result."""
    results: list[Any] = [...]
    deferred.addBoth(results.append)
    return results[-1].value if isinstance(results[-1], Failure) else results[-1]


def error_of(deferred: Deferred[Any]) -> type[BaseException]:
    return type(outcome(deferred))


# Requests and replies.


def test_requests_are_sent_without_waiting_for_earlier_replies(wire: Wire) -> None:
    wire.pipeline.ask(CALLS.put(b"work", b"a"))
    wire.pipeline.ask_all([CALLS.put(b"work", b"b"), CALLS.get(b"work")])
    assert wire.sent() == b"set work 0 0 1\r\na\r\nset work 0 0 1\r\nb\r\nget work\r\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_replies_match_requests_in_order_for_any_piece_size(wire: Wire, size: int) -> None:
    order: list[object] = []
    calls: list[Any] = [CALLS.put(b"work", b"a"), CALLS.get(b"work"), CALLS.put(b"work", b"b"), CALLS.version()]
    for call in calls:
        wire.pipeline.ask(call).addCallback(order.append)
    replies = b"STORED\r\n" + ITEM + b"NOT_STORED\r\nVERSION 1\r\n"
    for start in range(0, len(replies), size):
        wire.receive(replies[start : start + size])
    assert order == [True, b"hello", False, "1"]
    assert wire.pipeline.is_at_rest


def test_callback_of_a_reply_may_send_the_next_request(wire: Wire) -> None:
    answers: list[object] = []

    def ask_again(version: str) -> None:
        answers.append(version)
        if len(answers) < 2000:
            wire.pipeline.ask(CALLS.version()).addCallback(ask_again)

    wire.pipeline.ask(CALLS.version()).addCallback(ask_again)
    wire.receive(b"VERSION 1\r\n" * 2000)
    assert answers == ["1"] * 2000


def test_reply_of_a_cancelled_request_is_discarded(wire: Wire) -> None:
    forgotten, kept = wire.pipeline.ask(CALLS.version()), wire.pipeline.ask(CALLS.put(b"work", b"a"))
    forgotten.addErrback(lambda _: None).cancel()
    wire.receive(b"VERSION 1\r\nSTORED\r\n")
    assert outcome(kept) is True


# Refusals.


def test_connection_ends_after_a_refusal_once_all_requests_are_answered(wire: Wire) -> None:
    refused, behind = wire.pipeline.ask(CALLS.put(b"work", b"a")), wire.pipeline.ask(CALLS.put(b"work", b"b"))
    wire.receive(FULL)
    assert error_of(refused) is ServerError
    assert not wire.pipeline.is_usable and not wire.transport.disconnecting
    wire.receive(b"STORED\r\n")
    assert outcome(behind) is True
    assert wire.transport.disconnecting


def test_no_request_is_sent_after_a_refusal(wire: Wire) -> None:
    wire.pipeline.ask(CALLS.confirm(b"work", 1)).addErrback(lambda failure: failure.trap(OpenReadsError))
    wire.receive(b"ERROR\r\n")
    wire.sent()
    assert error_of(wire.pipeline.ask(CALLS.version())) is CannotConnect
    assert wire.sent() == b""


@pytest.mark.parametrize(
    ("received", "reason", "error"),
    [
        (READ_ONLY, ConnectionDone(), ClosedByEarlierRefusal),
        (FULL, ConnectionDone(), ConnectionFailed),
        (FULL, ConnectionLost(), ConnectionFailed),
        (FULL + b"STO", ConnectionDone(), ConnectionFailed),
    ],
    ids=["closing refusal", "other refusal", "other refusal, broken connection", "part of a reply"],
)
def test_requests_after_closing_refusal_are_certainly_not_executed(
    wire: Wire, received: bytes, reason: Exception, error: type[Exception]
) -> None:
    asked = wire.pipeline.ask_all([CALLS.put(b"work", data) for data in (b"a", b"b", b"c")])
    wire.receive(received)
    wire.lose(reason)
    assert [error_of(each) for each in asked] == [ServerError, error, error]


def test_thrift_requests_after_a_refusal_are_uncertain() -> None:
    thrift, wire = ThriftCalls(), Wire(never_closes_connection)
    refused, behind = wire.pipeline.ask_all([thrift.put(b"work", [b"a"]), thrift.put(b"work", [b"b"])])
    error = binary.application_exception(binary.INTERNAL_ERROR, "the server is ReadOnly")
    wire.receive(binary.frame(binary.header(b"put", binary.EXCEPTION, 1), error))
    wire.lose(ConnectionDone())
    assert [error_of(refused), error_of(behind)] == [ServerError, ConnectionFailed]


def test_held_back_request_is_not_sent_after_a_refusal(wire: Wire) -> None:
    refused = wire.pipeline.ask(CALLS.put(b"work", b"a"))
    wire.pipeline.pauseProducing()
    held = wire.pipeline.ask(CALLS.put(b"work", b"b"))
    wire.sent()
    wire.receive(FULL)
    wire.pipeline.resumeProducing()
    assert wire.sent() == b"" and wire.transport.disconnecting
    assert [error_of(refused), error_of(held)] == [ServerError, ClosedByEarlierRefusal]


# A connection that ends.


@pytest.mark.parametrize("reason", [ConnectionDone(), ConnectionLost()])
def test_lost_connection_leaves_sent_requests_uncertain(wire: Wire, reason: Exception) -> None:
    asked = wire.pipeline.ask_all([CALLS.put(b"work", b"a"), CALLS.put(b"work", b"b")])
    items = wire.pipeline.stream(CALLS.monitor(b"work", 5))
    wire.lose(reason)
    assert [error_of(each) for each in asked] == [ConnectionFailed, ConnectionFailed]
    assert error_of(items()) is ConnectionFailed
    assert wire.clock.getDelayedCalls() == []


def test_closing_answers_a_shutdown_but_a_broken_connection_does_not() -> None:
    for reason, expected in [(ConnectionDone(), type(None)), (ConnectionLost(), ConnectionFailed)]:
        wire = Wire()
        asked = wire.pipeline.ask(CALLS.shutdown())
        wire.lose(reason)
        assert error_of(asked) is expected


def test_requests_still_in_the_transport_were_not_executed(wire: Wire) -> None:
    asked = wire.pipeline.ask_all([CALLS.put(b"work", b"a"), CALLS.put(b"work", b"b")])
    wire.pipeline.pauseProducing()  # it still has the end of the second one
    asked.append(wire.pipeline.ask(CALLS.put(b"work", b"c")))
    assert wire.sent() == b"set work 0 0 1\r\na\r\nset work 0 0 1\r\nb\r\n"
    wire.pipeline.stopProducing()
    wire.lose(ConnectionLost())
    assert [error_of(each) for each in asked] == [ConnectionFailed, CannotConnect, CannotConnect]


def test_request_that_left_the_transport_is_uncertain(wire: Wire) -> None:
    asked = wire.pipeline.ask(CALLS.put(b"work", b"a"))
    wire.pipeline.stopProducing()  # as a transport does when the connection ends
    wire.lose(ConnectionLost())
    assert error_of(asked) is ConnectionFailed


def test_held_back_requests_follow_in_order_except_cancelled_ones(wire: Wire) -> None:
    wire.pipeline.pauseProducing()
    calls = [CALLS.put(b"work", data) for data in (b"a", b"b", b"c")]
    first, second, third = (wire.pipeline.ask(call).addErrback(lambda _: "cancelled") for call in calls)
    second.cancel()
    wire.pipeline.resumeProducing()
    assert wire.sent() == b"set work 0 0 1\r\na\r\nset work 0 0 1\r\nc\r\n"
    wire.receive(b"STORED\r\nNOT_STORED\r\n")
    assert [outcome(each) for each in (first, second, third)] == [True, "cancelled", False]


def test_dropped_connection_fails_all_requests_at_once(wire: Wire) -> None:
    asked = wire.pipeline.ask(CALLS.get(b"work", 5000))
    wire.pipeline.drop("that is enough")
    assert wire.is_dropped
    assert str(outcome(asked)) == "that is enough"
    wire.receive(ITEM)
    wire.lose(ConnectionLost())
    assert error_of(wire.pipeline.ask(CALLS.version())) is CannotConnect
    assert wire.clock.getDelayedCalls() == []


def test_retired_connection_ends_after_its_replies(wire: Wire) -> None:
    asked = wire.pipeline.ask(CALLS.version())
    wire.pipeline.retire()
    assert not wire.transport.disconnecting
    wire.receive(b"VERSION 1\r\n")
    assert outcome(asked) == "1"
    assert wire.transport.disconnecting and not wire.is_dropped
    wire.lose(ConnectionDone())
    assert wire.clock.getDelayedCalls() == []


def test_retired_connection_is_dropped_if_the_server_does_not_close(wire: Wire) -> None:
    wire.pipeline.retire()
    wire.clock.advance(TIMEOUT_S - 0.25)
    assert wire.transport.disconnecting and not wire.is_dropped
    wire.clock.advance(0.25)
    assert wire.is_dropped
    wire.lose(ConnectionLost())
    assert wire.clock.getDelayedCalls() == []


# Invalid replies.


NO_REPLIES = [b"WHAT\r\n", b"VALUE other 0 1\r\na", b"VALUE work 0 99999999\r\n", b"VALUE work 0 1\r\nabcdefgh"]


@pytest.mark.parametrize("reply", NO_REPLIES)
def test_invalid_reply_drops_the_connection(wire: Wire, reply: bytes) -> None:
    asked, behind = wire.pipeline.ask(CALLS.get(b"work")), wire.pipeline.ask(CALLS.put(b"work", b"a"))
    wire.receive(reply)
    assert wire.is_dropped
    assert (error_of(asked), error_of(behind)) == (BadReply, ConnectionFailed)


def test_unexpected_data_drops_the_connection(wire: Wire) -> None:
    asked = wire.pipeline.ask(CALLS.put(b"work", b"a"))
    wire.receive(b"STORED\r\nSTORED\r\n")
    assert outcome(asked) is True
    assert wire.is_dropped and not wire.pipeline.is_usable


# Time.


def test_reply_must_arrive_within_the_timeout(wire: Wire) -> None:
    asked, behind, last = wire.pipeline.ask_all([CALLS.put(b"work", data) for data in (b"a", b"b", b"c")])
    wire.pipeline.pauseProducing()
    held = wire.pipeline.ask(CALLS.put(b"work", b"d"))
    wire.clock.advance(TIMEOUT_S - 0.25)
    assert not asked.called
    wire.clock.advance(0.25)
    assert wire.is_dropped
    assert str(outcome(asked)) == "no data received for 10 s"
    assert [error_of(each) for each in (behind, last, held)] == [ConnectionFailed, CannotConnect, CannotConnect]


def test_timeout_of_a_waiting_get_is_extended_by_its_wait(wire: Wire) -> None:
    asked = wire.pipeline.ask(CALLS.get(b"work", 5000))
    wire.clock.advance(TIMEOUT_S + 4.75)
    assert not asked.called
    wire.clock.advance(0.25)
    assert error_of(asked) is ConnectionFailed


def test_timeout_of_the_next_request_starts_after_a_waiting_get(wire: Wire) -> None:
    waiting, behind = wire.pipeline.ask(CALLS.get(b"work", 5000)), wire.pipeline.ask(CALLS.version())
    wire.clock.advance(14)
    wire.receive(b"END\r\n")
    assert outcome(waiting) is None
    wire.clock.advance(TIMEOUT_S - 0.25)
    assert not behind.called
    wire.clock.advance(0.25)
    assert error_of(behind) is ConnectionFailed


def test_received_data_restarts_the_timeout(wire: Wire) -> None:
    asked = wire.pipeline.ask(CALLS.get(b"work"))
    for byte in ITEM:
        wire.clock.advance(TIMEOUT_S - 1)
        wire.receive(bytes([byte]))
    assert outcome(asked) == b"hello"
    assert wire.clock.getDelayedCalls() == []


# Streams.


def item(data: bytes) -> bytes:
    return b"VALUE work 0 %d\r\n%b\r\nEND\r\n" % (len(data), data)


def test_stream_returns_values_and_then_none(wire: Wire) -> None:
    items = wire.pipeline.stream(CALLS.monitor(b"work", 5))
    behind = wire.pipeline.ask(CALLS.confirm(b"work", 2))
    assert wire.sent() == b"monitor work 5\r\nconfirm work 2\r\n"
    first = items()
    wire.receive(item(b"a") + item(b"b") + b"END\r\nEND\r\n")
    assert outcome(first) == b"a"
    assert not behind.called
    assert outcome(items()) == b"b"
    assert outcome(items()) is None
    assert outcome(items()) is None
    assert outcome(behind) is None


def test_unread_values_pause_the_transport(wire: Wire) -> None:
    items = wire.pipeline.stream(CALLS.monitor(b"work", 5))
    asked = items()
    assert wire.transport.producerState == "producing"
    wire.receive(item(b"a") + item(b"b") + item(b"c")[:-1])
    assert outcome(asked) == b"a"
    assert wire.transport.producerState == "paused"
    assert outcome(items()) == b"b"
    assert wire.transport.producerState == "paused"
    asked = items()
    assert wire.transport.producerState == "producing"
    wire.receive(b"\n")
    assert outcome(asked) == b"c"
    assert wire.transport.producerState == "paused"


def test_slow_consumer_does_not_time_out(wire: Wire) -> None:
    items = wire.pipeline.stream(CALLS.monitor(b"work", 5))
    asked = items()
    wire.receive(item(b"a"))
    assert outcome(asked) == b"a"
    wire.clock.advance(1000)
    asked = items()
    wire.clock.advance(TIMEOUT_S + 4.75)
    assert not asked.called
    wire.clock.advance(0.25)
    assert error_of(asked) is ConnectionFailed


def test_callback_of_a_value_may_request_the_next(wire: Wire) -> None:
    items = wire.pipeline.stream(CALLS.monitor(b"work", 5))
    got: list[bytes] = []

    def ask_on(data: bytes | None) -> None:
        if data is not None:
            got.append(data)
            items().addCallback(ask_on)

    items().addCallback(ask_on)
    wire.receive(item(b"a") * 2000 + b"END\r\n")
    assert got == [b"a"] * 2000
    assert wire.pipeline.is_at_rest


def test_value_of_a_cancelled_request_goes_to_the_next_one(wire: Wire) -> None:
    items = wire.pipeline.stream(CALLS.monitor(b"work", 5))
    items().addErrback(lambda _: None).cancel()
    wire.receive(item(b"a"))
    assert outcome(items()) == b"a"


def test_stream_can_be_refused(wire: Wire) -> None:
    items = wire.pipeline.stream(CALLS.monitor(b"work", 5))
    asked = items()
    wire.receive(b"CLIENT_ERROR no\r\n")
    assert error_of(asked) is RequestError
    assert error_of(items()) is RequestError


def test_connection_lost_before_it_is_ready_cannot_connect() -> None:
    pipeline = Pipeline(Clock(), TIMEOUT_S, closes_connection)
    pipeline.connectionLost(Failure(ConnectionLost("the certificate is another's")))
    assert error_of(pipeline.ready) is CannotConnect
