"""Summaries of files, remaining items and damage, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kestrel.tools.files.scroll_contents import ItemTally
from kestrel.tools.files.snapshot_files import FileReadResult
from kestrel.tools.formatting import count, show_path, show_time


def damage_sentence(read: FileReadResult) -> str:
    """Return a sentence about a file that does not end after a valid record."""
    behind = count(read.bytes_behind, "byte")
    where = f"{show_path(read.file_name)}, offset {read.end.offset}"
    if read.is_damaged:
        return f"damaged: {where}: {read.end.problem}; {behind} from there on cannot be read"
    return f"unfinished: {where}: {read.end.problem} ({behind}), by a crash, or it is being written"


def damage_lines(files: Sequence[FileReadResult]) -> Iterator[str]:
    """Yield the indented sentence of every file with a problem."""
    for read in files:
        if read.end.problem is not None:
            yield f"  {damage_sentence(read)}"


def damage_json(files: Sequence[FileReadResult]) -> list[dict[str, Any]]:
    """Return a JSON object for every file that does not end after a valid record."""
    return [
        {
            "file": show_path(read.file_name),
            "offset": read.end.offset,
            "problem": read.end.problem,
            "kind": "damaged" if read.is_damaged else "unfinished",
            "bytes_behind": read.bytes_behind,
        }
        for read in files
        if read.end.problem is not None
    ]


def file_lines(what: str, files: Sequence[FileReadResult]) -> Iterator[str]:
    """Yield lines about files and their records, under a heading that begins with `what`."""
    size = sum(read.size for read in files)
    yield f"{what}: {count(len(files), 'file')}, {count(size, 'byte')}"
    for read in files:
        yield f"  {show_path(read.file_name)}: {count(read.size, 'byte')}, {_records(read.records)}"
    if len(files) > 1:
        yield f"  all files: {_records(_all_records(files))}"


def files_json(files: Sequence[FileReadResult]) -> dict[str, Any]:
    """Return a JSON object about files and their records."""
    return {
        "bytes": sum(read.size for read in files),
        "records": dict(_all_records(files)),
        "files": [
            {"file": show_path(read.file_name), "bytes": read.size, "records": dict(read.records)} for read in files
        ],
    }


def age_lines(tally: ItemTally) -> Iterator[str]:
    """Yield lines about the age of items, or nothing if there are none."""
    if tally.oldest_ms is not None and tally.newest_ms is not None:
        yield f"  of these, expired by now: {tally.expired}"
        yield f"  oldest: added {show_time(tally.oldest_ms)}"
        yield f"  newest: added {show_time(tally.newest_ms)}"


def age_json(tally: ItemTally) -> dict[str, Any]:
    """Return a JSON object about the age of items. The times are None if there are none."""
    return {"expired": tally.expired, "oldest_add_ms": tally.oldest_ms, "newest_add_ms": tally.newest_ms}


def items_line(what: str, tally: ItemTally) -> str:
    """Return a line with the number and size of items."""
    return f"  {what}: {count(tally.items, 'item')}, {count(tally.data_bytes, 'byte')} of data"


def _all_records(files: Sequence[FileReadResult]) -> Counter[str]:
    return sum((read.records for read in files), Counter())


def _records(records: Counter[str]) -> str:
    if not records:
        return "no records"
    kinds = ", ".join(f"{name} {number}" for name, number in sorted(records.items()))
    return f"{count(records.total(), 'record')}: {kinds}"
