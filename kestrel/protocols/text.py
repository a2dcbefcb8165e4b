"""The codec of Kestrel's text protocol.

A request is a line. A line that ends in a colon is followed by lines of data, up to an empty one. A put stores them,
any other command ignores them. A reply begins with `+` (a number), `-` (an error) or `:` (an item or a text), or is `*`
(nothing, or the end).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kestrel import commands, errors
from kestrel.escaping import show_name
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
MAX_PUT_ITEMS: Final = 1024
MAX_REQUEST_BYTES: Final = 32 * 1024 * 1024

PARTIAL_PUT_ITEM_OVERHEAD_BYTES: Final = 56
"""Memory of an item of an incomplete put beyond its data."""

_KESTREL_OPERATION_NAMES: Final[dict[type[commands.Command], str]] = {
    commands.Put: "setItem",
    commands.DelayedPut: "setItem",
    commands.Get: "getItem",
    commands.Monitor: "monitorUntil",
    commands.Flush: "flush",
    commands.FlushAll: "flushAll",
    commands.Delete: "delete",
    commands.FlushExpired: "flushExpired",
}
"""Kestrel's names of the operations, for its messages of refusal."""


class TextCodec(Codec):
    """The text codec of one connection (`kestrel.protocols.codec.Codec`).

    A request line has at most `max_line_bytes`, an item `max_item_bytes`, and a put `max_put_items` items of together
    `max_request_bytes`. The codec holds at most a request line or the items of one put, and one network read after it.
    Data of other commands, and the rest of a put of too many items, is not held, and may have any length.
    """

    def __init__(
        self,
        max_line_bytes: int = MAX_LINE_BYTES,
        max_item_bytes: int = MAX_ITEM_BYTES,
        max_put_items: int = MAX_PUT_ITEMS,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        super().__init__()
        self._max_line_bytes = max_line_bytes
        self._max_item_bytes = max_item_bytes
        self._max_put_items = max_put_items
        self._max_request_bytes = max_request_bytes
        self._announced: commands.Command | None = None  # its lines of data have not all arrived
        self._items: list[bytes] = []
        self._items_bytes = 0

    # Bytes to commands.

    def __len__(self) -> int:
        held_bytes = self.buffer.size + self._items_bytes + PARTIAL_PUT_ITEM_OVERHEAD_BYTES * len(self._items)
        return held_bytes or int(self._announced is not None)

    def end(self) -> None:
        super().end()
        self._announced = None
        self._forget_items()

    def next_command(self) -> commands.Command | None:
        if self._announced is not None:
            return self._read_data(self._announced)
        line = self.buffer.take_line()
        if (self.buffer.size if line is None else len(line)) > self._max_line_bytes:
            return self._out_of_step("Line too long.")
        if line is None:
            return None
        line = line.removesuffix(b"\r")
        command = _parse_command(line)
        if isinstance(command, commands.OtherProtocol):
            self.end()
            return command
        return self._read_data(command) if line.endswith(b":") else command

    def _read_data(self, announced: commands.Command) -> commands.Command | None:
        """Return the announced command when the empty line after its data has arrived."""
        self._announced = announced
        if isinstance(announced, commands.Put):
            return self._read_items(announced)
        if not self.buffer.drop_lines():
            return None
        self._announced = None
        return announced

    def _read_items(self, put: commands.Put) -> commands.Command | None:
        while True:
            bound = min(self._max_item_bytes, self._max_request_bytes - self._items_bytes)
            line = self.buffer.take_line()
            if line is None:
                # The last byte so far may be a CR, which is not data.
                return self._too_large(bound) if self.buffer.size > bound + 1 else None
            item = line.removesuffix(b"\r")
            if not item:
                put.items = self._items
                self._announced = None
                self._forget_items()
                return put
            if len(item) > bound:
                return self._too_large(bound)
            if len(self._items) == self._max_put_items:
                self._forget_items()
                return self._read_data(_malformed(f"Too many items in one put; limit={self._max_put_items}"))
            self._items.append(item)
            self._items_bytes += len(item)

    def _forget_items(self) -> None:
        self._items = []
        self._items_bytes = 0

    def _too_large(self, bound: int) -> commands.Malformed:
        """Refuse an item that exceeds a bound: that of one item, or what its put has left."""
        if bound == self._max_item_bytes:
            return self._out_of_step("Item too large.")
        return self._out_of_step(f"Put too large; limit={self._max_request_bytes} bytes")

    def _out_of_step(self, reason: str) -> commands.Malformed:
        """Drop the rest of the stream, which cannot be parsed reliably after this error."""
        self.end()
        return commands.Malformed(reason, closes=True)

    # Results to bytes.

    def stored(self, command: commands.Put, count: int) -> bytes:
        return b"+%d\n" % count

    def item(self, command: commands.Get | commands.Monitor, data: bytes) -> bytes:
        """Return the item after a colon. Line feeds in it are sent unchanged, as Kestrel does."""
        return b":%b\n" % data

    def no_item(self, command: commands.Get | commands.Monitor) -> bytes:
        return b"*\n"

    def done(self, command: commands.Command) -> bytes:
        return b"+%d\n" % (command.count if isinstance(command, commands.Confirm) else 0)

    def number(self, command: commands.Command, value: int) -> bytes:
        return b"+%d\n" % value

    def version(self, command: commands.Command, version: str) -> bytes:
        return b":%b\n" % version.encode("ascii")

    def status(self, command: commands.Command, name: str) -> bytes:
        return b":%b\n" % name.upper().encode("ascii")

    def stats(self, command: commands.Command, stats: Iterable[Stat]) -> bytes:
        return "".join([f":{name} {value}\n" for name, value in stats]).encode()

    def dump_stats(self, command: commands.Command, queue: bytes, stats: Sequence[Stat]) -> bytes:
        """Return a line `:queue name value` for each figure, or no lines for a missing queue.

        Unlike memcache, it has no blocks: each line names its queue. A shown name has no space.
        """
        return self.stats(command, [(f"{show_name(queue)} {name}", value) for name, value in stats])

    def help(self) -> bytes:
        """Return a line `:usage  meaning` for each command, and a star."""
        return _HELP

    def end_of_list(self, command: commands.Command) -> bytes:
        return b"*\n"

    def error(self, command: commands.Command, error: Exception) -> tuple[bytes, bool]:
        """Return Kestrel's message if it has one, or else the reason. Unexpected errors close the connection."""
        if not isinstance(error, errors.KestrelError):
            return b"-internal error\n", True
        if isinstance(command, commands.Malformed) and isinstance(error, errors.ClientError):
            # The reason is sent unchanged: after "Unknown command: " it may be empty, or have any bytes except a line
            # feed.
            return b"-%b\n" % command.reason.encode("latin-1"), False
        return b"-%b\n" % encode_one_line(_reason(command, error)), False


def _reason(command: commands.Command, error: errors.KestrelError) -> str:
    operation = _KESTREL_OPERATION_NAMES.get(type(command))
    match error:
        case errors.TooManyOpenReads():
            return "Too many open transactions" + "".join(str(error).partition(";")[1:])  # "; limit=N"
        case errors.TooFewOpenReads():
            return "Not that many transactions open."
        case errors.StatusForbidden():
            return "Status forbidden."
        case errors.UnknownStatus():
            return "Unknown status."
        case errors.NotAuthorized() if operation is not None:
            return f"The operation {operation} is disallowed: {error}"
        case errors.Unavailable() if operation is not None:
            return f"Server not available for operation {operation}"
    return str(error)


# Requests.


def _malformed(reason: str) -> commands.Malformed:
    return commands.Malformed(reason, closes=False)


def _parse_command(line: bytes) -> commands.Command:
    """Return the command of a request line without its line end; a put has no items yet."""
    words = split_words(line.removesuffix(b":"))
    word = words[0].lower() if words else b""
    request = _SYNTAX.get(word)
    if request is None or b"/" in line:
        protocol = detect_other_protocol(line)
        if protocol is not None:
            return commands.OtherProtocol(protocol)
    if request is None:
        return _malformed(f"Unknown command: {word.decode('latin-1')}")
    arguments = words[1:]
    if len(arguments) < request.needs:
        return _malformed(request.missing)
    try:
        return request.make(arguments)
    except BadNumber:
        return _malformed(request.bad_number)


class _CommandSyntax(NamedTuple):
    """The parser of a command's arguments, with its messages for missing and invalid ones."""

    make: Callable[[list[bytes]], commands.Command]
    needs: int = 0
    missing: str = ""
    bad_number: str = ""


def _without_arguments(command: type[commands.Command]) -> _CommandSyntax:
    """Return the syntax of a request without arguments. Further words are ignored."""
    return _CommandSyntax(lambda arguments: command())


def _with_queue_name(make: Callable[[list[bytes]], commands.Command], bad_number: str = "") -> _CommandSyntax:
    return _CommandSyntax(make, 1, "Queue name required.", bad_number)


def _optional_ms(arguments: list[bytes]) -> int:
    """Return the number after the queue's name, or 0 without one."""
    return parse_int32(arguments[1]) if len(arguments) > 1 else 0


def _put(arguments: list[bytes]) -> commands.Command:
    last = arguments[-1]
    if len(arguments) > 1 and last.startswith(_DELAY):
        delay_ms = parse_delay_ms(last.removeprefix(_DELAY))
        if delay_ms:
            return commands.DelayedPut(arguments[0], (), _optional_ms(arguments[:-1]), True, delay_ms)
        arguments = arguments[:-1]
    return commands.Put(arguments[0], (), _optional_ms(arguments), True)


def _get(arguments: list[bytes]) -> commands.Command:
    return commands.Get(arguments[0], _optional_ms(arguments), opens=True, closes_all=True)


def _peek(arguments: list[bytes]) -> commands.Command:
    return commands.Get(arguments[0], _optional_ms(arguments), peeks=True, closes_all=True)


def _monitor(arguments: list[bytes]) -> commands.Command:
    return commands.Monitor(arguments[0], _optional_ms(arguments), None, closes_all=True)


def _confirm(arguments: list[bytes]) -> commands.Command:
    return commands.Confirm(arguments[0], parse_int32(arguments[1]))


_DELAY: Final = b"delay="
"""The beginning of the last argument of a put whose items become visible later."""

_BAD_TIMEOUT: Final = "Error parsing timeout."

_SYNTAX: Final[dict[bytes, _CommandSyntax]] = {
    b"put": _with_queue_name(_put, "Error parsing expiration time."),
    b"get": _with_queue_name(_get, _BAD_TIMEOUT),
    b"peek": _with_queue_name(_peek, _BAD_TIMEOUT),
    b"monitor": _CommandSyntax(_monitor, 2, "Queue name & timeout required.", _BAD_TIMEOUT),
    b"confirm": _CommandSyntax(_confirm, 2, "Queue name & count required.", "Error parsing count."),
    b"delete": _with_queue_name(lambda arguments: commands.Delete(arguments[0])),
    b"flush": _with_queue_name(lambda arguments: commands.Flush(arguments[0])),
    b"flush_all": _without_arguments(commands.FlushAll),
    b"flush_expired": _with_queue_name(lambda arguments: commands.FlushExpired(arguments[0])),
    b"flush_all_expired": _without_arguments(commands.FlushAllExpired),
    b"version": _without_arguments(commands.Version),
    b"stats": _without_arguments(commands.Stats),
    b"dump_stats": _CommandSyntax(commands.DumpStats),
    b"dump_config": _CommandSyntax(commands.DumpConfig),
    b"reload": _without_arguments(commands.Reload),
    b"status": _CommandSyntax(lambda arguments: commands.Status(arguments[0] if arguments else None)),
    b"shutdown": _without_arguments(commands.Shutdown),
    b"help": _without_arguments(commands.Help),
    b"quit": _without_arguments(commands.Quit),
}

_HELP: Final = b"""\
:put QUEUE [MS] [delay=MS]:  put the lines up to an empty one; they expire after MS and appear after the delay
:get QUEUE [MS]              confirm the open items and take the next one; wait up to MS milliseconds for it
:peek QUEUE [MS]             confirm the open items and show the next one, without taking it
:monitor QUEUE MS            confirm the open items and take those that arrive within MS milliseconds
:confirm QUEUE COUNT         confirm the COUNT oldest open items
:delete QUEUE                delete a queue with its items
:flush QUEUE                 drop the items of a queue
:flush_all                   drop the items of all queues
:flush_expired QUEUE         drop the expired items of a queue
:flush_all_expired           drop the expired items of all queues
:stats                       show the statistics of the server and all queues
:dump_stats [QUEUE...]       show the statistics of queues
:dump_config [QUEUE...]      show the settings of queues
:status [NEW]                show the status, or change it to Up, WriteAvoid, ReadOnly or Quiescent
:version                     show the release
:reload                      read the configuration again
:shutdown                    stop the server
:help                        show this list
:quit                        hang up
*
"""
