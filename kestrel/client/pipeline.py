"""A connection of the Twisted client that sends requests and reads their replies in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from twisted.internet.defer import Deferred, DeferredList, fail, succeed
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
from kestrel.client.requests import NextValue
from kestrel.protocols.buffer import ReceiveBuffer

T = TypeVar("T")


class ClosedByEarlierRefusal(CannotConnect):
    """The server refused an earlier request on the connection, possibly of another caller, and closed it.

    The later request was not carried out, and can be asked again.
    """

    def __init__(self, refusal: Refused) -> None:
        super().__init__(f"the server closed the connection because of an earlier request: {refusal}")


class _PendingCall(Generic[T]):
    """A call that has not been answered."""

    is_wanted = True

    def __init__(self, call: Call[T]) -> None:
        self.call = call
        self.answer: Deferred[T] = Deferred()

    @property
    def is_cancelled(self) -> bool:
        """Whether the answer was cancelled. The reply is still read, and then discarded."""
        return self.answer.called

    def is_last(self, value: T) -> bool:
        return True

    def on_value(self, value: T) -> None:
        if not self.is_cancelled:
            self.answer.callback(value)

    def failed(self, error: ClientFailure) -> None:
        if not self.is_cancelled:
            self.answer.errback(error)


class _StreamValues(Generic[T]):
    """The values of a stream, read from the network only when they are requested."""

    is_cancelled = False

    def __init__(self, call: Stream[T], pipeline: Pipeline) -> None:
        self.call = call
        self._pipeline = pipeline
        self._waiting: Deferred[T | None] | None = None
        self._failure: ClientFailure | None = None
        self._is_over = False

    def next(self) -> Deferred[T | None]:
        """Return the next value, or None at the end of the stream and after it. Fails with the errors of a call."""
        if self._failure is not None:
            return fail(self._failure)
        if self._is_over:
            return succeed(None)
        waiting = self._waiting = Deferred()
        self._pipeline.resume_reading()
        return waiting

    @property
    def is_wanted(self) -> bool:
        """Whether the caller waits for the next value."""
        return self._waiting is not None and not self._waiting.called

    def is_last(self, value: T | None) -> bool:
        return value is None

    def on_value(self, value: T | None) -> None:
        self._is_over = value is None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(value)

    def failed(self, error: ClientFailure) -> None:
        self._failure = error
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.called:
            waiting.errback(error)


_UnderWay: TypeAlias = _PendingCall[Any] | _StreamValues[Any]


@implementer(IPushProducer, IHandshakeListener)
class Pipeline(Protocol):
    """A connection to one server over any Twisted endpoint, on which requests can be pipelined.

    The connection is dropped, and all requests in progress fail, after a malformed reply or a timeout. The timeout is
    `timeout_s` plus the time for which the oldest request lets the server wait; it restarts when data arrives.

    After a refusal, the pipeline sends no further requests and closes when all are answered. The server may be about to
    close the connection, and a request sent at that moment may or may not be carried out.

    After a refusal that `closes_connection`, the server carries out no later call: if the connection ends and no other
    reply has come, later calls were not carried out. After any other refusal this is not known.

    Requests are held back while the transport's buffer is full, so it is known that these were not carried out. Nor was
    the last request in the buffer, as long as the transport has not sent its end.
    """

    # Any, because the methods of a stream transport are spread over several of Twisted's interfaces.
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
        """Whether requests can be sent."""
        self.is_ready = False
        self.ready: Deferred[None] = Deferred()
        """Fires when requests can be sent, with TLS after the server's certificate is verified. Fails if that fails."""
        self.ended: Deferred[None] = Deferred()
        """Fires when the connection has ended."""

    # Requests.

    def ask(self, call: Call[T]) -> Deferred[T]:
        """Send a request. Fires with the value of its reply, or fails with the error of the call.

        `CannotConnect` means that the call was not carried out. After `ClosedByEarlierRefusal` the caller may repeat
        the call. Cancelling discards the answer; the server may still carry out the call.
        """
        asked = _PendingCall(call)
        self._begin(asked)
        return asked.answer

    def ask_all(self, calls: Sequence[Call[T]]) -> list[Deferred[T]]:
        """Send several requests, with no other request between them. Return the Deferreds of their answers."""
        return [self.ask(call) for call in calls]

    async def answers(self, calls: Sequence[Call[T]]) -> list[T | Refused | ConnectionFailed]:
        results: list[tuple[bool, Any]] = await DeferredList(self.ask_all(calls), consumeErrors=True)
        answers: list[T | Refused | ConnectionFailed] = []
        for _, result in results:
            if not isinstance(result, Failure):
                answers.append(result)
            elif isinstance(result.value, Refused | ConnectionFailed):
                answers.append(result.value)
            else:
                result.raiseException()
        return answers

    def ask_last(self, call: Call[None]) -> None:
        self.ask(call).addErrback(lambda _: None)
        self.retire()

    def stream(self, stream: Stream[T]) -> NextValue[T]:
        items = _StreamValues(stream, self)
        self._begin(items)
        return items.next

    @property
    def is_at_rest(self) -> bool:
        """Whether requests can be sent and none is in progress."""
        return self.is_usable and not (self._sent or self._held or self._buffer.size)

    def retire(self) -> None:
        """Stop accepting requests, and close the connection when all are answered. Abort it `timeout_s` later if still
        open.
        """
        self.is_usable = False
        if not (self._sent or self._held) and self._until_abort is None and not self._is_over:
            self._until_abort = self._clock.callLater(self._timeout_s, self._abort)
            self.transport.unregisterProducer()  # otherwise a TLS transport never closes
            self.transport.loseConnection()

    def drop(self, why: str = "the connection was dropped") -> None:
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

    # Twisted's callbacks.

    def connectionMade(self) -> None:
        """Become ready, or with TLS wait for the handshake."""
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        if not ISSLTransport.providedBy(self.transport):
            self._is_ready()

    def handshakeCompleted(self) -> None:
        """Become ready: the server's certificate is verified."""
        self._is_ready()

    def _is_ready(self) -> None:
        self.transport.registerProducer(self, True)
        self.is_usable = self.is_ready = True
        self.ready.callback(None)

    def dataReceived(self, data: bytes) -> None:
        self._buffer.receive(data)
        self.resume_reading()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fail all requests in progress after the connection has ended."""
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
        last_word = None if self._buffer.size else self._last_word
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
        """Hold back requests: the transport's buffer is full."""
        self._transport_is_full = True

    def resumeProducing(self) -> None:
        """Send the requests that were held back."""
        self._transport_is_full = False
        while self._held and not self._transport_is_full:
            asked = self._held.popleft()
            if not asked.is_cancelled:
                self._send(asked)
        self._watch()

    def stopProducing(self) -> None:
        """Stop accepting requests: the transport is closing, and connectionLost follows."""
        self.is_usable = False

    # Replies.

    def resume_reading(self) -> None:
        """Parse the received data while callers want values."""
        if self._is_reading:  # called from a callback of the loop below
            return
        self._is_reading = True
        try:
            while self._sent and self._read(self._sent[0]):
                pass
        finally:
            self._is_reading = False
        if not self._sent and self._buffer.size:
            self._drop(BadReply("the server sent data that no request asked for"))
        self._listen(not self._sent or self._sent[0].is_wanted)
        self._watch()

    def _read(self, asked: _UnderWay) -> bool:
        """Parse a reply or a value of a stream. Return True if parsing can continue."""
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
            for each in held:  # these were not sent
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

    # Timeouts and closing.

    def _watch(self) -> None:
        """Restart the timeout if a caller waits for data; stop it otherwise."""
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
        self._drop(ConnectionFailed(f"no data received for {limit_s:g} s"))

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abortConnection()

    def _nothing_is_under_way(self) -> tuple[deque[_UnderWay], deque[_UnderWay]]:
        self._stop_watching()
        sent, self._sent = self._sent, deque()
        held, self._held = self._held, deque()
        if sent and self._transport_is_full:  # the transport still holds the end of the last one
            held.appendleft(sent.pop())
        return sent, held

    def _drop(self, error: ConnectionFailed) -> None:
        """Abort the connection, and fail the oldest request with `error`."""
        self.is_usable = False
        self._buffer.clear()
        sent, held = self._nothing_is_under_way()
        self._abort()
        for number, asked in enumerate(sent):
            asked.failed(error if number == 0 else ConnectionFailed(str(error)))
        for asked in held:
            asked.failed(CannotConnect(f"the request was not sent: {error}"))


def _server_hung_up(asked: _UnderWay) -> None:
    """Resolve a request after the server closed the connection, which is the expected answer for some requests."""
    try:
        asked.call.connection_ended()
    except ConnectionFailed as error:
        asked.failed(error)
    else:
        asked.on_value(None)
