"""The admin port of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.interfaces import IReactorTime

from kestrel.admin.routes import Routes
from kestrel.admin.server_view import ServerView
from kestrel.admin.site import AdminSite
from kestrel.admin.time_slices import make_cooperator
from kestrel.net.queue_server import QueueServer
from kestrel.session.settings import ServerControl


class AdminPort:
    """The listeners for admin clients, and the statistics that are recorded for them.

    `storage`, `is_ready` and `server_sets` are those of `ServerView`.
    """

    def __init__(
        self,
        core: QueueServer,
        control: ServerControl,
        storage: str,
        clock: IReactorTime,
        is_ready: Callable[[], bool],
        server_sets: Callable[[], Mapping[str, bool]],
    ) -> None:
        self._server_view = ServerView(core, control, storage, clock.seconds, is_ready, server_sets)
        self._cooperator = make_cooperator(clock)
        self._routes = Routes(self._server_view, clock, self._cooperator)
        self._clock = clock
        self._sites: list[AdminSite] = []

    def site(self, *, is_trusted: bool) -> AdminSite:
        """Return a factory for admin connections. Its clients are administrators if `is_trusted`."""
        site = AdminSite(self._server_view, self._routes.handle, self._clock, self._cooperator, is_trusted=is_trusted)
        self._sites.append(site)
        return site

    def start(self) -> None:
        """Begin to record statistics, now that the queues are loaded."""
        self._routes.start()

    def hang_up(self) -> None:
        """Stop serving: finish requests in progress, and accept no others."""
        self._routes.stop()
        for site in self._sites:
            site.hang_up()

    def abort(self) -> None:
        """Drop the remaining connections, and end the work for their responses."""
        for site in self._sites:
            site.abort()
        self._cooperator.stop()
