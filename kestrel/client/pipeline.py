"""One connection of the Twisted client: requests out, replies in, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IDelayedCall,
    IHandshakeListener,
    IPushProducer,
    IReactorTime,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.client.call import NOT_YET, Call, Stream
from kestrel.client.errors import BadReply, CannotConnect, ClientFailure, ConnectionFailed, Refused
from kestrel.protocols.buffer import ReceiveBuffer

T = TypeVar("T")


class ClosedByEarlierRefusal(CannotConnect):
    """The server refused a request that stood before this one, maybe somebody else's, and hung up on both.

    So this one was not carried out, and may be asked again.
    """

    def __init__(self, refusal: Refused) -> None:
        super().__init__(f"the server hung up on a request before this one: {refusal}")


class _PendingCall(Generic[T]):
    """A call that is not answered yet."""

    is_wanted = True

    def __init__(self, call: Call[T]) -> None:
        self.call = call
        self.answer: Deferred[T] = Deferred()

    @property
    def is_cancelled(self) -> bool:
        """Whether the answer was cancelled. What comes is still read, and then forgotten."""
        return self.answer.called

    def is_last(self, value: T) -> bool:
        """Whether nothing comes after that value."""
        return True

    def on_value(self, value: T) -> None:
        """That was read."""
        if not self.is_cancelled:
            self.answer.callback(value)

    def failed(self, error: ClientFailure) -> None:
        """That is the answer, or why there is none."""
        if not self.is_cancelled:
            self.answer.errback(error)


class StreamItems(Generic[T]):
    """What a stream brings. It is read from the network no faster than it is asked for."""

    is_cancelled = False

    def __init__(self, call: Stream[T], pipeline: Pipeline) -> None:
        self.call = call
        self._pipeline = pipeline
        self._waiting: Deferred[T | None] | None = None
        self._failure: ClientFailure | None = None
        self._is_over = False

    def next(self) -> Deferred[T | None]:
        """The next value; None, from then on always, when there will be no more. Fails as calls do."""
        if self._failure is not None:
            return fail(self._failure)
        if self._is_over:
            return succeed(None)
        waiting = self._waiting = Deferred()
        self._pipeline.resume_reading()
        return waiting

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for the next value."""
        return self._waiting is not None and not self._waiting.called

    def is_last(self, value: T | None) -> bool:
        """Whether nothing comes after that value."""
        return value is None

    def on_value(self, value: T | None) -> None:
        """That was read."""
        self._is_over = value is None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(value)

    def failed(self, error: ClientFailure) -> None:
        """Nothing will come any more, and that is why."""
        self._failure = error
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            waiting.errback(error)


_UnderWay: TypeAlias = _PendingCall[Any] | StreamItems[Any]


@implementer(IPushProducer, IHandshakeListener)
class Pipeline(Protocol):
    """A connection to one server, over whatever an endpoint connects. Requests may follow on each other at once.

    The server owes an answer to the oldest of them. If nothing comes for `timeout_s` and the time that this one lets
    the server wait, or if what comes is no answer, the connection is dropped, and all that was under way fails.

    After a refusal it sends no more requests and ends when all are answered: the server may be about to hang up, and a
    request that is sent into that is one of which nobody knows whether it was carried out.

    After a refusal that `closes_connection`, the server carries out no later call: if the connection ends and no other
    reply has come, later calls were not carried out. After any other refusal this is not known.

    What the transport cannot take is held back, so that of this much it is known that it was not carried out; nor was
    the last one that the transport took, as long as it has not let go of its end.
    """

    # Any: what a stream transport can do is spread over several of Twisted's interfaces.
    transport: Any

    def __init__(self, clock: IReactorTime, timeout_s: float, closes_connection: Callable[[Refused], bool]) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._closes_connection = closes_connection
        self._timer: IDelayedCall | None = None
        self._until_abort: IDelayedCall | None = None
        self._buffer = ReceiveBuffer()
        self._sent: deque[_UnderWay] = deque()
        self._held: deque[_UnderWay] = deque()
        self._transport_is_full = False
        self._listens = True
        self._is_reading = False
        self._is_over = False
        self._last_word: Refused | None = None
        self.is_usable = False
        """Whether it takes requests."""
        self.is_ready = False
        self.ready: Deferred[None] = Deferred()
        """Fires when it takes requests: the server has proved who it is, if that is asked for. Fails if it cannot."""
        self.ended: Deferred[None] = Deferred()
        """Fires when the connection has ended."""

    # Requests.

    def ask(self, call: Call[T]) -> Deferred[T]:
        """Send the request; fires with the value of its reply, or fails with what the call raises.

        `CannotConnect` means that the call was not carried out. After `ClosedByEarlierRefusal` the caller may repeat
        the call. Cancelling forgets the answer; the server may still carry out the call.
        """
        asked = _PendingCall(call)
        self._begin(asked)
        return asked.answer

    def ask_all(self, calls: Sequence[Call[T]]) -> list[Deferred[T]]:
        """The same for several, with nothing between them."""
        return [self.ask(call) for call in calls]

    def stream(self, stream: Stream[T]) -> StreamItems[T]:
        """Send a request that is answered with one value after the other."""
        items = StreamItems(stream, self)
        self._begin(items)
        return items

    @property
    def is_at_rest(self) -> bool:
        """Whether it takes requests, and none is under way."""
        return self.is_usable and not (self._sent or self._held or len(self._buffer))

    def retire(self) -> None:
        """Take no more requests, and hang up when all are answered; the server has `timeout_s` to do so too."""
        self.is_usable = False
        if not (self._sent or self._held) and self._until_abort is None and not self._is_over:
            self._until_abort = self._clock.callLater(self._timeout_s, self._abort)
            self.transport.unregisterProducer()  # a TLS transport would wait for its producer for ever
            self.transport.loseConnection()

    def drop(self, why: str = "the connection was given up") -> None:
        """Hang up at once. What is under way fails. On memcache open reads go back to their queues."""
        self._drop(ConnectionFailed(why))

    def _begin(self, asked: _UnderWay) -> None:
        if not self.is_usable:
            asked.failed(CannotConnect("the connection has ended"))
            return
        is_first = not (self._sent or self._held)
        if self._transport_is_full:
            self._held.append(asked)
        else:
            self._send(asked)
        if is_first:
            self._watch()

    def _send(self, asked: _UnderWay) -> None:
        self._sent.append(asked)
        self.transport.write(asked.call.request)

    # The connection, as Twisted tells of it.

    def connectionMade(self) -> None:
        """It is there; with TLS it is not known yet with whom."""
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        if not ISSLTransport.providedBy(self.transport):
            self._is_ready()

    def handshakeCompleted(self) -> None:
        """TLS: the server has proved who it is."""
        self._is_ready()

    def _is_ready(self) -> None:
        self.transport.registerProducer(self, True)
        self.is_usable = self.is_ready = True
        self.ready.callback(None)

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the server."""
        self._buffer.receive(data)
        self.resume_reading()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The connection has ended, from either side."""
        self.is_usable = False
        self._is_over = True
        if self._until_abort is not None and self._until_abort.active():
            self._until_abort.cancel()
        sent, held = self._nothing_is_under_way()
        why = reason.getErrorMessage()
        if not self.is_ready:
            failure = CannotConnect(why)
            failure.__cause__ = reason.value
            self.ready.errback(failure)
        last_word = None if len(self._buffer) else self._last_word
        hung_up = reason.check(ConnectionDone) is not None
        for asked in sent:
            if last_word is not None:
                asked.failed(ClosedByEarlierRefusal(last_word))
            elif hung_up:
                _server_hung_up(asked)
            else:
                asked.failed(ConnectionFailed(f"no answer: {why}"))
        for asked in held:
            asked.failed(CannotConnect(f"the connection ended before the request was sent: {why}"))
        self.ended.callback(None)

    def pauseProducing(self) -> None:
        """The transport holds as much as it wants to."""
        self._transport_is_full = True

    def resumeProducing(self) -> None:
        """The transport takes more."""
        self._transport_is_full = False
        while self._held and not self._transport_is_full:
            asked = self._held.popleft()
            if not asked.is_cancelled:
                self._send(asked)
        self._watch()

    def stopProducing(self) -> None:
        """The transport is closing; connectionLost follows."""
        self.is_usable = False

    # Replies.

    def resume_reading(self) -> None:
        """Read what has come, as far as somebody wants it."""
        if self._is_reading:  # called from what an answer has brought about; the loop below goes on
            return
        self._is_reading = True
        try:
            while self._sent and self._read(self._sent[0]):
                pass
        finally:
            self._is_reading = False
        if not self._sent and len(self._buffer):
            self._drop(BadReply("the server says something that nobody has asked for"))
        self._listen(not self._sent or self._sent[0].is_wanted)
        self._watch()

    def _read(self, asked: _UnderWay) -> bool:
        """Read from the reply to this request; whether to go on."""
        if not asked.is_wanted:
            return False
        try:
            value = asked.call.read(self._buffer)
        except Refused as refusal:
            self._sent.popleft()
            self._last_word = refusal if self._closes_connection(refusal) else None
            held, self._held = self._held, deque()
            self.retire()
            asked.failed(refusal)
            for each in held:  # it was not sent, and will not be
                each.failed(ClosedByEarlierRefusal(refusal))
            return True
        except BadReply as error:
            self._drop(error)
            return False
        if value is NOT_YET:
            return False
        self._last_word = None
        if asked.is_last(value):
            self._sent.popleft()
            if not self.is_usable:
                self.retire()
        asked.on_value(value)
        return True

    def _listen(self, wanted: bool) -> None:
        if self._listens != wanted and self.is_usable:
            self._listens = wanted
            if wanted:
                self.transport.resumeProducing()
            else:
                self.transport.pauseProducing()

    # The end.

    def _watch(self) -> None:
        """Begin anew to wait for something to come, if somebody waits for it."""
        oldest = next(iter(self._sent or self._held), None)
        if oldest is None or not oldest.is_wanted:
            self._stop_watching()
            return
        limit_s = self._timeout_s + oldest.call.wait_ms / 1000
        if self._timer is None:
            self._timer = self._clock.callLater(limit_s, self._nothing_came, limit_s)
        else:
            self._timer.reset(limit_s)

    def _stop_watching(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _nothing_came(self, limit_s: float) -> None:
        self._timer = None
        self._drop(ConnectionFailed(f"nothing came for {limit_s:g} s"))

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abortConnection()

    def _nothing_is_under_way(self) -> tuple[deque[_UnderWay], deque[_UnderWay]]:
        self._stop_watching()
        sent, self._sent = self._sent, deque()
        held, self._held = self._held, deque()
        if sent and self._transport_is_full:  # with the end of the last one
            held.appendleft(sent.pop())
        return sent, held

    def _drop(self, error: ConnectionFailed) -> None:
        """Hang up; the oldest request fails with that error."""
        self.is_usable = False
        self._buffer.clear()
        sent, held = self._nothing_is_under_way()
        self._abort()
        for number, asked in enumerate(sent):
            asked.failed(error if number == 0 else ConnectionFailed(str(error)))
        for asked in held:
            asked.failed(CannotConnect(f"the request was not sent: {error}"))


def _server_hung_up(asked: _UnderWay) -> None:
    """That is an answer to some requests; to all others it is none."""
    try:
        asked.call.connection_ended()
    except ConnectionFailed as error:
        asked.failed(error)
    else:
        asked.on_value(None)
