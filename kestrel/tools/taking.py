"""Taking items so that none is lost: each is confirmed when it has been written, and goes back if it cannot be."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from kestrel.client.address import Address
from kestrel.client.errors import ClientFailure
from kestrel.tools.figures import number
from kestrel.tools.item_forms import WriteItem
from kestrel.tools.output import Output
from kestrel.tools.running import ToolFailed, say
from kestrel.tools.servers import TOOL, Servers
from kestrel.tools.shown import count

_AT_ONCE: Final = 100
"""As many open reads as the configurations allow that people start from."""

_PATIENCE_S: Final = 1
"""The least that can be said. It goes by only where another client takes what was there."""


class Taking:
    """Takes items of a queue and writes them. Whatever it does may raise `ToolFailed`, and as `Output` does."""

    def __init__(self, servers: Servers, queue: bytes, output: Output, write: WriteItem) -> None:
        self._servers = servers
        self._queue = queue
        self._output = output
        self._write = write
        self._is_worthwhile = servers.has_memcache
        """To ask for many at once."""
        self.count = 0
        """How many have been written."""

    def take(self, wait_s: float, most: float) -> bool:
        """Take one, waiting so long for it; or, where many are there, up to `most`. Whether there was one."""
        if self._is_worthwhile and most > 1:
            for address in self._servers.addresses:
                size = self._size_at(address, most)
                if size > 1 and self._take_many(address, size):
                    return True
        return self._take_one(wait_s)

    def _size_at(self, address: Address, most: float) -> int:
        """How many to take at once from there; 0 where nobody answers, which may be one server of several."""
        try:
            with self._servers.pool.using(address) as connection:
                figures = connection.ask(self._servers.memcache.dump_stats(self._queue))
        except ClientFailure:
            return 0
        return int(min(number(figures.get(self._queue, {}), "items"), most, _AT_ONCE))

    def _take_many(self, address: Address, size: int) -> int:
        """Take up to so many from one server, which are there unless another client was faster. How many there were."""
        calls = self._servers.memcache
        taken = written = 0
        failure: BaseException | None = None
        try:
            with self._servers.pool.using(address) as connection:
                with closing(connection.stream(calls.monitor(self._queue, _PATIENCE_S, size))) as items:
                    for data in items:
                        taken += 1
                        if failure is None:
                            try:
                                self._put_out(data)
                            except BaseException as error:  # what was written before is to be confirmed all the same
                                failure = error
                            else:
                                written += 1
                if written:
                    connection.ask(calls.confirm(self._queue, written))
                if taken > written:
                    connection.close()  # and the others go back
        except ClientFailure as error:
            raise self._failed(error, written) from None
        self.count += written
        if failure is not None:
            raise failure
        self._is_worthwhile = taken > 1  # else the server's maxOpenTransactions is 1
        return taken

    def _take_one(self, wait_s: float) -> bool:
        written = 0
        try:
            with self._servers.client.reliable_get(self._queue, wait_s) as data:
                if data is None:
                    return False
                self._put_out(data)
                written = 1
        except ClientFailure as failure:
            raise self._failed(failure, written) from None
        self.count += 1
        return True

    def _put_out(self, data: bytes) -> None:
        self._write(data)
        self._output.flush()

    def _failed(self, failure: ClientFailure, unconfirmed: int) -> ToolFailed:
        failed = self._servers.failed(failure)
        taken = self.count + unconfirmed
        if not taken:
            return failed
        say(TOOL, str(failed))
        again = f", of which the last {unconfirmed} may come again" if unconfirmed else ""
        return ToolFailed(f"{count(taken, 'item')} taken{again}", failed.status)
