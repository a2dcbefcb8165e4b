"""The view that the admin port has of a server."""

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
    """A server and the functions that the admin port needs to describe and control it.

    `storage` describes where the queues are stored. `seconds` is the monotonic clock. `is_ready` returns True from when
    the queues are loaded until the server stops. `server_sets` returns, for each server set, whether the server is
    known to be a member.
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
        """The current configuration."""
        return self.core.config

    def snapshot(self) -> ServerSnapshot:
        """Return a snapshot of the server's statistics. The caller must run its `gather` in steps."""
        return ServerSnapshot(self.manager, self.control.version, self.control.uptime_s())

    def may_administer(self, identity: bytes | None, *, is_trusted: bool) -> bool:
        """Return True if the client with this certificate subject, or without one, is an administrator."""
        return self.core.session_settings.is_administrator(identity, is_trusted=is_trusted)
