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
import select
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from random import Random
from typing import Any, Literal, Self, TypeVar, cast
from weakref import WeakSet

from kestrel.address import Address
from kestrel.client.arguments import check_options
from kestrel.client.call import NOT_YET, Call, NotYet, Stream
from kestrel.client.choice import GETS_PER_SERVER
from kestrel.client.dialect import make_dialect
from kestrel.client.errors import AllInUse, CannotConnect, ConnectionFailed, Refused, ServerError
from kestrel.client.members import FollowedServers, Roster, parse_servers
from kestrel.client.requests import MAX_CONNECTIONS, AsyncRequests, NextValue
from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

T = TypeVar("T")


class AsyncioConnection(asyncio.Protocol):
    """A connection to one server for one request at a time.

    The server may be silent for `timeout_s` while it owes an answer, plus the time for which a request lets it wait.
    Any exception closes the connection, also a cancellation: a later request must not get the reply of an earlier one.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._buffer = ReceiveBuffer()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._sends = False
        """Whether a part of the last request is still in the transport's buffer."""
        self._is_asking = False
        self._end: str | None = None
        """Why the connection has ended, or an empty string if the server closed it."""

    @classmethod
    async def to(
        cls, address: Address, timeout_s: float, tls: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> Self:
        """Connect to `address`. Raises `CannotConnect`. With `tls` the server's certificate must be for `server_name`
        or the host.
        """
        name = None if tls is None else server_name or address.host
        connecting = asyncio.get_running_loop().create_connection(
            lambda: cls(timeout_s), address.host, address.port, ssl=tls, server_hostname=name
        )
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await connecting
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
            why = f"no connection within {timeout_s:g} s" if isinstance(error, TimeoutError) else error
            raise CannotConnect(f"{address}: {why}") from error
        return connection

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # `pause_writing` is called while anything is in the buffer

    def data_received(self, data: bytes) -> None:
        """Keep data for the request that waits for it. Stop reading if none does."""
        self._buffer.receive(data)
        if self._transport is not None and self._waiting is None:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is None:
            self._end = "" if exc is None else str(exc)
        self._wake()

    def pause_writing(self) -> None:
        self._sends = True

    def resume_writing(self) -> None:
        self._sends = False

    # Requests.

    async def ask(self, call: Call[T]) -> T:
        """Send a request and return the value of its reply, or raise the error of the call.

        Raises `CannotConnect` if the server cannot have received the whole request.
        """
        self._begin(call.request)
        value = await self._reply(call.read, call.connection_ended, call.wait_ms)
        self._is_asking = False
        return value

    def ask_last(self, call: Call[None]) -> None:
        if self.is_usable:
            self._begin(call.request)
        self.close()

    async def answers(self, calls: Sequence[Call[T]]) -> list[T | Refused | ConnectionFailed]:
        """Send several requests. Return their results in order, with refusals and connection failures as values.

        The results end with a connection failure. It is `CannotConnect` if the server closed the connection with the
        last refusal, and so has not processed the rest.
        """
        answers: list[T | Refused | ConnectionFailed] = []
        try:
            self._begin(b"".join([call.request for call in calls]))
            for call in calls:
                try:
                    answers.append(await self._reply(call.read, call.connection_ended, call.wait_ms))
                except Refused as refusal:
                    answers.append(refusal)
        except ConnectionFailed as failure:
            is_refused = bool(answers) and isinstance(answers[-1], ServerError)
            if is_refused and self._end == "" and not self._buffer.size:
                answers.append(CannotConnect("the server closed the connection because of an earlier request"))
            else:
                answers.append(failure)
        self._is_asking = any(isinstance(answer, Refused) for answer in answers)  # then it cannot be used again
        return answers

    def stream(self, stream: Stream[T]) -> NextValue[T]:
        values = self._values(stream)
        return lambda: anext(values, None)

    async def _values(self, stream: Stream[T]) -> AsyncGenerator[T, None]:
        self._begin(stream.request)
        while (value := await self._reply(stream.read, stream.connection_ended, stream.wait_ms)) is not None:
            yield value
        self._is_asking = False

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent: the connection is open, owes no answer, and has no unexpected data.

        False after a refusal, because the server may be about to close the connection.
        """
        return self._end is None and not self._is_asking and not self._buffer.size

    def is_at_rest(self) -> bool:
        """Return True if the connection can be used, and the event loop has missed neither data nor its end."""
        if self.is_usable and self._transport is not None:
            unread = select.poll()
            unread.register(self._transport.get_extra_info("socket"), select.POLLIN)
            return not unread.poll(0)
        return False

    def close(self) -> None:
        """Close the connection when the buffered data has been sent."""
        if self._end is None:
            self._end = "the connection was closed"
        if self._transport is not None:
            self._transport.close()
        self._wake()

    def drop(self) -> None:
        self.close()
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, request: bytes) -> None:
        if not self.is_usable or self._transport is None:
            raise CannotConnect("the connection has ended")
        self._is_asking = True
        self._transport.write(request)

    async def _reply(
        self, read: Callable[[ReceiveBuffer], T | NotYet], connection_ended: Callable[[], T], wait_ms: int
    ) -> T:
        """Return the value of a reply, or the next value of a stream. Drop the connection after most errors.

        After a refusal, later replies can still be read.
        """
        try:
            while (value := read(self._buffer)) is NOT_YET:
                if self._end is not None:
                    self._raise_end()
                    return connection_ended()
                await self._changed(wait_ms)
            return value
        except Refused:
            raise
        except BaseException:
            self.drop()
            raise

    def _raise_end(self) -> None:
        """Raise the error for a connection that has ended, unless the server closed it in order."""
        if self._sends:
            raise CannotConnect(
                f"the connection ended while the request was being sent: {self._end or 'by the server'}"
            )
        if self._end:
            raise ConnectionFailed(f"no answer: {self._end}")

    async def _changed(self, wait_ms: int) -> None:
        limit_s = self._timeout_s + wait_ms / 1000
        self._waiting = asyncio.get_running_loop().create_future()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        try:
            async with asyncio.timeout(limit_s):
                await self._waiting
        except TimeoutError as error:
            kind = CannotConnect if self._sends else ConnectionFailed
            raise kind(f"no answer: timed out after {limit_s:g} s") from error
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class AsyncioServer:
    """The connections to one server, at most `max_connections` in use at a time. Unused ones are kept."""

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        max_connections: int,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._tls = tls
        self._server_name = server_name
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[AsyncioConnection] = []
        self._all: WeakSet[AsyncioConnection] = WeakSet()
        self._has_left = False
        self._is_closed = False

    def __str__(self) -> str:
        return str(self._address)

    async def take(self, wait_ms: int = 0) -> AsyncioConnection:
        """Return a connection for a request that may wait `wait_ms`; pass it to `give_back`. Raises `CannotConnect`."""
        try:
            async with asyncio.timeout(self._timeout_s + wait_ms / 1000):
                await self._free.acquire()
        except TimeoutError:
            raise AllInUse(f"{self}: all connections to this server are in use") from None
        try:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_at_rest():
                    return connection
                connection.close()
            connection = await AsyncioConnection.to(self._address, self._timeout_s, self._tls, self._server_name)
            if self._is_closed:
                connection.drop()
                raise CannotConnect(f"{self}: the client is closed")
        except BaseException:
            self._free.release()
            raise
        self._all.add(connection)
        return connection

    def give_back(self, connection: AsyncioConnection) -> None:
        """Keep a connection for the next request if it is usable. Otherwise close it."""
        if connection.is_usable and not (self._has_left or self._is_closed):
            self._idle.append(connection)
        else:
            connection.close()
        self._free.release()

    def leave(self) -> None:
        """Close unused connections now, and the others after their request: the server has left the server set."""
        self._has_left = True
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        self._is_closed = True
        self._idle.clear()
        for connection in list(self._all):
            connection.drop()


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
        context = None if tls is None else tls.context()
        server_name = None if tls is None else tls.server_name

        def make(address: Address) -> AsyncioServer:
            return AsyncioServer(address, timeout_s, context, server_name, max_connections)

        self._members = parse_servers(servers, protocol, timeout_s)
        chance = random or Random()
        self._roster = self._met = Roster(self._members, make, self._leave, chance, seconds, gets_per_server)
        self._left: WeakSet[AsyncioServer] = WeakSet()
        self._is_closed = False

    async def close(self) -> None:
        """Close all connections permanently, and stop following a server set. Requests in progress fail."""
        self._is_closed = True
        self._roster.keep_servers()
        for server in (*self._roster.servers, *self._left):
            server.close()
        if isinstance(self._members, FollowedServers):
            await asyncio.to_thread(self._members.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Servers and connections.

    async def _meet(self) -> None:
        if self._is_closed:
            raise CannotConnect("the client is closed")
        known = self._members.known
        self._met.meet(await asyncio.to_thread(self._members.wait) if known is None else known)

    def _leave(self, server: AsyncioServer) -> None:
        self._left.add(server)
        server.leave()

    async def _take(self, server: AsyncioServer, wait_ms: int = 0) -> AsyncioConnection:
        return await server.take(wait_ms)

    def _give_back(self, server: AsyncioServer, connection: AsyncioConnection) -> None:
        server.give_back(connection)

    async def _all(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        results = await asyncio.gather(*coroutines, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]
