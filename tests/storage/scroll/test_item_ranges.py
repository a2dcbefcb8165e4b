"""Items of a scroll read by their ids: ranges, releases and holds."""

from __future__ import annotations

from typing import Any

import pytest

from kestrel.config.model import QueueSettings
from kestrel.storage.interfaces import IItemRanges
from kestrel.storage.scroll.queue import ScrollQueue
from tests.journal.handwritten import i64
from tests.scroll.handwritten import WRITER, errors, put, read_head, reader_file, targets, with_data
from tests.scroll.storages import NEVER, PERIODIC, SYNCED, Opener, Scrolls

SMALL_FILES = QueueSettings(default_journal_size_bytes=60)
LARGE = 1 << 30


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def read(scrolls: Scrolls, queue: ScrollQueue, first_id: int, end_id: int, max_bytes: int = LARGE) -> dict[int, Any]:
    """Return the items with these ids, by id."""
    pairs = scrolls.wait(IItemRanges(queue).read_range(first_id, end_id, max_bytes))
    assert [item.id for _, item in pairs] == [item_id for item_id, _ in pairs]
    return dict(pairs)


def ids(scrolls: Scrolls, queue: ScrollQueue, first_id: int, end_id: int, max_bytes: int = LARGE) -> list[int]:
    return list(read(scrolls, queue, first_id, end_id, max_bytes))


def data(scrolls: Scrolls, first_id: int, end_id: int) -> list[bytes]:
    """Return the data of the items of the queue `work` with these ids."""
    return [item.data for item in read(scrolls, scrolls.queue(), first_id, end_id).values()]


def held(start: Opener, *items: bytes, **how: Any) -> tuple[Scrolls, ScrollQueue]:
    """Start a queue with these items, which the reader `spark` holds."""
    scrolls, queue = start.queue(**how)
    IItemRanges(queue).hold(b"spark")
    scrolls.put_and_commit(queue, *items)
    return scrolls, queue


# Ranges.


def test_range_is_read_across_files_and_marks(start: Opener) -> None:
    scrolls, queue = start.queue(settings=QueueSettings(default_journal_size_bytes=70_000))
    for first in range(1, 5001, 1000):
        scrolls.put_and_commit(queue, *numbers(first, first + 999))
    assert len(scrolls.writers()) > 2
    for opened in (scrolls, start.crashed(scrolls)):
        ranges = IItemRanges(opened.queue())
        assert (ranges.first_id, ranges.next_id) == (1, 5001)
        for first, end in ((1, 5001), (1, 2), (1000, 4321), (4999, 5001), (5000, 9999), (7, 7), (9, 3)):
            assert data(opened, first, end) == numbers(first, min(end, 5001) - 1)


def test_repeated_id_is_in_no_range_of_another_reader(start: Opener) -> None:
    for_parent = b"".join(targets(0, b":own") + put(each, b"for the parent") for each in (1, 2, 3))
    scrolls = start.over(
        {
            "work.1": WRITER + for_parent,
            "work.2": WRITER + put(2, b"ignored") + put(4, b"d"),
            "work.read.:own": reader_file(0),
            "work.read.x": reader_file(0),
        }
    )
    (item,) = read(scrolls, scrolls.queue(b"work+x"), 1, 5).values()
    assert item.data == b"d"


def test_item_of_another_reader_is_no_first_id(start: Opener) -> None:
    scrolls, (parent, child) = start.family(children=1)
    scrolls.put_and_commit(child, b"for x")
    assert (IItemRanges(parent).first_id, IItemRanges(child).first_id) == (2, 1)


# Unsafe items.


def test_unsafe_items_can_be_neither_read_nor_released(start: Opener) -> None:
    scrolls, queue = start.queue(b"1", settings=SYNCED)
    scrolls.put(queue, b"2")
    ranges = IItemRanges(queue)
    assert (ranges.next_id, ids(scrolls, queue, 1, 99)) == (2, [1])
    outcomes = scrolls.begin_commit(queue)
    reads: list[list[tuple[int, object]]] = []
    ranges.read_range(1, 100, 1000).addCallback(reads.append)
    scrolls.threads.run_newest()
    assert (outcomes, [item_id for item_id, _ in reads[0]], ranges.next_id) == ([], [1], 2)
    ranges.release(99)
    assert (ranges.first_id, queue.items) == (2, 1)
    scrolls.threads.run_all()
    assert (ranges.next_id, ids(scrolls, queue, 1, 99)) == (3, [2])


def test_items_are_safe_after_all_files_were_rewritten(start: Opener) -> None:
    scrolls, _ = start.queue(b"a")
    again = start.crashed(scrolls, settings=SYNCED, arrange=lambda disk: disk.fail("sync", 5, times=1))
    queue = again.queue()
    again.put(queue, b"b")
    outcomes = again.begin_commit(queue)
    assert IItemRanges(queue).next_id == 2
    again.pass_time(1)
    assert (outcomes, IItemRanges(queue).next_id) == ([None], 3)


def test_items_written_during_sync_of_sibling_are_unsafe_after_it(start: Opener) -> None:
    scrolls, (parent, child) = start.family(children=1, settings=SYNCED)
    scrolls.put([parent, child], b"a")
    scrolls.begin_commit(parent)
    scrolls.put(child, b"b")
    scrolls.begin_commit(child)
    scrolls.threads.run_one()
    assert IItemRanges(child).next_id == 2
    scrolls.threads.run_all()
    assert IItemRanges(child).next_id == 3


# Releases.


@pytest.mark.parametrize("name", [b"work", b"work+x"])
@pytest.mark.parametrize("end_id", [1, 2, 50, 100, 101, 150, 5500, 6000, 6001, 99_999])
def test_release_removes_items_up_to_any_id_and_keeps_counts(start: Opener, end_id: int, name: bytes) -> None:
    scrolls, family = start.family(children=1)
    for first in range(1, 6001, 1000):
        for number in range(first, first + 1000):
            scrolls.put(family if number % 10 else family[:1], b"%d" % number)
        scrolls.commit(*family)
    queue = scrolls.queue(name)
    opened = [scrolls.fill(queue).take(True) for _ in range(100)]
    assert queue.confirm([item.xid for item in opened[::3]]) == 34
    queue.put_back([item.xid for item in opened[1::3]], False)
    scrolls.commit(queue)
    confirmed = {int(item.data) for item in opened[::3]}
    open_numbers = {int(item.data) for item in opened[2::3]}
    ranges = IItemRanges(queue)
    ranges.release(end_id)
    ranges.release(end_id)
    scrolls.commit(queue)
    of_queue = [number for number in range(1, 6001) if number % 10 or name == b"work"]
    left = [number for number in of_queue if number >= end_id and number not in confirmed]
    closed = [number for number in left if number not in open_numbers]
    assert queue.open_reads == len(left) - len(closed)
    assert (queue.items, queue.bytes) == (len(closed), sum(len(b"%d" % number) for number in closed))
    assert sorted(map(int, start.crashed(scrolls).data(name))) == left
    assert sorted(map(int, scrolls.data(name))) == closed
    assert (queue.items, queue.bytes) == (0, 0)


def test_released_items_do_not_come_from_an_earlier_read(start: Opener) -> None:
    scrolls = start.crashed(start.queue(*numbers(1, 10_000))[0])
    queue = scrolls.queue()
    filling = queue.fill()
    IItemRanges(queue).release(9001)
    assert queue.items == 1000
    scrolls.wait(filling)
    assert scrolls.data() == numbers(9001, 10_000)


def test_release_of_a_part_being_read_leaves_the_rest(start: Opener) -> None:
    scrolls, queue = start.queue(*numbers(1, 100), settings=QueueSettings(max_memory_size_bytes=40))
    while queue.take(False) is not None:
        pass
    filling = queue.fill()
    assert filling is not None
    first = 100 - queue.items + 1
    IItemRanges(queue).release(first + 2)
    scrolls.wait(filling)
    assert scrolls.data() == numbers(first + 2, 100)


def test_release_is_written_by_the_next_commit_as_a_head(start: Opener) -> None:
    scrolls, queue = start.queue(*numbers(1, 100))
    before = scrolls.reader()
    IItemRanges(queue).release(51)
    assert scrolls.reader() == before
    scrolls.commit(queue)
    assert scrolls.reader() == before + read_head(50)
    IItemRanges(queue).release(20)
    scrolls.commit(queue)
    assert scrolls.reader() == before + read_head(50)


def test_error_count_of_released_item_is_forgotten(start: Opener) -> None:
    scrolls, queue = start.queue(*numbers(1, 3))
    queue.put_back([queue.take(True).xid, queue.take(True).xid], True)
    scrolls.commit(queue)
    IItemRanges(queue).release(2)
    assert queue.state.errors == {2: 1}
    scrolls.commit(queue)
    scrolls.close()
    assert scrolls.reader() == reader_file(1) + errors(_2=1)
    assert [(item.id, item.errors) for item in start.crashed(scrolls).take_all()] == [(2, 1), (3, 0)]


def test_release_ignores_unwritten_items_of_siblings(start: Opener) -> None:
    settings = QueueSettings(max_memory_size_bytes=1)
    scrolls, (parent, child) = start.family(b"a", b"b", b"c", children=1, settings=settings)
    scrolls.put(parent, b"for the parent")
    IItemRanges(child).release(3)
    assert (child.items, child.bytes) == (1, 1)
    scrolls.commit(parent)
    assert scrolls.data(child) == [b"c"]


def test_truncated_release_removes_the_same_items(start: Opener) -> None:
    scrolls, queue = held(start, b"a", b"b", b"c", b"d")
    queue.confirm([queue.take(True).xid, scrolls.fill(queue).take(True).xid][1:])
    scrolls.commit(queue)
    size = len(scrolls.reader())
    IItemRanges(queue).release(4)
    scrolls.commit(queue)
    for cut in range(size, len(scrolls.reader()) + 1):
        again = start.over({"work.read.": scrolls.reader()[:cut]}, scrolls.left_behind())
        first_id = IItemRanges(again.queue()).first_id
        assert all(item.id >= first_id for item in again.look_through())
        assert first_id == 4 or cut < len(scrolls.reader())


# Holds.


def test_held_queue_is_served_when_started_on_a_full_disk(start: Opener) -> None:
    scrolls, _ = held(start, b"a", settings=SYNCED)
    scrolls = start.power_failed(scrolls, settings=PERIODIC, arrange=lambda disk: setattr(disk, "room", 0))
    next_id = IItemRanges(scrolls.queue()).next_id
    assert data(scrolls, 1, next_id) == [b"a"]
    scrolls.disk.room = None
    scrolls.checkpoint()
    scrolls = start.power_failed(scrolls)
    assert IItemRanges(scrolls.queue()).next_id > next_id


def test_no_id_is_repeated_while_a_reader_is_unreadable(start: Opener) -> None:
    scrolls, family = start.family(children=1, settings=SYNCED)
    IItemRanges(family[1]).hold(b"spark")
    scrolls.put_and_commit(family, b"a")
    scrolls = start.power_failed(scrolls, settings=NEVER, arrange=lambda disk: disk.cannot_read("work.read.x"))
    queue = scrolls.queue()
    assert IItemRanges(queue).next_id > 1000
    scrolls.put_and_commit(queue, b"b")
    seen_id = IItemRanges(queue).next_id - 1
    scrolls = start.power_failed(scrolls)
    assert IItemRanges(scrolls.queue(b"work+x")).next_id > seen_id


def test_ids_begin_behind_the_position_of_a_hold(start: Opener) -> None:
    spark = with_data(14, i64(5 << 32) + b"spark")
    ranges = IItemRanges(start.over({"work.read.": reader_file(3) + spark}).queue())
    assert ranges.first_id == (5 << 32) + 1
    assert ranges.next_id > 5 << 32


@pytest.mark.parametrize("how", ["taken", "flushed"])
def test_hold_may_begin_before_removals_are_safe(start: Opener, how: str) -> None:
    scrolls, queue = start.queue(settings=SYNCED)
    scrolls.put(queue, b"a", b"b")
    outcomes = scrolls.begin_commit(queue)
    scrolls.data(queue) if how == "taken" else queue.clear()
    ranges = IItemRanges(queue)
    ranges.hold(b"spark")
    assert (ranges.first_id, ranges.next_id, ranges.end_of(ranges.first_id, 5)) == (3, 3, 3)
    assert outcomes == []
    scrolls.threads.run_all()
    scrolls.put_and_commit(queue, b"c")
    assert (ranges.next_id, data(scrolls, 3, 4)) == (4, [b"c"])


def test_items_held_before_the_hold_is_written_are_kept(start: Opener) -> None:
    scrolls, queue = start.queue(bytes(100), b"b" * 100, b"c" * 100, settings=SMALL_FILES)
    queue.take(False)
    scrolls.clock.advance(10)
    assert len(scrolls.threads) == 1, "its file is being rewritten"
    ranges = IItemRanges(queue)
    ranges.hold(b"spark")
    first_id = ranges.first_id
    scrolls.fill(queue).take(False)
    queue.put_back([scrolls.fill(queue).take(True).xid], True)
    scrolls.threads.run_all()
    scrolls.commit(queue)
    scrolls.threads.run_all()
    assert data(scrolls, first_id, ranges.next_id) == [b"b" * 100, b"c" * 100]
