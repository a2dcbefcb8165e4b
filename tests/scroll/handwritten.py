"""Hand-written scroll records, from the table of the format."""

from __future__ import annotations

import zlib

from tests.journal.handwritten import i32, i64

WRITER = b"\x27\x64\x26\x03"
READER = b"\x26\x3c\x26\x03"

T = 1_700_000_000_000


def put(item_id: int, data: bytes, add_ms: int = T, expiry_ms: int = 0, errors: int = 0) -> bytes:
    header = i32(len(data)) + i32(errors) + i64(item_id) + i64(add_ms)
    return b"\x88" + header + i64(expiry_ms) + data if expiry_ms else b"\x86" + header + data


def read_head(item_id: int) -> bytes:
    return b"\x02" + i64(item_id)


def read_done(*ids: int) -> bytes:
    return with_data(9, b"".join(map(i64, ids)))


def errors(**counts: int) -> bytes:
    """Return error counts; `_7=1` means that item 7 has one error."""
    return with_data(10, b"".join(i64(int(name[1:])) + i32(count) for name, count in counts.items()))


def done_ranges(*ranges: tuple[int, int]) -> bytes:
    return with_data(11, b"".join(i64(first) + i64(last) for first, last in ranges))


def targets(kind: int, *readers: bytes) -> bytes:
    return with_data(12, bytes([kind]) + b"".join(bytes([len(name)]) + name for name in readers))


DELETED = b"\xd1\0\0\0\0"


def held(item_id: int, by: bytes) -> bytes:
    return with_data(14, i64(item_id) + by)


def with_data(command: int, data: bytes) -> bytes:
    return bytes([command << 4 | 1]) + i32(len(data)) + data


X_ALONE = targets(0, b"x")
ALL_BUT_X = targets(1, b"x")

WIDE_PUT = b"\x89" + i32(4) + i32(3) + i64(2) + i64(T) + i64(0) + i32(-1) + b"wide"
"""A PUT of item 2 with 3 errors and 9 words, of which the last has no meaning."""


def writer_file(*items: bytes, first_id: int = 1) -> bytes:
    """Return a writer file with these items, whose ids follow each other."""
    return WRITER + b"".join(put(item_id, data) for item_id, data in enumerate(items, first_id))


def reader_file(head: int, *done: int) -> bytes:
    """Return a reader file as libkestrel writes it, without checksums."""
    return READER + read_head(head) + read_done(*done)


def checksum(records: bytes) -> bytes:
    return with_data(15, zlib.crc32(records).to_bytes(4, "little"))


def sealed(*batches: bytes) -> bytes:
    """Return a whole reader file as the server writes it: each batch of records has a checksum."""
    return b"".join(batch + checksum(batch) for batch in (READER, *batches))


def unsealed(contents: bytes) -> bytes:
    """Return a reader file without its checksums, which must match. Other contents are returned unchanged."""
    if not contents.startswith(READER + b"\xf1"):
        return contents
    batches, start, position = [], 0, len(READER)
    while position < len(contents):
        command, words = contents[position] >> 4, contents[position] & 15
        end = position + 1 + 4 * words
        if command >= 8:
            end += int.from_bytes(contents[position + 1 : position + 5], "little")
        if command == 15:
            batch = contents[start:position]
            assert contents[position:end] == checksum(batch)
            batches.append(batch)
            start = end
        position = end
    assert start == len(contents)
    return b"".join(batches)
