"""The requests of the load tools in each protocol. A dialect belongs to one connection.

All dialects have the methods of `TextLoadDialect`. Most return a call: `put` of whether the item was stored, `take` and
`open` of None if no item came within `wait_ms` milliseconds. `finish` confirms the last `take`, and `names` lists all
queues. These two return None where there is no such request.

`may_abort` is true if a request can put an open read back, `reads_are_of_connection` if it is put back when its
connection ends, and `reads_time_out` if `open` can set its timeout, `hold_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from kestrel.address import DEFAULT_PORTS
from kestrel.client.call import LINE, Call, Reply
from kestrel.client.dialect import MemcacheDialect, ThriftDialect, never_closes_connection
from kestrel.client.errors import BadReply, OpenReadsError, RequestError, ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.client.thrift import OpenRead, ThriftCalls
from kestrel.load.numbered_items import MOST_BYTES
from kestrel.names import check_queue_name
from kestrel.protocols.buffer import ReceiveBuffer

T = TypeVar("T")

PORTS: Final[Mapping[str, int]] = {**DEFAULT_PORTS, "text": 2222}

_MOST_LINE_BYTES: Final = 32 * 1024 * 1024
_MOST_LINES: Final = 10_000
"""Maximum number of lines in the statistics of one queue."""

_OPEN_READS: Final = b"Not that many transactions open."


class QueueState(NamedTuple):
    """The state of a queue at one moment."""

    exists: bool | None
    """True if the queue existed before the request; None if the protocol does not tell."""
    items: int = 0
    """Number of items in the queue and of open reads."""
    journal_bytes: int = 0

    @classmethod
    def of(cls, figures: Mapping[str, str]) -> Self:
        """Return the state that a queue's statistics show. Without statistics the queue does not exist.

        Raise `BadReply` if ``items`` is missing or a value is not a number.
        """
        if not figures:
            return cls(False)
        try:
            items = int(figures["items"]) + int(figures.get("open_transactions", "0"))
            return cls(True, items, int(figures.get("logsize", "0")))
        except (KeyError, ValueError):
            raise BadReply("the statistics of the queue are not numbers") from None


class MemcacheLoadDialect(MemcacheDialect):
    """The dialect of the memcache protocol."""

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
        return self._memcache.dump_stats().then(list)


class ThriftLoadDialect(ThriftDialect):
    """The dialect of the thrift service."""

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


class TextLoadDialect:
    """The dialect of the text protocol."""

    may_abort = False
    reads_are_of_connection = True
    reads_time_out = False

    def __init__(self) -> None:
        self.closes_connection = never_closes_connection

    def put(self, queue: bytes, data: bytes) -> Call[bool]:
        """Return a call that puts an item. Raise `RequestError` if the item contains a line feed."""
        if b"\n" in data:
            raise RequestError("an item of the text protocol is a line")
        return _text_call(b"put %b:\n%b\n\n", queue, _number(), data).then(bool)

    def take(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        """Return a call that takes the head. The next `take` or `finish` of this connection confirms it."""
        return _text_call(b"get %b %d\n", queue, _item(), wait_ms, wait_ms=wait_ms)

    def finish(self, queue: bytes) -> Call[None]:
        """Return a call that confirms the last `take`: a peek, which confirms all open reads of this connection."""
        return _text_call(b"peek %b\n", queue, _item()).then(_nothing)

    def open(self, queue: bytes, wait_ms: int, hold_ms: int) -> Call[OpenRead | None]:
        """Return a call that takes the head as an open read. It also confirms earlier open reads of this connection."""
        return self.take(queue, wait_ms).then(lambda data: None if data is None else OpenRead(data))

    def confirm(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Return a call that confirms the oldest open read of the connection; `read` is ignored."""
        return _text_call(b"confirm %b 1\n", queue, _number()).then(_nothing)

    def abort(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Raise `RequestError`: the text protocol cannot put an item back."""
        raise RequestError("the text protocol cannot put an item back; close the connection instead")

    def look(self, queue: bytes) -> Call[QueueState]:
        return _text_call(b"dump_stats %b\n", queue, _figures()).then(QueueState.of)

    def names(self) -> None:
        """Return None: the protocol lists queues only with all their statistics, which is too much to read here."""
        return None

    def flush(self, queue: bytes) -> Call[None]:
        return _text_call(b"flush %b\n", queue, _number()).then(_nothing)

    def delete(self, queue: bytes) -> Call[None]:
        return _text_call(b"delete %b\n", queue, _number()).then(_nothing)


def _text_call(form: bytes, queue: bytes, reply: Reply[T], *arguments: bytes | int, wait_ms: int = 0) -> Call[T]:
    check_queue_name(queue)
    return _TextCall(form % (queue, *arguments), reply, wait_ms=wait_ms)


class _TextCall(Call[T]):
    """A call whose reply has lines that end in a line feed without a carriage return."""

    def _line(self, buffer: ReceiveBuffer) -> bytes | None:
        line = buffer.take_line()
        if (buffer.size if line is None else len(line)) > _MOST_LINE_BYTES:
            raise BadReply(f"a line is longer than {_MOST_LINE_BYTES} bytes")
        return line


def _line() -> Reply[bytes]:
    """Read a line. Raise `OpenReadsError` or `ServerError` if it reports an error."""
    line = yield LINE
    if line.startswith(b"-"):
        if line[1:] == _OPEN_READS:
            raise OpenReadsError("the read had gone back")
        raise ServerError(line[1:].decode("utf-8", "replace"))
    return line


def _item() -> Reply[bytes | None]:
    line = yield from _line()
    if line == b"*":
        return None
    if not line.startswith(b":"):
        raise BadReply(f"a line of {len(line)} bytes is not an item")
    return line[1:]


def _number() -> Reply[int]:
    line = yield from _line()
    if not (line.startswith(b"+") and line[1:].isdigit() and len(line) < 20):
        raise BadReply(f"a line of {len(line)} bytes is not a number")
    return int(line[1:])


def _figures() -> Reply[dict[str, str]]:
    figures: dict[str, str] = {}
    for _ in range(_MOST_LINES):
        line = yield from _item()
        if line is None:
            return figures
        words = line.decode("utf-8", "surrogateescape").split(" ", 2)
        if len(words) != 3:
            raise BadReply(f"a line of {len(line)} bytes is not a statistic")
        figures[words[1]] = words[2]
    raise BadReply(f"the listing has more than {_MOST_LINES} lines")


def _nothing(_: object) -> None:
    pass


LoadDialect: TypeAlias = MemcacheLoadDialect | TextLoadDialect | ThriftLoadDialect

PROTOCOLS: Final[Mapping[str, Callable[[], LoadDialect]]] = {
    "memcache": MemcacheLoadDialect,
    "text": TextLoadDialect,
    "thrift": ThriftLoadDialect,
}
"""Factories of the dialects of connections."""
