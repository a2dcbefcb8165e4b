"""The history of a queue: its journal files as one sequence of bytes.

An *offset* of a history counts the bytes of all files of the queue in replay order, including records that are not
yet written. Offsets remain valid when the current file is rotated. When a shorter file replaces older ones, it ends at
the same offset as they did, so that later offsets remain valid too.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from kestrel.journal.fileset import current_name, rotated_name


class Span(NamedTuple):
    """A rotated file and its start and end offsets in the history."""

    number: int
    file_name: bytes
    start: int
    end: int


class History:
    """The mapping of offsets in a queue's history to its files."""

    def __init__(self, queue: bytes) -> None:
        self._queue = queue
        self.rotated: list[Span] = []
        """Rotated files in replay order."""
        self.rotated_bytes = 0
        """Total size of the rotated files."""
        self.current_start = 0
        """Offset at which the current file begins."""

    def rotate(self, number: int, size: int, file_name: bytes | None = None) -> None:
        """Record that the current file of `size` bytes was rotated to `number`, and that a new one follows it."""
        file_name = file_name or rotated_name(self._queue, number)
        self.rotated.append(Span(number, file_name, self.current_start, self.current_start + size))
        self.current_start += size
        self.rotated_bytes += size

    def replace_up_to(self, number: int, size: int) -> Span:
        """Record that one file of `size` bytes has replaced all rotated files up to `number`, and return its span."""
        replaced = self.rotated_up_to(number)
        self.rotated_bytes += size - sum(span.end - span.start for span in replaced)
        end = replaced[-1].end
        span = Span(number, rotated_name(self._queue, number), end - size, end)
        self.rotated[: len(replaced)] = [span] if size else []
        return span

    def rotated_up_to(self, number: int) -> list[Span]:
        """Return the rotated files with a number up to `number`."""
        return [span for span in self.rotated if span.number <= number]

    def file_at(self, offset: int) -> tuple[bytes, int, int | None]:
        """Return the name, the start and the end of the file that contains `offset`.

        The end of the current file is None, because it grows.
        """
        index = bisect_right(self.rotated, offset, key=attrgetter("end"))
        if index == len(self.rotated):
            return current_name(self._queue), self.current_start, None
        span = self.rotated[index]
        return span.file_name, span.start, span.end
