"""The common form of both formats: families of queues, their items step by step, and sums of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

from kestrel.journal.records import XID_RECORD_BYTES, encode_item
from kestrel.journal.rewrite import ERRORS_BYTES
from kestrel.scroll.records import PUT_EXPIRING_BYTES
from kestrel.tools.files.snapshot_files import ItemsDigest

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
    """A summary of a queue's items, as of `ItemsDigest`. Two queues with equal sums hold the same items."""

    items: int
    data_bytes: int
    front: int
    digest: str


class FolderSums(NamedTuple):
    """Sums of a folder's queues, and the approximate size of the folder in either format."""

    queues: Mapping[bytes, QueueSum]
    scroll_bytes: int
    journal_bytes: int

    @property
    def items(self) -> int:
        return sum(each.items for each in self.queues.values())

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads."""
        queues = {name.decode("latin-1"): list(each) for name, each in self.queues.items()}
        return {"queues": queues, "scroll_bytes": self.scroll_bytes, "journal_bytes": self.journal_bytes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        queues = {name.encode("latin-1"): QueueSum(*each) for name, each in value["queues"].items()}
        return cls(queues, value["scroll_bytes"], value["journal_bytes"])


def sum_families(families: Iterable[tuple[Family, Iterable[FamilyItem]]]) -> FolderSums:
    """Return the sums of a folder, from all items of its families."""
    queues: dict[bytes, QueueSum] = {}
    scroll_bytes = journal_bytes = 0
    for family, steps in families:
        digests = [ItemsDigest() for _ in family.queues]
        for step in steps:
            record = encode_item(step.data, step.add_ms, step.expiry_ms)
            mark = blake2b(record, digest_size=_MARK_BYTES).digest()
            size = len(step.data)
            for place, errors in zip(step.queue_indexes, step.errors, strict=True):
                digests[place].add(mark, size, errors)
            journal_bytes += len(step.queue_indexes) * len(record)
            scroll_bytes += PUT_EXPIRING_BYTES + size
            if len(step.queue_indexes) < len(family.queues):
                scroll_bytes += _TARGETS_BYTES
        for name, each in zip(family.queues, digests, strict=True):
            queues[name] = QueueSum(each.items, each.data_bytes, each.front, each.digest)
            journal_bytes += each.front * (XID_RECORD_BYTES + ERRORS_BYTES)
    return FolderSums(dict(sorted(queues.items())), scroll_bytes, journal_bytes)
