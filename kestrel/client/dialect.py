"""What a client does with items and queues, in the requests of either protocol."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final, Protocol

from kestrel.client.call import Call
from kestrel.client.errors import OpenReadsError, RequestError
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.thrift import OpenRead, ThriftCalls

LONGEST_EXPIRY_S: Final = 1_000_000
"""From here on memcache would take seconds from now for seconds since the epoch."""

_STATUSES: Final = {name.upper(): name for name in ("Up", "WriteAvoid", "ReadOnly", "Quiescent", "Down")}


class Dialect(Protocol):
    """Makes the calls of one connection. Times are milliseconds; errors are those of the calls."""

    reads_are_of_connection: bool
    """Whether an open read ends with its connection, and is confirmed on that one alone."""

    def put(self, queue: bytes, items: Sequence[bytes], expiry_ms: int) -> Sequence[tuple[int, Call[int]]]:
        """Calls that put the items together, in their order: how many items a call has, and how many go in.

        Where fewer go in, a limit of the queue refused the next one, or the server failed at it, and those after it in
        the same call were not tried. `expiry_ms` counts from now; 0 is never; what is finer than the protocol can say
        is rounded up.
        """

    def get(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        """The head, taken for good; None when there was none for so long."""

    def open(self, queue: bytes, wait_ms: int, hold_ms: int) -> Call[OpenRead | None]:
        """The head, as an open read; None when there was none for so long.

        It goes back by itself: on memcache at the end of the connection, on thrift after `hold_ms`.
        """

    def confirm(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Finish it; on memcache whatever is the oldest open read. `OpenReadsError`: it had gone back already."""

    def abort(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Put it back at the head; on memcache whatever is the oldest open read."""

    def peek(self, queue: bytes) -> Call[bytes | None]:
        """The head, which stays, or None."""

    def flush(self, queue: bytes) -> Call[None]:
        """Drop what is in the queue."""

    def delete(self, queue: bytes) -> Call[None]:
        """Forget the queue."""

    def status(self) -> Call[str]:
        """The server's status as Kestrel spells it, such as ``ReadOnly``."""

    def set_status(self, status: str) -> Call[None]:
        """Have the server take another status."""

    def version(self) -> Call[str]:
        """The server's release."""


class MemcacheDialect:
    """`Dialect` of the memcache protocol."""

    reads_are_of_connection = True

    def __init__(self, calls: MemcacheCalls) -> None:
        self._calls = calls
        self.flush = calls.flush
        self.delete = calls.delete
        self.set_status = calls.set_status
        self.version = calls.version

    def put(self, queue: bytes, items: Sequence[bytes], expiry_ms: int) -> Sequence[tuple[int, Call[int]]]:
        expiry_s = ceil(expiry_ms / 1000)
        if expiry_s >= LONGEST_EXPIRY_S:
            raise RequestError(f"memcache cannot say an expiry of {LONGEST_EXPIRY_S} seconds and more from now")
        return [(1, self._calls.put(queue, data, expiry_s).then(int)) for data in items]

    def get(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        return self._calls.get(queue, wait_ms)

    def open(self, queue: bytes, wait_ms: int, hold_ms: int) -> Call[OpenRead | None]:
        return self._calls.get(queue, wait_ms, opens=True).then(lambda data: None if data is None else OpenRead(data))

    def confirm(self, queue: bytes, read: OpenRead) -> Call[None]:
        # Not a close, which does not tell when the read has timed out.
        return self._calls.confirm(queue, 1)

    def abort(self, queue: bytes, read: OpenRead) -> Call[None]:
        return self._calls.get(queue, aborts=True).then(_nothing)

    def peek(self, queue: bytes) -> Call[bytes | None]:
        return self._calls.get(queue, peeks=True)

    def status(self) -> Call[str]:
        return self._calls.status().then(lambda word: _STATUSES.get(word.upper(), word))


class ThriftDialect:
    """`Dialect` of the thrift service. A `WriteAvoid` is told as ``NotConfigured``: thrift has no word for it."""

    reads_are_of_connection = False

    def __init__(self, calls: ThriftCalls) -> None:
        self._calls = calls
        self.flush = calls.flush
        self.delete = calls.delete
        self.status = calls.status
        self.set_status = calls.set_status
        self.version = calls.version

    def put(self, queue: bytes, items: Sequence[bytes], expiry_ms: int) -> Sequence[tuple[int, Call[int]]]:
        return [(len(items), self._calls.put(queue, items, expiry_ms))]

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


def _nothing(_: object) -> None:
    pass


def _was_open(count: int) -> None:
    if not count:
        raise OpenReadsError("the read was not open any more: the item has gone back to its queue")
