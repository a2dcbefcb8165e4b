"""What kestrel-convert says at its end: each queue, and both folders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kestrel.tools.convert.families import FolderSums
from kestrel.tools.formatting import align_table, count, show_queue, spell_queue


class FolderSize(NamedTuple):
    """One of the two folders, as it was named, and what its files take."""

    name: str
    bytes: int


def report_lines(sums: FolderSums, source: FolderSize, target: FolderSize) -> Iterator[str]:
    """For a person."""
    rows = [[show_queue(name), str(each.items), str(each.data_bytes), "equal"] for name, each in sums.queues.items()]
    yield from align_table([["queue", "items", "bytes of data", "compared"], *rows])
    counted = f"{count(len(sums.queues), 'queue')}, {count(_items(sums), 'item')}"
    yield f"{counted}: {source.name}, {source.bytes} -> {target.name}, {count(target.bytes, 'byte')}"


def report_json(sums: FolderSums, source: FolderSize, target: FolderSize) -> Iterator[dict[str, Any]]:
    """For a program: an object for each queue, and the summary."""
    for name, each in sums.queues.items():
        yield {"queue": spell_queue(name), "state": "equal", "items": each.items, "data_bytes": each.data_bytes}
    summary = {
        "source": source.name,
        "target": target.name,
        "queues": len(sums.queues),
        "items": _items(sums),
        "bytes_before": source.bytes,
        "bytes_after": target.bytes,
    }
    yield {"summary": summary}


def _items(sums: FolderSums) -> int:
    return sum(each.items for each in sums.queues.values())
