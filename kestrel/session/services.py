"""What the sessions of a server share."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.manager import QueueManager
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.session.leases import LeasedReads
from kestrel.session.refusals import Refusals
from kestrel.session.settings import SessionSettings
from kestrel.session.unfinished import Unfinished


class SessionServices:
    """One for each server. `settings` may be replaced at any time; `settings_changed` of each session follows."""

    def __init__(
        self, manager: QueueManager, scheduler: TickScheduler, clock: IReactorTime, settings: SessionSettings
    ) -> None:
        self.manager = manager
        self.scheduler = scheduler
        self.clock = clock
        self.settings = settings
        self.leases = LeasedReads(manager.now_ms())
        self.refusals = Refusals(clock.seconds)
        self.unfinished = Unfinished(clock, lambda: self.settings)

    def use(self, settings: SessionSettings) -> None:
        """Bound connections by these from now on."""
        self.settings = settings
        self.unfinished.settings_changed()

    def stop(self) -> None:
        """The server stops: nothing happens by itself any more."""
        self.leases.stop()
        self.unfinished.stop()
