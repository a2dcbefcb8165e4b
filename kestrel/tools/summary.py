"""What is said of one queue at the end: its files, what is left in it, and damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kestrel.item import Item
from kestrel.tools.contents import FileRead
from kestrel.tools.shown import count, show_path, show_queue, show_time, spell_queue


class Left:
    """The items that are left, counted one by one. Open reads are among them."""

    def __init__(self, open_reads: int, now_ms: int) -> None:
        self.open_reads = open_reads
        self.items = 0
        self.data_bytes = 0
        self.expired = 0
        """Those that nobody will get any more, by their own expiry; a queue's maxAge is not known here."""
        self.oldest_ms: int | None = None
        self.newest_ms: int | None = None
        self._now_ms = now_ms

    def add(self, item: Item) -> None:
        """One more."""
        self.items += 1
        self.data_bytes += len(item.data)
        self.expired += 0 < item.expiry_ms < self._now_ms
        self.oldest_ms = item.add_ms if self.oldest_ms is None else min(self.oldest_ms, item.add_ms)
        self.newest_ms = item.add_ms if self.newest_ms is None else max(self.newest_ms, item.add_ms)


def damage_sentence(read: FileRead) -> str:
    """What is wrong with a file that does not end where its last record does."""
    behind = count(read.bytes_behind, "byte")
    where = f"{show_path(read.file.file_name)}, offset {read.end.offset}"
    if read.is_damaged:
        return f"damaged: {where}: {read.end.problem}; {behind} from there on cannot be read"
    return f"unfinished: {where}: {read.end.problem} ({behind}), by a crash, or it is being written"


def damage_json(files: Sequence[FileRead]) -> list[dict[str, Any]]:
    """Every file that does not end where its last record does."""
    return [
        {
            "file": show_path(read.file.file_name),
            "offset": read.end.offset,
            "problem": read.end.problem,
            "kind": "damaged" if read.is_damaged else "unfinished",
            "bytes_behind": read.bytes_behind,
        }
        for read in files
        if read.end.problem is not None
    ]


def summary_lines(queue: bytes, files: Sequence[FileRead], left: Left) -> Iterator[str]:
    """The summary for a person."""
    size = sum(read.size for read in files)
    yield f"queue {show_queue(queue)}: {count(len(files), 'file')}, {count(size, 'byte')}"
    for read in files:
        yield f"  {show_path(read.file.file_name)}: {count(read.size, 'byte')}, {_records(read.records)}"
    if len(files) > 1:
        yield f"  all files: {_records(_all_records(files))}"
    yield f"  left: {count(left.items, 'item')}, {count(left.data_bytes, 'byte')} of data"
    if left.open_reads:
        yield f"  of these, open reads: {left.open_reads}"
    if left.oldest_ms is not None and left.newest_ms is not None:
        yield f"  of these, expired by now: {left.expired}"
        yield f"  oldest: added {show_time(left.oldest_ms)}"
        yield f"  newest: added {show_time(left.newest_ms)}"
    for read in files:
        if read.end.problem is not None:
            yield f"  {damage_sentence(read)}"


def summary_json(queue: bytes, files: Sequence[FileRead], left: Left) -> dict[str, Any]:
    """The summary for a program."""
    return {
        "queue": spell_queue(queue),
        "bytes": sum(read.size for read in files),
        "records": dict(_all_records(files)),
        "files": [
            {"file": show_path(read.file.file_name), "bytes": read.size, "records": dict(read.records)}
            for read in files
        ],
        "items": left.items,
        "data_bytes": left.data_bytes,
        "open_reads": left.open_reads,
        "expired": left.expired,
        "oldest_add_ms": left.oldest_ms,
        "newest_add_ms": left.newest_ms,
        "damage": damage_json(files),
    }


def _all_records(files: Sequence[FileRead]) -> Counter[str]:
    return sum((read.records for read in files), Counter())


def _records(records: Counter[str]) -> str:
    if not records:
        return "no records"
    kinds = ", ".join(f"{name} {number}" for name, number in sorted(records.items()))
    return f"{count(records.total(), 'record')}: {kinds}"
