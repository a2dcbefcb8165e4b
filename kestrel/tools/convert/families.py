"""What is converted, in the form that both formats have in common: families of queues, and their items step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

from kestrel.journal.records import XID_RECORD_BYTES, encode_item
from kestrel.journal.rewrite import ERRORS_BYTES
from kestrel.scroll.records import PUT_EXPIRING_BYTES

_MARK_BYTES: Final = 16
_TARGETS_BYTES: Final = 16
"""What says for whom an item is takes about that."""


class Family(NamedTuple):
    """Queues whose items are read together: those of one scroll, or in journals a parent and its children."""

    name: bytes
    """That of the parent, whether there is such a queue or not."""
    queues: tuple[bytes, ...]
    """Sorted."""


class FamilyItem(NamedTuple):
    """An item that some queues of a family hold, each of them behind what earlier steps gave it."""

    data: bytes
    add_ms: int
    expiry_ms: int
    queue_indexes: Sequence[int]
    """The places of these queues in `Family.queues`, rising."""
    errors: Sequence[int]
    """The item's errors, in each of them."""


class QueueSum(NamedTuple):
    """What a queue holds, as far as it takes to tell whether another one holds the same."""

    items: int
    data_bytes: int
    front: int
    """How many items there are up to the last that has errors."""
    digest: str
    """Of every item's data, add time, expiry and errors, in order; hexadecimal."""

    @property
    def journal_bytes(self) -> int:
        """What a journal file takes that holds them, but for the records of the items."""
        return self.front * (XID_RECORD_BYTES + ERRORS_BYTES)


class _QueueSummer:
    """That of one queue while its items come."""

    def __init__(self) -> None:
        self.items = self.data_bytes = self.front = 0
        self._digest = blake2b(digest_size=32)

    def add(self, mark: bytes, size: int, errors: int) -> None:
        """One item more, of so many bytes."""
        self.items += 1
        self.data_bytes += size
        if errors:
            self.front = self.items
        self._digest.update(b"%b%d;" % (mark, errors))

    def result(self) -> QueueSum:
        """That of all that came."""
        return QueueSum(self.items, self.data_bytes, self.front, self._digest.hexdigest())


class FolderSums(NamedTuple):
    """What a folder holds: each queue, and about what it takes as a folder of either kind."""

    queues: Mapping[bytes, QueueSum]
    scroll_bytes: int
    journal_bytes: int

    def as_json(self) -> dict[str, Any]:
        """For a file; `from_json` reads it."""
        queues = {name.decode("latin-1"): list(each) for name, each in self.queues.items()}
        return {"queues": queues, "scroll_bytes": self.scroll_bytes, "journal_bytes": self.journal_bytes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `as_json` gave."""
        queues = {name.encode("latin-1"): QueueSum(*each) for name, each in value["queues"].items()}
        return cls(queues, value["scroll_bytes"], value["journal_bytes"])


class FolderSummer:
    """Adds up what families hold."""

    def __init__(self) -> None:
        self._queues: dict[bytes, QueueSum] = {}
        self._scroll_bytes = 0
        self._journal_bytes = 0

    def add(self, family: Family, steps: Iterable[FamilyItem]) -> None:
        """All items of a family."""
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
        """That of all families."""
        more_bytes = sum(each.journal_bytes for each in self._queues.values())
        return FolderSums(dict(sorted(self._queues.items())), self._scroll_bytes, self._journal_bytes + more_bytes)
