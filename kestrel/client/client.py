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

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, TypeVar

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python.failure import Failure

from kestrel.address import DEFAULT_PORTS, Address, parse_address
from kestrel.client.arguments import Name, check_options, expiry_ms, name_bytes, to_milliseconds
from kestrel.client.call import Call
from kestrel.client.choice import GETS_PER_SERVER, NoServerReasons, RandomChoice
from kestrel.client.dialect import make_dialect
from kestrel.client.errors import (
    ClientFailure,
    ConnectionFailed,
    Refused,
)
from kestrel.client.members import no_server_reasons, parse_single_server_set
from kestrel.client.openssl import tls_endpoint
from kestrel.client.pipeline import ClosedByEarlierRefusal, Pipeline, StreamItems
from kestrel.client.plan import Plan, end_read, follow_async, naming_server, search, somewhere
from kestrel.client.put_batch import PutBatch, batches
from kestrel.client.roster import MemberServers, Roster
from kestrel.client.server import Server
from kestrel.client.thrift import OpenRead
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

T = TypeVar("T")

Where: TypeAlias = str | IStreamClientEndpoint
"""A server: ``host``, ``host:port``, ``[::1]:port``, or a Twisted client endpoint."""

MAX_CONNECTIONS: Final = 100


class _AsyncOpenRead(NamedTuple):
    """An open read and its exclusive connection: a memcache confirm ends the oldest open read of a connection."""

    server: Server
    connection: Pipeline
    read: OpenRead


class _AsyncMonitor(NamedTuple):
    """A running monitor: its first item, or None if it had none, and the rest."""

    server: Server
    connection: Pipeline
    first: bytes | None
    items: StreamItems[bytes]


class Client:
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
        chance = random or Random()
        if isinstance(servers, str) or IStreamClientEndpoint.providedBy(servers):
            servers = [servers]
        server_set = parse_single_server_set(servers)
        no_server_reason = NoServerReasons() if server_set is None else no_server_reasons(server_set, protocol)
        self._roster = Roster(chance, reactor.seconds, gets_per_server, no_server_reason)

        def make(name: str, endpoint: IStreamClientEndpoint) -> Server:
            return Server(
                name,
                endpoint,
                reactor,
                timeout_s=timeout_s,
                max_connections=max_connections,
                random=chance,
                waits_for_backoff=self._roster.all_backing_off,
                closes_connection=self._dialect.closes_connection,
            )

        def make_member(address: Address) -> Server:
            return make(str(address), _endpoint(reactor, address, tls, timeout_s))

        self._members: MemberServers | None = None
        if server_set is not None:
            self._members = MemberServers(reactor, server_set, protocol, timeout_s, self._roster, make_member)
            return
        endpoints = _endpoints(reactor, servers, DEFAULT_PORTS[protocol], tls, timeout_s)
        named = [make(name, endpoint) for name, endpoint in endpoints.items()]
        if not named:
            raise ValueError("there must be at least one server")
        self._roster.use(named, named)

    async def close(self) -> None:
        """Close all connections permanently, and wait until they have ended. Requests in progress fail at once."""
        ends = self._roster.close()
        if self._members is not None:
            ends.append(self._members.close())
        await _all(ends)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Putting.

    async def put(self, queue: Name, data: bytes, expires_in: float | None = None) -> bool:
        """Put an item. Return True if it was stored, False if a limit of the queue refused it.

        It expires after `expires_in` seconds; memcache rounds up to whole seconds, fewer than 1,000,000. If every
        server refuses or fails, the error of the last one is raised.
        """
        name, ms = name_bytes(queue), expiry_ms(expires_in)

        async def ask(server: Server) -> int:
            [(_, call)] = self._dialect.put(name, [data], ms)
            return await self._ask(server, call)

        return bool(await self._somewhere(self._roster.writes, ask, repeats=self._repeats))

    async def put_many(self, queue: Name, items: Iterable[bytes], expires_in: float | None = None) -> int:
        """Put items, and return how many were stored. A limit of the queue may refuse the others individually.

        Items are sent in batches. Each batch is sent to one server, and items that it refuses to another. If this
        raises, any of the items may have been stored. On thrift a `ServerError` applies to a whole batch. After a disk
        failure part of that batch may be stored, and then be stored twice.
        """
        name, ms = name_bytes(queue), expiry_ms(expires_in)
        stored = 0
        for batch in batches(items):
            stored += await self._put_batch(name, batch, ms)
        return stored

    async def _put_batch(self, queue: bytes, items: Sequence[bytes], ms: int) -> int:
        batch = PutBatch(items)

        async def send(connection: Pipeline) -> None:
            sizes_and_calls = self._dialect.put(queue, batch.left, ms)
            answers = await _answers(connection.ask_all([call for _, call in sizes_and_calls]))
            batch.answered([size for size, _ in sizes_and_calls], answers)

        await self._somewhere(self._roster.writes, lambda server: self._share(server, send), repeats=self._repeats)
        stored = batch.stored
        for data in batch.untried:
            stored += await self._put_batch(queue, [data], ms)
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

        async def ask(server: Server, wait_ms: int) -> bytes | None:
            call = self._dialect.get(name, wait_ms)
            if not timeout:
                return await self._ask(server, call)
            with naming_server(server):
                async with server.own(wait_ms) as connection:  # a cancelled get drops this connection
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
        name, hold_ms = name_bytes(queue), max(1, to_milliseconds(hold))  # with 0, thrift would not open a read
        held = await self._search(lambda server, wait_ms: self._open(server, name, wait_ms, hold_ms), timeout)
        if held is None:
            yield None
            return
        connection = held.connection
        try:
            try:
                yield held.read.data
            except Exception:
                with suppress(ClientFailure):  # the server returns the item when the connection is gone
                    await self._finish(held, lambda: self._dialect.abort(name, held.read))
                raise
            except BaseException:  # the coroutine is being closed and cannot await
                connection.ask(self._dialect.abort(name, held.read)).addErrback(_ignore_result)
                connection.retire()
                raise
            await self._finish(held, lambda: self._dialect.confirm(name, held.read))
        finally:
            held.server.give_back(connection)

    async def _finish(self, held: _AsyncOpenRead, make_call: Callable[[], Call[None]]) -> None:
        """End an open read. If its connection has ended and the read does not depend on it, use another connection."""

        async def ask(is_own: bool) -> None:
            await (held.connection.ask(make_call()) if is_own else self._ask(held.server, make_call()))

        with naming_server(held.server):
            await follow_async(end_read(is_of_connection=self._dialect.reads_are_of_connection), ask)

    async def _open(self, server: Server, queue: bytes, wait_ms: int, hold_ms: int) -> _AsyncOpenRead | None:
        call = self._dialect.open(queue, wait_ms, hold_ms)
        with naming_server(server):
            connection = await server.take(wait_ms)
            read = None
            try:
                read = await connection.ask(call)
            finally:
                if read is None:
                    server.give_back(connection)
        return None if read is None else _AsyncOpenRead(server, connection, read)

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

        async def begin(server: Server) -> _AsyncMonitor:
            stream = calls.monitor(name, seconds, max_items)
            with naming_server(server):
                connection = await server.take()
                items = connection.stream(stream)
                try:
                    return _AsyncMonitor(server, connection, await items.next(), items)
                except BaseException:
                    server.give_back(connection)
                    raise

        # Before the first item, another server can be asked without duplicates.
        server, connection, item, items = await self._somewhere(self._roster.reads, begin, repeats=True)
        if item is None:
            self._roster.reads.was_empty(server)
        is_over = False
        try:
            with naming_server(server):
                while item is not None:
                    count += 1
                    yield item
                    item = await items.next()
                if count:
                    await connection.ask(calls.confirm(name, count))
            is_over = True
        finally:
            if not is_over:
                connection.drop()  # returns open reads to the queue
            server.give_back(connection)

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

    async def _ask(self, server: Server, call: Call[T]) -> T:
        return await self._share(server, lambda connection: connection.ask(call))

    async def _share(self, server: Server, ask: Callable[[Pipeline], Awaitable[T]]) -> T:
        """Ask over the shared connection. If the refusal of an earlier request closes it, ask again, up to twice.

        The third attempt uses an exclusive connection, where no other request can interfere.
        """
        with naming_server(server):
            for _ in range(2):
                with suppress(ClosedByEarlierRefusal):
                    return await ask(await server.shared())
            async with server.own() as connection:
                return await ask(connection)

    async def _of_all(self, make_call: Callable[[], Call[T]]) -> dict[str, T]:
        await self._meet()
        servers = self._roster.all_servers()
        calls = [make_call() for _ in servers]
        values = await _all([self._ask(server, call) for server, call in zip(servers, calls, strict=True)])
        return {server.name: value for server, value in zip(servers, values, strict=True)}

    async def _somewhere(
        self, choice: RandomChoice[Server], ask: Callable[[Server], Awaitable[T]], *, repeats: bool
    ) -> T:
        await self._meet()
        plan: Plan[Server, T, T] = somewhere(choice, repeats=repeats)
        return await follow_async(plan, ask)

    async def _search(self, ask: Callable[[Server, int], Awaitable[T | None]], timeout: float) -> T | None:
        plan: Plan[tuple[Server, int], T | None, T | None]
        await self._meet()
        is_alone = self._members is None and len(self._roster.servers) == 1
        plan = search(self._roster.reads, to_milliseconds(timeout), is_alone=is_alone)
        return await follow_async(plan, lambda question: ask(*question))

    async def _meet(self) -> None:
        """Wait until the servers are known."""
        if self._members is not None:
            await self._members.known()


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
            endpoints[str(address)] = _endpoint(reactor, address, tls, timeout_s)
        else:
            if tls is not None and tls.server_name is None:
                raise ValueError("TlsOptions needs a server_name when a server is given as an endpoint")
            endpoints[f"servers[{number}]"] = server if tls is None else tls_endpoint(tls, "", server)
    return endpoints


def _endpoint(reactor: Any, address: Address, tls: TlsOptions | None, timeout_s: float) -> IStreamClientEndpoint:
    endpoint: IStreamClientEndpoint = HostnameEndpoint(reactor, *address, timeout=timeout_s)
    return endpoint if tls is None else tls_endpoint(tls, address.host, endpoint)


async def _all(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all coroutines concurrently to their end, and return their values. If any failed, raise the first failure."""
    values: list[T] = []
    for result in await _wait_for_all([Deferred.fromCoroutine(each) for each in coroutines]):
        if isinstance(result, Failure):
            result.raiseException()
        values.append(result)
    return values


async def _answers(deferreds: Sequence[Deferred[T]]) -> list[T | Refused | ConnectionFailed]:
    """Return the results of calls in order, with refusals and connection failures as values."""
    answers: list[T | Refused | ConnectionFailed] = []
    for result in await _wait_for_all(deferreds):
        if not isinstance(result, Failure):
            answers.append(result)
        elif isinstance(result.value, Refused | ConnectionFailed):
            answers.append(result.value)
        else:
            result.raiseException()
    return answers


async def _wait_for_all(deferreds: Sequence[Deferred[T]]) -> list[T | Failure]:
    """Wait for all Deferreds, and return their values or Failures."""
    return [result for _, result in await DeferredList(deferreds, consumeErrors=True)]


def _ignore_result(_: object) -> None:
    """Ignore a result."""
