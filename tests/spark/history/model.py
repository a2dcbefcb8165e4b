"""A second implementation of histories, slow and simple, as docs/spark.md describes them.

It asks the reference reader of the format for the queue after each record, and compares that with the queue before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.journal import reference
from tests.journal.reference import CONFIRM, EIGHT, REMOVE

ENDS = (REMOVE, CONFIRM, EIGHT)
"""Records that remove an item, and that no rewrite writes."""


class Step(NamedTuple):
    """A record of a queue, and its file."""

    file: str
    record: reference.Record


class Told(NamedTuple):
    """The history of an item."""

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


@dataclass
class _Item:
    file: str
    offset: int
    opens: int = 0
    aborts: int = 0
    errors: int = 0
    taken: int | None = None
    """The step that took it first."""
    gone: tuple[int, str] | None = None
    """The step that removed it, and its state since."""


def told(files: list[tuple[str, bytes]]) -> list[Told]:
    """Return the histories of a queue with these files in replay order, in the order in which items were added."""
    steps: list[Step] = []
    numbered: list[list[reference.Record]] = []
    for name, contents in files:
        numbered.append([])
        for record in reference.read(contents).records:
            number = record.item and (b"%d" % len(steps), *record.item[1:])
            numbered[-1].append(record._replace(item=number))
            steps.append(Step(name, record))
    items: dict[int, _Item] = {}
    before: dict[int, int | None] = {}
    for now, (name, record) in enumerate(steps):
        queue = queue_after(numbered, now + 1)
        after = places_in(queue)
        if now in after:
            items[now] = _Item(name, record.offset)
        for number, xid in before.items():
            item = items[number]
            is_open = after.get(number) is not None
            if xid is None and (is_open or number not in after) and item.taken is None:
                item.taken = now
            item.opens += xid is None and is_open
            item.aborts += xid is not None and number in after and not is_open
            if number not in after:
                ended = "continued" if record.opcode == EIGHT else "confirmed"
                item.gone = now, "removed" if xid is None else ended
        for entry in queue.entries:
            items[int(entry.item[0])].errors = entry.errors
        before = after
    left = [number for number, xid in sorted(before.items(), key=lambda each: (each[1] is None, each[1] or 0))]
    return [_told(items[number], before.get(number), left, number, steps) for number in items]


def queue_after(files: list[list[reference.Record]], records: int) -> reference.Queue:
    """Return the queue after that many records."""
    queue = reference.Queue(0)
    for file in files:
        queue.do(file[:records])
        records -= min(records, len(file))
    return queue


def places_in(queue: reference.Queue) -> dict[int, int | None]:
    """Return the xid of each open read, and None for each waiting item, in order."""
    in_line = {int(entry.item[0]): None for entry in queue.entries}
    return in_line | {int(item[0]): xid for xid, item in queue.opened.items()}


def _told(item: _Item, xid: int | None, left: list[int], number: int, steps: list[Step]) -> Told:
    unknown = (None, None)
    state = "queued" if xid is None else "open"
    taken = unknown if item.taken is None else bracket(item.taken, steps)
    removed = unknown
    if item.gone is not None:
        now, state = item.gone
        removed = bracket(now, steps)
    position = left.index(number) if number in left else None
    return Told(item.file, item.offset, state, item.opens, item.aborts, item.errors, xid, position, taken, removed)


def bracket(now: int, steps: list[Step]) -> tuple[int | None, int | None]:
    """Return the bounds of a step's time: the times of the items added before and after it, unless the clock was set
    back in between.

    A CONTINUE has its own time. The beginning of the first file, up to a record that no rewrite writes, may be a
    rewrite. Its times say nothing about earlier steps.
    """
    times = [step.record.item[1] if step.record.item is not None else None for step in steps]
    ends = (place for place, step in enumerate(steps) if step.file != steps[0].file or step.record.opcode in ENDS)
    begins = next(ends, len(steps))
    has_its_own = steps[now].record.opcode == EIGHT
    before = [time for time in times[: now + has_its_own] if time is not None]
    later = [time for time in times[max(begins, now + (not has_its_own)) :] if time is not None]
    if before and later and later[0] < before[-1]:
        return None, None
    return (before[-1] if before else None), (later[0] if later else None)
