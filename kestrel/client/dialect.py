"""The requests that clients use, with the same methods for both protocols."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final, TypeAlias

from kestrel.address import DEFAULT_PORTS
from kestrel.client.call import Call
from kestrel.client.errors import OpenReadsError, Refused, RequestError
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.thrift import OpenRead, ThriftCalls

LONGEST_EXPIRY_S: Final = 1_000_000
"""Expiry from which memcache would interpret seconds from now as seconds since the epoch."""

_STATUSES: Final = {name.upper(): name for name in ("Up", "WriteAvoid", "ReadOnly", "Quiescent", "Down")}


_CLOSING_ERRORS: Final = re.compile(
    r"the server is \w+"
    r"|too many connections to (?:read|write) on this one"
    r"|this client may not .+"
    r"|there is no such status; .+"
    r"|item too large",
    re.DOTALL,
)
"""The refusals after which a memcache server closes the connection and has not processed any later request.

The error word does not tell which refusals do so. A message that is not listed, such as one of another server, is
assumed not to close the connection: whether later requests were processed is then unknown.
"""


class MemcacheDialect:
    """The memcache protocol. Times are milliseconds. Errors are those of the calls."""

    reads_are_of_connection = True
    """Whether an open read ends with its connection, and can be confirmed only on that connection."""

    def __init__(self, calls: MemcacheCalls) -> None:
        self._calls = calls
        self.closes_connection: Callable[[Refused], bool] = closes_connection
        """Returns True for a refusal after which the server carries out no later request of the connection."""
        self.flush = calls.flush
        self.delete = calls.delete
        self.set_status = calls.set_status
        self.version = calls.version

    def memcache(self) -> MemcacheCalls:
        """Return the maker of the calls that only memcache has. Raises `RequestError` on thrift."""
        return self._calls

    def put(
        self, queue: bytes, items: Sequence[bytes], expiry_ms: int, delay_ms: int = 0
    ) -> Sequence[tuple[int, Call[int]]]:
        """Return calls that together put the items in order, as pairs of the number of items and the call.

        A call's value is the number of items stored. If fewer are stored, a limit of the queue refused the next item or
        the server failed on it. The rest of that call was not tried. `expiry_ms` counts from now; 0 is never. It is
        rounded up to the resolution of the protocol. The items become visible after `delay_ms`.
        """
        expiry_s = ceil(expiry_ms / 1000)
        if expiry_s >= LONGEST_EXPIRY_S:
            raise RequestError(f"memcache does not support an expiry of {LONGEST_EXPIRY_S} seconds or more from now")
        return [(1, self._calls.put(queue, data, expiry_s, delay_ms).then(int)) for data in items]

    def get(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        """Remove the head. The value is None if there was none for `wait_ms`."""
        return self._calls.get(queue, wait_ms)

    def open(self, queue: bytes, wait_ms: int, hold_ms: int) -> Call[OpenRead | None]:
        """Take the head as an open read. The value is None if there was none for `wait_ms`.

        The item returns to the queue when the connection ends (memcache) or after `hold_ms` (thrift).
        """
        return self._calls.get(queue, wait_ms, opens=True).then(lambda data: None if data is None else OpenRead(data))

    def confirm(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Finish an open read; on memcache, the connection's oldest one. Raises `OpenReadsError` if it is no longer
        open.
        """
        # Unlike /close, confirm reports a read that has timed out.
        return self._calls.confirm(queue, 1)

    def abort(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Return an open read to the head of the queue; on memcache, the connection's oldest one."""
        return self._calls.get(queue, aborts=True).then(_nothing)

    def peek(self, queue: bytes) -> Call[bytes | None]:
        """Return the head without removing it, or None."""
        return self._calls.get(queue, peeks=True)

    def status(self) -> Call[str]:
        """Return the server's status in Kestrel's spelling, such as ``ReadOnly``."""
        return self._calls.status().then(lambda word: _STATUSES.get(word.upper(), word))


class ThriftDialect:
    """The thrift service, with the methods of `MemcacheDialect`. It reports WriteAvoid as ``NotConfigured``, since
    thrift has no value for it.
    """

    reads_are_of_connection = False

    def __init__(self, calls: ThriftCalls) -> None:
        self._calls = calls
        self.closes_connection: Callable[[Refused], bool] = never_closes_connection
        self.flush = calls.flush
        self.delete = calls.delete
        self.status = calls.status
        self.set_status = calls.set_status
        self.version = calls.version

    def memcache(self) -> MemcacheCalls:
        raise RequestError("thrift has no such request; use the memcache protocol")

    def put(
        self, queue: bytes, items: Sequence[bytes], expiry_ms: int, delay_ms: int = 0
    ) -> Sequence[tuple[int, Call[int]]]:
        return [(len(items), self._calls.put(queue, items, expiry_ms, delay_ms))]

    def get(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        return self._calls.get(queue, 1, wait_ms).then(lambda items: items[0].data if items else None)

    def open(self, queue: bytes, wait_ms: int, hold_ms: int) -> Call[OpenRead | None]:
        return self._calls.get(queue, 1, wait_ms, hold_ms).then(lambda items: items[0] if items else None)

    def confirm(self, queue: bytes, read: OpenRead) -> Call[None]:
        return self._calls.confirm(queue, [read.id]).then(_was_open)

    def abort(self, queue: bytes, read: OpenRead) -> Call[None]:
        return self._calls.abort(queue, [read.id]).then(_nothing)

    def peek(self, queue: bytes) -> Call[bytes | None]:
        return self._calls.peek(queue).then(lambda info: info.head)


Dialect: TypeAlias = MemcacheDialect | ThriftDialect


def make_dialect(protocol: str, max_item_bytes: int) -> Dialect:
    """Return the dialect of a protocol, for items of at most `max_item_bytes`. Raises ValueError for another word."""
    if protocol == "memcache":
        return MemcacheDialect(MemcacheCalls(max_item_bytes))
    if protocol == "thrift":
        return ThriftDialect(ThriftCalls(max_item_bytes=max_item_bytes))
    raise ValueError(f"unknown protocol {protocol!r}; choose from {', '.join(DEFAULT_PORTS)}")


def _nothing(_: object) -> None:
    pass


def _was_open(count: int) -> None:
    if not count:
        raise OpenReadsError("the read is no longer open: its item has returned to the queue")


def closes_connection(refusal: Refused) -> bool:
    """Return True if a memcache server that refuses in these words processes nothing more on the connection."""
    return _CLOSING_ERRORS.fullmatch(str(refusal)) is not None


def never_closes_connection(_: Refused) -> bool:
    """Return False: a thrift server closes the connection only after an unreadable frame."""
    return False
