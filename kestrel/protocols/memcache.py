"""The codec of Kestrel's memcache dialect.

docs/protocol_memcache.md lists the requests and replies. docs/differences.md lists the differences from Kestrel by
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kestrel import commands, errors
from kestrel.escaping import escape_non_ascii
from kestrel.protocols.buffer import CRLF, NoLineEnd
from kestrel.protocols.codec import Codec, Stat
from kestrel.protocols.line_parsing import (
    BadNumber,
    detect_other_protocol,
    encode_one_line,
    parse_delay_ms,
    parse_int32,
    split_words,
)

MAX_LINE_BYTES: Final = 8 * 1024
MAX_ITEM_BYTES: Final = 16 * 1024 * 1024

_ABSOLUTE_EXPIRY_S: Final = 1_000_000
"""An expiry of at least this value is in seconds since the epoch. A lower value is in seconds from now."""

_MAX_CACHED_LINES: Final = 4096
_MAX_CACHED_LINE_BYTES: Final = 128
"""Limit of a cached line. Longer lines are parsed each time, so that the cache takes four megabytes at most."""

_UNSUPPORTED_STORES: Final = frozenset({b"add", b"replace", b"append", b"prepend", b"cas"})

_BAD_DELAY: Final = f"delay= takes milliseconds from 0 to {commands.MAX_DELAY_MS}"

_NOREPLY: Final = b"noreply"
"""The last word of a request that is not answered."""

_SUCCESS_REPLIES: Final[dict[type[commands.Command], bytes]] = {
    commands.Delete: b"DELETED\r\n",
    commands.Flush: b"END\r\n",
    commands.FlushAll: b"Flushed all queues.\r\n",
    commands.Confirm: b"END\r\n",
    commands.Reload: b"Reloaded config.\r\n",
    commands.Status: b"END\r\n",
    commands.Shutdown: b"",
}

_ERRORS: Final[tuple[tuple[type[Exception], bytes, bool], ...]] = (
    # class, first word, whether the connection is closed; the first matching class counts
    (errors.TooManyOpenReads, b"ERROR", True),
    (errors.OpenReadExists, b"ERROR", True),
    (errors.TooFewOpenReads, b"ERROR", False),
    (errors.UnknownStatus, b"CLIENT_ERROR", True),
    (errors.ClientError, b"CLIENT_ERROR", False),
    (errors.Unavailable, b"SERVER_ERROR", True),
    (errors.KestrelError, b"SERVER_ERROR", False),
    (Exception, b"SERVER_ERROR", True),
)


class _AnnouncedSet:
    """A `set` line whose data has not arrived. `problem` is the reason why it will not be stored."""

    __slots__ = ("closes", "delay_ms", "expiry_is_relative", "expiry_ms", "problem", "queue", "size", "wants_reply")

    def __init__(
        self,
        queue: bytes,
        delay_ms: int,
        expiry_s: int,
        size: int,
        problem: str | None,
        closes: bool,
        wants_reply: bool,
    ) -> None:
        self.queue = queue
        self.delay_ms = delay_ms
        self.expiry_ms = expiry_s * 1000
        self.expiry_is_relative = expiry_s < _ABSOLUTE_EXPIRY_S
        self.size = size
        self.problem = problem
        self.closes = closes
        self.wants_reply = wants_reply


class _ParsedLine:
    """A line with its line feed, and its request. `following` is the line that followed it last, of any client."""

    __slots__ = ("following", "line", "request")

    def __init__(self, line: bytes, request: commands.Get | _AnnouncedSet) -> None:
        self.line = line
        self.request = request
        self.following = self


_PARSED_LINES: Final[dict[bytes, _ParsedLine]] = {}
"""Cache of parsed lines, for all clients. The keys have no line feed."""


class MemcacheCodec(Codec):
    """The memcache codec of one connection (`kestrel.protocols.codec.Codec`).

    It holds at most a line, or an item with its line, and one network read after it.
    """

    def __init__(
        self,
        max_line_bytes: int = MAX_LINE_BYTES,
        max_item_bytes: int = MAX_ITEM_BYTES,
        echo_requested_key: bool = True,
    ) -> None:
        super().__init__()
        self._max_line_bytes = max_line_bytes
        self._max_item_bytes = max_item_bytes
        self._echo_requested_key = echo_requested_key
        self._announced: _AnnouncedSet | None = None
        self._last_line: _ParsedLine | None = None
        """The last line, if it is cached. Clients repeat their lines in the same order, so the next one can be guessed
        and compared, without a search for its end.
        """

    # Bytes to commands.

    def __len__(self) -> int:
        return self.buffer.size or int(self._announced is not None)

    def end(self) -> None:
        super().end()
        self._announced = None

    def next_command(self) -> commands.Command | None:
        announced = self._announced
        if announced is None:
            last = self._last_line
            if last is not None and self.buffer.skip(last.following.line):
                parsed = self._last_line = last.following
                request: commands.Command | _AnnouncedSet = parsed.request
            else:
                line = self.buffer.take_line()
                if (self.buffer.size if line is None else len(line)) > self._max_line_bytes:
                    return self._out_of_step("line too long")
                if line is None:
                    return None
                request = self._request_of(line, last)
            if not isinstance(request, _AnnouncedSet):
                if isinstance(request, commands.Malformed) and request.closes:
                    self.end()
                return request
            if request.size > self._max_item_bytes:
                return self._out_of_step("item too large", request.wants_reply)
            announced = request
        try:
            data = self.buffer.take(announced.size, CRLF)
        except NoLineEnd:
            return self._out_of_step("bad data chunk", announced.wants_reply)
        if data is None:
            self._announced = announced
            return None
        self._announced = None
        wants_reply = announced.wants_reply
        if announced.problem is not None:
            if announced.closes:
                return self._out_of_step(announced.problem, wants_reply)
            return commands.Malformed(announced.problem, closes=False, wants_reply=wants_reply)
        queue, expiry_ms, is_relative = announced.queue, announced.expiry_ms, announced.expiry_is_relative
        if announced.delay_ms:
            delay_ms = announced.delay_ms
            return commands.DelayedPut(queue, (data,), expiry_ms, is_relative, delay_ms, wants_reply=wants_reply)
        return commands.Put(queue, (data,), expiry_ms, is_relative, wants_reply=wants_reply)

    def _request_of(self, line: bytes, last: _ParsedLine | None) -> commands.Command | _AnnouncedSet:
        """Return the request of a line that was not guessed from the `last` one."""
        parsed = _PARSED_LINES.get(line)
        if parsed is None:
            request = _parse_line(line)
            parsed = _PARSED_LINES.get(line)
            if parsed is None:
                return request
        if last is not None:
            last.following = parsed
        self._last_line = parsed
        return parsed.request

    def _out_of_step(self, reason: str, wants_reply: bool = True) -> commands.Malformed:
        """Drop the rest of the stream, which cannot be parsed reliably after this error."""
        self.end()
        return commands.Malformed(reason, closes=True, wants_reply=wants_reply)

    # Results to bytes.

    def stored(self, command: commands.Put, count: int) -> bytes:
        if not command.wants_reply:
            return b""
        return b"STORED\r\n" if count else b"NOT_STORED\r\n"

    def item(self, command: commands.Get | commands.Monitor, data: bytes) -> bytes:
        """Return a VALUE block. It has the requested key, or the queue name without options as in Kestrel."""
        key = command.key if self._echo_requested_key else command.queue
        return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, len(data), data)

    def no_item(self, command: commands.Get | commands.Monitor) -> bytes:
        return b"END\r\n"

    def done(self, command: commands.Command) -> bytes:
        return b"" if _is_silent(command) else _SUCCESS_REPLIES[type(command)]

    def number(self, command: commands.Command, value: int) -> bytes:
        return b"%d\r\n" % value

    def version(self, command: commands.Command, version: str) -> bytes:
        return b"VERSION %b\r\n" % version.encode("ascii")

    def status(self, command: commands.Command, name: str) -> bytes:
        return name.upper().encode("ascii") + b"\r\n"

    def stats(self, command: commands.Command, stats: Iterable[Stat]) -> bytes:
        """Return STAT lines in ASCII: python-memcached fails on anything else."""
        return escape_non_ascii("".join([f"STAT {name} {value}\r\n" for name, value in stats])).encode()

    def dump_stats(self, command: commands.Command, queue: bytes, stats: Sequence[Stat]) -> bytes:
        # As in Kestrel, a missing queue has one line of two spaces.
        lines = [f"  {name}={value}\r\n" for name, value in stats] or ["  \r\n"]
        return b"queue '%b' {\r\n%b}\r\n" % (queue, "".join(lines).encode())

    def end_of_list(self, command: commands.Command) -> bytes:
        return b"END\r\n"

    def error(self, command: commands.Command, error: Exception) -> tuple[bytes, bool]:
        word, closes = next((word, closes) for kind, word, closes in _ERRORS if isinstance(error, kind))
        if _is_silent(command):
            return b"", closes
        if word == b"ERROR":
            return b"ERROR\r\n", closes
        reason = str(error) if isinstance(error, errors.KestrelError) else "internal error"
        return b"%b %b\r\n" % (word, encode_one_line(reason)), closes


def _is_silent(command: commands.Command) -> bool:
    return isinstance(command, commands.OptionalReplyCommand) and not command.wants_reply


# Parsing of lines. Equal lines have equal requests, whichever client sends them.


def _parse_line(line: bytes) -> commands.Command | _AnnouncedSet:
    """Return the request of a line. The stream is out of step after a `Malformed` that closes."""
    words = split_words(line[:-1] if line.endswith(b"\r") else line)
    if not words:
        return _fatal("empty line")
    parse = _PARSERS.get(words[0].lower())
    if parse is None or b"/" in line:
        protocol = detect_other_protocol(line)
        if protocol is not None:
            return commands.OtherProtocol(protocol)
    if parse is None:
        return _fatal("unknown command")
    request = parse(words)
    if isinstance(request, (commands.Get, _AnnouncedSet)):
        _cache_request(line, request)
    return request


def _cache_request(line: bytes, request: commands.Get | _AnnouncedSet) -> None:
    """Cache a request, since clients repeat their gets and sets. Cached requests must not be changed."""
    if len(line) <= _MAX_CACHED_LINE_BYTES:
        if len(_PARSED_LINES) >= _MAX_CACHED_LINES:
            for parsed in _PARSED_LINES.values():
                parsed.following = parsed  # otherwise the last line of an idle client would keep them all
            _PARSED_LINES.clear()
        _PARSED_LINES[line] = _ParsedLine(line + b"\n", request)


def _malformed(reason: str) -> commands.Malformed:
    return commands.Malformed(reason, closes=False)


def _fatal(reason: str) -> commands.Malformed:
    return commands.Malformed(reason, closes=True)


def _wants_reply(words: list[bytes], arguments: int) -> bool:
    """Return False if `noreply` follows the command word and at least this number of arguments."""
    return words[-1] != _NOREPLY or len(words) < arguments + 2


def _set(words: list[bytes]) -> commands.Command | _AnnouncedSet:
    problem = None
    closes = False
    command = words[0].lower()
    if command in _UNSUPPORTED_STORES:
        problem, closes = "only set is supported", True
    wants_reply = _wants_reply(words, 5 if command == b"cas" else 4)
    try:
        size = parse_int32(words[4])
    except IndexError:
        return _fatal("set needs a queue, flags, an expiry and a length")
    except BadNumber:
        if words[4].isdigit():
            return commands.Malformed("item too large", closes=True, wants_reply=wants_reply)
        return _fatal("length is not a number")
    if size < 0:
        return _fatal("length is negative")
    expiry_s = 0
    try:
        parse_int32(words[2])
    except BadNumber:
        problem = problem or "flags are not a number"
    try:
        expiry_s = parse_int32(words[3])
    except BadNumber:
        problem = problem or "expiry is not a number"
    queue, has_delay, delay = words[1].partition(b"/delay=")
    try:
        delay_ms = parse_delay_ms(delay) if has_delay else 0
    except BadNumber:
        delay_ms, problem = 0, problem or _BAD_DELAY
    return _AnnouncedSet(queue, delay_ms, expiry_s, size, problem, closes, wants_reply)


def _get(words: list[bytes]) -> commands.Command:
    if len(words) < 2:
        return _name_required()
    key = words[1]
    if b"/" not in key:
        return commands.Get(key)
    queue, *options = key.split(b"/")
    if not queue:
        return _fatal("queue name required") if any(options) else _name_required()
    wait_ms = 0
    opens = closes = aborts = peeks = False
    for option in options:
        if option == b"open":
            opens = True
        elif option == b"close":
            closes = True
        elif option == b"abort":
            aborts = True
        elif option == b"peek":
            peeks = True
        elif option.startswith(b"t="):
            try:
                wait_ms = parse_int32(option[2:])
            except BadNumber:
                return _malformed("t= is not a number")
    if (aborts and peeks) or ((aborts or peeks) and (opens or closes)):
        return _fatal("these options do not go together")
    return commands.Get(queue, wait_ms, opens=opens, closes=closes, aborts=aborts, peeks=peeks, key=key)


def _monitor(words: list[bytes]) -> commands.Command:
    if len(words) < 3:
        return _malformed("monitor needs a queue and seconds")
    try:
        seconds = parse_int32(words[2])
        max_items = parse_int32(words[3]) if len(words) > 3 else None
    except BadNumber:
        return _malformed("monitor takes numbers after the queue")
    return commands.Monitor(words[1], seconds * 1000, max_items)


def _confirm(words: list[bytes]) -> commands.Command:
    if len(words) < 3:
        return _malformed("confirm needs a queue and a count")
    try:
        return commands.Confirm(words[1], parse_int32(words[2]))
    except BadNumber:
        return _malformed("count is not a number")


def _delete(words: list[bytes]) -> commands.Command:
    if len(words) < 2:
        return _name_required()
    return commands.Delete(words[1], wants_reply=_wants_reply(words, 1))


def _flush_all(words: list[bytes]) -> commands.Command:
    return commands.FlushAll(wants_reply=_wants_reply(words, 0))


def _name_required() -> commands.Malformed:
    return _malformed("queue name required")


def _with_queue_name(command: Callable[[bytes], commands.Command]) -> Callable[[list[bytes]], commands.Command]:
    """Return a parser for a request whose only argument is a queue name. Further words are ignored."""
    return lambda words: command(words[1]) if len(words) > 1 else _name_required()


def _without_arguments(command: type[commands.Command]) -> Callable[[list[bytes]], commands.Command]:
    """Return a parser for a request without arguments. Further words are ignored."""
    return lambda words: command()


_PARSERS: Final[dict[bytes, Callable[[list[bytes]], commands.Command | _AnnouncedSet]]] = {
    b"set": _set,
    b"get": _get,
    b"gets": _get,
    b"delete": _delete,
    b"flush": _with_queue_name(commands.Flush),
    b"flush_all": _flush_all,
    b"flush_expired": _with_queue_name(commands.FlushExpired),
    b"flush_all_expired": _without_arguments(commands.FlushAllExpired),
    b"monitor": _monitor,
    b"confirm": _confirm,
    b"version": _without_arguments(commands.Version),
    b"stats": _without_arguments(commands.Stats),
    b"dump_stats": lambda words: commands.DumpStats(words[1:]),
    b"dump_config": lambda words: commands.DumpConfig(words[1:]),
    b"reload": _without_arguments(commands.Reload),
    b"status": lambda words: commands.Status(words[1] if len(words) > 1 else None),
    b"shutdown": _without_arguments(commands.Shutdown),
    b"quit": _without_arguments(commands.Quit),
    **dict.fromkeys(_UNSUPPORTED_STORES, _set),
}
