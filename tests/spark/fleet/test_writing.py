"""A task of an import writes whole queues to temporary files, which a server recovers exactly."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kestrel.disk.files import Disk
from kestrel.journal.fileset import current_name, temporary_name
from kestrel.spark.fleet import import_target
from kestrel.spark.fleet.import_target import ImportWriter
from kestrel.testing.faults import FaultyDisk
from tests.journal.handwritten import addx, open_, save_xid, unremove
from tests.journal.restarts import NOW_MS, files_of, restarted_errors, restarted_items

SCHEMA = pa.schema(
    [
        ("queue", pa.string()),
        ("position", pa.int64()),
        ("add_ms", pa.int64()),
        ("expiry_ms", pa.int64()),
        ("errors", pa.int32()),
        ("data", pa.binary()),
    ]
)

Item = tuple[bytes, int, int, int]
"""Data, add time, expiry time, errors."""


def batches_of(queues: dict[str, Sequence[Item]]) -> list[pa.RecordBatch]:
    """Return their items in batches of two."""
    rows = [
        dict(zip(SCHEMA.names, (queue, position, add_ms, expiry_ms, errors, data), strict=True))
        for queue, items in queues.items()
        for position, (data, add_ms, expiry_ms, errors) in enumerate(items)
    ]
    return [pa.RecordBatch.from_pylist(rows[start : start + 2], SCHEMA) for start in range(0, len(rows), 2)]


def write(
    folder: Path, batches: list[pa.RecordBatch], fronts: dict[str, int] | None = None, disk: Disk | None = None
) -> list[dict[str, Any]]:
    writing = ImportWriter(bytes(folder), 5, NOW_MS, fronts or {})
    return [row for batch in writing.write(batches, 5, disk or Disk()) for row in batch.to_pylist()]


def publish(folder: Path, *queues: bytes) -> None:
    for queue in queues:
        (folder / temporary_name(queue, 5).decode()).rename(folder / current_name(queue).decode())


def test_temporary_file_of_a_queue_has_its_items_in_order(tmp_path: Path) -> None:
    queues: dict[str, Sequence[Item]] = {
        "<script>": [(b"a", 1, 0, 0), (b"", 2, 9, 0), (b"\xff", 3, 0, 0)],
        "caf\xe9": [(b"b", -4, 0, 0)],
    }
    written = write(tmp_path, batches_of(queues))
    assert written == [
        {"queue": "<script>", "number": 5, "items": 3, "bytes": 65, "problem": None},
        {"queue": "caf\xe9", "number": 5, "items": 1, "bytes": 22, "problem": None},
    ]
    assert files_of(tmp_path) == {
        "<script>~~5": addx(b"a", 1) + addx(b"", 2, 9) + addx(b"\xff", 3),
        "caf\xe9~~5": addx(b"b", -4),
    }


def test_items_that_return_keep_their_errors(tmp_path: Path) -> None:
    items: list[Item] = [(b"a", 1, 0, 2), (b"b", 1, 0, 0), (b"c", 1, 0, 1), (b"d", 1, 0, 0)]
    assert write(tmp_path, batches_of({"work": items}), {"work": 3})[0]["problem"] is None
    opened = b"".join(addx(data) + open_(xid) for data, xid in ((b"a", 1), (b"b", 2), (b"c", 3)))
    back = b"".join(save_xid(errors) + unremove(xid) for xid, errors in ((3, 1), (2, 0), (1, 2)))
    assert files_of(tmp_path) == {"work~~5": opened + back + addx(b"d")}
    publish(tmp_path, b"work")
    assert restarted_items(tmp_path) == [(data, add_ms, expiry_ms) for data, add_ms, expiry_ms, _ in items]
    assert restarted_errors(tmp_path) == [2, 0, 1, 0]


def test_duplicate_item_is_refused(tmp_path: Path) -> None:
    batches = batches_of({"work": [(b"a", 1, 0, 0)]}) * 2
    (row,) = write(tmp_path, batches)
    assert row["problem"] == "queue work: two items have the position 0: import one export at a time"


def test_items_without_a_position_keep_the_order_of_arrival(tmp_path: Path) -> None:
    batch = batches_of({"work": [(b"a", 1, 0, 0), (b"b", 1, 0, 0)]})[0]
    batch = batch.set_column(1, "position", pa.nulls(2, pa.int64()))
    assert write(tmp_path, [batch])[0]["items"] == 2
    assert files_of(tmp_path) == {"work~~5": addx(b"a") + addx(b"b")}


@pytest.mark.parametrize("operation", ["open", "write", "sync", "read"])
def test_failing_disk_is_a_row_and_nothing_more_is_written(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    disk.fail(operation, errno.ENOSPC)
    (row,) = write(tmp_path, batches_of({"a": [(b"x", 1, 0, 0)], "b": [(b"y", 1, 0, 0)]}), disk=disk)
    assert (row["queue"], row["items"]) == ("a", 0)
    assert row["problem"] == "No space left on device; make room on the disk and run this again"
    assert set(files_of(tmp_path)) <= {"a~~5"}
    assert not disk.open_descriptors


def test_file_is_synced_before_it_is_reported(tmp_path: Path) -> None:
    disk = FaultyDisk()
    write(tmp_path, batches_of({"work": [(b"x", 1, 0, 0)]}), disk=disk)
    assert disk.calls.index("sync") < disk.calls.index("open_read")


def test_file_with_other_content_than_written_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_target, "encode_item", lambda data, add_ms, expiry_ms: addx(data, add_ms, 7)[:-1])
    (row,) = write(tmp_path, batches_of({"work": [(b"xy", 1, 0, 0)]}))
    assert "the new file differs from what was written to it" in row["problem"]


def test_no_rows_make_no_queues(tmp_path: Path) -> None:
    assert write(tmp_path, []) == []
