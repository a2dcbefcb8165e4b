"""Damage in one file of a journal loses no item of the other files, with the segment log and without it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from twisted.logger import capturedLogs, formatEvent

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.journal.segments import decode_segments, encode_segment
from kestrel.testing.faults import KillableDisk, ProcessDied
from kestrel.tools.qpack import main as qpack
from tests.journal import reference
from tests.journal.handwritten import addx
from tests.journal.restarts import NOW_MS
from tests.sample import examples
from tests.storage.storage_harness import StorageHarness

ITEM_BYTES = len(addx(b"0"))
SMALL = QueueSettings(
    max_memory_size_bytes=5 * ITEM_BYTES - 1, max_journal_size_bytes=1 << 30, default_journal_size_bytes=1 << 30
)
"""Files of five items."""
PACKED = QueueSettings(max_memory_size_bytes=100, max_journal_size_bytes=300, default_journal_size_bytes=64)
"""Files that are rewritten and packed often."""
LOG = ".kestrel/segments/work"

with_and_without_damage = pytest.mark.parametrize("is_damaged", [False, True])


class Journal(StorageHarness):
    """A storage that commits after each operation and then runs all jobs. A failed queue is reopened."""

    def commit(self) -> QueueFailed | None:
        failure = super().commit()
        self.run_all()
        self.clock.advance(0.001)
        self.run_all()
        return failure

    def put_each(self, *items: bytes) -> None:
        for data in items:
            self.put(data)
            self.commit()

    def take_data(self, opened: bool = False) -> bytes | None:
        """Take the head. Return its data, or None if the queue is empty."""
        self.reopen()
        data = self.take(opened).data if self.queue.items else None
        self.commit()
        return data

    def drain(self) -> list[bytes]:
        """Take all items. Return their data, without placeholders, which the layers above the storage drop."""
        found = []
        while self.queue.items:
            item = self.take()
            if not item.is_placeholder:
                found.append(item.data)
            self.reopen()
        self.commit()
        return found


def started(folder: Path, limits: QueueSettings = SMALL) -> Journal:
    return Journal(folder, limits, now_ms=NOW_MS).start()


def drained(folder: Path) -> list[bytes]:
    """Start over the folder, take all items, and stop. Return their data."""
    journal = started(folder)
    found = journal.drain()
    journal.close()
    return found


def rotated(folder: Path) -> list[Path]:
    return sorted(folder.glob("work.*"))


def numbered(*numbers: int) -> list[bytes]:
    """Return items whose data are these numbers."""
    return [b"%d" % number for number in numbers]


def items_in(contents: bytes) -> set[bytes]:
    """Return the data of all items that were put in this file."""
    return {record.item[0] for record in reference.read(contents).records if record.item is not None}


def remove_log(folder: Path) -> None:
    shutil.rmtree(folder / ".kestrel/segments")


def drained_after_repair(folder: Path, *, is_packed: bool = False) -> tuple[list[bytes], str]:
    """Return the items of a second start, and the log lines of both. With `is_packed` run kestrel-qpack first."""
    with capturedLogs() as events:
        if is_packed:
            assert qpack([str(folder)]) == 0
            assert not (folder / LOG).exists()
        started(folder).close()
        found = drained(folder)
    return found, "\n".join(map(formatEvent, events))


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """Return a folder with ten items in two rotated files. The first four items were taken."""
    journal = started(tmp_path / "queues")
    journal.put_each(*numbered(*range(10)))
    assert [journal.take_data() for _ in range(4)] == numbered(0, 1, 2, 3)
    journal.close()
    first, second = rotated(tmp_path / "queues")
    assert first.stat().st_size == second.stat().st_size == 5 * ITEM_BYTES
    return tmp_path / "queues"


# Damaged files.


def flip(path: Path, offset: int) -> None:
    """Replace the byte at that offset by one that begins no record."""
    contents = path.read_bytes()
    path.write_bytes(contents[:offset] + b"\xee" + contents[offset + 1 :])


def damage(path: Path, kind: str, offset: int) -> None:
    if kind == "cut":
        os.truncate(path, offset)
    elif kind == "flipped":
        flip(path, offset)
    elif kind == "zeroed":
        path.write_bytes(bytes(path.stat().st_size))
    else:
        path.unlink()


each_damage = pytest.mark.parametrize(
    ("kind", "offset"),
    [
        *(("cut", size) for size in range(0, 5 * ITEM_BYTES, 11)),
        *(("flipped", offset) for offset in range(0, 5 * ITEM_BYTES, ITEM_BYTES)),
        ("zeroed", 0),
        ("missing", 0),
    ],
)


@pytest.mark.parametrize("is_packed", [False, True])
@each_damage
def test_damage_in_one_file_costs_no_item_of_another(ten: Path, kind: str, offset: int, is_packed: bool) -> None:
    damage(rotated(ten)[0], kind, offset)
    found, logged = drained_after_repair(ten, is_packed=is_packed)
    assert found == numbered(*range(5, 10))
    assert f"which had {5 * ITEM_BYTES} bytes, lost {5 - offset // ITEM_BYTES} items" in logged


@pytest.mark.parametrize("is_packed", [False, True])
@each_damage
def test_without_a_segment_log_only_noticed_damage_costs_no_other_item(
    ten: Path, kind: str, offset: int, is_packed: bool
) -> None:
    remove_log(ten)
    damage(rotated(ten)[0], kind, offset)
    found, logged = drained_after_repair(ten, is_packed=is_packed)
    kept, cut_bytes = divmod(offset, ITEM_BYTES)
    left = numbered(*range(kept), *range(5, 10))
    is_noticed = cut_bytes > 0 or kind in ("flipped", "zeroed")
    assert found == (left if is_noticed else left[4:])
    assert ("the 4 removals in later files were dropped" in logged) == is_noticed
    assert ("were set aside in" in logged) == is_noticed


# Wrong and missing segment logs.

RECORD_BYTES = 68


def flipped(place: int, log: bytes) -> bytes:
    return log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :]


LOGS: dict[str, Callable[[bytes], bytes]] = {"empty": lambda log: b"", "twice": lambda log: log + log}
LOGS |= {f"cut at {size}": itemgetter(slice(size)) for size in range(1, 2 * RECORD_BYTES, 15)}
LOGS |= {f"flipped at {place}": partial(flipped, place) for place in range(0, 2 * RECORD_BYTES, 9)}


@with_and_without_damage
@pytest.mark.parametrize("change", LOGS)
def test_bad_log_costs_no_item(ten: Path, change: str, is_damaged: bool) -> None:
    log = ten / LOG
    log.write_bytes(LOGS[change](log.read_bytes()))
    check_bad_log(ten, is_damaged)


@with_and_without_damage
def test_log_of_another_queue_costs_no_item(ten: Path, tmp_path: Path, is_damaged: bool) -> None:
    other = started(tmp_path / "other")
    other.put_each(*numbered(*range(10)))
    assert [other.take_data() for _ in range(9)] == numbered(*range(9))
    other.close()
    shutil.copy(tmp_path / "other" / LOG, ten / LOG)
    check_bad_log(ten, is_damaged)


def check_bad_log(folder: Path, is_damaged: bool) -> None:
    if is_damaged:
        flip(rotated(folder)[0], 2 * ITEM_BYTES)
    found, logged = drained_after_repair(folder)
    assert found[-5:] == numbered(*range(5, 10))
    if not is_damaged:
        assert found == numbered(*range(4, 10))
    assert "the segment log does not know it" in logged
    assert ("were set aside in" in logged) == is_damaged
    assert ("records that keep" in logged or "removals in later files were dropped" in logged) == is_damaged


@with_and_without_damage
def test_deleted_queue_leaves_no_log_to_a_new_one(ten: Path, is_damaged: bool) -> None:
    log = ten / LOG
    old_log = log.read_bytes()
    journal = started(ten)
    journal.storage.delete(journal.queue)
    journal.run_all()
    assert not log.exists()
    journal.close()
    log.write_bytes(old_log)  # as after a power failure before the removal was synced
    journal = started(ten)
    new = [bytes([each]) for each in b"abcdefghij"]
    journal.put_each(*new)
    journal.close()
    if is_damaged:
        flip(rotated(ten)[0], 2 * ITEM_BYTES)
    assert drained(ten) == (new[:2] + new[5:] if is_damaged else new)


LEFT = numbered(*range(20, 60))


def put_sixty_with_an_old_log(folder: Path, limits: QueueSettings, *, has_log: bool) -> list[Path]:
    """Put 60 items and take 20, then restore the segment log that was there after 31 items. Return the rotated files.

    Without `has_log`, remove the log.
    """
    journal = started(folder, limits)
    log = folder / LOG
    for number in range(60):
        journal.put_each(b"%d" % number)
        if number % 3 == 2:
            journal.take_data()
        if number == 30:
            old_log = log.read_bytes()
    journal.close()
    assert log.read_bytes() != old_log
    if has_log:
        log.write_bytes(old_log)
    else:
        remove_log(folder)
    return rotated(folder)


def last_item_offset(contents: bytes) -> int:
    return [record.offset for record in reference.read(contents).records if record.item is not None][-1]


LAST_ITEM_DAMAGES: dict[str, Callable[[Path, int], object]] = {
    "none": lambda path, offset: None,
    "flipped": flip,
    "cut in a record": lambda path, offset: os.truncate(path, offset + 5),
    "cut between records": os.truncate,
    "empty": lambda path, offset: os.truncate(path, 0),
    "missing": lambda path, offset: path.unlink(),
}
"""Damages of a file, which take the offset of its last item."""


@pytest.mark.parametrize("limits", [SMALL, PACKED], ids=["small", "packed"])
@pytest.mark.parametrize("kind", LAST_ITEM_DAMAGES)
def test_old_log_of_the_same_queue_is_never_worse_than_none(tmp_path: Path, kind: str, limits: QueueSettings) -> None:
    files = put_sixty_with_an_old_log(tmp_path / "first", limits, has_log=True)
    assert len(files) > 2
    for place in range(len(files)):
        lost = []
        for has_log in (False, True):
            folder = tmp_path / f"{place} {has_log}"
            victim = put_sixty_with_an_old_log(folder, limits, has_log=has_log)[place]
            contents = victim.read_bytes()
            LAST_ITEM_DAMAGES[kind](victim, last_item_offset(contents))
            found, logged = drained_after_repair(folder)
            lost.append({*LEFT} - {*found})
            is_noticed = kind in ("flipped", "cut in a record")
            is_realigned = "records that keep" in logged
            assert ("were set aside in" in logged) == is_noticed
            if is_noticed or is_realigned:
                assert lost[-1] <= items_in(contents)
            if kind == "none":
                assert found == LEFT
            if has_log and not is_realigned:
                assert "the segment log does not know it" in logged
        assert lost[1] <= lost[0]


class NoRoomForTheLog(KillableDisk):
    """A disk that becomes full in the middle of each write to the segment log."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def write(self, descriptor: int, data: bytes) -> None:
        if b"/segments/" not in os.readlink(b"/proc/self/fd/%d" % descriptor):
            super().write(descriptor, data)
            return
        self.refused += 1
        self.room = len(data) // 2
        try:
            super().write(descriptor, data)
        finally:
            self.room = None


@with_and_without_damage
def test_full_disk_while_the_log_is_written_costs_no_item(tmp_path: Path, is_damaged: bool) -> None:
    disk = NoRoomForTheLog()
    journal = Journal(tmp_path / "queues", SMALL, now_ms=NOW_MS, disk=disk).start()
    journal.put_each(*numbered(*range(10)))
    assert disk.refused == 2
    assert [journal.take_data() for _ in range(4)] == numbered(0, 1, 2, 3)
    journal.close()
    assert not list(decode_segments((tmp_path / "queues" / LOG).read_bytes()))
    check_bad_log(tmp_path / "queues", is_damaged)


def test_log_of_a_running_server_is_right_after_packs(tmp_path: Path) -> None:
    journal = started(tmp_path / "queues", PACKED)
    log = tmp_path / "queues" / LOG
    for number in range(60):
        journal.put_each(b"%d" % number)
        if number % 2:
            journal.take_data(opened=number % 12 == 1)
    journal.close()
    assert not (tmp_path / "queues/work.1").exists()
    written = list(decode_segments(log.read_bytes()))
    assert [each.number for each in written] == [int(path.suffix[1:]) for path in rotated(tmp_path / "queues")]
    log.unlink()
    started(tmp_path / "queues", PACKED).close()
    assert list(decode_segments(log.read_bytes())) == written


# Random histories.

OPERATIONS = st.sampled_from(
    ["put", "put", "put", "take", "take", "open", "open", "confirm", "abort", "requeue", "peek"]
)
histories = st.lists(OPERATIONS, min_size=60, max_size=100)
quickly = settings(
    max_examples=examples(30), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


class History:
    """The files that a history of operations left, and the items that a restart should find, in order."""

    def __init__(self, folder: Path, limits: QueueSettings, operations: list[str]) -> None:
        journal = started(folder, limits)
        self.folder = folder
        waiting: list[bytes] = []
        opened: dict[int, bytes] = {}
        put = 0
        for operation in operations:
            if operation == "put":
                waiting.append(b"%d" % put)
                journal.put_each(b"%d" % put)
                put += 1
            elif operation in ("take", "open"):
                if journal.take_data(opened=operation == "open") is not None:
                    head = waiting.pop(0)
                    if operation == "open":
                        opened[journal.queue.last_xid] = head
            elif operation == "peek":
                journal.queue.peek()
            elif opened:
                xid = list(opened)[len(opened) // 2]
                item = opened.pop(xid)
                if operation == "confirm":
                    journal.queue.confirm([xid])
                else:
                    journal.queue.put_back([xid], failed=operation == "abort")
                    waiting.insert(0, item)
                journal.commit()
        journal.close()
        self.items = [*(opened[xid] for xid in sorted(opened)), *waiting]

    def copy(self, target: Path) -> Path:
        """Copy the folder, with a segment log for the inodes of the copies."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder, target)
        inodes = {path.stat().st_ino: (target / path.name).stat().st_ino for path in self.folder.glob("work*")}
        log = target / LOG
        if log.exists():
            segments = decode_segments(log.read_bytes())
            moved = (
                each._replace(inode=inodes.get(each.inode, 0), next_inode=inodes.get(each.next_inode, 0))
                for each in segments
            )
            log.write_bytes(b"".join(map(encode_segment, moved)))
        return target

    def check(self, found: list[bytes], damaged: bytes, *, is_exact: bool = True) -> None:
        """Check that only items of the damaged file are missing.

        With `is_exact`, check also that no item is duplicated or in another order.
        """
        lost = {*self.items} - {*found}
        assert lost <= items_in(damaged), (self.items, found)
        if is_exact:
            assert found == [item for item in self.items if item in found]


@quickly
@given(limits=st.sampled_from([SMALL, PACKED]), operations=histories, draw=st.data())
def test_damage_in_any_rotated_file_loses_no_item_of_another(
    tmp_path_factory: pytest.TempPathFactory, limits: QueueSettings, operations: list[str], draw: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("history")
    history = History(folder / "queues", limits, operations)
    copy = folder / "copy"
    for victim in draw.draw(st.permutations(rotated(history.folder)))[:1]:
        contents = victim.read_bytes()
        size = draw.draw(st.integers(0, len(contents)))
        # Cut.
        (history.copy(copy) / victim.name).write_bytes(contents[:size])
        history.check(drained(copy), contents)
        assert drained(copy) == []
        # Missing.
        (history.copy(copy) / victim.name).unlink()
        history.check(drained(copy), contents)
        # Unreadable from an offset on, with the log and without it.
        broken = contents[:size] + b"\xee" * (len(contents) - size)
        is_at_record = size in {record.offset for record in reference.read(contents).records}
        (history.copy(copy) / victim.name).write_bytes(broken)
        history.check(drained(copy), contents, is_exact=is_at_record)
        if is_at_record:
            (history.copy(copy) / victim.name).write_bytes(broken)
            remove_log(copy)
            history.check(drained(copy), contents, is_exact=False)
    shutil.rmtree(folder)


def start_and_die(folder: Path, operations: int) -> bool:
    """Start over the folder, and die after so many operations of the disk. Return True if the start ended before."""
    journal = Journal(folder, SMALL, now_ms=NOW_MS)
    journal.disk.die_after(operations)
    try:
        journal.start()
    except ProcessDied:
        is_over = False
    else:
        is_over = True
    for descriptor in list(journal.disk.open_descriptors):
        os.close(descriptor)
    if (lock := journal.storage._lock) is not None:
        lock.release()
    return is_over


@quickly
@given(operations=histories, draw=st.data())
def test_a_crash_in_a_repair_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, operations: list[str], draw: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("crash")
    history = History(folder / "queues", SMALL, operations)
    files = rotated(history.folder)
    if not files:
        return
    victim = draw.draw(st.sampled_from(files))
    contents = victim.read_bytes()
    size = draw.draw(st.sampled_from([record.offset for record in reference.read(contents).records]))
    has_log = draw.draw(st.booleans())
    is_over, calls = False, 0
    while not is_over:
        copy = history.copy(folder / "copy")
        (copy / victim.name).write_bytes(contents[:size] + b"\xee" * (len(contents) - size))
        if not has_log:
            remove_log(copy)
        is_over = start_and_die(copy, calls)
        if not is_over:
            history.check(drained(copy), contents, is_exact=has_log)
        calls += 7
    shutil.rmtree(folder)
