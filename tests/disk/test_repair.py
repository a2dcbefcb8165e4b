"""A repair copies everything behind the last good record before it truncates the file, and loses nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.disk.repair import ReadEnd, repair
from kestrel.journal.replay import replay
from kestrel.testing.faults import FaultyDisk, ProcessDied
from tests.journal.handwritten import REMOVE, BytesReader, add_xid, addx, state_dump
from tests.journal.restarts import NOW_MS, Journal, ReplayedWindow, files_of, restarted_items, set_aside

A, B, C = addx(b"a"), addx(b"b"), addx(b"c")
DAMAGE = b"\xeethis is no record"


def path(folder: Path) -> bytes:
    return str(folder).encode()


def repaired(folder: Path, contents: bytes, disk: Disk | None = None, name: str = "work") -> bytes:
    """Replay a file with these contents and repair it. Return the path of the copy."""
    (folder / name).write_bytes(contents)
    end = replay(BytesReader(contents), ReplayedWindow(), NOW_MS)
    assert end.problem is not None
    return repair(disk or Disk(), path(folder), name.encode(), end, NOW_MS).copy


def test_an_incomplete_last_record_is_copied_and_cut(tmp_path: Path) -> None:
    copy = repaired(tmp_path, A + B[:-1])
    assert files_of(tmp_path) == {"work": A}
    assert Path(copy.decode()).read_bytes() == B[:-1]


def test_everything_from_the_damage_on_is_copied_and_cut(tmp_path: Path) -> None:
    copy = repaired(tmp_path, A + DAMAGE + C)
    assert files_of(tmp_path) == {"work": A}
    assert Path(copy.decode()).read_bytes() == DAMAGE + C


def test_copy_is_in_damaged_folder_and_named_after_file(tmp_path: Path) -> None:
    copy = Path(repaired(tmp_path, A + DAMAGE, name="work.1000").decode())
    assert copy.parent == tmp_path / ".kestrel" / "damaged"
    assert copy.name.startswith("work.1000")


def test_file_with_damaged_first_record_is_moved(tmp_path: Path) -> None:
    disk = FaultyDisk()
    copy = repaired(tmp_path, DAMAGE + A + B, disk)
    assert files_of(tmp_path) == {}
    assert Path(copy.decode()).read_bytes() == DAMAGE + A + B
    assert "cut" not in disk.calls


def test_a_large_tail_is_copied_completely(tmp_path: Path) -> None:
    tail = DAMAGE + bytes(range(256)) * 20_000
    copy = repaired(tmp_path, A + tail)
    assert Path(copy.decode()).read_bytes() == tail


def test_two_repairs_at_the_same_time_keep_both_copies(tmp_path: Path) -> None:
    repaired(tmp_path, A + b"\xee first")
    repaired(tmp_path, A + b"\xee second")
    assert sorted(set_aside(tmp_path)) == [b"\xee first", b"\xee second"]


def test_two_files_moved_at_the_same_time_are_both_kept(tmp_path: Path) -> None:
    repaired(tmp_path, b"\xee first")
    repaired(tmp_path, b"\xee second")
    assert sorted(set_aside(tmp_path)) == [b"\xee first", b"\xee second"]


@pytest.mark.parametrize("calls", range(16))
@pytest.mark.parametrize("whole_machine", [False, True], ids=["the process", "the machine"])
def test_kill_at_any_step_preserves_every_byte(
    tmp_path: Path, calls: int, whole_machine: bool
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work").write_bytes(A + DAMAGE)
    disk = FaultyDisk()
    disk.list_files(path(folder))
    end = replay(BytesReader(A + DAMAGE), ReplayedWindow(), NOW_MS)
    disk.die_after(calls)
    try:
        repair(disk, path(folder), b"work", end, NOW_MS)
    except ProcessDied:
        pass
    else:
        assert calls > 5
    if whole_machine:
        left = tmp_path / "left"
        disk.medium.copy(path(folder), path(left))
        disk.medium.copy(path(folder / ".kestrel/damaged"), path(left / ".kestrel/damaged"))
        folder = left
    kept = files_of(folder)["work"]
    assert kept == A + DAMAGE or (kept == A and DAMAGE in set_aside(folder))
    assert restarted_items(folder) == [(b"a", 1, 0)]
    assert DAMAGE in set_aside(folder)


@pytest.mark.parametrize("operation", ["open", "write", "sync", "sync_folder"])
def test_a_copy_that_cannot_be_made_leaves_the_file_unchanged(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        repaired(tmp_path, A + DAMAGE, disk)
    assert files_of(tmp_path) == {"work": A + DAMAGE}
    assert disk.open_descriptors == set()


def test_file_with_only_incomplete_record_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A[:7])
    end = ReadEnd(0, "the last record is cut short", is_unfinished=True)
    repair(Disk(), path(tmp_path), b"work", end, NOW_MS)
    assert files_of(tmp_path) == {"work": b""}
    assert set_aside(tmp_path) == [A[:7]]


# A whole folder.


@pytest.mark.parametrize("damage", [DAMAGE, addx(b"cut short")[:-1]])
def test_damage_in_a_rotated_file_drops_no_item_of_another(tmp_path: Path, damage: bytes) -> None:
    files = {"work.1000": A + damage, "work.2000": B, "work": C + REMOVE}
    for name, contents in files.items():
        (tmp_path / name).write_bytes(contents)
    journal = Journal(tmp_path)
    assert files_of(tmp_path) == {"work.1000": A, "work.2000": B, "work": C}  # the removal is dropped
    assert journal.items() == [(b"a", 1, 0), (b"b", 1, 0), (b"c", 1, 0)]
    journal.close()


def test_rotated_non_journal_is_moved_and_rest_replayed(tmp_path: Path) -> None:
    files = {"work.1000": A, "work.2000": DAMAGE, "work": C}
    for name, contents in files.items():
        (tmp_path / name).write_bytes(contents)
    assert restarted_items(tmp_path) == [(b"a", 1, 0), (b"c", 1, 0)]
    assert set_aside(tmp_path) == [DAMAGE]


def test_items_put_after_repair_survive_restart(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A + DAMAGE)
    assert restarted_items(tmp_path) == [(b"a", 1, 0)]
    with (tmp_path / "work").open("ab") as file:
        file.write(B)
    assert restarted_items(tmp_path) == [(b"a", 1, 0), (b"b", 1, 0)]


STATE_DUMP = state_dump(7, add_xid(1, b"open"), add_xid(2, b"open"))
NO_STATE_DUMPS = {
    "cut short": STATE_DUMP[:-1],
    "something behind it": STATE_DUMP + C,
    "a negative count": state_dump(7, count=-1),
    "something else restated": state_dump(7, C, count=1),
}


@pytest.mark.parametrize("tail", NO_STATE_DUMPS.values(), ids=NO_STATE_DUMPS)
@pytest.mark.parametrize("name", ["work", "work.1000"])
def test_a_damaged_state_dump_is_copied_and_loses_no_item(tmp_path: Path, tail: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(A + B + tail)
    for data in (b"first", b"second"):
        journal = Journal(tmp_path)
        journal.put(data)
        journal.close()
    assert set_aside(tmp_path) == [tail]
    assert restarted_items(tmp_path) == [(b"a", 1, 0), (b"b", 1, 0), (b"first", 1, 0), (b"second", 1, 0)]
    assert files_of(tmp_path)[name].startswith(A + B)


@pytest.mark.parametrize("name", ["work", "work.1700000000000"])
@pytest.mark.parametrize("contents", [A + DAMAGE, DAMAGE, A + B[:-1]], ids=["damaged", "no journal", "cut short"])
def test_a_queue_with_the_longest_file_name_can_be_repaired(tmp_path: Path, name: str, contents: bytes) -> None:
    (tmp_path / name.replace("work", "\xff" * 115)).write_bytes(contents)
    items = [(b"a", 1, 0)] if contents.startswith(A) else []
    assert restarted_items(tmp_path, b"\xff" * 115) == items
    assert len(set_aside(tmp_path)) == 1
