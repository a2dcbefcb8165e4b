"""The idle timeout of a connection (`clientTimeout`)."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.timer import CLOCK_TOLERANCE_S, Timer


class IdleTimeout:
    """The idle timeout of one client. Its timer is not restarted at each request, which would cost more than the
    request.

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
        self.has_timeout = timeout_ms() is not None
        """True if a timeout is set. Without one, requests need not call `reset`."""
        self._since_s = clock.seconds()
        self._timer = Timer(clock, self._look)
        self._is_over = False

    def reset(self) -> None:
        """Restart the timeout: the client sent a request, read a reply, or was answered after a wait."""
        if not self.has_timeout:
            return
        self._since_s = self._clock.seconds()
        if not self._timer.is_running and not self._is_over:
            self._start(self._timeout_ms())

    def timeout_changed(self) -> None:
        """Apply a new timeout of a reload, also to a client that is already silent."""
        if self._is_over:
            return
        timeout_ms = self._timeout_ms()
        if timeout_ms is not None and not self.has_timeout:
            self._since_s = self._clock.seconds()  # without a timeout, the time of its last request was not recorded
        self.has_timeout = timeout_ms is not None
        self._timer.stop()
        self._start(timeout_ms)

    def stop(self) -> None:
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
