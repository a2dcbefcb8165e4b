"""The requests of clients whose methods are coroutines, on connections of any event loop. Imports no Twisted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from kestrel.client.arguments import Name, delay_ms, expiry_ms, name_bytes, to_milliseconds
from kestrel.client.call import Call, Stream
from kestrel.client.choice import RandomChoice, ServerChoices, naming_server
from kestrel.client.dialect import Dialect
from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed, OpenReadsError, Refused
from kestrel.client.put_batch import PutBatch, batches
from kestrel.client.thrift import OpenRead
from kestrel.names import check_queue_name

T = TypeVar("T")

MAX_CONNECTIONS: Final = 100

NextValue: TypeAlias = Callable[[], Awaitable[T | None]]
"""Function that reads the next value of a stream from the network. The value is None at the end of the stream."""


class AsyncConnection(Protocol):
    """A connection to one server."""

    def ask(self, call: Call[T]) -> Awaitable[T]:
        """Send a request. Return the value of its reply, or fail with the error of the call."""

    def ask_last(self, call: Call[None]) -> None:
        """Send a request without waiting for its reply, and then close the connection."""

    async def answers(self, calls: Sequence[Call[T]]) -> list[T | Refused | ConnectionFailed]:
        """Send several requests. Return their results in order, with refusals and connection failures as values."""

    def stream(self, stream: Stream[T]) -> NextValue[T]:
        """Send a request that is answered with a sequence of values."""

    def drop(self) -> None:
        """Close the connection at once. Over memcache, the server returns open reads to their queues."""


S = TypeVar("S", bound=Hashable)
C = TypeVar("C", bound=AsyncConnection)


class HeldRead(NamedTuple, Generic[S, C]):
    """An open read and its exclusive connection: a memcache confirm ends the oldest open read of a connection."""

    server: S
    connection: C
    queue: bytes
    read: OpenRead


class AsyncRequests(ABC, Generic[S, C]):
    """The requests of a client. Its subclasses make connections `C` to servers `S`, and wait."""

    _dialect: Dialect
    _repeats: bool
    _roster: ServerChoices[S]

    # Putting.

    async def put(
        self, queue: Name, data: bytes, expires_in: float | None = None, *, delay: float | None = None
    ) -> bool:
        """Put an item. Return True if it was stored, False if a limit of the queue refused it.

        It expires after `expires_in` seconds; memcache rounds up to whole seconds, fewer than 1,000,000. It becomes
        visible after `delay` seconds. If every server refuses or fails, the error of the last one is raised.
        """
        name, times = name_bytes(queue), (expiry_ms(expires_in), delay_ms(delay))

        async def ask(server: S) -> int:
            [(_, call)] = self._dialect.put(name, [data], *times)
            return await self._ask(server, call)

        return bool(await self._somewhere(self._roster.writes, ask, repeats=self._repeats))

    async def put_many(
        self, queue: Name, items: Iterable[bytes], expires_in: float | None = None, *, delay: float | None = None
    ) -> int:
        """Put items, and return how many were stored. A limit of the queue may refuse the others individually.

        Items are sent in batches. Each batch is sent to one server, and items that it refuses to another. If this
        raises, any of the items may have been stored. On thrift a `ServerError` applies to a whole batch. After a disk
        failure part of that batch may be stored, and then be stored twice.
        """
        name, times = name_bytes(queue), (expiry_ms(expires_in), delay_ms(delay))
        stored = 0
        for batch in batches(items):
            stored += await self._put_batch(name, batch, times)
        return stored

    async def _put_batch(self, queue: bytes, items: Sequence[bytes], times: tuple[int, int]) -> int:
        check_queue_name(queue)  # before a connection is made
        batch = PutBatch(items)

        async def send(connection: C) -> None:
            sizes_and_calls = self._dialect.put(queue, batch.left, *times)
            answers = await connection.answers([call for _, call in sizes_and_calls])
            batch.answered([size for size, _ in sizes_and_calls], answers)

        await self._somewhere(self._roster.writes, lambda server: self._share(server, send), repeats=self._repeats)
        stored = batch.stored
        for data in batch.untried:
            stored += await self._put_batch(queue, [data], times)
        return stored

    # Getting.

    async def get(self, queue: Name, timeout: float = 0) -> bytes | None:
        """Remove an item from the queue and return it. Return None if there was none for `timeout` seconds.

        The item is lost if the connection or this program fails before it is processed. Cancelling a get with a timeout
        closes its connection; an item that the server sends before it notices is lost. Cancelling a get without a
        timeout loses its item, if there is one. Use `reliable_get` to lose nothing.

        With several servers, each is asked once without waiting, and then for one second at a time in turn until the
        timeout. The get can take longer than `timeout`: at each server, connecting and answering may take up to
        `timeout_s` each. It may also wait for a free connection if all `max_connections` are in use.
        """
        name = name_bytes(queue)

        async def ask(server: S, wait_ms: int) -> bytes | None:
            call = self._dialect.get(name, wait_ms)
            if not timeout:
                return await self._ask(server, call)
            with naming_server(server):
                async with self._own(server, wait_ms) as connection:  # a cancelled get drops this connection
                    return await connection.ask(call)

        return await self._search(ask, timeout)

    @asynccontextmanager
    async def reliable_get(self, queue: Name, timeout: float = 0, hold: float = 60.0) -> AsyncIterator[bytes | None]:
        """Take an item for the duration of an `async with` block. The value is None if there was none for `timeout`
        seconds.

        The end of the block confirms the item; an exception or cancellation returns it to the head of its queue. If
        this program dies the item is returned as well: on memcache at once, on thrift after `hold` seconds, the time
        limit for the confirm. If this is cancelled while the item is in transit, the item is returned in the same way.
        If it is cancelled during the confirm, the item is either confirmed or returned.

        The end raises `OpenReadsError` if the read was open for too long and the item has been returned, and
        `ConnectionFailed` if it may have been returned.
        """
        held = await self._open_read(queue, timeout, hold)
        if held is None:
            yield None
            return
        try:
            yield held.read.data
        except Exception:
            with suppress(ClientFailure):  # the server returns the item when the connection is gone
                await self._end_read(held, confirms=False)
            raise
        except BaseException:  # the coroutine is being closed and cannot await
            held.connection.ask_last(self._dialect.abort(held.queue, held.read))
            self._give_back(held.server, held.connection)
            raise
        await self._end_read(held, confirms=True)

    async def _open_read(self, queue: Name, timeout: float, hold: float) -> HeldRead[S, C] | None:
        name, hold_ms = name_bytes(queue), max(1, to_milliseconds(hold))  # with 0, thrift would not open a read

        async def ask(server: S, wait_ms: int) -> HeldRead[S, C] | None:
            call = self._dialect.open(name, wait_ms, hold_ms)
            with naming_server(server):
                connection = await self._take(server, wait_ms)
                read = None
                try:
                    read = await connection.ask(call)
                finally:
                    if read is None:
                        self._give_back(server, connection)
            return None if read is None else HeldRead(server, connection, name, read)

        return await self._search(ask, timeout)

    async def _end_read(self, held: HeldRead[S, C], *, confirms: bool) -> None:
        """End an open read. If its connection has ended and the read does not depend on it, use another connection.

        Then `OpenReadsError` may mean that the first attempt has ended the read: its failure is raised instead, unless
        that attempt was certainly not carried out.
        """
        make_call = self._dialect.confirm if confirms else self._dialect.abort
        try:
            with naming_server(held.server):
                try:
                    await held.connection.ask(make_call(held.queue, held.read))
                except ConnectionFailed as failure:
                    if self._dialect.reads_are_of_connection:
                        raise
                    try:
                        await self._ask(held.server, make_call(held.queue, held.read))
                    except OpenReadsError:
                        if isinstance(failure, CannotConnect):
                            raise
                        raise failure from None
        except BaseException as error:
            if not isinstance(error, ClientFailure):  # a later confirm on this connection would confirm this read
                held.connection.drop()
            raise
        finally:
            self._give_back(held.server, held.connection)

    async def peek(self, queue: Name) -> bytes | None:
        """Return the head of the queue without removing it, from the first server that has an item. Return None if none
        has.
        """
        name = name_bytes(queue)
        return await self._search(lambda server, _: self._ask(server, self._dialect.peek(name)), 0)

    async def monitor(self, queue: Name, seconds: int, max_items: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield items of one server as they arrive, for `seconds` or up to `max_items`. Only on memcache.

        The server's maxOpenTransactions also limits the number of items; None means that only it does. The items are
        open reads until all are confirmed together at the end. If the loop is left early, all return to the queue; use
        `contextlib.aclosing` to control when. Items are read from the network only as the loop requests them.

        If a server refuses or fails before its first item, another one is monitored. If it had no item, the next call
        chooses another one.
        """
        name = name_bytes(queue)
        calls = self._dialect.memcache()
        count = 0

        async def begin(server: S) -> tuple[S, C, bytes | None, NextValue[bytes]]:
            stream = calls.monitor(name, seconds, max_items)
            with naming_server(server):
                connection = await self._take(server)
                next_item = connection.stream(stream)
                try:
                    return server, connection, await next_item(), next_item
                except BaseException:
                    self._give_back(server, connection)
                    raise

        # Before the first item, another server can be asked without duplicates.
        server, connection, item, next_item = await self._somewhere(self._roster.reads, begin, repeats=True)
        if item is None:
            self._roster.reads.was_empty(server)
        is_over = False
        try:
            with naming_server(server):
                while item is not None:
                    count += 1
                    yield item
                    item = await next_item()
                if count:
                    await connection.ask(calls.confirm(name, count))
            is_over = True
        finally:
            if not is_over:
                connection.drop()  # returns open reads to the queue
            self._give_back(server, connection)

    # Queues and servers. All servers are asked, even if one fails; then the first failure is raised.

    async def flush(self, queue: Name) -> None:
        """Drop all items of the queue on all servers, except open reads."""
        name = name_bytes(queue)
        await self._of_all(lambda: self._dialect.flush(name))

    async def delete(self, queue: Name) -> None:
        """Delete the queue and its items on all servers."""
        name = name_bytes(queue)
        await self._of_all(lambda: self._dialect.delete(name))

    async def stats(self) -> dict[str, dict[str, str]]:
        """Return the statistics of each server, by ``host:port``. Only on memcache.

        Endpoints are named by their position in `servers`: the second one is ``servers[1]``.
        """
        return await self._of_all(self._dialect.memcache().stats)

    async def dump_config(self, *queues: Name) -> dict[str, dict[bytes, dict[str, str]]]:
        """Return the settings of the given queues and aliases, or of all, by server as in `stats`. Only on memcache."""
        calls, names = self._dialect.memcache(), [name_bytes(queue) for queue in queues]
        return await self._of_all(lambda: calls.dump_config(*names))

    async def status(self) -> dict[str, str]:
        """Return the status of each server, by name as in `stats`: Up, WriteAvoid, ReadOnly or Quiescent.

        Thrift has no WriteAvoid, and reports it as NotConfigured.
        """
        return await self._of_all(self._dialect.status)

    async def set_status(self, status: str) -> None:
        """Set the status of all servers: Up, ReadOnly or Quiescent, or on memcache WriteAvoid. Case does not matter."""
        await self._of_all(lambda: self._dialect.set_status(status))

    async def version(self) -> dict[str, str]:
        """Return the release of each server, by name as in `stats`."""
        return await self._of_all(self._dialect.version)

    # Choosing servers.

    async def _ask(self, server: S, call: Call[T]) -> T:
        return await self._share(server, lambda connection: connection.ask(call))

    async def _of_all(self, make_call: Callable[[], Call[T]]) -> dict[str, T]:
        await self._meet()
        servers = self._roster.all_servers()
        calls = [make_call() for _ in servers]
        values = await self._all([self._ask(server, call) for server, call in zip(servers, calls, strict=True)])
        return {str(server): value for server, value in zip(servers, values, strict=True)}

    async def _somewhere(self, choice: RandomChoice[S], ask: Callable[[S], Awaitable[T]], *, repeats: bool) -> T:
        await self._meet()
        return await self._roster.somewhere(choice, ask, repeats=repeats)

    async def _search(self, ask: Callable[[S, int], Awaitable[T | None]], timeout: float) -> T | None:
        await self._meet()
        return await self._roster.search(ask, to_milliseconds(timeout))

    # Servers and connections.

    @abstractmethod
    async def _meet(self) -> None:
        """Wait until the servers are known. Raises `NoServer`."""

    @abstractmethod
    async def _take(self, server: S, wait_ms: int = 0) -> C:
        """Return a connection for exclusive use by a request that may wait `wait_ms`. Raises `CannotConnect`."""

    @abstractmethod
    def _give_back(self, server: S, connection: C) -> None:
        """Keep a connection for the next request, or close it."""

    async def _share(self, server: S, ask: Callable[[C], Awaitable[T]]) -> T:
        """Ask a request that is answered at once, which may share a connection with others."""
        with naming_server(server):
            async with self._own(server) as connection:
                return await ask(connection)

    @abstractmethod
    async def _all(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run all coroutines to their end, and return their values. If any failed, raise the first failure."""

    @asynccontextmanager
    async def _own(self, server: S, wait_ms: int = 0) -> AsyncIterator[C]:
        """Provide an exclusive connection for the duration of an `async with` block."""
        connection = await self._take(server, wait_ms)
        try:
            yield connection
        finally:
            self._give_back(server, connection)
