"""Reader files, which have the position of one reader: encoding, decoding, and the changes to be written."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping
from typing import Final

from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.records import (
    DELETED_RECORD,
    READER_MAGIC,
    Held,
    RecordCommand,
    ScrollFileRecord,
    encode_checksum,
    encode_done_ranges,
    encode_errors,
    encode_held,
    encode_read_done,
    encode_read_head,
)

MAX_RUN_IDS: Final = 64
"""Limit of consecutive ids that are written one by one.

More are written as a range. libkestrel ignores ranges, so it may deliver these items again.
"""


class ReaderState:
    """The content of a reader file: the ids that are done, and the error counts of items that were put back.

    An id in `errors` overrides the error count of the item's PUT. `is_deleted` is True if the queue is deleted. `held`
    is the claim of a client that reads by ids, or None. `is_checked` is True if checksums cover the whole file; files
    of libkestrel have none.
    """

    __slots__ = ("done", "errors", "held", "is_checked", "is_deleted")

    def __init__(
        self,
        done: DoneSet | None = None,
        errors: dict[int, int] | None = None,
        is_deleted: bool = False,
        held: Held | None = None,
    ) -> None:
        self.done = DoneSet() if done is None else done
        self.errors = {} if errors is None else errors
        self.is_deleted = is_deleted
        self.held = held
        self.is_checked = True

    @property
    def last_id(self) -> int:
        """The highest id in `done` and `held`."""
        return max(self.done.last, self.held.head if self.held is not None else 0)


def sealed(records: bytes) -> bytes:
    """Return `records` followed by a CHECKSUM that covers them. Each append to a reader file must be sealed."""
    return records + encode_checksum(zlib.crc32(records))


_BEGIN: Final = sealed(READER_MAGIC)
"""The start of each reader file that this server writes. It means that all records of the file are sealed."""

DELETED_STATE: Final = _BEGIN + sealed(DELETED_RECORD)
"""The complete reader file of a deleted queue."""


def encode_state(state: ReaderState) -> bytes:
    """Return a complete reader file. Apart from its CHECKSUMs and our own records, it is what libkestrel writes."""
    done = state.done
    ids, runs = _split(done.ranges())
    records = b"".join(
        (
            encode_read_head(done.head),
            encode_read_done(ids),
            encode_done_ranges(runs),
            encode_errors({item_id: count for item_id, count in state.errors.items() if item_id not in done}),
            encode_held(state.held) if state.held is not None else b"",
            DELETED_RECORD if state.is_deleted else b"",
        )
    )
    return _BEGIN + sealed(records)


def encode_changes(head: int | None, done: Iterable[tuple[int, int]], errors: Mapping[int, int]) -> bytes:
    """Return the records of one commit, not sealed. They are also valid if the last ones are cut off.

    `head` is the new head, or None if it has not moved. `done` has ranges after the head, each as its first and last
    id. `errors` has the error counts that have changed, by id.
    """
    ids, runs = _split(sorted(done))
    return b"".join(
        (
            b"" if head is None else encode_read_head(head),
            encode_read_done(ids) if ids else b"",
            encode_done_ranges(runs),
            encode_errors(errors),
        )
    )


def _split(ranges: Iterable[tuple[int, int]]) -> tuple[array[int], list[tuple[int, int]]]:
    """Return the ids of the short ranges, and the long ranges."""
    ids, runs = array("q"), []
    for first, last in ranges:
        if last - first < MAX_RUN_IDS:
            ids.extend(range(first, last + 1))
        else:
            runs.append((first, last))
    return ids, runs


def read_state(reader: FileReader) -> tuple[ReaderState, ReadEnd]:
    """Return the state of a reader from the valid records of its file, and where they end. Raise OSError.

    In a file with checksums, only records that a matching checksum covers are valid. A file that is damaged at its
    first byte gives an empty state with the head 0.
    """
    end, is_checked = _find_valid_end(reader)
    builder = ReaderStateBuilder()
    for _, record in ScrollCursor(reader, READER_MAGIC, 0, end.offset).records():
        builder.add(record)
    state = builder.state()
    state.is_checked = is_checked
    return state, end


def refuse_impossible_ids(state: ReaderState, end: ReadEnd, last_id: int) -> tuple[ReaderState, ReadEnd]:
    """Return `state` and `end`, or an empty state and damage if the file has no checksums and an id above `last_id`.

    `last_id` is the id of the last item in the writer files, or 0 if there are none; then any id is possible.
    """
    if end.problem is None and not state.is_checked and 0 < last_id < state.last_id:
        return ReaderState(), ReadEnd(0, f"no checksum, and its id {state.last_id} is beyond the last item, {last_id}")
    return state, end


def _find_valid_end(reader: FileReader) -> tuple[ReadEnd, bool]:
    """Return where the valid records end, and whether checksums cover them."""
    cursor = ScrollCursor(reader, READER_MAGIC)
    checked_size, checksum = 0, zlib.crc32(READER_MAGIC)
    head, problem = 0, None
    for offset, record in cursor.records():
        if record.command == RecordCommand.CHECKSUM:
            if record.checksum != checksum:
                return ReadEnd(checked_size, "the checksum does not match"), checked_size > 0
            checked_size, checksum = offset + record.size, 0
            continue
        checksum = zlib.crc32(record.raw, checksum)
        if not checked_size:
            problem = problem or _unchecked_problem(offset, record, head)
            head = record.item_id if record.command == RecordCommand.READ_HEAD else head
    end = cursor.end
    if end.problem is None and end.offset < reader.size:
        end.problem, end.is_unfinished = "zeros where a record should begin", True
    if end.problem is None and end.offset == len(_BEGIN if checked_size else READER_MAGIC):
        end.problem, end.is_unfinished = "it ends before its first READ_HEAD", True
    if not checked_size:
        return (end if problem is None else ReadEnd(0, problem)), False
    if end.problem is None and end.offset > checked_size:
        end.problem, end.is_unfinished = "records without their checksum", True
    end.offset = checked_size
    return end, True


def _unchecked_problem(offset: int, record: ScrollFileRecord, head: int) -> str | None:
    """Return why libkestrel cannot have written a record, or None if it can.

    Files without checksums come from libkestrel. In such a file, a record that would lose items counts as damage.
    """
    if offset == len(READER_MAGIC) and record.command != RecordCommand.READ_HEAD:
        return "it does not begin with a READ_HEAD or a checksum"
    if record.command == RecordCommand.DELETED:
        return "a DELETED without a checksum"
    if record.command == RecordCommand.READ_HEAD and record.item_id < head:
        return "the head moves backwards"
    return None


class ReaderStateBuilder:
    """A builder of a reader's state from the records of its file. The last READ_HEAD and all done ids are valid.

    Done ids are collected separately from the head, because a later READ_HEAD may be lower than an earlier one.
    """

    def __init__(self) -> None:
        self.head = 0
        self.done = DoneSet()
        self.errors: dict[int, int] = {}
        self.is_deleted = False
        self.held: Held | None = None

    def add(self, record: ScrollFileRecord) -> None:
        """Add the next record."""
        if record.command == RecordCommand.READ_HEAD:
            self.head = record.item_id
        elif record.command == RecordCommand.READ_DONE:
            for item_id in record.ids:
                self.done.add(item_id)
        elif record.command == RecordCommand.DONE_RANGES:
            for first, last in record.ranges:
                self.done.add(first, last)
        elif record.command == RecordCommand.ERRORS:
            self.errors.update(record.errors)
        elif record.command == RecordCommand.DELETED:
            self.is_deleted = True
        elif record.command == RecordCommand.HELD:
            self.held = record.held

    def state(self) -> ReaderState:
        """Return the state after all added records."""
        beyond = DoneSet(max(0, self.head))
        beyond.add(1, self.done.head)
        for first, last in self.done.ranges():
            beyond.add(first, last)
        errors = {item_id: count for item_id, count in self.errors.items() if item_id not in beyond}
        return ReaderState(beyond, errors, self.is_deleted, self.held)


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
