"""A blocking client for scripts and worker processes. It does not need Twisted.

    with BlockingClient(["mq1", "mq2:22134"]) as client:
        client.put("work", b"hello")
        with client.reliable_get("work", timeout=5) as item:
            if item is not None:
                work_on(item)           # an exception puts the item back at the head of the queue

Queue names are bytes, or strings that are sent as UTF-8. Items are bytes. Times are seconds. Errors are those of
`kestrel.client.errors`, and `kestrel.errors.BadQueueName`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from random import Random
from typing import Any, Literal, Self, TypeVar

from kestrel.address import Address
from kestrel.client.arguments import Name, check_options
from kestrel.client.call import Call, Stream
from kestrel.client.choice import GETS_PER_SERVER, run_blocking
from kestrel.client.connection import BlockingConnection, ConnectionPool
from kestrel.client.dialect import Dialect, make_dialect
from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed, Refused
from kestrel.client.members import Roster, parse_servers
from kestrel.client.requests import AsyncRequests, NextValue
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

T = TypeVar("T")


class BlockingServers(Roster[Address]):
    """One server, several servers that share the work, or the current members of a server set.

    Raises ValueError for an invalid server, OSError for unusable TLS files, and `KazooMissing`. `seconds` is a
    monotonic clock.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        protocol: str,
        tls: TlsOptions | None,
        timeout_s: float,
        seconds: Callable[[], float],
        *,
        random: Random | None = None,
        gets_per_server: int = GETS_PER_SERVER,
    ) -> None:
        members = parse_servers(servers, protocol, timeout_s)
        self.pool = ConnectionPool(timeout_s, tls)
        super().__init__(members, self.pool.keep, self.pool.forget, random or Random(), seconds, gets_per_server)
        self.refresh()

    def wait_until_known(self) -> None:
        """Wait until the servers are known. Raises `NoServer`."""
        self.meet(self.members.wait())

    def all_servers(self) -> tuple[Address, ...]:
        self.wait_until_known()
        return super().all_servers()

    def ask_in_turn(self, ask: Callable[[Address, int], T | None], timeout_ms: int) -> T | None:
        """Ask the servers for an item, as `search` does."""
        self.wait_until_known()

        async def found(server: Address, wait_ms: int) -> T | None:
            return ask(server, wait_ms)

        return run_blocking(self.search(found, timeout_ms))

    def close(self) -> None:
        """Close all connections, and stop following the server set. The servers can be asked again."""
        self.pool.close()
        self.members.close()


class _CoroutineConnection:
    """A blocking connection in exclusive use, with the methods of an `AsyncConnection`. None of them waits."""

    def __init__(self, connection: BlockingConnection) -> None:
        self.blocking = connection
        self._was_used = False

    async def ask(self, call: Call[T]) -> T:
        if self._was_used and not self.blocking.is_at_rest():
            raise CannotConnect("the connection has ended")
        self._was_used = True
        return self.blocking.ask(call)

    def ask_last(self, call: Call[None]) -> None:
        with suppress(ClientFailure):
            self.blocking.ask(call)
        self.drop()

    async def answers(self, calls: Sequence[Call[T]]) -> list[T | Refused | ConnectionFailed]:
        answers: list[T | Refused | ConnectionFailed] = []
        replies = self.blocking.ask_all(calls)
        try:
            answers.extend(replies)
        except ConnectionFailed as failure:
            answers.append(failure)
        return answers

    def stream(self, stream: Stream[T]) -> NextValue[T]:
        items = self.blocking.stream(stream)

        async def next_item() -> T | None:
            return next(items, None)

        return next_item

    def drop(self) -> None:
        self.blocking.close()


class _BlockingRequests(AsyncRequests[Address, _CoroutineConnection]):
    """The requests of a blocking client, as coroutines for `run_blocking`."""

    def __init__(self, dialect: Dialect, servers: BlockingServers, repeats: bool) -> None:
        self._dialect = dialect
        self._repeats = repeats
        self._roster = self._servers = servers

    @contextmanager
    def reading(self, queue: Name, timeout: float, hold: float) -> Iterator[bytes | None]:
        """Take an item for the duration of a `with` block."""
        held = run_blocking(self._open_read(queue, timeout, hold))
        if held is None:
            yield None
            return
        try:
            yield held.read.data
        except BaseException:
            with suppress(ClientFailure):  # the server returns the item when the connection is gone
                run_blocking(self._end_read(held, confirms=False))
            raise
        run_blocking(self._end_read(held, confirms=True))

    async def _meet(self) -> None:
        self._servers.wait_until_known()

    async def _take(self, server: Address, wait_ms: int = 0) -> _CoroutineConnection:
        return _CoroutineConnection(self._servers.pool.take(server))

    def _give_back(self, server: Address, connection: _CoroutineConnection) -> None:
        self._servers.pool.give_back(server, connection.blocking)

    async def _all(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        values = []
        failures = []
        for each in coroutines:
            try:
                values.append(await each)
            except ClientFailure as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return values


class BlockingClient:
    """A client of one server, or of several that share the work. Use each client in one thread only.

    Each of `servers` is ``host``, ``host:port`` or ``[::1]:port``. A put is sent to a random server, and to another if
    that server refuses or fails. Gets stay with one server for `gets_per_server` requests, or until it is empty or
    fails. A server that failed is not used for a while.

    `servers` can also be one server set, ``zk://zk1,zk2/services/kestrel``. The client follows its members from the
    first request to `close`. Puts go to the write set, gets to the read set, and requests for all servers to both.
    Until ZooKeeper has supplied the members, requests wait for up to `timeout_s`, and then raise `NoServer`.

    `timeout_s` limits the time to connect, and how long a server may be silent while it has data to read or
    owes an answer. A get's `timeout` is added to it.

    After a fork, the child process makes its own connections and does not use those of its parent.

    If a connection ends before the reply to a put, the item may or may not have been stored. The put then raises
    `ConnectionFailed`. With `repeats` it is tried again instead, and the item may be stored twice.

    `random` and `seconds`, a monotonic clock, are for tests.
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
        dialect = make_dialect(protocol, max_item_bytes)
        self._servers = BlockingServers(
            servers, protocol, tls, timeout_s, seconds, random=random, gets_per_server=gets_per_server
        )
        self._requests = _BlockingRequests(dialect, self._servers, repeats)

    def close(self) -> None:
        """Close all connections, and stop following a server set. The client can be used again.

        A running monitor fails. So does the end of a running `reliable_get` over memcache.
        """
        self._servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, queue: Name, data: bytes, expires_in: float | None = None, *, delay: float | None = None) -> bool:
        """Put an item. Return True if it was stored, False if a limit of the queue refused it.

        It expires after `expires_in` seconds; memcache rounds up to whole seconds, fewer than 1,000,000. It becomes
        visible after `delay` seconds. If every server refuses or fails, the error of the last one is raised.
        """
        return run_blocking(self._requests.put(queue, data, expires_in, delay=delay))

    def put_many(
        self, queue: Name, items: Iterable[bytes], expires_in: float | None = None, *, delay: float | None = None
    ) -> int:
        """Put items, and return how many were stored. A limit of the queue may refuse the others individually.

        Items are sent in batches. Each batch is sent to one server, and items that it refuses to another. If this
        raises, any of the items may have been stored. If a memcache server closes the connection after a `ServerError`,
        it has not processed later items. On thrift a `ServerError` applies to a whole batch. After a disk failure part
        of that batch may be stored, and then be stored twice.
        """
        return run_blocking(self._requests.put_many(queue, items, expires_in, delay=delay))

    def get(self, queue: Name, timeout: float = 0) -> bytes | None:
        """Remove an item from the queue and return it. Return None if there was none for `timeout` seconds.

        The item is lost if the connection or this program fails before it is processed. With several servers, each is
        asked once without waiting, and then for one second at a time in turn until the timeout.
        """
        return run_blocking(self._requests.get(queue, timeout))

    def reliable_get(self, queue: Name, timeout: float = 0, hold: float = 60.0) -> AbstractContextManager[bytes | None]:
        """Take an item for the duration of a `with` block. The value is None if there was none for `timeout` seconds.

        The end of the block confirms the item; an exception returns it to the head of its queue. If this program dies
        the item is returned as well: on memcache at once, on thrift after `hold` seconds, the time limit for the
        confirm. On thrift a confirm is tried again once if the connection fails.

        The end raises `OpenReadsError` if the read was open for too long and the item has been returned, and
        `ConnectionFailed` if it may have been returned.
        """
        return self._requests.reading(queue, timeout, hold)

    def peek(self, queue: Name) -> bytes | None:
        """Return the head of the queue without removing it, from the first server that has an item. Return None if none
        has.
        """
        return run_blocking(self._requests.peek(queue))

    def monitor(self, queue: Name, seconds: int, max_items: int | None = None) -> Iterator[bytes]:
        """Yield items of one server as they arrive, for `seconds` or up to `max_items`. Only on memcache.

        The server's maxOpenTransactions also limits the number of items; None means that only it does. The items are
        open reads until all are confirmed together at the end. If the loop is left early, all return to the queue.

        If a server refuses or fails before its first item, another one is monitored. If it had no item, the next call
        chooses another one.
        """
        items = self._requests.monitor(queue, seconds, max_items)
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield run_blocking(items.__anext__())
        finally:
            run_blocking(items.aclose())

    # Queues and servers. All servers are asked, even if one fails; then the first failure is raised.

    def flush(self, queue: Name) -> None:
        """Drop all items of the queue on all servers, except open reads."""
        run_blocking(self._requests.flush(queue))

    def delete(self, queue: Name) -> None:
        """Delete the queue and its items on all servers."""
        run_blocking(self._requests.delete(queue))

    def stats(self) -> dict[str, dict[str, str]]:
        """Return the statistics of each server (``host:port``). Only on memcache."""
        return run_blocking(self._requests.stats())

    def dump_config(self, *queues: Name) -> dict[str, dict[bytes, dict[str, str]]]:
        """Return the settings of the given queues and aliases, or of all, by server. Only on memcache."""
        return run_blocking(self._requests.dump_config(*queues))

    def status(self) -> dict[str, str]:
        """Return the status of each server (``host:port``): Up, WriteAvoid, ReadOnly or Quiescent.

        Thrift has no WriteAvoid, and reports it as NotConfigured.
        """
        return run_blocking(self._requests.status())

    def set_status(self, status: str) -> None:
        """Set the status of all servers: Up, ReadOnly or Quiescent, or on memcache WriteAvoid. Case does not matter."""
        run_blocking(self._requests.set_status(status))

    def version(self) -> dict[str, str]:
        """Return the release of each server (``host:port``)."""
        return run_blocking(self._requests.version())
