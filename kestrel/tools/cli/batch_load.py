"""Pipelined puts of many items, with the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import IntEnum, auto
from typing import Final

from kestrel.address import Address
from kestrel.client.errors import CannotConnect, ClientFailure, ConnectionFailed, NoServer, Refused, ServerError
from kestrel.client.put_batch import batches
from kestrel.config.units import parse_size
from kestrel.escaping import show_name
from kestrel.tools.cli.servers import CommandServers
from kestrel.tools.formatting import count, stat_number
from kestrel.tools.tool_runner import EX_FOUND, ToolFailed

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

    def __init__(self, servers: CommandServers, queue: bytes, expires_in_s: float | None) -> None:
        self._servers = servers
        self._queue = queue
        self._expiry_ms = 0 if expires_in_s is None else round(expires_in_s * 1000)
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
            said.append(f"perhaps put: {_format_ranges(self._unknown)}")
        not_put = list(self._not_put)
        if total is None:
            # Report the last items that were not put and the ones not sent as one range.
            first_after = self._sent + 1
            while not_put and not_put[-1] == first_after - 1:
                first_after = not_put.pop()
            before = f"{_format_ranges(not_put)}, and " if not_put else ""
            said.append(f"not put: {before}{first_after} and all that follow")
        elif not_put := [*not_put, *range(self._sent + 1, total + 1)]:
            said.append(f"not put: {_format_ranges(not_put)}")
        return "; ".join(said)

    def _put_batch(self, batch: Sequence[bytes]) -> None:
        fates = [_PutOutcome.NOT_PUT] * len(batch)
        servers = self._servers.asked
        failure: ClientFailure | None = None
        asked: set[Address] = set()
        try:
            servers.wait_until_known()
            failure = NoServer(servers.writes.no_server_reason)
            while _PutOutcome.NOT_PUT in fates and (address := servers.writes.next(asked)) is not None:
                asked.add(address)
                try:
                    self._send(address, batch, fates)
                except (ServerError, ConnectionFailed) as error:
                    servers.writes.failed(address)
                    failure = error
                    if _PutOutcome.UNKNOWN in fates:
                        break
                    servers.refresh()
                else:
                    servers.writes.answered(address)
                    failure = None
                    break
        except (Refused, NoServer) as error:
            failure = error
        finally:
            first = self._sent + 1
            self._sent += len(batch)
            self.stored += fates.count(_PutOutcome.PUT)
            for number, fate in enumerate(fates, first):
                if fate is _PutOutcome.UNKNOWN:
                    self._unknown.append(number)
                elif fate is not _PutOutcome.PUT:
                    self._not_put.append(number)
        if failure is not None:
            raise self._servers.failed(failure)
        if _PutOutcome.REFUSED in fates:
            position = fates.index(_PutOutcome.REFUSED)
            assert address is not None
            limit = self._limit(address, len(batch[position]))
            queue = show_name(self._queue)
            raise ToolFailed(f"item {first + position} was refused by a limit of the queue {queue}{limit}", EX_FOUND)

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
        calls = self._servers.dialect.put(self._queue, [batch[position] for position in positions], self._expiry_ms)
        refusal: Refused | None = None
        answer: int | Refused = 0
        done = 0
        with self._servers.pool.using(address) as connection:
            for position in positions:
                fates[position] = _PutOutcome.UNKNOWN
            try:
                answers = connection.ask_all([call for _, call in calls])
                for (size, _), answer in zip(calls, answers, strict=True):
                    part = positions[done : done + size]
                    done += size
                    if isinstance(answer, Refused):
                        refusal = answer
                        stored = 0
                    else:
                        stored = answer
                    for position in part[:stored]:
                        fates[position] = _PutOutcome.PUT
                    for position in part[stored:]:
                        fates[position] = _PutOutcome.NOT_PUT
                    if stored < size and answer is not refusal:
                        fates[part[stored]] = _PutOutcome.REFUSED
            except CannotConnect:
                if not isinstance(answer, Refused):
                    raise
                # The server closed the connection after the refusal, and ignored later requests.
                for position in positions[done:]:
                    fates[position] = _PutOutcome.NOT_PUT
        if refusal is not None:
            raise refusal


def _format_ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: ``3 to 5, 8``."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    said = [str(first) if first == last else f"{first} to {last}" for first, last in spans[:_MAX_RANGES]]
    more = sum(last - first + 1 for first, last in spans[_MAX_RANGES:])
    return ", ".join(said) + (f" and {more} more" if more else "")
