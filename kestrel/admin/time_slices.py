"""Long work in time slices, so that other work of the reactor runs in between: loops and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.internet.task import CooperativeTask, Cooperator, LoopingCall, SchedulerStopped, TaskStopped
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import Request
from zope.interface import implementer

from kestrel.storage.total_memory import MemoryLimit, MemoryShare

log = Logger(__name__)

SLICE_S: Final = 0.002
"""Seconds that long work may take in one tick. The last step may exceed them."""

STALLED_CLIENT_TIMEOUT_S: Final = 60
"""Seconds after which a client that does not read its response is disconnected."""


def make_cooperator(clock: IReactorTime) -> Cooperator:
    """Return a cooperator that advances its iterators in turn, for `SLICE_S` seconds per tick in total."""

    def slice_of_time() -> Callable[[], bool]:
        until = clock.seconds() + SLICE_S
        return lambda: clock.seconds() >= until

    return Cooperator(slice_of_time, lambda step: clock.callLater(0, step))


class SlicedLoop:
    """Work in steps that begins every `interval_s` seconds. A failure is logged with `message` and ends the loop.

    `steps` is called with the number of intervals since its last call.
    """

    def __init__(
        self, clock: IReactorTime, cooperator: Cooperator, steps: Callable[[int], Iterator[object]], message: str
    ) -> None:
        self._cooperator = cooperator
        self._steps = steps
        self._message = message
        self._loop = LoopingCall.withCount(self._begin)
        self._loop.clock = clock

    def start(self, interval_s: float) -> None:
        """Start the loop. The first work begins at once."""
        self._loop.start(interval_s).addErrback(lambda failure: log.failure(self._message, failure))

    def stop(self) -> None:
        """Start no further work."""
        if self._loop.running:
            self._loop.stop()

    def _begin(self, intervals: int) -> Deferred[object]:
        done = self._cooperator.cooperate(self._steps(intervals)).whenDone()
        return done.addErrback(lambda failure: failure.trap(SchedulerStopped))  # the server shuts down


@implementer(IPushProducer)
class ResponseProducer:
    """A push producer that makes the pieces of a response while the client reads, so that few are in memory.

    `done` is called when the response was sent or can no longer be sent. `failed` is called if an error occurs before
    the first piece is written.
    """

    def __init__(
        self,
        request: Request,
        pieces: Iterable[bytes],
        done: Callable[[], None],
        failed: Callable[[], None],
        cooperator: Cooperator,
        clock: IReactorTime,
        memory_limit: MemoryLimit,
    ) -> None:
        self._request = request
        self._pieces = pieces
        self._done = done
        self._failed = failed
        self._clock = clock
        self._memory = MemoryShare(memory_limit)
        """The memory of the piece that the transport buffers while the client does not read."""
        self._last_bytes = 0
        """The size of the last piece."""
        self._pause: IDelayedCall | None = None
        self._has_ended = False
        self._task: CooperativeTask[Iterator[None]] = cooperator.cooperate(self._steps())
        request.registerProducer(self, True)
        request.notifyFinish().addErrback(lambda _: self.stopProducing())
        self._task.whenDone().addCallbacks(self._finish, self._broke_off)

    def _steps(self) -> Iterator[None]:
        for piece in self._pieces:
            if piece:
                self._last_bytes = len(piece)
                self._request.write(piece)
            yield None

    def _finish(self, _: object) -> None:
        self._has_ended = True
        self._end_pause()
        self._request.unregisterProducer()
        self._request.finish()
        self._done()

    def _broke_off(self, failure: Failure) -> None:
        self._has_ended = True
        self._end_pause()
        self._done()
        if failure.check(TaskStopped, SchedulerStopped) is not None:
            return
        log.failure("A response of the admin port failed", failure)
        self._request.unregisterProducer()
        if self._request.startedWriting:
            # The status line was sent, so only an early end can tell the client about the error.
            self._request.loseConnection()
        else:
            self._failed()

    def _end_pause(self) -> bool:
        self._memory.set_bytes(0)
        pause, self._pause = self._pause, None
        if pause is not None and pause.active():
            pause.cancel()
        return pause is not None

    def pauseProducing(self) -> None:
        """Pause while the client does not read. Disconnect the client after `STALLED_CLIENT_TIMEOUT_S`."""
        if self._pause is None and not self._has_ended:
            self._memory.set_bytes(self._last_bytes)
            channel: Any = self._request.channel
            self._pause = self._clock.callLater(STALLED_CLIENT_TIMEOUT_S, channel.abort)
            self._task.pause()

    def resumeProducing(self) -> None:
        """Continue to make pieces, because the client reads again."""
        if self._end_pause():
            self._task.resume()

    def stopProducing(self) -> None:
        """Stop making pieces, because the client has disconnected."""
        if not self._has_ended:
            self._task.stop()
