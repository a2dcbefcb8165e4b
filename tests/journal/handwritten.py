"""Hand-written journal records, from the table of the format, and a reader of bytes in memory."""

from __future__ import annotations

import random

from kestrel.disk.reader import PART_BYTES, FilePart, FileReader


def i32(number: int) -> bytes:
    return number.to_bytes(4, "little", signed=True)


def i64(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def add(data: bytes, expiry_s: int = 0) -> bytes:
    return b"\x00" + i32(4 + len(data)) + i32(expiry_s) + data


REMOVE = b"\x01"


def addx(data: bytes, add_ms: int = 1, expiry_ms: int = 0) -> bytes:
    return b"\x02" + i32(16 + len(data)) + i64(add_ms) + i64(expiry_ms) + data


REMOVE_TENTATIVE = b"\x03"


def save_xid(xid: int) -> bytes:
    return b"\x04" + i32(xid)


def unremove(xid: int) -> bytes:
    return b"\x05" + i32(xid)


def confirm(xid: int) -> bytes:
    return b"\x06" + i32(xid)


def add_xid(xid: int, data: bytes, add_ms: int = 1, expiry_ms: int = 0) -> bytes:
    return b"\x07" + i32(xid) + addx(data, add_ms, expiry_ms)[1:]


def continue_(xid: int, data: bytes, add_ms: int = 1, expiry_ms: int = 0) -> bytes:
    return b"\x08" + i32(xid) + addx(data, add_ms, expiry_ms)[1:]


def state_dump(xid: int, *restated: bytes, count: int | None = None) -> bytes:
    """Return a STATE_DUMP followed by these ADD_XIDs; `count` replaces their number."""
    return b"\x08" + i32(xid) + i32(len(restated) if count is None else count) + b"".join(restated)


def open_(xid: int) -> bytes:
    return b"\x09" + i32(xid)


class RandomTakes:
    """Random records that take the head, open it, or confirm or put back an open read."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._opened: list[int] = []
        self._last_xid = 0

    def record(self) -> bytes:
        """Return the next record. A put back item may have its error count in a second record."""
        choice = self._rng.random()
        if choice < 0.3:
            return REMOVE
        if choice < 0.6 or not self._opened:
            self._last_xid += 1
            self._opened.append(self._last_xid)
            return open_(self._last_xid)
        xid = self._opened.pop(self._rng.randrange(len(self._opened)))
        put_back = unremove(xid), save_xid(self._rng.randrange(3)) + unremove(xid)
        return self._rng.choice((confirm(xid), *put_back))


class BytesReader(FileReader):
    """A file in memory, which counts the bytes read. Parts have at most `part_bytes` bytes when they are first read."""

    def __init__(self, contents: bytes, part_bytes: int = PART_BYTES) -> None:
        self._contents = contents
        self._part_bytes = part_bytes
        self._last_part = -1
        self.size = len(contents)
        self.read_bytes = 0

    def part(self, offset: int, size: int = PART_BYTES) -> FilePart:
        # The same part is read again if it was too short for a record.
        size = size if offset == self._last_part else min(size, self._part_bytes)
        self._last_part = offset
        return super().part(offset, size)

    def read(self, offset: int, size: int) -> bytes:
        data = self._contents[offset : offset + size]
        self.read_bytes += len(data)
        return data

    def close(self) -> None:
        pass
