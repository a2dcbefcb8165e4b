"""The client side of the text protocol, as far as the load tools need it. Items are lines."""

from __future__ import annotations

from typing import Final, TypeVar

from kestrel.client.call import LINE, Call, Reply
from kestrel.client.errors import BadReply, OpenReadsError, RequestError, ServerError
from kestrel.client.thrift import OpenRead
from kestrel.load.queue_state import QueueState
from kestrel.names import check_queue_name
from kestrel.protocols.buffer import ReceiveBuffer

T = TypeVar("T")

_MOST_LINE_BYTES: Final = 32 * 1024 * 1024
_MOST_LINES: Final = 10_000
"""Maximum number of lines in the statistics of one queue."""

_OPEN_READS: Final = b"Not that many transactions open."


class TextLoadDialect:
    """The `LoadDialect` of the text protocol."""

    may_abort = False
    reads_are_of_connection = True
    reads_time_out = False

    def put(self, queue: bytes, data: bytes) -> Call[bool]:
        """Return a call that puts an item. Raise `RequestError` if the item contains a line feed."""
        check_queue_name(queue)
        if b"\n" in data:
            raise RequestError("an item of the text protocol is a line")
        return _TextCall(b"put %b:\n%b\n\n" % (queue, data), _number()).then(bool)

    def take(self, queue: bytes, wait_ms: int) -> Call[bytes | None]:
        """Return a call that takes the head. The next `take` or `finish` of this connection confirms it."""
        check_queue_name(queue)
        return _TextCall(b"get %b %d\n" % (queue, wait_ms), _item(), wait_ms=wait_ms)

    def finish(self, queue: bytes) -> Call[None]:
        """Return a call that confirms the last `take`: a peek, which confirms all open reads of this connection."""
        check_queue_name(queue)
        return _TextCall(b"peek %b\n" % queue, _item()).then(_nothing)

    def open(self, queue: bytes, wait_ms: int, hold_ms: int) -> Call[OpenRead | None]:
        """Return a call that takes the head as an open read. It also confirms earlier open reads of this connection."""
        return self.take(queue, wait_ms).then(lambda data: None if data is None else OpenRead(data))

    def confirm(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Return a call that confirms the oldest open read of the connection; `read` is ignored."""
        check_queue_name(queue)
        return _TextCall(b"confirm %b 1\n" % queue, _number()).then(_nothing)

    def abort(self, queue: bytes, read: OpenRead) -> Call[None]:
        """Raise `RequestError`: the text protocol cannot put an item back."""
        raise RequestError("the text protocol cannot put an item back; close the connection instead")

    def look(self, queue: bytes) -> Call[QueueState]:
        """Return a call for the state of a queue."""
        check_queue_name(queue)
        return _TextCall(b"dump_stats %b\n" % queue, _figures()).then(QueueState.of)

    def names(self) -> None:
        """Return None: the protocol lists queues only with all their statistics, which is too much to read here."""
        return None

    def flush(self, queue: bytes) -> Call[None]:
        """Return a call that drops all items of a queue."""
        check_queue_name(queue)
        return _TextCall(b"flush %b\n" % queue, _number()).then(_nothing)

    def delete(self, queue: bytes) -> Call[None]:
        """Return a call that deletes a queue."""
        check_queue_name(queue)
        return _TextCall(b"delete %b\n" % queue, _number()).then(_nothing)


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
