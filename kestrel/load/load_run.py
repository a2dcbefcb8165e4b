"""The run of a load tool: connections to the server with a number of outstanding requests, time, and the end."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred, DeferredList, FirstError, ensureDeferred
from twisted.internet.error import ConnectionDone, ConnectionLost, DNSLookupError
from twisted.internet.error import TimeoutError as ConnectingTimedOut
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from kestrel.address import Address
from kestrel.client.call import Call
from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed
from kestrel.client.openssl import server_endpoint
from kestrel.client.pipeline import Pipeline
from kestrel.load.load_dialects import PROTOCOLS, LoadDialect
from kestrel.load.numbered_items import Ledger, NumberedItems
from kestrel.load.report import RequestStats, RunStats
from kestrel.tls import TlsOptions

T = TypeVar("T")
Token = TypeVar("Token")

WAIT_MS: Final = 1000
"""Wait of one get at the server, before the get is repeated."""

_GRACE_S: Final = 1.5
"""Time that outstanding requests have to end after `stop`."""

_SILENCE_CHECK_S: Final = 0.5
"""Last part of `_GRACE_S`. A server that sends no answer in it counts as silent; earlier, answers may be on the way."""

_MAX_CONNECTING: Final = 50
"""Maximum number of concurrent connection attempts. More would only wait in the server's accept queue."""


@dataclass(frozen=True)
class LoadOptions:
    """Parsed options of a run. Sizes are in bytes, times in seconds."""

    address: Address
    protocol: str
    tls: TlsOptions | None
    timeout_s: float
    queue: bytes
    is_default_queue: bool
    items: int
    sizes: tuple[int, int]
    """Sizes of the smallest and of the largest item."""
    clients: int
    seed: int
    flush: bool
    anyway: bool
    pipeline: int = 1
    prefill: int = 0
    pause_s: float = 0.0
    queues: int = 1
    cycles: int = 1
    leak: float = 0.0
    hold_s: float = 0.0

    @property
    def total(self) -> int:
        """Number of items that the run puts in total."""
        return self.items * self.cycles + self.prefill

    @property
    def queue_names(self) -> list[bytes]:
        """Names of the run's queues. Several queues have the suffixes ``_1``, ``_2`` and so on."""
        if self.queues == 1:
            return [self.queue]
        return [b"%b_%d" % (self.queue, place) for place in range(1, self.queues + 1)]


class LoadConnection(NamedTuple):
    """A connection, and the dialect that makes its calls."""

    pipeline: Pipeline
    dialect: LoadDialect

    def ask(self, call: Call[T]) -> Deferred[T]:
        return self.pipeline.ask(call)

    async def finish(self, queue: bytes) -> None:
        """Confirm the last item taken from the queue, if that needs a request."""
        if (call := self.dialect.finish(queue)) is not None:
            await self.ask(call)


class LoadRun:
    """One run of a tool. `reactor` is the Twisted reactor."""

    def __init__(self, reactor: Any, options: LoadOptions) -> None:
        self.options = options
        # The mark differs from that of other runs.
        self.ledger = Ledger(NumberedItems(os.urandom(4).hex(), *options.sizes, options.seed), options.total)
        self.stats = RunStats()
        self.seconds = perf_counter
        self.is_stopping = False
        self._reactor = reactor
        self._endpoint = server_endpoint(reactor, options.address, options.tls, options.timeout_s)
        self._make_dialect = PROTOCOLS[options.protocol]
        self._pipelines: set[Pipeline] = set()
        self._connecting: set[Deferred[Any]] = set()
        self._sleeping: set[Deferred[None]] = set()
        self._dropping: IDelayedCall | None = None
        self._is_silent = False
        """True if the server sent no answer in the last part of the time after `stop`."""

    async def connection(self) -> LoadConnection:
        """Open a new connection. Raise `CannotConnect` on failure."""
        if self._is_silent:  # after Ctrl-C, do not also wait for the timeout
            raise CannotConnect("the server does not answer")
        dialect = self._make_dialect()
        timeout_s = self.options.timeout_s
        factory = Factory.forProtocol(lambda: Pipeline(self._reactor, timeout_s, dialect.closes_connection))
        factory.noisy = False
        connecting = self._endpoint.connect(factory)
        self._connecting.add(connecting)
        try:
            pipeline = await connecting
            assert isinstance(pipeline, Pipeline)
            self._pipelines.add(pipeline)
            pipeline.ended.addCallback(lambda _: self._pipelines.discard(pipeline))
            await pipeline.ready.addTimeout(timeout_s, self._reactor)
        except Exception as error:
            cause = _to_socket_error(error, timeout_s)
            if cause is None:
                raise
            raise CannotConnect(f"{self.options.address}: {cause}") from cause
        finally:
            self._connecting.discard(connecting)
        return LoadConnection(pipeline, dialect)

    async def connections(self, number: int, stats: RequestStats | None = None) -> list[LoadConnection]:
        """Open `number` connections, or fewer after `stop`. Add each to `stats`."""
        connections: list[LoadConnection] = []
        begun = 0

        async def connect() -> None:
            nonlocal begun
            while begun < number and not self.is_stopping:
                begun += 1
                began_s = self.seconds()
                connections.append(await self.connection())
                if stats is not None:
                    stats.add(0, began_s, self.seconds())

        await self.all([connect() for _ in range(min(number, _MAX_CONNECTING))])
        return connections

    async def sleep(self, seconds: float) -> None:
        """Wait for that time, or until `stop`; return at once if the run is already stopping."""
        if self.is_stopping:
            return
        waiting: Deferred[None] = deferLater(self._reactor, seconds)
        self._sleeping.add(waiting)
        with suppress(CancelledError):
            await waiting
        self._sleeping.discard(waiting)

    async def all(self, works: Sequence[Deferred[Any] | Coroutine[Any, Any, object]]) -> None:
        """Run all works concurrently, and return when all have ended or one has failed.

        Raise the first failure, except a lost connection after `stop`. The other works continue after a failure.
        """
        try:
            await DeferredList([ensureDeferred(work) for work in works], fireOnOneErrback=True, consumeErrors=True)
        except FirstError as first:
            if not (self.is_stopping and first.subFailure.check(ConnectionFailed)):
                first.subFailure.raiseException()

    def stop(self) -> None:
        """End the run: start no new requests, and close all connections after 1.5 seconds for outstanding ones."""
        if not self.is_stopping:
            self.is_stopping = True
            self._dropping = self._reactor.callLater(_GRACE_S - _SILENCE_CHECK_S, self._check_silence)
            self._wake_all()

    def _check_silence(self) -> None:
        self._dropping = self._reactor.callLater(_SILENCE_CHECK_S, self._end_now, self._answered())

    def _end_now(self, answered: int) -> None:
        self._is_silent = self._answered() == answered
        self.hang_up()

    def _answered(self) -> int:
        return sum(request_stats.items for request_stats in self.stats.request_stats_list)

    def end(self) -> None:
        """Close all connections at the end of the run.

        Later connections, such as those that restore queues, are closed only by a further signal.
        """
        self.is_stopping = True
        if self._dropping is not None and self._dropping.active():
            self._dropping.cancel()
        self.hang_up()

    def hang_up(self) -> None:
        """Close all connections, and cancel connection attempts."""
        for connecting in list(self._connecting):
            connecting.cancel()
        for pipeline in list(self._pipelines):
            pipeline.drop()

    def close(self) -> None:
        """End the run, and wake all sleepers."""
        self.end()
        self._wake_all()

    def _wake_all(self) -> None:
        for waiting in list(self._sleeping):
            waiting.cancel()


def _to_socket_error(error: Exception, timeout_s: float) -> OSError | ValueError | None:
    """Return the socket error that corresponds to a Twisted error, or None for a `ClientFailure` with its own text."""
    number = getattr(error, "osError", None)
    match error:
        case CannotConnect(__cause__=SSL.Error() as cause):
            return ssl.SSLError(ssl.SSL_ERROR_SSL, _reason(cause))
        case CannotConnect(__cause__=CannotConnect() as cause):
            return ssl.SSLCertVerificationError(ssl.SSL_ERROR_SSL, str(cause))
        case CannotConnect(__cause__=ConnectionLost() | ConnectionDone()):
            return ConnectionResetError(errno.ECONNRESET, "the server hung up")
        case ClientFailure():
            return None
        case DNSLookupError():
            return socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        case TimeoutError() | ConnectingTimedOut():
            return TimeoutError(errno.ETIMEDOUT, f"no connection within {timeout_s:g} s")
        case _ if isinstance(number, int):
            return OSError(number, os.strerror(number))
        case _:
            return ValueError(str(error))


def _reason(error: SSL.Error) -> str:
    """Return the last reason in OpenSSL's error."""
    try:
        return str(error.args[0][-1][-1])
    except (LookupError, TypeError):
        return "it does not speak TLS"


class Pump(Generic[Token, T]):
    """A loop that keeps up to `width` calls of `make` outstanding, until there are no more calls and no open answers.

    `make` returns a token and a call, or None for no call now. `came` receives the token, the answer, and the times of
    the request and the answer on the clock `seconds`. The first failed request ends the pump with its error.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        width: int,
        make: Callable[[], tuple[Token, Call[T]] | None],
        came: Callable[[Token, T, float, float], None],
        seconds: Callable[[], float],
    ) -> None:
        self._pipeline = pipeline
        self._width = width
        self._make = make
        self._came = came
        self._seconds = seconds
        self._outstanding = 0
        self._is_filling = False
        self._is_over = False
        self._ended: Deferred[None] = Deferred()

    def run(self) -> Deferred[None]:
        """Start the pump. The result fires at its end."""
        self._fill()
        return self._ended

    def stop(self) -> None:
        """End the pump without an error. Later answers are ignored."""
        if not self._is_over:
            self._is_over = True
            self._ended.callback(None)

    def _fill(self) -> None:
        if self._is_filling:
            return
        self._is_filling = True
        while not self._is_over and self._outstanding < self._width and (made := self._make()) is not None:
            token, call = made
            self._outstanding += 1
            args = (token, self._seconds())
            self._pipeline.ask(call).addCallbacks(self._answered, self._failed, callbackArgs=args)
        self._is_filling = False
        if not self._outstanding:
            self.stop()

    def _answered(self, value: T, token: Token, began_s: float) -> None:
        self._outstanding -= 1
        if self._is_over:
            return
        try:
            self._came(token, value, began_s, self._seconds())
            self._fill()
        except Exception:  # an errback for this would double the cost of each request
            self._failed(Failure())

    def _failed(self, failure: Failure) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended.errback(failure)
