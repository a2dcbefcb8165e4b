"""Encoding and decoding of the records of writer and reader files.

Queues also keep items in memory as PUT records, as `kestrel.journal.records` explains.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from kestrel.disk.reader import BufferSource, ByteSource, DamagedRecord, UnfinishedRecord
from kestrel.item import Item

WRITER_MAGIC: Final = bytes.fromhex("27642603")
READER_MAGIC: Final = bytes.fromhex("263C2603")
"""The first bytes of writer and of reader files."""

MAX_DATA_BYTES: Final = 16 * 1024 * 1024
"""Limit of the data of a record, which libkestrel has too."""

LARGEST_ID: Final = (1 << 62) - 1
"""The largest valid id. A larger one is damage, so that new items always get ids above those that were read."""

BELOW_ALL_IDS: Final = -(1 << 63) - 1
"""A number below every id that a file can contain."""

MAX_IDS_PER_RECORD: Final = 1 << 20
"""Limit of the ids, ranges or error counts in one record of a reader file."""


class RecordCommand(IntEnum):
    """The type of a record. libkestrel knows 0, 8 and 9, and skips the others."""

    READ_HEAD = 0
    PUT = 8
    READ_DONE = 9
    ERRORS = 10
    DONE_RANGES = 11
    TARGETS = 12
    DELETED = 13
    HELD = 14
    CHECKSUM = 15


PUT_BYTES: Final = 25
"""Size of a PUT without its data, for an item that never expires."""

PUT_EXPIRING_BYTES: Final = 33
"""Size of a PUT without its data, for an item that expires."""

_PUT: Final = int(RecordCommand.PUT)
_READ_HEAD: Final = int(RecordCommand.READ_HEAD)
_HELD: Final = int(RecordCommand.HELD)
_WITH_DATA: Final = 8
"""The first command with data. The first header word of such a record is the size of the data."""

_WORD_BYTES: Final = 4
_PUT_WORDS: Final = 6
_PUT_EXPIRING_WORDS: Final = 8
_PUT_HEADERS: Final = (_PUT_WORDS, *range(_PUT_EXPIRING_WORDS, 16))
"""Valid numbers of header words of a PUT. With seven words the expiry would reach into the data."""
_ID_BYTES: Final = 8
_ID_AT: Final = 9
"""Offset of the id in a PUT."""

_PUT_HEADER: Final = Struct("<Biiqq")
_PUT_EXPIRING_HEADER: Final = Struct("<Biiqqq")
_READ_HEAD_RECORD: Final = Struct("<Bq")
_DATA_HEADER: Final = Struct("<Bi")
_COUNT: Final = Struct("<i")
_ID: Final = Struct("<q")
_ERRORS_ENTRY: Final = Struct("<qi")
_CHECKSUM: Final = Struct("<I")

PUT_FIRST_BYTE: Final = _PUT << 4 | _PUT_WORDS
EXPIRING_PUT_FIRST_BYTE: Final = _PUT << 4 | _PUT_EXPIRING_WORDS
"""The first bytes of a PUT in its usual forms."""

PUT_HEAD: Final = Struct("<iiq")
"""The fields after the first byte of a PUT: size of the data, errors, id."""

_ENTRY_BYTES: Final = {
    int(RecordCommand.READ_DONE): _ID_BYTES,
    int(RecordCommand.DONE_RANGES): 2 * _ID_BYTES,
    int(RecordCommand.ERRORS): _ERRORS_ENTRY.size,
}

_pack_put = _PUT_HEADER.pack
_pack_expiring_put = _PUT_EXPIRING_HEADER.pack


# Values to bytes.


def encode_put(item_id: int, data: bytes, add_ms: int, expiry_ms: int, errors: int = 0) -> bytes:
    """Return the PUT record of an item with at most `MAX_DATA_BYTES` bytes. `expiry_ms` 0 means never."""
    if expiry_ms:
        return _pack_expiring_put(EXPIRING_PUT_FIRST_BYTE, len(data), errors, item_id, add_ms, expiry_ms) + data
    return _pack_put(PUT_FIRST_BYTE, len(data), errors, item_id, add_ms) + data


def encode_read_head(item_id: int) -> bytes:
    """Return a READ_HEAD record: all ids up to `item_id` are done."""
    return _READ_HEAD_RECORD.pack(_READ_HEAD << 4 | 2, item_id)


def encode_read_done(ids: Sequence[int]) -> bytes:
    """Return READ_DONE records of at most `MAX_IDS_PER_RECORD` done ids each; one empty record if there are no ids."""
    return b"".join(
        _with_data(RecordCommand.READ_DONE, _little_endian(ids[start : start + MAX_IDS_PER_RECORD]))
        for start in range(0, max(1, len(ids)), MAX_IDS_PER_RECORD)
    )


def encode_done_ranges(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return DONE_RANGES records of at most `MAX_IDS_PER_RECORD` ranges each. Both ends of a range are included."""
    return b"".join(
        _with_data(
            RecordCommand.DONE_RANGES,
            _little_endian(each for pair in ranges[start : start + MAX_IDS_PER_RECORD] for each in pair),
        )
        for start in range(0, len(ranges), MAX_IDS_PER_RECORD)
    )


def encode_errors(errors: Mapping[int, int]) -> bytes:
    """Return ERRORS records of at most `MAX_IDS_PER_RECORD` error counts each; nothing if there are none."""
    entries = [_ERRORS_ENTRY.pack(item_id, count) for item_id, count in errors.items()]
    return b"".join(
        _with_data(RecordCommand.ERRORS, b"".join(entries[start : start + MAX_IDS_PER_RECORD]))
        for start in range(0, len(entries), MAX_IDS_PER_RECORD)
    )


class Targets(NamedTuple):
    """The readers that get the next PUT: only `readers`, or all except `readers`."""

    readers: frozenset[bytes]
    """Names as in the file names. The parent queue is always `kestrel.scroll.name_encoding.OWN_READER`."""

    are_left_out: bool
    """True if all readers except `readers` get the PUT."""

    def has(self, reader: bytes) -> bool:
        """Return whether `reader` gets the PUT."""
        return (reader in self.readers) is not self.are_left_out


def encode_targets(targets: Targets) -> bytes:
    """Return a TARGETS record, which names the readers of the next PUT."""
    names = b"".join(bytes([len(name)]) + name for name in sorted(targets.readers))
    return _with_data(RecordCommand.TARGETS, bytes([targets.are_left_out]) + names)


def _with_data(command: RecordCommand, data: bytes) -> bytes:
    return _DATA_HEADER.pack(command << 4 | 1, len(data)) + data


def _little_endian(numbers: Iterable[int]) -> bytes:
    return _swapped(array("q", numbers)).tobytes()


def _numbers(data: bytes) -> array[int]:
    return _swapped(array("q", data))


def _swapped(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


DELETED_RECORD: Final = _with_data(RecordCommand.DELETED, b"")
"""A record that deletes the reader, whatever other records its file has."""


class Held(NamedTuple):
    """A claim of a client that reads items by their ids."""

    by: bytes
    """Name of the client."""
    head: int
    """Id of the last item that the client has released. Later items are kept for the client."""


def encode_held(held: Held | None) -> bytes:
    """Return a HELD record with a new claim, or one that ends the claim if `held` is None."""
    return _with_data(RecordCommand.HELD, b"" if held is None else _ID.pack(held.head) + held.by)


def encode_checksum(checksum: int) -> bytes:
    """Return a CHECKSUM record: `checksum` is the CRC-32 of the bytes since the previous one, or since the start."""
    return _with_data(RecordCommand.CHECKSUM, _CHECKSUM.pack(checksum))


# Bytes to values.


def decode_put(record: bytes) -> Item:
    """Return the item of a complete PUT record. An expiry of 0, which libkestrel does not write, means never."""
    words = record[0] & 15
    if words < _PUT_EXPIRING_WORDS:
        _, _, errors, item_id, add_ms = _PUT_HEADER.unpack_from(record)
        expiry_ms = 0
    else:
        _, _, errors, item_id, add_ms, expiry_ms = _PUT_EXPIRING_HEADER.unpack_from(record)
    item = Item(record[1 + words * _WORD_BYTES :], add_ms, expiry_ms, errors)
    item.id = item_id
    return item


def id_of(record: bytes) -> int:
    """Return the id of the item in a PUT record."""
    item_id: int = _ID.unpack_from(record, _ID_AT)[0]
    return item_id


def data_bytes(record: bytes) -> int:
    """Return the size of the data in a PUT record."""
    size: int = _COUNT.unpack_from(record, 1)[0]
    return size


class ScrollFileRecord:
    """A decoded record. `size` is its size in the file in bytes.

    `command` may be a number that is not in `RecordCommand`. `item_id` is the id of a PUT, the head of a READ_HEAD or
    HELD, or 0.
    """

    __slots__ = ("_buffer", "_data_at", "_position", "command", "item_id", "size")

    def __init__(self, command: int, size: int, item_id: int, buffer: bytes, position: int, data_at: int) -> None:
        self.command = command
        self.size = size
        self.item_id = item_id
        self._buffer = buffer
        self._position = position
        self._data_at = data_at

    @property
    def name(self) -> str:
        """Name of the record's type in the documentation of the format."""
        try:
            return RecordCommand(self.command).name
        except ValueError:
            return "UNKNOWN"

    @property
    def raw(self) -> bytes:
        """All bytes of the record, such as `decode_put` needs."""
        return self._buffer[self._position : self._position + self.size]

    @property
    def data(self) -> bytes:
        """The bytes after the header, which are the item of a PUT."""
        return self._buffer[self._data_at : self._position + self.size]

    @property
    def data_size(self) -> int:
        """Size of the data in bytes."""
        return self._position + self.size - self._data_at

    @property
    def ids(self) -> Sequence[int]:
        """The ids of a READ_DONE."""
        return _numbers(self.data)

    @property
    def ranges(self) -> Iterable[tuple[int, int]]:
        """The ranges of a DONE_RANGES, each as its first and last id."""
        numbers = _numbers(self.data)
        return zip(numbers[::2], numbers[1::2], strict=True)

    @property
    def errors(self) -> Mapping[int, int]:
        """The error counts of an ERRORS, by id. The last count of an id is valid; negative ones are ignored."""
        return {item_id: count for item_id, count in _ERRORS_ENTRY.iter_unpack(self.data) if count >= 0}

    @property
    def targets(self) -> Targets | None:
        """The targets of a TARGETS, or None if its data is invalid, since another program may use the command."""
        data = self.data
        if not data or data[0] > 1:
            return None
        readers, position = [], 1
        while position < len(data):
            end = position + 1 + data[position]
            if end > len(data):
                return None
            readers.append(data[position + 1 : end])
            position = end
        return Targets(frozenset(readers), data[0] == 1)

    @property
    def held(self) -> Held | None:
        """The claim of a HELD, or None if it ends the claim."""
        data = self.data
        return Held(data[_ID_BYTES:], self.item_id) if len(data) > _ID_BYTES else None

    @property
    def checksum(self) -> int | None:
        """The CRC-32 of a CHECKSUM, or None if its data has a wrong size."""
        if self.data_size != _CHECKSUM.size:
            return None
        checksum: int = _CHECKSUM.unpack(self.data)[0]
        return checksum


def decode_record(data: bytes, position: int, part: ByteSource | None = None) -> ScrollFileRecord | None:
    """Return the record that begins at `position` of `data`, or None at a zero byte, which ends a file.

    `data` is the beginning of `part`, or all bytes if there is no `part`. The rest of a record that is longer than
    `data` is read from `part`, after its size is checked. Raise `UnfinishedRecord` if the bytes end too early and
    `DamagedRecord` if they are not a record.
    """
    first = data[position]
    if not first:
        return None
    source = part or BufferSource(data)
    command, words = first >> 4, first & 15
    data_at = position + 1 + words * _WORD_BYTES
    if command < _WITH_DATA:
        if command == _READ_HEAD and words < 2:
            raise DamagedRecord("a READ_HEAD without its id")
        end = data_at
    else:
        if words not in _PUT_HEADERS if command == _PUT else words < 1:
            raise DamagedRecord(f"impossible header of {words} words")
        if data_at > source.length:
            raise UnfinishedRecord(data_at - position)
        size: int = _COUNT.unpack(source.read_at(position + 1, _COUNT.size))[0]
        if not 0 <= size <= MAX_DATA_BYTES:
            raise DamagedRecord(f"impossible size {size}")
        if command in _ENTRY_BYTES and size % _ENTRY_BYTES[command]:
            raise DamagedRecord(f"impossible size {size}")
        end = data_at + size
    if end > source.length:
        raise UnfinishedRecord(end - position)
    if end > len(data):
        data = source.read_at(position, end - position)
        data_at, end, position = data_at - position, end - position, 0
    item_id = 0
    if command == _PUT:
        item_id = _ID.unpack_from(data, position + _ID_AT)[0]
    elif command == _READ_HEAD:
        item_id = _ID.unpack_from(data, position + 1)[0]
    elif command == _HELD and end - data_at > _ID_BYTES:
        item_id = _ID.unpack_from(data, data_at)[0]
    record = ScrollFileRecord(command, end - position, item_id, data, position, data_at)
    if (_largest_done(record) if command in _ENTRY_BYTES else item_id) > LARGEST_ID:
        raise DamagedRecord("impossible id")
    return record


def _largest_done(record: ScrollFileRecord) -> int:
    return 0 if record.command == RecordCommand.ERRORS else max(_numbers(record.data), default=0)
