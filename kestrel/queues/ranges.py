"""Reads of a queue by its items' durable ids, for one reader at a time, which releases the items it has read."""

from __future__ import annotations

from typing import Final, cast

from twisted.internet.defer import Deferred

from kestrel.errors import RangeRefused
from kestrel.item import Item
from kestrel.protocols.codec import RangeState
from kestrel.queues.queue import Queue
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IItemRanges

MAX_READER_BYTES: Final = 255


def check_reader_name(reader: bytes) -> None:
    """Raise `RangeRefused` unless `reader` is a valid name of a reader."""
    if not 0 < len(reader) <= MAX_READER_BYTES:
        raise RangeRefused(f"the name of a reader must have 1 to {MAX_READER_BYTES} bytes")


def open_range(queue: Queue, reader: bytes, first_id: int, max_items: int) -> tuple[RangeState, Batch | None]:
    """Keep the queue's items for `reader`. Return the state of its range, and the batch to wait for or None.

    The state's `end_id` ends a batch of at most `max_items` from `first_id` on. A `max_items` <= 0 means all items. A
    `first_id` <= 0 means the first unreleased item, and opens the range if no reader has the queue. Raises
    `RangeRefused`, for example if another reader has the queue.
    """
    ranges = _ranges_of(queue)
    if first_id <= 0 and ranges.reader is None:
        ranges.hold(reader)
        queue.touch()
    _check_reader(queue, ranges, reader)
    begin_id = first_id if first_id > 0 else ranges.first_id
    _check_range(queue, ranges, begin_id, begin_id)
    end_id = ranges.end_of(begin_id, max_items) if max_items > 0 else ranges.next_id
    return RangeState(ranges.first_id, ranges.next_id, end_id), queue.unsettled_batch


def read_range(
    queue: Queue, reader: bytes, first_id: int, end_id: int, max_bytes: int
) -> Deferred[list[tuple[int, Item]]]:
    """Return the items from `first_id` to below `end_id` with their ids, up to `max_bytes` of data but at least one.

    Raises `RangeRefused` unless `reader` has the range open and none of these ids is released or unused.
    """
    ranges = _ranges_of(queue)
    _check_reader(queue, ranges, reader)
    _check_range(queue, ranges, first_id, end_id)
    reading: Deferred[list[tuple[int, Item]]] = ranges.read_range(first_id, end_id, max_bytes)
    return reading


def release_range(queue: Queue, reader: bytes, end_id: int) -> tuple[RangeState, Batch | None]:
    """Remove all items below `end_id`, for all clients. Return the state of the range, and the batch to wait for or
    None.

    Ids that are already released are ignored. Raises `RangeRefused` unless the range of `reader` is open and reaches
    `end_id`.
    """
    ranges = _ranges_of(queue)
    _check_reader(queue, ranges, reader)
    if end_id > ranges.first_id:
        _check_range(queue, ranges, ranges.first_id, end_id)
        ranges.release(end_id)
        for xid in [xid for xid in queue.open_read_table if not queue.store.is_open(xid)]:
            queue.open_read_table.ended(xid)
        queue.touch()
    return RangeState(ranges.first_id, ranges.next_id, ranges.next_id), queue.unsettled_batch


def close_range(queue: Queue, reader: bytes) -> Batch | None:
    """Stop keeping items for `reader`. Return the batch to wait for, or None. Does nothing if no items are kept.

    Raises `RangeRefused` if another reader has the queue.
    """
    ranges = _ranges_of(queue)
    if ranges.reader is not None:
        _check_reader(queue, ranges, reader)
        ranges.end_hold()
        queue.touch()
    return queue.unsettled_batch


def has_range_reader(queue: Queue) -> bool:
    """Return True if items are kept, or will be, for a reader."""
    ranges = _ranges_if_any(queue)
    return ranges is not None and ranges.reader is not None


def range_not_open_error(queue: bytes) -> RangeRefused:
    """Return the error for a reader that uses a range of `queue` without opening it."""
    return RangeRefused(
        f"no range of the queue {_text(queue)} is open: it was never opened, was closed, or the queue was deleted"
    )


def _ranges_if_any(queue: Queue) -> IItemRanges | None:
    return cast("IItemRanges | None", IItemRanges(queue.store, None))


def _ranges_of(queue: Queue) -> IItemRanges:
    ranges = _ranges_if_any(queue)
    if ranges is None:
        raise RangeRefused(
            f"the items of {_show_queue(queue)} cannot be read by ids: its storage has no item ids; "
            "use the storage scroll"
        )
    return ranges


def _check_reader(queue: Queue, ranges: IItemRanges, reader: bytes) -> None:
    if ranges.reader is None:
        raise range_not_open_error(queue.name)
    if ranges.reader != reader:
        raise RangeRefused(f"{_show_queue(queue)} is already read by another reader: {_text(ranges.reader)}")


def _check_range(queue: Queue, ranges: IItemRanges, first_id: int, end_id: int) -> None:
    if first_id < ranges.first_id:
        raise RangeRefused(
            f"the ids from {first_id} on of {_show_queue(queue)} were released; its items begin at {ranges.first_id}"
        )
    if end_id > ranges.next_id:
        raise RangeRefused(f"{_show_queue(queue)} has no items from id {ranges.next_id} on, and none below {end_id}")


def _show_queue(queue: Queue) -> str:
    return f"the queue {_text(queue.name)}"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
