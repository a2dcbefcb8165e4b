"""Dump of a journal in Kestrel's format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import JournalFileRecord
from kestrel.tools.files.journal_contents import JournalContents
from kestrel.tools.files.scroll_contents import ItemTally
from kestrel.tools.files.snapshot_files import FileReadResult, JournalSnapshot
from kestrel.tools.files.summary import (
    age_json,
    age_lines,
    damage_json,
    damage_lines,
    file_lines,
    files_json,
    items_line,
)
from kestrel.tools.formatting import count, show_path, show_queue, show_time, spell_queue

_ADDING: Final = frozenset({Opcode.ADD, Opcode.ADDX, Opcode.ADD_XID, Opcode.CONTINUE})


class ShownRecord(NamedTuple):
    """A record of a journal or a scroll."""

    name: str
    """Name of the record in the format."""
    size: int
    """Size of the record in the file, in bytes."""
    data: bytes | None
    """Data of the item that the record adds, or None if it adds none."""
    fields: Callable[[], Iterable[str]]
    """Returns the fields of the record as text."""
    fields_json: Callable[[], dict[str, Any]]
    """Returns the fields of the record as a JSON object."""


class JournalDump:
    """A dump of the journal of one queue, to be read once. All methods may raise OSError.

    Read it in one of three ways: `records` or `read` and then the summary, or `added`, or `queued`.
    """

    def __init__(self, journal: JournalSnapshot, now_ms: int, *, may_show_progress: bool) -> None:
        self._queue = journal.queue
        self._contents = JournalContents(journal, now_ms, may_show_progress=may_show_progress)
        self._left = ItemTally(now_ms)
        self._open_reads = 0

    @property
    def files(self) -> Sequence[FileReadResult]:
        """Files that have been read."""
        return self._contents.files

    def records(self) -> Iterator[tuple[FileReadResult, int, ShownRecord]]:
        """Yield every record with its file and offset."""
        for read, offset, record in self._contents.records():
            data = record.data if adds(record) else None
            fields = partial(_fields, record), partial(_fields_json, record)
            yield read, offset, ShownRecord(record.name, record.size, data, *fields)
        self._count_items()

    def read(self) -> None:
        """Read all records, for the summary."""
        for _ in self._contents.records():
            pass
        self._count_items()

    def _count_items(self) -> None:
        self._open_reads = self._contents.open_reads
        for item in self._contents.items():
            self._left.add(len(item.data), item.add_ms, item.expiry_ms)

    def place_json(self, file: FileReadResult) -> dict[str, Any]:
        """Return the name of a file, and its queue, as a JSON object."""
        return {"queue": spell_queue(self._queue), "file": show_path(file.file_name)}

    def summary_lines(self) -> Iterator[str]:
        """Yield the summary as text lines, after all records have been read."""
        yield from file_lines(f"queue {show_queue(self._queue)}", self.files)
        yield items_line("left", self._left)
        if self._open_reads:
            yield f"  of these, open reads: {self._open_reads}"
        yield from age_lines(self._left)
        yield from damage_lines(self.files)

    def summary_json(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return the summary as lists of JSON objects by subject, after all records have been read."""
        queue = {
            "queue": spell_queue(self._queue),
            **files_json(self.files),
            "items": self._left.items,
            "data_bytes": self._left.data_bytes,
            "open_reads": self._open_reads,
            **age_json(self._left),
            "damage": damage_json(self.files),
        }
        return {"summary": [queue]}

    def added(self) -> Iterator[bytes]:
        """Yield the data of all added items that the files still hold."""
        for _, _, record in self._contents.records(apply_records=False):
            if adds(record):
                yield record.data

    def queued(self) -> Iterator[bytes]:
        """Yield the data of the items that are in the queue."""
        self._contents.replay()
        for item in self._contents.items():
            yield item.data


def _fields(record: JournalFileRecord) -> Iterator[str]:
    if _has_xid(record):
        yield f"xid {record.xid}"
    if record.opcode is Opcode.UNREMOVE:
        yield "one error more" if record.errors is None else count(record.errors, "error")
    if record.restates is not None:
        yield f"restates {count(record.restates, 'open read')}"
    if adds(record):
        yield count(len(record.data), "byte")
        if record.add_ms is not None:
            yield f"added {show_time(record.add_ms)}"
        yield f"expires {show_time(record.expiry_ms)}" if record.expiry_ms else "no expiry"


def _fields_json(record: JournalFileRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if _has_xid(record):
        fields["xid"] = record.xid
    if record.opcode is Opcode.UNREMOVE:
        fields["errors"] = record.errors
    if record.restates is not None:
        fields["restates"] = record.restates
    if adds(record):
        fields |= {"data_bytes": len(record.data), "add_ms": record.add_ms, "expiry_ms": record.expiry_ms or None}
    return fields


def adds(record: JournalFileRecord) -> bool:
    """Return whether a record adds an item."""
    return record.opcode in _ADDING and record.restates is None


def _has_xid(record: JournalFileRecord) -> bool:
    return record.opcode not in (Opcode.ADD, Opcode.ADDX, Opcode.REMOVE, Opcode.REMOVE_TENTATIVE)
