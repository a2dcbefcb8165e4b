"""Journals as seeds and words, and their mending."""

from __future__ import annotations

from typing import Final

from tests.fuzz.fed import Fed
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

MOST_RECORDED: Final = 700
"""A recorded journal of more bytes is no seed."""

SIZES_AT: Final = {0: (1, 4, 5), 2: (1, 16, 5), 7: (5, 16, 9), 8: (5, 16, 9)}
"""Of a record with a size: where that stands, what of the header it counts, and how long the header is without that."""

OTHERS: Final = {1: 1, 3: 1, 4: 5, 5: 5, 6: 5, 9: 5}
"""How long the other records are."""

WORDS: Final = (
    REMOVE, REMOVE_TENTATIVE, add(b""), addx(b""), addx(b"x"), save_xid(1), unremove(1), confirm(1), add_xid(1, b""),
    continue_(1, b""), state_dump(1), state_dump(1, add_xid(1, b"")), open_(1), i32(-1), i32(2**31 - 1), i32(16),
)  # fmt: skip


def seeds() -> dict[str, bytes]:
    """Each record, and the small ones of the recorded journals; without choices."""
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
            if 0 < len(contents) <= MOST_RECORDED and contents not in found.values():
                found[f"{case}-{name}".replace("~", "-").replace("+", "-")] = contents
    return found


def mended(data: bytes) -> bytes:
    """Sizes that reach beyond the end are small ones that do not."""
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


def part_bytes(choices: Fed) -> int:
    """How much of a file is read at once."""
    return choices.number(64) or 1 << 20
