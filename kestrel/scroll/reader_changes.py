"""The changes of a reader that are not yet in its file."""

from __future__ import annotations

from kestrel.scroll.reader_file import encode_changes
from kestrel.scroll.records import Held, encode_held


class ReaderChanges:
    """The pending changes of one reader, in the order of the calls.

    If a crash cuts off their records, the file still has a state that the reader had at some time. `head` is the head
    in the file after all changes that `take` has returned.
    """

    __slots__ = ("_done", "_errors", "_head", "_records", "head")

    def __init__(self, head: int) -> None:
        self.head = head
        self._records: list[bytes] = []
        # The change that is being collected: at most one of the three is set.
        self._head = head
        self._done: list[tuple[int, int]] = []
        self._errors: dict[int, int] = {}

    def add_done(self, first: int, last: int, head: int) -> None:
        """Add that the ids from `first` to `last` are done. `head` is the new head."""
        if self._errors or (self._done and last <= head):
            self._encode_current()
        if last > head:
            if self._head != self.head:
                self._encode_current()
            self._done.append((first, last))
        else:
            self._head = head

    def set_errors(self, item_id: int, errors: int) -> None:
        """Add the new error count of an item."""
        if self._done or self._head != self.head:
            self._encode_current()
        self._errors[item_id] = errors

    def set_held(self, held: Held | None) -> None:
        """Add a new claim of a client that reads by ids, or the end of the claim if `held` is None."""
        self._encode_current()
        self._records.append(encode_held(held))

    def head_written(self, head: int) -> None:
        """Note that another write has set the head in the file to `head`."""
        if head > self.head:
            self._head = head if self._head == self.head else self._head
            self.head = head

    def are_pending(self, head: int) -> bool:
        """Return whether there are changes to write. `head` is the current head."""
        return head != self.head or self._head != self.head or bool(self._records or self._done or self._errors)

    def take(self, head: int) -> bytes:
        """Return and remove the records of all changes; empty if there are none. `head` is the current head."""
        self._encode_current()
        if head != self.head:
            self._head = head
            self._encode_current()
        records, self._records = self._records, []
        return b"".join(records)

    def _encode_current(self) -> None:
        """Encode the change that is being collected."""
        head = None if self._head == self.head else self._head
        self._records.append(encode_changes(head, self._done, self._errors))
        self.head = self._head
        if self._done or self._errors:
            self._done, self._errors = [], {}
