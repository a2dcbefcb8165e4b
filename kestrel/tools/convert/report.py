"""The report of kestrel-convert about the queues and both folders, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kestrel.tools.convert.families import FolderSums
from kestrel.tools.formatting import align_table, count, show_queue, spell_queue


class FolderSize(NamedTuple):
    """Name of a folder on the command line, and the size of its files."""

    name: str
    bytes: int


def report_lines(sums: FolderSums, source: FolderSize, target: FolderSize) -> Iterator[str]:
    """Yield a table of the queues, and a line about both folders."""
    rows = [[show_queue(name), str(each.items), str(each.data_bytes), "equal"] for name, each in sums.queues.items()]
    yield from align_table([["queue", "items", "bytes of data", "compared"], *rows])
    counted = f"{count(len(sums.queues), 'queue')}, {count(_items(sums), 'item')}"
    yield f"{counted}: {source.name}, {source.bytes} -> {target.name}, {count(target.bytes, 'byte')}"


def report_json(sums: FolderSums, source: FolderSize, target: FolderSize) -> Iterator[dict[str, Any]]:
    """Yield a JSON object for each queue, then a summary."""
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
