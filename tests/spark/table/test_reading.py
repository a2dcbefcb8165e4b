"""Damaged files do not fail a read: problems are warnings, rows of the errors view, or raised with FAILFAST."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.spark.columns import PROBLEMS, RECORDS
from kestrel.spark.options import BadJournal, SourceFailed
from kestrel.spark.table import planned_file
from kestrel.spark.table.reader import SliceReader
from kestrel.spark.table.slices import FileSlice, plan_tasks
from tests.journal.handwritten import add_xid, addx, open_, state_dump
from tests.scroll.handwritten import READER, WRITER, put, read_head, targets
from tests.spark.disks import CountingDisk
from tests.spark.tables import journal_reader, planned_files, read_slices, source, table
from tests.tools.tool_processes import fill

A, B = addx(b"a" * 30), addx(b"b" * 30)


def slices_of(*paths: Path) -> Sequence[FileSlice]:
    tasks = plan_tasks(Disk(), planned_files(*paths, server="s"), 1 << 30, 1)
    return [each for task in tasks for each in task.slices]


rows = read_slices
problems = partial(read_slices, schema=PROBLEMS)


NOT_HIGHER = "the id 2 is not higher than the one before it"
DAMAGE = [
    ("work", A + B[:-1], 1, "unfinished", len(A), "the last record is cut short"),
    ("work", A + b"\x63" + B, 1, "damaged", len(A), "unknown opcode 99"),
    ("work", A + bytes(4096), 1, "damaged", len(A), "impossible size 0"),
    ("work", state_dump(1, add_xid(1, b"")) + A, 0, "damaged", 0, None),
    ("work.1", WRITER + put(1, b"a") + put(2, b"b")[:-1], 1, "unfinished", 4 + 26, "the last record is cut short"),
    ("work.1", WRITER + put(1, b"a") + targets(0, b"x"), 2, "unfinished", 4 + 26, "the last record is cut short"),
    ("work.1", WRITER + put(2, b"a") + put(2, b"b"), 1, "damaged", 4 + 26, NOT_HIGHER),
    ("work.read.x", READER + read_head(1) + b"\x85", 1, "damaged", 13, "impossible header of 5 words"),
]


@pytest.mark.parametrize(("name", "contents", "good", "kind", "offset", "words"), DAMAGE)
def test_good_records_are_read_and_problems_reported(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    contents: bytes,
    good: int,
    kind: str,
    offset: int,
    words: str | None,
) -> None:
    (tmp_path / name).write_bytes(contents)
    parts = slices_of(tmp_path / name)
    with caplog.at_level(logging.WARNING, "kestrel.spark"):
        assert len(rows(parts)) == good
    [warning] = caplog.records
    assert warning.name == "kestrel.spark"
    assert warning.getMessage().startswith(f"{tmp_path / name}, offset {offset}: {kind}: ")
    [problem] = problems(parts)
    assert (problem["kind"], problem["offset"], problem["bytes_behind"]) == (kind, offset, len(contents) - offset)
    assert problem["problem"] == words or words is None
    assert (problem["server"], problem["file"], problem["folder"]) == ("s", name, str(tmp_path))
    with pytest.raises(BadJournal, match=rf"offset {offset}: {kind}: .*; option\(\"view\", \"errors\"\) lists all"):
        rows(parts, is_failfast=True)


def test_zeros_after_last_record_end_a_scroll(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, {"work.1": WRITER + put(1, b"a") + bytes(5000), "work.read.": READER})
    assert len(rows(slices_of(tmp_path))) == 1
    assert problems(slices_of(tmp_path)) == []
    assert caplog.records == []


def test_data_of_items_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "work").write_bytes(addx(b"secret") + b"\x63secret")
    rows(slices_of(tmp_path))
    assert "secret" not in caplog.text
    assert caplog.text


def test_complete_files_have_no_problem(tmp_path: Path) -> None:
    fill(tmp_path, {"work": A + B, "empty": b""})
    assert problems(slices_of(tmp_path)) == []
    assert table(tmp_path, view="errors") == []


def test_damage_is_reported_once_however_the_file_is_split(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A + B + b"\x63" + A)
    file = slices_of(tmp_path / "work")[0].file
    parts = [FileSlice(file, 0, len(A)), FileSlice(file, len(A), file.size)]
    assert [row["offset"] for row in rows(parts)] == [0, len(A)]
    assert [problem["offset"] for problem in problems(parts)] == [2 * len(A)]


class BadDisk(Disk):
    """A disk whose sectors cannot be read, from some offset on."""

    def __init__(self, good: int) -> None:
        self._good = good

    def read(self, descriptor: int, offset: int, size: int) -> bytes:
        if offset + size > self._good:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(descriptor, offset, size)


def test_unreadable_file_is_reported_and_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, {"large": A * 100, "work": A})
    monkeypatch.setattr(planned_file, "_SAMPLE_BYTES", 16)
    parts, disk = slices_of(tmp_path), BadDisk(len(A))
    assert [row["queue"] for row in rows(parts, disk=disk)] == ["work"]
    [problem] = problems(parts, disk=disk)
    assert (problem["queue"], problem["kind"], problem["offset"]) == ("large", "unreadable", None)
    assert problem["problem"].startswith("Input/output error; copy the folder to a good disk")


def test_folder_with_unreadable_files_is_planned(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A * 50_000)
    disk = BadDisk(0)
    [task] = plan_tasks(disk, planned_files(tmp_path, disk=disk), 1, 1)
    assert [problem["kind"] for problem in problems(task.slices, disk=disk)] == ["unreadable"]
    assert len(rows(task.slices)) == 50_000


@pytest.mark.parametrize("name", ["work", "work.1"])
def test_large_items_that_are_not_needed_make_few_batches(tmp_path: Path, name: str) -> None:
    items = [addx(b"x" * 70_000) if name == "work" else put(n + 1, b"x" * 70_000) for n in range(200)]
    (tmp_path / name).write_bytes((b"" if name == "work" else WRITER) + b"".join(items))
    schema = to_arrow_schema(StructType([RECORDS["offset"], RECORDS["data_bytes"]]), timezone="UTC")
    parts = slices_of(tmp_path / name)
    batches = list(SliceReader(schema).records(parts))
    assert len(batches) == len(parts)
    assert [size for batch in batches for size in batch.column("data_bytes").to_pylist()] == [70_000] * 200


# Between the planning and the reading.


def test_growing_file_is_read_to_its_planned_end(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A)
    parts = slices_of(tmp_path)
    with (tmp_path / "work").open("ab") as file:
        file.write(B)
    assert [row["data"] for row in rows(parts)] == [b"a" * 30]
    assert problems(parts) == []


@pytest.mark.parametrize("happens", ["erased", "packed", "the folder is removed"])
def test_missing_file_is_reported_and_no_other_is_read(tmp_path: Path, happens: str) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "work").write_bytes(A)
    parts = slices_of(folder)
    if happens == "packed":
        (folder / "work~~9").write_bytes(B + B)
        (folder / "work~~9").rename(folder / "work")
    else:
        (folder / "work").unlink()
        if happens != "erased":
            folder.rmdir()
    assert rows(parts) == []
    [problem] = problems(parts)
    assert (problem["kind"], problem["offset"], problem["bytes_behind"]) == ("vanished", None, None)
    assert problem["problem"] == "the file is gone: it was packed or erased, or its queue was deleted"


def test_truncated_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A + B)
    parts = slices_of(tmp_path)
    os.truncate(tmp_path / "work", len(A))
    assert rows(parts) == []
    [problem] = problems(parts)
    assert problem["kind"] == "unreadable"
    assert "became shorter after the reading was planned" in problem["problem"]


def test_file_truncated_and_written_again_is_reported(tmp_path: Path) -> None:
    """A server that starts over an incomplete end also does this."""
    (tmp_path / "work").write_bytes(A + B[:-5])
    parts = slices_of(tmp_path)
    (tmp_path / "work").write_bytes(A + open_(1) * 40)
    assert rows(parts) == []
    assert [problem["kind"] for problem in problems(parts)] == ["vanished"]


def test_file_truncated_during_a_read_is_reported_after_its_rows(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A * 60_000)
    reading = SliceReader(to_arrow_schema(RECORDS, timezone="UTC"))
    batches = reading.records(slices_of(tmp_path))
    first = next(batches)
    os.truncate(tmp_path / "work", len(A))
    assert 0 < first.num_rows < 60_000
    # The part that was already read is complete.
    assert first.num_rows + sum(batch.num_rows for batch in batches) < 60_000


# Requests of Spark.


def test_errors_view_has_the_requested_columns(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A + B[:-1])
    asked = StructType([PROBLEMS["queue"], PROBLEMS["bytes_behind"]])
    assert table(tmp_path, view="errors", schema=asked) == [{"queue": "work", "bytes_behind": len(B) - 1}]


def test_files_are_chosen_by_modification_time(tmp_path: Path) -> None:
    for name, time in (("old", 1000), ("new", 3000)):
        (tmp_path / name).write_bytes(A)
        os.utime(tmp_path / name, (time, time))
    assert [row["queue"] for row in table(tmp_path, modifiedAfter="1970-01-01T00:20:00")] == ["new"]
    assert [row["queue"] for row in table(tmp_path, modifiedBefore="1970-01-01T00:20:00")] == ["old"]
    assert table(tmp_path, modifiedAfter="1970-01-01T00:50:00") == []


def test_folder_that_cannot_be_listed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(disk: Disk, folder: bytes) -> list[bytes]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)

    monkeypatch.setattr(Disk, "list_files", refused)
    with pytest.raises(SourceFailed, match=r"Permission denied; run this as the user that the server runs as"):
        table(tmp_path)


def test_missing_large_file_is_one_problem(tmp_path: Path) -> None:
    for name in ("work.1", "work"):
        (tmp_path / name).write_bytes(addx(b"x" * 1_000_000) * 4)
    reader = journal_reader(source(tmp_path, view="errors", partitionBytes="1MiB"))
    tasks = reader.partitions()
    (tmp_path / "work.1").unlink()
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert [(row["file"], row["kind"]) for row in found] == [("work.1", "vanished")]


# Planning.


def test_files_within_an_equal_share_are_planned_from_their_sizes(tmp_path: Path) -> None:
    for number in range(50):
        with (tmp_path / f"work.{number}").open("wb") as file:
            file.write(A)
            file.truncate(1 << 30)
    disk = CountingDisk()
    tasks = plan_tasks(disk, planned_files(tmp_path, disk=disk), None, 8)
    assert [len(task.slices) for task in tasks] == [1] * 50
    assert disk.bytes_read <= 50 * 1024
    assert len(plan_tasks(Disk(), planned_files(tmp_path), None, 8, splits=False)) == 50


def test_small_files_share_tasks_of_256_mib(tmp_path: Path) -> None:
    for number in range(160):
        with (tmp_path / f"work.{number}").open("wb") as file:
            file.truncate(16 << 20)
    tasks = plan_tasks(Disk(), planned_files(tmp_path), None, 1)
    assert [len(task.slices) for task in tasks] == [15] * 10 + [10]
