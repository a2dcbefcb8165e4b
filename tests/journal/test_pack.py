"""Packing many files into one: wherever the process or the machine stops, no item is lost or doubled."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.journal.fileset import QueueFiles, group_by_queue
from kestrel.journal.pack import finish_interrupted, publish, write_temporary
from kestrel.testing.faults import FaultyDisk, ProcessDied
from tests.journal import reference
from tests.journal.handwritten import REMOVE, addx, open_
from tests.journal.restarts import NOW_MS, files_of

OLD = {"work.1000": addx(b"gone") + addx(b"open") + addx(b"a"), "work.2000": REMOVE + open_(1) + addx(b"b")}
NEW = [addx(b"open"), open_(1), addx(b"a"), addx(b"b")]
"""An equal queue in fewer records."""

LATER = {"work.3000": addx(b"c"), "work": addx(b"d") + addx(b"e")}
OTHERS = {"work2": addx(b"2"), "work+x.1000": addx(b"x"), "work.bak": b"foreign"}

ITEMS = [(data, 1, 0) for data in (b"open", b"a", b"b", b"c", b"d", b"e")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "queues"
    folder.mkdir()
    fill(folder)
    return folder


def fill(folder: Path, **more: bytes) -> None:
    for name, contents in {**OLD, **LATER, **OTHERS, **more}.items():
        (folder / name).write_bytes(contents)


def path(folder: Path) -> bytes:
    return str(folder).encode()


def queue_files(folder: Path) -> QueueFiles:
    return group_by_queue(Disk().list_files(path(folder)))[b"work"]


def write(disk: Disk, folder: Path, runs: Iterable[bytes]) -> None:
    write_temporary(disk, path(folder), b"work", 2000, runs, 0, lambda: False)


def pack(disk: Disk, folder: Path) -> None:
    """Pack all files, as far as the disk allows."""
    write(disk, folder, NEW)
    for left in publish(disk, path(folder), b"work", 2000, [b"work.1000", b"work.2000"], len(b"".join(NEW))):
        disk.erase(path(folder) + b"/" + left)


def clean_up(folder: Path) -> QueueFiles:
    """Finish or undo an interrupted packing, as a start does, and return the files."""
    files = queue_files(folder)
    finish_interrupted(Disk(), path(folder), files)
    return files


def items_found(folder: Path) -> list[tuple[bytes, int, int]]:
    """Return the items that a start finds in the folder."""
    files = clean_up(folder)
    contents = [(folder / name.decode()).read_bytes() for name in files.in_replay_order()]
    return reference.items_after(*contents, now_ms=NOW_MS)


def test_new_file_replaces_the_old_ones(folder: Path) -> None:
    pack(Disk(), folder)
    assert files_of(folder) == {"work.2000": b"".join(NEW), **LATER, **OTHERS}
    assert items_found(folder) == ITEMS


def test_writing_the_new_file_changes_nothing_yet(folder: Path) -> None:
    write(Disk(), folder, NEW)
    assert files_of(folder) == {"work~~2000": b"".join(NEW), **OLD, **LATER, **OTHERS}
    assert items_found(folder) == ITEMS


def test_large_file_is_written_completely(folder: Path) -> None:
    records = [addx(b"%d" % number * 1000) for number in range(3000)]
    write(Disk(), folder, iter(records))
    assert (folder / "work~~2000").read_bytes() == b"".join(records)


def test_leftover_of_earlier_attempt_is_overwritten(folder: Path) -> None:
    (folder / "work~~2000").write_bytes(addx(b"an earlier attempt") * 10)
    pack(Disk(), folder)
    assert items_found(folder) == ITEMS


def test_empty_queue_is_packed_into_nothing(folder: Path) -> None:
    write(Disk(), folder, [])
    left = publish(Disk(), path(folder), b"work", 2000, [b"work.1000", b"work.2000"], 0)
    for name in left:
        Disk().erase(path(folder) + b"/" + name)
    assert files_of(folder) == {**LATER, **OTHERS}


def test_packing_syncs_before_it_publishes_and_before_it_erases(folder: Path) -> None:
    disk = FaultyDisk()
    pack(disk, folder)
    first = [disk.calls.index(operation) for operation in ("sync", "rename", "sync_folder", "erase")]
    assert first == sorted(first)


CALLS = 24
"""More operations than packing or cleaning up takes."""


def die_after(calls: int, work: Callable[[Disk, Path], None], folder: Path) -> FaultyDisk:
    """Do the work on a disk that ends the process after this many operations."""
    disk = FaultyDisk()
    disk.list_files(path(folder))
    disk.die_after(calls)
    with suppress(ProcessDied):
        work(disk, folder)
    return disk


def test_crash_tests_below_reach_the_end(folder: Path) -> None:
    disk = FaultyDisk()
    pack(disk, folder)
    assert 16 < len(disk.calls) <= CALLS


@pytest.mark.parametrize("calls", range(CALLS + 1))
def test_crash_at_any_step_loses_and_doubles_nothing(folder: Path, calls: int) -> None:
    disk = die_after(calls, pack, folder)
    left = folder.with_name("left")
    disk.medium.copy(path(folder), path(left))
    assert items_found(left) == ITEMS, "after a crash of the machine"
    assert items_found(folder) == ITEMS, "after a crash of the process"


def clean_up_on(disk: Disk, folder: Path) -> None:
    finish_interrupted(disk, path(folder), queue_files(folder))


@pytest.mark.parametrize("calls", range(CALLS + 1))
@pytest.mark.parametrize("first", range(CALLS + 1))
def test_next_start_continues_interrupted_clean_up(folder: Path, first: int, calls: int) -> None:
    die_after(first, pack, folder)
    die_after(calls, clean_up_on, folder)
    assert items_found(folder) == ITEMS


@pytest.mark.parametrize("operation", ["open", "cut", "write", "sync"])
def test_failed_write_of_temporary_file_changes_nothing(folder: Path, operation: str) -> None:
    disk = FaultyDisk()
    disk.fail(operation, errno.ENOSPC, torn_bytes=10)
    with pytest.raises(OSError, match="No space left"):
        write(disk, folder, NEW)
    assert disk.open_descriptors == set()
    assert items_found(folder) == ITEMS


# Cleaning up at a start.


def test_clean_up_without_leftovers_changes_nothing(folder: Path) -> None:
    before = files_of(folder)
    files = clean_up(folder)
    assert files_of(folder) == before
    assert files.in_replay_order() == [b"work.1000", b"work.2000", b"work.3000", b"work"]


def test_temporary_files_are_erased(folder: Path) -> None:
    fill(folder, **{"work~~1": b"torn", "work~~999999": addx(b"never published"), "work2~~1": b"not ours"})
    clean_up(folder)
    assert files_of(folder) == {**OLD, **LATER, **OTHERS, "work2~~1": b"not ours"}


def test_pack_replaces_rotated_files_up_to_its_number(folder: Path) -> None:
    fill(folder, **{"work.2000.pack": b"".join(NEW)})
    files = clean_up(folder)
    assert files_of(folder) == {"work.2000": b"".join(NEW), **LATER, **OTHERS}
    assert files.in_replay_order() == [b"work.2000", b"work.3000", b"work"]


def test_pack_without_remaining_rotated_files_is_renamed(folder: Path) -> None:
    for name in OLD:
        (folder / name).unlink()
    (folder / "work.2000.pack").write_bytes(b"".join(NEW))
    assert items_found(folder) == ITEMS
    assert files_of(folder) == {"work.2000": b"".join(NEW), **LATER, **OTHERS}


def test_pack_between_rotated_files_keeps_its_place(folder: Path) -> None:
    (folder / "work.1500.pack").write_bytes(addx(b"packed"))
    files = clean_up(folder)
    assert files.in_replay_order() == [b"work.1500", b"work.2000", b"work.3000", b"work"]
    assert sorted(files_of(folder)) == sorted(["work.1500", "work.2000", *LATER, *OTHERS])


def test_newer_of_two_packs_replaces_the_older(folder: Path) -> None:
    fill(folder, **{"work.1000.pack": addx(b"older pack"), "work.2000.pack": b"".join(NEW)})
    assert items_found(folder) == ITEMS
    assert files_of(folder) == {"work.2000": b"".join(NEW), **LATER, **OTHERS}


@pytest.mark.parametrize("damage", [b"\xee" + b"".join(NEW)[1:], NEW[0] + b"\xee", NEW[0] + NEW[1][:-1]])
def test_files_replaced_by_a_damaged_pack_are_kept(folder: Path, damage: bytes) -> None:
    fill(folder, **{"work.2000.pack": damage})
    clean_up(folder)
    assert files_of(folder) == {"work.2000": damage, **LATER, **OTHERS}
    assert files_of(folder / ".kestrel" / "damaged") == OLD
    assert files_of(folder / ".kestrel" / "erase") == {}


def test_pack_number_with_leading_zeros_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "work.0001.pack").write_bytes(REMOVE)
    (tmp_path / "work.1").write_bytes(b"replaced")
    files = group_by_queue([b"work.0001.pack", b"work.1"])[b"work"]
    finish_interrupted(Disk(), os.fsencode(tmp_path), files)
    assert files_of(tmp_path) == {"work.0001": REMOVE}
    assert files.in_replay_order() == [b"work.0001"]
