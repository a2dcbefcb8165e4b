"""clientTimeout: a client that asks for nothing for too long is hung up on."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

_CLOSE_ENOUGH_S = 1e-6


class Idleness:
    """How long one client has been idle. One timer, which is not moved at each request: that would cost more than
    the request."""

    def __init__(
        self,
        clock: IReactorTime,
        timeout_ms: Callable[[], int | None],
        is_idle: Callable[[], bool],
        timed_out: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._is_idle = is_idle
        self._timed_out = timed_out
        self._since_s = 0.0
        self._timer: IDelayedCall | None = None
        self._is_over = False

    def interrupted(self) -> None:
        """The client asked for something, or was answered after it had waited."""
        self._since_s = self._clock.seconds()
        if self._timer is None and not self._is_over:
            self._start(self._timeout_ms())

    def timeout_changed(self) -> None:
        """A reload may have set another timeout, which holds from now on, also for a client that has been silent."""
        if not self._is_over:
            self._stop_timer()
            self._start(self._timeout_ms())

    def stop(self) -> None:
        """It does not matter any more."""
        self._is_over = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _start(self, timeout_ms: int | None) -> None:
        if timeout_ms is not None:
            due_s = self._since_s + timeout_ms / 1000
            self._timer = self._clock.callLater(max(0.0, due_s - self._clock.seconds()), self._look)

    def _look(self) -> None:
        self._timer = None
        timeout_ms = self._timeout_ms()
        if timeout_ms is None:
            return
        if not self._is_idle():
            self._since_s = self._clock.seconds()
        if self._since_s + timeout_ms / 1000 <= self._clock.seconds() + _CLOSE_ENOUGH_S:
            self._timed_out()
        else:
            self._start(timeout_ms)
