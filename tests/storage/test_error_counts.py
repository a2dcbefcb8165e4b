"""An item's errors are kept over restarts, rewrites and packs, and no restart adds one."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.item import Item
from kestrel.journal.fileset import group_by_queue
from kestrel.journal.rewrite import Boundary
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.threads import SteppedThreads
from tests.journal import reference
from tests.journal.made import REMOVE, addx, confirm, open_, save_xid, unremove

ROOMY: Final = QueueSettings()
TINY: Final = QueueSettings(
    max_memory_size_bytes=1000,
    max_journal_size_bytes=5000,
    default_journal_size_bytes=2000,
    min_journal_compact_delay_ms=None,
)
PADDING: Final = b"." * 90


class Found(NamedTuple):
    """An item: its number and its errors."""

    number: int
    errors: int


def found(item: Item) -> Found:
    return Found(int(item.data.rstrip(b".")), item.errors)


class Bench:
    """A storage and its queue "work", whose items are numbers; and what the queue has to be, as a list and a dict."""

    def __init__(self, folder: Path, settings: QueueSettings = ROOMY) -> None:
        self.folder = folder
        self.settings = settings
        self.threads = SteppedThreads()
        self.disk = FaultyDisk()
        self.storage = JournalStorage(
            os.fsencode(folder), Clock(), self.threads, reserve_bytes=1, now_ms=lambda: 1, disk=self.disk
        )
        self.storage.start(lambda name: settings)
        self.threads.run_all()
        self.queue: JournalQueue = self.storage.queue(b"work", settings)
        self.items: list[Found] = []
        self.opened: dict[int, Found] = {}

    def commit(self) -> None:
        assert list(self.storage.commit([self.queue])) == []

    # What is done, and recorded alone.

    def put(self, *numbers: int, padding: bytes = b"") -> None:
        for number in numbers:
            self.items.append(Found(number, 0))
            self.storage.put([self.queue], b"%d%b" % (number, padding), 1, 0)

    def _take(self, opened: bool) -> Item:
        item = self.queue.take(opened)
        while item is None:
            self.commit()
            assert self.queue.fill() is not None
            self.threads.run_all()
            item = self.queue.take(opened)
        return item

    def get(self) -> Found:
        """Take the head for good."""
        item = found(self._take(False))
        assert not self.items or item == self.items.pop(0)
        return item

    def open(self) -> int:
        """Open the head; returns the xid."""
        item = self._take(True)
        assert found(item) == self.items[0]
        self.opened[item.xid] = self.items.pop(0)
        return item.xid

    def abort(self, *xids: int) -> None:
        """Whoever had these failed."""
        self._put_back(xids, 1)

    def give_back(self, *xids: int) -> None:
        """The same through no fault of whoever has them."""
        self._put_back(xids, 0)

    def _put_back(self, xids: tuple[int, ...], errors: int) -> None:
        for xid in reversed(xids):
            number, before = self.opened.pop(xid)
            self.items.insert(0, Found(number, before + errors))
        self.queue.put_back(xids, errors > 0)

    def abort_head(self, times: int) -> None:
        for _ in range(times):
            self.abort(self.open())

    def confirm(self, xid: int) -> None:
        del self.opened[xid]
        assert self.queue.confirm([xid]) == 1

    def clear(self) -> None:
        self.items.clear()
        self.queue.clear()

    # What is there.

    def after_a_restart(self) -> list[Found]:
        """What a restart has to find."""
        return [self.opened[xid] for xid in sorted(self.opened)] + self.items

    def again(self) -> Bench:
        """What starts over a copy of the folder as it is now."""
        copy = Path(tempfile.mkdtemp(dir=self.folder.parent))
        shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        return Bench(copy, self.settings)

    def found_again(self) -> list[Found]:
        """What it finds."""
        other = self.again()
        there = [other.get() for _ in range(other.queue.items)]
        other.close()
        return there

    def check(self) -> None:
        """All is committed, and a restart finds it."""
        self.commit()
        assert self.found_again() == self.after_a_restart()

    def file(self) -> bytes:
        """The current one."""
        return (self.folder / "work").read_bytes()

    def files(self) -> list[bytes]:
        """All of them, in the order of their replay."""
        files = group_by_queue(map(os.fsencode, os.listdir(self.folder)))[b"work"].in_replay_order()
        return [(self.folder / os.fsdecode(name)).read_bytes() for name in files]

    def close(self) -> None:
        self.disk.mend()
        self.storage.close()
        self.threads.run_all()
        assert self.disk.open_descriptors == set()


def check_read_by_another(bench: Bench, *files: bytes) -> None:
    """The plain reader finds the same items, open reads and errors in these files."""
    queue = reference.replayed(*files, now_ms=1)
    numbers = [int(data.rstrip(b".")) for data, _, _ in queue.items]
    assert [*map(Found, numbers, queue.errors)] == bench.items
    opened = {xid: int(item[0].rstrip(b".")) for xid, item in queue.opened.items()}
    assert {xid: Found(opened[xid], queue.opened_errors[xid]) for xid in opened} == bench.opened


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "queues")
    yield bench
    bench.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "queues", TINY)
    yield bench
    bench.close()


# What is written.


def test_who_fails_with_an_item_writes_an_unremove_alone(bench: Bench) -> None:
    bench.put(1)
    bench.abort_head(2)
    bench.commit()
    assert bench.file() == addx(b"1") + open_(1) + unremove(1) + open_(2) + unremove(2)


def test_what_goes_back_through_nobody_s_fault_writes_its_errors_before_it(bench: Bench) -> None:
    bench.put(1)
    bench.give_back(bench.open())
    bench.abort_head(2)
    bench.give_back(bench.open())
    bench.commit()
    failed = open_(2) + unremove(2) + open_(3) + unremove(3)
    counted = open_(4) + save_xid(2) + unremove(4)
    assert bench.file() == addx(b"1") + open_(1) + save_xid(0) + unremove(1) + failed + counted


def test_a_queue_of_which_nothing_comes_back_writes_what_it_always_wrote(bench: Bench) -> None:
    bench.put(1, 2)
    bench.confirm(bench.open())
    bench.get()
    bench.commit()
    assert bench.file() == addx(b"1") + addx(b"2") + open_(1) + confirm(1) + REMOVE


def test_xids_of_a_running_server_go_on_whatever_goes_back(bench: Bench) -> None:
    bench.put(1)
    for xid in range(1, 5):
        assert bench.open() == xid
        bench.give_back(xid)


def test_items_that_go_back_together_have_one_error_more_each(bench: Bench) -> None:
    bench.put(1, 2, 3)
    bench.abort_head(1)
    bench.abort(bench.open(), bench.open())
    assert bench.items == [(1, 2), (2, 1), (3, 0)]
    bench.check()


# Restarts.


def test_errors_survive_a_restart_and_counting_goes_on(bench: Bench) -> None:
    bench.put(1, 2)
    bench.abort_head(2)
    bench.commit()
    other = bench.again()
    other.items = bench.after_a_restart()
    other.abort_head(3)
    assert other.items == [(1, 5), (2, 0)]
    other.check()
    other.close()


def test_an_open_read_keeps_its_errors_over_a_restart(bench: Bench) -> None:
    bench.put(1, 2, 3)
    bench.abort_head(2)
    bench.open()
    bench.abort_head(1)
    bench.open()
    bench.check()


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_hundred_restarts_add_no_error(bench: Bench, is_orderly: bool) -> None:
    bench.put(1, 2, 3, 4)
    bench.abort_head(3)
    bench.commit()
    expected = bench.after_a_restart()
    server = bench.again()
    for times in range(100):
        server.items = [*expected]
        for _ in range(times % 4):
            server.open()
        server.commit()
        before = server
        if is_orderly:
            before.close()
        server = before.again()
        if not is_orderly:
            before.close()
        shutil.rmtree(before.folder)
    assert server.found_again() == expected
    server.close()


def test_files_of_releases_that_counted_no_errors_have_one_for_each_way_back(tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work").write_bytes(addx(b"1") + open_(1) + unremove(1) + open_(2) + unremove(2))
    bench = Bench(folder)
    assert bench.get() == (1, 2)
    bench.close()


def test_a_queue_that_died_and_was_opened_anew_has_the_errors_that_were_committed(bench: Bench) -> None:
    bench.put(1, 2)
    bench.abort_head(2)
    bench.open()
    bench.commit()
    expected = bench.after_a_restart()
    bench.abort_head(1)
    bench.disk.fail("write", 5, times=1)
    ((_, outcome),) = bench.storage.commit([bench.queue])
    outcome.addErrback(lambda failure: None)
    bench.queue = bench.storage.queue(b"work", bench.settings)
    bench.items, bench.opened = expected, {}
    assert [bench.get(), bench.get()] == [(1, 2), (2, 0)]


# Each byte of a write.


def test_of_a_write_that_was_cut_short_at_any_byte_whole_counts_are_kept(bench: Bench, tmp_path: Path) -> None:
    bench.put(1, 2, 3)
    bench.abort_head(2)
    held = [bench.open(), bench.open()]
    bench.commit()
    before, states = bench.file(), [bench.after_a_restart()]
    for change in (
        lambda: bench.give_back(held[0]),
        lambda: bench.abort(held[1]),
        lambda: held.append(bench.open()),
        lambda: held.append(bench.open()),
        lambda: bench.give_back(held[2]),
        lambda: bench.give_back(held[3]),
        lambda: bench.put(4),
    ):
        change()
        states.append(bench.after_a_restart())
    bench.commit()
    appended = bench.file()[len(before) :]
    at = 0
    for size in range(len(appended) + 1):
        folder = tmp_path / f"cut {size}"
        folder.mkdir()
        (folder / "work").write_bytes(before + appended[:size])
        server = Bench(folder)
        there = server.found_again()
        at = states.index(there, at)  # they come in order
        assert size or at == 0
        server.items = [*there]
        server.abort_head(1)  # and what is written behind the cut is read as it was meant
        server.check()
        server.close()
    assert at == len(states) - 1


# Files that are written anew.


def written_anew(bench: Bench, boundary: Boundary) -> bytes:
    """What replaces all up to there; all that is counted on is true of it."""
    replacement = bench.queue.replacement(boundary)
    contents = b"".join(replacement.runs(bench.disk, os.fsencode(bench.folder), []))
    assert len(contents) == replacement.size <= replacement.most_bytes()
    return contents


def test_a_rewritten_file_opens_and_puts_back_what_has_errors(bench: Bench) -> None:
    bench.put(1, 2, 3, 4, 5, 6)
    bench.abort_head(2)
    held = [bench.open(), bench.open()]  # 1 and 2, under 3 and 4
    three, four, five = bench.open(), bench.open(), bench.open()
    bench.give_back(three, four, five)
    three, four = bench.open(), bench.open()
    bench.abort(four)
    bench.give_back(three)
    assert (held, bench.items) == ([3, 4], [(3, 0), (4, 1), (5, 0), (6, 0)])
    assert written_anew(bench, bench.queue.boundary()) == b"".join(
        [
            addx(b"1") + open_(3) + save_xid(2) + unremove(3) + open_(3),
            addx(b"2") + open_(4),
            addx(b"3") + open_(1) + addx(b"4") + open_(2),
            save_xid(1) + unremove(2) + save_xid(0) + unremove(1),
            addx(b"5") + addx(b"6"),
        ]
    )


def test_the_front_is_not_opened_under_an_xid_that_is_open(bench: Bench) -> None:
    bench.put(1, 2, 3)
    held = [bench.open(), bench.open()]
    bench.abort_head(1)
    assert held == [1, 2]
    contents = written_anew(bench, bench.queue.boundary())
    assert contents.endswith(addx(b"3") + open_(3) + save_xid(1) + unremove(3))


def test_a_rewritten_file_without_errors_is_what_it_always_was(bench: Bench) -> None:
    bench.put(1, 2, 3)
    held = bench.open()
    bench.give_back(bench.open())
    assert written_anew(bench, bench.queue.boundary()) == addx(b"1") + open_(held) + addx(b"2") + addx(b"3")


def test_what_is_finished_by_now_is_written_without_its_errors(bench: Bench) -> None:
    bench.put(1, 2)
    bench.abort_head(1)
    held = bench.open()
    bench.abort_head(1)
    boundary = bench.queue.boundary()
    assert boundary.errors.keys() == {0, 1}
    bench.confirm(held)
    bench.get()
    placeholder = addx(b"", 0, 1)
    assert written_anew(bench, boundary) == placeholder + open_(held) + placeholder


@pytest.mark.parametrize("seed", range(30))
def test_any_history_goes_on_behind_a_file_that_was_written_anew_at_any_time(bench: Bench, seed: int) -> None:
    """A file that replaces all up to a boundary, and the records that followed, are the queue."""
    chance = random.Random(seed)
    boundaries: list[Boundary] = []
    for number in range(150):
        xids = chance.sample(sorted(bench.opened), min(len(bench.opened), 2))
        deed = chance.choice(
            ["put", "open", "open", "abort", "abort", "give back", "confirm", "get", "look", "remember"]
        )
        if number % 50 == 40:
            bench.clear()
        if deed == "put" or not bench.items:
            bench.put(number)
        elif deed == "open":
            bench.open()
        elif deed == "abort":
            bench.abort(*xids)
        elif deed == "give back":
            bench.give_back(*xids)
        elif deed == "confirm" and xids:
            bench.confirm(xids[0])
        elif deed == "get":
            bench.get()
        elif deed == "look":
            bench.queue.peek()
        else:
            boundaries.append(bench.queue.boundary())
        assert len(written_anew(bench, bench.queue.boundary())) == bench.queue.live_bytes
    bench.commit()
    everything = bench.file()
    for boundary in boundaries:
        contents = written_anew(bench, boundary)
        data_bytes = sum(len(b"%d" % item.number) for item in bench.after_a_restart())
        assert len(contents) <= boundary.most_bytes + data_bytes
        check_read_by_another(bench, contents, everything[boundary.end :])
    assert len(boundaries) > 5
    bench.check()


def test_what_is_remembered_of_errors_is_bounded(tiny: Bench) -> None:
    tiny.put(1, 2, padding=PADDING)
    tiny.abort_head(1)
    first = tiny.open()
    tiny.abort_head(1)
    tiny.abort(first)
    assert tiny.queue.boundary().id_count == 4
    assert (tiny.queue.boundary().front, tiny.queue.boundary().errors) == ([0, 1], {0: 2, 1: 1})
    tiny.queue.max_boundaries = 11
    most = 0
    for number in range(3, 100):
        tiny.put(number, padding=PADDING)
        tiny.commit()
        id_count = [boundary.id_count for boundary in tiny.queue.boundaries]
        most = max(most, len(id_count))
        assert set(id_count) <= {4}
    assert most == 2
    assert tiny.queue.stats["journal_rotations"] > 5


# Rewrites and packs, in threads, at each of their steps.

STEPS: Final = [
    crash_points.PACK_WRITTEN,
    crash_points.PACK_SYNCED,
    crash_points.PACK_PUBLISHED,
    crash_points.PACK_REPLACED,
    crash_points.PACK_FINISHED,
]
each_step = pytest.mark.parametrize("step", STEPS)


def hold_and_fail(bench: Bench) -> list[int]:
    """Three open reads, of which the first and the third have errors, and a head that has some. Returns the xids."""
    bench.put(1, 2, 3, 4, 5, padding=PADDING)
    bench.abort_head(2)
    held = [bench.open(), bench.open()]
    bench.abort_head(1)
    held.append(bench.open())
    bench.abort_head(4)
    bench.commit()
    assert bench.after_a_restart() == [(1, 2), (2, 0), (3, 1), (4, 4), (5, 0)]
    return held


def go_on(bench: Bench, held: list[int]) -> None:
    """The errors of all of them change."""
    bench.abort(held[1])
    bench.give_back(held[0])
    bench.abort_head(1)
    bench.commit()


def look_at(bench: Bench, step: str) -> Callable[[], list[str]]:
    """A restart is looked at when that step has been done; returns who says whether it has."""
    seen: list[str] = []

    def look() -> None:
        bench.check()
        seen.append(step)

    bench.disk.before(step, look)
    return lambda: seen


@each_step
def test_a_rewrite_keeps_errors_order_and_open_reads_at_each_step(tiny: Bench, step: str) -> None:
    held = hold_and_fail(tiny)
    while not len(tiny.threads):
        tiny.give_back(tiny.open())
        tiny.commit()
    go_on(tiny, held)
    looked = look_at(tiny, step)
    tiny.threads.run_all()
    assert (looked(), tiny.queue.stats["journal_rewrites"]) == ([step], 1)
    tiny.check()
    check_read_by_another(tiny, *tiny.files())
    tiny.abort(held[2])
    tiny.check()


def test_what_a_rewrite_takes_is_what_was_expected(tiny: Bench) -> None:
    hold_and_fail(tiny)
    while not len(tiny.threads):
        tiny.give_back(tiny.open())
        tiny.commit()
    expected = tiny.queue.live_bytes
    tiny.threads.run_all()
    assert tiny.queue.disk_bytes == tiny.queue.live_bytes == expected


@each_step
def test_a_pack_keeps_errors_order_and_open_reads_at_each_step(tiny: Bench, step: str) -> None:
    held = hold_and_fail(tiny)
    for number in range(6, 120):
        tiny.put(number, padding=PADDING)
        tiny.commit()
    boundary = tiny.queue.boundaries[0]
    assert (sorted(boundary.errors.values()), boundary.counted) == ([1, 2, 4], 3)
    looked = look_at(tiny, step)
    go_on(tiny, held)
    one, two, four = tiny.open(), tiny.get(), tiny.open()
    assert (tiny.opened[one], two, tiny.opened[four]) == ((1, 3), (2, 1), (4, 4))
    while not looked():
        assert tiny.get().errors == 0
        tiny.commit()
        tiny.threads.run_all()
    assert (tiny.queue.stats["journal_packs"], tiny.queue.stats["journal_rewrites"]) == (1, 0)
    tiny.check()
    check_read_by_another(tiny, *tiny.files())
