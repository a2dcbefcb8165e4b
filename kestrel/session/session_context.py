"""What the sessions of a server share."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.manager import QueueManager
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.session.leased_open_reads import LeasedOpenReads
from kestrel.session.refusal_log import RefusalLog
from kestrel.session.request_deadlines import RequestDeadlines
from kestrel.session.settings import SessionSettings


class SessionContext:
    """One for each server. `settings` may be replaced at any time; `settings_changed` of each session follows."""

    def __init__(
        self, manager: QueueManager, scheduler: TickScheduler, clock: IReactorTime, settings: SessionSettings
    ) -> None:
        self.manager = manager
        self.scheduler = scheduler
        self.clock = clock
        self.settings = settings
        self.leases = LeasedOpenReads(manager.now_ms())
        self.refusal_log = RefusalLog(clock.seconds)
        self.request_deadlines = RequestDeadlines(clock, lambda: self.settings)

    def use(self, settings: SessionSettings) -> None:
        """Bound connections by these from now on."""
        self.settings = settings
        self.request_deadlines.settings_changed()

    def stop(self) -> None:
        """The server stops: nothing happens by itself any more."""
        self.leases.stop()
        self.request_deadlines.stop()
