"""What was done with a reader and is not in its file yet."""

from __future__ import annotations

from kestrel.scroll.reader_file import encode_changes
from kestrel.scroll.records import Held, encode_held


class ReaderChanges:
    """Changes of one reader, in call order: wherever a crash cuts their records, what is left is how it was once.

    `head` is where the file says that the head is, or will when the changes that were taken are written.
    """

    __slots__ = ("_done", "_errors", "_head", "_records", "head")

    def __init__(self, head: int) -> None:
        self.head = head
        self._records: list[bytes] = []
        # What comes next, of which at most one is something.
        self._head = head
        self._done: list[tuple[int, int]] = []
        self._errors: dict[int, int] = {}

    def add_done(self, first: int, last: int, head: int) -> None:
        """These ids are done, and that is where the head is now."""
        if self._errors or (self._done and last <= head):
            self._end()
        if last > head:
            if self._head != self.head:
                self._end()
            self._done.append((first, last))
        else:
            self._head = head

    def set_errors(self, item_id: int, errors: int) -> None:
        """That item has so many errors now."""
        if self._done or self._head != self.head:
            self._end()
        self._errors[item_id] = errors

    def set_held(self, held: Held | None) -> None:
        """That is what somebody reads by ids now."""
        self._end()
        self._records.append(encode_held(held))

    def head_written(self, head: int) -> None:
        """The file says now that the head is there, which it has reached since, or before."""
        if head > self.head:
            self._head = head if self._head == self.head else self._head
            self.head = head

    def are_pending(self, head: int) -> bool:
        """Whether there is something to write, the head being there."""
        return head != self.head or self._head != self.head or bool(self._records or self._done or self._errors)

    def take(self, head: int) -> bytes:
        """The records of all changes, the head being there now; nothing when there are none."""
        self._end()
        if head != self.head:
            self._head = head
            self._end()
        records, self._records = self._records, []
        return b"".join(records)

    def _end(self) -> None:
        """What comes next becomes a record."""
        head = None if self._head == self.head else self._head
        self._records.append(encode_changes(head, self._done, self._errors))
        self.head = self._head
        if self._done or self._errors:
            self._done, self._errors = [], {}
