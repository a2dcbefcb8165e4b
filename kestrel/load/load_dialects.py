"""What the load tools ask of a queue, in the requests of each protocol. A wire is that of one connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from kestrel.address import DEFAULT_PORTS
from kestrel.client.call import Call
from kestrel.client.closing_errors import closes_connection, never_closes_connection
from kestrel.client.dialect import MemcacheDialect, ThriftDialect
from kestrel.client.errors import Refused
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.thrift import OpenRead, ThriftCalls
from kestrel.load.numbered_items import MOST_BYTES
from kestrel.load.queue_state import QueueState
from kestrel.load.text_dialect import TextLoadDialect

PORTS: Final[Mapping[str, int]] = {**DEFAULT_PORTS, "text": 2222}


class LoadDialect(Protocol):
    """Makes calls. Times are milliseconds."""

    may_abort: bool
    """Whether an open read can be put back by a request."""
    reads_are_of_connection: bool
    """Whether an open read goes back when its connection ends."""
    reads_time_out: bool
    """Whether an open read goes back after a time that the client says."""

    def put(self, queue: bytes, data: bytes) -> Call[bool]:
        """Whether the item was stored."""

    def take(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        """The head, for good. In text it is so with the next `take`, or with `finish`."""

    def finish(self, queue: bytes) -> Call[None] | None:
        """What the last `take` still needs, if anything."""

    def open(self, queue: bytes, wait_ms: int, hold_ms: int) -> Call[OpenRead | None]:
        """The head, as an open read."""

    def confirm(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Finish it. `OpenReadsError`: it had gone back."""

    def abort(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Put it back."""

    def look(self, queue: bytes) -> Call[QueueState]:
        """How much there is in the queue."""

    def names(self) -> Call[list[bytes]] | None:
        """Of all queues; None where the protocol does not tell them, or not all."""

    def flush(self, queue: bytes) -> Call[None]:
        """Drop what is in it."""

    def delete(self, queue: bytes) -> Call[None]:
        """Forget it."""


class MemcacheLoadDialect(MemcacheDialect):
    """`LoadDialect` of the memcache protocol."""

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
    """`LoadDialect` of the thrift service."""

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
    """A protocol: what makes its calls, and which refusals end a connection."""

    make: Callable[[], LoadDialect]
    closes_connection: Callable[[Refused], bool]


PROTOCOLS: Final[Mapping[str, LoadProtocol]] = {
    "memcache": LoadProtocol(MemcacheLoadDialect, closes_connection),
    "text": LoadProtocol(TextLoadDialect, never_closes_connection),
    "thrift": LoadProtocol(ThriftLoadDialect, never_closes_connection),
}
