"""A second reader of Kestrel's journal, as slow and plain as its format's table, to hold the real one against.

It knows what this release reads: REMOVE_TENTATIVE (3), ADD_XID (7) and an 8 that is no CONTINUE end the reading.
"""

from __future__ import annotations

from typing import NamedTuple

ADD, REMOVE, ADDX, SAVE_XID, UNREMOVE, CONFIRM, CONTINUE, OPEN = 0, 1, 2, 4, 5, 6, 8, 9

LATEST_ADD_MS = 1 << 44
"""The add time of a CONTINUE is below that; what reads as a later one is no CONTINUE."""


class Record(NamedTuple):
    """One record and where it begins."""

    offset: int
    opcode: int
    xid: int = 0
    item: tuple[bytes, int | None, int] | None = None


class Reading(NamedTuple):
    """What a file holds: its good records, where they end, and what ends them.

    `problem` is "" at the proper end, else "unfinished", "damaged", "refused" or "no continue".
    """

    records: list[Record]
    end: int
    problem: str


def number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def read(contents: bytes) -> Reading:
    """All records of a file, up to the first that is none."""
    records: list[Record] = []
    offset = 0
    while offset < len(contents):
        record, size, problem = _read_one(contents[offset:], offset)
        if record is None:
            return Reading(records, offset, problem)
        records.append(record)
        offset += size
    return Reading(records, offset, "")


def _read_one(rest: bytes, offset: int) -> tuple[Record | None, int, str]:
    opcode = rest[0]
    if opcode == REMOVE:
        return Record(offset, opcode), 1, ""
    if opcode == 3:
        return None, 0, "refused"
    if opcode in (SAVE_XID, UNREMOVE, CONFIRM, OPEN):
        return (None, 0, "unfinished") if len(rest) < 5 else (Record(offset, opcode, number(rest[1:5])), 5, "")
    if opcode not in (ADD, ADDX, 7, CONTINUE):
        return None, 0, "damaged"
    xid_bytes = 4 if opcode in (7, CONTINUE) else 0
    times_bytes = 4 if opcode == ADD else 16
    header_bytes = 1 + xid_bytes + 4 + times_bytes
    if len(rest) < header_bytes:
        return None, 0, "unfinished"
    size = number(rest[1 + xid_bytes : 5 + xid_bytes])
    times = rest[5 + xid_bytes : header_bytes]
    if opcode == CONTINUE and (size < 16 or not 0 <= number(times[:8]) < LATEST_ADD_MS):
        return None, 0, "no continue"
    if size < times_bytes:
        return None, 0, "damaged"
    length = 5 + xid_bytes + size
    if len(rest) < length:
        return None, 0, "unfinished"
    if opcode == 7:
        return None, 0, "refused"
    data = rest[header_bytes:length]
    if opcode == ADD:
        return Record(offset, opcode, 0, (data, None, number(times) * 1000)), length, ""
    xid = number(rest[1:5]) if xid_bytes else 0
    return Record(offset, opcode, xid, (data, number(times[:8]), number(times[8:]))), length, ""


class Queue:
    """A queue as the records make it: items are (data, add ms, expiry ms)."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.items: list[tuple[bytes, int, int]] = []
        self.opened: dict[int, tuple[bytes, int, int]] = {}

    def do(self, records: list[Record]) -> None:
        """Do each record in order; one that names what is not there is ignored."""
        for record in records:
            if record.opcode == REMOVE:
                del self.items[:1]
            elif record.opcode == OPEN and self.items:
                self.opened[record.xid] = self.items.pop(0)
            elif record.opcode == UNREMOVE and record.xid in self.opened:
                self.items.insert(0, self.opened.pop(record.xid))
            elif record.opcode in (CONFIRM, CONTINUE):
                self.opened.pop(record.xid, None)
            if record.item is not None:
                data, add_ms, expiry_ms = record.item
                self.items.append((data, self._now_ms if add_ms is None else add_ms, expiry_ms))

    def after_a_restart(self) -> list[tuple[bytes, int, int]]:
        """The items then: open reads are back at the head, the lowest xid first."""
        return [self.opened[xid] for xid in sorted(self.opened)] + self.items


def items_after(*files: bytes, now_ms: int) -> list[tuple[bytes, int, int]]:
    """What a restart makes of these files, each read as far as it is good."""
    queue = Queue(now_ms)
    for contents in files:
        queue.do(read(contents).records)
    return queue.after_a_restart()
