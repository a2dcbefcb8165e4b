"""Dumps of a journal and of a scroll: their records and summaries, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import JournalFileRecord
from kestrel.scroll.name_encoding import OWN_READER, QueueLocation, decode_part, queue_name_of
from kestrel.scroll.records import RecordCommand
from kestrel.tools.files.journal_contents import JournalContents
from kestrel.tools.files.scroll_contents import QueueRecord, ScrollContents, ScrollQueueContents, ScrollSnapshot
from kestrel.tools.files.snapshot_files import (
    FileReadResult,
    ItemTally,
    JournalSnapshot,
    damage_json,
    damage_sentence,
)
from kestrel.tools.formatting import count, ranges_of, show_path, show_queue, show_time, spell_queue
from kestrel.tools.progress import Progress

_WITHOUT_XID: Final = frozenset({Opcode.ADD, Opcode.ADDX, Opcode.REMOVE, Opcode.REMOVE_TENTATIVE})

_MOST_SHOWN: Final = 20
"""Number of entries of a record that the text format lists. JSON has all."""


class ShownRecord(NamedTuple):
    """A record of a journal or a scroll."""

    name: str
    """Name of the record in the format."""
    size: int
    """Size of the record in the file, in bytes."""
    data: bytes | None
    """Data of the item that the record adds, or None if it adds none."""
    fields: Callable[[], tuple[dict[str, Any], list[str]]]
    """Returns the fields of the record as a JSON object, and as texts."""


class JournalDump:
    """A dump of the journal of one queue, to be read once. All methods may raise OSError.

    Read it in one of three ways: `records` and then the summary, or `added`, or `queued`.
    """

    def __init__(self, journal: JournalSnapshot, now_ms: int, progress: Progress) -> None:
        self._queue = journal.queue
        self._contents = JournalContents(journal, now_ms, progress)
        self._left = ItemTally(now_ms)
        self._open_reads = 0
        self.files = self._contents.files
        """Files that have been read."""

    def records(self) -> Iterator[tuple[FileReadResult, int, ShownRecord]]:
        """Yield every record with its file and offset."""
        for read, offset, record in self._contents.records():
            data = record.data if record.adds_item else None
            yield read, offset, ShownRecord(record.name, record.size, data, partial(_journal_fields, record))
        self._open_reads = self._contents.open_reads
        for item in self._contents.items():
            self._left.add(len(item.data), item.add_ms, item.expiry_ms)

    def place_json(self, file: FileReadResult) -> dict[str, Any]:
        """Return the name of a file, and its queue, as a JSON object."""
        return {"queue": spell_queue(self._queue), "file": show_path(file.file_name)}

    def summary_lines(self) -> Iterator[str]:
        """Yield the summary as text lines, after all records have been read."""
        yield from _file_lines(f"queue {show_queue(self._queue)}", self.files)
        yield _items_line("left", self._left)
        if self._open_reads:
            yield f"  of these, open reads: {self._open_reads}"
        yield from _age_lines(self._left)
        yield from _damage_lines(self.files)

    def summary_json(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return the summary as lists of JSON objects by subject, after all records have been read."""
        queue = {
            "queue": spell_queue(self._queue),
            **_files_json(self.files),
            "items": self._left.items,
            "data_bytes": self._left.data_bytes,
            "open_reads": self._open_reads,
            **_age_json(self._left),
            "damage": damage_json(self.files),
        }
        return {"summary": [queue]}

    def added(self) -> Iterator[bytes]:
        """Yield the data of all added items that the files still hold."""
        return (record.data for _, _, record in self._contents.records(apply_records=False) if record.adds_item)

    def queued(self) -> Iterator[bytes]:
        """Yield the data of the items that are in the queue."""
        self._contents.replay()
        for item in self._contents.items():
            yield item.data


def _journal_fields(record: JournalFileRecord) -> tuple[dict[str, Any], list[str]]:
    fields: dict[str, Any] = {}
    shown: list[str] = []
    if record.opcode not in _WITHOUT_XID:
        fields["xid"] = record.xid
        shown.append(f"xid {record.xid}")
    if record.opcode is Opcode.UNREMOVE:
        fields["errors"] = record.errors
        shown.append("one error more" if record.errors is None else count(record.errors, "error"))
    if record.restates is not None:
        fields["restates"] = record.restates
        shown.append(f"restates {count(record.restates, 'open read')}")
    if record.adds_item:
        fields |= {"data_bytes": len(record.data), "add_ms": record.add_ms, "expiry_ms": record.expiry_ms or None}
        shown.append(count(len(record.data), "byte"))
        if record.add_ms is not None:
            shown.append(f"added {show_time(record.add_ms)}")
        shown.append(_expiry_shown(record.expiry_ms))
    return fields, shown


def _expiry_shown(expiry_ms: int) -> str:
    return f"expires {show_time(expiry_ms)}" if expiry_ms else "no expiry"


class ScrollDump:
    """A dump of a scroll and its selected queues, with the methods of `JournalDump`."""

    def __init__(self, scroll: ScrollSnapshot, now_ms: int, progress: Progress) -> None:
        self._contents = ScrollContents(scroll, now_ms, progress)
        self._scroll = scroll.scroll
        self._is_file_alone = scroll.is_file_alone
        self._names = {queue.reader: queue.name for queue in self._scroll.queues}

    @property
    def files(self) -> Sequence[FileReadResult]:
        return self._contents.files

    def records(self) -> Iterator[tuple[FileReadResult, int, ShownRecord]]:
        for read, offset, record in self._contents.records():
            data = None if record.item is None else record.item.data
            yield read, offset, ShownRecord(record.record.name, record.record.size, data, partial(self._fields, record))

    def added(self) -> Iterator[bytes]:
        return (item.data for item in self._contents.added())

    def queued(self) -> Iterator[bytes]:
        return (item.data for item in self._contents.queued())

    # Records.

    def _fields(self, record: QueueRecord) -> tuple[dict[str, Any], list[str]]:
        raw = record.record
        if (item := record.item) is not None:
            ignored = {"is_ignored": True} if record.is_ignored else {}
            times = {"add_ms": item.add_ms, "expiry_ms": item.expiry_ms or None}
            fields = {"id": item.id, "errors": item.errors, **ignored, "data_bytes": len(item.data), **times}
            shown = [f"id {item.id}", count(len(item.data), "byte"), f"added {show_time(item.add_ms)}"]
            shown.append(_expiry_shown(item.expiry_ms))
            if item.errors:
                shown.append(count(item.errors, "error"))
            if record.is_ignored:
                shown.append("ignored: its id is not higher than all before it")
            return fields, shown
        match raw.command:
            case RecordCommand.READ_HEAD:
                return {"head": raw.item_id}, [f"all up to id {raw.item_id}"]
            case RecordCommand.READ_DONE | RecordCommand.DONE_RANGES:
                is_list = raw.command == RecordCommand.DONE_RANGES
                ranges = list(raw.ranges) if is_list else ranges_of(raw.ids)
                return {"done": ranges}, _some([_range_shown(*each) for each in ranges])
            case RecordCommand.ERRORS:
                errors = list(raw.errors.items())
                return {"errors": errors}, _some([f"id {item_id} has {number}" for item_id, number in errors])
            case RecordCommand.TARGETS if (targets := raw.targets) is not None:
                names = [self._reader_shown(reader) for reader in sorted(targets.readers)]
                readers = " and ".join(names) or "nobody"
                whom = f"all but {readers}" if targets.are_left_out else f"{readers} alone"
                return {"all_but" if targets.are_left_out else "only": names}, [f"the next item is for {whom}"]
            case RecordCommand.TARGETS:
                return {"command": raw.command}, ["no list of readers: it says nothing"]
            case RecordCommand.HELD if (held := raw.held) is not None:
                by = show_path(held.by)
                sentence = f"{by} reads by ids, and has released all up to id {held.head}"
                return {"reader": by, "released": held.head}, [sentence]
            case RecordCommand.HELD:
                return {}, ["no reader reads by ids"]
            case RecordCommand.CHECKSUM if (checksum := raw.checksum) is not None:
                return {"crc32": f"{checksum:08x}"}, [f"CRC-32 {checksum:08x} of the records before it"]
            case RecordCommand.CHECKSUM:
                return {"crc32": None}, ["no CRC-32: it matches nothing"]
            case RecordCommand.DELETED:
                return {}, []
        return {"command": raw.command}, [f"command {raw.command}", count(raw.size, "byte")]

    def _reader_shown(self, reader: bytes) -> str:
        """Return the name of the queue that a TARGETS record refers to, which may have been deleted."""
        if reader in self._names or self._scroll.name is None:
            name = self._names.get(reader)
        elif reader == OWN_READER:
            name = self._scroll.name
        else:
            child = decode_part(reader)
            name = None if child is None else queue_name_of(QueueLocation(self._scroll.name, child))
        return show_path(reader) if name is None else show_queue(name)

    def place_json(self, file: FileReadResult) -> dict[str, Any]:
        place: dict[str, Any] = {"scroll": self._scroll.spelled}
        for read in self._contents.queues:
            if read.file is file:
                place["queue"] = read.queue.spelled
        return {**place, "file": show_path(file.file_name)}

    # The summary.

    def summary_lines(self) -> Iterator[str]:
        contents = self._contents
        if contents.writers or not self._is_file_alone:
            first, *rest = _file_lines(self._scroll.shown, contents.writers)
            yield f"{first}, next id {contents.next_id}"
            yield from rest
            if not self._scroll.queues:
                yield _items_line("in it", contents.items)
                yield from _age_lines(contents.items)
            yield from _damage_lines(contents.writers)
        for read in contents.queues:
            yield from self._queue_lines(read)

    def _queue_lines(self, read: ScrollQueueContents) -> Iterator[str]:
        files = [] if read.file is None else [read.file]
        yield from _file_lines(read.queue.shown, files)
        if read.queue.name is None and not self._is_file_alone:
            yield f"  its name is not known, so no server serves it: {read.queue.why_unknown}"
        if read.state.is_deleted:
            yield "  it is deleted: a server erases what there still is of it"
        else:
            if not self._is_file_alone:
                yield _items_line("left", read.left)
                yield from _age_lines(read.left)
            yield f"  done: {_done_shown(read)}"
            if read.state.errors:
                yield f"  error counts: {len(read.state.errors)}"
        yield from _damage_lines(files)

    def summary_json(self) -> Mapping[str, list[dict[str, Any]]]:
        contents = self._contents
        queues = [self._queue_json(read) for read in contents.queues]
        if self._is_file_alone and queues:
            return {"summary": queues}
        scroll = {
            "scroll": self._scroll.spelled,
            **_files_json(contents.writers),
            "next_id": contents.next_id,
            "damage": damage_json(contents.writers),
        }
        if not self._scroll.queues:
            scroll |= _items_json(contents.items)
        return {"summary": queues, "scrolls": [scroll]}

    def _queue_json(self, read: ScrollQueueContents) -> dict[str, Any]:
        files = [] if read.file is None else [read.file]
        ranges = read.state.done.ranges()
        return {
            "queue": read.queue.spelled,
            "scroll": self._scroll.spelled,
            **_files_json(files),
            **({} if self._is_file_alone else _items_json(read.left)),
            "head": read.state.done.head,
            "done_beyond_head": _ids_in(ranges),
            "done_ranges": len(ranges),
            "error_counts": len(read.state.errors),
            "is_deleted": read.state.is_deleted,
            "damage": damage_json(files),
        }


def _range_shown(first: int, last: int) -> str:
    return f"id {first}" if first == last else f"ids {first} to {last}"


def _some(shown: list[str]) -> list[str]:
    more = len(shown) - _MOST_SHOWN
    return [*shown[:_MOST_SHOWN], f"and {more} more"] if more > 0 else shown or ["none"]


def _done_shown(read: ScrollQueueContents) -> str:
    done = read.state.done
    ranges = done.ranges()
    head = f"all up to id {done.head}" if done.head else "nothing"
    if read.file is None:
        return f"{head}: there is no reader file"
    if not ranges:
        return head
    beyond = f"{count(_ids_in(ranges), 'id')} in {count(len(ranges), 'range')}"
    return f"{head}, and beyond it {beyond}" if done.head else beyond


def _ids_in(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


# Parts of summaries.


def _file_lines(what: str, files: Sequence[FileReadResult]) -> Iterator[str]:
    """Yield lines about files and their records, under a heading that begins with `what`."""
    size = sum(read.size for read in files)
    yield f"{what}: {count(len(files), 'file')}, {count(size, 'byte')}"
    for read in files:
        yield f"  {show_path(read.file_name)}: {count(read.size, 'byte')}, {_record_counts(read.records)}"
    if len(files) > 1:
        yield f"  all files: {_record_counts(_all_records(files))}"


def _record_counts(records: Counter[str]) -> str:
    if not records:
        return "no records"
    kinds = ", ".join(f"{name} {number}" for name, number in sorted(records.items()))
    return f"{count(records.total(), 'record')}: {kinds}"


def _all_records(files: Sequence[FileReadResult]) -> Counter[str]:
    return sum((read.records for read in files), Counter())


def _files_json(files: Sequence[FileReadResult]) -> dict[str, Any]:
    return {
        "bytes": sum(read.size for read in files),
        "records": dict(_all_records(files)),
        "files": [
            {"file": show_path(read.file_name), "bytes": read.size, "records": dict(read.records)} for read in files
        ],
    }


def _items_line(what: str, tally: ItemTally) -> str:
    return f"  {what}: {count(tally.items, 'item')}, {count(tally.data_bytes, 'byte')} of data"


def _items_json(tally: ItemTally) -> dict[str, Any]:
    return {"items": tally.items, "data_bytes": tally.data_bytes, **_age_json(tally)}


def _age_lines(tally: ItemTally) -> Iterator[str]:
    if tally.oldest_ms is not None and tally.newest_ms is not None:
        yield f"  of these, expired by now: {tally.expired}"
        yield f"  oldest: added {show_time(tally.oldest_ms)}"
        yield f"  newest: added {show_time(tally.newest_ms)}"


def _age_json(tally: ItemTally) -> dict[str, Any]:
    return {"expired": tally.expired, "oldest_add_ms": tally.oldest_ms, "newest_add_ms": tally.newest_ms}


def _damage_lines(files: Sequence[FileReadResult]) -> Iterator[str]:
    return (f"  {damage_sentence(read)}" for read in files if read.end.problem is not None)
