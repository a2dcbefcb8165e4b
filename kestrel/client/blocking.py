"""A client for scripts and worker processes, which waits for each answer. Needs no Twisted.

    with BlockingClient(["mq1", "mq2:22134"]) as client:
        client.put("work", b"hello")
        with client.reliable_get("work", timeout=5) as item:
            if item is not None:
                work_on(item)           # an exception puts the item back at the head of the queue

Queue names are bytes, or strings that are sent as UTF-8; items are bytes. Times are seconds. Errors are those of
`kestrel.client.errors`, and `kestrel.errors.BadQueueName`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from random import Random
from typing import Literal, NamedTuple, Self, TypeVar

from kestrel.address import DEFAULT_PORTS, Address
from kestrel.client.arguments import Name, check_options, expiry_ms, name_bytes, to_milliseconds
from kestrel.client.blocking_servers import BlockingServers
from kestrel.client.call import Call
from kestrel.client.choice import GETS_PER_SERVER
from kestrel.client.connection import BlockingConnection
from kestrel.client.dialect import Dialect, MemcacheDialect, ThriftDialect
from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed, OpenReadsError, RequestError
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.plan import naming_server
from kestrel.client.put_batch import PutBatch, batches
from kestrel.client.thrift import OpenRead, ThriftCalls
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

T = TypeVar("T")


class _BlockingOpenRead(NamedTuple):
    """An open read, and its connection, which is nobody else's meanwhile: memcache confirms the oldest read of one."""

    address: Address
    connection: BlockingConnection
    read: OpenRead


class _BlockingMonitor(NamedTuple):
    """A monitor that has begun: its first item, or None where it had none, and those that follow."""

    address: Address
    connection: BlockingConnection
    first: bytes | None
    items: Generator[bytes, None, None]


class BlockingClient:
    """Puts and gets items, of one server or several that share the work. For one thread.

    `servers`: ``host``, ``host:port`` or ``[::1]:port``. With several, a put goes to one at random, and elsewhere if
    that one will not or cannot have it; gets stay with one server for `gets_per_server` requests, or until it is empty
    or fails. A server that failed is left alone for a while.

    In place of them may stand one server set, ``zk://zk1,zk2/services/kestrel``, whose members are followed from the
    first request to `close`: puts go to those of its write set, gets to those of its read set, and what is for all
    servers to both. Requests wait for up to `timeout_s` until ZooKeeper has said who they are; then it is a `NoServer`.

    `timeout_s` is how long a server may be silent while it has something to read or owes an answer, besides the time
    that it was asked to wait, and how long connecting may take.

    A process that was forked makes connections of its own; those of its parent it leaves alone.

    A put whose connection ended before the reply was there may have been stored. It is not put again, and
    `ConnectionFailed` says so; unless `repeats`, for those who would rather have an item twice than think about it.

    `random` and `seconds`, a clock that never goes back, are for tests.
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
        max_item_bytes: int = MAX_ITEM_BYTES,
        random: Random | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        check_options(timeout_s, tls)
        if protocol not in DEFAULT_PORTS:
            raise ValueError(f"there is no protocol {protocol!r}; there are {', '.join(DEFAULT_PORTS)}")
        self._memcache = MemcacheCalls(max_item_bytes) if protocol == "memcache" else None
        self._dialect: Dialect = ThriftDialect(ThriftCalls(max_item_bytes=max_item_bytes))
        if self._memcache is not None:
            self._dialect = MemcacheDialect(self._memcache)
        self._repeats = repeats
        self._servers = BlockingServers(
            servers, protocol, tls, timeout_s, seconds, random=random, gets_per_server=gets_per_server
        )
        self._pool = self._servers.pool

    def close(self) -> None:
        """Hang up. The client can be used again.

        A monitor that is running fails, and so does the end of a reliable read of memcache.
        """
        self._servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Putting.

    def put(self, queue: Name, data: bytes, expires_in: float | None = None) -> bool:
        """Whether the item was stored; False where a limit of the queue refuses it.

        It expires in so many seconds; memcache knows whole ones alone, and fewer than a million. When no server would
        or could have it, the error is that of the last one.
        """
        name, ms = name_bytes(queue), expiry_ms(expires_in)

        def ask(address: Address) -> int:
            [(_, call)] = self._dialect.put(name, [data], ms)
            return self._ask(address, call)

        return bool(self._servers.somewhere(self._servers.writes, ask, repeats=self._repeats))

    def put_many(self, queue: Name, items: Iterable[bytes], expires_in: float | None = None) -> int:
        """How many of the items were stored; the others were refused by a limit of the queue, one by one.

        They are sent many at once, each such batch to a server of its own, and to another one as far as the first will
        not have them. When this raises, any of the items may have been stored. Where the server hangs up behind a
        `ServerError`, it has not carried out what came after; on thrift such an error is that of a whole batch, and
        where a disk failed a part of it may be stored all the same, and then twice.
        """
        name, ms = name_bytes(queue), expiry_ms(expires_in)
        return sum(self._put_batch(name, batch, ms) for batch in batches(items))

    def _put_batch(self, queue: bytes, items: Sequence[bytes], ms: int) -> int:
        batch = PutBatch(items)

        def ask(address: Address) -> None:
            sizes_and_calls = self._dialect.put(queue, batch.left, ms)
            with naming_server(address), self._pool.using(address) as connection:
                answers = connection.ask_all([call for _, call in sizes_and_calls])
                batch.answered([size for size, _ in sizes_and_calls], answers)

        self._servers.somewhere(self._servers.writes, ask, repeats=self._repeats)
        return batch.stored + sum(self._put_batch(queue, [data], ms) for data in batch.untried)

    # Getting.

    def get(self, queue: Name, timeout: float = 0) -> bytes | None:
        """An item, taken for good, or None when there was none for so long.

        It is lost if the connection ends while it is on its way, or if this program dies with it.
        Of several servers each is asked, and while there is time each of them for a second in turn.
        """
        name = name_bytes(queue)
        return self._search(lambda address, wait_ms: self._ask(address, self._dialect.get(name, wait_ms)), timeout)

    @contextmanager
    def reliable_get(self, queue: Name, timeout: float = 0, hold: float = 60.0) -> Iterator[bytes | None]:
        """An item for the time of a `with`, or None when there was none for so long.

        At the end it is confirmed; an exception puts it back at the head of its queue. If this program dies it goes
        back as well: on memcache at once, on thrift after `hold` seconds, within which it must be confirmed; there that
        is tried once more if the connection fails.
        `OpenReadsError` at the end: it was open for too long, and has gone back. `ConnectionFailed`: it may have.
        """
        name, hold_ms = name_bytes(queue), max(1, to_milliseconds(hold))  # 0 would take it for good
        held = self._search(lambda address, wait_ms: self._open(address, name, wait_ms, hold_ms), timeout)
        if held is None:
            yield None
            return
        is_finished = False
        try:
            try:
                yield held.read.data
            except BaseException:
                with suppress(ClientFailure):  # without a connection it goes back by itself
                    self._finish(held, lambda: self._dialect.abort(name, held.read))
                    is_finished = True
                raise
            self._finish(held, lambda: self._dialect.confirm(name, held.read))
            is_finished = True
        finally:
            if not is_finished:  # somebody else's confirm would be for this read
                held.connection.close()
            self._pool.give_back(held.address, held.connection)

    def _open(self, address: Address, queue: bytes, wait_ms: int, hold_ms: int) -> _BlockingOpenRead | None:
        call = self._dialect.open(queue, wait_ms, hold_ms)
        with naming_server(address):
            connection = self._pool.take(address)
            read = connection.ask(call)
        if read is None:
            self._pool.give_back(address, connection)
            return None
        return _BlockingOpenRead(address, connection, read)

    def _finish(self, held: _BlockingOpenRead, make_call: Callable[[], Call[None]]) -> None:
        with naming_server(held.address):
            try:
                if not held.connection.is_at_rest():
                    raise CannotConnect("the connection has ended meanwhile")
                held.connection.ask(make_call())
            except ConnectionFailed as failure:
                if self._dialect.reads_are_of_connection:
                    raise
                try:
                    self._ask(held.address, make_call())
                except OpenReadsError:
                    if isinstance(failure, CannotConnect):
                        raise
                    raise failure from None  # the read may have ended because the first time it was confirmed

    def peek(self, queue: Name) -> bytes | None:
        """The head of the queue, which stays there, of the first server that has one."""
        name = name_bytes(queue)
        return self._search(lambda address, _: self._ask(address, self._dialect.peek(name)), 0)

    def monitor(self, queue: Name, seconds: int, max_items: int | None = None) -> Iterator[bytes]:
        """Items of one server as they come, for so many seconds or until there were `max_items`. Memcache alone.

        With several servers another one is monitored when one fails or refuses before its first item, and the next time
        when it had none for so long.

        None stands for as many as the server's maxOpenTransactions, which always is the most. At the end all are
        confirmed together. Until then they are open reads: if the loop is left early, all go back to the queue.
        """
        name = name_bytes(queue)
        calls = self._memcache_calls()
        count = 0

        def begin(address: Address) -> _BlockingMonitor:
            stream = calls.monitor(name, seconds, max_items)
            with naming_server(address):
                connection = self._pool.take(address)
                items = connection.stream(stream)
                return _BlockingMonitor(address, connection, next(items, None), items)

        # Nothing is doubled by asking another server before there was an item.
        address, connection, item, items = self._servers.somewhere(self._servers.reads, begin, repeats=True)
        if item is None:
            self._servers.reads.was_empty(address)
        try:
            with closing(items):
                while item is not None:
                    count += 1
                    yield item
                    with naming_server(address):
                        item = next(items, None)
            if count:
                with naming_server(address):
                    connection.ask(calls.confirm(name, count))
        except BaseException:
            connection.close()  # what is open goes back
            raise
        self._pool.give_back(address, connection)

    # Queues and servers. All servers are asked, also when one of them fails; then the first failure is raised.

    def flush(self, queue: Name) -> None:
        """Drop what is in the queue, on all servers; open reads stay."""
        name = name_bytes(queue)
        self._of_all(lambda: self._dialect.flush(name))

    def delete(self, queue: Name) -> None:
        """Forget the queue and all that is in it, on all servers."""
        name = name_bytes(queue)
        self._of_all(lambda: self._dialect.delete(name))

    def stats(self) -> dict[str, dict[str, str]]:
        """The figures of each server (``host:port``). Memcache alone."""
        return self._of_all(self._memcache_calls().stats)

    def dump_config(self, *queues: Name) -> dict[str, dict[bytes, dict[str, str]]]:
        """The settings of each of these queues and aliases, or of all, by server (``host:port``). Memcache alone."""
        calls, names = self._memcache_calls(), [name_bytes(queue) for queue in queues]
        return self._of_all(lambda: calls.dump_config(*names))

    def status(self) -> dict[str, str]:
        """The status of each server (``host:port``): Up, WriteAvoid, ReadOnly or Quiescent."""
        return self._of_all(self._dialect.status)

    def set_status(self, status: str) -> None:
        """Have all servers take that status."""
        self._of_all(lambda: self._dialect.set_status(status))

    def version(self) -> dict[str, str]:
        """The release of each server (``host:port``)."""
        return self._of_all(self._dialect.version)

    def _memcache_calls(self) -> MemcacheCalls:
        if self._memcache is None:
            raise RequestError("thrift has no such request; use the memcache protocol")
        return self._memcache

    # Which server.

    def _ask(self, address: Address, call: Call[T]) -> T:
        with naming_server(address), self._pool.using(address) as connection:
            return connection.ask(call)

    def _of_all(self, make_call: Callable[[], Call[T]]) -> dict[str, T]:
        values = {}
        failures = []
        for address in self._servers.all_servers():
            try:
                values[str(address)] = self._ask(address, make_call())
            except ClientFailure as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return values

    def _search(self, ask: Callable[[Address, int], T | None], timeout: float) -> T | None:
        return self._servers.search(ask, to_milliseconds(timeout))
