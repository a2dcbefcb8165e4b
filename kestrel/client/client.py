"""A client for Twisted programs.

    client = Client(reactor, ["mq1", "mq2:22134"])
    await client.put("work", b"hello")
    async with client.reliable_get("work", timeout=5) as item:
        if item is not None:
            await work_on(item)         # an exception puts the item back at the head of the queue
    await client.close()

Queue names are bytes, or strings that are sent as UTF-8; items are bytes. Times are seconds. Errors are those of
`kestrel.client.errors`, and `kestrel.errors.BadQueueName`. The methods are coroutines: they are awaited in other
coroutines, in `inlineCallbacks` they stand behind a ``yield``, and `Deferred.fromCoroutine` makes Deferreds of them.

Tests of a program need no port: `kestrel.testing.network` connects a client to a server in memory.
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
from kestrel.client.choice import GETS_PER_SERVER, RandomChoice
from kestrel.client.closing_errors import closes_connection, never_closes_connection
from kestrel.client.dialect import Dialect, MemcacheDialect, ThriftDialect
from kestrel.client.errors import (
    CannotConnect,
    ClientFailure,
    ConnectionFailed,
    OpenReadsError,
    Refused,
    RequestError,
)
from kestrel.client.member_servers import MemberServers
from kestrel.client.members import NoServerReasons, no_server_reasons, parse_single_server_set
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.openssl import tls_endpoint
from kestrel.client.pipeline import ClosedByEarlierRefusal, Pipeline, StreamItems
from kestrel.client.plan import Plan, follow_async, naming_server, search, somewhere
from kestrel.client.put_batch import PutBatch, batches
from kestrel.client.roster import Roster
from kestrel.client.server import Server
from kestrel.client.thrift import OpenRead, ThriftCalls
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

T = TypeVar("T")

Where: TypeAlias = str | IStreamClientEndpoint
"""A server: ``host``, ``host:port``, ``[::1]:port``, or anything that connects."""

MAX_CONNECTIONS: Final = 100


class _AsyncOpenRead(NamedTuple):
    """An open read, and its connection, which is nobody else's meanwhile: memcache confirms the oldest read of one."""

    server: Server
    connection: Pipeline
    read: OpenRead


class _AsyncMonitor(NamedTuple):
    """A monitor that has begun, and its first item, if there was one."""

    server: Server
    connection: Pipeline
    first: bytes | None
    items: StreamItems[bytes]


class Client:
    """Puts and gets items, of one server or several that share the work.

    With several servers a put goes to one at random, and elsewhere if that one will not or cannot have it; gets stay
    with one server for `gets_per_server` requests, or until it is empty or fails. A server that failed is left alone
    for a while; where none is left, requests wait until one may be tried again.

    In place of them may stand one server set, ``zk://zk1,zk2/services/kestrel``, whose members are followed from the
    first request to `close`: puts go to those of its write set, gets to those of its read set, and what is for all
    servers to both. Requests wait for up to `timeout_s` until ZooKeeper has said who they are; then it is a `NoServer`.

    `timeout_s` is how long a server may be silent while it owes an answer, besides the time that it was asked to wait,
    and how long connecting may take. There are at most `max_connections` to each server: one for all requests that
    are answered at once, and one each for gets with a timeout, reliable reads and monitors. Those are kept for the next
    for half a minute. Who would need one more stands in line, for `timeout_s` and the time that it may wait for an
    item; then it is a `CannotConnect`.

    A put whose connection ended before the reply was there may have been stored. It is not put again, and
    `ConnectionFailed` says so; unless `repeats`, for those who would rather have an item twice than think about it.

    `tls` is for servers that are given as addresses; for an endpoint it needs a `server_name`. `reactor` is whatever
    tells the time, and connects to addresses (under asyncio that is Twisted's asyncioreactor). `random` is for tests.

    A Deferred made of any of the coroutines can be cancelled. A put may have been stored all the same.
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
        if protocol not in DEFAULT_PORTS:
            raise ValueError(f"there is no protocol {protocol!r}; there are {', '.join(DEFAULT_PORTS)}")
        if max_connections < 2:
            raise ValueError("there must be at least two connections: one to share, and one to wait on")
        check_options(timeout_s, tls)
        self._memcache = MemcacheCalls(max_item_bytes) if protocol == "memcache" else None
        self._dialect: Dialect = ThriftDialect(ThriftCalls(max_item_bytes=max_item_bytes))
        if self._memcache is not None:
            self._dialect = MemcacheDialect(self._memcache)
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
                closes_connection=never_closes_connection if self._memcache is None else closes_connection,
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
        """Hang up, for good. What is under way fails at once; returns when all connections have ended."""
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
        """Whether the item was stored; False where a limit of the queue refuses it.

        It expires in so many seconds; memcache knows whole ones alone, and fewer than a million. When no server would
        or could have it, the error is that of the last one.
        """
        name, ms = name_bytes(queue), expiry_ms(expires_in)

        async def ask(server: Server) -> int:
            [(_, call)] = self._dialect.put(name, [data], ms)
            return await self._ask(server, call)

        return bool(await self._somewhere(self._roster.writes, ask, repeats=self._repeats))

    async def put_many(self, queue: Name, items: Iterable[bytes], expires_in: float | None = None) -> int:
        """How many of the items were stored; the others were refused by a limit of the queue, one by one.

        They are sent many at once, each such batch to a server of its own, and to another one as far as the first will
        not have them. When this raises, any of the items may have been stored. On thrift a `ServerError` is that of a
        whole batch, and where a disk failed a part of it may be stored all the same, and then twice.
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
        """An item, taken for good, or None when there was none for so long.

        It is lost if the connection ends while it is on its way, or if this program dies with it. To cancel a get with
        a timeout ends its connection: what the server gives it before it has seen that is lost as well. To cancel one
        without loses its item, if there is one. `reliable_get` loses nothing.

        Of several servers each is asked, and while there is time each of them for a second in turn. `timeout` is how
        long servers are asked to wait. On top of it come what connecting and an answer take, each no longer than
        `timeout_s` at each server that is asked, and the time in line where all `max_connections` are in use.
        """
        name = name_bytes(queue)

        async def ask(server: Server, wait_ms: int) -> bytes | None:
            call = self._dialect.get(name, wait_ms)
            if not timeout:
                return await self._ask(server, call)
            async with server.own(wait_ms) as connection:  # which ends with a get that is cancelled
                return await connection.ask(call)

        return await self._search(ask, timeout)

    @asynccontextmanager
    async def reliable_get(self, queue: Name, timeout: float = 0, hold: float = 60.0) -> AsyncIterator[bytes | None]:
        """An item for the time of an `async with`, or None when there was none for so long.

        At the end it is confirmed; an exception, a cancellation among them, puts it back at the head of its queue. If
        this program dies it goes back as well: on memcache at once, on thrift after `hold` seconds, within which it
        must be confirmed. So it does if this is cancelled while the item is on its way. If it is cancelled while the
        confirm is, the item may be confirmed, or it goes back.
        `OpenReadsError` at the end: it was open for too long, and has gone back. `ConnectionFailed`: it may have.
        """
        name, hold_ms = name_bytes(queue), max(1, to_milliseconds(hold))  # 0 would take it for good
        held = await self._search(lambda server, wait_ms: self._open(server, name, wait_ms, hold_ms), timeout)
        if held is None:
            yield None
            return
        connection = held.connection
        try:
            try:
                yield held.read.data
            except Exception:
                with suppress(ClientFailure):  # without a connection it goes back by itself
                    await self._finish(held, lambda: self._dialect.abort(name, held.read))
                raise
            except BaseException:  # the coroutine itself is at its end, and cannot wait any more
                connection.ask(self._dialect.abort(name, held.read)).addErrback(_ignore_result)
                connection.retire()
                raise
            await self._finish(held, lambda: self._dialect.confirm(name, held.read))
        finally:
            held.server.give_back(connection)

    async def _finish(self, held: _AsyncOpenRead, make_call: Callable[[], Call[None]]) -> None:
        """End an open read. Where it is of no connection, and its own has ended meanwhile, over another one."""
        with naming_server(held.server):
            try:
                await held.connection.ask(make_call())
            except ConnectionFailed as failure:
                if self._dialect.reads_are_of_connection:
                    raise
                try:
                    await self._ask(held.server, make_call())
                except OpenReadsError:
                    if isinstance(failure, CannotConnect):
                        raise
                    raise failure from None  # the read may have ended because the first time it was confirmed

    async def _open(self, server: Server, queue: bytes, wait_ms: int, hold_ms: int) -> _AsyncOpenRead | None:
        call = self._dialect.open(queue, wait_ms, hold_ms)
        connection = await server.take(wait_ms)
        read = None
        try:
            read = await connection.ask(call)
        finally:
            if read is None:
                server.give_back(connection)
        return None if read is None else _AsyncOpenRead(server, connection, read)

    async def peek(self, queue: Name) -> bytes | None:
        """The head of the queue, which stays there, of the first server that has one."""
        name = name_bytes(queue)
        return await self._search(lambda server, _: self._ask(server, self._dialect.peek(name)), 0)

    async def monitor(self, queue: Name, seconds: int, max_items: int | None = None) -> AsyncGenerator[bytes, None]:
        """Items of one server as they come, for so many seconds or until there were `max_items`. Memcache alone.

        With several servers another one is monitored when one fails or refuses before its first item, and the next time
        when it had none for so long.

        None stands for as many as the server's maxOpenTransactions, which always is the most. At the end all are
        confirmed together. Until then they are open reads: if the loop is left early, all go back to the queue.
        (`contextlib.aclosing` around it says when that is.) Items are read from the network as they are asked for.
        """
        name = name_bytes(queue)
        calls = self._memcache_calls()
        count = 0

        async def begin(server: Server) -> _AsyncMonitor:
            stream = calls.monitor(name, seconds, max_items)
            connection = await server.take()
            items = connection.stream(stream)
            try:
                return _AsyncMonitor(server, connection, await items.next(), items)
            except BaseException:
                server.give_back(connection)
                raise

        # Nothing is doubled by asking another server before there was an item.
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
                connection.drop()  # what is open goes back
            server.give_back(connection)

    # Queues and servers. All servers are asked, also when one of them fails; then the first failure is raised.

    async def flush(self, queue: Name) -> None:
        """Drop what is in the queue, on all servers; open reads stay."""
        name = name_bytes(queue)
        await self._of_all(lambda: self._dialect.flush(name))

    async def delete(self, queue: Name) -> None:
        """Forget the queue and all that is in it, on all servers."""
        name = name_bytes(queue)
        await self._of_all(lambda: self._dialect.delete(name))

    async def stats(self) -> dict[str, dict[str, str]]:
        """The figures of each server (``host:port``; the second of several endpoints is ``servers[1]``). Memcache
        alone.
        """
        return await self._of_all(self._memcache_calls().stats)

    async def dump_config(self, *queues: Name) -> dict[str, dict[bytes, dict[str, str]]]:
        """The settings of each of these queues and aliases, or of all, by server. Memcache alone."""
        calls, names = self._memcache_calls(), [name_bytes(queue) for queue in queues]
        return await self._of_all(lambda: calls.dump_config(*names))

    async def status(self) -> dict[str, str]:
        """The status of each server: Up, WriteAvoid, ReadOnly or Quiescent."""
        return await self._of_all(self._dialect.status)

    async def set_status(self, status: str) -> None:
        """Have all servers take that status."""
        await self._of_all(lambda: self._dialect.set_status(status))

    async def version(self) -> dict[str, str]:
        """The release of each server."""
        return await self._of_all(self._dialect.version)

    def _memcache_calls(self) -> MemcacheCalls:
        if self._memcache is None:
            raise RequestError("thrift has no such request; use the memcache protocol")
        return self._memcache

    # Which server.

    async def _ask(self, server: Server, call: Call[T]) -> T:
        return await self._share(server, lambda connection: connection.ask(call))

    async def _ask_of(self, server: Server, call: Call[T]) -> T:
        with naming_server(server):
            return await self._ask(server, call)

    async def _share(self, server: Server, ask: Callable[[Pipeline], Awaitable[T]]) -> T:
        """Ask over the connection that all share; where somebody else's refusal ends it, once more. If that happens
        again, over one where nobody else is: who asks has an answer that is his own.
        """
        for _ in range(2):
            with suppress(ClosedByEarlierRefusal):
                return await ask(await server.shared())
        async with server.own() as connection:
            return await ask(connection)

    async def _of_all(self, make_call: Callable[[], Call[T]]) -> dict[str, T]:
        await self._meet()
        servers = self._roster.all_servers()
        calls = [make_call() for _ in servers]
        values = await _all([self._ask_of(server, call) for server, call in zip(servers, calls, strict=True)])
        return {server.name: value for server, value in zip(servers, values, strict=True)}

    async def _somewhere(
        self, choice: RandomChoice[Server], ask: Callable[[Server], Awaitable[T]], *, repeats: bool
    ) -> T:
        await self._meet()
        plan: Plan[Server, T, T] = somewhere(choice, repeats=repeats)
        return await follow_async(plan, _naming_server(ask))

    async def _search(self, ask: Callable[[Server, int], Awaitable[T | None]], timeout: float) -> T | None:
        plan: Plan[tuple[Server, int], T | None, T | None]
        await self._meet()
        is_alone = self._members is None and len(self._roster.servers) == 1
        plan = search(self._roster.reads, to_milliseconds(timeout), is_alone=is_alone)

        async def ask_named(question: tuple[Server, int]) -> T | None:
            with naming_server(question[0]):
                return await ask(*question)

        return await follow_async(plan, ask_named)

    async def _meet(self) -> None:
        """Wait until it is known who the servers are."""
        if self._members is not None:
            await self._members.known()


def _endpoints(
    reactor: Any, servers: Sequence[Where], default_port: int, tls: TlsOptions | None, timeout_s: float
) -> dict[str, IStreamClientEndpoint]:
    """What connects to each server, by the name that it is told by. The same address counts once."""
    endpoints: dict[str, IStreamClientEndpoint] = {}
    for number, server in enumerate(servers):
        if isinstance(server, str):
            address = parse_address(server, default_port)
            endpoints[str(address)] = _endpoint(reactor, address, tls, timeout_s)
        else:
            if tls is not None and tls.server_name is None:
                raise ValueError("an endpoint does not say who the server is: TlsOptions needs a server_name")
            endpoints[f"servers[{number}]"] = server if tls is None else tls_endpoint(tls, "", server)
    return endpoints


def _endpoint(reactor: Any, address: Address, tls: TlsOptions | None, timeout_s: float) -> IStreamClientEndpoint:
    endpoint: IStreamClientEndpoint = HostnameEndpoint(reactor, *address, timeout=timeout_s)
    return endpoint if tls is None else tls_endpoint(tls, address.host, endpoint)


def _naming_server(ask: Callable[[Server], Awaitable[T]]) -> Callable[[Server], Awaitable[T]]:
    """The same, with failures that say which server it was."""

    async def ask_named(server: Server) -> T:
        with naming_server(server):
            return await ask(server)

    return ask_named


async def _all(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all to their ends, side by side; then the first failure is raised, if there is any."""
    values: list[T] = []
    for result in await _wait_for_all([Deferred.fromCoroutine(each) for each in coroutines]):
        if isinstance(result, Failure):
            result.raiseException()
        values.append(result)
    return values


async def _answers(deferreds: Sequence[Deferred[T]]) -> list[T | Refused | ConnectionFailed]:
    """The answers to calls in their order, refusals and failures of the connection among them."""
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
    """What has become of each of them."""
    return [result for _, result in await DeferredList(deferreds, consumeErrors=True)]


def _ignore_result(_: object) -> None:
    """Nobody is there to be told."""
