"""Seeds, dictionary words and repairs of journal files."""

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
from tests.torture.damage import recordings

MAX_SEED_BYTES: Final = 700
"""Maximum size of a recorded journal that is a seed."""

SIZES_AT: Final = {0: (1, 4, 5), 2: (1, 16, 5), 7: (5, 16, 9), 8: (5, 16, 9)}
"""For records with a size: its offset, the header bytes that it includes, and the size of the other header bytes."""

OTHERS: Final = {1: 1, 3: 1, 4: 5, 5: 5, 6: 5, 9: 5}
"""Sizes of the other records."""

WORDS: Final = (
    REMOVE, REMOVE_TENTATIVE, add(b""), addx(b""), addx(b"x"), save_xid(1), unremove(1), confirm(1), add_xid(1, b""),
    continue_(1, b""), state_dump(1), state_dump(1, add_xid(1, b"")), open_(1), i32(-1), i32(2**31 - 1), i32(16),
)  # fmt: skip


def seeds() -> dict[str, bytes]:
    """Return each kind of record, and small recorded journals, without choices."""
    found = {
        "old": add(b"a", 7) + add_xid(5, b"b", 3, 4) + REMOVE_TENTATIVE + REMOVE + save_xid(5),
        "reads": addx(b"a") + addx(b"b", 5, 9) + open_(1) + open_(2) + save_xid(3) + unremove(1) + confirm(2),
        "continued": addx(b"a") + open_(1) + continue_(1, b"b", 7, 0) + REMOVE,
        "dump": addx(b"a") + state_dump(7, add_xid(1, b"x"), add_xid(2, b"y")),
        "unfinished": addx(b"abc")[:-1],
        "damaged": addx(b"abc") + b"\x0a",
    }
    for case, files in recordings().items():
        for name, contents in files.items():
            if 0 < len(contents) <= MAX_SEED_BYTES and contents not in found.values():
                found[f"{case}-{name}".replace("~", "-").replace("+", "-")] = contents
    return found


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
