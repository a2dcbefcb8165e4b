"""Repair of the positions in a queue after damage to one of its journal files.

A REMOVE record drops whatever item is at the head. After damage other items are at the head, so that the removals in
later files would drop wrong items. If the segment log has the state of the queue at the end of the damaged file,
records that restore this state are appended to the file, with placeholders for lost items. Otherwise the removals of
later files are discarded and only their items are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count

from kestrel.disk.files import Disk
from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.journal.cursor import JournalCursor
from kestrel.journal.records import (
    ADDX_HEADER_BYTES,
    PLACEHOLDER,
    REMOVE_RECORD,
    XID_RECORD_BYTES,
    encode_confirm,
    encode_open,
    encode_put_back,
)
from kestrel.journal.rewrite import Boundary, join_runs, repeat_record


def has_same_items(now: Boundary, target: Boundary) -> bool:
    """Return whether both boundaries have the same items, in the same order and with the same errors."""
    return _contents(now) == _contents(target)


def _contents(boundary: Boundary) -> tuple[object, ...]:
    front, first_id = list(boundary.front), boundary.first_id
    # Such an item may only have been peeked at, which does not change the queue.
    while front and front[-1] == first_id - 1 and front[-1] not in boundary.errors:
        first_id = front.pop()
    return dict(boundary.open), front, dict(boundary.errors), first_id, boundary.next_id


def can_reach(now: Boundary, target: Boundary) -> bool:
    """Return whether `transition_records` can lead from `now` to `target`: it has only items of `now` or later ones."""
    if now.first_id > target.first_id or now.next_id > target.next_id or target.first_id > target.next_id:
        return False
    held = {*now.open.values(), *now.front}
    taken = [*target.open.values(), *target.front]
    return len({*taken}) == len(taken) and all(
        item_id in held or now.first_id <= item_id < target.first_id for item_id in taken
    )


def lost_items(now: Boundary, target: Boundary) -> int:
    """Return how many items of `target` are lost. Placeholders take their positions."""
    taken = chain(target.open.values(), target.front)
    waiting = target.next_id - max(now.next_id, target.first_id)
    return sum(item_id >= now.next_id for item_id in taken) + max(0, waiting)


def max_transition_bytes(now: Boundary, target: Boundary) -> int:
    """Return an upper bound of the bytes that `transition_records` yields."""
    xid_records = len(now.open) * 3 + (len(target.open) + len(target.front)) * 6
    removals = target.first_id - now.first_id + len(now.open) + len(now.front)
    return (target.next_id - now.next_id) * ADDX_HEADER_BYTES + xid_records * XID_RECORD_BYTES + removals


def transition_records(now: Boundary, target: Boundary) -> Iterator[bytes]:
    """Yield runs of records that change the state of a queue from `now` to `target`.

    If a crash cuts the records off, new records from the state there lead to the same `target`.
    """
    yield from join_runs(_transition_records(now, target))


def _transition_records(now: Boundary, target: Boundary) -> Iterator[bytes]:
    yield from repeat_record(PLACEHOLDER, target.next_id - now.next_id)
    xids = {item_id: xid for xid, item_id in target.open.items()}
    put_back = {*target.front}
    errors_now = dict(now.errors)
    front = list(now.front)
    for xid, item_id in now.open.items():
        errors = target.errors.get(item_id, 0)
        if xids.get(item_id) == xid:
            if errors != errors_now.get(item_id, 0):
                yield encode_put_back(xid, errors) + encode_open(xid)
        elif item_id in xids or item_id in put_back:
            yield encode_put_back(xid, errors)
            errors_now[item_id] = errors
            front.insert(0, item_id)
        else:
            yield encode_confirm(xid)
    free = (xid for xid in count(1) if xid not in target.open)
    opened: dict[int, int] = {}
    head_id = now.first_id
    behind = sorted(each for each in chain(xids, put_back) if now.first_id <= each < target.first_id)
    for item_id in chain(front, behind):
        if item_id >= now.first_id:
            yield from repeat_record(REMOVE_RECORD, item_id - head_id)
            head_id = item_id + 1
        if item_id in xids:
            xid, errors = xids[item_id], target.errors.get(item_id, 0)
            yield encode_open(xid)
            if errors != errors_now.get(item_id, 0):
                yield encode_put_back(xid, errors) + encode_open(xid)
        elif item_id in put_back:
            opened[item_id] = next(free)
            yield encode_open(opened[item_id])
        else:
            yield REMOVE_RECORD
    yield from repeat_record(REMOVE_RECORD, target.first_id - head_id)
    for item_id in reversed(target.front):
        yield encode_put_back(opened[item_id], target.errors.get(item_id, 0))


def count_removals(disk: Disk, path: bytes) -> tuple[int, ReadEnd]:
    """Return the number of records of a file that do not add an item, and how the file ends."""
    with FileReader(disk, path) as reader:
        cursor = JournalCursor(reader)
        return sum(not record.adds_item for _, record in cursor.records()), cursor.end


def item_records(reader: FileReader, now_ms: int) -> Iterator[bytes]:
    """Yield the items of a file as runs of ADDX records. `now_ms` is the add time of items without one."""
    items = (record for _, record in JournalCursor(reader).records() if record.adds_item)
    return join_runs(record.item_record(now_ms) for record in items)


def max_growth_bytes(reader: FileReader) -> int:
    """Return an upper bound of the bytes of `item_records`: an ADD of at least 9 bytes grows by 12 bytes."""
    return reader.size * 7 // 3 + PART_BYTES
