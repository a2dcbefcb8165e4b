"""A reader file: how far one reader is."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Final

from kestrel.disk.reader import FileReader
from kestrel.disk.repair import End
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.records import (
    DELETED_RECORD,
    READER_MAGIC,
    Command,
    Held,
    Record,
    encode_done_ranges,
    encode_errors,
    encode_held,
    encode_read_done,
    encode_read_head,
)
from kestrel.scroll.scan import RecordScan

LONGEST_RUN: Final = 64
"""More ids than this in a row are written as a range, which libkestrel does not know: it may give them again."""


class ReaderState:
    """What a reader file says: what is done, and how many errors the items have that came back.

    An id in `errors` overrides the error count of the item's PUT. A reader that `is_deleted` is none. What somebody
    reads by ids is `held`, done or not.
    """

    __slots__ = ("done", "errors", "held", "is_deleted")

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


def encode_state(state: ReaderState) -> bytes:
    """A whole file that says that. Without long runs and errors it is what libkestrel writes."""
    done = state.done
    ids, runs = _split(done.ranges())
    return b"".join(
        (
            READER_MAGIC,
            encode_read_head(done.head),
            encode_read_done(ids),
            encode_done_ranges(runs),
            encode_errors({item_id: count for item_id, count in state.errors.items() if item_id not in done}),
            encode_held(state.held) if state.held is not None else b"",
            DELETED_RECORD if state.is_deleted else b"",
        )
    )


def encode_changes(head: int | None, done: Iterable[tuple[int, int]], errors: Mapping[int, int]) -> bytes:
    """The records of one commit, to be appended: each of them, from the first on, is true without the next.

    `head` is where the head is now, or None if it is where it was; `done` are ranges, each from its first id to its
    last, that were done beyond it; `errors` are the counts that have changed.
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
    """The ids of the short ranges, and the long ones."""
    ids, runs = array("q"), []
    for first, last in ranges:
        if last - first < LONGEST_RUN:
            ids.extend(range(first, last + 1))
        else:
            runs.append((first, last))
    return ids, runs


def read_state(reader: FileReader) -> tuple[ReaderState, End]:
    """What a reader file says, and where it ended: behind the last record that the state is made of. Raises OSError.

    A file that is damaged at its first byte says nothing: head 0.
    """
    scan = RecordScan(reader, READER_MAGIC)
    said = ReaderSaid()
    for _, record in scan:
        said.add(record)
    return said.state(), scan.end


class ReaderSaid:
    """What the records of a reader file say, one after the other. The last READ_HEAD counts, and all that is done.

    The ids that are done are collected apart from the head: a later READ_HEAD may be lower than an earlier one.
    """

    def __init__(self) -> None:
        self.head = 0
        self.done = DoneSet()
        self.errors: dict[int, int] = {}
        self.is_deleted = False
        self.held: Held | None = None

    def add(self, record: Record) -> None:
        """One more."""
        if record.command == Command.READ_HEAD:
            self.head = record.item_id
        elif record.command == Command.READ_DONE:
            for item_id in record.ids:
                self.done.add(item_id)
        elif record.command == Command.DONE_RANGES:
            for first, last in record.ranges:
                self.done.add(first, last)
        elif record.command == Command.ERRORS:
            self.errors.update(record.errors)
        elif record.command == Command.DELETED:
            self.is_deleted = True
        elif record.command == Command.HELD:
            self.held = record.held

    def state(self) -> ReaderState:
        """What they come to."""
        beyond = DoneSet(max(0, self.head))
        beyond.add(1, self.done.head)
        for first, last in self.done.ranges():
            beyond.add(first, last)
        errors = {item_id: count for item_id, count in self.errors.items() if item_id not in beyond}
        return ReaderState(beyond, errors, self.is_deleted, self.held)
