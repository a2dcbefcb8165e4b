"""The segment log of a queue: the state of the queue at the end of each of its rotated files.

After damage to a journal file, the removals in later files would drop wrong items. With the log a start can restore the
positions that they depend on (`kestrel.journal.realign`). The log is optional and never synced. A lost or wrong record
only means that the state at the end of that file and of later ones is unknown.

An item's id in the log is the number of items that the journal's files add before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import crc32

from kestrel.disk.files import Disk
from kestrel.disk.folders import SEGMENTS_FOLDER
from kestrel.journal.fileset import current_name, rotated_name
from kestrel.journal.rewrite import Boundary

MAX_SEGMENT_IDS: Final = 20_000
"""Limit of the ids in a record. A state with more open reads and front items is not logged."""

MAX_LOG_BYTES: Final = 16 << 20
"""Limit of the bytes that are read from a log."""

_FRAME: Final = Struct("<II")
"""Length and CRC-32 of a record."""
_HEADER: Final = Struct("<qQQqqqIII")
"""number, inode, next inode, size, first id, next id, and the numbers of open reads, front items and error counts."""
_OPEN: Final = Struct("<iq")
_FRONT: Final = Struct("<q")
_ERRORS: Final = Struct("<qi")


class Segment(NamedTuple):
    """A rotated file: its identity, and the state of the queue at its end.

    `inode` and `next_inode` are the inodes of the file and of the next one, 0 if unknown. They distinguish the file
    from one with the same name that another program has written.
    """

    inode: int
    next_inode: int
    size: int
    boundary: Boundary
    """State of the queue at the end of the file. Its `end` is 0, because the log does not have it."""

    @property
    def number(self) -> int:
        """Number in the file's name."""
        return self.boundary.number


def encode_segment(segment: Segment) -> bytes:
    """Return the record of a segment, with its length and checksum."""
    boundary = segment.boundary
    payload = b"".join(
        (
            _HEADER.pack(
                boundary.number,
                segment.inode,
                segment.next_inode,
                segment.size,
                boundary.first_id,
                boundary.next_id,
                len(boundary.open),
                len(boundary.front),
                len(boundary.errors),
            ),
            *(_OPEN.pack(xid, item_id) for xid, item_id in boundary.open.items()),
            *map(_FRONT.pack, boundary.front),
            *(_ERRORS.pack(item_id, errors) for item_id, errors in boundary.errors.items()),
        )
    )
    return _FRAME.pack(len(payload), crc32(payload)) + payload


def decode_segments(data: bytes) -> Iterator[Segment]:
    """Yield the segments of a log up to the first record that is incomplete or damaged."""
    position = 0
    while position + _FRAME.size <= len(data):
        size, checksum = _FRAME.unpack_from(data, position)
        payload = data[position + _FRAME.size : position + _FRAME.size + size]
        if len(payload) != size or crc32(payload) != checksum:
            return
        try:
            yield _decode_payload(payload)
        except StructError:
            return
        position += _FRAME.size + size


def _decode_payload(payload: bytes) -> Segment:
    number, inode, next_inode, size, first_id, next_id, opened, front, errors = _HEADER.unpack_from(payload)
    front_start = _HEADER.size + opened * _OPEN.size
    errors_start = front_start + front * _FRONT.size
    end = errors_start + errors * _ERRORS.size
    boundary = Boundary(
        number,
        0,
        dict(_OPEN.iter_unpack(payload[_HEADER.size : front_start])),
        [item_id for (item_id,) in _FRONT.iter_unpack(payload[front_start:errors_start])],
        dict(_ERRORS.iter_unpack(payload[errors_start:end])),
        0,
        first_id,
        next_id,
    )
    return Segment(inode, next_inode, size, boundary)


class SegmentLog:
    """The segment log of one queue. No method raises OSError; a log that cannot be written is erased or ignored."""

    def __init__(self, disk: Disk, folder: bytes, queue: bytes) -> None:
        self._disk = disk
        self._folder = folder
        self._queue = queue
        self._path = folder + b"/" + SEGMENTS_FOLDER + b"/" + current_name(queue)
        self._packed_ids: dict[int, int] = {}
        """Log ids of the items that a pack has written out of order, by item id."""
        self._shift = 0
        """Difference between the log id and the id of all other items."""

    def read(self) -> list[Segment]:
        """Return the segments of the log, in the order of replay."""
        return list(decode_segments(self._read_bytes()))

    def _read_bytes(self) -> bytes:
        try:
            descriptor = self._disk.open_read(self._path)
            try:
                return self._disk.read(descriptor, 0, MAX_LOG_BYTES)
            finally:
                self._disk.close(descriptor)
        except OSError:
            return b""

    def add(self, boundary: Boundary, size: int) -> None:
        """Append a record for the file of `size` bytes that was just rotated, with the state at its end."""
        records = self._encoded([(boundary, size)])
        with suppress(OSError):
            self._disk.make_folder(self._folder + b"/" + SEGMENTS_FOLDER)
            self._write(self._path, records)

    def replace(self, files: Iterable[tuple[Boundary, int]]) -> None:
        """Rewrite the log with only `files`: the boundary and the size of each file, in the order of replay."""
        records = self._encoded(files)
        if records and records == self._read_bytes():
            return
        self.erase()
        if not records:
            return
        temporary = self._path + b".new"
        try:
            self._disk.make_folder(self._folder + b"/" + SEGMENTS_FOLDER)
            self._disk.erase(temporary)
            self._write(temporary, records)
            self._disk.rename(temporary, self._path)
        except OSError:
            with suppress(OSError):
                self._disk.erase(temporary)

    def erase(self) -> None:
        """Erase the log."""
        with suppress(OSError):
            self._disk.erase(self._path)

    def packed(self, boundary: Boundary) -> None:
        """Adjust log ids to a pack that has replaced all files up to `boundary`."""
        first = [*boundary.open.values(), *boundary.front]
        self._packed_ids = {item_id: index for index, item_id in enumerate(first)}
        self._shift = len(first) - boundary.first_id

    def _write(self, path: bytes, records: bytes) -> None:
        descriptor = self._disk.open_append(path)
        try:
            self._disk.write(descriptor, records)
        finally:
            self._disk.close(descriptor)

    def _encoded(self, files: Iterable[tuple[Boundary, int]]) -> bytes:
        files = list(files)
        if not files:
            return b""
        inodes = [self._inode(rotated_name(self._queue, boundary.number)) for boundary, _ in files]
        inodes.append(self._inode(current_name(self._queue)))
        return b"".join(
            encode_segment(Segment(inodes[index], inodes[index + 1], size, self._in_log_ids(boundary)))
            for index, (boundary, size) in enumerate(files)
            if boundary.id_count <= MAX_SEGMENT_IDS
        )

    def _inode(self, file_name: bytes) -> int:
        try:
            return self._disk.inode(self._folder + b"/" + file_name)
        except OSError:
            return 0

    def _in_log_ids(self, boundary: Boundary) -> Boundary:
        packed_ids, shift = self._packed_ids, self._shift
        return Boundary(
            boundary.number,
            0,
            {xid: packed_ids.get(item_id, item_id + shift) for xid, item_id in boundary.open.items()},
            [packed_ids.get(item_id, item_id + shift) for item_id in boundary.front],
            {packed_ids.get(item_id, item_id + shift): errors for item_id, errors in boundary.errors.items()},
            0,
            boundary.first_id + shift,
            boundary.next_id + shift,
        )
