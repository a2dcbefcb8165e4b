"""The connections of the Twisted client to one server.

A connection is made when a request needs one. Twisted's ClientService does not fit: it would keep a connection that is
not needed, and retry forever where a request must move to another server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, TimeoutError
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from kestrel.client.choice import MAX_BACKOFF_S, Backoff
from kestrel.client.errors import AllInUse, CannotConnect, Refused
from kestrel.client.pipeline import Pipeline

T = TypeVar("T")

IDLE_S: Final = 30.0
"""How long an unused connection is kept."""


def fire_all(waiting: Iterable[Deferred[T]], make_result: Callable[[], T | Failure]) -> None:
    """Fire each Deferred that was not cancelled with a result of its own."""
    for each in list(waiting):
        if not each.called:
            each.callback(make_result())


class Server:
    """One server, with a shared connection for requests that are answered at once, and exclusive ones for the rest.

    There are at most `max_connections`, not counting those that are closing. A request that needs another one waits
    until one is given back, for `timeout_s` plus the request's own timeout, and then fails with `CannotConnect`.

    After a failed connection attempt the next one is made after a pause, which grows with each failure (`Backoff`). A
    request waits for that attempt if `waits_for_backoff` returns True. Otherwise it fails with `CannotConnect` at once.
    """

    def __init__(
        self,
        name: str,
        endpoint: IStreamClientEndpoint,
        clock: IReactorTime,
        *,
        timeout_s: float,
        max_connections: int,
        random: Random,
        waits_for_backoff: Callable[[], bool],
        closes_connection: Callable[[Refused], bool],
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._clock = clock
        self._timeout_s = timeout_s
        # Retry an unreachable server within the timeout of a request.
        self._backoff = Backoff(random, longest_s=min(MAX_BACKOFF_S, timeout_s))
        self._backoff_reason = ""
        self._waits_for_backoff = waits_for_backoff
        self._pipelines = Factory.forProtocol(lambda: Pipeline(clock, timeout_s, closes_connection))
        self._pipelines.noisy = False
        self._shared: Pipeline | None = None
        self._waiting_for_shared: list[Deferred[Pipeline]] = []
        self._idle: dict[Pipeline, IDelayedCall] = {}  # with the call that closes it
        self._free = DeferredSemaphore(max_connections - 1)  # held by exclusive connections in use
        self._attempts: set[Deferred[Pipeline]] = set()
        self._connections: set[Pipeline] = set()
        self._has_left = False
        self._is_closed = False
        self._closing: list[Deferred[None]] = []

    def __str__(self) -> str:
        return self.name

    @property
    def is_backing_off(self) -> bool:
        """Whether the server is not tried for a while after a failed connection attempt."""
        return self._backoff.ends_s > self._clock.seconds()

    # The shared connection.

    async def shared(self) -> Pipeline:
        """Return the shared connection, for requests that are answered at once. Raises `CannotConnect`."""
        if self._shared is not None and self._shared.is_usable:
            return self._shared
        waiting: Deferred[Pipeline] = Deferred()
        self._waiting_for_shared.append(waiting)
        if len(self._waiting_for_shared) == 1:
            self._connect().addBoth(self._shared_attempted)
        return await waiting

    def _shared_attempted(self, result: Pipeline | Failure) -> None:
        waiting, self._waiting_for_shared = self._waiting_for_shared, []
        if isinstance(result, Failure):
            fire_all(waiting, lambda: Failure(CannotConnect(str(result.value))))
            return
        self._shared = result
        if self._has_left:  # serve only the requests that wait for it now
            self._clock.callLater(0, result.retire)
        fire_all(waiting, lambda: result)

    # Exclusive connections.

    async def take(self, wait_ms: int = 0) -> Pipeline:
        """Return a connection for exclusive use by a request that may wait `wait_ms`. Raises `CannotConnect`.

        Pass it to `give_back` afterwards.
        """
        if self._is_closed:
            raise self._closed()
        try:
            await self._free.acquire().addTimeout(self._timeout_s + wait_ms / 1000, self._clock)
        except TimeoutError:
            raise AllInUse(f"{self}: all connections to this server are in use") from None
        except CancelledError:
            if self._is_closed:
                raise self._closed() from None
            raise
        try:
            while self._idle:
                pipeline, too_long = self._idle.popitem()
                too_long.cancel()
                if pipeline.is_at_rest:
                    return pipeline
            return await self._connect()
        except BaseException:
            self._free.release()
            raise

    def give_back(self, pipeline: Pipeline) -> None:
        """Keep a connection for `IDLE_S` for the next request if it is at rest. Otherwise drop it, unless it is closing
        anyway.
        """
        if pipeline.is_usable and not pipeline.is_at_rest:
            pipeline.drop()
        if pipeline.is_usable:
            if self._has_left and not self._free.waiting:
                pipeline.retire()
            else:
                self._idle[pipeline] = self._clock.callLater(IDLE_S, self._idle_for_too_long, pipeline)
        self._free.release()  # the next request in line takes the connection at once

    def _idle_for_too_long(self, pipeline: Pipeline) -> None:
        del self._idle[pipeline]
        pipeline.retire()

    # Connecting.

    def _connect(self) -> Deferred[Pipeline]:
        attempt = Deferred.fromCoroutine(self._attempt())
        self._attempts.add(attempt)

        def done(result: T) -> T:
            self._attempts.discard(attempt)
            return result

        return attempt.addBoth(done)

    async def _attempt(self) -> Pipeline:
        if self._is_closed:
            raise self._closed()
        try:
            if self.is_backing_off:
                if not self._waits_for_backoff():
                    raise CannotConnect(f"{self}: {self._backoff_reason}")
                await deferLater(self._clock, self._backoff.ends_s - self._clock.seconds())
            return await self._establish()
        except CancelledError:
            if self._is_closed:
                raise self._closed() from None
            raise

    async def _establish(self) -> Pipeline:
        try:
            pipeline = await Deferred.fromCoroutine(self._connected()).addTimeout(self._timeout_s, self._clock)
        except CancelledError:
            raise
        except Exception as error:
            is_late = isinstance(error, TimeoutError)
            self._backoff_reason = f"no connection within {self._timeout_s:g} s" if is_late else str(error)
            if not self.is_backing_off:  # several attempts that fail together are one failure
                self._backoff.failed(self._clock.seconds())
            raise CannotConnect(f"{self}: {self._backoff_reason}") from error
        self._backoff.answered()
        return pipeline

    async def _connected(self) -> Pipeline:
        pipeline = await self._endpoint.connect(self._pipelines)
        assert isinstance(pipeline, Pipeline)
        self._connections.add(pipeline)
        pipeline.ended.addCallback(lambda _: self._ended(pipeline))
        try:
            await pipeline.ready
        except CancelledError:
            pipeline.drop()
            raise
        return pipeline

    def _ended(self, pipeline: Pipeline) -> None:
        self._connections.discard(pipeline)
        too_long = self._idle.pop(pipeline, None)
        if too_long is not None:
            too_long.cancel()
        if not self._connections:
            closing, self._closing = self._closing, []
            fire_all(closing, lambda: None)

    # Leaving and closing.

    def leave(self) -> None:
        """Close each connection as soon as it is unused, because the server has left the server set.

        Requests in progress continue, with further connections if needed.
        """
        self._has_left = True
        if self._shared is not None:
            self._shared.retire()
        for pipeline, too_long in list(self._idle.items()):
            too_long.cancel()
            self._idle_for_too_long(pipeline)

    def shut(self) -> None:
        """Make all further requests fail with `CannotConnect`."""
        self._is_closed = True

    async def close(self) -> None:
        """Close all connections. Requests in progress fail at once. Return when all connections have ended."""
        self.shut()
        for attempt in list(self._attempts):
            attempt.cancel()
        for waiting in self._free.waiting[:]:
            waiting.cancel()
        for pipeline in list(self._connections):
            pipeline.drop("the client was closed")
        if self._connections:
            ended: Deferred[None] = Deferred()
            self._closing.append(ended)
            await ended

    def _closed(self) -> CannotConnect:
        return CannotConnect(f"{self}: the client is closed")
