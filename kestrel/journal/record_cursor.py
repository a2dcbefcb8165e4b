"""A cursor over the records of one journal file."""

from __future__ import annotations

from collections.abc import Iterator

from kestrel.disk.reader import PART_BYTES, DamagedRecord, FileReader, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.journal.error_counts import ErrorCounts
from kestrel.journal.records import JournalFileRecord, decode_record


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
