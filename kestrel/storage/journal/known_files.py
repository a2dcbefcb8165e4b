"""The journal files that a start need not replay, because the segment log has the state of the queue at their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

from kestrel.disk.files import Disk, FileIdentity, appending
from kestrel.disk.reader import FileReader
from kestrel.item import Item
from kestrel.journal.cursor import locate_items
from kestrel.journal.fileset import JournalFile, JournalFileKind
from kestrel.journal.item_reader import read_items
from kestrel.journal.records import decode_item
from kestrel.journal.rewrite import Boundary
from kestrel.journal.segments import Segment, SegmentLog

OpenFile: TypeAlias = Callable[[bytes], AbstractContextManager[FileReader]]
"""Function that returns a context manager with a reader of the journal file of that name. Raises OSError."""


class KnownFile(NamedTuple):
    """A file that has not changed since the segment log described it. The current file is known up to a checkpoint."""

    file: JournalFile
    segment: Segment

    @property
    def is_current(self) -> bool:
        return self.file.kind is JournalFileKind.CURRENT


def known_files(
    disk: Disk, folder: bytes, log: SegmentLog, files: Sequence[JournalFile], segments: Sequence[Segment | None]
) -> list[KnownFile]:
    """Return the first files that are known. `files` and `segments` are in the order of replay."""
    known: list[KnownFile] = []
    next_id = 0
    for file, segment in zip(files, segments, strict=False):
        if segment is None or (segment.number, segment.start_id) != (file.number, next_id):
            break
        found = KnownFile(file, segment)
        identity = disk.identity(folder + b"/" + file.file_name)
        if not (_has_checkpoint(log, segment, identity) if found.is_current else segment.describes(identity)):
            break
        known.append(found)
        next_id = segment.boundary.next_id
    return known


def _has_checkpoint(log: SegmentLog, checkpoint: Segment, identity: FileIdentity) -> bool:
    """Return whether the current file is the one that the checkpoint describes, up to its offset."""
    is_same_file = checkpoint.inode == identity.inode
    return is_same_file and log.sample_checksum(checkpoint.size) == checkpoint.sample_checksum


def sync_files(disk: Disk, folder: bytes, known: Sequence[KnownFile]) -> None:
    """Sync the files. Raise OSError."""
    for each in known:
        with appending(disk, folder + b"/" + each.file.file_name) as descriptor:
            disk.sync(descriptor)


def find_items(
    open_file: OpenFile, known: Sequence[KnownFile], state: Boundary, now_ms: int
) -> tuple[dict[int, Item], int]:
    """Return the open reads and returned items of `state` by id, and where the items after them begin in the history.

    `state` is that at the end of the last known file. `now_ms` is the add time of items whose record has none. Raise
    LookupError if an item is missing, or OSError.
    """
    wanted = {*state.open.values(), *state.front}
    if state.first_id < state.next_id:
        wanted.add(state.first_id)
    items: dict[int, Item] = {}
    behind_offset = first_id = start = 0
    for file, segment in known:
        next_id = segment.boundary.next_id
        ids = sorted(item_id for item_id in wanted if first_id <= item_id < next_id)
        if ids:
            with open_file(file.file_name) as reader:
                offsets = locate_items(reader, segment.size, [each - first_id for each in ids])
                for item_id, offset in zip(ids, offsets, strict=False):
                    items[item_id] = _read_item(reader, offset, segment.size, item_id, now_ms)
                    if item_id == state.first_id:
                        behind_offset = start + offset
        first_id, start = next_id, start + segment.size
    for item_id in wanted:
        items[item_id].errors = state.errors.get(item_id, 0)
    return items, behind_offset


def _read_item(reader: FileReader, offset: int, end: int, item_id: int, now_ms: int) -> Item:
    """Return the item `item_id`, whose record begins at `offset` of a file and ends before `end`. Raise OSError."""
    [record] = read_items(reader, 0, offset, end, skip=0, max_items=1, room_bytes=0, now_ms=now_ms).records
    item = decode_item(record)
    item.id = item_id
    return item
