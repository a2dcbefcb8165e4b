"""Threads and timers of a storage. Closing it waits for the threads and cancels the timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from kestrel.storage.interfaces import InThread


class Jobs:
    """The threads and timers of one storage."""

    def __init__(self, clock: IReactorTime, in_thread: InThread) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._running: set[Deferred[Any]] = set()
        self._due: set[IDelayedCall] = set()
        self._is_closed = False

    def run(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        """Call the function in a thread. The Deferred fires on the reactor thread."""
        job: Deferred[Any] = self._in_thread(function, *args)
        self._running.add(job)

        def finished(result: Any) -> Any:
            self._running.discard(job)
            return result

        return job.addBoth(finished)

    def seconds(self) -> float:
        return self._clock.seconds()

    def later(self, seconds: float, function: Callable[..., Any], *args: object) -> IDelayedCall | None:
        """Call the function on the reactor thread after `seconds`. Return None, and do nothing, if the storage is
        closed.
        """
        if self._is_closed:
            return None

        def due() -> None:
            self._due.discard(call)
            function(*args)

        call = self._clock.callLater(seconds, due)
        self._due.add(call)
        return call

    def within(self, seconds: float, before: IDelayedCall | None, function: Callable[[], Any]) -> IDelayedCall | None:
        """Call the function after `seconds`, or at the time of the pending call `before` if that is sooner.

        Returns the pending call, for the next `within`.
        """
        if before is None or not before.active():
            return self.later(seconds, function)
        if before.getTime() > self.seconds() + seconds:
            before.reset(seconds)
        return before

    def cancel(self, call: IDelayedCall | None) -> None:
        if call is not None and call.active():
            self._due.discard(call)
            call.cancel()

    def close(self) -> Deferred[Any]:
        """Cancel all timers. The Deferred fires when no thread works any longer."""
        self._is_closed = True
        for call in self._due:
            call.cancel()
        self._due.clear()
        return self._idle(None)

    def _idle(self, _: object) -> Deferred[Any]:
        if not self._running:
            return succeed(None)
        # A finished job may have started another.
        return DeferredList(list(self._running), consumeErrors=True).addCallback(self._idle)


def fire_all(waiting: list[Deferred[Any]], failure: Exception | None = None, value: object = None) -> None:
    """Remove all Deferreds from `waiting` and fire them with `value`, or with `failure` if there is one."""
    fired, waiting[:] = waiting[:], []
    for done in fired:
        done.callback(value) if failure is None else done.errback(failure)
