"""Kestrel's memcache dialect for clients: a `Call` for every request of docs/protocols.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NoReturn, TypeVar

from kestrel.client.arguments import check_item
from kestrel.client.call import LINE, MAX_LINE_BYTES, Call, HangUp, Reply, Stream
from kestrel.client.errors import BadReply, OpenReadsError, RequestError, ServerError
from kestrel.names import check_queue_name
from kestrel.protocols.memcache import MAX_ITEM_BYTES

T = TypeVar("T")

MAX_LISTING_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a reply to `stats`, `dump_stats` or `dump_config`."""

_LEAST_LINE_BYTES: Final = 64
"""Minimum size counted for a line of a listing, because a short line takes more memory than its bytes."""

_LARGEST: Final = (1 << 31) - 1
"""Largest number on the wire, a signed 32-bit integer."""

_VALUE: Final = re.compile(rb"VALUE ([^ ]+) \d{1,10} (\d{1,10})")
_NUMBER: Final = re.compile(rb"\d{1,20}")
_WORD: Final = re.compile(rb"[A-Za-z_]{1,100}")


class MemcacheCalls:
    """A maker of calls. `max_item_bytes` limits the items sent and received, `max_line_bytes` the reply lines.

    Invalid queue names raise `kestrel.errors.BadQueueName`. Arguments that the protocol cannot express raise
    `RequestError`.
    """

    def __init__(self, max_item_bytes: int = MAX_ITEM_BYTES, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_item_bytes = max_item_bytes
        self._max_line_bytes = max_line_bytes

    # Items.

    def put(self, queue: bytes, data: bytes, expiry_s: int = 0, delay_ms: int = 0) -> Call[bool]:
        """Put an item. The value is True if it was stored, False if a limit of the queue refused it.

        `expiry_s` has the meaning of the wire: 0 is never, values below 1,000,000 are seconds from now, others seconds
        since the epoch. With `delay_ms`, the item becomes visible after that time.
        """
        check_queue_name(queue)
        check_item(data)
        if len(data) > self._max_item_bytes:
            raise RequestError(f"item too large; limit={self._max_item_bytes}")
        key = b"%b/delay=%d" % (queue, delay_ms) if delay_ms else queue
        request = b"set %b 0 %d %d\r\n%b\r\n" % (key, _checked(expiry_s), len(data), data)
        return self._call(request, _one_of({b"STORED": True, b"NOT_STORED": False}))

    def get(
        self,
        queue: bytes,
        wait_ms: int = 0,
        *,
        opens: bool = False,
        closes: bool = False,
        aborts: bool = False,
        peeks: bool = False,
    ) -> Call[bytes | None]:
        """Get the head of the queue. The value is None if there was none for `wait_ms`, or if none was requested.

        `opens` takes it as an open read. `closes` first finishes the oldest open read of this connection and queue.
        `aborts` returns that read to the queue. `peeks` leaves the item in the queue.
        """
        check_queue_name(queue)
        if (aborts and peeks) or ((aborts or peeks) and (opens or closes)):
            raise RequestError("these options do not go together")
        options = [(b"/t=%d" % _checked(wait_ms), wait_ms > 0)]
        options += [(b"/close", closes), (b"/open", opens), (b"/abort", aborts), (b"/peek", peeks)]
        key = queue + b"".join(option for option, is_wanted in options if is_wanted)
        return self._call(b"get %b\r\n" % key, self._item(queue), wait_ms=max(0, wait_ms))

    def monitor(self, queue: bytes, seconds: int, max_items: int | None = None) -> Stream[bytes]:
        """Stream items as they arrive, each as an open read, for `seconds` or up to `max_items`.

        With None only the server's maxOpenTransactions limits the number of items.
        """
        check_queue_name(queue)
        words = b"" if max_items is None else b" %d" % _checked(max_items)
        request = b"monitor %b %d%b\r\n" % (queue, _checked(seconds), words)
        return Stream(request, lambda: self._call(b"", self._item(queue)), wait_ms=max(0, seconds) * 1000)

    def confirm(self, queue: bytes, count: int) -> Call[None]:
        """Finish the oldest `count` open reads of this connection and queue.

        Raises `OpenReadsError`, and confirms nothing, if fewer are open or some have ended, for example by timeout.
        """
        check_queue_name(queue)
        return self._call(b"confirm %b %d\r\n" % (queue, _checked(count)), _done(b"END"))

    # Queues.

    def flush(self, queue: bytes) -> Call[None]:
        """Drop all items of the queue, except open reads."""
        check_queue_name(queue)
        return self._call(b"flush %b\r\n" % queue, _done(b"END"))

    def flush_all(self) -> Call[None]:
        """Drop all items of all queues, except open reads."""
        return self._call(b"flush_all\r\n", _done(b"Flushed all queues."))

    def flush_expired(self, queue: bytes) -> Call[int]:
        """Remove the expired items at the head of the queue. The value is their number."""
        check_queue_name(queue)
        return self._call(b"flush_expired %b\r\n" % queue, _number())

    def flush_all_expired(self) -> Call[int]:
        """Remove the expired items at the heads of all queues. The value is their number."""
        return self._call(b"flush_all_expired\r\n", _number())

    def delete(self, queue: bytes) -> Call[None]:
        """Delete the queue and its items."""
        check_queue_name(queue)
        return self._call(b"delete %b\r\n" % queue, _done(b"DELETED"))

    # The server.

    def stats(self) -> Call[dict[str, str]]:
        """Get the statistics of the server and all queues. Bytes of names that are not UTF-8 are surrogate-escaped."""
        return self._call(b"stats\r\n", _stats())

    def dump_stats(self, *queues: bytes) -> Call[dict[bytes, dict[str, str]]]:
        """Get the statistics of the given queues, or of all. A queue that does not exist has none."""
        return self._call(_naming(b"dump_stats", queues), _dump())

    def dump_config(self, *queues: bytes) -> Call[dict[bytes, dict[str, str]]]:
        """Get the settings of the given queues and aliases, or of all."""
        return self._call(_naming(b"dump_config", queues), _dump())

    def status(self) -> Call[str]:
        """Get the server's status, in capitals."""
        return self._call(b"status\r\n", _word())

    def set_status(self, status: str) -> Call[None]:
        """Set the server's status: Up, WriteAvoid, ReadOnly or Quiescent, in upper or lower case."""
        word = status.encode("utf-8", "replace")
        if _WORD.fullmatch(word) is None:
            raise RequestError(f"{status!r} is not a status")
        return self._call(b"status %b\r\n" % word, _done(b"END"))

    def version(self) -> Call[str]:
        """Get the server's release."""
        return self._call(b"version\r\n", _version())

    def reload(self) -> Call[None]:
        """Make the server reload its configuration. Raises `ServerError` with the reason if it cannot."""
        return self._call(b"reload\r\n", _done(b"Reloaded config."))

    def shutdown(self) -> Call[None]:
        """Shut down the server in an orderly way."""
        return HangUp(b"shutdown\r\n", _nothing(), max_line_bytes=self._max_line_bytes)

    # Parsing of replies.

    def _call(self, request: bytes, reply: Reply[T], wait_ms: int = 0) -> Call[T]:
        return Call(request, reply, wait_ms=wait_ms, max_line_bytes=self._max_line_bytes)

    def _item(self, queue: bytes) -> Reply[bytes | None]:
        line = yield from _line()
        if line == b"END":
            return None
        value = _VALUE.fullmatch(line)
        # Some servers repeat the options. A queue's name never contains a slash.
        if value is None or value[1].partition(b"/")[0] != queue:
            _no_reply(line)
        size = int(value[2])
        if size > self._max_item_bytes:
            raise BadReply(f"the item has {size} bytes; limit={self._max_item_bytes}")
        data = yield size
        if (yield 7) != b"\r\nEND\r\n":
            raise BadReply("the item is longer than its announced size, or its end is damaged")
        return data


def _line() -> Reply[bytes]:
    """Read a line, and raise if it is an error."""
    line = yield LINE
    word, _, reason = line.partition(b" ")
    text = reason.decode("utf-8", "replace")
    if word == b"SERVER_ERROR":
        raise ServerError(text)
    if word == b"CLIENT_ERROR":
        raise RequestError(text)
    if line == b"ERROR":
        raise OpenReadsError("the request conflicts with the open reads of this connection")
    return line


def _no_reply(line: bytes) -> NoReturn:
    # The line is not shown: it may be part of an item, and items must not reach a log.
    raise BadReply(f"a line of {len(line)} bytes is not a reply to the request")


def _one_of(meanings: dict[bytes, T]) -> Reply[T]:
    line = yield from _line()
    if line not in meanings:
        _no_reply(line)
    return meanings[line]


def _done(word: bytes) -> Reply[None]:
    return _one_of({word: None})


def _nothing() -> Reply[None]:
    _no_reply((yield from _line()))


def _number() -> Reply[int]:
    line = yield from _line()
    if _NUMBER.fullmatch(line) is None:
        _no_reply(line)
    return int(line)


def _word() -> Reply[str]:
    line = yield from _line()
    if _WORD.fullmatch(line) is None:
        _no_reply(line)
    return line.decode("ascii")


def _version() -> Reply[str]:
    line = yield from _line()
    word, _, version = line.partition(b" ")
    if word != b"VERSION" or not version:
        _no_reply(line)
    return _text(version)


class _ListingReader:
    """A reader of a listing that limits its size."""

    def __init__(self) -> None:
        self._left = MAX_LISTING_BYTES

    def line(self) -> Reply[bytes | None]:
        """Read the next line. The value is None at the end."""
        line = yield from _line()
        self._left -= max(len(line), _LEAST_LINE_BYTES)
        if self._left < 0:
            raise BadReply(f"the listing is longer than {MAX_LISTING_BYTES} bytes")
        return None if line == b"END" else line


def _stats() -> Reply[dict[str, str]]:
    listing = _ListingReader()
    stats = {}
    while (line := (yield from listing.line())) is not None:
        word, _, rest = line.partition(b" ")
        name, space, value = rest.partition(b" ")
        if word != b"STAT" or not space:
            _no_reply(line)
        stats[_text(name)] = _text(value)
    return stats


def _dump() -> Reply[dict[bytes, dict[str, str]]]:
    listing = _ListingReader()
    queues: dict[bytes, dict[str, str]] = {}
    block: dict[str, str] | None = None
    while (line := (yield from listing.line())) is not None:
        if block is None:
            if not (line.startswith(b"queue '") and line.endswith(b"' {")):
                _no_reply(line)
            block = queues.setdefault(line[7:-3], {})
        elif line == b"}":
            block = None
        elif line.startswith(b"  ") and b"=" in line:
            name, _, value = line[2:].partition(b"=")
            block[_text(name)] = _text(value)
        elif line != b"  ":  # the only line of a queue that does not exist
            _no_reply(line)
    if block is not None:
        raise BadReply("the listing ends in the middle of a queue")
    return queues


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _checked(number: int) -> int:
    if not -_LARGEST <= number <= _LARGEST:
        raise RequestError(f"{number} is out of range")
    return number


def _naming(word: bytes, queues: Iterable[bytes]) -> bytes:
    names = list(queues)
    for name in names:
        check_queue_name(name)
    return b" ".join([word, *names]) + b"\r\n"
