"""The table without Spark: planned as by a driver, read as by workers, and compared with independent readers."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.spark.columns import HISTORIES, PROBLEMS, RECORDS
from kestrel.spark.item_histories import GROUP, ORDER, Limits, replay_histories
from kestrel.spark.source import KestrelSource
from kestrel.spark.table.files import files_of
from kestrel.spark.table.options import find_locations
from kestrel.spark.table.planned_file import PlannedFile
from kestrel.spark.table.reader import JournalReader, SliceReader
from kestrel.spark.table.slices import FileSlice
from tests.journal import reference
from tests.scroll import independent
from tests.scroll.handwritten import READER, WRITER
from tests.spark.times import at

Row = dict[str, Any]

NAMES = (
    *("ADD", "REMOVE", "ADDX", "REMOVE_TENTATIVE", "SAVE_XID", "UNREMOVE", "CONFIRM_REMOVE", "ADD_XID", "CONTINUE"),
    "REMOVE_TENTATIVE_XID",
)

COMMANDS = {
    0: "READ_HEAD",
    8: "PUT",
    9: "READ_DONE",
    10: "ERRORS",
    11: "DONE_RANGES",
    12: "TARGETS",
    13: "DELETED",
    14: "HELD",
    15: "CHECKSUM",
}

NOTHING = dict.fromkeys(
    (
        *("offset", "bytes", "opcode", "op", "xid", "item_id", "add_time", "expiry_time", "data_bytes", "errors"),
        *("restates", "ranges", "error_counts", "targets", "data"),
    )
)
"""Return the facts of a record, without its data."""


def source(*paths: Path | str, **options: str) -> KestrelSource:
    """Return the source as Spark makes it."""
    named = {"path": str(paths[0])} if len(paths) == 1 else {"paths": pickled_json(paths)} if paths else {}
    return KestrelSource({**named, **options})


def pickled_json(paths: Iterable[Path | str]) -> str:
    """Return several paths as Spark passes them."""
    return "[" + ",".join(f'"{path}"' for path in paths) + "]"


def journal_reader(made: KestrelSource, schema: StructType | None = None) -> JournalReader:
    """Return its reader."""
    reader = made.reader(made.schema() if schema is None else schema)
    assert isinstance(reader, JournalReader)
    return reader


def rows_of(reader: JournalReader) -> Iterator[Row]:
    """Return the rows of all its tasks."""
    return read_tasks(reader, reader.partitions())


def read_tasks(reader: JournalReader | DataSourceStreamReader, tasks: Iterable[InputPartition]) -> Iterator[Row]:
    """Return the rows of these tasks, each pickled as for a worker."""
    for task in tasks:
        worker, given = pickle.loads(pickle.dumps((reader, task)))
        for batch in worker.read(given):
            yield from batch.to_pylist()


def table(*paths: Path | str, schema: StructType | None = None, **options: str) -> list[Row]:
    """Return all rows, task by task."""
    return list(rows_of(journal_reader(source(*paths, **options), schema)))


def planned_files(
    *paths: Path | str, server: str | None = None, queue: str | None = None, disk: Disk | None = None
) -> list[PlannedFile]:
    """Return the files as a driver finds them."""
    return files_of(disk or Disk(), find_locations([str(path) for path in paths], server), queue)


def read_slices(slices: Sequence[FileSlice], schema: StructType = RECORDS, **settings: Any) -> list[Row]:
    """Return the records of slices as a task reads them, or with the schema of problems the problems."""
    reading = SliceReader(to_arrow_schema(schema, timezone="UTC"), **settings)
    batches = reading.problems(slices) if schema is PROBLEMS else reading.records(slices)
    return [row for batch in batches for row in batch.to_pylist()]


def records(rows: Iterable[Row]) -> list[Row]:
    """Return the facts of each row, without its file and queue."""
    return [{name: row[name] for name in NOTHING} for row in rows]


def histories_in(*paths: Path | str, limits: Limits = None, batch_rows: int = 7, **options: str) -> list[Row]:
    """Return all histories of the journals, whose records come in batches of that size; with `queue`, of matching
    queues.
    """
    schema = to_arrow_schema(RECORDS, timezone="UTC")
    rows = sorted(table(*paths, **options), key=_sort_key)
    starts = range(0, len(rows), batch_rows)
    batches = [pa.RecordBatch.from_pylist(rows[start : start + batch_rows], schema) for start in starts]
    told = replay_histories(batches, limits, to_arrow_schema(HISTORIES, timezone="UTC"), options.get("queue"))
    return [row for batch in told for row in batch.to_pylist()]


def _sort_key(row: Row) -> tuple[Any, ...]:
    """Sort as Spark does, nulls first."""
    return tuple((-1 if row[name] is None else row[name]) for name in (*GROUP, *ORDER))


def journal_rows(contents: bytes) -> list[Row]:
    """Return the rows of a journal file, as the reference reader of the format reads it."""
    reading = reference.read(contents)
    ends = [*(record.offset for record in reading.records), reading.end][1:]
    return [
        {**NOTHING, **_said(record), "bytes": end - record.offset}
        for record, end in zip(reading.records, ends, strict=True)
    ]


def _said(record: reference.Record) -> Row:
    is_dump = record.restates is not None
    said: Row = {"offset": record.offset, "opcode": record.opcode, "restates": record.restates}
    said["op"] = "STATE_DUMP" if is_dump else NAMES[record.opcode]
    if record.opcode in (4, 5, 6, 7, 8, 9):
        said["xid"] = record.xid
    if record.item is not None:
        data, add_ms, expiry_ms = record.item
        said |= {"add_time": at(add_ms), "expiry_time": at(expiry_ms or None), "data_bytes": len(data), "data": data}
    return said


def scroll_rows(contents: bytes, *, is_reader: bool) -> list[Row]:
    """Return the rows of a writer file or reader file, as the independent reader of the format reads it."""
    rows: list[Row] = []
    offset, last_id = 4, -(1 << 64)
    for command, words, header, data in independent.records_of(contents, (READER if is_reader else WRITER).hex()):
        size = 1 + len(header) + len(data)
        row: Row = {**NOTHING, "offset": offset, "bytes": size, "opcode": command}
        row["op"] = COMMANDS.get(command, "UNKNOWN")
        if command == 8:
            item_id = independent.number(header[8:16])
            if not is_reader and item_id <= last_id:
                break  # in one file ids rise
            last_id = item_id
            expiry_ms = independent.number(header[24:32]) if words >= 8 else 0
            row |= {"item_id": item_id, "errors": independent.number(header[4:8]), "data": data}
            row |= {"add_time": at(independent.number(header[16:24])), "expiry_time": at(expiry_ms or None)}
            row["data_bytes"] = len(data)
        elif command == 0:
            row["item_id"] = independent.number(header[:8])
        elif command == 9:
            row["ranges"] = [{"first": each, "last": each} for (each,) in independent.numbers(data, 8)]
        elif command == 10:
            counts = {each: count for each, count in independent.numbers(data, 8, 4) if count >= 0}
            row["error_counts"] = [{"item_id": each, "errors": count} for each, count in counts.items()]
        elif command == 11:
            row["ranges"] = [{"first": first, "last": last} for first, last in independent.numbers(data, 8, 8)]
        elif command == 12 and (targets := independent.targets_in(data)) is not None:
            readers = sorted(reader.decode("utf-8", "backslashreplace") for reader in targets[1])
            row["targets"] = {"readers": readers, "are_left_out": targets[0] == 1}
        rows.append(row)
        offset += size
    return rows
