"""Splitting a stream of bytes into items: one per line, each after its length, or the whole stream as one item.

Each function takes the stream in pieces of any size. For each piece it yields the items that are complete, so that
slow input can be put as it arrives. Invalid input raises `ToolFailed`, with its position, after the items before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Final

from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tools.tool_runner import ToolFailed

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
