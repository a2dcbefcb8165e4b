"""The reader of a task: yields Arrow batches of records or problems. The state of a file does not raise by default."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.spark.columns import DATA
from kestrel.spark.failures import BadJournal
from kestrel.spark.table.filters import OF_RECORDS, Condition
from kestrel.spark.table.journal_rows import JournalRows
from kestrel.spark.table.planned_file import FileOrigin, PlannedFile
from kestrel.spark.table.planned_reader import PlannedReader
from kestrel.spark.table.record_runs import MOST_ROWS
from kestrel.spark.table.scroll_rows import ScrollRows
from kestrel.spark.table.slices import FileSlice
from kestrel.tools.tool_runner import explain_os_error

logger = logging.getLogger("kestrel.spark")

_OWNER: Final = tuple(field.name for field in fields(FileOrigin))

VANISHED: Final = "the file is gone: it was packed or erased, or its queue was deleted"


class FileProblem:
    """A problem of a file: its kind, position and description."""

    def __init__(self, kind: str, offset: int | None, words: str, bytes_behind: int | None = None) -> None:
        self.kind = kind
        self.offset = offset
        self.words = words
        self.bytes_behind = bytes_behind

    @classmethod
    def of(cls, end: ReadEnd, size: int) -> FileProblem | None:
        """Return the problem of a file of `size` bytes, or None if it ended well."""
        if end.problem is None:
            return None
        return cls("unfinished" if end.is_unfinished else "damaged", end.offset, end.problem, size - end.offset)

    def row(self) -> dict[str, Any]:
        """Return the columns that do not name the file."""
        return {
            "offset": self.offset,
            "kind": self.kind,
            "problem": self.words,
            "bytes_behind": self.bytes_behind,
        }


class SliceReader:
    """A reader of slices as batches of `schema`, with the records that meet all conditions.

    A problem of a kind in `ways_out` is raised in every mode, with that text as its remedy.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        is_failfast: bool = False,
        ways_out: Mapping[str, str] | None = None,
        conditions: Sequence[Condition] = (),
        disk: Disk | None = None,
    ) -> None:
        self._schema = schema
        self._is_failfast = is_failfast
        self._ways_out = ways_out or {}
        self._conditions = conditions
        self._disk = disk or Disk()
        self._file: PlannedFile | None = None
        self._constants: Mapping[str, pa.Array] = {}
        self._constant_rows = 0
        self._has_data = DATA in schema.names

    def records(self, slices: Sequence[FileSlice]) -> Iterator[pa.RecordBatch]:
        """Yield batches of records. A problem is logged, or raised as `BadJournal`."""
        for each in slices:
            for item in self._read(each):
                if not isinstance(item, FileProblem):
                    yield self._batch(each.file, *item)
                    continue
                path = f"{each.file.owner.folder}/{each.file.owner.file}"
                place = "" if item.offset is None else f", offset {item.offset}"
                sentence = f"{path}{place}: {item.kind}: {item.words}"
                if item.kind in self._ways_out:
                    raise BadJournal(f"{sentence}; {self._ways_out[item.kind]}")
                if self._is_failfast:
                    raise BadJournal(f'{sentence}; option("view", "errors") lists all problems')
                logger.warning("%s", sentence)

    def problems(self, slices: Sequence[FileSlice]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each problem of a file."""
        for each in slices:
            for item in self._read(each):
                if isinstance(item, FileProblem):
                    row = {**_owner(each.file), **item.row()}
                    yield pa.RecordBatch.from_pylist([row], self._schema)

    def _read(self, each: FileSlice) -> Iterator[tuple[int, Mapping[str, Callable[[], pa.Array]]] | FileProblem]:
        """Yield batches of records, then the problem of the file if there is one."""
        try:
            with PlannedReader(self._disk, each.file) as reader:
                rows = self._rows(reader, each)
                yield from rows
                problem = FileProblem.of(rows.end, reader.size)
        except FileNotFoundError:
            problem = FileProblem("vanished", None, VANISHED)
        except OSError as error:
            problem = FileProblem("unreadable", None, explain_os_error(error))
        if problem is not None:
            yield problem

    def _rows(self, reader: FileReader, each: FileSlice) -> JournalRows | ScrollRows:
        if each.file.is_scroll:
            is_reader = each.file.is_reader
            return ScrollRows(reader, each.start, each.stop, is_reader=is_reader, has_data=self._has_data)
        return JournalRows(reader, each.start, each.stop, has_data=self._has_data)

    def _batch(self, file: PlannedFile, rows: int, columns: Mapping[str, Callable[[], pa.Array]]) -> pa.RecordBatch:
        keep = None
        for condition in self._conditions:
            if condition.column in OF_RECORDS:  # planning has applied the others
                column = columns.get(condition.column, lambda: pa.nulls(rows, pa.int64()))
                met = condition.met(column())
                keep = met if keep is None else pc.and_(keep, met)
        constants = self._constants_of(file, rows)
        arrays = []
        for field in self._schema:
            if field.name in constants:
                array = constants[field.name].slice(0, rows)
            elif field.name in columns:
                array = columns[field.name]().cast(field.type)
            else:
                array = pa.nulls(rows, field.type)
            arrays.append(array)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return batch if keep is None else batch.filter(keep)

    def _constants_of(self, file: PlannedFile, rows: int) -> Mapping[str, pa.Array]:
        """Return the columns that are constant for a file, with at least `rows` rows."""
        if self._file is not file or rows > self._constant_rows:
            # A small file has one batch. The batches of a large file share these columns.
            self._constant_rows = rows if self._file is not file else MOST_ROWS
            values = {**_owner(file), "kind": file.kind.value, "file_order": file.order}
            self._constants = {
                field.name: pa.repeat(pa.scalar(values[field.name], field.type), self._constant_rows)
                for field in self._schema
                if field.name in values
            }
            self._file = file
        return self._constants


def _owner(file: PlannedFile) -> dict[str, str]:
    return dict(zip(_OWNER, astuple(file.owner), strict=True))
