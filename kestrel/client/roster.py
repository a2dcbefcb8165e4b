"""The servers of the Twisted client: those to ask, those that have left, and how they follow a server set."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from twisted.internet.defer import Deferred, TimeoutError

from kestrel.address import Address
from kestrel.client.choice import NoServerReasons, ServerChoices
from kestrel.client.errors import CannotConnect, NoServer
from kestrel.client.members import Follow, addresses_of, follow_zookeeper
from kestrel.client.server import Server
from kestrel.cluster.uri import ServerSetUri

if TYPE_CHECKING:  # it imports kazoo, which is an extra
    from kestrel.cluster.follower import Follower, Members


class Roster(ServerChoices[Server]):
    """The servers to ask, none at first.

    A server that leaves gets no new requests. Its connections end when the requests in progress have finished.
    """

    def __init__(
        self, random: Random, seconds: Callable[[], float], gets_per_server: int, no_server_reason: NoServerReasons
    ) -> None:
        super().__init__(random, seconds, gets_per_server, no_server_reason)
        self._left: WeakSet[Server] = WeakSet()
        """Servers that have left and may still have requests in progress."""

    def use(self, reads: Sequence[Server], writes: Sequence[Server]) -> None:
        """Use these servers for gets and puts from now on. Other servers leave."""
        before = self.servers
        super().use(reads, writes)
        for server in set(before).difference(self.servers):
            self._left.add(server)
            server.leave()

    def all_backing_off(self) -> bool:
        """Return True if all servers are backing off after failed connection attempts."""
        return all(server.is_backing_off for server in self.servers)

    def close(self) -> list[Coroutine[Any, Any, None]]:
        """Make all further requests fail. Return coroutines that close the connections and wait for their end."""
        servers = [*self.servers, *self._left]
        for server in servers:  # a request that fails at one of them must not move to the next
            server.shut()
        return [server.close() for server in servers]


class MemberServers:
    """The servers of a roster that follow the members of a server set, from the first call of `known`.

    `make` creates the server for an address. A member that stays in the sets keeps its server.
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
        self._follower: Follower | None = None
        self._servers: dict[Address, Server] = {}
        self._is_known = False
        self._is_closed = False
        self._waiting: set[Deferred[None]] = set()

    async def known(self) -> None:
        """Wait until the members are known. Raises `NoServer` after `timeout_s`, and `CannotConnect` once closed."""
        if self._is_closed:
            raise self._closed()
        if self._is_known:
            return
        if self._follower is None:
            try:
                self._follower = self._follow(self._uri, self._changed)
            except OSError as error:  # a TLS file that has become unusable
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
        # Called in the follower's thread.
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
        """Stop following. Waiting requests fail at once. Return when the ZooKeeper session has been closed or does not
        answer.
        """
        self._is_closed = True
        for waiting in list(self._waiting):
            if not waiting.called:
                waiting.errback(self._closed())
        follower, self._follower = self._follower, None
        if follower is not None:
            await self._in_a_thread(follower.close)

    def _in_a_thread(self, work: Callable[[], None]) -> Deferred[None]:
        # Not in the reactor's thread pool, which may have stopped if the program closes its clients at shutdown.
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
