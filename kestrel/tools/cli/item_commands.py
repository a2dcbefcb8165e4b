"""The item commands of kestrel-cli: put, get, peek, monitor."""

from __future__ import annotations

import math
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from io import BufferedReader
from typing import Final, cast

from kestrel.client.dialect import LONGEST_EXPIRY_S
from kestrel.client.errors import ClientFailure
from kestrel.escaping import show_name
from kestrel.tools.cli.batch_load import BatchLoad
from kestrel.tools.cli.item_formats import (
    RawLines,
    WriteItem,
    as_json,
    escaped_lines,
    length_prefixed,
    split_lines,
    split_prefixed,
    take_whole,
)
from kestrel.tools.cli.item_taker import ItemTaker
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.formatting import count
from kestrel.tools.output import Output
from kestrel.tools.progress import LoadProgress
from kestrel.tools.tool_runner import (
    EX_FOUND,
    EX_INTERRUPTED,
    EX_OK,
    EX_USAGE,
    Clock,
    ToolFailed,
    explain_os_error,
    print_error,
)

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
        raise ToolFailed(
            f"memcache does not support an expiry of {LONGEST_EXPIRY_S} seconds or more: use --protocol thrift",
            EX_USAGE,
        )
    load = BatchLoad(servers, arguments.queue, expires_in_s)
    if arguments.items:
        if arguments.length_prefixed or arguments.whole:
            raise ToolFailed("--length-prefixed and --whole are for standard input: leave out the items", EX_USAGE)
        return _put(load, lambda: load.put(map(os.fsencode, arguments.items)), arguments, len(arguments.items))
    source = _StandardInput(may_show_progress=not arguments.quiet)
    return _put(load, lambda: _load_input(load, source, arguments, clock), arguments, None)


def _put(load: BatchLoad, work: Callable[[], str | None], arguments: Namespace, total: int | None) -> int:
    try:
        took = work() or ""
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


def _load_input(load: BatchLoad, source: _StandardInput, arguments: Namespace, clock: Clock) -> str:
    """Put the items of standard input as they arrive. Return the time taken, as text."""
    if source.is_terminal and not arguments.quiet:
        how = "the whole input is one item" if arguments.whole else "one item per line"
        print_error(TOOL, f"reading from the terminal, {how}; press Ctrl-D to end")
    split = split_prefixed if arguments.length_prefixed else take_whole if arguments.whole else split_lines
    start_s = clock.seconds()
    progress = LoadProgress(source.size, seconds=clock.seconds) if source.may_show_progress else nullcontext()
    with progress as shown:
        for items in split(source.pieces()):
            load.put(items)
            if shown is not None:
                shown.reached(load.stored, source.read)
    return f" in {clock.seconds() - start_s:.1f} s"


class _StandardInput:
    """Standard input as bytes, with its size if that is known."""

    def __init__(self, *, may_show_progress: bool) -> None:
        if sys.stdin is None:
            raise ToolFailed("standard input is closed: give the items as arguments", EX_USAGE)
        self._stream = cast(BufferedReader, sys.stdin.buffer)
        self.is_terminal = sys.stdin.isatty()
        self.may_show_progress = may_show_progress and not self.is_terminal  # else the lines of both would be mixed
        self.read = 0
        """Number of bytes read so far."""

    @property
    def size(self) -> int | None:
        """Number of bytes to read, or None if standard input is not a regular file."""
        try:
            status = os.fstat(self._stream.fileno())
            if stat.S_ISREG(status.st_mode):
                return max(0, status.st_size - os.lseek(self._stream.fileno(), 0, os.SEEK_CUR))
        except OSError:
            pass  # not a file
        return None

    def pieces(self) -> Iterator[bytes]:
        """Yield the input in pieces as it arrives."""
        while piece := self._next():
            self.read += len(piece)
            yield piece

    def _next(self) -> bytes:
        try:
            return self._stream.read1(_READ_BYTES)
        except OSError as error:
            raise ToolFailed(f"standard input cannot be read: {explain_os_error(error)}") from None


def get(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Take items and write them. Return status 0 if there was one."""
    limit = math.inf if arguments.all else arguments.number
    output = Output()
    with closing(_item_taker(servers, arguments, output)) as taker:
        while taker.count < limit and _take(taker, arguments.wait, limit - taker.count):
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
        data = servers.asked.ask_in_turn(
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


def _item_writer(arguments: Namespace, output: Output) -> WriteItem:
    if arguments.length_prefixed:
        return length_prefixed(output)
    if arguments.json:
        return as_json(output)
    return escaped_lines(output) if output.is_terminal and not arguments.raw else RawLines(output)
