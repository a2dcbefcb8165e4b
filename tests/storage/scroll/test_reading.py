"""The items of a scroll in memory: the window, reading ahead, and the finished items."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.storage.interfaces import IItemRanges
from kestrel.storage.scroll.queue import WINDOW_BYTES, WINDOW_ITEMS, ScrollQueue
from kestrel.storage.total_memory import ITEM_BYTES, MemoryLimit
from tests.scroll.handwritten import (
    READER,
    WRITER,
    done_ranges,
    errors,
    put,
    read_head,
    reader_file,
    sealed,
    with_data,
    writer_file,
)
from tests.scroll.storages import Opener, Scrolls

ONE_IN_MEMORY = QueueSettings(max_memory_size_bytes=1)


def filled(start: Opener, items: int, item_bytes: int = 10, **how: Any) -> tuple[Scrolls, ScrollQueue]:
    """Start a queue with this many items, which begin with their numbers."""
    scrolls, queue = start.queue(**how)
    for first in range(1, items + 1, 1000):
        numbers = range(first, min(items + 1, first + 1000))
        scrolls.put_and_commit(queue, *[b"%d " % number + bytes(max(0, item_bytes - 8)) for number in numbers])
    return scrolls, queue


def on_disk(start: Opener, items: int, **how: Any) -> tuple[Scrolls, ScrollQueue]:
    """Start a queue with this many items, all of them only on disk."""
    scrolls = start.crashed(filled(start, items, **how)[0])
    return scrolls, scrolls.queue()


def number_of(data: bytes) -> int:
    return int(data.split(b" ")[0])


def taken(scrolls: Scrolls) -> list[int]:
    """Take every item of the queue and return the numbers."""
    return list(map(number_of, scrolls.data()))


def take_in_order(scrolls: Scrolls, items: int) -> Iterator[ScrollQueue]:
    """Take items 1 to `items`, and yield the queue before and after each."""
    queue = scrolls.queue()
    for number in range(1, items + 1):
        yield scrolls.fill(queue)
        assert number_of(queue.take(False).data) == number
        yield queue


# The window.


def test_window_bounds_the_number_of_small_items(start: Opener) -> None:
    scrolls, queue = filled(start, 20_000)
    assert (queue.items, queue.mem_items) == (20_000, WINDOW_ITEMS)
    for opened in (scrolls, start.crashed(scrolls)):
        for queue in take_in_order(opened, 20_000):
            assert queue.mem_items <= WINDOW_ITEMS
            if queue.items % 100 == 0:
                opened.commit(queue)
        assert (queue.items, queue.bytes, queue.mem_items, queue.mem_bytes) == (0, 0, 0, 0)


def test_window_bounds_the_bytes_of_large_items(start: Opener) -> None:
    scrolls, queue = filled(start, 200, 20_000)
    assert WINDOW_BYTES <= queue.mem_bytes <= WINDOW_BYTES + 20_000
    for opened in (scrolls, start.crashed(scrolls)):
        for queue in take_in_order(opened, 200):
            assert queue.mem_bytes <= WINDOW_BYTES + 20_000
            opened.commit(queue)
            opened.threads.run_all()
        assert queue.items == 0


def test_item_larger_than_the_window_is_alone_in_memory(start: Opener) -> None:
    scrolls, queue = filled(start, 4, 2 * WINDOW_BYTES)
    assert queue.mem_items == 1
    again = start.crashed(scrolls)
    queue = again.queue()
    for left in (3, 2, 1, 0):
        again.fill(queue)
        assert (queue.mem_items, queue.take(False) is not None, queue.items) == (1, True, left)


def test_start_loads_no_items(start: Opener) -> None:
    scrolls, queue = on_disk(start, 100)
    assert (queue.mem_items, queue.items, queue.peek()) == (0, 100, None)
    scrolls.fill(queue)
    assert queue.mem_items == 100


@pytest.mark.parametrize("max_bytes", [1, 100, 5000])
def test_max_memory_size_bounds_the_window(start: Opener, max_bytes: int) -> None:
    scrolls, _ = filled(start, 1000, 50, settings=QueueSettings(max_memory_size_bytes=max_bytes))
    for opened in (scrolls, start.crashed(scrolls)):
        for queue in take_in_order(opened, 1000):
            assert queue.mem_bytes <= max_bytes + 50


def test_full_memory_leaves_one_item_in_memory(start: Opener) -> None:
    memory = MemoryLimit(1)
    scrolls, _ = filled(start, 300, 100, memory=memory)
    memory.used_bytes += 1000
    again = start.crashed(scrolls, memory=memory)
    for queue in take_in_order(again, 300):
        assert queue.mem_items <= 1
        again.commit(queue)
        assert len(again.threads) == 0


def test_memory_of_window_and_open_reads_is_counted(start: Opener) -> None:
    scrolls, queue = filled(start, 20_000, memory=MemoryLimit(1 << 30))
    assert scrolls.memory.used_bytes == queue.mem_bytes + ITEM_BYTES * WINDOW_ITEMS
    queue.take(True)
    scrolls.commit(queue)
    assert scrolls.memory.used_bytes == queue.mem_bytes + queue.open_bytes + ITEM_BYTES * WINDOW_ITEMS
    scrolls.take_all(queue)
    queue.confirm([1])
    scrolls.commit(queue)
    assert (queue.open_reads, scrolls.memory.used_bytes) == (0, 0)


def test_memory_of_items_read_ahead_is_counted(start: Opener) -> None:
    scrolls, _ = start.queue(b"abc", b"defgh")
    again = start.crashed(scrolls, memory=MemoryLimit())
    assert again.memory.used_bytes == 0
    queue = again.fill(again.queue())
    assert again.memory.used_bytes == 8 + 2 * ITEM_BYTES
    xid = queue.take(True).xid
    again.commit(queue)
    assert again.memory.used_bytes == 8 + 2 * ITEM_BYTES
    queue.confirm([xid])
    again.commit(queue)
    assert again.memory.used_bytes == 5 + ITEM_BYTES


def test_each_reader_has_its_own_window(start: Opener) -> None:
    scrolls, family = start.family(*[b"%d " % number for number in range(1, 10_001)])
    for _ in range(5000):
        scrolls.fill(family[0]).take(False)
    scrolls.commit(*family)
    assert [number_of(scrolls.fill(queue).peek().data) for queue in family] == [5001, 1, 1]
    assert sum(queue.mem_items for queue in family) <= 3 * WINDOW_ITEMS


# Reading.


def test_items_are_read_in_a_thread(start: Opener) -> None:
    scrolls, queue = on_disk(start, 10_000)
    scrolls.disk.done.clear()
    filling = queue.fill()
    assert (filling is not None, scrolls.disk.bytes_of("read"), queue.peek()) == (True, 0, None)
    results: list[object] = []
    filling.addCallback(results.append)
    scrolls.threads.run_all()
    assert (results, queue.peek() is not None, queue.fill()) == ([None], True, None)


def test_half_empty_window_is_refilled(start: Opener) -> None:
    scrolls, queue = filled(start, 10_000)
    for _ in range(WINDOW_ITEMS // 2 - 1):
        queue.take(False)
    scrolls.commit(queue)
    assert len(scrolls.threads) == 0
    scrolls.take(queue)
    assert len(scrolls.threads) == 1
    scrolls.threads.run_all()
    assert queue.mem_items == WINDOW_ITEMS
    assert taken(scrolls) == list(range(2049, 10_001))


@pytest.mark.parametrize("how", ["clear", "release"])
def test_read_of_removed_items_from_an_erased_file_succeeds(start: Opener, how: str) -> None:
    scrolls, queue = on_disk(start, 500, settings=QueueSettings(default_journal_size_bytes=5000))
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
    assert taken(scrolls) == [501]


def test_unwritten_items_are_taken_without_reading(start: Opener) -> None:
    scrolls, family = start.family(children=1, settings=ONE_IN_MEMORY)
    for number in range(1, 8):
        scrolls.put(family if number % 2 else [family[1]], b"%d" % number)
    scrolls.disk.done.clear()
    assert [list(map(int, scrolls.data(queue))) for queue in family] == [[1, 3, 5, 7], [1, 2, 3, 4, 5, 6, 7]]
    assert (scrolls.disk.done, len(scrolls.threads)) == ([], 0)


def test_unwritten_item_is_found_behind_done_items(start: Opener) -> None:
    files = {"work.5": writer_file(b"1", b"2", b"3", b"4", b"5"), "work.read.": reader_file(0, 2, 3, 4, 5)}
    scrolls = start.over(files)
    scrolls.put(scrolls.queue(), b"6")
    assert scrolls.data() == [b"1", b"6"]


# Unreadable and damaged files.


def damage(scrolls: Scrolls, offset: int, size: int) -> None:
    """Overwrite bytes of the first writer file."""
    path = scrolls.folder / scrolls.writers()[0]
    contents = path.read_bytes()
    path.write_bytes(contents[:offset] + b"\xff" * size + contents[offset + size :])


def test_damaged_file_is_repaired_and_readable_items_served(start: Opener) -> None:
    scrolls, queue = on_disk(start, 100)
    item_bytes = (len(scrolls.files()[scrolls.writers()[0]]) - 4) // 100
    damage(scrolls, 4 + 60 * item_bytes, 50)
    with pytest.raises(QueueFailed):
        scrolls.wait(queue.fill())
    assert queue.failure is not None
    left = taken(scrolls)
    assert left == list(range(1, len(left) + 1))
    assert len(left) in range(55, 62)
    quarantined = list((scrolls.folder / ".kestrel" / "damaged").iterdir())
    assert [b"\xff" * 50 in file.read_bytes() for file in quarantined] == [True]
    assert scrolls.queue().stats["journal_repaired_bytes"] > 0


def test_damage_found_by_reading_ahead_is_reported_at_next_fill(start: Opener) -> None:
    scrolls, queue = start.queue(*[bytes(50_000)] * 20)
    in_memory = queue.mem_items
    damage(scrolls, len(WRITER) + in_memory * 50_025, 10)
    for _ in range(in_memory - 1):
        scrolls.take(queue)
        scrolls.threads.run_all()
    assert queue.failure is None
    scrolls.take(queue)
    with pytest.raises(QueueFailed):
        scrolls.fill(queue)


def test_missing_item_is_reported_once(start: Opener) -> None:
    scrolls = start.over({"work.5": writer_file(b"a", b"b")})
    unknown = with_data(15, bytes(len(put(2, b"b")) - 5))
    (scrolls.folder / "work.5").write_bytes(writer_file(b"a") + unknown)
    queue = scrolls.queue()
    assert scrolls.fill(queue).take(False).data == b"a"
    scrolls.commit(queue)
    with pytest.raises(QueueFailed):
        scrolls.wait(queue.fill())
    assert (scrolls.queue().items, scrolls.data()) == (0, [])


# Finished items.


def test_takes_behind_an_open_read_are_one_range(start: Opener) -> None:
    scrolls, queue = start.queue(b"slow")
    slow = queue.take(True).xid
    for _ in range(100):
        scrolls.put(queue, *[b"a"] * 1000)
        scrolls.take(queue, 1000)
    assert (queue.stats["scroll_done_ranges"], len(queue.done)) == (1, 1)
    scrolls.checkpoint()
    assert scrolls.reader() == reader_file(0) + done_ranges((2, 100_001))
    assert start.crashed(scrolls).data() == [b"slow"]
    queue.confirm([slow])
    scrolls.commit(queue)
    assert queue.stats["scroll_done_ranges"] == 0
    assert scrolls.reader().endswith(read_head(100_001))


def test_each_gap_between_done_items_adds_a_range(start: Opener) -> None:
    scrolls, queue = filled(start, 1000)
    xids = [queue.take(True).xid for _ in range(1000)]
    random.Random(5).shuffle(xids)
    done: set[int] = set()
    for xid in xids:
        queue.confirm([xid])
        done.add(xid)
        beyond = [each for each in done if any(other not in done for other in range(1, each))]
        assert queue.stats["scroll_done_ranges"] == sum(each - 1 not in done for each in beyond)
        scrolls.commit(queue)
    assert queue.done.head == 1000


def test_checkpoints_keep_the_reader_file_small(start: Opener) -> None:
    scrolls, queue = start.queue(b"slow")
    queue.take(True)
    for _ in range(20):
        scrolls.put(queue, *[b"a"] * 1000)
        for _ in range(1000):
            scrolls.take(queue)
        scrolls.checkpoint()
        assert len(scrolls.reader()) < 100
    assert queue.file.size == len(sealed(scrolls.reader().removeprefix(READER)))


def test_reader_file_is_bounded_between_checkpoints(start: Opener) -> None:
    scrolls, queue = start.queue(b"slow")
    queue.take(True)
    largest = 0
    for _ in range(150):
        scrolls.put(queue, *[b"a"] * 1000)
        scrolls.take(queue, 1000)
        scrolls.threads.run_all()
        largest = max(largest, len(scrolls.reader()))
    assert largest < (1 << 20) + 20_000


def test_head_passes_items_of_siblings(start: Opener) -> None:
    scrolls, family = start.family(children=1)
    for data in (b"a", b"b"):
        scrolls.put_and_commit(family, data)
        scrolls.put_and_commit(family[0], b"for the parent")
    again = start.crashed(scrolls)
    child = again.queue(b"work+x")
    assert again.data(child) == [b"a", b"b"]
    assert (child.done.head, len(child.done)) == (4, 0)


def test_done_items_have_no_error_count_in_memory(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b")
    for _ in range(2):
        queue.put_back([queue.take(True).xid], True)
        queue.take(False)
    scrolls.commit(queue)
    assert queue.state.errors == {}


def test_start_loads_no_error_counts_of_done_items(start: Opener) -> None:
    said = reader_file(1, 3) + errors(_1=1, _2=2, _3=3, _4=4)
    scrolls = start.over({"work.5": writer_file(*[b"a"] * 5), "work.read.": said})
    assert scrolls.queue().state.errors == {2: 2, 4: 4}
