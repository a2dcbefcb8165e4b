"""A second reader of Kestrel's journal, as slow and simple as the table of its format, to compare the real one with."""

from __future__ import annotations

from typing import NamedTuple

ADD, REMOVE, ADDX, REMOVE_TENTATIVE, SAVE_XID, UNREMOVE, CONFIRM, ADD_XID, EIGHT, OPEN = range(10)
"""Opcode 8 is a STATE_DUMP if the record restates open reads, else a CONTINUE."""

LATEST_ADD_MS = 1 << 44
"""The add time of a CONTINUE is lower. In a STATE_DUMP an ADD_XID is at its place, which reads as a higher one."""

LAST_XID = (1 << 31) - 1
"""The xid after this one is 1."""

MOST_ERRORS = (1 << 31) - 1
"""The highest error count."""


class Record(NamedTuple):
    """A record and its offset. `restates` is the number of open reads that a STATE_DUMP restates, else None."""

    offset: int
    opcode: int
    xid: int = 0
    item: tuple[bytes, int | None, int] | None = None
    restates: int | None = None


class Reading(NamedTuple):
    """The good records of a file, where they end, and why.

    `problem` is "" at the proper end, else "unfinished" or "damaged".
    """

    records: list[Record]
    end: int
    problem: str

    @property
    def is_closed(self) -> bool:
        """True if the file ends with a STATE_DUMP, so nothing may follow."""
        return self.problem == "" and any(record.restates is not None for record in self.records)


def number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def read(contents: bytes) -> Reading:
    """Return the records of a file up to the first bad one."""
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
    """Return the first record and its size, or the problem with it."""
    opcode = rest[0]
    if opcode in (REMOVE, REMOVE_TENTATIVE):
        return Record(offset, opcode), 1, ""
    if opcode in (SAVE_XID, UNREMOVE, CONFIRM, OPEN):
        return (None, 0, "unfinished") if len(rest) < 5 else (Record(offset, opcode, number(rest[1:5])), 5, "")
    if opcode not in (ADD, ADDX, ADD_XID, EIGHT):
        return None, 0, "damaged"
    if opcode == EIGHT:
        if len(rest) < 9:
            return None, 0, "unfinished"
        xid, count = number(rest[1:5]), number(rest[5:9])
        problem = _problem_of_dump(count, rest[9:])
        if problem == "":
            return Record(offset, opcode, xid, None, count), len(rest), ""
        if count < 16:
            return None, 0, problem
    xid_bytes = 4 if opcode in (ADD_XID, EIGHT) else 0
    times_bytes = 4 if opcode == ADD else 16
    header_bytes = 1 + xid_bytes + 4 + times_bytes
    if len(rest) < header_bytes:
        return None, 0, "unfinished"
    size = number(rest[1 + xid_bytes : 5 + xid_bytes])
    times = rest[5 + xid_bytes : header_bytes]
    if size < times_bytes or (opcode == EIGHT and not 0 <= number(times[:8]) < LATEST_ADD_MS):
        return None, 0, "damaged"
    length = 5 + xid_bytes + size
    if len(rest) < length:
        return None, 0, "unfinished"
    data = rest[header_bytes:length]
    if opcode == ADD:
        return Record(offset, opcode, 0, (data, None, number(times) * 1000)), length, ""
    xid = number(rest[1:5]) if xid_bytes else 0
    return Record(offset, opcode, xid, (data, number(times[:8]), number(times[8:]))), length, ""


def _problem_of_dump(count: int, rest: bytes) -> str:
    """Return "" if the rest is exactly that many ADD_XIDs, else the problem."""
    if count < 0:
        return "damaged"
    for _ in range(count):
        if rest and rest[0] != ADD_XID:
            return "damaged"
        record, size, problem = _read_one(rest, 0) if rest else (None, 0, "unfinished")
        if record is None:
            return problem
        rest = rest[size:]
    return "damaged" if rest else ""


class Entry(NamedTuple):
    """An item of a queue, the xid that an ADD_XID announced for its opening, or 0, and its error count."""

    item: tuple[bytes, int, int]
    announced: int
    errors: int = 0


class Queue:
    """A queue as the records make it: items are (data, add ms, expiry ms).

    Error counts do not affect the items. A reader that does not know them, like Kestrel, finds the same items and open
    reads.
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.entries: list[Entry] = []
        self.opened: dict[int, tuple[bytes, int, int]] = {}
        self.opened_errors: dict[int, int] = {}
        self.last_xid = 0

    @property
    def items(self) -> list[tuple[bytes, int, int]]:
        """The items that are not open, in order."""
        return [entry.item for entry in self.entries]

    @property
    def errors(self) -> list[int]:
        """The error counts of the items that are not open, in order."""
        return [entry.errors for entry in self.entries]

    def do(self, records: list[Record]) -> None:
        """Apply the records of a file in order. A record that names something missing is ignored."""
        for place, record in enumerate(records):
            if record.restates is not None or record.opcode == SAVE_XID:
                self.last_xid = record.xid
                continue
            if record.opcode == REMOVE:
                del self.entries[:1]
            elif record.opcode == OPEN and self.entries:
                head = self.entries.pop(0)
                self.opened[record.xid], self.opened_errors[record.xid] = head.item, head.errors
                self.last_xid = record.xid
            elif record.opcode == REMOVE_TENTATIVE and self.entries:
                head = self.entries.pop(0)
                if head.announced == 0:
                    self.last_xid = self.next_xid()
                xid = head.announced or self.last_xid
                self.opened[xid], self.opened_errors[xid] = head.item, head.errors
            elif record.opcode == UNREMOVE and record.xid in self.opened:
                errors = saved_errors(records, place)
                if errors is None:
                    errors = min(self.opened_errors[record.xid] + 1, MOST_ERRORS)
                self.entries.insert(0, Entry(self.opened.pop(record.xid), 0, errors))
            elif record.opcode in (CONFIRM, EIGHT):
                self.opened.pop(record.xid, None)
            if record.item is not None:
                data, add_ms, expiry_ms = record.item
                announced = record.xid if record.opcode == ADD_XID else 0
                self.entries.append(Entry((data, self._now_ms if add_ms is None else add_ms, expiry_ms), announced))

    def next_xid(self) -> int:
        """Return the first free xid after the last used one."""
        xid = self.last_xid
        while True:
            xid = xid + 1 if 0 < xid < LAST_XID else 1
            if xid not in self.opened:
                return xid

    def after_a_restart(self) -> list[tuple[bytes, int, int]]:
        """Return the items after a restart: open reads are back at the head, the lowest xid first."""
        return [self.opened[xid] for xid in sorted(self.opened)] + self.items

    def errors_after_a_restart(self) -> list[int]:
        """Return the error counts of the items after a restart."""
        return [self.opened_errors[xid] for xid in sorted(self.opened)] + self.errors


def saved_errors(records: list[Record], place: int) -> int | None:
    """Return the error count in the SAVE_XID directly before an UNREMOVE, or None if there is none."""
    before = records[place - 1] if place else None
    if before is None or before.opcode != SAVE_XID or before.xid < 0:
        return None
    place -= 2
    while place >= 0 and records[place].opcode == REMOVE_TENTATIVE:
        place -= 1
    return None if place >= 0 and records[place].opcode == ADD_XID else before.xid


def replayed(*files: bytes, now_ms: int) -> Queue:
    """Return the queue that these files make; each is read as far as it is good."""
    queue = Queue(now_ms)
    for contents in files:
        queue.do(read(contents).records)
    return queue


def with_error_counts(good: bytes, unremoves: bytes, *older: bytes) -> bytes:
    """Return a current file as a start of this server leaves it.

    Kestrel left it as these `good` bytes and these UNREMOVEs. `older` are the rotated files. This server returns each
    open read with its error count, so that the start counts none.
    """
    opened_errors = replayed(*older, good, now_ms=0).opened_errors
    assert len(unremoves) % 5 == 0
    for offset in range(0, len(unremoves), 5):
        assert unremoves[offset] == UNREMOVE
        xid = unremoves[offset + 1 : offset + 5]
        good += bytes([SAVE_XID]) + opened_errors[number(xid)].to_bytes(4, "little") + bytes([UNREMOVE]) + xid
    return good


def items_after(*files: bytes, now_ms: int) -> list[tuple[bytes, int, int]]:
    """Return the items after a restart over these files; each is read as far as it is good."""
    return replayed(*files, now_ms=now_ms).after_a_restart()
