"""Dump of a scroll."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kestrel.scroll.name_encoding import OWN_READER, QueueLocation, decode_part, queue_name_of
from kestrel.scroll.records import Held, RecordCommand, Targets
from kestrel.tools.files.scroll_contents import ItemTally, QueueRecord, ScrollContents, ScrollQueueContents
from kestrel.tools.files.scrolls import ScrollSnapshot
from kestrel.tools.files.snapshot_files import FileReadResult
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
from kestrel.tools.qdump.journal_dump import ShownRecord

_MOST_SHOWN: Final = 20
"""Number of entries of a record that the text format lists. JSON has all."""


class ScrollDump:
    """A dump of a scroll and its selected queues, with the methods of `JournalDump`."""

    def __init__(self, scroll: ScrollSnapshot, now_ms: int, *, may_show_progress: bool) -> None:
        self._contents = ScrollContents(scroll, now_ms, may_show_progress=may_show_progress)
        self._scroll = scroll.scroll
        self._is_file_alone = scroll.is_file_alone
        self._names = {queue.reader: queue.name for queue in self._scroll.queues}

    @property
    def files(self) -> Sequence[FileReadResult]:
        return self._contents.files

    def records(self) -> Iterator[tuple[FileReadResult, int, ShownRecord]]:
        for read, offset, record in self._contents.records():
            data = None if record.item is None else record.item.data
            fields = partial(self._fields, record), partial(self._fields_json, record)
            yield read, offset, ShownRecord(record.name, record.size, data, *fields)

    def read(self) -> None:
        self._contents.read()

    def added(self) -> Iterator[bytes]:
        return (item.data for item in self._contents.added())

    def queued(self) -> Iterator[bytes]:
        return (item.data for item in self._contents.queued())

    # Records.

    def _fields(self, record: QueueRecord) -> Iterator[str]:
        raw, item = record.record, record.item
        if item is not None:
            yield f"id {item.id}"
            yield count(len(item.data), "byte")
            yield f"added {show_time(item.add_ms)}"
            yield f"expires {show_time(item.expiry_ms)}" if item.expiry_ms else "no expiry"
            if item.errors:
                yield count(item.errors, "error")
            if record.is_ignored:
                yield "ignored: its id is not higher than all before it"
        elif raw.command == RecordCommand.READ_HEAD:
            yield f"all up to id {raw.item_id}"
        elif raw.command in (RecordCommand.READ_DONE, RecordCommand.DONE_RANGES):
            ranges = [f"id {first}" if first == last else f"ids {first} to {last}" for first, last in _ranges(record)]
            yield from _some(ranges)
        elif raw.command == RecordCommand.ERRORS:
            yield from _some([f"id {item_id} has {errors}" for item_id, errors in raw.errors.items()])
        elif raw.command == RecordCommand.TARGETS:
            yield self._targets_shown(raw.targets)
        elif raw.command == RecordCommand.HELD:
            yield _held_shown(raw.held)
        elif raw.command == RecordCommand.CHECKSUM:
            crc = _crc_spelled(raw.checksum)
            yield "no CRC-32: it matches nothing" if crc is None else f"CRC-32 {crc} of the records before it"
        elif raw.command != RecordCommand.DELETED:
            yield f"command {raw.command}"
            yield count(raw.size, "byte")

    def _targets_shown(self, targets: Targets | None) -> str:
        if targets is None:
            return "no list of readers: it says nothing"
        readers = " and ".join(self._reader_shown(reader) for reader in sorted(targets.readers)) or "nobody"
        return f"the next item is for {f'all but {readers}' if targets.are_left_out else f'{readers} alone'}"

    def _reader_shown(self, reader: bytes) -> str:
        name = self._reader_name(reader)
        return show_path(reader) if name is None else show_queue(name)

    def _reader_name(self, reader: bytes) -> bytes | None:
        """Return the name of the queue that a TARGETS record refers to, which may have been deleted."""
        if reader in self._names or self._scroll.name is None:
            return self._names.get(reader)
        if reader == OWN_READER:
            return self._scroll.name
        child = decode_part(reader)
        return None if child is None else queue_name_of(QueueLocation(self._scroll.name, child))

    def _fields_json(self, record: QueueRecord) -> dict[str, Any]:
        raw, item = record.record, record.item
        if item is not None:
            times = {"add_ms": item.add_ms, "expiry_ms": item.expiry_ms or None}
            ignored = {"is_ignored": True} if record.is_ignored else {}
            return {"id": item.id, "errors": item.errors, **ignored, "data_bytes": len(item.data), **times}
        if raw.command == RecordCommand.READ_HEAD:
            return {"head": raw.item_id}
        if raw.command in (RecordCommand.READ_DONE, RecordCommand.DONE_RANGES):
            return {"done": list(_ranges(record))}
        if raw.command == RecordCommand.ERRORS:
            return {"errors": list(raw.errors.items())}
        if raw.command == RecordCommand.TARGETS and raw.targets is not None:
            readers = [self._reader_shown(reader) for reader in sorted(raw.targets.readers)]
            return {"all_but" if raw.targets.are_left_out else "only": readers}
        if raw.command == RecordCommand.HELD:
            return {} if raw.held is None else {"reader": show_path(raw.held.by), "released": raw.held.head}
        if raw.command == RecordCommand.CHECKSUM:
            return {"crc32": _crc_spelled(raw.checksum)}
        return {} if raw.command == RecordCommand.DELETED else {"command": raw.command}

    def place_json(self, file: FileReadResult) -> dict[str, Any]:
        place: dict[str, Any] = {"scroll": _spelled(self._scroll.name)}
        for read in self._contents.queues:
            if read.file is file:
                place["queue"] = _spelled(read.queue.name)
        return {**place, "file": show_path(file.file_name)}

    # The summary.

    def summary_lines(self) -> Iterator[str]:
        contents = self._contents
        if contents.writers or not self._is_file_alone:
            first, *rest = file_lines(self._scroll.shown, contents.writers)
            yield f"{first}, next id {contents.next_id}"
            yield from rest
            if not self._scroll.queues:
                yield items_line("in it", contents.items)
                yield from age_lines(contents.items)
            yield from damage_lines(contents.writers)
        for read in contents.queues:
            yield from self._queue_lines(read)

    def _queue_lines(self, read: ScrollQueueContents) -> Iterator[str]:
        files = [] if read.file is None else [read.file]
        yield from file_lines(read.queue.shown, files)
        if read.queue.name is None and not self._is_file_alone:
            yield f"  its name is not known, so no server serves it: {read.queue.why_unknown}"
        if read.state.is_deleted:
            yield "  it is deleted: a server erases what there still is of it"
        else:
            if not self._is_file_alone:
                yield items_line("left", read.left)
                yield from age_lines(read.left)
            yield f"  done: {_done_shown(read)}"
            if read.state.errors:
                yield f"  error counts: {len(read.state.errors)}"
        yield from damage_lines(files)

    def summary_json(self) -> Mapping[str, list[dict[str, Any]]]:
        contents, name = self._contents, _spelled(self._scroll.name)
        queues = [self._queue_json(read, name) for read in contents.queues]
        if self._is_file_alone and queues:
            return {"summary": queues}
        scroll = {
            "scroll": name,
            **files_json(contents.writers),
            "next_id": contents.next_id,
            "damage": damage_json(contents.writers),
        }
        if not self._scroll.queues:
            scroll |= _items_json(contents.items)
        return {"summary": queues, "scrolls": [scroll]}

    def _queue_json(self, read: ScrollQueueContents, scroll: str | None) -> dict[str, Any]:
        files = [] if read.file is None else [read.file]
        ranges = read.state.done.ranges()
        return {
            "queue": _spelled(read.queue.name),
            "scroll": scroll,
            **files_json(files),
            **({} if self._is_file_alone else _items_json(read.left)),
            "head": read.state.done.head,
            "done_beyond_head": _ids_in(ranges),
            "done_ranges": len(ranges),
            "error_counts": len(read.state.errors),
            "is_deleted": read.state.is_deleted,
            "damage": damage_json(files),
        }


def _items_json(tally: ItemTally) -> dict[str, Any]:
    return {"items": tally.items, "data_bytes": tally.data_bytes, **age_json(tally)}


def _ranges(record: QueueRecord) -> Iterator[tuple[int, int]]:
    """Yield the done ids of a record as ranges of consecutive ids."""
    if record.record.command == RecordCommand.DONE_RANGES:
        yield from record.record.ranges
        return
    first: int | None = None
    last = 0
    for item_id in record.record.ids:
        if first is None or item_id != last + 1:
            if first is not None:
                yield first, last
            first = item_id
        last = item_id
    if first is not None:
        yield first, last


def _some(shown: list[str]) -> list[str]:
    more = len(shown) - _MOST_SHOWN
    return [*shown[:_MOST_SHOWN], f"and {more} more"] if more > 0 else shown or ["none"]


def _spelled(name: bytes | None) -> str | None:
    return None if name is None else spell_queue(name)


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


def _held_shown(held: Held | None) -> str:
    if held is None:
        return "no reader reads by ids"
    return f"{show_path(held.by)} reads by ids, and has released all up to id {held.head}"


def _crc_spelled(checksum: int | None) -> str | None:
    return None if checksum is None else f"{checksum:08x}"


def _ids_in(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)
