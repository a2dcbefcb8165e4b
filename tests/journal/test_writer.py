"""The current file of a queue: whole records or none, and never a sync of a file whose sync failed."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from kestrel.journal.writer import JournalWriter
from kestrel.testing.faults import FaultyDisk
from tests.journal.made import addx, files_of

A, B, C = addx(b"a"), addx(b"b"), addx(b"c")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def writer(tmp_path: Path, disk: FaultyDisk) -> JournalWriter:
    """Of the queue "work"; files it sets aside are numbered from 1000."""
    numbers = itertools.count(1000)
    return JournalWriter(disk, str(tmp_path).encode(), b"work", lambda: next(numbers))


def sync(writer: JournalWriter) -> None:
    begun = writer.begin_sync()
    writer.run_sync(begun)
    writer.synced(begun)


# Appending.


def test_a_new_writer_has_touched_nothing(tmp_path: Path, writer: JournalWriter) -> None:
    assert files_of(tmp_path) == {}
    assert (writer.size, writer.synced_size) == (0, 0)


def test_records_stand_in_the_file_in_the_order_of_the_calls(tmp_path: Path, writer: JournalWriter) -> None:
    writer.append(A)
    writer.append(B + C)
    assert files_of(tmp_path) == {"work": A + B + C}
    assert writer.size == len(A + B + C)


def test_the_file_is_named_as_kestrel_names_it(tmp_path: Path, disk: FaultyDisk) -> None:
    JournalWriter(disk, str(tmp_path).encode(), b"\xe9+x", lambda: 1).append(A)
    assert files_of(tmp_path) == {"é+x": A}


def test_a_closed_writer_opens_its_file_again_on_the_next_write(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk
) -> None:
    writer.append(A)
    writer.close()
    assert disk.open_descriptors == set()
    writer.append(B)
    assert files_of(tmp_path) == {"work": A + B}


def test_closing_twice_closes_once(writer: JournalWriter, disk: FaultyDisk) -> None:
    writer.append(A)
    writer.close()
    writer.close()
    assert disk.open_descriptors == set()


def test_an_existing_file_is_gone_on_with_and_counted(tmp_path: Path, writer: JournalWriter) -> None:
    (tmp_path / "work").write_bytes(A)
    writer.open_existing()
    assert (writer.size, files_of(tmp_path)) == (len(A), {"work": A})
    writer.append(B)
    assert (writer.size, files_of(tmp_path)) == (len(A + B), {"work": A + B})


# Writes that fail.


TORN = [0, 1, len(B), len(B) + 3]


@pytest.mark.parametrize("torn_bytes", TORN)
def test_a_failed_write_leaves_none_of_its_records_before_the_next(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk, torn_bytes: int
) -> None:
    writer.append(A)
    disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
    with pytest.raises(OSError, match="Input/output error"):
        writer.append(B + C)
    assert writer.size == len(A)
    writer.append(C)
    assert (writer.size, files_of(tmp_path)) == (len(A + C), {"work": A + C})


@pytest.mark.parametrize("torn_bytes", TORN)
def test_a_failed_write_leaves_none_of_its_records_for_a_reader(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk, torn_bytes: int
) -> None:
    writer.append(A)
    disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
    with pytest.raises(OSError, match="Input/output error"):
        writer.append(B + C)
    writer.truncate_failed_write()
    assert files_of(tmp_path) == {"work": A}


@pytest.mark.parametrize("torn_bytes", TORN)
def test_when_it_cannot_be_cut_the_good_records_go_to_a_new_file(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk, torn_bytes: int
) -> None:
    writer.append(A)
    before = (tmp_path / "work").stat().st_ino
    disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
    disk.fail("cut", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        writer.append(B + C)
    writer.append(C)
    assert files_of(tmp_path) == {"work": A + C}
    assert (tmp_path / "work").stat().st_ino != before


def test_a_doubt_that_cannot_be_settled_is_there_until_it_can(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk
) -> None:
    writer.append(A)
    for operation in ("write", "cut", "rename"):
        disk.fail(operation, errno.EIO, torn_bytes=5)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            writer.append(B)
    disk.mend()
    writer.append(C)
    assert files_of(tmp_path)["work"] == A + C


def test_where_there_is_no_doubt_nothing_is_done(writer: JournalWriter, disk: FaultyDisk) -> None:
    writer.append(A)
    before = disk.calls.copy()
    writer.truncate_failed_write()
    assert disk.calls == before


def test_the_error_of_the_write_is_the_one_told(writer: JournalWriter, disk: FaultyDisk) -> None:
    disk.fail("write", errno.ENOSPC, times=1)
    disk.fail("cut", errno.EIO, times=1)
    with pytest.raises(OSError, match="No space left"):
        writer.append(A)


# Syncs.


def test_a_sync_brings_all_that_is_written_to_the_medium(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk
) -> None:
    writer.append(A)
    writer.append(B)
    sync(writer)
    assert on_medium(disk, tmp_path) == {"work": A + B}


def test_a_new_files_entry_is_synced_with_its_first_sync_alone(writer: JournalWriter, disk: FaultyDisk) -> None:
    for record in (A, B, C):
        writer.append(record)
        sync(writer)
    assert disk.calls.count("sync_folder") == 1


def test_a_file_made_after_setting_one_aside_is_synced_with_its_entry(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk
) -> None:
    writer.append(A)
    sync(writer)
    writer.retire_current()
    writer.append(B)
    sync(writer)
    assert on_medium(disk, tmp_path) == {"work.1000": A, "work": B}


def test_a_sync_goes_on_though_the_writer_is_closed_meanwhile(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk
) -> None:
    writer.append(A)
    begun = writer.begin_sync()
    writer.close()
    writer.run_sync(begun)
    assert on_medium(disk, tmp_path) == {"work": A}
    assert disk.open_descriptors == set()


@pytest.mark.parametrize("operation", ["sync", "sync_folder"])
def test_a_sync_that_fails_closes_its_descriptor(
    writer: JournalWriter, disk: FaultyDisk, operation: str
) -> None:
    writer.append(A)
    disk.fail(operation, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync(writer)
    writer.close()
    assert disk.open_descriptors == set()


def test_after_a_failed_sync_the_file_is_cut_to_the_last_one_that_worked_and_left(
    tmp_path: Path, writer: JournalWriter
) -> None:
    writer.append(A)
    writer.synced_size = writer.size
    writer.append(B)
    writer.sync_failed()
    writer.truncate_failed_write()
    assert files_of(tmp_path) == {"work.1000": A}
    writer.append(C)
    assert files_of(tmp_path) == {"work.1000": A, "work": C}
    assert writer.size == len(C)


@pytest.mark.parametrize("operation", ["cut", "rename"])
def test_a_file_whose_sync_failed_is_never_synced_again_though_it_cannot_be_cut_or_left(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk, operation: str
) -> None:
    writer.append(A)
    sync(writer)
    writer.synced_size = writer.size
    writer.append(B)
    disk.fail("sync", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        sync(writer)
    writer.sync_failed()
    disk.fail(operation, errno.EIO, times=1)
    writer.append(C)
    sync(writer)
    assert b"".join(contents for _, contents in sorted(on_medium(disk, tmp_path).items())) == A + C


# Setting files aside.


def test_setting_aside_makes_a_rotated_file_and_begins_a_new_one(tmp_path: Path, writer: JournalWriter) -> None:
    writer.append(A)
    assert writer.retire_current() == 1000
    writer.append(B)
    assert writer.retire_current() == 1001
    writer.append(C)
    assert files_of(tmp_path) == {"work.1000": A, "work.1001": B, "work": C}
    assert writer.size == len(C)


def test_setting_aside_leaves_no_more_files_open_than_there_were(
    writer: JournalWriter, disk: FaultyDisk
) -> None:
    writer.append(A)
    writer.retire_current()
    writer.append(B)
    writer.retire_current()
    writer.append(C)
    assert len(disk.open_descriptors) == 1


def on_medium(disk: FaultyDisk, folder: Path) -> dict[str, bytes]:
    """What a power failure would leave."""
    disk.medium.copy(str(folder).encode(), str(folder / "medium").encode())
    return files_of(folder / "medium")
