"""The members of a server set as the servers of the Twisted client. The reactor never waits for ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, TimeoutError

from kestrel.address import Address
from kestrel.client.errors import CannotConnect, NoServer
from kestrel.client.members import Follow, StartedFollower, addresses_of, follow_zookeeper
from kestrel.client.roster import Roster
from kestrel.client.server import Server
from kestrel.cluster.uri import ServerSetUri

if TYPE_CHECKING:  # it imports kazoo, which is an extra
    from kestrel.cluster.follower import Members


class MemberServers:
    """Has a roster be the members that speak a protocol, from when somebody first wants to know who they are.

    `make` makes the server at an address; one that stays in the sets stays the same.
    """

    def __init__(
        self,
        reactor: Any,
        uri: ServerSetUri,
        protocol: str,
        timeout_s: float,
        roster: Roster,
        make: Callable[[Address], Server],
        follow: Follow = follow_zookeeper,
    ) -> None:
        self._reactor = reactor
        self._uri = uri
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._roster = roster
        self._make = make
        self._follow = follow
        self._follower: StartedFollower | None = None
        self._servers: dict[Address, Server] = {}
        self._is_known = False
        self._is_closed = False
        self._waiting: set[Deferred[None]] = set()

    async def known(self) -> None:
        """Return when it is known who they are. After `timeout_s` it is a `NoServer`; requests come again to ask."""
        if self._is_closed:
            raise self._closed()
        if self._is_known:
            return
        if self._follower is None:
            try:
                self._follower = self._follow(self._uri, self._changed)
            except OSError as error:  # a file of TLS, which was there before
                raise NoServer(f"{self._uri}: {error}") from error
        follower = self._follower
        waiting: Deferred[None] = Deferred()
        self._waiting.add(waiting)
        try:
            await waiting.addTimeout(self._timeout_s, self._reactor)
        except TimeoutError:
            raise NoServer(f"{self._uri}: {follower.problem}") from None
        finally:
            self._waiting.discard(waiting)

    def _changed(self, members: Members) -> None:
        # In the follower's thread.
        self._reactor.callFromThread(self._use, members)

    def _use(self, members: Members) -> None:
        if self._is_closed:
            return
        reads, writes = addresses = addresses_of(members, self._protocol)
        before = self._servers
        self._servers = {address: before.get(address) or self._make(address) for address in addresses.all}
        self._roster.use([self._servers[each] for each in reads], [self._servers[each] for each in writes])
        self._is_known = True
        for waiting in list(self._waiting):
            if not waiting.called:
                waiting.callback(None)

    async def close(self) -> None:
        """The end. Who still waits fails at once; returns when ZooKeeper has been told, or does not answer."""
        self._is_closed = True
        for waiting in list(self._waiting):
            if not waiting.called:
                waiting.errback(self._closed())
        follower, self._follower = self._follower, None
        if follower is not None:
            await self._in_a_thread(follower.close)

    def _in_a_thread(self, work: Callable[[], None]) -> Deferred[None]:
        # Of its own: the reactor's pool may have ended before, when a program closes its clients as it shuts down.
        done: Deferred[None] = Deferred()

        def run() -> None:
            try:
                work()
            finally:
                self._reactor.callFromThread(done.callback, None)

        Thread(target=run, name="server-set-close", daemon=True).start()
        return done

    def _closed(self) -> CannotConnect:
        return CannotConnect(f"{self._uri}: the client is closed")
