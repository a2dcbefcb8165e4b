"""Dictionary words and repairs of scroll files."""

from __future__ import annotations

import zlib
from typing import Final

from tests.fuzz.choices import Choices
from tests.journal.handwritten import i32, i64
from tests.scroll.handwritten import (
    DELETED,
    READER,
    WRITER,
    T,
    checksum,
    done_ranges,
    errors,
    put,
    read_done,
    read_head,
    targets,
    with_data,
)

WORDS: Final = (
    WRITER, READER, put(1, b""), put(2, b"x", T, T + 1), put(2, b"", errors=1), read_head(1), read_done(1), read_done(),
    errors(_1=1), done_ranges((1, 2)), targets(0, b"x"), targets(1, b":own"), targets(0), DELETED,
    checksum(READER), checksum(b""), with_data(15, b"?"),
    i32(-1), i64(-1), i64(1), i64((1 << 62) - 1), b"\x87",
)  # fmt: skip


def part_bytes(choices: Choices) -> int:
    """Return how many bytes of a file are read at once, always more than the header of an item."""
    return choices.number(200) + 40 if choices.number(2) else 1 << 20


def repaired(data: bytes, magic: bytes) -> bytes:
    """Return a file with the right magic bytes, sizes within the file, and correct checksums."""
    contents = bytearray(magic + data[len(magic) :])
    at, covered = len(magic), 0
    while at < len(contents) and contents[at]:
        command, words = contents[at] >> 4, contents[at] & 15
        least = {0: 2, 8: 6}.get(command, 1 if command > 8 else 0)
        if words < least:
            contents[at] = command << 4 | least
            words = least
        data_at = at + 1 + 4 * words
        size = 0
        if command >= 8 and data_at <= len(contents):
            where = slice(at + 1, at + 5)
            size = int.from_bytes(contents[where], "little", signed=True)
            whole = {9: 8, 10: 12, 11: 16}.get(command, 1)
            if size % whole or not 0 <= size <= len(contents) - data_at:
                size = whole * (size % 3)
                contents[where] = i32(size)
        end = data_at + size
        if command == 15 and magic == READER and size == 4:
            contents[data_at:end] = zlib.crc32(contents[covered:at]).to_bytes(4, "little")
            covered = end
        at = end
    return bytes(contents)
