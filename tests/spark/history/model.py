"""A second teller of histories, as slow and plain as docs/spark.md says them, to hold the real one against.

It has all records in a list and looks through it again for each question.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.journal import reference
from tests.journal.reference import (
    ADD,
    ADD_XID,
    ADDX,
    CONFIRM,
    EIGHT,
    OPEN,
    REMOVE,
    REMOVE_TENTATIVE,
    SAVE_XID,
    UNREMOVE,
)

ENDS = (REMOVE, CONFIRM, EIGHT)
"""What takes an item away: no rewrite writes it."""


class Step(NamedTuple):
    """A record of a queue, and the file it stands in."""

    file: str
    record: reference.Record
    records: list[reference.Record]
    """All of that file."""
    place: int
    """Its place among them."""


class Told(NamedTuple):
    """What became of an item."""

    file: str
    offset: int
    state: str
    opens: int
    aborts: int
    errors: int
    xid: int | None
    position: int | None
    taken: tuple[int | None, int | None]
    removed: tuple[int | None, int | None]


class _Item:
    def __init__(self, file: str, record: reference.Record, announced: int) -> None:
        self.file, self.offset, self.announced = file, record.offset, announced
        self.opens: list[int] = []
        self.aborts = self.errors = 0
        self.gone: tuple[int, str] | None = None
        self.xid: int | None = None


def told(files: list[tuple[str, bytes]]) -> list[Told]:
    """The histories of a queue with these files, in replay order; in the order in which items were added."""
    steps = []
    for name, contents in files:
        records = reference.read(contents).records
        steps += [Step(name, record, records, place) for place, record in enumerate(records)]
    everything: list[_Item] = []
    line: list[_Item] = []
    opened: dict[int, _Item] = {}
    last_xid = 0

    def next_xid() -> int:
        xid = last_xid
        while True:
            xid = xid + 1 if 0 < xid < reference.LAST_XID else 1
            if xid not in opened:
                return xid

    def end(item: _Item, now: int, state: str) -> None:
        item.gone, item.xid = (now, state), None

    for now, (name, record, records, place) in enumerate(steps):
        if record.restates is not None or record.opcode == SAVE_XID:
            last_xid = record.xid
            continue
        if record.opcode == REMOVE and line:
            head = line.pop(0)
            if not head.opens:
                head.opens.append(-1 - now)  # taken without having been opened
            end(head, now, "removed")
        elif record.opcode in (OPEN, REMOVE_TENTATIVE) and line:
            head = line.pop(0)
            xid = record.xid
            if record.opcode == OPEN or not head.announced:
                xid = last_xid = record.xid if record.opcode == OPEN else next_xid()
            elif record.opcode == REMOVE_TENTATIVE:
                xid = head.announced
            if xid in opened:
                end(opened.pop(xid), now, "confirmed")
            head.announced = 0
            head.opens.append(now)
            head.xid, opened[xid] = xid, head
        elif record.opcode == UNREMOVE and record.xid in opened:
            item = opened.pop(record.xid)
            said = reference.saved_errors(records, place)
            item.errors = min(item.errors + 1, reference.MOST_ERRORS) if said is None else said
            item.aborts += 1
            item.xid = None
            line.insert(0, item)
        elif record.opcode in (CONFIRM, EIGHT) and record.xid in opened:
            end(opened.pop(record.xid), now, "continued" if record.opcode == EIGHT else "confirmed")
        if record.opcode in (ADD, ADDX, ADD_XID, EIGHT):
            item = _Item(name, record, record.xid if record.opcode == ADD_XID else 0)
            everything.append(item)
            line.append(item)
    left = [opened[xid] for xid in sorted(opened)] + line
    return [_told(item, left, steps) for item in everything]


def _told(item: _Item, left: list[_Item], steps: list[Step]) -> Told:
    taken: tuple[int | None, int | None] = (None, None)
    if item.opens:
        first = item.opens[0]
        taken = bracket(first if first >= 0 else -1 - first, steps)
    state, removed = "open" if item.xid is not None else "queued", (None, None)
    if item.gone is not None:
        now, state = item.gone
        removed = bracket(now, steps)
    opens = len([each for each in item.opens if each >= 0])
    position = left.index(item) if item in left else None
    return Told(item.file, item.offset, state, opens, item.aborts, item.errors, item.xid, position, taken, removed)


def bracket(now: int, steps: list[Step]) -> tuple[int | None, int | None]:
    """When that step was: between the times of the items that were added before and after it, unless the clock was set
    back between the two. A CONTINUE has a time of its own. What the first file begins with, up to the first record that
    a rewrite does not write, may have been rewritten, and its times say nothing of what was before them."""
    times = [step.record.item[1] if step.record.item is not None else None for step in steps]
    ends = (place for place, step in enumerate(steps) if step.file != steps[0].file or step.record.opcode in ENDS)
    begins = next(ends, len(steps))
    has_its_own = steps[now].record.opcode == EIGHT
    before = [time for time in times[: now + has_its_own] if time is not None]
    later = [time for time in times[max(begins, now + (not has_its_own)) :] if time is not None]
    if before and later and later[0] < before[-1]:
        return None, None
    return (before[-1] if before else None), (later[0] if later else None)
