"""How much of a scroll is in memory, what is read when, and what is remembered of what is done."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.storage.interfaces import IItemRanges
from kestrel.storage.scroll.queue import WINDOW_BYTES, WINDOW_ITEMS, ScrollQueue
from kestrel.storage.total_memory import MemoryLimit
from tests.scroll.handwritten import READER, done_ranges, errors, read_done, read_head, sealed
from tests.scroll.storages import SYNCED, Opener, Scrolls

FAMILY = (b"work", b"work+x", b"work+y")


def filled(scrolls: Scrolls, items: int, size: int) -> ScrollQueue:
    """A queue with so many items of that size, which begin with their numbers."""
    queue = scrolls.queue()
    for first in range(1, items + 1, 1000):
        numbers = range(first, min(items + 1, first + 1000))
        scrolls.put_and_commit(queue, *[b"%d " % number + bytes(max(0, size - 8)) for number in numbers])
    return queue


def number_of(data: bytes) -> int:
    return int(data.split(b" ")[0])


# The window.


def test_of_a_queue_of_many_small_items_no_more_are_in_memory_than_the_window_has(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 20_000, 10)
    assert (queue.items, queue.mem_items) == (20_000, WINDOW_ITEMS)
    for opened in (scrolls, start.crashed(scrolls)):
        queue = opened.queue()
        for number in range(1, 20_001):
            assert number_of(opened.fill(queue).take(False).data) == number
            assert queue.mem_items <= WINDOW_ITEMS
            if number % 100 == 0:
                opened.commit(queue)
        assert (queue.items, queue.bytes, queue.mem_items, queue.mem_bytes) == (0, 0, 0, 0)


def test_of_a_queue_of_large_items_no_more_is_in_memory_than_the_window_has_and_one_item(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 200, 20_000)
    assert WINDOW_BYTES <= queue.mem_bytes <= WINDOW_BYTES + 20_000
    for opened in (scrolls, start.crashed(scrolls)):
        queue = opened.queue()
        for number in range(1, 201):
            assert number_of(opened.fill(queue).take(False).data) == number
            assert queue.mem_bytes <= WINDOW_BYTES + 20_000
            opened.commit(queue)
            opened.threads.run_all()
        assert queue.items == 0


def test_an_item_larger_than_the_window_comes_alone(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 4, 2 * WINDOW_BYTES)
    assert queue.mem_items == 1
    again = start.crashed(scrolls)
    queue = again.queue()
    for left in (3, 2, 1, 0):
        again.fill(queue)
        assert (queue.mem_items, queue.take(False) is not None, queue.items) == (1, True, left)


def test_after_a_start_nothing_is_in_memory_before_it_is_asked_for(start: Opener) -> None:
    again = start.again(started_with(start, 100))
    assert (again.queue().mem_items, again.queue().items, again.queue().peek()) == (0, 100, None)
    again.fill(again.queue())
    assert again.queue().mem_items == 100


def started_with(start: Opener, items: int, **how: Any) -> Scrolls:
    scrolls = start(**how)
    filled(scrolls, items, 10)
    return scrolls


@pytest.mark.parametrize("most_bytes", [1, 100, 5000])
def test_with_a_smaller_max_memory_size_less_is_in_memory(start: Opener, most_bytes: int) -> None:
    scrolls = start(settings=QueueSettings(max_memory_size_bytes=most_bytes))
    queue = filled(scrolls, 1000, 50)
    for opened in (scrolls, start.crashed(scrolls)):
        queue = opened.queue()
        for number in range(1, 1001):
            assert number_of(opened.fill(queue).take(False).data) == number
            assert queue.mem_bytes <= most_bytes + 50


def test_while_the_servers_memory_is_full_one_item_is_in_memory_at_a_time(start: Opener) -> None:
    memory = MemoryLimit(1)
    scrolls = start(memory=memory)
    queue = filled(scrolls, 300, 100)
    memory.used_bytes += 1000
    again = start.crashed(scrolls, memory=memory)
    queue = again.queue()
    for number in range(1, 301):
        again.fill(queue)
        assert queue.mem_items == 1
        assert number_of(queue.take(False).data) == number
        again.commit(queue)
        assert len(again.threads) == 0


def test_what_is_in_memory_is_counted_and_what_is_not_is_not(start: Opener) -> None:
    scrolls = start(memory=MemoryLimit(1 << 30))
    queue = filled(scrolls, 20_000, 10)
    assert scrolls.memory.used_bytes == queue.mem_bytes + 80 * WINDOW_ITEMS
    queue.take(True)
    scrolls.commit(queue)
    assert scrolls.memory.used_bytes == queue.mem_bytes + queue.open_bytes + 80 * WINDOW_ITEMS
    scrolls.take_all(queue)
    queue.confirm([1])
    scrolls.commit(queue)
    assert (queue.open_reads, scrolls.memory.used_bytes) == (0, 0)


def test_each_reader_has_a_window_of_its_own(start: Opener) -> None:
    scrolls = start()
    family = [scrolls.queue(name) for name in FAMILY]
    scrolls.put_and_commit(family, *[b"%d " % number for number in range(1, 10_001)])
    for _ in range(5000):
        scrolls.fill(family[0]).take(False)
    scrolls.commit(*family)
    assert [number_of(scrolls.fill(queue).peek().data) for queue in family] == [5001, 1, 1]
    assert sum(queue.mem_items for queue in family) <= 3 * WINDOW_ITEMS


# Reading.


def test_what_is_behind_is_read_in_a_thread_and_never_by_the_reactor(start: Opener) -> None:
    scrolls = start.crashed(started_with(start, 10_000))
    queue = scrolls.queue()
    scrolls.disk.done.clear()
    filling = queue.fill()
    assert (filling is not None, scrolls.disk.bytes_of("read"), queue.peek()) == (True, 0, None)
    fired: list[object] = []
    filling.addCallback(fired.append)
    scrolls.threads.run_all()
    assert (fired, queue.peek() is not None, queue.fill()) == ([None], True, None)


def test_it_is_read_ahead_when_half_of_the_window_is_gone(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 10_000, 10)
    for _ in range(WINDOW_ITEMS // 2 - 1):
        queue.take(False)
    scrolls.commit(queue)
    assert len(scrolls.threads) == 0
    queue.take(False)
    scrolls.commit(queue)
    assert len(scrolls.threads) == 1
    scrolls.threads.run_all()
    assert queue.mem_items == WINDOW_ITEMS
    assert [number_of(item.data) for item in scrolls.take_all(queue)] == list(range(2049, 10_001))


def test_puts_takes_and_a_clear_may_happen_while_it_is_read(start: Opener) -> None:
    scrolls = start.crashed(started_with(start, 10_000))
    queue = scrolls.queue()
    fired: list[object] = []
    queue.fill().addCallback(fired.append)
    scrolls.put_and_commit(queue, b"10001 ")
    queue.clear()
    scrolls.put_and_commit(queue, b"10002 ")
    assert number_of(queue.peek().data) == 10_002
    scrolls.threads.run_all()
    assert fired == [None]
    assert [number_of(item.data) for item in scrolls.take_all(queue)] == [10_002]


@pytest.mark.parametrize("how", ["clear", "release"])
def test_whoever_waits_for_an_item_is_not_told_of_an_error_when_the_queue_is_cleared_and_its_file_goes(
    start: Opener, how: str
) -> None:
    settings = QueueSettings(default_journal_size_bytes=5000)
    scrolls = start.crashed(started_with(start, 500, settings=settings))
    queue = scrolls.queue()
    outcomes: list[object] = []
    queue.fill().addBoth(outcomes.append)
    if how == "clear":
        queue.clear()
    else:
        IItemRanges(queue).release(501)
    scrolls.put_and_commit(queue, b"501 ")
    while len(scrolls.threads):
        scrolls.threads.run_newest()
    assert (outcomes, queue.failure) == ([None], None)
    assert [number_of(item.data) for item in scrolls.take_all(queue)] == [501]


def test_what_was_put_back_is_taken_before_what_is_being_read(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(max_memory_size_bytes=1))
    queue = filled(scrolls, 5, 10)
    xids = [scrolls.fill(queue).take(True).xid for _ in range(2)]
    filling = queue.fill()
    queue.put_back(xids, False)
    assert queue.fill() is None
    taken = [number_of(queue.take(False).data)]
    scrolls.wait(filling)
    assert taken + [number_of(item.data) for item in scrolls.take_all(queue)] == [1, 2, 3, 4, 5]


def test_what_is_not_written_yet_comes_without_reading(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(max_memory_size_bytes=1))
    queue = scrolls.queue()
    family = [queue, scrolls.queue(b"work+x")]
    for number in range(1, 8):
        scrolls.put(family if number % 2 else [family[1]], b"%d " % number)
    scrolls.disk.done.clear()
    assert [number_of(item.data) for item in scrolls.take_all(queue)] == [1, 3, 5, 7]
    assert [number_of(item.data) for item in scrolls.take_all(family[1])] == list(range(1, 8))
    assert (scrolls.disk.done, len(scrolls.threads)) == ([], 0)


def test_it_reads_on_from_file_to_file(start: Opener) -> None:
    settings = QueueSettings(default_journal_size_bytes=1000, max_memory_size_bytes=300)
    scrolls = started_with(start, 300, settings=settings)
    assert len(scrolls.writers()) > 9
    for opened in (scrolls, start.crashed(scrolls)):
        assert [number_of(item.data) for item in opened.take_all(opened.queue())] == list(range(1, 301))


def test_a_file_that_cannot_be_read_now_is_an_error_and_is_tried_again(start: Opener) -> None:
    scrolls = start.crashed(started_with(start, 10))
    queue = scrolls.queue()
    scrolls.disk.fail("read", errno.EIO, times=1)
    with pytest.raises(QueueFailed):
        scrolls.wait(queue.fill())
    assert (queue.failure, queue.items) == (None, 10)
    assert [number_of(item.data) for item in scrolls.take_all(queue)] == list(range(1, 11))


def test_a_file_that_turns_out_to_be_damaged_is_repaired_and_what_could_be_read_is_served_on(start: Opener) -> None:
    scrolls = start.crashed(started_with(start, 100))
    queue = scrolls.queue()
    path = scrolls.folder / scrolls.writers()[0]
    contents = path.read_bytes()
    item_bytes = (len(contents) - 4) // 100
    path.write_bytes(contents[: 4 + 60 * item_bytes] + b"\xff" * 50 + contents[4 + 60 * item_bytes + 50 :])
    with pytest.raises(QueueFailed):
        scrolls.wait(queue.fill())
    assert queue.failure is not None
    left = [number_of(item.data) for item in scrolls.take_all(scrolls.queue())]
    assert left == list(range(1, len(left) + 1))
    assert len(left) in range(55, 62)
    damaged = list((scrolls.folder / ".kestrel" / "damaged").iterdir())
    assert [b"\xff" * 50 in file.read_bytes() for file in damaged] == [True]
    assert scrolls.queue().stats["journal_repaired_bytes"] > 0


# What is done.


def test_behind_a_slow_reader_what_is_done_takes_one_range(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"slow")
    slow = queue.take(True).xid
    for _ in range(100):
        scrolls.put(queue, *[b"a"] * 1000)
        for _ in range(1000):
            scrolls.fill(queue).take(False)
        scrolls.commit(queue)
    assert (queue.stats["scroll_done_ranges"], len(queue.done)) == (1, 1)
    scrolls.checkpoint()
    assert scrolls.reader() == READER + read_head(0) + read_done() + done_ranges((2, 100_001))
    again = start.crashed(scrolls)
    assert again.data(again.queue()) == [b"slow"]
    queue.confirm([slow])
    scrolls.commit(queue)
    assert queue.stats["scroll_done_ranges"] == 0
    assert scrolls.reader().endswith(read_head(100_001))


def test_each_open_read_beyond_the_head_is_a_range_more(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 1000, 10)
    xids = [queue.take(True).xid for _ in range(1000)]
    rng = random.Random(5)
    rng.shuffle(xids)
    done: set[int] = set()
    for xid in xids:
        queue.confirm([xid])
        done.add(xid)
        beyond = [each for each in done if any(other not in done for other in range(1, each))]
        assert queue.stats["scroll_done_ranges"] == sum(each - 1 not in done for each in beyond)
        scrolls.commit(queue)
    assert queue.done.head == 1000


def test_what_is_done_out_of_order_keeps_the_reader_file_small_over_checkpoints(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"slow")
    queue.take(True)
    for _ in range(20):
        scrolls.put(queue, *[b"a"] * 1000)
        for _ in range(1000):
            scrolls.fill(queue).take(False)
            scrolls.commit(queue)
        scrolls.checkpoint()
        assert len(scrolls.reader()) < 100
    assert queue.file.size == len(sealed(scrolls.reader().removeprefix(READER)))


def test_a_reader_file_does_not_grow_without_bound_between_checkpoints(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"slow")
    queue.take(True)
    largest = 0
    for _ in range(150):
        scrolls.put(queue, *[b"a"] * 1000)
        for _ in range(1000):
            scrolls.fill(queue).take(False)
        scrolls.commit(queue)
        scrolls.threads.run_all()
        largest = max(largest, len(scrolls.reader()))
    assert largest < (1 << 20) + 20_000


# Ranges of ids.


def ids(found: list[tuple[int, Any]]) -> list[int]:
    assert [item.id for _, item in found] == [item_id for item_id, _ in found]
    return [item_id for item_id, _ in found]


def test_a_range_is_read_across_files_and_marks(start: Opener) -> None:
    scrolls = started_with(start, 5000, settings=QueueSettings(default_journal_size_bytes=70_000))
    assert len(scrolls.writers()) > 2
    for opened in (scrolls, start.crashed(scrolls)):
        ranges = IItemRanges(opened.queue())
        assert (ranges.first_id, ranges.next_id) == (1, 5001)
        for first, end in ((1, 5001), (1, 2), (1000, 4321), (4999, 5001), (5000, 9999), (7, 7), (9, 3)):
            found = opened.wait(ranges.read_range(first, end, 1 << 30))
            assert ids(found) == list(range(first, min(end, 5001)))
            assert all(number_of(item.data) == item_id for item_id, item in found)


def test_a_range_is_the_same_every_time_whatever_is_taken_or_put_meanwhile(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 50, 10)
    ranges = IItemRanges(queue)
    first = scrolls.wait(ranges.read_range(1, 51, 1 << 30))
    queue.take(True)
    queue.take(False)
    queue.confirm([queue.take(True).xid])
    scrolls.put_and_commit(queue, b"51 ")
    assert [(key, item.data) for key, item in scrolls.wait(ranges.read_range(1, 51, 1 << 30))] == [
        (key, item.data) for key, item in first
    ]
    assert queue.items == 48


def test_a_range_ends_where_the_bytes_do_and_has_one_item_at_least(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[bytes(100)] * 10, b"", bytes(1 << 20), b"last")
    ranges = IItemRanges(queue)
    for most_bytes, first, expected in (
        (300, 1, [1, 2, 3]),
        (299, 1, [1, 2]),
        (0, 1, [1]),
        (0, 11, [11]),
        (100, 10, [10, 11]),
        (5, 12, [12]),
        (5, 13, [13]),
        (1 << 30, 9, [9, 10, 11, 12, 13]),
    ):
        assert ids(scrolls.wait(ranges.read_range(first, 99, most_bytes))) == expected


def test_a_range_has_what_is_for_its_reader_alone(start: Opener) -> None:
    scrolls = start()
    family = [scrolls.queue(name) for name in FAMILY]
    for number in range(1, 31):
        scrolls.put([queue for index, queue in enumerate(family) if (number + index) % 3], b"%d " % number)
    scrolls.commit(*family)
    for opened in (scrolls, start.crashed(scrolls)):
        for index, name in enumerate(FAMILY):
            ranges = IItemRanges(opened.queue(name))
            found = opened.wait(ranges.read_range(1, 99, 1 << 30))
            assert ids(found) == [number for number in range(1, 31) if (number + index) % 3]


def test_expired_items_are_in_a_range(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put(queue, b"a", expiry_ms=1)
    scrolls.commit(queue)
    (found,) = scrolls.wait(IItemRanges(queue).read_range(1, 2, 100))
    assert (found[1].data, found[1].expiry_ms) == (b"a", 1)


def test_items_that_are_not_safe_are_not_to_be_seen(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"1 ")
    scrolls.put(queue, b"2 ")
    ranges = IItemRanges(queue)
    assert (ranges.next_id, ids(scrolls.wait(ranges.read_range(1, 99, 100)))) == (2, [1])
    scrolls.begin_commit(queue)
    assert ranges.next_id == 2
    ranges.release(99)
    assert (ranges.first_id, queue.items) == (2, 1)
    scrolls.threads.run_all()
    assert (ranges.next_id, ids(scrolls.wait(ranges.read_range(1, 99, 100)))) == (3, [2])


@pytest.mark.parametrize("name", [b"work", b"work+x"])
@pytest.mark.parametrize("end_id", [1, 2, 50, 100, 101, 150, 5500, 6000, 6001, 99_999])
def test_what_is_released_is_gone_and_the_counts_are_right_wherever_it_ends(
    start: Opener, end_id: int, name: bytes
) -> None:
    scrolls = start()
    family = [scrolls.queue(), scrolls.queue(b"work+x")]
    for first in range(1, 6001, 1000):
        for number in range(first, first + 1000):
            scrolls.put(family if number % 10 else family[:1], b"%d " % number)
        scrolls.commit(*family)
    given = [number for number in range(1, 6001) if number % 10 or name == b"work"]
    queue = scrolls.queue(name)
    opened = [scrolls.fill(queue).take(True) for _ in range(100)]
    assert queue.confirm([item.xid for item in opened[::3]]) == 34
    queue.put_back([item.xid for item in opened[1::3]], False)
    scrolls.commit(queue)
    gone = {number_of(item.data) for item in opened[::3]}
    is_open = {number_of(item.data) for item in opened[2::3]}
    ranges = IItemRanges(queue)
    ranges.release(end_id)
    ranges.release(end_id)
    scrolls.commit(queue)
    left = [number for number in given if number >= end_id and number not in gone]
    assert queue.open_reads == len(is_open & set(left))
    assert queue.items == len(left) - queue.open_reads
    assert queue.bytes == sum(len(b"%d " % number) for number in left if number not in is_open)
    assert sorted(number_of(item.data) for item in start.crashed(scrolls).take_all(name)) == left
    taken = [number_of(item.data) for item in scrolls.take_all(queue)]
    assert sorted(taken) == [number for number in left if number not in is_open]
    assert (queue.items, queue.bytes) == (0, 0)


def test_what_is_released_does_not_come_from_a_reading_that_was_under_way(start: Opener) -> None:
    scrolls = start.crashed(started_with(start, 10_000))
    queue = scrolls.queue()
    filling = queue.fill()
    IItemRanges(queue).release(9001)
    assert queue.items == 1000
    scrolls.wait(filling)
    assert [number_of(item.data) for item in scrolls.take_all(queue)] == list(range(9001, 10_001))


def test_a_release_within_what_is_being_read_leaves_the_rest(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(max_memory_size_bytes=200))
    queue = filled(scrolls, 100, 10)
    while queue.take(False) is not None:
        pass
    filling = queue.fill()
    assert filling is not None
    first = 100 - queue.items + 1
    IItemRanges(queue).release(first + 2)
    scrolls.wait(filling)
    assert [number_of(item.data) for item in scrolls.take_all(queue)] == list(range(first + 2, 101))


def test_a_release_is_written_with_the_next_commit_as_a_head(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 100, 10)
    before = scrolls.reader()
    IItemRanges(queue).release(51)
    assert scrolls.reader() == before
    scrolls.commit(queue)
    assert scrolls.reader() == before + read_head(50)
    IItemRanges(queue).release(20)
    scrolls.commit(queue)
    assert scrolls.reader() == before + read_head(50)


def test_files_of_released_items_go(start: Opener) -> None:
    scrolls = started_with(start, 1000, settings=QueueSettings(default_journal_size_bytes=5000))
    queue = scrolls.queue()
    IItemRanges(queue).release(1001)
    scrolls.commit(queue)
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 1


def test_an_error_count_of_a_released_item_is_forgotten(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 3, 10)
    queue.put_back([queue.take(True).xid, queue.take(True).xid], True)
    scrolls.commit(queue)
    IItemRanges(queue).release(2)
    assert queue.state.errors == {2: 1}
    scrolls.commit(queue)
    scrolls.close()
    assert scrolls.reader() == READER + read_head(1) + read_done() + errors(_2=1)
    again = start.crashed(scrolls)
    assert [(item.id, item.errors) for item in again.take_all(again.queue())] == [(2, 1), (3, 0)]


def test_ids_are_the_same_after_a_restart(start: Opener) -> None:
    scrolls = start()
    queue = filled(scrolls, 10, 10)
    IItemRanges(queue).release(4)
    again = start.again(scrolls)
    ranges = IItemRanges(again.queue())
    assert (ranges.first_id, ranges.next_id) == (4, 11)
    assert ids(again.wait(ranges.read_range(1, 99, 1 << 20))) == list(range(4, 11))
