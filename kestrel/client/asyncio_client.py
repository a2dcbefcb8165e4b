"""A client for asyncio programs. It does not need Twisted.

    async with AsyncClient(["mq1", "mq2:22134"]) as client:
        await client.put("work", b"hello")
        async with client.reliable_get("work", timeout=5) as item:
            if item is not None:
                await work_on(item)     # an exception puts the item back at the head of the queue

Queue names are bytes, or strings that are sent as UTF-8. Items are bytes. Times are seconds. Errors are those of
`kestrel.client.errors`, and `kestrel.errors.BadQueueName`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any, Literal, Self, TypeVar
from weakref import WeakSet

from kestrel.address import Address
from kestrel.client.arguments import check_options
from kestrel.client.asyncio_connection import AsyncioConnection, AsyncioServer
from kestrel.client.choice import GETS_PER_SERVER, ServerChoices
from kestrel.client.dialect import make_dialect
from kestrel.client.errors import CannotConnect
from kestrel.client.members import Addresses, FollowedServers, parse_servers
from kestrel.client.plan import naming_server
from kestrel.client.requests import MAX_CONNECTIONS, AsyncRequests
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

T = TypeVar("T")


class AsyncClient(AsyncRequests[AsyncioServer, AsyncioConnection]):
    """A client of one server, or of several that share the work. Use it in one event loop.

    Servers, server sets and most options are those of `BlockingClient`. Requests may run concurrently: each uses a
    connection of its own, which is kept for the next one. A server gets at most `max_connections`. Further requests
    wait for `timeout_s` plus their own timeout, and then raise `AllInUse`.

    Cancelling a request closes its connection. A cancelled put may be stored. An item on its way to a cancelled `get`
    is lost; `reliable_get` returns it.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        protocol: Literal["memcache", "thrift"] = "memcache",
        *,
        tls: TlsOptions | None = None,
        timeout_s: float = 10.0,
        repeats: bool = False,
        gets_per_server: int = GETS_PER_SERVER,
        max_connections: int = MAX_CONNECTIONS,
        max_item_bytes: int = MAX_ITEM_BYTES,
        random: Random | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        check_options(timeout_s, tls)
        if max_connections < 1:
            raise ValueError("max_connections must be at least 1")
        self._dialect = make_dialect(protocol, max_item_bytes)
        self._repeats = repeats
        self._timeout_s = timeout_s
        self._tls = None if tls is None else tls.context()
        self._server_name = None if tls is None else tls.server_name
        self._max_connections = max_connections
        self._members = parse_servers(servers, protocol, timeout_s)
        self._choices = ServerChoices(random or Random(), seconds, gets_per_server, self._members.no_server_reason)
        self._met: Addresses | None = None
        self._by_address: dict[Address, AsyncioServer] = {}
        self._left: WeakSet[AsyncioServer] = WeakSet()
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections permanently, and stop following a server set. Requests in progress fail."""
        self._is_closed = True
        for server in (*self._by_address.values(), *self._left):
            server.close()
        if isinstance(self._members, FollowedServers):
            await asyncio.to_thread(self._members.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Servers and connections.

    @property
    def _is_alone(self) -> bool:
        return self._members.is_alone

    async def _meet(self) -> None:
        if self._is_closed:
            raise CannotConnect("the client is closed")
        addresses = self._members.known
        if addresses is None:
            addresses = await asyncio.to_thread(self._members.wait)
        if addresses is self._met:
            return
        self._met = addresses
        before = self._by_address
        self._by_address = {each: before.pop(each) if each in before else self._make(each) for each in addresses.all}
        for server in before.values():
            self._left.add(server)
            server.leave()
        self._choices.use(*([self._by_address[each] for each in addresses_] for addresses_ in addresses))

    def _make(self, address: Address) -> AsyncioServer:
        return AsyncioServer(address, self._timeout_s, self._tls, self._server_name, self._max_connections)

    async def _take(self, server: AsyncioServer, wait_ms: int = 0) -> AsyncioConnection:
        return await server.take(wait_ms)

    def _give_back(self, server: AsyncioServer, connection: AsyncioConnection) -> None:
        server.give_back(connection)

    async def _share(self, server: AsyncioServer, ask: Callable[[AsyncioConnection], Awaitable[T]]) -> T:
        with naming_server(server):
            async with self._own(server) as connection:
                return await ask(connection)

    async def _all(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        results = await asyncio.gather(*coroutines, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]
