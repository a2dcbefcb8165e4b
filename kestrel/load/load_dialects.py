"""The requests of the load tools in each protocol. A dialect belongs to one connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from kestrel.address import DEFAULT_PORTS
from kestrel.client.call import Call
from kestrel.client.dialect import MemcacheDialect, ThriftDialect, closes_connection, never_closes_connection
from kestrel.client.errors import Refused
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.thrift import OpenRead, ThriftCalls
from kestrel.load.numbered_items import MOST_BYTES
from kestrel.load.queue_state import QueueState
from kestrel.load.text_dialect import TextLoadDialect

PORTS: Final[Mapping[str, int]] = {**DEFAULT_PORTS, "text": 2222}


class LoadDialect(Protocol):
    """A maker of calls in one protocol. Times are in milliseconds."""

    may_abort: bool
    """True if a request can put an open read back."""
    reads_are_of_connection: bool
    """True if an open read is put back when its connection ends."""
    reads_time_out: bool
    """True if the client can set the timeout of an open read."""

    def put(self, queue: bytes, data: bytes) -> Call[bool]:
        """Return a call that puts an item. Its result is whether the item was stored."""

    def take(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        """Return a call that takes the head and confirms it. Its result is None if no item came within `wait_ms`.

        The text protocol confirms with the next `take` or `finish`.
        """

    def finish(self, queue: bytes) -> Call[None] | None:
        """Return a call that confirms the last `take`, or None if that is not needed."""

    def open(self, queue: bytes, wait_ms: int, hold_ms: int) -> Call[OpenRead | None]:
        """Return a call that takes the head as an open read. Its result is None if no item came within `wait_ms`.

        `hold_ms` is the timeout of the open read, if the client can set it.
        """

    def confirm(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Return a call that confirms an open read. It raises `OpenReadsError` if the read was already put back."""

    def abort(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Return a call that puts an open read back."""

    def look(self, queue: bytes) -> Call[QueueState]:
        """Return a call for the state of a queue."""

    def names(self) -> Call[list[bytes]] | None:
        """Return a call for the names of all queues, or None if the protocol cannot list them."""

    def flush(self, queue: bytes) -> Call[None]:
        """Return a call that drops all items of a queue."""

    def delete(self, queue: bytes) -> Call[None]:
        """Return a call that deletes a queue."""


class MemcacheLoadDialect(MemcacheDialect):
    """The `LoadDialect` of the memcache protocol."""

    may_abort = True
    reads_time_out = False

    def __init__(self) -> None:
        self._memcache = MemcacheCalls(MOST_BYTES)
        super().__init__(self._memcache)

    def put(self, queue: bytes, data: bytes) -> Call[bool]:  # type: ignore[override]
        return self._memcache.put(queue, data)

    def take(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        return self._memcache.get(queue, wait_ms)

    def finish(self, queue: bytes) -> None:
        return None

    def look(self, queue: bytes) -> Call[QueueState]:
        def looked(figures: dict[bytes, dict[str, str]]) -> QueueState:
            return QueueState.of(figures.get(queue, {}))

        return self._memcache.dump_stats(queue).then(looked)

    def names(self) -> Call[list[bytes]]:
        return self._memcache.dump_stats().then(_keys)


class ThriftLoadDialect(ThriftDialect):
    """The `LoadDialect` of the thrift service."""

    may_abort = True
    reads_time_out = True

    def __init__(self) -> None:
        self._thrift = ThriftCalls(max_item_bytes=MOST_BYTES)
        super().__init__(self._thrift)

    def put(self, queue: bytes, data: bytes) -> Call[bool]:  # type: ignore[override]
        return self._thrift.put(queue, [data]).then(bool)

    def take(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        return self.get(queue, wait_ms)

    def finish(self, queue: bytes) -> None:
        return None

    def look(self, queue: bytes) -> Call[QueueState]:
        return self._thrift.peek(queue).then(
            lambda info: QueueState(None, info.items + info.open_reads, info.journal_bytes)
        )

    def names(self) -> None:
        return None


def _keys(figures: dict[bytes, dict[str, str]]) -> list[bytes]:
    return list(figures)


class LoadProtocol(NamedTuple):
    """A protocol: a factory of its dialect, and a test for refusals that end the connection."""

    make: Callable[[], LoadDialect]
    closes_connection: Callable[[Refused], bool]


PROTOCOLS: Final[Mapping[str, LoadProtocol]] = {
    "memcache": LoadProtocol(MemcacheLoadDialect, closes_connection),
    "text": LoadProtocol(TextLoadDialect, never_closes_connection),
    "thrift": LoadProtocol(ThriftLoadDialect, never_closes_connection),
}
