"""Puts of many items, with the outcome of each, and takes that lose none.

An item that is taken is confirmed after it is written, or put back if it cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from enum import IntEnum, auto
from typing import Final

from kestrel.address import Address
from kestrel.client.arguments import delay_ms
from kestrel.client.choice import run_blocking
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed, Refused
from kestrel.client.put_batch import batches
from kestrel.config.units import parse_size
from kestrel.escaping import show_name
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.formatting import count, ranges_of, stat_number
from kestrel.tools.tool_runner import Output, ToolFailed, print_error

_MAX_RANGES: Final = 8
"""Ranges of item numbers that a message lists; the rest are only counted."""


class _PutOutcome(IntEnum):
    """Outcome of the put of one item."""

    NOT_PUT = 0
    PUT = auto()
    REFUSED = auto()
    """A limit of the queue refused the item."""
    UNKNOWN = auto()
    """The item was sent, and no answer came."""


class BatchLoad:
    """A load of items into a queue. The items are numbered from 1.

    Each batch is sent to one server. Items that this server does not accept are sent to another one. The load ends at
    the first item that is not put: `put` raises, no later items are sent, and `outcome` says which items are in the
    queue.
    """

    def __init__(
        self, servers: CommandServers, queue: bytes, expires_in_s: float | None = None, delay_s: float | None = None
    ) -> None:
        self._servers = servers
        self._queue = queue
        self._expiry_ms = 0 if expires_in_s is None else round(expires_in_s * 1000)
        self._delay_ms = delay_ms(delay_s)
        self.stored = 0
        """Number of items known to be in the queue."""
        self._sent = 0
        self._not_put: list[int] = []
        self._unknown: list[int] = []

    @property
    def is_uncertain(self) -> bool:
        """True if an item was sent and not answered, so that it may or may not be in the queue."""
        return bool(self._unknown)

    def put(self, items: Iterable[bytes]) -> None:
        """Put items. Raise `ToolFailed` with the reason if an item was not put, or if that is not known."""
        for batch in batches(items):
            self._put_batch(batch)

    def outcome(self, total: int | None) -> str:
        """Return a sentence that says how many items were put, and which were not.

        `total` is the number of items to put, None if it is not known.
        """
        said = [f"{count(self.stored, 'item')} put"]
        if self._unknown:
            said.append(f"perhaps put: {_show_items(self._unknown)}")
        not_put = list(self._not_put)
        if total is None:
            # Report the last items that were not put and the ones not sent as one range.
            first_after = self._sent + 1
            while not_put and not_put[-1] == first_after - 1:
                first_after = not_put.pop()
            before = f"{_format_ranges(not_put)}, and " if not_put else ""
            said.append(f"not put: items {before}{first_after} and all that follow")
        elif not_put := [*not_put, *range(self._sent + 1, total + 1)]:
            said.append(f"not put: {_show_items(not_put)}")
        return "; ".join(said)

    def _put_batch(self, batch: Sequence[bytes]) -> None:
        fates = [_PutOutcome.NOT_PUT] * len(batch)
        servers = self._servers

        async def send(address: Address) -> Address:
            self._send(address, batch, fates)
            return address

        try:
            servers.wait_until_known()
            address = run_blocking(servers.somewhere(servers.writes, send))
        except ClientFailure as failure:
            raise servers.failed(failure) from None
        finally:
            first = self._sent + 1
            self._sent += len(batch)
            self.stored += fates.count(_PutOutcome.PUT)
            for number, fate in enumerate(fates, first):
                if fate is _PutOutcome.UNKNOWN:
                    self._unknown.append(number)
                elif fate is not _PutOutcome.PUT:
                    self._not_put.append(number)
        if _PutOutcome.REFUSED in fates:
            position = fates.index(_PutOutcome.REFUSED)
            limit = self._limit(address, len(batch[position]))
            queue = show_name(self._queue)
            raise ToolFailed(f"item {first + position} was refused by a limit of the queue {queue}{limit}")

    def _limit(self, address: Address, item_bytes: int) -> str:
        """Return the end of a message: the limit that refuses an item of that size, or all that may have."""
        if not self._servers.has_memcache:  # a thrift reply only says how many were stored
            return " (maxItems, maxSize or maxItemSize), or the server failed at it"
        calls, queue = self._servers.memcache, self._queue
        with suppress(ClientFailure):
            settings = self._servers.ask(address, calls.dump_config(queue)).get(queue, {})
            figures = self._servers.ask(address, calls.dump_stats(queue)).get(queue, {})
            for name, value in (
                ("maxItemSize", item_bytes - 1),
                ("maxItems", stat_number(figures, "items")),
                ("maxSize", stat_number(figures, "bytes")),
            ):
                limit = settings.get(name, "none").removesuffix("B") + "B"  # maxItems has no unit
                with suppress(ValueError):  # there is no limit
                    if value >= parse_size(limit):
                        return f": {name} = {settings[name]}"
        return " or of one that also gets its items (maxItems, maxSize or maxItemSize)"

    def _send(self, address: Address, batch: Sequence[bytes], fates: list[_PutOutcome]) -> None:
        """Put the items whose fate is `NOT_PUT`, and update `fates`.

        Raise `Refused` if the server refused a request, and `ConnectionFailed` if the connection failed.
        """
        positions = [position for position, fate in enumerate(fates) if fate is _PutOutcome.NOT_PUT]
        items = [batch[position] for position in positions]
        calls = self._servers.dialect.put(self._queue, items, self._expiry_ms, self._delay_ms)
        refusal: Refused | None = None
        done = 0
        with self._servers.pool.using(address) as connection:
            for position in positions:
                fates[position] = _PutOutcome.UNKNOWN
            try:
                answers = connection.ask_all([call for _, call in calls])
                for (size, _), answer in zip(calls, answers, strict=True):
                    part = positions[done : done + size]
                    done += size
                    stored = 0 if isinstance(answer, Refused) else answer
                    for position in part[:stored]:
                        fates[position] = _PutOutcome.PUT
                    for position in part[stored:]:
                        fates[position] = _PutOutcome.NOT_PUT
                    if isinstance(answer, Refused):
                        refusal = answer
                    elif stored < size:
                        fates[part[stored]] = _PutOutcome.REFUSED
            except CannotConnect:
                # The server closed the connection, usually after a refusal, and ignored later requests.
                for position in positions[done:]:
                    fates[position] = _PutOutcome.NOT_PUT
                if refusal is None:
                    raise
        if refusal is not None:
            raise refusal


def _show_items(numbers: Sequence[int]) -> str:
    """Return the numbers of items as text, such as "item 4" or "items 1 to 3, 5"."""
    return f"{'item' if len(numbers) == 1 else 'items'} {_format_ranges(numbers)}"


def _format_ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: ``3 to 5, 8``."""
    spans = ranges_of(numbers)
    said = [str(first) if first == last else f"{first} to {last}" for first, last in spans[:_MAX_RANGES]]
    more = sum(last - first + 1 for first, last in spans[_MAX_RANGES:])
    return ", ".join(said) + (f" and {more} more" if more else "")


_MAX_OPEN_READS: Final = 100
"""Open reads of one connection that the example configurations allow."""

_PATIENCE_S: Final = 1
"""Shortest timeout of a monitor request, in seconds. It passes only if another client has taken the items."""

_HOLD_MS: Final = 60_000
"""Time in which an item must be written, in protocols whose open reads have a timeout."""


class ItemTaker:
    """A consumer that takes items of a queue and writes them. Methods raise `ToolFailed`, and the errors of `Output`.

    It keeps one connection to each server. If that connection ends, the server counts as failed, even if it can be
    reached again: with one server an error is raised, with several the others are asked.
    """

    def __init__(self, servers: CommandServers, queue: bytes, output: Output, write: Callable[[bytes], None]) -> None:
        self._servers = servers
        self._queue = queue
        self._output = output
        self._write = write
        self._connections: dict[Address, BlockingConnection] = {}
        self._batch_is_useful = servers.has_memcache
        """True if asking for several items at once is possible and has not been useless so far."""
        self.count = 0
        """Number of items written and confirmed."""

    def take(self, wait_s: float, most: float) -> bool:
        """Take items, waiting up to `wait_s` seconds for the first one. Return whether there was one.

        If the queue holds several items, up to `most` are taken.
        """
        try:
            taken = self._servers.ask_in_turn(
                lambda address, wait_ms: self._take_at(address, wait_ms, most), round(wait_s * 1000)
            )
        except ClientFailure as failure:
            raise self._failed(failure) from None
        return taken is not None

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def _take_at(self, address: Address, wait_ms: int, most: float) -> int | None:
        """Take items from one server. Return their number, or None if there was none.

        Raise `ClientFailure` if the server fails before an item is written.
        """
        self._close_departed()
        connection = self._connection_to(address)
        try:
            size = self._size(connection, most)
            return (self._take_many(connection, size) if size > 1 else 0) or self._take_one(connection, wait_ms)
        finally:
            if not connection.is_usable:
                del self._connections[address]

    def _close_departed(self) -> None:
        for address in self._connections.keys() - set(self._servers.servers):
            self._connections.pop(address).close()

    def _connection_to(self, address: Address) -> BlockingConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self._servers.pool.take(address)
        elif not connection.is_at_rest():
            del self._connections[address]
            raise ConnectionFailed("the server hung up")
        return connection

    def _size(self, connection: BlockingConnection, most: float) -> int:
        """Return how many items to ask for at once."""
        if not self._batch_is_useful or most == 1:
            return 1
        figures = connection.ask(self._servers.memcache.dump_stats(self._queue))
        return int(min(stat_number(figures.get(self._queue, {}), "items"), most, _MAX_OPEN_READS))

    def _take_many(self, connection: BlockingConnection, size: int) -> int:
        """Take up to `size` items, and return their number. Another client may take some of them first."""
        calls = self._servers.memcache
        taken = written = 0
        failure: BaseException | None = None
        try:
            with closing(connection.stream(calls.monitor(self._queue, _PATIENCE_S, size))) as items:
                for data in items:
                    taken += 1
                    if failure is None:
                        try:
                            self._write_item(data)
                        except BaseException as error:  # the items written before it are still confirmed
                            failure = error
                        else:
                            written += 1
            if written:
                connection.ask(calls.confirm(self._queue, written))
            if taken > written:
                connection.close()  # the server puts the others back
        except ClientFailure as error:
            if not written:
                raise
            raise self._failed(error, written) from None
        self.count += written
        if failure is not None:
            raise failure
        self._batch_is_useful = taken > 1  # else the server's maxOpenTransactions is 1
        return taken

    def _take_one(self, connection: BlockingConnection, wait_ms: int) -> int | None:
        dialect = self._servers.dialect
        read = connection.ask(dialect.open(self._queue, wait_ms, _HOLD_MS))
        if read is None:
            if wait_ms:  # a stopping server answers all waiters that there is no item, then disconnects
                connection.ask(dialect.version())
            return None
        try:
            self._write_item(read.data)
        except BaseException:
            with suppress(ClientFailure):  # if the connection is lost, the server puts the item back
                connection.ask(dialect.abort(self._queue, read))
            raise
        try:
            connection.ask(dialect.confirm(self._queue, read))
        except ClientFailure as failure:
            raise self._failed(failure, 1) from None
        self.count += 1
        return 1

    def _write_item(self, data: bytes) -> None:
        self._write(data)
        self._output.flush()

    def _failed(self, failure: ClientFailure, unconfirmed: int = 0) -> ToolFailed:
        failed = self._servers.failed(failure)
        taken = self.count + unconfirmed
        if not taken:
            return failed
        print_error(TOOL, str(failed))
        again = f", of which the last {unconfirmed} may come again" if unconfirmed else ""
        return ToolFailed(f"{count(taken, 'item')} taken{again}", failed.status)
