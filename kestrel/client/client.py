"""A client for Twisted programs.

    client = Client(reactor, ["mq1", "mq2:22134"])
    await client.put("work", b"hello")
    async with client.reliable_get("work", timeout=5) as item:
        if item is not None:
            await work_on(item)         # an exception puts the item back at the head of the queue
    await client.close()

Queue names are bytes, or strings that are sent as UTF-8. Items are bytes. Times are seconds. Errors are those of
`kestrel.client.errors`, and `kestrel.errors.BadQueueName`. The methods are coroutines: await them in coroutines, or
turn them into Deferreds with `Deferred.fromCoroutine`, for example in `inlineCallbacks`.

To test a program without a port, connect a client to a server in memory with `kestrel.testing.network`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar
from weakref import WeakSet

from twisted.internet.defer import Deferred, DeferredList, TimeoutError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python.failure import Failure

from kestrel.address import DEFAULT_PORTS, Address, parse_address
from kestrel.client.arguments import check_options
from kestrel.client.choice import GETS_PER_SERVER, ServerChoices, naming_server
from kestrel.client.dialect import make_dialect
from kestrel.client.errors import CannotConnect, NoServer
from kestrel.client.members import Addresses, FollowedServers, Roster, follow_zookeeper, parse_single_server_set
from kestrel.client.openssl import server_endpoint, tls_endpoint
from kestrel.client.pipeline import ClosedByEarlierRefusal, Pipeline
from kestrel.client.requests import MAX_CONNECTIONS, AsyncRequests
from kestrel.client.server import Server, fire_all
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

if TYPE_CHECKING:  # it imports kazoo, which is an extra
    from kestrel.cluster.follower import Members

T = TypeVar("T")

Where: TypeAlias = str | IStreamClientEndpoint
"""A server: ``host``, ``host:port``, ``[::1]:port``, or a Twisted client endpoint."""


class Client(AsyncRequests[Server, Pipeline]):
    """A client of one server, or of several that share the work.

    With several servers, a put is sent to a random one, and to another if that refuses or fails. Gets stay with one
    server for `gets_per_server` requests, or until it is empty or fails. A server that failed is not used for a while.
    If all servers have failed, requests wait until one may be tried again.

    `servers` can also be one server set, ``zk://zk1,zk2/services/kestrel``. The client follows its members from the
    first request to `close`. Puts go to the write set, gets to the read set, and requests for all servers to both.
    Until ZooKeeper has supplied the members, requests wait for up to `timeout_s`, and then raise `NoServer`.

    `timeout_s` limits the time to connect, and how long a server may be silent while it owes an answer. A
    get's `timeout` is added to it.

    Each server gets at most `max_connections` connections. One is shared by all requests that are answered at once.
    Gets with a timeout, reliable reads and monitors use a connection each, which is kept for reuse for 30 seconds.
    Further requests wait for a free connection, for `timeout_s` plus their own timeout, and then raise `CannotConnect`.

    If a connection ends before the reply to a put, the item may or may not have been stored. The put then raises
    `ConnectionFailed`. With `repeats` it is tried again instead, and the item may be stored twice.

    `tls` applies to servers given as addresses; with an endpoint it must have a `server_name`. `reactor` provides the
    time and connects to addresses (under asyncio, use Twisted's asyncioreactor). `random` is for tests.

    A Deferred made of a coroutine can be cancelled. A cancelled put may still be stored.
    """

    def __init__(
        self,
        reactor: Any,
        servers: Where | Sequence[Where],
        protocol: Literal["memcache", "thrift"] = "memcache",
        *,
        tls: TlsOptions | None = None,
        timeout_s: float = 10.0,
        repeats: bool = False,
        gets_per_server: int = GETS_PER_SERVER,
        max_connections: int = MAX_CONNECTIONS,
        max_item_bytes: int = MAX_ITEM_BYTES,
        random: Random | None = None,
    ) -> None:
        if max_connections < 2:
            raise ValueError("max_connections must be at least 2: one shared, and one for requests that wait")
        check_options(timeout_s, tls)
        self._dialect = make_dialect(protocol, max_item_bytes)
        self._repeats = repeats
        self._reactor = reactor
        self._timeout_s = timeout_s
        self._followed: FollowedServers | None = None
        self._waiting: set[Deferred[Addresses]] = set()
        """Requests that wait for the members of the server set."""
        self._left: WeakSet[Server] = WeakSet()
        """Servers that have left and may still have requests in progress."""
        self._is_closed = False
        chance = random or Random()
        self._met: Roster[Server] | None = None
        self._roster: ServerChoices[Server]
        if isinstance(servers, str) or IStreamClientEndpoint.providedBy(servers):
            servers = [servers]

        make = partial(
            Server,
            clock=reactor,
            timeout_s=timeout_s,
            max_connections=max_connections,
            random=chance,
            waits_for_backoff=lambda: all(server.is_backing_off for server in self._roster.servers),
            closes_connection=self._dialect.closes_connection,
        )

        def make_member(address: Address) -> Server:
            return make(str(address), server_endpoint(reactor, address, tls, timeout_s))

        server_set = parse_single_server_set(servers)
        if server_set is not None:
            self._followed = FollowedServers(server_set, protocol, timeout_s, follow_zookeeper, self._members_changed)
            self._met = Roster(self._followed, make_member, self._leave, chance, reactor.seconds, gets_per_server)
            self._roster = self._met
            return
        endpoints = _endpoints(reactor, servers, DEFAULT_PORTS[protocol], tls, timeout_s)
        named = [make(name, endpoint) for name, endpoint in endpoints.items()]
        if not named:
            raise ValueError("there must be at least one server")
        self._roster = ServerChoices(chance, reactor.seconds, gets_per_server)
        self._roster.use(named, named)

    async def close(self) -> None:
        """Close all connections permanently, and wait until they have ended. Requests in progress fail at once."""
        self._is_closed = True
        self._roster.keep_servers()
        servers = [*self._roster.servers, *self._left]
        for server in servers:  # a request that fails at one of them must not move to the next
            server.shut()
        fire_all(self._waiting, lambda: Failure(self._closed()))
        ends = [server.close() for server in servers]
        if self._followed is not None and self._followed.is_following:
            ends.append(self._stop_following(self._followed))
        await self._all(ends)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # The members of a server set.

    async def _meet(self) -> None:
        if self._followed is None or self._met is None:
            return
        if self._is_closed:
            raise self._closed()
        known = self._followed.known
        if known is None:
            follower = self._followed.follower()
            waiting: Deferred[Addresses] = Deferred()
            self._waiting.add(waiting)
            try:
                known = await waiting.addTimeout(self._timeout_s, self._reactor)
            except TimeoutError:
                raise NoServer(f"{self._followed.uri}: {follower.problem}") from None
            finally:
                self._waiting.discard(waiting)
        self._met.meet(known)

    def _members_changed(self, members: Members) -> None:
        # Called in the follower's thread.
        self._reactor.callFromThread(self._use_members)

    def _use_members(self) -> None:
        self._roster.refresh()
        known = None if self._followed is None else self._followed.known
        if known is not None:
            fire_all(self._waiting, lambda: known)

    def _leave(self, server: Server) -> None:
        self._left.add(server)
        server.leave()

    async def _stop_following(self, followed: FollowedServers) -> None:
        # Not in the reactor's thread pool, which may have stopped if the program closes its clients at shutdown.
        done: Deferred[None] = Deferred()

        def run() -> None:
            try:
                followed.close()
            finally:
                self._reactor.callFromThread(done.callback, None)

        Thread(target=run, name="server-set-close", daemon=True).start()
        await done

    def _closed(self) -> CannotConnect:
        assert self._followed is not None
        return CannotConnect(f"{self._followed.uri}: the client is closed")

    # Servers and connections.

    async def _take(self, server: Server, wait_ms: int = 0) -> Pipeline:
        return await server.take(wait_ms)

    def _give_back(self, server: Server, connection: Pipeline) -> None:
        server.give_back(connection)

    async def _all(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return await run_all(coroutines)

    async def _share(self, server: Server, ask: Callable[[Pipeline], Awaitable[T]]) -> T:
        """Ask over the shared connection. If the refusal of an earlier request closes it, ask again, up to twice.

        The third attempt uses an exclusive connection, where no other request can interfere.
        """
        with naming_server(server):
            for _ in range(2):
                with suppress(ClosedByEarlierRefusal):
                    return await ask(await server.shared())
            async with self._own(server) as connection:
                return await ask(connection)


async def run_all(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines of Twisted at the same time until all have ended. Return their values, or raise the first failure
    in their order.
    """
    running = [Deferred.fromCoroutine(each) for each in coroutines]
    results: list[tuple[bool, Any]] = await DeferredList(running, consumeErrors=True)
    for _, result in results:
        if isinstance(result, Failure):
            result.raiseException()
    return [result for _, result in results]


def _endpoints(
    reactor: Any, servers: Sequence[Where], default_port: int, tls: TlsOptions | None, timeout_s: float
) -> dict[str, IStreamClientEndpoint]:
    """Return an endpoint for each server, by its name in errors and results. Duplicate addresses are merged.

    Raises ValueError for an invalid address, or OSError for an unusable TLS file.
    """
    endpoints: dict[str, IStreamClientEndpoint] = {}
    for number, server in enumerate(servers):
        if isinstance(server, str):
            address = parse_address(server, default_port)
            endpoints[str(address)] = server_endpoint(reactor, address, tls, timeout_s)
        else:
            if tls is not None and tls.server_name is None:
                raise ValueError("TlsOptions needs a server_name when a server is given as an endpoint")
            endpoints[f"servers[{number}]"] = server if tls is None else tls_endpoint(tls, "", server)
    return endpoints
