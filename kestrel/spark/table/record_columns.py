"""Conversion of journals and scrolls to columns: one pass finds the records, and fields are extracted in bulk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import calcsize
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kestrel.disk.reader import FileReader
from kestrel.journal.opcodes import ADD_HEADER, ADDX_HEADER, XID_ITEM_HEADER, Opcode
from kestrel.journal.run_cursor import JournalRunCursor
from kestrel.scroll.records import READER_MAGIC, WRITER_MAGIC, RecordCommand, ScrollFileRecord, decode_record
from kestrel.scroll.run_cursor import ScrollRunCursor
from kestrel.spark.table.record_runs import (
    Columns,
    Numbers,
    RecordRows,
    RecordRun,
    columns_of,
    items_of,
    numbers_where,
    part_bytes_of,
    with_headers,
    with_prefixes,
)
from kestrel.tools.formatting import show_path

_STATE_DUMP: Final = max(Opcode) + 1
"""Internal number for opcode 8 where it is a STATE_DUMP."""

_JOURNAL_NAMES: Final = (*(opcode.name for opcode in sorted(Opcode)), "STATE_DUMP")

_INT: Final = "<i4"
_LONG: Final = "<i8"


def _table(places: Mapping[int, int]) -> Numbers:
    """Return the position of a field in its record by opcode; -1 if the record has no such field."""
    table = np.full(_STATE_DUMP + 1, -1, np.int64)
    for opcode, place in places.items():
        table[opcode] = place
    return table


_XID_ONLY: Final = (Opcode.SAVE_XID, Opcode.UNREMOVE, Opcode.CONFIRM_REMOVE, Opcode.REMOVE_TENTATIVE_XID)
_XID_ITEM: Final = (Opcode.ADD_XID, Opcode.CONTINUE)

_XID_AT: Final = _table(dict.fromkeys((*_XID_ONLY, *_XID_ITEM, _STATE_DUMP), 1))
_RESTATES_AT: Final = _table({_STATE_DUMP: calcsize("<Bi")})
_ADD_TIME_AT: Final = _table({Opcode.ADDX: calcsize("<Bi"), **dict.fromkeys(_XID_ITEM, calcsize("<Bii"))})
_EXPIRY_AT: Final = _table({Opcode.ADDX: calcsize("<Biq"), **dict.fromkeys(_XID_ITEM, calcsize("<Biiq"))})
_EXPIRY_S_AT: Final = _table({Opcode.ADD: calcsize("<Bi")})
_DATA_AT: Final = _table(
    {Opcode.ADD: ADD_HEADER.size, Opcode.ADDX: ADDX_HEADER.size, **dict.fromkeys(_XID_ITEM, XID_ITEM_HEADER.size)}
)


_HEADER_BYTES: Final = XID_ITEM_HEADER.size
"""Maximum of bytes before the item of a record."""


def journal_rows(reader: FileReader, start: int, stop: int, *, has_data: bool) -> RecordRows:
    """Return the rows of the records that begin from `start` to before `stop`."""
    cursor = JournalRunCursor(reader, start, stop, has_data=has_data, part_bytes=part_bytes_of(has_data=has_data))

    def columns(run: RecordRun) -> Columns:
        dump_at = cursor.data_start + cursor.dump_at if cursor.dump_at >= 0 else None
        return _JournalColumns(run, dump_at).by_name()

    return RecordRows(cursor, columns, None if has_data else lambda run: with_prefixes(run, _HEADER_BYTES))


class _JournalColumns:
    """Columns of a run of records. `dump_at` is the offset of a STATE_DUMP, always the last record of its file."""

    def __init__(self, run: RecordRun, dump_at: int | None) -> None:
        self._run = run
        self._opcodes: Numbers = np.frombuffer(run.data, np.uint8)[run.starts].astype(np.int64)
        self._kinds = self._opcodes
        if dump_at == run.offsets[-1]:
            self._kinds = self._opcodes.copy()
            self._kinds[-1] = _STATE_DUMP

    def by_name(self) -> Columns:
        return {
            **columns_of(self._run, self._opcodes, self._kinds, _JOURNAL_NAMES),
            "xid": lambda: self._field(_XID_AT, _INT),
            "restates": lambda: self._field(_RESTATES_AT, _INT),
            "add_ms": lambda: self._field(_ADD_TIME_AT, _LONG),
            "expiry_ms": self._expiries,
            "data_bytes": self._item_sizes,
            "data": self._items,
        }

    def _values(self, table: Numbers, kind: str) -> tuple[Numbers, Numbers]:
        """Return a field of each record, and a mask that is true where a record lacks the field."""
        places = table[self._kinds]
        is_there = places >= 0
        return numbers_where(self._run.data, self._run.starts + places, is_there, kind), ~is_there

    def _field(self, table: Numbers, kind: str) -> pa.Array:
        values, is_missing = self._values(table, kind)
        return pa.array(values, mask=is_missing)

    def _expiries(self) -> pa.Array:
        """Return the expiry times; 0 means never and becomes null. An ADD has its expiry in seconds."""
        values, _ = self._values(_EXPIRY_AT, _LONG)
        seconds, _ = self._values(_EXPIRY_S_AT, _INT)
        values += seconds.astype(np.int64) * 1000
        return pa.array(values, mask=values == 0)

    def _item_sizes(self) -> pa.Array:
        headers = _DATA_AT[self._kinds]
        return pa.array(self._run.sizes - headers, mask=headers < 0)

    def _items(self) -> pa.Array:
        headers = _DATA_AT[self._kinds]
        run = self._run
        return items_of(run.data, run.starts + headers, run.starts + run.sizes, headers >= 0)


_DONE: Final = (RecordCommand.READ_DONE, RecordCommand.DONE_RANGES)

_SCROLL_NAMES: Final = tuple(
    RecordCommand(number).name if number in set(RecordCommand) else "UNKNOWN" for number in range(16)
)

# Positions of the fields of a PUT, and of the id of a READ_HEAD.
_SIZE_AT: Final = 1
_ERRORS_AT: Final = 5
_ID_AT: Final = 9
_PUT_ADD_TIME_AT: Final = 17
_PUT_EXPIRY_AT: Final = 25
_HEAD_AT: Final = 1

_EXPIRING_WORDS: Final = 8
"""Number of 4-byte words of a header with an expiry; shorter headers have none."""


_RANGES: Final = pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))
_ERROR_COUNTS: Final = pa.list_(pa.struct([("item_id", pa.int64()), ("errors", pa.int32())]))
_TARGETS: Final = pa.struct([("readers", pa.list_(pa.string())), ("are_left_out", pa.bool_())])


def scroll_rows(reader: FileReader, start: int, stop: int, *, is_reader: bool, has_data: bool) -> RecordRows:
    """Return the rows of the records that begin from `start` to before `stop`."""
    magic = READER_MAGIC if is_reader else WRITER_MAGIC
    part_bytes = part_bytes_of(has_data=has_data)
    cursor = ScrollRunCursor(reader, magic, start, stop, has_data=has_data, part_bytes=part_bytes)
    shorten = None if has_data else lambda run: with_headers(run, _header_of)
    return RecordRows(cursor, lambda run: _ScrollColumns(run).by_name(), shorten)


def _header_of(data: bytes, start: int, size: int) -> bytes:
    """Return the header of an item, or the whole of another record."""
    first = data[start]
    return data[start : start + (1 + 4 * (first & 15) if first >> 4 == RecordCommand.PUT else size)]


class _ScrollColumns:
    """Columns of a run of records."""

    def __init__(self, run: RecordRun) -> None:
        self._run = run
        firsts: Numbers = np.frombuffer(run.data, np.uint8)[run.starts].astype(np.int64)
        self._commands = firsts >> 4
        self._words = firsts & 15
        self._is_put: Numbers = self._commands == RecordCommand.PUT

    def by_name(self) -> Columns:
        return {
            **columns_of(self._run, self._commands, self._commands, _SCROLL_NAMES),
            "item_id": self._ids,
            "add_ms": lambda: self._field(_PUT_ADD_TIME_AT, _LONG),
            "expiry_ms": self._expiries,
            "errors": lambda: self._field(_ERRORS_AT, _INT),
            "data_bytes": lambda: self._field(_SIZE_AT, _INT).cast(pa.int64()),
            "ranges": lambda: self._of_others(_ranges, _RANGES),
            "error_counts": lambda: self._of_others(_error_counts, _ERROR_COUNTS),
            "targets": lambda: self._of_others(_targets, _TARGETS),
            "data": self._items,
        }

    def _numbers(self, places: int | Numbers, has_field: Numbers, kind: str) -> Numbers:
        """Return the numbers at these places in the records, and 0 where `has_field` is false."""
        return numbers_where(self._run.data, self._run.starts + places, has_field, kind)

    def _field(self, place: int, kind: str) -> pa.Array:
        """Return a column with the number at byte `place` of each PUT record, and null for other records.

        `kind` is the NumPy type of the number, such as ``<i4``.
        """
        return pa.array(self._numbers(place, self._is_put, kind), mask=~self._is_put)

    def _ids(self) -> pa.Array:
        is_head: Numbers = self._commands == RecordCommand.READ_HEAD
        has_id = self._is_put | is_head
        return pa.array(self._numbers(np.where(is_head, _HEAD_AT, _ID_AT), has_id, _LONG), mask=~has_id)

    def _expiries(self) -> pa.Array:
        """Return the expiry times; 0 means never and becomes null."""
        values = self._numbers(_PUT_EXPIRY_AT, self._is_put & (self._words >= _EXPIRING_WORDS), _LONG)
        return pa.array(values, mask=values == 0)

    def _items(self) -> pa.Array:
        run = self._run
        return items_of(run.data, run.starts + 1 + 4 * self._words, run.starts + run.sizes, self._is_put)

    def _of_others(self, value: Callable[[ScrollFileRecord], Any], kind: pa.DataType) -> pa.Array:
        """Return a column of the records that are not items; a large file has only a few of them."""
        run = self._run
        values: list[Any] = [None] * len(run.starts)
        for place in np.flatnonzero(~self._is_put):
            record = decode_record(run.data, int(run.starts[place]))
            values[place] = None if record is None else value(record)
        return pa.array(values, kind)


def _ranges(record: ScrollFileRecord) -> list[dict[str, int]] | None:
    if record.command not in _DONE:
        return None
    pairs = zip(record.ids, record.ids, strict=True) if record.command == RecordCommand.READ_DONE else record.ranges
    return [{"first": first, "last": last} for first, last in pairs]


def _error_counts(record: ScrollFileRecord) -> list[dict[str, int]] | None:
    if record.command != RecordCommand.ERRORS:
        return None
    return [{"item_id": item_id, "errors": errors} for item_id, errors in record.errors.items()]


def _targets(record: ScrollFileRecord) -> dict[str, Any] | None:
    targets = record.targets if record.command == RecordCommand.TARGETS else None
    if targets is None:
        return None
    return {"readers": [show_path(reader) for reader in sorted(targets.readers)], "are_left_out": targets.are_left_out}
