"""The objects that all sessions of a server share, such as the log of refused requests, and the server itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from kestrel.config.model import Config
from kestrel.queues.manager import QueueManager
from kestrel.queues.status import ServerStatus
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.session.open_reads import LeasedOpenReads
from kestrel.session.timeouts import RequestDeadlines

log = Logger(__name__)

MAX_LOG_LINES: Final = 10
LOG_WINDOW_S: Final = 1.0


class RefusalLog:
    """A log of refusals with at most `MAX_LOG_LINES` per second. The next line has the number of omitted refusals."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._began_s = float("-inf")
        self._lines = 0
        self._left_out = 0

    def log(self, who: str, identity: bytes | None, what: str) -> None:
        """Log a refusal, unless there were too many lines in this second.

        `who` is the client's address, and `identity` its name, if it has one. `what` is a sentence without an item's
        data.
        """
        now_s = self._seconds()
        if now_s >= self._began_s + LOG_WINDOW_S:
            self._began_s, self._lines = now_s, 0
        if self._lines >= MAX_LOG_LINES:
            self._left_out += 1
            return
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        log.warn(
            "Refused: {who} ({identity}): {what}{more}",
            who=who,
            identity="no name" if identity is None else repr(identity.decode("utf-8", "backslashreplace")),
            what=what,
            more=f"; {left_out} more refusals before it are not logged" if left_out else "",
        )


class SessionContext:
    """The shared context of a server's sessions."""

    def __init__(self, manager: QueueManager, scheduler: TickScheduler, clock: IReactorTime, settings: Config) -> None:
        self.manager = manager
        self.scheduler = scheduler
        self.clock = clock
        self.settings = settings
        self.leases = LeasedOpenReads(manager.now_ms())
        self.refusal_log = RefusalLog(clock.seconds)
        self.request_deadlines = RequestDeadlines(clock, lambda: self.settings)

    def use(self, settings: Config) -> None:
        """Apply `settings` from now on. The caller must also call `settings_changed` of each session."""
        self.settings = settings
        self.request_deadlines.settings_changed()

    def stop(self) -> None:
        """Stop all timers. From now on leased gets return no items."""
        self.leases.stop()
        self.request_deadlines.stop()


class ServerControl(Protocol):
    """The operations on the whole server that a client can request."""

    version: str

    @property
    def status(self) -> ServerStatus:
        """Status that clients see and that gates reads and writes."""

    def uptime_s(self) -> int:
        """Return the seconds since the start."""

    def reload(self) -> Deferred[None]:
        """Read the configuration again. Fails with a `KestrelError` and keeps the old one if the new one is invalid."""

    def iter_config(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
        """Yield the name and the displayed settings of each named queue and alias, or of all of them without names."""

    def shutdown(self) -> None:
        """Begin an orderly stop."""
