"""A cursor over the records of one journal file, and the error counts that some of them state together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kestrel.disk.reader import PART_BYTES, DamagedRecord, FileReader, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import JournalFileRecord, decode_record

ERROR_COUNT_OPCODES: Final = frozenset({Opcode.REMOVE_TENTATIVE, Opcode.SAVE_XID, Opcode.UNREMOVE, Opcode.ADD_XID})
"""The opcodes of the records that must be passed to `ErrorCounts.find`."""


class ErrorCounts:
    """A recogniser of the error counts of one file. Records must be passed to `find` in order.

    A SAVE_XID directly before an UNREMOVE has the number of errors of its item. An UNREMOVE without a SAVE_XID adds one
    error. docs/decisions/0008 explains why the counts are written in this way.
    """

    def __init__(self) -> None:
        self._errors = 0
        self._errors_end = -1
        """Offset of the end of the SAVE_XID that set `_errors`."""
        self._restated_end = -1
        """Offset of the end of open reads that a release before 2.1 rewrote as ADD_XID and REMOVE_TENTATIVE."""

    def find(self, record: JournalFileRecord, offset: int) -> None:
        """Set `record.errors` if the record is an UNREMOVE directly after an error count. `offset` is its start."""
        opcode, end = record.opcode, offset + record.size
        if opcode is Opcode.UNREMOVE:
            if offset == self._errors_end:
                record.errors = self._errors
        elif opcode is Opcode.SAVE_XID:
            # After rewritten open reads, a SAVE_XID has the last xid and is not an error count.
            if record.xid >= 0 and offset != self._restated_end:
                self._errors, self._errors_end = record.xid, end
        elif opcode is Opcode.ADD_XID or (opcode is Opcode.REMOVE_TENTATIVE and offset == self._restated_end):
            self._restated_end = end


class ReplayEnd(ReadEnd):
    """The position at which the reading of a journal file ended, and the number of records read.

    `is_closed` is True if the last record is a STATE_DUMP, which must end its file.
    """

    __slots__ = ("is_closed", "records")

    def __init__(
        self,
        offset: int,
        records: int,
        problem: str | None = None,
        *,
        is_unfinished: bool = False,
        is_closed: bool = False,
    ) -> None:
        super().__init__(offset, problem, is_unfinished=is_unfinished)
        self.records = records
        self.is_closed = is_closed


class JournalRecordCursor:
    """An iterable of the offsets and records of one file. After the iteration, `end` says how the file ended."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self.end = ReplayEnd(0, 0)

    def __iter__(self) -> Iterator[tuple[int, JournalFileRecord]]:
        reader, end = self._reader, self.end
        counts = ErrorCounts()
        needed = 0
        while end.offset < reader.size:
            part = reader.part(end.offset, max(PART_BYTES, needed))
            position = needed = 0
            while position < len(part.data):
                try:
                    record = decode_record(part.data, position, part)
                except UnfinishedRecord as unfinished:
                    needed = unfinished.needs
                    break
                except DamagedRecord as damage:
                    end.problem = str(damage)
                    return
                counts.find(record, end.offset)
                yield end.offset, record
                position += record.size
                end.offset += record.size
                end.records += 1
                end.is_closed = record.restates is not None
            if needed > reader.size - end.offset:
                end.problem, end.is_unfinished = TORN_RECORD, True
                return
