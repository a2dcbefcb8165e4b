"""Timeouts of clients: idle connections (`clientTimeout`), and unfinished requests, TLS handshakes and closes.

Each request may take a limited time, and all incomplete requests together a limited number of bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from kestrel.config.model import Config
from kestrel.errors import RequestTooSlow
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


log = Logger(__name__)

RELIEF_RATIO: Final = 7 / 8
"""Part of the byte limit down to which requests are abandoned at once, so that not every byte starts a search."""

MAX_TIMED_OUT_REQUESTS_PER_SLICE: Final = 256
"""Limit of abandoned requests per slice, so that other clients are served in between."""


class DeadlineOwner(Protocol):
    """The owner of an unfinished request: a session."""

    def waits_for_server(self) -> bool:
        """Return True if the client waits for the server."""

    def abandon(self, why: RequestTooSlow) -> None:
        """Reply with the reason and close the connection. Abort it at once if the client would not get the reason."""


class _PendingRequest:
    """The start time of an unfinished request, and its size in bytes."""

    __slots__ = ("since_s", "size")

    def __init__(self, since_s: float, size: int) -> None:
        self.since_s = since_s
        self.size = size


class RequestDeadlines:
    """The unfinished requests, TLS handshakes and closing connections of all clients, oldest first.

    Each is abandoned after `request_timeout_ms`, unless the client waits for the server. When all requests together
    exceed `max_total_request_size_bytes`, the oldest of the larger ones are abandoned. A client that sends its request
    at full speed finishes early and is not among them.
    """

    def __init__(self, clock: IReactorTime, settings: Callable[[], Config]) -> None:
        self.bytes = 0
        self._clock = clock
        self._settings = settings
        self._pending: OrderedDict[DeadlineOwner, _PendingRequest] = OrderedDict()
        self._timer = Timer(clock, self._look)
        self._is_stopped = False
        self._is_making_room = False

    def __len__(self) -> int:
        return len(self._pending)

    def track(self, owner: DeadlineOwner, size: int, *, is_new: bool) -> None:
        """Record `size` bytes of the owner's unfinished work. Its time starts again if `is_new`."""
        begun = self._pending.get(owner)
        if begun is None:
            self._pending[owner] = begun = _PendingRequest(self._clock.seconds(), 0)
            self._watch()
        elif is_new:
            begun.since_s = self._clock.seconds()
            self._pending.move_to_end(owner)
        self.bytes += size - begun.size
        begun.size = size
        self._enforce_limit()

    def untrack(self, owner: DeadlineOwner) -> None:
        """Remove the owner: its work is finished."""
        begun = self._pending.pop(owner, None)
        if begun is not None:
            self.bytes -= begun.size
            if not self._pending:
                self._timer.stop()

    def settings_changed(self) -> None:
        """Apply limits that have changed in the settings."""
        self._timer.stop()
        if not self._is_stopped:
            self._look()
            self._enforce_limit()

    def stop(self) -> None:
        """Stop for good: the server closes its connections itself."""
        self._is_stopped = True
        self._timer.stop()

    def _enforce_limit(self) -> None:
        if self._is_making_room:  # abandoning a request calls `track` again
            return
        most = self._settings().max_total_request_size_bytes
        if self.bytes > most:
            self._is_making_room = True
            try:
                self._make_room(most)
            finally:
                self._is_making_room = False

    def _make_room(self, most: int) -> None:
        # All requests below this share are less than half of the limit together, so the larger ones suffice.
        share = most / len(self._pending) / 2
        why = RequestTooSlow("the server holds too many incomplete requests, and this is one of the oldest")
        for owner, begun in list(self._pending.items()):
            if self.bytes <= most * RELIEF_RATIO:
                break
            if begun.size >= share:
                _abandon(owner, why)

    def _watch(self) -> None:
        """Start the timer for the oldest entry."""
        timeout_ms = self._settings().request_timeout_ms
        if timeout_ms is None or self._timer.is_running or self._is_stopped or not self._pending:
            return
        first = next(iter(self._pending.values()))
        self._timer.start(max(0.0, first.since_s + timeout_ms / 1000 - self._clock.seconds()))

    def _look(self) -> None:
        timeout_ms = self._settings().request_timeout_ms
        if timeout_ms is None:
            return
        now_s = self._clock.seconds()
        for _ in range(min(MAX_TIMED_OUT_REQUESTS_PER_SLICE, len(self._pending))):
            if not self._pending:
                break
            owner, begun = next(iter(self._pending.items()))  # late entries are in front
            if begun.since_s + timeout_ms / 1000 > now_s + CLOCK_TOLERANCE_S:
                break
            begun.since_s = now_s
            self._pending.move_to_end(owner)
            if not owner.waits_for_server():
                _abandon(owner, RequestTooSlow("the request took too long"))
        self._watch()


def _abandon(owner: DeadlineOwner, why: RequestTooSlow) -> None:
    """Abandon a request. An error of one client must not reach the client whose bytes are processed now."""
    try:
        owner.abandon(why)
    except Exception:
        log.failure("The connection of a slow client could not be closed")
