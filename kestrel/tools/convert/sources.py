"""Reading a folder of queues as a restart would serve it: family by family, step by step. Nothing is written.

Families and their items are the common form of both formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cached_property
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple, Self

import attrs

from kestrel.item import Item
from kestrel.journal.records import XID_RECORD_BYTES, encode_item
from kestrel.journal.rewrite import ERRORS_BYTES
from kestrel.scroll.name_encoding import location_of
from kestrel.scroll.records import PUT_EXPIRING_BYTES
from kestrel.tools.files.folder import Folder, FoundScroll
from kestrel.tools.files.journal_contents import SETTINGS, JournalContents
from kestrel.tools.files.scroll_contents import (
    RemainingReaders,
    Scroll,
    ScrollContents,
    ScrollQueueContents,
    ScrollSnapshot,
)
from kestrel.tools.files.snapshot_files import FileReadResult, ItemsDigest, damage_sentence
from kestrel.tools.formatting import show_queue
from kestrel.tools.progress import ByteProgress, no_progress
from kestrel.tools.tool_runner import ToolFailed

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


_WINDOWS_BYTES: Final = 32 * 1024 * 1024
_LEAST_WINDOW_BYTES: Final = 64 * 1024
"""Least memory of each queue of a family. `_WINDOWS_BYTES` is the total for the family."""

_NO_RECORD_AT_ALL: Final = (
    "is this a folder of queues? If it is, start the server once on it, which sets that file aside"
)
"""Advice for a file that does not begin with a record, and so may not belong to a queue."""


class ConversionSource(ABC):
    """A folder of one kind, which must not change. `now_ms` is the add time of items whose record has none."""

    kind: str
    """Name of the folder's storage."""

    readings: int
    """Number of times that `steps` may read the files."""
    way_out: str
    """Advice on how to set damage aside."""

    def __init__(self, folder: Folder, now_ms: int) -> None:
        self.folder = folder
        self.now_ms = now_ms

    @cached_property
    def families(self) -> Sequence[Family]:
        """All families, sorted. Raises OSError, or `ToolFailed` if the queues cannot be determined."""
        families = sorted(self._families())
        names: set[bytes] = set()
        for family in families:
            for name in family.queues:
                if name in names:
                    raise ToolFailed(f"the queue {show_queue(name)} exists twice: rename the files of one of the two")
                names.add(name)
        return families

    @abstractmethod
    def _families(self) -> Iterator[Family]:
        """Yield the families in any order."""

    @property
    @abstractmethod
    def file_names(self) -> list[bytes]:
        """Names of all files in the folder that are read."""

    @property
    def size(self) -> int:
        disk, path = self.folder.disk, self.folder.path
        return sum(disk.length(path + b"/" + name) for name in self.file_names)

    @abstractmethod
    def steps(self, family: Family, progress: ByteProgress) -> Iterator[FamilyItem]:
        """Yield the items of a family as a restart would serve them.

        Raise OSError, or `ToolFailed` if a file is damaged, at the latest after the last step. An unfinished last
        record is not damage.
        """

    def _check(self, files: Sequence[FileReadResult]) -> None:
        for read in files:
            if read.is_damaged:
                self._refuse(damage_sentence(read), None if read.end.offset else _NO_RECORD_AT_ALL)

    def _refuse(self, damage: str, way_out: str | None = None) -> None:
        raise ToolFailed(f"{damage}; {way_out or self.way_out}, and then run this again")


class JournalSource(ConversionSource):
    """A folder of Kestrel's journals. A parent and its children are a family."""

    kind = "journal"
    readings = 2
    way_out = "start the server once on this folder, or run kestrel-qpack, which sets that aside"

    def _families(self) -> Iterator[Family]:
        by_parent: dict[bytes, list[bytes]] = {}
        for name in self.folder.journals():
            by_parent.setdefault(location_of(name).journal, []).append(name)
        return (Family(parent, tuple(sorted(names))) for parent, names in by_parent.items())

    @property
    def file_names(self) -> list[bytes]:
        return sorted(file.file_name for files in self.folder.journals().values() for file in files.live_files())

    def steps(self, family: Family, progress: ByteProgress) -> Iterator[FamilyItem]:
        """Replay each journal of the family, then merge their items."""
        share_bytes = max(_LEAST_WINDOW_BYTES, _WINDOWS_BYTES // len(family.queues))
        window_bytes = min(SETTINGS.max_memory_size_bytes, share_bytes)
        settings = attrs.evolve(SETTINGS, max_memory_size_bytes=window_bytes)
        with ExitStack() as stack:
            streams = []
            for name in family.queues:
                journal = stack.enter_context(self.folder.open_journal(name))
                contents = JournalContents(journal, self.now_ms, lambda *_: nullcontext(progress), settings)
                contents.replay()
                self._check(contents.files)
                streams.append(QueueItems(contents.items_count + contents.open_reads, contents.items()))
            yield from merge_queues(streams)


class ScrollSource(ConversionSource):
    """A folder of scrolls. Each scroll is a family."""

    kind = "scroll"
    readings = 1
    way_out = "start the server once on this folder, which sets that aside"

    def __init__(self, folder: Folder, now_ms: int) -> None:
        super().__init__(folder, now_ms)
        self._scrolls: dict[bytes, Scroll] = {}
        """Scrolls by family name."""

    def _families(self) -> Iterator[Family]:
        for scroll in self.folder.scrolls().values():
            with self._opened(scroll) as opened:
                contents = ScrollContents(opened, self.now_ms, no_progress)
                queues = [_name_of(read) for read in self._live(contents)]
                is_there = bool(queues) and self._is_there(contents)
            if is_there:
                assert scroll.name is not None  # one of its queues has a name
                self._scrolls[scroll.name] = scroll
                yield Family(scroll.name, tuple(sorted(queues)))

    def _is_there(self, contents: ScrollContents) -> bool:
        """Return whether a server would load the scroll as a queue: it has a reader file or an item."""
        if any(read.file is not None for read in contents.queues):
            return True
        if any(shown.item is not None for _, _, shown in contents.written()):
            return True
        self._check(contents.writers)
        return False

    def _opened(self, scroll: Scroll) -> ScrollSnapshot:
        return self.folder.open_scroll(FoundScroll(scroll.stem))

    def _live(self, contents: ScrollContents) -> list[ScrollQueueContents]:
        """Return the queues that are not deleted. Raise `ToolFailed` if a name is unknown or a file is damaged."""
        live = [read for read in contents.queues if not read.state.is_deleted]
        for read in live:
            if read.queue.name is None:
                raise ToolFailed(
                    f"{read.queue.shown}: its name is not known, since {read.queue.why_unknown}: move its files out of"
                    " the folder, and then run this again"
                )
        self._check([read.file for read in live if read.file is not None])
        return live

    @property
    def file_names(self) -> list[bytes]:
        return sorted(name for scroll in self.folder.scrolls().values() for name in scroll.file_names)

    def steps(self, family: Family, progress: ByteProgress) -> Iterator[FamilyItem]:
        """Read the writer files once for all queues of the family."""
        with self._opened(self._scrolls[family.name]) as opened:
            contents = ScrollContents(opened, self.now_ms, lambda *_: nullcontext(progress))
            live = sorted(self._live(contents), key=_name_of)
            readers = RemainingReaders({read.queue.reader: read.state.done for read in live})
            error_counts = [read.state.errors for read in live]
            have_errors = any(error_counts)
            for _, _, shown in contents.written():
                item = shown.item
                if item is None or shown.is_ignored:
                    continue
                readers.advance(item.id)
                if not (places := readers.of(shown.targets)):
                    continue
                usual = max(0, item.errors)
                errors = [usual] * len(places)
                if have_errors:
                    errors = [error_counts[place].get(item.id, usual) for place in places]
                yield FamilyItem(item.data, item.add_ms, item.expiry_ms, places, errors)
            self._check(contents.writers)


def _name_of(read: ScrollQueueContents) -> bytes:
    assert read.queue.name is not None  # queues without a name were refused
    return read.queue.name


SOURCES: Final = {source.kind: source for source in (JournalSource, ScrollSource)}
"""Source classes by storage name."""


class QueueItems(NamedTuple):
    """The items of one queue in order, and their number."""

    left: int
    items: Iterator[Item]


class _QueueHead(NamedTuple):
    """The next item of a queue. The smallest head is merged first."""

    add_ms: int
    left: int
    """Negative number of the queue's remaining items. Among equal add times, the queue with most remaining comes first.
    """
    place: int
    item: Item

    def is_same_as(self, other: Item) -> bool:
        item = self.item
        return item.data == other.data and item.expiry_ms == other.expiry_ms


def merge_queues(streams: Sequence[QueueItems]) -> Iterator[FamilyItem]:
    """Yield the merged steps of several queues, with indexes into `streams`. Each queue keeps the order of its items.

    Steps follow the add time as far as that order allows. Items become one step if they are at the heads of their
    queues together, and have the same data, add time and expiry.
    """
    left = [stream.left for stream in streams]
    heads: list[_QueueHead] = []
    for place, stream in enumerate(streams):
        if (item := next(stream.items, None)) is not None:
            heads.append(_QueueHead(item.add_ms, -left[place], place, item))
    heapify(heads)
    while heads:
        first = heappop(heads)
        taken, others = [first], list[_QueueHead]()
        while heads and heads[0].add_ms == first.add_ms:
            head = heappop(heads)
            (taken if head.is_same_as(first.item) else others).append(head)
        for head in others:
            heappush(heads, head)
        if len(taken) > 1:
            taken.sort(key=lambda head: head.place)
        for _, _, place, _ in taken:
            left[place] -= 1
            if (item := next(streams[place].items, None)) is not None:
                heappush(heads, _QueueHead(item.add_ms, -left[place], place, item))
        item = first.item
        yield FamilyItem(
            item.data,
            item.add_ms,
            item.expiry_ms,
            [head.place for head in taken],
            [head.item.errors for head in taken],
        )
