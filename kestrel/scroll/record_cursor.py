"""A cursor over the records of one scroll file."""

from __future__ import annotations

from collections.abc import Iterator

from kestrel.disk.reader import DamagedRecord, FileReader, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.scroll.records import RecordCommand, ScrollFileRecord, decode_record


class ScrollRecordCursor:
    """An iterable of the offsets and records of one file. After the iteration, `end` says how the file ended.

    A file that does not begin with `magic` has no records. It is unfinished if it ends within the magic, otherwise
    damaged. The end of the file, or a zero byte instead of a record, is a proper end. A TARGETS without its PUT is
    unfinished, so that a repair cuts it off and it cannot apply to a later PUT.
    """

    def __init__(self, reader: FileReader, magic: bytes) -> None:
        self._reader = reader
        self._magic = magic
        self.end = ReadEnd(0)

    def __iter__(self) -> Iterator[tuple[int, ScrollFileRecord]]:
        reader, end, magic = self._reader, self.end, self._magic
        begins_with = reader.read(0, len(magic))
        if begins_with != magic:
            end.is_unfinished = magic.startswith(begins_with)
            end.problem = TORN_RECORD if end.is_unfinished else f"it does not begin with {magic.hex(' ')}"
            return
        offset = end.offset = len(magic)
        while offset < reader.size:
            part = reader.part(offset)
            position = 0
            while position < len(part.data):
                try:
                    record = decode_record(part.data, position, part)
                except UnfinishedRecord:
                    end.problem, end.is_unfinished = TORN_RECORD, True
                    return
                except DamagedRecord as damage:
                    end.problem = str(damage)
                    return
                if record is None:
                    self._finish(offset)
                    return
                yield offset, record
                position += record.size
                offset += record.size
                if record.command != RecordCommand.TARGETS or record.targets is None:
                    end.offset = offset
        self._finish(offset)

    def _finish(self, offset: int) -> None:
        if self.end.offset < offset:
            self.end.problem, self.end.is_unfinished = TORN_RECORD, True
