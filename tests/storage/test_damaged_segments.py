"""Damage in one file of a journal loses no item of the other files, with the segment log and without it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.journal.segments import decode_segments, encode_segment
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.faults import FaultyDisk, ProcessDied, UnsyncedDisk
from kestrel.testing.threads import SteppedThreads
from kestrel.tools.qpack.command import main as qpack
from tests.journal import reference
from tests.journal.made import NOW_MS, addx
from tests.sample import examples

ITEM_BYTES = len(addx(b"0"))
SMALL = QueueSettings(
    max_memory_size_bytes=5 * ITEM_BYTES - 1, max_journal_size_bytes=1 << 30, default_journal_size_bytes=1 << 30
)
"""Files of five items."""
PACKED = QueueSettings(max_memory_size_bytes=100, max_journal_size_bytes=300, default_journal_size_bytes=64)
"""Files that are rewritten and packed often."""


class Server:
    """A storage over a folder with one queue."""

    def __init__(self, folder: Path, settings: QueueSettings = SMALL, disk: Disk | None = None) -> None:
        self._settings = settings
        self._clock = Clock()
        self._threads = SteppedThreads()
        self.storage = JournalStorage(
            os.fsencode(folder),
            self._clock,
            self._threads,
            reserve_bytes=1,
            now_ms=lambda: NOW_MS + int(self._clock.seconds() * 1000),
            disk=disk or UnsyncedDisk(),
        )

    def start(self) -> None:
        self.storage.start(lambda name: self._settings)
        self._threads.run_all()

    @property
    def queue(self) -> JournalQueue:
        return self.storage.queue(b"work", self._settings)

    def commit(self) -> None:
        self.storage.commit([self.queue])
        self._threads.run_all()
        self._clock.advance(0.001)
        self._threads.run_all()

    def put(self, *data: bytes) -> None:
        for each in data:
            self.storage.put([self.queue], each, NOW_MS, 0)
            self.commit()

    def take(self, *, opened: bool = False) -> bytes | None:
        queue = self.queue
        while (item := queue.take(opened)) is None and queue.items:
            queue.fill()
            self._threads.run_all()
        self.commit()
        return None if item is None else item.data

    def drain(self) -> list[bytes]:
        """Take all items, and leave out the placeholders, which the queues above the storage drop."""
        found = []
        while self.queue.items:
            queue = self.queue
            while (item := queue.take(False)) is None:
                queue.fill()
                self._threads.run_all()
            if not item.is_placeholder:
                found.append(item.data)
        self.commit()
        return found

    def close(self) -> None:
        self.storage.close()
        self._threads.run_all()


def started(folder: Path, settings: QueueSettings = SMALL) -> Server:
    server = Server(folder, settings)
    server.start()
    return server


def restarted(folder: Path) -> list[bytes]:
    server = started(folder)
    found = server.drain()
    server.close()
    return found


def rotated(folder: Path) -> list[Path]:
    return sorted(folder.glob("work.*"))


def data(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """Ten items in a rotated file and the current one, four of them taken."""
    server = started(tmp_path / "queues")
    server.put(*data(*range(10)))
    assert [server.take() for _ in range(4)] == data(0, 1, 2, 3)
    server.close()
    first, second = rotated(tmp_path / "queues")
    assert first.stat().st_size == second.stat().st_size == 5 * ITEM_BYTES
    return tmp_path / "queues"


def without_log(folder: Path) -> None:
    shutil.rmtree(folder / ".kestrel" / "segments")


def damages(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    contents = path.read_bytes()
    for size in range(0, len(contents), 11):
        yield f"cut at {size}", lambda size=size: path.write_bytes(contents[:size])  # type: ignore[misc]
    for offset in range(0, len(contents), ITEM_BYTES):
        flipped = contents[:offset] + b"\xee" + contents[offset + 1 :]
        yield f"flipped at {offset}", lambda flipped=flipped: path.write_bytes(flipped)  # type: ignore[misc]
    yield "zeroed", lambda: path.write_bytes(bytes(len(contents)))
    yield "missing", path.unlink


DAMAGES = [f"cut at {size}" for size in range(0, 5 * ITEM_BYTES, 11)]
DAMAGES += [f"flipped at {offset}" for offset in range(0, 5 * ITEM_BYTES, ITEM_BYTES)]
DAMAGES += ["zeroed", "missing"]


def damage_offset(damage: str) -> int:
    return int(damage.rpartition(" ")[2]) if " " in damage else 0


def restarted_and_logged(folder: Path, *, is_packed: bool = False) -> tuple[list[bytes], str]:
    """Return the items of a second start and the log lines of both. kestrel-qpack runs first if `is_packed`."""
    with capturedLogs() as events:
        if is_packed:
            assert qpack([str(folder)]) == 0
            assert not (folder / ".kestrel/segments/work").exists()
        started(folder).close()
        found = restarted(folder)
    return found, "\n".join(map(formatEvent, events))


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_one_file_costs_no_item_of_another(ten: Path, damage: str, is_packed: bool) -> None:
    dict(damages(rotated(ten)[0]))[damage]()
    found, logged = restarted_and_logged(ten, is_packed=is_packed)
    assert found == data(*range(5, 10))
    assert f"which had {5 * ITEM_BYTES} bytes, lost {5 - damage_offset(damage) // ITEM_BYTES} items" in logged


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_segment_log_only_noticed_damage_costs_no_other_item(ten: Path, damage: str, is_packed: bool) -> None:
    without_log(ten)
    dict(damages(rotated(ten)[0]))[damage]()
    found, logged = restarted_and_logged(ten, is_packed=is_packed)
    kept, cut_bytes = divmod(damage_offset(damage), ITEM_BYTES)
    left = data(*range(kept), *range(5, 10))
    is_noticed = cut_bytes > 0 or damage.startswith(("flipped", "zeroed"))
    assert found == (left if is_noticed else left[4:])
    assert ("the 4 removals in later files were dropped" in logged) == is_noticed
    assert ("were set aside in" in logged) == is_noticed


# Logs that are wrong or were not written.

RECORD_BYTES = 68


def flipped(place: int, log: bytes) -> bytes:
    return log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :]


LOGS: dict[str, Callable[[bytes], bytes]] = {"empty": lambda log: b"", "twice": lambda log: log + log}
LOGS |= {f"cut at {size}": itemgetter(slice(size)) for size in range(1, 2 * RECORD_BYTES, 15)}
LOGS |= {f"flipped at {place}": partial(flipped, place) for place in range(0, 2 * RECORD_BYTES, 9)}


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("change", LOGS)
def test_bad_log_costs_no_item(ten: Path, change: str, is_damaged: bool) -> None:
    log = ten / ".kestrel/segments/work"
    log.write_bytes(LOGS[change](log.read_bytes()))
    check_bad_log(ten, is_damaged)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_log_of_another_queue_costs_no_item(ten: Path, tmp_path: Path, is_damaged: bool) -> None:
    other = started(tmp_path / "other")
    other.put(*data(*range(10)))
    assert [other.take() for _ in range(9)] == data(*range(9))
    other.close()
    shutil.copy(tmp_path / "other/.kestrel/segments/work", ten / ".kestrel/segments/work")
    check_bad_log(ten, is_damaged)


def check_bad_log(folder: Path, is_damaged: bool) -> None:
    if is_damaged:
        spoil_record(rotated(folder)[0], 2 * ITEM_BYTES)
    found, logged = restarted_and_logged(folder)
    assert found[-5:] == data(*range(5, 10))
    if not is_damaged:
        assert found == data(*range(4, 10))
    assert "the segment log does not know it" in logged
    assert ("were set aside in" in logged) == is_damaged
    assert ("records that keep" in logged or "removals in later files were dropped" in logged) == is_damaged


def spoil_record(path: Path, offset: int) -> None:
    contents = path.read_bytes()
    path.write_bytes(contents[:offset] + b"\xee" + contents[offset + 1 :])


@pytest.mark.parametrize("is_damaged", [False, True])
def test_deleted_queue_leaves_no_log_to_a_new_one(ten: Path, is_damaged: bool) -> None:
    log = ten / ".kestrel/segments/work"
    old_log = log.read_bytes()
    server = started(ten)
    server.storage.delete(server.queue)
    server._threads.run_all()
    assert not log.exists()
    server.close()
    log.write_bytes(old_log)  # as after a power failure that the removal did not survive
    server = started(ten)
    new = [bytes([each]) for each in b"abcdefghij"]
    server.put(*new)
    server.close()
    if is_damaged:
        spoil_record(rotated(ten)[0], 2 * ITEM_BYTES)
    found = restarted(ten)
    assert found == (new[:2] + new[5:] if is_damaged else new)


LEFT = data(*range(20, 60))


def put_sixty_with_an_old_log(folder: Path, limits: QueueSettings, *, has_log: bool) -> list[Path]:
    """Put 60 items and take 20, then put the segment log back that was there after 31 items. Return the rotated files.

    Without `has_log`, remove the log.
    """
    server = started(folder, limits)
    log = folder / ".kestrel/segments/work"
    for number in range(60):
        server.put(*data(number))
        if number % 3 == 2:
            server.take()
        if number == 30:
            old_log = log.read_bytes()
    server.close()
    assert log.read_bytes() != old_log
    if has_log:
        log.write_bytes(old_log)
    else:
        without_log(folder)
    return rotated(folder)


def last_item(contents: bytes) -> int:
    return [record.offset for record in reference.read(contents).records if record.item is not None][-1]


VICTIM_DAMAGES: dict[str, Callable[[Path, int], object]] = {
    "none": lambda path, offset: None,
    "flipped": spoil_record,
    "cut in a record": lambda path, offset: os.truncate(path, offset + 5),
    "cut between records": os.truncate,
    "empty": lambda path, offset: os.truncate(path, 0),
    "missing": lambda path, offset: path.unlink(),
}
"""What can happen to a file, with the offset of its last item."""


@pytest.mark.parametrize("limits", [SMALL, PACKED], ids=["small", "packed"])
@pytest.mark.parametrize("damage", VICTIM_DAMAGES)
def test_old_log_of_the_same_queue_is_never_worse_than_none(tmp_path: Path, damage: str, limits: QueueSettings) -> None:
    files = put_sixty_with_an_old_log(tmp_path / "first", limits, has_log=True)
    assert len(files) > 2
    for place in range(len(files)):
        lost = []
        for has_log in (False, True):
            folder = tmp_path / f"{place} {has_log}"
            victim = put_sixty_with_an_old_log(folder, limits, has_log=has_log)[place]
            contents = victim.read_bytes()
            own_items = adds(contents)
            VICTIM_DAMAGES[damage](victim, last_item(contents))
            found, logged = restarted_and_logged(folder)
            lost.append({*LEFT} - {*found})
            is_noticed = damage in ("flipped", "cut in a record")
            is_realigned = "records that keep" in logged
            assert ("were set aside in" in logged) == is_noticed
            if is_noticed or is_realigned:
                assert lost[-1] <= own_items
            if damage == "none":
                assert found == LEFT
            if has_log and not is_realigned:
                assert "the segment log does not know it" in logged
        assert lost[1] <= lost[0]


class NoRoomForTheLog(FaultyDisk):
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


@pytest.mark.parametrize("is_damaged", [False, True])
def test_full_disk_while_the_log_is_written_costs_no_item(tmp_path: Path, is_damaged: bool) -> None:
    disk = NoRoomForTheLog()
    server = Server(tmp_path / "queues", disk=disk)
    server.start()
    server.put(*data(*range(10)))
    assert disk.refused == 2
    assert [server.take() for _ in range(4)] == data(0, 1, 2, 3)
    server.close()
    assert not list(decode_segments((tmp_path / "queues/.kestrel/segments/work").read_bytes()))
    check_bad_log(tmp_path / "queues", is_damaged)


def test_log_of_a_running_server_is_right_after_packs(tmp_path: Path) -> None:
    server = started(tmp_path / "queues", PACKED)
    log = tmp_path / "queues/.kestrel/segments/work"
    for number in range(60):
        server.put(b"%d" % number)
        if number % 2:
            server.take(opened=number % 12 == 1)
    server.close()
    assert not (tmp_path / "queues/work.1").exists()
    written = log.read_bytes()
    assert [each.number for each in decode_segments(written)] == [
        int(path.suffix[1:]) for path in sorted(rotated(tmp_path / "queues"))
    ]
    log.unlink()
    started(tmp_path / "queues", PACKED).close()
    assert list(decode_segments(log.read_bytes())) == list(decode_segments(written))


# Random histories.

OPERATIONS = st.sampled_from(
    ["put", "put", "put", "take", "take", "open", "open", "confirm", "abort", "return", "peek"]
)


class Past:
    """A history of a queue, and the items that a client was never done with, in the order of a restart."""

    def __init__(self, folder: Path, settings: QueueSettings, operations: list[str]) -> None:
        server = started(folder, settings)
        self.folder = folder
        self._waiting: list[bytes] = []
        self._opened: dict[int, bytes] = {}
        put = 0
        for operation in operations:
            queue = server.queue
            if operation == "put":
                self._waiting.append(b"%d" % put)
                server.put(b"%d" % put)
                put += 1
            elif operation in ("take", "open"):
                if server.take(opened=operation == "open") is not None:
                    head = self._waiting.pop(0)
                    if operation == "open":
                        self._opened[queue.last_xid] = head
            elif operation == "peek":
                queue.peek()
            elif self._opened:
                xid = list(self._opened)[len(self._opened) // 2]
                item = self._opened.pop(xid)
                if operation == "confirm":
                    queue.confirm([xid])
                else:
                    queue.put_back([xid], failed=operation == "abort")
                    self._waiting.insert(0, item)
                server.commit()
        server.close()

    @property
    def items(self) -> list[bytes]:
        return [*(self._opened[xid] for xid in sorted(self._opened)), *self._waiting]

    def copy(self, target: Path) -> Path:
        """Copy the queue's folder, with a segment log that means the copies."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder, target)
        inodes = {path.stat().st_ino: (target / path.name).stat().st_ino for path in self.folder.glob("work*")}
        log = target / ".kestrel" / "segments" / "work"
        if log.exists():
            segments = decode_segments(log.read_bytes())
            moved = (
                each._replace(inode=inodes.get(each.inode, 0), next_inode=inodes.get(each.next_inode, 0))
                for each in segments
            )
            log.write_bytes(b"".join(map(encode_segment, moved)))
        return target


def adds(contents: bytes) -> set[bytes]:
    return {record.item[0] for record in reference.read(contents).records if record.item is not None}


def check_no_other_is_lost(past: Past, found: list[bytes], damaged: bytes) -> None:
    lost = {*past.items} - {*found}
    assert lost <= adds(damaged), (past.items, found)


def check_exact(past: Past, found: list[bytes], damaged: bytes) -> None:
    """Only items of the damaged file are missing, and none comes twice or in another order."""
    check_no_other_is_lost(past, found, damaged)
    assert found == [item for item in past.items if item in found]


histories = st.lists(OPERATIONS, min_size=60, max_size=100)
quickly = settings(
    max_examples=examples(30), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@quickly
@given(limits=st.sampled_from([SMALL, PACKED]), operations=histories, draw=st.data())
def test_damage_in_any_rotated_file_loses_no_item_of_another(
    tmp_path_factory: pytest.TempPathFactory, limits: QueueSettings, operations: list[str], draw: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("history")
    past = Past(folder / "queues", limits, operations)
    files = rotated(past.folder)
    for victim in draw.draw(st.permutations(files))[:1]:
        contents = victim.read_bytes()
        size = draw.draw(st.integers(0, len(contents)))
        # Cut.
        (past.copy(folder / "copy") / victim.name).write_bytes(contents[:size])
        check_exact(past, restarted(folder / "copy"), contents)
        assert restarted(folder / "copy") == []
        # Missing.
        (past.copy(folder / "copy") / victim.name).unlink()
        check_exact(past, restarted(folder / "copy"), contents)
        # Unreadable from some byte on, with and without the log.
        broken = contents[:size] + b"\xee" * (len(contents) - size)
        starts = {record.offset for record in reference.read(contents).records}
        (past.copy(folder / "copy") / victim.name).write_bytes(broken)
        found = restarted(folder / "copy")
        if size in starts:
            check_exact(past, found, contents)
        check_no_other_is_lost(past, found, contents)
        if size in starts:
            (past.copy(folder / "copy") / victim.name).write_bytes(broken)
            without_log(folder / "copy")
            check_no_other_is_lost(past, restarted(folder / "copy"), contents)
    shutil.rmtree(folder)


@quickly
@given(operations=histories, draw=st.data())
def test_a_crash_in_a_repair_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, operations: list[str], draw: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("crash")
    past = Past(folder / "queues", SMALL, operations)
    files = rotated(past.folder)
    if not files:
        return
    victim = draw.draw(st.sampled_from(files))
    contents = victim.read_bytes()
    starts = [record.offset for record in reference.read(contents).records]
    size = draw.draw(st.sampled_from(starts))
    broken = contents[:size] + b"\xee" * (len(contents) - size)
    has_log = draw.draw(st.booleans())
    calls = 0
    while True:
        copy = past.copy(folder / "copy")
        (copy / victim.name).write_bytes(broken)
        if not has_log:
            without_log(copy)
        disk = FaultyDisk()
        disk.die_after(calls)
        server = Server(copy, disk=disk)
        try:
            server.start()
        except ProcessDied:
            is_over = False
        else:
            is_over = True
        for descriptor in list(disk.open_descriptors):
            os.close(descriptor)
        if (lock := server.storage._lock) is not None:
            lock.release()
        if is_over:
            break
        found = restarted(copy)
        check_no_other_is_lost(past, found, contents)
        if has_log:
            check_exact(past, found, contents)
        calls += 7
    shutil.rmtree(folder)
