"""Who reads a scroll by ids finds what it noted and was promised, whatever breaks, and no id means two items."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.storage.interfaces import IItemRanges
from kestrel.storage.scroll.queue import ScrollQueue
from tests.journal.handwritten import i64
from tests.scroll.handwritten import READER, WRITER, put, read_done, read_head, targets, with_data
from tests.scroll.storages import NEVER, PERIODIC, SYNCED, Opener, Scrolls

SMALL_FILES = QueueSettings(default_journal_size_bytes=60)
LARGE = 1 << 30


def held(scrolls: Scrolls, *items: bytes) -> ScrollQueue:
    """A queue that somebody reads by ids, with these items."""
    queue = scrolls.queue()
    IItemRanges(queue).hold(b"spark")
    scrolls.put_and_commit(queue, *items)
    return queue


def read(scrolls: Scrolls, first_id: int, end_id: int) -> list[bytes]:
    """The data of the items with these ids."""
    pairs = scrolls.wait(IItemRanges(scrolls.queue()).read_range(first_id, end_id, LARGE))
    return [item.data for _, item in pairs]


# Starts.


def test_a_reader_that_has_released_everything_goes_on_there_after_restarts(start: Opener) -> None:
    scrolls = start()
    queue = held(scrolls, b"a", b"b")
    IItemRanges(queue).release(3)
    scrolls.commit(queue)
    scrolls = start.again(scrolls)
    scrolls.put_and_commit(scrolls.queue(), b"c")
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 1, "what it had released is erased"
    for again in (start.crashed(scrolls), start.again(scrolls)):
        ranges = IItemRanges(again.queue())
        assert ranges.first_id == 3
        assert read(again, 3, ranges.next_id) == [b"c"]


@pytest.mark.parametrize("power_failures", [1, 2, 3])
def test_no_id_is_given_again_however_often_the_power_fails(start: Opener, power_failures: int) -> None:
    scrolls = start(settings=SYNCED)
    held(scrolls, b"a")
    seen = {1}
    for _ in range(power_failures + 1):
        scrolls = start.power_failed(scrolls, settings=NEVER)
        queue = scrolls.queue()
        next_id = IItemRanges(queue).next_id
        scrolls.put_and_commit(queue, b"seen, and lost", b"another one")
        given = set(range(next_id, IItemRanges(queue).next_id))
        assert read(scrolls, next_id, IItemRanges(queue).next_id) == [b"seen, and lost", b"another one"]
        assert not given & seen
        seen |= given


def test_a_queue_that_is_read_by_ids_is_served_though_the_disk_is_full_at_the_start(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    held(scrolls, b"a")
    scrolls = start.power_failed(scrolls, settings=PERIODIC, arrange=lambda disk: setattr(disk, "room", 0))
    next_id = IItemRanges(scrolls.queue()).next_id
    assert read(scrolls, 1, next_id) == [b"a"]
    scrolls.disk.room = None
    scrolls.checkpoint()
    scrolls = start.power_failed(scrolls)
    assert IItemRanges(scrolls.queue()).next_id > next_id


def test_while_a_reader_file_cannot_be_read_no_id_is_given_that_its_reader_may_have_seen(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    family = [scrolls.queue(), scrolls.queue(b"work+x")]
    IItemRanges(family[1]).hold(b"spark")
    scrolls.put_and_commit(family, b"a")
    scrolls = start.power_failed(scrolls, settings=NEVER, arrange=lambda disk: disk.cannot_read("work.read.x"))
    queue = scrolls.queue()
    assert IItemRanges(queue).next_id > 1000
    scrolls.put_and_commit(queue, b"b")
    seen_id = IItemRanges(queue).next_id - 1
    scrolls = start.power_failed(scrolls)
    assert IItemRanges(scrolls.queue(b"work+x")).next_id > seen_id


def test_ids_that_a_hold_names_are_not_given_again(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    spark = with_data(14, i64(5 << 32) + b"spark")
    (folder / "work.read.").write_bytes(READER + read_head(3) + read_done() + spark)
    ranges = IItemRanges(start(folder).queue())
    assert ranges.first_id == (5 << 32) + 1
    assert ranges.next_id > 5 << 32


# Releases.


def test_wherever_a_release_is_cut_off_what_is_released_has_left_the_queue(start: Opener) -> None:
    scrolls = start()
    queue = held(scrolls, b"a", b"b", b"c", b"d")
    queue.confirm([queue.take(True).xid, scrolls.fill(queue).take(True).xid][1:])
    scrolls.commit(queue)
    size = len(scrolls.reader())
    IItemRanges(queue).release(4)
    scrolls.commit(queue)
    for cut in range(size, len(scrolls.reader()) + 1):
        folder = scrolls.left_behind()
        (folder / "work.read.").write_bytes(scrolls.reader()[:cut])
        again = start(folder)
        first_id = IItemRanges(again.queue()).first_id
        assert all(item.id >= first_id for item in again.look_through(again.queue()))
        assert first_id == 4 or cut < len(scrolls.reader())


# What is kept, from when on.


@pytest.mark.parametrize("how", ["taken", "flushed"])
def test_a_hold_may_begin_while_what_has_left_the_queue_is_not_safe_yet(start: Opener, how: str) -> None:
    scrolls = start(settings=SYNCED)
    queue = scrolls.queue()
    scrolls.put(queue, b"a", b"b")
    outcomes = scrolls.begin_commit(queue)
    scrolls.data(queue) if how == "taken" else queue.clear()
    ranges = IItemRanges(queue)
    ranges.hold(b"spark")
    assert (ranges.first_id, ranges.next_id, ranges.end_of(ranges.first_id, 5)) == (3, 3, 3)
    assert outcomes == []
    scrolls.threads.run_all()
    scrolls.put_and_commit(queue, b"c")
    assert (ranges.next_id, read(scrolls, 3, 4)) == (4, [b"c"])


def test_what_is_held_before_that_is_written_stays_though_others_take_it(start: Opener) -> None:
    scrolls = start(settings=SMALL_FILES)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, bytes(100), b"b" * 100, b"c" * 100)
    queue.take(False)
    scrolls.clock.advance(10)
    assert len(scrolls.threads) == 1, "its file is being written anew"
    ranges = IItemRanges(queue)
    ranges.hold(b"spark")
    first_id = ranges.first_id
    scrolls.fill(queue).take(False)
    queue.put_back([scrolls.fill(queue).take(True).xid], True)
    scrolls.threads.run_all()
    scrolls.commit(queue)
    scrolls.threads.run_all()
    assert read(scrolls, first_id, ranges.next_id) == [b"b" * 100, b"c" * 100]


# Ranges.


def test_an_item_whose_id_was_there_before_is_in_no_range_though_what_was_before_is_for_others(
    start: Opener, tmp_path: Path
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    for_own = targets(0, b":own")
    (folder / "work.1").write_bytes(WRITER + b"".join(for_own + put(each, b"for the parent") for each in (1, 2, 3)))
    (folder / "work.2").write_bytes(WRITER + put(2, b"ignored") + put(4, b"d"))
    for part in (":own", "x"):
        (folder / f"work.read.{part}").write_bytes(READER + read_head(0) + read_done())
    scrolls = start(folder)
    pairs = scrolls.wait(IItemRanges(scrolls.queue(b"work+x")).read_range(1, 5, LARGE))
    assert [item.data for _, item in pairs] == [b"d"]
