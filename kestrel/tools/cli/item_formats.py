"""Items as bytes of standard input and output: one per line, each after its length, or the whole input as one item.

Each splitter takes the stream in pieces of any size. For each piece it yields the items that are complete, so that
slow input can be put as it arrives. Invalid input raises `ToolFailed`, with its position, after the items before it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Final, TypeAlias

from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tools.cli.servers import TOOL
from kestrel.tools.formatting import show_data
from kestrel.tools.output import Output
from kestrel.tools.tool_runner import ToolFailed, print_error

LENGTH_BYTES: Final = 4


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
        complete = list(takewhile(_can_be_an_item, lines))
        yield complete
        items += len(complete)
        offset += sum(map(len, complete)) + len(complete)
        if len(complete) < len(lines) or begun_bytes > MAX_ITEM_BYTES:
            where = f"line {items + 1}, which begins at byte {offset},"
            raise ToolFailed(f"{where} is longer than an item can be ({MAX_ITEM_BYTES} bytes)")
    if begun_bytes:
        yield [b"".join(begun)]


def _can_be_an_item(data: bytes) -> bool:
    return len(data) <= MAX_ITEM_BYTES


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
                length = buffer.take(LENGTH_BYTES)
                if length is None:
                    break
                size = int.from_bytes(length, "big")
                if size > MAX_ITEM_BYTES:
                    break
            data = buffer.take(size)
            if data is None:
                break
            complete.append(data)
            offset += LENGTH_BYTES + size
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


WriteItem: TypeAlias = Callable[[bytes], None]
"""Function that writes one item. The item has left this process only when `Output.flush` has returned."""


def length_prefixed(output: Output) -> WriteItem:
    """Return a writer of items, each after its length as 4 big-endian bytes."""
    return lambda data: output.exactly(len(data).to_bytes(LENGTH_BYTES, "big") + data)


def as_json(output: Output) -> WriteItem:
    """Return a writer of one JSON object per line: ``data`` as text, or ``base64`` if the item is not UTF-8."""

    def write(data: bytes) -> None:
        try:
            output.object({"data": data.decode("utf-8")})
        except UnicodeDecodeError:
            output.object({"base64": base64.b64encode(data).decode("ascii")})

    return write


def escaped_lines(output: Output) -> WriteItem:
    """Return a writer of one item per line. Control characters are escaped, because a terminal might obey them."""
    return lambda data: output.line(show_data(data))


class RawLines:
    """A writer of one unchanged item per line. It warns at the first item that contains a line feed."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._has_warned = False

    def __call__(self, data: bytes) -> None:
        self._output.raw(data)
        if b"\n" in data and not self._has_warned:
            self._has_warned = True
            print_error(TOOL, "an item has a line feed in it: use --length-prefixed or --json to tell where items end")
