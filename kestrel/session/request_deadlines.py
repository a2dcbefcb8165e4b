"""What clients have begun and not ended: a request, a TLS handshake, the end of a connection.

How long each may take is bounded, and how much all requests that have not come whole take together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from kestrel.errors import RequestTooSlow
from kestrel.queues.timer import CLOCK_TOLERANCE_S, Timer
from kestrel.session.settings import SessionSettings

log = Logger(__name__)

RELIEF_RATIO: Final = 7 / 8
"""When there is too much, as many are given up on as leave this part of what is allowed: not one for each byte."""

MAX_TIMED_OUT_REQUESTS_PER_SLICE: Final = 256
"""However many are late, the others are served in between."""


class DeadlineOwner(Protocol):
    """Who has begun something: a session."""

    @property
    def waits_for_server(self) -> bool:
        """Whether it is the server's turn, and not the client's."""

    def abandon(self, why: RequestTooSlow) -> None:
        """Say why, and hang up; at once if that was the last time already."""


class _PendingRequest:
    """Since when, and how many bytes there are of it."""

    __slots__ = ("since_s", "size")

    def __init__(self, since_s: float, size: int) -> None:
        self.since_s = since_s
        self.size = size


class RequestDeadlines:
    """Who has begun something, the one who is at it longest first.

    Who is at it for longer than `request_timeout_ms` is given up on. So are, when all requests together take more than
    `max_total_request_bytes`, those who take more than a little, the slowest first: whoever sends what it has is done
    soon, and is none of them.
    """

    def __init__(self, clock: IReactorTime, settings: Callable[[], SessionSettings]) -> None:
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
        """It is at something, of which so many bytes are there; `is_new` if it is something else than before."""
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
        """It has ended that."""
        begun = self._pending.pop(owner, None)
        if begun is not None:
            self.bytes -= begun.size
            if not self._pending:
                self._timer.stop()

    def settings_changed(self) -> None:
        """The limits may be others now."""
        self._timer.stop()
        if not self._is_stopped:
            self._look()
            self._enforce_limit()

    def stop(self) -> None:
        """The server stops, which takes care of its connections."""
        self._is_stopped = True
        self._timer.stop()

    def _enforce_limit(self) -> None:
        if self._is_making_room:  # whoever is given up on comes here again
            return
        most = self._settings().max_total_request_bytes
        if self.bytes > most:
            self._is_making_room = True
            try:
                self._make_room(most)
            finally:
                self._is_making_room = False

    def _make_room(self, most: int) -> None:
        # Those who have less have less than half of it together: enough of the others are found.
        share = most / len(self._pending) / 2
        why = RequestTooSlow(
            "the server holds too many requests that have not come whole, and this one began before others"
        )
        for owner, begun in list(self._pending.items()):
            if self.bytes <= most * RELIEF_RATIO:
                break
            if begun.size >= share:
                _abandon(owner, why)

    def _watch(self) -> None:
        """Look again when the first of them is late."""
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
            owner, begun = next(iter(self._pending.items()))  # who is late is in front: the others cost nothing
            if begun.since_s + timeout_ms / 1000 > now_s + CLOCK_TOLERANCE_S:
                break
            begun.since_s = now_s
            self._pending.move_to_end(owner)
            if not owner.waits_for_server:
                _abandon(owner, RequestTooSlow("this took too long"))
        self._watch()


def _abandon(owner: DeadlineOwner, why: RequestTooSlow) -> None:
    """One client's fault must not be that of whoever is being heard now."""
    try:
        owner.abandon(why)
    except Exception:
        log.failure("A client that is too slow could not be hung up on")
