"""A cursor over the records of a file, without its format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from kestrel.disk.reader import PART_BYTES, FilePart, FileReader
from kestrel.disk.repair import TORN_RECORD, ReadEnd

RUN_RECORDS: Final = 1 << 16
"""Usual limit of the records of a run, which bounds the memory for their positions."""

LARGE_RECORD_BYTES: Final = 64 * 1024
SMALL_READ_BYTES: Final = 4096
"""Bytes that are read after a record of `LARGE_RECORD_BYTES` or more if data is not wanted."""


class RunCursor:
    """A cursor that returns runs of the records that begin from `start` up to, but not at, `stop`.

    A record must begin at `start`. After `next`, `data` has the bytes of the file from offset `data_start` on. `starts`
    has the positions in `data` where the records of the run begin, and `run_end` is the end of the last one. Without
    `has_data`, large records are not read completely, so `run_end` may be beyond the end of `data`. `has_more` is true
    if the next run begins in `data`. `end` says how far the file is valid; `is_over` is true if it is valid no further.
    """

    def __init__(
        self, reader: FileReader, start: int, stop: int | None, *, has_data: bool, part_bytes: int = PART_BYTES
    ) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._stop = reader.size if stop is None else min(stop, reader.size)
        self._has_data = has_data
        self._offset = start
        self._part = FilePart(reader, start, b"")
        self.end = ReadEnd(start)
        self.is_over = False
        self.data = b""
        self.data_start = start
        self.starts: list[int] = []
        self.run_end = 0
        self.has_more = False

    def next(self, most: int = RUN_RECORDS) -> bool:
        """Read the next run of at most `most` records. Return False if there is none. Raise OSError."""
        reader = self._reader
        last_bytes = self.run_end - self.starts[-1] if self.starts else 0
        needed = 0
        self.starts = []
        while not self.starts and not self.is_over and self._offset < self._stop:
            if not self.has_more:
                size = self._part_bytes if self._has_data or last_bytes < LARGE_RECORD_BYTES else SMALL_READ_BYTES
                self._part = reader.part(self._offset, max(min(size, self._stop - self._offset), needed))
                self.data, self.data_start, self.run_end = self._part.data, self._offset, 0
            stop = min(len(self.data), self._stop - self.data_start)
            needed = self._collect(stop, most)
            self.has_more = self.run_end < stop and len(self.starts) == most
            if self.starts:
                self._offset = self.end.offset = self.data_start + self.run_end
                self.end.records += len(self.starts)
            elif needed > reader.size - self._offset:
                self._end_with(TORN_RECORD, is_unfinished=True)
        return bool(self.starts)

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Return the positions in `data` where each record of the run begins and ends."""
        return pairwise([*self.starts, self.run_end])

    def _collect(self, stop: int, most: int) -> int:
        """Collect at most `most` records from `run_end` to before `stop`: set `starts` and `run_end`.

        Return the least size of the next record if its bytes in `data` are too few, otherwise 0.
        """
        raise NotImplementedError

    def _end_with(self, problem: str, *, is_unfinished: bool = False) -> None:
        """End before the next record because of `problem`."""
        self.is_over = True
        self.end.problem, self.end.is_unfinished, self.end.is_closed = problem, is_unfinished, False
