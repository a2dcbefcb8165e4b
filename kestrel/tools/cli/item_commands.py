"""The item commands of kestrel-cli: put, get, peek and monitor, and the forms of items in files and pipes.

A form is one item per line, each item after its length, or the whole input as one item. Each splitter takes the input
in pieces of any size. For each piece it yields the items that are complete, so that slow input can be put as it
arrives. Invalid input raises `ToolFailed`, with its position, after the items before it.
"""

from __future__ import annotations

import base64
import math
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext, suppress
from io import BufferedReader
from itertools import takewhile
from typing import Final, cast

from kestrel.client.dialect import LONGEST_EXPIRY_S
from kestrel.client.errors import ClientFailure
from kestrel.escaping import show_name
from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tools.cli.item_transfers import BatchLoad, ItemTaker
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.formatting import count, show_data
from kestrel.tools.progress import LoadProgress
from kestrel.tools.tool_runner import (
    EX_FOUND,
    EX_INTERRUPTED,
    EX_OK,
    BadUsage,
    Clock,
    Output,
    ToolFailed,
    explain_os_error,
    print_error,
)

_LENGTH_BYTES: Final = 4
_READ_BYTES: Final = 256 * 1024

_MONITOR_WAIT_S: Final = 60.0
"""Longest wait of one request of monitor, in seconds."""

_LONGEST_WAIT_S: Final = 86_400.0
"""Longest wait of one request of get, in seconds."""

_PAUSE_S: Final = 1.0


def put(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Put the items of the command line or of standard input."""
    expires_in_s: float | None = arguments.expires_in
    if expires_in_s is not None and math.ceil(expires_in_s) >= LONGEST_EXPIRY_S and arguments.protocol == "memcache":
        raise BadUsage(
            f"memcache does not support an expiry of {LONGEST_EXPIRY_S} seconds or more: use --protocol thrift"
        )
    if arguments.items and (arguments.length_prefixed or arguments.whole):
        raise BadUsage("--length-prefixed and --whole are for standard input: leave out the items")
    if not arguments.items and sys.stdin is None:
        raise BadUsage("standard input is closed: give the items as arguments")
    load = BatchLoad(servers, arguments.queue, expires_in_s, arguments.delay)
    total = len(arguments.items) or None
    took = ""
    try:
        if arguments.items:
            load.put(map(os.fsencode, arguments.items))
        else:
            took = _load_input(load, arguments, clock)
    except ToolFailed as failed:
        print_error(TOOL, str(failed))
        raise ToolFailed(load.outcome(total), failed.status) from None
    except KeyboardInterrupt:
        print_error(TOOL, f"interrupted; {load.outcome(total)}")
        return EX_INTERRUPTED
    if not arguments.quiet and sys.stdout is not None:
        output = Output()
        output.line(f"{count(load.stored, 'item')} put{took}")
        output.flush()
    return EX_OK


def _load_input(load: BatchLoad, arguments: Namespace, clock: Clock) -> str:
    """Put the items of standard input as they arrive. Return the time taken, as text."""
    is_terminal = sys.stdin.isatty()
    if is_terminal and not arguments.quiet:
        how = "the whole input is one item" if arguments.whole else "one item per line"
        print_error(TOOL, f"reading from the terminal, {how}; press Ctrl-D to end")
    source = _StandardInput()
    split = split_prefixed if arguments.length_prefixed else take_whole if arguments.whole else split_lines
    start_s = clock.seconds()
    has_progress = not arguments.quiet and not is_terminal  # else the lines of both would be mixed
    with LoadProgress(source.size, seconds=clock.seconds) if has_progress else nullcontext() as progress:
        for items in split(source.pieces()):
            load.put(items)
            if progress is not None:
                progress.reached(load.stored, source.read)
    return f" in {clock.seconds() - start_s:.1f} s"


class _StandardInput:
    """Standard input as bytes, with its size if that is known."""

    def __init__(self) -> None:
        self._stream = cast(BufferedReader, sys.stdin.buffer)
        self.read = 0
        """Number of bytes read so far."""

    @property
    def size(self) -> int | None:
        """Number of bytes to read, or None if standard input is not a regular file."""
        with suppress(OSError):
            status = os.fstat(self._stream.fileno())
            if stat.S_ISREG(status.st_mode):
                return max(0, status.st_size - os.lseek(self._stream.fileno(), 0, os.SEEK_CUR))
        return None

    def pieces(self) -> Iterator[bytes]:
        try:
            while piece := self._stream.read1(_READ_BYTES):
                self.read += len(piece)
                yield piece
        except OSError as error:
            raise ToolFailed(f"standard input cannot be read: {explain_os_error(error)}") from None


def get(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Take items and write them. Return status 0 if there was one."""
    limit = math.inf if arguments.all else arguments.number
    output = Output()
    with closing(_item_taker(servers, arguments, output)) as taker:
        while taker.count < limit and _take(taker, arguments.wait or 0.0, limit - taker.count):
            pass
        return EX_OK if taker.count else _without_item(arguments, output)


def _take(taker: ItemTaker, wait_s: float, limit: float) -> bool:
    """Call `ItemTaker.take`, several times if the wait is longer than one request allows."""
    while wait_s > _LONGEST_WAIT_S:
        if taker.take(_LONGEST_WAIT_S, limit):
            return True
        wait_s -= _LONGEST_WAIT_S
    return taker.take(wait_s, limit)


def monitor(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Take items as they arrive, until the number or time of the command line is reached, or Ctrl-C."""
    limit = math.inf if arguments.number is None else arguments.number
    end_s = math.inf if arguments.duration is None else clock.seconds() + arguments.duration
    with suppress(KeyboardInterrupt), closing(_item_taker(servers, arguments, Output())) as taker:
        while taker.count < limit and (begun_s := clock.seconds()) < end_s:
            wait_s = min(_MONITOR_WAIT_S, end_s - begun_s)
            if not taker.take(wait_s, limit - taker.count):
                # An alias or a deleted queue answers at once: pause, so as not to ask in a busy loop.
                clock.pause(max(0.0, min(_PAUSE_S, begun_s + wait_s - clock.seconds())))
    return EX_OK


def _item_taker(servers: CommandServers, arguments: Namespace, output: Output) -> ItemTaker:
    return ItemTaker(servers, arguments.queue, output, _item_writer(arguments, output))


def peek(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show the item at the head. Return status 0 if there is one."""
    output = Output()
    write = _item_writer(arguments, output)
    try:
        data = servers.ask_in_turn(
            lambda address, _: servers.ask(address, servers.dialect.peek(arguments.queue)), timeout_ms=0
        )
    except ClientFailure as failure:
        raise servers.failed(failure) from None
    if data is None:
        return _without_item(arguments, output)
    write(data)
    output.flush()
    return EX_OK


def _without_item(arguments: Namespace, output: Output) -> int:
    """Return the status for a queue without an item, and say so on a terminal."""
    if output.is_terminal:
        print_error(TOOL, f"there is no item in the queue {show_name(arguments.queue)}")
    return EX_FOUND


def split_lines(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split into one item per line. The line feed is not part of the item; the last line may lack it."""
    begun: list[bytes] = []
    begun_bytes = items = offset = 0
    for piece in pieces:
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun, begun_bytes = [], 0
        begun.append(rest)
        begun_bytes += len(rest)
        complete = list(takewhile(lambda line: len(line) <= MAX_ITEM_BYTES, lines))
        yield complete
        items += len(complete)
        offset += sum(map(len, complete)) + len(complete)
        if len(complete) < len(lines) or begun_bytes > MAX_ITEM_BYTES:
            where = f"line {items + 1}, which begins at byte {offset},"
            raise ToolFailed(f"{where} is longer than an item can be ({MAX_ITEM_BYTES} bytes)")
    if begun_bytes:
        yield [b"".join(begun)]


def split_prefixed(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split a stream with a length of 4 big-endian bytes before each item."""
    buffer = ReceiveBuffer()
    size: int | None = None
    items = offset = 0
    for piece in pieces:
        buffer.receive(piece)
        complete: list[bytes] = []
        while True:
            if size is None:
                length = buffer.take(_LENGTH_BYTES)
                if length is None:
                    break
                size = int.from_bytes(length, "big")
                if size > MAX_ITEM_BYTES:
                    break
            data = buffer.take(size)
            if data is None:
                break
            complete.append(data)
            offset += _LENGTH_BYTES + size
            size = None
        items += len(complete)
        yield complete
        if size is not None and size > MAX_ITEM_BYTES:
            raise ToolFailed(
                f"the length of item {items + 1}, at byte {offset}, says {size} bytes, and no item has more than "
                f"{MAX_ITEM_BYTES}: does the input have lengths, of 4 bytes, the highest first?"
            )
    if size is not None or buffer.size:
        raise ToolFailed(f"the input ends within item {items + 1}, which begins at byte {offset}")


def take_whole(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Return the whole stream as one item."""
    taken = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size > MAX_ITEM_BYTES:
            raise ToolFailed(f"the input is longer than an item can be ({MAX_ITEM_BYTES} bytes)")
    yield [b"".join(taken)]


def _item_writer(arguments: Namespace, output: Output) -> Callable[[bytes], None]:
    """Return a function that writes an item. The item has left this process only when `Output.flush` has returned."""
    has_warned = False

    def write_json(data: bytes) -> None:
        try:
            output.object({"data": data.decode("utf-8")})
        except UnicodeDecodeError:
            output.object({"base64": base64.b64encode(data).decode("ascii")})

    def write_line(data: bytes) -> None:
        nonlocal has_warned
        output.raw(data)
        if b"\n" in data and not has_warned:
            has_warned = True
            print_error(TOOL, "an item has a line feed in it: use --length-prefixed or --json to tell where items end")

    if arguments.length_prefixed:
        return lambda data: output.exactly(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    if arguments.json:
        return write_json
    if output.is_terminal and not arguments.raw:
        return lambda data: output.line(show_data(data))  # a terminal might obey control characters
    return write_line
