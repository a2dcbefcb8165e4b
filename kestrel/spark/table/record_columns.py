"""Conversion of journals and scrolls to columns: one pass finds the records, and fields are extracted in bulk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import calcsize
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kestrel.disk.reader import FileReader
from kestrel.journal.cursor import JournalCursor
from kestrel.journal.opcodes import ADD_HEADER, ADDX_HEADER, XID_ITEM_HEADER, Opcode
from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.records import READER_MAGIC, WRITER_MAGIC, RecordCommand, ScrollFileRecord, decode_record
from kestrel.spark.columns import ARROW_TIME, times_of
from kestrel.spark.table.record_runs import (
    Columns,
    Numbers,
    RecordRows,
    RecordRun,
    array_of,
    columns_of,
    field_of,
    items_of,
    numbers_where,
    part_bytes_of,
    texts_of,
    with_headers,
    with_prefixes,
)
from kestrel.tools.formatting import show_path

_STATE_DUMP: Final = max(Opcode) + 1
"""Internal number for opcode 8 where it is a STATE_DUMP."""

_JOURNAL_NAMES: Final = texts_of([*(opcode.name for opcode in sorted(Opcode)), "STATE_DUMP"])

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
    cursor = JournalCursor(reader, start, stop, has_data=has_data, part_bytes=part_bytes_of(has_data=has_data))

    def columns(run: RecordRun) -> Columns:
        dump_at = cursor.data_start + cursor.dump_at if cursor.dump_at >= 0 else None
        # The fields are read from a small copy of the headers, which stays in the processor's cache.
        return _journal_columns(run, with_prefixes(run, _HEADER_BYTES) if has_data else run, dump_at)

    return RecordRows(cursor, columns, None if has_data else lambda run: with_prefixes(run, _HEADER_BYTES))


def _journal_columns(whole: RecordRun, run: RecordRun, dump_at: int | None) -> Columns:
    """Return the columns of a run with the headers of its records; `whole` has the items, too.

    `dump_at` is the offset of a STATE_DUMP, always the last record of its file.
    """
    opcodes: Numbers = np.frombuffer(run.data, np.uint8)[run.starts].astype(np.int64)
    kinds = opcodes
    if dump_at == run.offsets[-1]:
        kinds = opcodes.copy()
        kinds[-1] = _STATE_DUMP
    headers: Numbers = _DATA_AT[kinds]

    def field(table: Numbers, kind: str) -> pa.Array:
        places = table[kinds]
        return field_of(run, places, places >= 0, kind)

    def expiries() -> pa.Array:
        """Return the expiry times; 0 means never and becomes null. An ADD has its expiry in seconds."""
        in_ms, in_seconds = _EXPIRY_AT[kinds], _EXPIRY_S_AT[kinds]
        values = numbers_where(run, in_ms, in_ms >= 0, _LONG)
        if (in_seconds >= 0).any():
            values += numbers_where(run, in_seconds, in_seconds >= 0, _INT).astype(np.int64) * 1000
        return _times_but_0(values)

    return {
        **columns_of(run, opcodes, kinds, _JOURNAL_NAMES),
        "xid": lambda: field(_XID_AT, _INT),
        "restates": lambda: field(_RESTATES_AT, _INT),
        "add_time": lambda: times_of(field(_ADD_TIME_AT, _LONG)),
        "expiry_time": expiries,
        "data_bytes": lambda: array_of(run.sizes - headers, headers >= 0),
        "data": lambda: items_of(whole, headers, headers >= 0),
    }


def _times_but_0(values: Numbers) -> pa.Array:
    """Return times in ms as timestamps, and null for 0."""
    return times_of(array_of(values, values != 0)) if values.any() else pa.nulls(len(values), ARROW_TIME)


_DONE: Final = (RecordCommand.READ_DONE, RecordCommand.DONE_RANGES)

_SCROLL_NAMES: Final = texts_of(
    [RecordCommand(number).name if number in set(RecordCommand) else "UNKNOWN" for number in range(16)]
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
    cursor = ScrollCursor(reader, magic, start, stop, has_data=has_data, part_bytes=part_bytes)
    shorten = None if has_data else lambda run: with_headers(run, _header_of)
    return RecordRows(cursor, _scroll_columns, shorten)


def _header_of(data: bytes, start: int, size: int) -> bytes:
    """Return the header of an item, or the whole of another record."""
    first = data[start]
    return data[start : start + (1 + 4 * (first & 15) if first >> 4 == RecordCommand.PUT else size)]


def _scroll_columns(run: RecordRun) -> Columns:
    """Return the columns of a run of records."""
    firsts: Numbers = np.frombuffer(run.data, np.uint8)[run.starts].astype(np.int64)
    commands, words = firsts >> 4, firsts & 15
    is_put: Numbers = commands == RecordCommand.PUT

    def ids() -> pa.Array:
        is_head: Numbers = commands == RecordCommand.READ_HEAD
        return field_of(run, np.where(is_head, _HEAD_AT, _ID_AT), is_put | is_head, _LONG)

    def expiries() -> pa.Array:
        """Return the expiry times; 0 means never and becomes null."""
        values = numbers_where(run, _PUT_EXPIRY_AT, is_put & (words >= _EXPIRING_WORDS), _LONG)
        return _times_but_0(values)

    def of_others(value: Callable[[ScrollFileRecord], Any], kind: pa.DataType) -> pa.Array:
        """Return a column of the records that are not items; a large file has only a few of them."""
        values: list[Any] = [None] * len(run.starts)
        for place in np.flatnonzero(~is_put):
            record = decode_record(run.data, int(run.starts[place]))
            values[place] = None if record is None else value(record)
        return pa.array(values, kind)

    return {
        **columns_of(run, commands, commands, _SCROLL_NAMES),
        "item_id": ids,
        "add_time": lambda: times_of(field_of(run, _PUT_ADD_TIME_AT, is_put, _LONG)),
        "expiry_time": expiries,
        "errors": lambda: field_of(run, _ERRORS_AT, is_put, _INT),
        "data_bytes": lambda: field_of(run, _SIZE_AT, is_put, _INT).cast(pa.int64()),
        "ranges": lambda: of_others(_ranges, _RANGES),
        "error_counts": lambda: of_others(_error_counts, _ERROR_COUNTS),
        "targets": lambda: of_others(_targets, _TARGETS),
        "data": lambda: items_of(run, 1 + 4 * words, is_put),
    }


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
