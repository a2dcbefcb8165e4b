"""The files of one queue as one run of bytes: its history.

An *offset* of a history counts over all files of the queue in replay order, what is recorded and not yet written
included. It stays true when the current file is rotated; when files are replaced by one that is shorter, the new
file ends where they ended, so that offsets behind it stay true as well.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from kestrel.journal.fileset import current_name, rotated_name


class Span(NamedTuple):
    """A rotated file and its place in the history."""

    number: int
    file_name: bytes
    start: int
    end: int


class History:
    """Which file holds which part of a queue's history."""

    def __init__(self, queue: bytes) -> None:
        self._queue = queue
        self.rotated: list[Span] = []
        """In replay order."""
        self.rotated_bytes = 0
        """What they take."""
        self.current_start = 0
        """Where the current file begins."""

    def rotate(self, number: int, size: int, file_name: bytes | None = None) -> None:
        """The current file has become the rotated one of that number; a new one begins behind it."""
        file_name = file_name or rotated_name(self._queue, number)
        self.rotated.append(Span(number, file_name, self.current_start, self.current_start + size))
        self.current_start += size
        self.rotated_bytes += size

    def replace_up_to(self, number: int, size: int) -> Span:
        """One file of that size has taken the place of every rotated file numbered up to its own."""
        replaced = self.rotated_up_to(number)
        self.rotated_bytes += size - sum(span.end - span.start for span in replaced)
        end = replaced[-1].end
        span = Span(number, rotated_name(self._queue, number), end - size, end)
        self.rotated[: len(replaced)] = [span] if size else []
        return span

    def rotated_up_to(self, number: int) -> list[Span]:
        """The rotated files that a file of that number would replace."""
        return [span for span in self.rotated if span.number <= number]

    def file_at(self, offset: int) -> tuple[bytes, int, int | None]:
        """The name of the file that holds the record at that offset, where it begins and where it ends.

        The end of the current file is None: it grows.
        """
        index = bisect_right(self.rotated, offset, key=attrgetter("end"))
        if index == len(self.rotated):
            return current_name(self._queue), self.current_start, None
        span = self.rotated[index]
        return span.file_name, span.start, span.end
