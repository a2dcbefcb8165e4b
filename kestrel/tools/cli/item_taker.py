"""Taking items without losing one: each is confirmed after it is written, or put back if it cannot be written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

from kestrel.address import Address
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import ClientFailure, ConnectionFailed
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.formatting import count, stat_number
from kestrel.tools.tool_runner import Output, ToolFailed, print_error

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
            taken = self._servers.asked.search(
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
        for address in self._connections.keys() - set(self._servers.asked.servers):
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
