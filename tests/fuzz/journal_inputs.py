"""Dictionary words and repairs of journal files."""

from __future__ import annotations

from typing import Final

from tests.fuzz.choices import Choices
from tests.journal.handwritten import (
    REMOVE,
    REMOVE_TENTATIVE,
    add,
    add_xid,
    addx,
    confirm,
    continue_,
    i32,
    open_,
    save_xid,
    state_dump,
    unremove,
)

SIZES_AT: Final = {0: (1, 4, 5), 2: (1, 16, 5), 7: (5, 16, 9), 8: (5, 16, 9)}
"""For records with a size: its offset, the header bytes that it includes, and the size of the other header bytes."""

OTHERS: Final = {1: 1, 3: 1, 4: 5, 5: 5, 6: 5, 9: 5}
"""Sizes of the other records."""

WORDS: Final = (
    REMOVE, REMOVE_TENTATIVE, add(b""), addx(b""), addx(b"x"), save_xid(1), unremove(1), confirm(1), add_xid(1, b""),
    continue_(1, b""), state_dump(1), state_dump(1, add_xid(1, b"")), open_(1), i32(-1), i32(2**31 - 1), i32(16),
)  # fmt: skip


def repaired(data: bytes) -> bytes:
    """Return a journal whose sizes do not reach beyond its end."""
    contents = bytearray(data)
    at = 0
    while at < len(contents):
        opcode = contents[at] % 10
        contents[at] = opcode
        if opcode in OTHERS:
            at += OTHERS[opcode]
            continue
        size_at, counted, header = SIZES_AT[opcode]
        if at + header + counted > len(contents):
            break
        where = slice(at + size_at, at + size_at + 4)
        size = int.from_bytes(contents[where], "little", signed=True)
        if not counted <= size <= len(contents) - at - header:
            size = counted + size % 8
            contents[where] = size.to_bytes(4, "little")
        at += header + size
    return bytes(contents)


def part_bytes(choices: Choices) -> int:
    """Return how many bytes of a file are read at once."""
    return choices.number(64) or 1 << 20
