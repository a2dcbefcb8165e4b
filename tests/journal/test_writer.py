"""The journal writer: whole records or none, and no sync of a file after a failed sync."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from kestrel.journal.writer import JournalWriter
from kestrel.testing.faults import FaultyDisk
from tests.journal.handwritten import addx
from tests.journal.restarts import files_of

A, B, C = addx(b"a"), addx(b"b"), addx(b"c")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def writer(tmp_path: Path, disk: FaultyDisk) -> JournalWriter:
    """Return a writer of the queue "work"; files that it retires are numbered from 1000."""
    numbers = itertools.count(1000)
    return JournalWriter(disk, str(tmp_path).encode(), b"work", lambda: next(numbers))


def sync(writer: JournalWriter) -> None:
    begun = writer.begin_sync()
    writer.run_sync(begun)
    writer.synced(begun)


# Appending.


def test_new_writer_has_created_nothing(tmp_path: Path, writer: JournalWriter) -> None:
    assert files_of(tmp_path) == {}
    assert (writer.size, writer.synced_size) == (0, 0)


def test_records_are_written_in_call_order(tmp_path: Path, writer: JournalWriter) -> None:
    writer.append(A)
    writer.append(B + C)
    assert files_of(tmp_path) == {"work": A + B + C}
    assert writer.size == len(A + B + C)


def test_file_has_the_name_that_kestrel_gives_it(tmp_path: Path, disk: FaultyDisk) -> None:
    JournalWriter(disk, str(tmp_path).encode(), b"\xe9+x", lambda: 1).append(A)
    assert files_of(tmp_path) == {"é+x": A}


def test_closed_writer_reopens_its_file_on_next_write(tmp_path: Path, writer: JournalWriter, disk: FaultyDisk) -> None:
    writer.append(A)
    for _ in range(2):  # closing twice closes once
        writer.close()
        assert disk.open_descriptors == set()
    writer.append(B)
    assert files_of(tmp_path) == {"work": A + B}


def test_existing_file_is_continued_and_counted(tmp_path: Path, writer: JournalWriter) -> None:
    (tmp_path / "work").write_bytes(A)
    writer.open_existing()
    assert (writer.size, files_of(tmp_path)) == (len(A), {"work": A})
    writer.append(B)
    assert (writer.size, files_of(tmp_path)) == (len(A + B), {"work": A + B})


# Failed writes.


@pytest.fixture(params=[0, 1, len(B), len(B) + 3])
def torn(request: pytest.FixtureRequest, writer: JournalWriter, disk: FaultyDisk) -> JournalWriter:
    """Return a writer that wrote A, and failed to write B and C after each number of their bytes."""
    writer.append(A)
    disk.fail("write", errno.EIO, times=1, torn_bytes=request.param)
    with pytest.raises(OSError, match="Input/output error"):
        writer.append(B + C)
    return writer


def test_failed_write_leaves_no_records_before_the_next(tmp_path: Path, torn: JournalWriter) -> None:
    assert torn.size == len(A)
    torn.append(C)
    assert (torn.size, files_of(tmp_path)) == (len(A + C), {"work": A + C})


def test_failed_write_leaves_no_records_for_a_reader(tmp_path: Path, torn: JournalWriter) -> None:
    torn.truncate_failed_write()
    assert files_of(tmp_path) == {"work": A}


def test_good_records_go_to_new_file_if_cut_fails(tmp_path: Path, torn: JournalWriter, disk: FaultyDisk) -> None:
    before = (tmp_path / "work").stat().st_ino
    disk.fail("cut", errno.EIO)
    torn.append(C)
    assert files_of(tmp_path) == {"work": A + C}
    assert (tmp_path / "work").stat().st_ino != before


def test_unrepaired_file_refuses_writes_until_repair_succeeds(
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


def test_nothing_is_repaired_without_a_failed_write(writer: JournalWriter, disk: FaultyDisk) -> None:
    writer.append(A)
    before = disk.calls.copy()
    writer.truncate_failed_write()
    assert disk.calls == before


def test_error_of_the_write_is_reported(writer: JournalWriter, disk: FaultyDisk) -> None:
    disk.fail("write", errno.ENOSPC, times=1)
    disk.fail("cut", errno.EIO, times=1)
    with pytest.raises(OSError, match="No space left"):
        writer.append(A)


# Syncs.


def test_sync_brings_all_written_data_to_the_medium(tmp_path: Path, writer: JournalWriter, disk: FaultyDisk) -> None:
    writer.append(A)
    writer.append(B)
    sync(writer)
    assert on_medium(disk, tmp_path) == {"work": A + B}


def test_only_first_sync_of_new_file_syncs_the_folder(writer: JournalWriter, disk: FaultyDisk) -> None:
    for record in (A, B, C):
        writer.append(record)
        sync(writer)
    assert disk.calls.count("sync_folder") == 1


def test_first_sync_after_retiring_file_syncs_the_folder(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk
) -> None:
    writer.append(A)
    sync(writer)
    writer.retire_current()
    writer.append(B)
    sync(writer)
    assert on_medium(disk, tmp_path) == {"work.1000": A, "work": B}


def test_sync_completes_after_writer_is_closed(tmp_path: Path, writer: JournalWriter, disk: FaultyDisk) -> None:
    writer.append(A)
    begun = writer.begin_sync()
    writer.close()
    writer.run_sync(begun)
    assert on_medium(disk, tmp_path) == {"work": A}
    assert disk.open_descriptors == set()


@pytest.mark.parametrize("operation", ["sync", "sync_folder"])
def test_failed_sync_closes_its_descriptor(writer: JournalWriter, disk: FaultyDisk, operation: str) -> None:
    writer.append(A)
    disk.fail(operation, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync(writer)
    writer.close()
    assert disk.open_descriptors == set()


def test_failed_sync_cuts_and_retires_the_file(tmp_path: Path, writer: JournalWriter) -> None:
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
def test_file_is_never_synced_again_after_failed_sync(
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


# Retiring files.


def test_retiring_makes_a_rotated_file_and_starts_a_new_one(
    tmp_path: Path, writer: JournalWriter, disk: FaultyDisk
) -> None:
    writer.append(A)
    assert writer.retire_current() == 1000
    writer.append(B)
    assert writer.retire_current() == 1001
    writer.append(C)
    assert files_of(tmp_path) == {"work.1000": A, "work.1001": B, "work": C}
    assert (writer.size, len(disk.open_descriptors)) == (len(C), 1)


def on_medium(disk: FaultyDisk, folder: Path) -> dict[str, bytes]:
    """Return the files that a power failure would leave."""
    disk.medium.copy(str(folder).encode(), str(folder / "medium").encode())
    return files_of(folder / "medium")
