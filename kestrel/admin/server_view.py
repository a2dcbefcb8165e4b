"""What the admin port looks at: a server, and what is known of it besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kestrel.config.model import Config
from kestrel.net.queue_server import QueueServer
from kestrel.queues.manager import QueueManager
from kestrel.queues.stat_definitions import ServerSnapshot
from kestrel.session.refusal_log import RefusalLog
from kestrel.session.settings import ServerControl


class ServerView:
    """A server as its admin port sees it.

    `storage` is where its queues are, for people; `seconds` the clock of timers; `is_ready` whether the queues are
    loaded; `server_sets` the server sets it joins, each with whether it is in it as far as is known.
    """

    def __init__(
        self,
        core: QueueServer,
        control: ServerControl,
        storage: str,
        seconds: Callable[[], float],
        is_ready: Callable[[], bool],
        server_sets: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self.core: Final = core
        self.control: Final = control
        self.storage: Final = storage
        self.seconds: Final = seconds
        self.is_ready: Final = is_ready
        self.server_sets: Final = server_sets
        self.manager: Final[QueueManager] = core.manager
        self.refusal_log: Final[RefusalLog] = core.session_context.refusal_log
        self.started_s: Final = seconds()

    @property
    def config(self) -> Config:
        """The configuration as it is now."""
        return self.core.config

    def snapshot(self) -> ServerSnapshot:
        """Return the server as it is now. The caller runs `gather` in steps."""
        return ServerSnapshot(self.manager, self.control.version, self.control.uptime_s())

    def may_administer(self, identity: bytes | None, *, is_trusted: bool) -> bool:
        """Whether a client of that name may change the server."""
        return self.core.session_settings.is_administrator(identity, is_trusted=is_trusted)
