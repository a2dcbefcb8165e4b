"""The segment log of a queue: the state of the queue at the end of each rotated file, and at a *checkpoint*.

A checkpoint is a position in the current file. A start restores the last state that the log has, and replays only the
records after it. After damage to a journal file, the removals in later files would drop wrong items. With the log a
start can restore the positions that they depend on (`kestrel.journal.realign`). The log is optional and never synced.
A lost or wrong record only means that the state there is unknown.

An item's id in the log is the number of items that the journal's files add before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import crc32

from kestrel.disk.files import Disk, FileIdentity
from kestrel.disk.folders import SEGMENTS_FOLDER
from kestrel.disk.reader import FileReader
from kestrel.journal.fileset import current_name, rotated_name
from kestrel.journal.rewrite import Boundary

MAX_SEGMENT_IDS: Final = 20_000
"""Limit of the ids in a record. A state with more open reads and front items is not logged."""

MAX_LOG_BYTES: Final = 16 << 20
"""Limit of the bytes that are read from a log."""

SAMPLE_BYTES: Final = 4096
"""Bytes at the start of the current file, and before a checkpoint, whose checksum shows that it is the same file."""

_VERSION: Final = 2
"""Start value of the checksums, so that records of another layout are ignored."""
_FRAME: Final = Struct("<II")
"""Length and CRC-32 of a record."""
_HEADER: Final = Struct("<qQQqqIqqqqiIII")
"""number, inode, next inode, size, time of the last write, checksum of the sample, start id, first id, next id, waiting
bytes, last xid, and the numbers of open reads, front items and error counts."""
_OPEN: Final = Struct("<iq")
_FRONT: Final = Struct("<q")
_ERRORS: Final = Struct("<qi")

_NO_FILE: Final = FileIdentity(0, 0, 0)


class Segment(NamedTuple):
    """A rotated file, or the current file up to a checkpoint, and the state of the queue at its end.

    The inodes distinguish a file from one with the same name that another program has written. 0 means unknown.
    """

    boundary: Boundary
    """State of the queue at the end. Its `end` is 0, because the log does not have it."""
    size: int
    """Size of the file, or offset of the checkpoint."""
    start_id: int
    """Id of the file's first item."""
    inode: int
    next_inode: int = 0
    """Inode of the file that follows a rotated file."""
    written_ns: int = 0
    """Time of the last write to a rotated file."""
    sample_checksum: int = 0
    """CRC-32 of the first and the last `SAMPLE_BYTES` bytes before a checkpoint."""

    @property
    def number(self) -> int:
        """Number in the file's name, or 0 for a checkpoint."""
        return self.boundary.number

    def describes(self, identity: FileIdentity) -> bool:
        """Return whether a rotated file has not changed since the record was written."""
        return identity == (self.inode, self.size, self.written_ns)


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
                segment.written_ns,
                segment.sample_checksum,
                segment.start_id,
                boundary.first_id,
                boundary.next_id,
                boundary.waiting_bytes,
                boundary.last_xid,
                len(boundary.open),
                len(boundary.front),
                len(boundary.errors),
            ),
            *(_OPEN.pack(xid, item_id) for xid, item_id in boundary.open.items()),
            *map(_FRONT.pack, boundary.front),
            *(_ERRORS.pack(item_id, errors) for item_id, errors in boundary.errors.items()),
        )
    )
    return _FRAME.pack(len(payload), crc32(payload, _VERSION)) + payload


def decode_segments(data: bytes) -> Iterator[Segment]:
    """Yield the segments of a log up to the first record that is incomplete or damaged."""
    position = 0
    while position + _FRAME.size <= len(data):
        size, checksum = _FRAME.unpack_from(data, position)
        payload = data[position + _FRAME.size : position + _FRAME.size + size]
        if len(payload) != size or crc32(payload, _VERSION) != checksum:
            return
        try:
            yield _decode_payload(payload)
        except StructError:
            return
        position += _FRAME.size + size


def _decode_payload(payload: bytes) -> Segment:
    (
        number,
        inode,
        next_inode,
        size,
        written_ns,
        sample_checksum,
        start_id,
        first_id,
        next_id,
        waiting_bytes,
        last_xid,
        open_count,
        front_count,
        error_count,
    ) = _HEADER.unpack_from(payload)
    front_start = _HEADER.size + open_count * _OPEN.size
    errors_start = front_start + front_count * _FRONT.size
    end = errors_start + error_count * _ERRORS.size
    opened = dict(_OPEN.iter_unpack(payload[_HEADER.size : front_start]))
    front = [item_id for (item_id,) in _FRONT.iter_unpack(payload[front_start:errors_start])]
    errors = dict(_ERRORS.iter_unpack(payload[errors_start:end]))
    counted = sum(item_id in errors for item_id in opened.values())
    counted += max((index + 1 for index, item_id in enumerate(front) if item_id in errors), default=0)
    boundary = Boundary(number, 0, opened, front, errors, counted, first_id, next_id, waiting_bytes, last_xid)
    return Segment(boundary, size, start_id, inode, next_inode, written_ns, sample_checksum)


class SegmentLog:
    """The segment log of one queue. No method raises OSError; a log that cannot be written is erased or ignored."""

    def __init__(self, disk: Disk, folder: bytes, queue: bytes) -> None:
        self._disk = disk
        self._folder = folder
        self._queue = queue
        self._path = folder + b"/" + SEGMENTS_FOLDER + b"/" + current_name(queue)
        self._packed_ids: dict[int, int] = {}
        """Log ids of the items that a pack has written out of order, by item id."""
        self._start_id = 0
        """Log id of the current file's first item."""
        self._shift = 0
        """Difference between the log id and the id of all other items."""

    def read(self) -> tuple[list[Segment], Segment | None]:
        """Return the segments of the rotated files, in the order of replay, and the last checkpoint."""
        segments, checkpoint = [], None
        for segment in decode_segments(self._read_bytes()):
            if segment.number:
                segments.append(segment)
            else:
                checkpoint = segment
        return segments, checkpoint

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
        """Append a record for the file of `size` bytes that was just rotated, with the state at its end.

        A boundary without a number is a checkpoint of the current file at the offset `size`.
        """
        records = self._encoded([(boundary, size)])
        with suppress(OSError):
            self._disk.make_folder(self._folder + b"/" + SEGMENTS_FOLDER)
            self._write(self._path, records)

    def replace(self, files: Iterable[tuple[Boundary, int]]) -> None:
        """Rewrite the log with only `files`: the boundary and the size of each file, in the order of replay.

        The last one may be a checkpoint.
        """
        self._start_id = 0
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
        self._start_id = 0

    def _write(self, path: bytes, records: bytes) -> None:
        descriptor = self._disk.open_append(path)
        try:
            self._disk.write(descriptor, records)
        finally:
            self._disk.close(descriptor)

    def sample_checksum(self, size: int) -> int | None:
        """Return the checksum of a sample of the current file's first `size` bytes, or None if it has fewer."""
        sample_bytes = min(size, SAMPLE_BYTES)
        with suppress(OSError), FileReader(self._disk, self._folder + b"/" + current_name(self._queue)) as reader:
            if reader.size >= size:
                return crc32(reader.read(0, sample_bytes) + reader.read(size - sample_bytes, sample_bytes))
        return None

    def _encoded(self, files: Iterable[tuple[Boundary, int]]) -> bytes:
        return b"".join(map(encode_segment, self._segments(list(files))))

    def _segments(self, files: list[tuple[Boundary, int]]) -> Iterator[Segment]:
        current = current_name(self._queue)
        names = [rotated_name(self._queue, boundary.number) if boundary.number else current for boundary, _ in files]
        identities = list(map(self._identity, [*names, current] if names else []))
        for (boundary, size), identity, following in zip(files, identities, identities[1:], strict=False):
            logged, start_id = self._in_log_ids(boundary), self._start_id
            if boundary.number:
                self._start_id = logged.next_id
            if boundary.id_count > MAX_SEGMENT_IDS:
                continue
            checksum = None if boundary.number else self.sample_checksum(size)
            if boundary.number:
                yield Segment(logged, size, start_id, identity.inode, following.inode, identity.written_ns)
            elif checksum is not None:
                yield Segment(logged, size, start_id, identity.inode, sample_checksum=checksum)

    def _identity(self, file_name: bytes) -> FileIdentity:
        try:
            return self._disk.identity(self._folder + b"/" + file_name)
        except OSError:
            return _NO_FILE

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
            boundary.waiting_bytes,
            boundary.last_xid,
        )
