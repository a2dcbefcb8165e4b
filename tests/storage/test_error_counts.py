"""Error counts of items survive restarts, rewrites and packs, and a restart adds no error."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.journal.fileset import group_by_queue
from kestrel.journal.rewrite import Boundary
from tests.journal import reference
from tests.journal.handwritten import REMOVE, addx, confirm, open_, save_xid, unremove
from tests.storage.storage_harness import StorageHarness, each_pack_step

DEFAULT: Final = QueueSettings()
SMALL: Final = QueueSettings(
    max_memory_size_bytes=1000,
    max_journal_size_bytes=5000,
    default_journal_size_bytes=2000,
    min_journal_compact_delay_ms=None,
)
PADDING: Final = b"." * 90


class Entry(NamedTuple):
    """The number of an item, and its errors."""

    number: int
    errors: int


def entry_of(item: Item) -> Entry:
    return Entry(int(item.data.rstrip(b".")), item.errors)


class ModelledQueue(StorageHarness):
    """A storage whose items are numbers, and a model of its queue: the waiting items, and the open reads by xid.

    Operations on items are recorded, but not committed.
    """

    def __init__(self, folder: Path, settings: QueueSettings = DEFAULT, **options: object) -> None:
        super().__init__(folder, settings, **{"now_ms": 1, **options})
        self.items: list[Entry] = []
        self.opened: dict[int, Entry] = {}

    # Operations.

    def put_numbers(self, *numbers: int, padding: bytes = b"") -> None:
        for number in numbers:
            self.items.append(Entry(number, 0))
            self.put(b"%d%b" % (number, padding))

    def take(self, opened: bool = False) -> Item:
        if not self.queue.mem_items:
            assert self.commit() is None
        return super().take(opened)

    def get(self) -> Entry:
        """Take the head."""
        entry = entry_of(self.take())
        assert not self.items or entry == self.items.pop(0)
        return entry

    def open(self) -> int:
        """Open the head. Return the xid."""
        item = self.take(opened=True)
        assert entry_of(item) == self.items[0]
        self.opened[item.xid] = self.items.pop(0)
        return item.xid

    def put_back(self, *xids: int, failed: bool) -> None:
        for xid in reversed(xids):
            number, errors = self.opened.pop(xid)
            self.items.insert(0, Entry(number, errors + failed))
        self.queue.put_back(xids, failed)

    def abort(self, *xids: int) -> None:
        """Put items back, with an error more for each."""
        self.put_back(*xids, failed=True)

    def requeue(self, *xids: int) -> None:
        """Put items back without an error."""
        self.put_back(*xids, failed=False)

    def abort_head(self, times: int) -> None:
        for _ in range(times):
            self.abort(self.open())

    def confirm(self, xid: int) -> None:
        del self.opened[xid]
        assert self.queue.confirm([xid]) == 1

    def clear(self) -> None:
        self.items.clear()
        self.queue.clear()

    # Checks.

    def after_restart(self) -> list[Entry]:
        """Return the items that the model expects after a restart."""
        return [self.opened[xid] for xid in sorted(self.opened)] + self.items

    def found_after_kill(self) -> list[Entry]:
        """Return the items that a restart finds if the process is killed now."""
        other = self.killed()
        found = [other.get() for _ in range(other.queue.items)]
        other.close()
        return found

    def check(self) -> None:
        """Commit, and check that a restart finds the items of the model."""
        assert self.commit() is None
        assert self.found_after_kill() == self.after_restart()

    def check_files(self, *files: bytes) -> None:
        """Check that the reference reader finds the items and open reads of the model in these files."""
        queue = reference.replayed(*files, now_ms=1)
        numbers = [int(data.rstrip(b".")) for data, _, _ in queue.items]
        assert [*map(Entry, numbers, queue.errors)] == self.items
        opened = {xid: int(item[0].rstrip(b".")) for xid, item in queue.opened.items()}
        assert {xid: Entry(opened[xid], queue.opened_errors[xid]) for xid in opened} == self.opened

    def current_file(self) -> bytes:
        return (self.folder / "work").read_bytes()

    def files(self) -> list[bytes]:
        """Return the contents of all files, in replay order."""
        files = group_by_queue(map(os.fsencode, os.listdir(self.folder)))[b"work"].in_replay_order()
        return [(self.folder / os.fsdecode(name)).read_bytes() for name in files]

    def rewritten(self, boundary: Boundary) -> bytes:
        """Return the file that replaces all records up to the boundary."""
        replacement = self.queue.replacement(boundary)
        contents = b"".join(replacement.runs(self.disk, os.fsencode(self.folder), []))
        assert len(contents) == replacement.size <= replacement.most_bytes()
        return contents


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ModelledQueue]:
    queue = ModelledQueue(tmp_path / "queues").start()
    yield queue
    queue.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ModelledQueue]:
    """Return a queue whose files are often rewritten and packed."""
    small = ModelledQueue(tmp_path / "queues", SMALL).start()
    yield small
    small.close()


def started_with(folder: Path, contents: bytes) -> ModelledQueue:
    """Start over a folder with this file."""
    folder.mkdir()
    (folder / "work").write_bytes(contents)
    return ModelledQueue(folder).start()


# Records.


def test_abort_writes_only_an_unremove(queue: ModelledQueue) -> None:
    queue.put_numbers(1)
    queue.abort_head(2)
    queue.commit()
    assert queue.current_file() == addx(b"1") + open_(1) + unremove(1) + open_(2) + unremove(2)


def test_requeue_without_error_writes_the_errors_first(queue: ModelledQueue) -> None:
    queue.put_numbers(1)
    queue.requeue(queue.open())
    queue.abort_head(2)
    queue.requeue(queue.open())
    queue.commit()
    aborts = open_(2) + unremove(2) + open_(3) + unremove(3)
    requeue = open_(4) + save_xid(2) + unremove(4)
    assert queue.current_file() == addx(b"1") + open_(1) + save_xid(0) + unremove(1) + aborts + requeue


def test_queue_without_requeues_writes_plain_records(queue: ModelledQueue) -> None:
    queue.put_numbers(1, 2)
    queue.confirm(queue.open())
    queue.get()
    queue.commit()
    assert queue.current_file() == addx(b"1") + addx(b"2") + open_(1) + confirm(1) + REMOVE


def test_xids_increase_over_requeues(queue: ModelledQueue) -> None:
    queue.put_numbers(1)
    for xid in range(1, 5):
        assert queue.open() == xid
        queue.requeue(xid)


def test_items_aborted_together_get_one_error_each(queue: ModelledQueue) -> None:
    queue.put_numbers(1, 2, 3)
    queue.abort_head(1)
    queue.abort(queue.open(), queue.open())
    assert queue.items == [(1, 2), (2, 1), (3, 0)]
    queue.check()


# Restarts.


def test_reopened_queue_has_the_committed_errors(queue: ModelledQueue) -> None:
    queue.put_numbers(1, 2)
    queue.abort_head(2)
    queue.open()
    queue.commit()
    queue.abort_head(1)
    queue.disk.fail("write", errno.EIO, times=1)
    assert queue.commit() is not None
    queue.reopen()
    queue.items, queue.opened = [], {}
    assert [queue.get(), queue.get()] == [(1, 2), (2, 0)]


def test_write_cut_at_any_byte_keeps_complete_counts(queue: ModelledQueue, tmp_path: Path) -> None:
    queue.put_numbers(1, 2, 3)
    queue.abort_head(2)
    held = [queue.open(), queue.open()]
    queue.commit()
    before, states = queue.current_file(), [queue.after_restart()]
    for change in (
        lambda: queue.requeue(held[0]),
        lambda: queue.abort(held[1]),
        lambda: held.append(queue.open()),
        lambda: held.append(queue.open()),
        lambda: queue.requeue(held[2]),
        lambda: queue.requeue(held[3]),
        lambda: queue.put_numbers(4),
    ):
        change()
        states.append(queue.after_restart())
    queue.commit()
    appended = queue.current_file()[len(before) :]
    place = 0
    for size in range(len(appended) + 1):
        server = started_with(tmp_path / f"cut {size}", before + appended[:size])
        found = server.found_after_kill()
        place = states.index(found, place)  # more bytes lead to the same state or a later one
        assert size or place == 0
        server.items = [*found]
        server.abort_head(1)  # records written after the cut are read as intended
        server.check()
        server.close()
    assert place == len(states) - 1


# Rewritten files.


def test_rewritten_file_opens_and_requeues_items_with_errors(queue: ModelledQueue) -> None:
    queue.put_numbers(1, 2, 3, 4, 5, 6)
    queue.abort_head(2)
    held = [queue.open(), queue.open()]
    three, four, five = queue.open(), queue.open(), queue.open()
    queue.requeue(three, four, five)
    three, four = queue.open(), queue.open()
    queue.abort(four)
    queue.requeue(three)
    assert (held, queue.items) == ([3, 4], [(3, 0), (4, 1), (5, 0), (6, 0)])
    assert queue.rewritten(queue.queue.boundary()) == b"".join(
        [
            addx(b"1") + open_(3) + save_xid(2) + unremove(3) + open_(3),
            addx(b"2") + open_(4),
            addx(b"3") + open_(1) + addx(b"4") + open_(2),
            save_xid(1) + unremove(2) + save_xid(0) + unremove(1),
            addx(b"5") + addx(b"6"),
        ]
    )


def test_requeued_item_is_not_rewritten_with_the_xid_of_an_open_read(queue: ModelledQueue) -> None:
    queue.put_numbers(1, 2, 3)
    held = [queue.open(), queue.open()]
    queue.abort_head(1)
    assert held == [1, 2]
    contents = queue.rewritten(queue.queue.boundary())
    assert contents.endswith(addx(b"3") + open_(3) + save_xid(1) + unremove(3))


def test_rewritten_file_without_errors_has_plain_records(queue: ModelledQueue) -> None:
    queue.put_numbers(1, 2, 3)
    held = queue.open()
    queue.requeue(queue.open())
    assert queue.rewritten(queue.queue.boundary()) == addx(b"1") + open_(held) + addx(b"2") + addx(b"3")


def test_removed_items_are_rewritten_without_their_errors(queue: ModelledQueue) -> None:
    queue.put_numbers(1, 2)
    queue.abort_head(1)
    held = queue.open()
    queue.abort_head(1)
    boundary = queue.queue.boundary()
    assert boundary.errors.keys() == {0, 1}
    queue.confirm(held)
    queue.get()
    placeholder = addx(b"", 0, 1)
    assert queue.rewritten(boundary) == placeholder + open_(held) + placeholder


@pytest.mark.parametrize("seed", range(30))
def test_any_history_continues_after_a_rewrite_at_any_time(queue: ModelledQueue, seed: int) -> None:
    """A file that replaces all records up to a boundary, followed by the later records, is the same queue."""
    chance = random.Random(seed)
    boundaries: list[Boundary] = []
    for number in range(150):
        xids = chance.sample(sorted(queue.opened), min(len(queue.opened), 2))
        operation = chance.choice(
            ["put", "open", "open", "abort", "abort", "requeue", "confirm", "get", "peek", "boundary"]
        )
        if number % 50 == 40:
            queue.clear()
        if operation == "put" or not queue.items:
            queue.put_numbers(number)
        elif operation == "open":
            queue.open()
        elif operation == "abort":
            queue.abort(*xids)
        elif operation == "requeue":
            queue.requeue(*xids)
        elif operation == "confirm" and xids:
            queue.confirm(xids[0])
        elif operation == "get":
            queue.get()
        elif operation == "peek":
            queue.queue.peek()
        else:
            boundaries.append(queue.queue.boundary())
        assert len(queue.rewritten(queue.queue.boundary())) == queue.queue.live_bytes
    queue.commit()
    everything = queue.current_file()
    for boundary in boundaries:
        contents = queue.rewritten(boundary)
        data_bytes = sum(len(b"%d" % entry.number) for entry in queue.after_restart())
        assert len(contents) <= boundary.most_bytes + data_bytes
        queue.check_files(contents, everything[boundary.end :])
    assert len(boundaries) > 5
    queue.check()


def test_memory_for_errors_is_bounded(small: ModelledQueue) -> None:
    small.put_numbers(1, 2, padding=PADDING)
    small.abort_head(1)
    first = small.open()
    small.abort_head(1)
    small.abort(first)
    boundary = small.queue.boundary()
    assert (boundary.id_count, boundary.front, boundary.errors) == (4, [0, 1], {0: 2, 1: 1})
    small.queue.max_boundaries = 11
    most = 0
    for number in range(3, 100):
        small.put_numbers(number, padding=PADDING)
        small.commit()
        id_counts = [boundary.id_count for boundary in small.queue.boundaries]
        most = max(most, len(id_counts))
        assert set(id_counts) <= {4}
    assert most == 2
    assert small.queue.stats["journal_rotations"] > 5


# Rewrites and packs in threads.


def fail_and_hold(queue: ModelledQueue) -> list[int]:
    """Open three items, the first and third with errors, and abort the next one. Return the xids."""
    queue.put_numbers(1, 2, 3, 4, 5, padding=PADDING)
    queue.abort_head(2)
    held = [queue.open(), queue.open()]
    queue.abort_head(1)
    held.append(queue.open())
    queue.abort_head(4)
    queue.commit()
    assert queue.after_restart() == [(1, 2), (2, 0), (3, 1), (4, 4), (5, 0)]
    return held


def change_all_errors(queue: ModelledQueue, held: list[int]) -> None:
    queue.abort(held[1])
    queue.requeue(held[0])
    queue.abort_head(1)
    queue.commit()


def until_rewrite(queue: ModelledQueue) -> None:
    """Requeue the head again and again until a thread is about to rewrite the queue."""
    while not len(queue.threads):
        queue.requeue(queue.open())
        queue.commit()


def check_at(queue: ModelledQueue, step: str) -> list[str]:
    """Check a restart when that step is done. Return a list that contains the step from then on."""
    done: list[str] = []

    def check_step() -> None:
        queue.check()
        done.append(step)

    queue.disk.before(step, check_step)
    return done


@each_pack_step
def test_rewrite_keeps_errors_at_each_step(small: ModelledQueue, step: str) -> None:
    held = fail_and_hold(small)
    until_rewrite(small)
    change_all_errors(small, held)
    done = check_at(small, step)
    small.run_all()
    assert (done, small.queue.stats["journal_rewrites"]) == ([step], 1)
    small.check()
    small.check_files(*small.files())
    small.abort(held[2])
    small.check()


@each_pack_step
def test_pack_keeps_errors_at_each_step(small: ModelledQueue, step: str) -> None:
    held = fail_and_hold(small)
    for number in range(6, 120):
        small.put_numbers(number, padding=PADDING)
        small.commit()
    boundary = small.queue.boundaries[0]
    assert (sorted(boundary.errors.values()), boundary.counted) == ([1, 2, 4], 3)
    done = check_at(small, step)
    change_all_errors(small, held)
    one, two, four = small.open(), small.get(), small.open()
    assert (small.opened[one], two, small.opened[four]) == ((1, 3), (2, 1), (4, 4))
    while not done:
        assert small.get().errors == 0
        small.commit()
        small.run_all()
    assert (small.queue.stats["journal_packs"], small.queue.stats["journal_rewrites"]) == (1, 0)
    small.check()
    small.check_files(*small.files())
