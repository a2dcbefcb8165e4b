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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from random import Random
from typing import Literal, NamedTuple, Self, TypeVar

from kestrel.address import Address
from kestrel.client.arguments import Name, check_options, expiry_ms, name_bytes, to_milliseconds
from kestrel.client.call import Call
from kestrel.client.choice import GETS_PER_SERVER, RandomChoice, ServerChoices
from kestrel.client.connection import BlockingConnection, ConnectionPool
from kestrel.client.dialect import make_dialect
from kestrel.client.errors import CannotConnect, ClientFailure
from kestrel.client.members import Addresses, parse_servers
from kestrel.client.plan import Plan, end_read, follow, naming_server, search, somewhere
from kestrel.client.put_batch import PutBatch, batches
from kestrel.client.thrift import OpenRead
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

Q = TypeVar("Q")
T = TypeVar("T")


class BlockingServers(ServerChoices[Address]):
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
        self.members = parse_servers(servers, protocol, timeout_s)
        super().__init__(random or Random(), seconds, gets_per_server, self.members.no_server_reason)
        self.pool = ConnectionPool((), timeout_s, tls)
        self._met: Addresses | None = None
        self.refresh()

    @property
    def is_alone(self) -> bool:
        """Whether there is only one server, and always will be."""
        return self.members.is_alone

    def wait_until_known(self) -> None:
        """Wait until the servers are known. Raises `NoServer`."""
        self._meet(self.members.wait())

    def refresh(self) -> None:
        """Use the current members of the server set. Neither waits nor fails."""
        known = self.members.known
        if known is not None:
            self._meet(known)

    def all_servers(self) -> tuple[Address, ...]:
        """Return all servers, for requests to every one of them. Raises `NoServer`."""
        self.wait_until_known()
        return super().all_servers()

    def _meet(self, addresses: Addresses) -> None:
        if addresses is self._met:
            return
        self._met = addresses
        self.use(addresses.reads, addresses.writes)
        self.pool.use(self.servers)

    def somewhere(self, choice: RandomChoice[Address], ask: Callable[[Address], T], *, repeats: bool = False) -> T:
        """Ask a server, and others if it fails, as `plan.somewhere` describes."""
        self.wait_until_known()
        plan: Plan[Address, T, T] = somewhere(choice, repeats=repeats)
        return follow(plan, self._then_refresh(ask))

    def search(self, ask: Callable[[Address, int], T | None], timeout_ms: int) -> T | None:
        """Ask servers in turn for an item, as `plan.search` describes."""
        self.wait_until_known()
        plan: Plan[tuple[Address, int], T | None, T | None]
        plan = search(self.reads, timeout_ms, is_alone=self.is_alone)
        return follow(plan, self._then_refresh(lambda question: ask(*question)))

    def _then_refresh(self, ask: Callable[[Q], T]) -> Callable[[Q], T]:
        """Wrap `ask` so that it refreshes the servers after each request."""

        def ask_and_refresh(question: Q) -> T:
            try:
                return ask(question)
            finally:
                self.refresh()

        return ask_and_refresh

    def close(self) -> None:
        """Close all connections, and stop following the server set. The servers can be asked again."""
        self.pool.close()
        self.members.close()


class _BlockingOpenRead(NamedTuple):
    """An open read and its exclusive connection: a memcache confirm ends the oldest open read of a connection."""

    address: Address
    connection: BlockingConnection
    read: OpenRead


class _BlockingMonitor(NamedTuple):
    """A running monitor: its first item, or None if it had none, and an iterator of the rest."""

    address: Address
    connection: BlockingConnection
    first: bytes | None
    items: Generator[bytes, None, None]


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
        self._dialect = make_dialect(protocol, max_item_bytes)
        self._repeats = repeats
        self._servers = BlockingServers(
            servers, protocol, tls, timeout_s, seconds, random=random, gets_per_server=gets_per_server
        )
        self._pool = self._servers.pool

    def close(self) -> None:
        """Close all connections, and stop following a server set. The client can be used again.

        A running monitor fails. So does the end of a running `reliable_get` over memcache.
        """
        self._servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Putting.

    def put(self, queue: Name, data: bytes, expires_in: float | None = None) -> bool:
        """Put an item. Return True if it was stored, False if a limit of the queue refused it.

        It expires after `expires_in` seconds; memcache rounds up to whole seconds, fewer than 1,000,000. If every
        server refuses or fails, the error of the last one is raised.
        """
        name, ms = name_bytes(queue), expiry_ms(expires_in)

        def ask(address: Address) -> int:
            [(_, call)] = self._dialect.put(name, [data], ms)
            return self._ask(address, call)

        return bool(self._servers.somewhere(self._servers.writes, ask, repeats=self._repeats))

    def put_many(self, queue: Name, items: Iterable[bytes], expires_in: float | None = None) -> int:
        """Put items, and return how many were stored. A limit of the queue may refuse the others individually.

        Items are sent in batches. Each batch is sent to one server, and items that it refuses to another. If this
        raises, any of the items may have been stored. If a memcache server closes the connection after a `ServerError`,
        it has not processed later items. On thrift a `ServerError` applies to a whole batch. After a disk failure part
        of that batch may be stored, and then be stored twice.
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
        """Remove an item from the queue and return it. Return None if there was none for `timeout` seconds.

        The item is lost if the connection or this program fails before it is processed. With several servers, each is
        asked once without waiting, and then for one second at a time in turn until the timeout.
        """
        name = name_bytes(queue)
        return self._search(lambda address, wait_ms: self._ask(address, self._dialect.get(name, wait_ms)), timeout)

    @contextmanager
    def reliable_get(self, queue: Name, timeout: float = 0, hold: float = 60.0) -> Iterator[bytes | None]:
        """Take an item for the duration of a `with` block. The value is None if there was none for `timeout` seconds.

        The end of the block confirms the item; an exception returns it to the head of its queue. If this program dies
        the item is returned as well: on memcache at once, on thrift after `hold` seconds, the time limit for the
        confirm. On thrift a confirm is tried again once if the connection fails.

        The end raises `OpenReadsError` if the read was open for too long and the item has been returned, and
        `ConnectionFailed` if it may have been returned.
        """
        name, hold_ms = name_bytes(queue), max(1, to_milliseconds(hold))  # with 0, thrift would not open a read
        held = self._search(lambda address, wait_ms: self._open(address, name, wait_ms, hold_ms), timeout)
        if held is None:
            yield None
            return
        is_finished = False
        try:
            try:
                yield held.read.data
            except BaseException:
                with suppress(ClientFailure):  # the server returns the item when the connection is gone
                    self._finish(held, lambda: self._dialect.abort(name, held.read))
                    is_finished = True
                raise
            self._finish(held, lambda: self._dialect.confirm(name, held.read))
            is_finished = True
        finally:
            if not is_finished:  # a later confirm on this connection would confirm this read
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
        def ask(is_own: bool) -> None:
            if not is_own:
                self._ask(held.address, make_call())
            elif held.connection.is_at_rest():
                held.connection.ask(make_call())
            else:
                raise CannotConnect("the connection has ended")

        with naming_server(held.address):
            follow(end_read(is_of_connection=self._dialect.reads_are_of_connection), ask)

    def peek(self, queue: Name) -> bytes | None:
        """Return the head of the queue without removing it, from the first server that has an item. Return None if none
        has.
        """
        name = name_bytes(queue)
        return self._search(lambda address, _: self._ask(address, self._dialect.peek(name)), 0)

    def monitor(self, queue: Name, seconds: int, max_items: int | None = None) -> Iterator[bytes]:
        """Yield items of one server as they arrive, for `seconds` or up to `max_items`. Only on memcache.

        The server's maxOpenTransactions also limits the number of items; None means that only it does. The items are
        open reads until all are confirmed together at the end. If the loop is left early, all return to the queue.

        If a server refuses or fails before its first item, another one is monitored. If it had no item, the next call
        chooses another one.
        """
        name = name_bytes(queue)
        calls = self._dialect.memcache()
        count = 0

        def begin(address: Address) -> _BlockingMonitor:
            stream = calls.monitor(name, seconds, max_items)
            with naming_server(address):
                connection = self._pool.take(address)
                items = connection.stream(stream)
                return _BlockingMonitor(address, connection, next(items, None), items)

        # Before the first item, another server can be asked without duplicates.
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
            connection.close()  # returns open reads to the queue
            raise
        self._pool.give_back(address, connection)

    # Queues and servers. All servers are asked, even if one fails; then the first failure is raised.

    def flush(self, queue: Name) -> None:
        """Drop all items of the queue on all servers, except open reads."""
        name = name_bytes(queue)
        self._of_all(lambda: self._dialect.flush(name))

    def delete(self, queue: Name) -> None:
        """Delete the queue and its items on all servers."""
        name = name_bytes(queue)
        self._of_all(lambda: self._dialect.delete(name))

    def stats(self) -> dict[str, dict[str, str]]:
        """Return the statistics of each server (``host:port``). Only on memcache."""
        return self._of_all(self._dialect.memcache().stats)

    def dump_config(self, *queues: Name) -> dict[str, dict[bytes, dict[str, str]]]:
        """Return the settings of the given queues and aliases, or of all, by server. Only on memcache."""
        calls, names = self._dialect.memcache(), [name_bytes(queue) for queue in queues]
        return self._of_all(lambda: calls.dump_config(*names))

    def status(self) -> dict[str, str]:
        """Return the status of each server (``host:port``): Up, WriteAvoid, ReadOnly or Quiescent.

        Thrift has no WriteAvoid, and reports it as NotConfigured.
        """
        return self._of_all(self._dialect.status)

    def set_status(self, status: str) -> None:
        """Set the status of all servers: Up, ReadOnly or Quiescent, or on memcache WriteAvoid. Case does not matter."""
        self._of_all(lambda: self._dialect.set_status(status))

    def version(self) -> dict[str, str]:
        """Return the release of each server (``host:port``)."""
        return self._of_all(self._dialect.version)

    # Choosing servers.

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
