"""clientTimeout: a client that asks for nothing, and takes nothing, for too long is hung up on."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.timer import CLOCK_TOLERANCE_S, Timer


class IdleTimeout:
    """How long one client has been idle. One timer, which is not moved at each request: that would cost more than
    the request.

    The client is not idle while `waits_for_server` returns True. `timed_out` is called again after each further
    timeout, until `stop`.
    """

    def __init__(
        self,
        clock: IReactorTime,
        timeout_ms: Callable[[], int | None],
        waits_for_server: Callable[[], bool],
        timed_out: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._waits_for_server = waits_for_server
        self._timed_out = timed_out
        self._has_timeout = timeout_ms() is not None
        """Whether there is a timeout. Without one nobody looks at the clock for it at each request."""
        self._since_s = clock.seconds()
        self._timer = Timer(clock, self._look)
        self._is_over = False

    def reset(self) -> None:
        """The client asked for something, took something, or was answered after it had waited."""
        if not self._has_timeout:
            return
        self._since_s = self._clock.seconds()
        if not self._timer.is_running and not self._is_over:
            self._start(self._timeout_ms())

    def timeout_changed(self) -> None:
        """A reload may have set another timeout, which holds from now on, also for a client that has been silent."""
        if self._is_over:
            return
        timeout_ms = self._timeout_ms()
        if timeout_ms is not None and not self._has_timeout:
            self._since_s = self._clock.seconds()  # since when it has been silent nobody knows
        self._has_timeout = timeout_ms is not None
        self._timer.stop()
        self._start(timeout_ms)

    def stop(self) -> None:
        """The client is gone."""
        self._is_over = True
        self._timer.stop()

    def _start(self, timeout_ms: int | None) -> None:
        if timeout_ms is not None:
            due_s = self._since_s + timeout_ms / 1000
            self._timer.start(max(0.0, due_s - self._clock.seconds()))

    def _look(self) -> None:
        timeout_ms = self._timeout_ms()
        if timeout_ms is None:
            return
        now_s = self._clock.seconds()
        is_late = self._since_s + timeout_ms / 1000 <= now_s + CLOCK_TOLERANCE_S
        if is_late or self._waits_for_server():
            self._since_s = now_s
        self._start(timeout_ms)
        if is_late and not self._waits_for_server():
            self._timed_out()
