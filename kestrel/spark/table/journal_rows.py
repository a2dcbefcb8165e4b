"""Conversion of journal files to columns: one pass finds the records, and fields are extracted in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from struct import calcsize
from typing import Final

import numpy as np
import pyarrow as pa

from kestrel.disk.reader import FileReader
from kestrel.journal.opcodes import ADD_HEADER, ADDX_HEADER, XID_ITEM_HEADER, Opcode
from kestrel.journal.run_cursor import JournalRunCursor
from kestrel.spark.table.record_runs import (
    Columns,
    Numbers,
    RecordRows,
    RecordRun,
    columns_of,
    items_of,
    numbers_where,
    part_bytes_of,
    with_prefixes,
)

_STATE_DUMP: Final = max(Opcode) + 1
"""Internal number for opcode 8 where it is a STATE_DUMP."""

_NAMES: Final = (*(opcode.name for opcode in sorted(Opcode)), "STATE_DUMP")

_XID: Final = "<i4"
_TIME: Final = "<i8"


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
_ADD_TIME_AT: Final = _table(
    {Opcode.ADDX: calcsize("<Bi"), **dict.fromkeys(_XID_ITEM, calcsize("<Bii"))}
)
_EXPIRY_AT: Final = _table(
    {Opcode.ADDX: calcsize("<Biq"), **dict.fromkeys(_XID_ITEM, calcsize("<Biiq"))}
)
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
        """Return the functions that make the columns, by name."""
        return {
            **columns_of(self._run, self._opcodes, self._kinds, _NAMES),
            "xid": lambda: self._field(_XID_AT, _XID),
            "restates": lambda: self._field(_RESTATES_AT, _XID),
            "add_ms": lambda: self._field(_ADD_TIME_AT, _TIME),
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
        values, _ = self._values(_EXPIRY_AT, _TIME)
        seconds, _ = self._values(_EXPIRY_S_AT, _XID)
        values += seconds.astype(np.int64) * 1000
        return pa.array(values, mask=values == 0)

    def _item_sizes(self) -> pa.Array:
        headers = _DATA_AT[self._kinds]
        return pa.array(self._run.sizes - headers, mask=headers < 0)

    def _items(self) -> pa.Array:
        headers = _DATA_AT[self._kinds]
        run = self._run
        return items_of(run.data, run.starts + headers, run.starts + run.sizes, headers >= 0)
