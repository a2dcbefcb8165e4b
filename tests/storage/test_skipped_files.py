"""A start skips files that have not changed since the segment log described them, and restores the same queue."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.journal.fileset import files_of
from kestrel.journal.writer import JournalWriter
from kestrel.storage.journal.load import load_queue
from kestrel.storage.journal.queue import MIN_CHECKPOINT_BYTES, JournalQueue
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.faults import KillableDisk
from tests.journal.handwritten import addx
from tests.journal.restarts import NOW_MS
from tests.sample import examples
from tests.storage.backends import MakeStorage
from tests.storage.storage_harness import RunningStorage
from tests.storage.test_damaged_segments import (
    LOG,
    PACKED,
    SMALL,
    Journal,
    drained,
    items_in,
    numbered,
    remove_log,
    rotated,
    started,
)

LARGE = QueueSettings(max_memory_size_bytes=1 << 30, max_journal_size_bytes=1 << 30, default_journal_size_bytes=1 << 30)
"""Files that are never rotated."""


class ReadingDisk(KillableDisk):
    """A disk that notes the names of the journal files that are opened for reading."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def open_read(self, path: bytes) -> int:
        if b"/.kestrel/" not in path:
            self.names.append(os.fsdecode(path).rsplit("/", 1)[1])
        return super().open_read(path)


def loaded(folder: Path, limits: QueueSettings, *, trusts_log: bool = True) -> tuple[JournalQueue, list[str]]:
    """Load the queue "work". Return it with the names of the files that were opened for reading."""
    disk, path = ReadingDisk(), os.fsencode(folder)
    files = files_of(b"work", disk.list_files(path))
    later_numbers = count(max([NOW_MS, *files.numbers()]) + 1)
    writer = JournalWriter(disk, path, b"work", later_numbers.__next__)
    queue = load_queue(disk, path, files, limits, writer, NOW_MS, trusts_log=trusts_log)
    return queue, disk.names


def counts(queue: JournalQueue) -> dict[str, Any]:
    """Return what a replay must find, and what later packs need."""
    boundary = queue.boundary()
    return {
        "counts": (queue.items, queue.bytes, queue.disk_bytes, queue.live_bytes, queue.replayed_items),
        "state": boundary._replace(last_xid=0),
        "boundaries": [each._replace(waiting_bytes=0, last_xid=0) for each in queue.boundaries][-1:],
        "files": queue.history.rotated,
    }


def random_history(journal: Journal, random: Random, steps: int) -> list[bytes]:
    """Change the queue at random. Return the items that a start must find, in order: open reads return to the head."""
    waiting: deque[bytes] = deque()
    opened: dict[int, bytes] = {}
    for number in range(steps):
        change = random.choice("ppptoocab")
        if change == "p":
            waiting.append(b"%d" % number * random.randrange(4))
            journal.put(waiting[-1])
        elif change in "to" and waiting:
            item = journal.take(change == "o")
            assert item.data == waiting.popleft()
            if change == "o":
                opened[item.xid] = item.data
        elif change in "cab" and opened:
            xid = random.choice([*opened])
            data = opened.pop(xid)
            if change == "c":
                journal.queue.confirm([xid])
            else:
                journal.queue.put_back([xid], change == "b")
                waiting.appendleft(data)
        if random.random() < 0.7:
            assert journal.commit() is None
            if random.random() < 0.1:
                journal.queue.add_checkpoint(journal.queue.boundary())
    assert journal.commit() is None
    return [*(opened[xid] for xid in sorted(opened)), *waiting]


@pytest.mark.parametrize("limits", [SMALL, PACKED], ids=["small", "packed"])
@pytest.mark.parametrize("seed", range(examples(60)))
def test_log_restores_the_queue_that_a_replay_finds(tmp_path: Path, limits: QueueSettings, seed: int) -> None:
    random, expected = Random(seed), []
    for _ in range(3):
        journal = Journal(tmp_path, limits, now_ms=NOW_MS).start()
        assert [item.data for item in taken(journal)] == expected
        journal.commit()
        expected = random_history(journal, random, 60)
        journal.close()
        with_log, _ = loaded(tmp_path, limits)
        assert counts(with_log) == counts(loaded(tmp_path, limits, trusts_log=False)[0])


def taken(journal: Journal) -> Iterator[Any]:
    while journal.queue.items:
        yield journal.take()


# The files that a start reads.


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """Return a folder with a hundred items in twenty rotated files. The first twelve items were taken."""
    journal = Journal(tmp_path / "queues", SMALL, now_ms=NOW_MS).start()
    journal.put_each(*numbered(*range(100)))
    assert [journal.take_data() for _ in range(12)] == numbered(*range(12))
    journal.close()
    return tmp_path / "queues"


def test_start_reads_only_the_first_files_and_the_current_one(hundred: Path) -> None:
    # The current file removes the first twelve items. Seventeen files have only later ones.
    first = [path.name for path in rotated(hundred)[:3]]
    queue, names = loaded(hundred, SMALL)
    assert (queue.items, len(queue.history.rotated)) == (88, 20)
    assert {*names} == {*first, "work"}
    assert drained(hundred) == numbered(*range(12, 100))


@pytest.mark.parametrize("changed", ["time", "size", "file"])
def test_changed_file_and_later_ones_are_replayed(hundred: Path, changed: str) -> None:
    victim = rotated(hundred)[10]
    contents = victim.read_bytes()
    if changed == "time":
        os.utime(victim)
    elif changed == "size":
        os.truncate(victim, len(contents) - len(addx(b"60")))
    else:
        victim.unlink()
        victim.write_bytes(contents)
    _, names = loaded(hundred, SMALL)
    assert {path.name for path in rotated(hundred)[10:]} <= {*names}


def damage_silently(path: Path, offset: int, data: bytes = b"\xee") -> None:
    """Change bytes of a file as a bad disk would: the time of its last write stays."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def swallow_second_item(path: Path, second: bytes) -> None:
    """Change the size of the first item of a file so that the record of the second one becomes a part of it."""
    damage_silently(path, 1, bytes([path.read_bytes()[1] + len(addx(second))]))


def test_damage_in_a_skipped_file_is_repaired_when_it_is_read(hundred: Path) -> None:
    victim = rotated(hundred)[-3]
    contents = victim.read_bytes()
    damage_silently(victim, 0)
    journal = Journal(hundred, SMALL, now_ms=NOW_MS).start()
    found = set()
    with capturedLogs() as events:
        for _ in range(2):
            try:
                found |= {item.data for item in taken(journal)}
            except QueueFailed:
                assert journal.commit() is not None
                journal.reopen()
    journal.close()
    lost = items_in(contents)
    assert len(lost) == 5
    assert found - {b""} == {*numbered(*range(12, 100))} - lost
    assert "were set aside in" in "\n".join(map(formatEvent, events))


def test_damage_in_the_file_of_the_head_causes_a_replay_of_all(hundred: Path) -> None:
    head_file = rotated(hundred)[2]
    lost = items_in(head_file.read_bytes())
    damage_silently(head_file, 0)
    assert drained(hundred) == [item for item in numbered(*range(12, 100)) if item not in lost]


@pytest.mark.parametrize(
    "records",
    [
        b"\x03",  # an open read without an xid, which follows from all earlier records
        addx(b"torn")[:-1],
        b"\xee",
    ],
    ids=["read without an xid", "torn record", "damage"],
)
def test_unexpected_records_after_skipped_files_cause_a_replay_of_all(hundred: Path, records: bytes) -> None:
    with (hundred / "work").open("ab") as file:
        file.write(records)
    files = [path.name for path in rotated(hundred)]
    queue, names = loaded(hundred, SMALL)
    assert {*files} <= {*names}
    assert (queue.items, queue.is_open(0)) == (88, False)


def test_files_of_a_queue_with_a_failed_sync_are_replayed(hundred: Path) -> None:
    failed_syncs = hundred / ".kestrel/failed-syncs"
    failed_syncs.mkdir()
    (failed_syncs / "work").touch()
    disk = ReadingDisk()
    journal = Journal(hundred, SMALL, disk=disk, now_ms=NOW_MS)
    files = {path.name for path in rotated(hundred)}
    journal.start()
    assert files <= {*disk.names}
    journal.close()


def read_to_the_end(folder: Path, limits: QueueSettings) -> set[bytes]:
    """Take all items. Open the queue again when it fails. Return the data of the items."""
    journal = started(folder, limits)
    found: set[bytes] = set()
    for _ in range(5):
        try:
            while journal.queue.items:
                journal.run_all()
                found.add(journal.take().data)
        except (QueueFailed, AssertionError):
            journal.commit()
            journal.reopen()
    assert not journal.queue.items
    journal.close()
    return found


# Checkpoints.


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Return a folder with one file of a thousand items of 1 KiB, the first ten of which were taken."""
    journal = Journal(tmp_path / "queues", LARGE, now_ms=NOW_MS).start()
    journal.put(*(b"%4d" % number * 256 for number in range(1000)))
    journal.commit()
    assert [journal.take().data for _ in range(10)]
    journal.commit()
    journal.close()
    return tmp_path / "queues"


def test_start_after_a_stop_replays_nothing(large: Path) -> None:
    queue, _ = loaded(large, LARGE)
    assert (queue.items, queue.bytes) == (990, 990 * 1024)
    assert queue.mem_items < 100
    assert counts(queue)["state"] == counts(loaded(large, LARGE, trusts_log=False)[0])["state"]


def test_records_after_a_checkpoint_are_replayed(large: Path) -> None:
    journal = Journal(large, LARGE, now_ms=NOW_MS).start()
    assert journal.take(True).data == b"  10" * 256
    journal.put(b"last")
    journal.close()
    queue, _ = loaded(large, LARGE)
    assert (queue.items, queue.bytes) == (991, 990 * 1024 + 4)
    assert counts(queue) == counts(loaded(large, LARGE, trusts_log=False)[0])


def test_checkpoint_beyond_a_cut_is_ignored_when_the_file_has_grown_again(large: Path) -> None:
    log = (large / LOG).read_bytes()
    os.truncate(large / "work", 500 * 1045)
    journal = Journal(large, LARGE, now_ms=NOW_MS).start()
    journal.put(*(b"%4d" % number * 256 for number in range(2000, 2600)))
    journal.commit()
    journal.close()
    (large / LOG).write_bytes(log)
    assert (large / "work").stat().st_size > 1000 * 1045
    found = drained(large)
    assert found == [b"%4d" % number * 256 for number in (*range(500), *range(2000, 2600))]


def test_small_files_get_no_checkpoint(tmp_path: Path) -> None:
    journal = Journal(tmp_path, LARGE, now_ms=NOW_MS).start()
    journal.put(bytes(MIN_CHECKPOINT_BYTES // 2))
    journal.commit()
    journal.close()
    assert not (tmp_path / LOG).exists()


def test_other_layout_of_the_log_is_ignored(hundred: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kestrel.journal.segments._VERSION", 3)
    files = {path.name for path in rotated(hundred)}
    _, names = loaded(hundred, SMALL)
    assert files <= {*names}
    remove_log(hundred)


def test_damage_before_a_checkpoint_costs_no_later_change(large: Path) -> None:
    journal = Journal(large, LARGE, now_ms=NOW_MS).start()
    journal.close()
    damage_silently(rotated(large)[0], 500 * 1045)
    journal = Journal(large, LARGE, now_ms=NOW_MS).start()
    journal.put(*numbered(*range(10)))
    journal.commit()
    journal.close()
    found = read_to_the_end(large, LARGE)
    assert {*numbered(*range(10))} < found
    assert b" 499" * 256 in found
    assert b"  11" * 256 in found


def test_new_records_go_to_another_file_than_skipped_ones(large: Path) -> None:
    before = (large / "work").read_bytes()
    journal = Journal(large, LARGE, now_ms=NOW_MS).start()
    journal.put(b"new")
    journal.commit()
    journal.close()
    assert [path.read_bytes() for path in rotated(large)] == [before]
    assert items_in((large / "work").read_bytes()) == {b"new"}


def test_files_that_cannot_be_synced_are_replayed_and_rewritten(large: Path) -> None:
    before = (large / "work").read_bytes()
    disk = ReadingDisk()
    disk.fail("sync", errno.EIO, times=1)
    journal = Journal(large, QueueSettings(sync_journal_ms=500), disk=disk, now_ms=NOW_MS)
    journal.start()
    assert (journal.queue.items, journal.queue.mem_items) == (990, 990)
    journal.close()
    assert before not in [path.read_bytes() for path in (large / "work", *rotated(large)) if path.exists()]


def test_stop_after_a_last_put_leaves_a_checkpoint(tmp_path: Path) -> None:
    journal = Journal(tmp_path, LARGE, now_ms=NOW_MS).start()
    journal.put(bytes(MIN_CHECKPOINT_BYTES))
    journal.close()
    queue, _ = loaded(tmp_path, LARGE)
    assert (queue.items, queue.history.rotated != []) == (1, True)


def test_file_of_any_time_is_skipped(hundred: Path) -> None:
    for path in rotated(hundred):
        os.utime(path, ns=(-(10**9), -(10**9)))
    started(hundred, SMALL).close()
    _, names = loaded(hundred, SMALL)
    assert len({*names}) < 20


def test_head_that_is_not_there_causes_a_replay_of_all(hundred: Path) -> None:
    swallow_second_item(rotated(hundred)[2], b"10")
    found = read_to_the_end(hundred, SMALL)
    assert {*numbered(*range(15, 100))} <= found


def test_missing_items_at_the_end_cause_a_replay_of_all(tmp_path: Path) -> None:
    journal = started(tmp_path, SMALL)
    journal.put_each(*numbered(*range(10)))
    journal.close()
    swallow_second_item(rotated(tmp_path)[0], b"1")
    found = read_to_the_end(tmp_path, SMALL)
    assert {*numbered(*range(2, 10))} <= found


def test_log_without_the_first_file_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = started(tmp_path, SMALL)
    monkeypatch.setattr("kestrel.journal.segments.MAX_SEGMENT_IDS", 0)
    journal.put_each(*numbered(*range(4)))
    journal.take(True)
    journal.put_each(b"4")
    monkeypatch.undo()
    journal.put_each(*numbered(*range(5, 12)))
    first, second = rotated(tmp_path)
    first.unlink()
    _, names = loaded(tmp_path, SMALL)
    assert second.name in names
    journal.close()


def test_failing_rotation_is_not_tried_again_for_a_checkpoint(tmp_path: Path) -> None:
    journal = started(tmp_path, SMALL)
    journal.queue.needs_checkpoint = True
    journal.disk.fail("rename", errno.EIO)
    with capturedLogs() as events:
        for number in range(20):
            journal.put_each(b"%d" % number)
    assert sum("cannot be rotated" in (formatEvent(event) or "") for event in events) == 1
    journal.disk.mend()
    journal.close()


@pytest.mark.parametrize("make_storage", [JournalStorage, ScrollStorage])
def test_no_queue_is_created_before_all_are_loaded(tmp_path: Path, make_storage: MakeStorage) -> None:
    running = RunningStorage(tmp_path, lambda name: LARGE, make_storage=make_storage)
    starting = DeferredOutcome(running.storage.start(lambda name: LARGE))
    with pytest.raises(QueueFailed, match="the queues are being loaded"):
        running.storage.queue(b"work", LARGE)
    running.wait(starting)
    assert running.storage.queue(b"work", LARGE).items == 0
    running.close()
