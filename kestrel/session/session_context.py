"""The objects that all sessions of a server share."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.manager import QueueManager
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.session.open_reads import LeasedOpenReads
from kestrel.session.refusal_log import RefusalLog
from kestrel.session.request_deadlines import RequestDeadlines
from kestrel.session.settings import SessionSettings


class SessionContext:
    """The shared context of a server's sessions."""

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
        """Apply `settings` from now on. The caller must also call `settings_changed` of each session."""
        self.settings = settings
        self.request_deadlines.settings_changed()

    def stop(self) -> None:
        """Stop all timers. From now on leased gets return no items."""
        self.leases.stop()
        self.request_deadlines.stop()
