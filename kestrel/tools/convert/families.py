"""The common form of both formats: families of queues, their items step by step, and the report about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

from kestrel.journal.records import XID_RECORD_BYTES, encode_item
from kestrel.journal.rewrite import ERRORS_BYTES
from kestrel.scroll.records import PUT_EXPIRING_BYTES
from kestrel.tools.formatting import align_table, count, show_queue, spell_queue

_MARK_BYTES: Final = 16
_TARGETS_BYTES: Final = 16
"""Approximate size of a TARGETS record."""


class Family(NamedTuple):
    """Queues that are read together: those of one scroll, or a parent and its children in journals."""

    name: bytes
    """Name of the parent, which need not exist as a queue."""
    queues: tuple[bytes, ...]
    """Sorted names of the queues."""


class FamilyItem(NamedTuple):
    """An item that some queues of a family hold, each after its items of earlier steps."""

    data: bytes
    add_ms: int
    expiry_ms: int
    queue_indexes: Sequence[int]
    """Ascending indexes of these queues in `Family.queues`."""
    errors: Sequence[int]
    """Error count of the item in each of these queues."""


class QueueSum(NamedTuple):
    """A summary of a queue's items. Two queues with equal sums hold the same items."""

    items: int
    data_bytes: int
    front: int
    """Number of items up to the last one with errors."""
    digest: str
    """Hexadecimal digest of every item's data, add time, expiry and errors, in order."""

    @property
    def journal_bytes(self) -> int:
        """Size of the records for errors in a journal file of these items."""
        return self.front * (XID_RECORD_BYTES + ERRORS_BYTES)


class _QueueSummer:
    """A builder of the `QueueSum` of one queue."""

    def __init__(self) -> None:
        self.items = self.data_bytes = self.front = 0
        self._digest = blake2b(digest_size=32)

    def add(self, mark: bytes, size: int, errors: int) -> None:
        """Add the next item, with its digest `mark` and its data size."""
        self.items += 1
        self.data_bytes += size
        if errors:
            self.front = self.items
        self._digest.update(b"%b%d;" % (mark, errors))

    def result(self) -> QueueSum:
        """Return the sum of all items added."""
        return QueueSum(self.items, self.data_bytes, self.front, self._digest.hexdigest())


class FolderSums(NamedTuple):
    """Sums of a folder's queues, and the approximate size of the folder in either format."""

    queues: Mapping[bytes, QueueSum]
    scroll_bytes: int
    journal_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads."""
        queues = {name.decode("latin-1"): list(each) for name, each in self.queues.items()}
        return {"queues": queues, "scroll_bytes": self.scroll_bytes, "journal_bytes": self.journal_bytes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the sums that `as_json` stored."""
        queues = {name.encode("latin-1"): QueueSum(*each) for name, each in value["queues"].items()}
        return cls(queues, value["scroll_bytes"], value["journal_bytes"])


class FolderSummer:
    """A builder of the `FolderSums` of a folder, family by family."""

    def __init__(self) -> None:
        self._queues: dict[bytes, QueueSum] = {}
        self._scroll_bytes = 0
        self._journal_bytes = 0

    def add(self, family: Family, steps: Iterable[FamilyItem]) -> None:
        """Add all items of a family."""
        sums = [_QueueSummer() for _ in family.queues]
        for step in steps:
            record = encode_item(step.data, step.add_ms, step.expiry_ms)
            mark = blake2b(record, digest_size=_MARK_BYTES).digest()
            size = len(step.data)
            for place, errors in zip(step.queue_indexes, step.errors, strict=True):
                sums[place].add(mark, size, errors)
            self._journal_bytes += len(step.queue_indexes) * len(record)
            self._scroll_bytes += PUT_EXPIRING_BYTES + size
            if len(step.queue_indexes) < len(family.queues):
                self._scroll_bytes += _TARGETS_BYTES
        for name, each in zip(family.queues, sums, strict=True):
            self._queues[name] = each.result()

    def result(self) -> FolderSums:
        """Return the sums of all families added."""
        more_bytes = sum(each.journal_bytes for each in self._queues.values())
        return FolderSums(dict(sorted(self._queues.items())), self._scroll_bytes, self._journal_bytes + more_bytes)


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
