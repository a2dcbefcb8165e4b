"""One record of a writer or reader file: values to bytes and bytes to values.

An item in its PUT record is also how a queue's window holds it in memory, as with `kestrel.journal.records`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from kestrel.disk.records import BufferAlone, DamagedRecord, UnfinishedRecord, Whole
from kestrel.item import Item

WRITER_MAGIC: Final = bytes.fromhex("27642603")
READER_MAGIC: Final = bytes.fromhex("263C2603")
"""What the files begin with."""

MAX_DATA_BYTES: Final = 16 * 1024 * 1024
"""Of any record; libkestrel takes no larger one."""

LARGEST_ID: Final = (1 << 62) - 1
"""A larger one is damage, so that there always are ids behind those that were read."""

BELOW_ALL_IDS: Final = -(1 << 63) - 1
"""Below whatever a file can say."""

MAX_IDS_PER_RECORD: Final = 1 << 20
"""In one record of a reader file; ranges and error counts as well."""


class RecordCommand(IntEnum):
    """What a record is. Behind those of libkestrel come ours, which it skips."""

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
"""Of a PUT without its data, for an item that never expires."""

PUT_EXPIRING_BYTES: Final = 33
"""Of a PUT without its data, for any other item."""

_PUT: Final = int(RecordCommand.PUT)
_READ_HEAD: Final = int(RecordCommand.READ_HEAD)
_HELD: Final = int(RecordCommand.HELD)
_WITH_DATA: Final = 8
"""Commands from here on have data, whose size is their first header word."""

_WORD_BYTES: Final = 4
_PUT_WORDS: Final = 6
_PUT_EXPIRING_WORDS: Final = 8
_PUT_HEADERS: Final = (_PUT_WORDS, *range(_PUT_EXPIRING_WORDS, 16))
"""How many words a PUT's header may have. With seven words the expiry would reach into the data."""
_ID_BYTES: Final = 8
_ID_AT: Final = 9
"""In a PUT, where the id stands."""

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
"""The first byte of a PUT in its usual forms."""

PUT_HEAD: Final = Struct("<iiq")
"""What stands behind it: how many bytes of data, errors, id."""

_ENTRY_BYTES: Final = {
    int(RecordCommand.READ_DONE): _ID_BYTES,
    int(RecordCommand.DONE_RANGES): 2 * _ID_BYTES,
    int(RecordCommand.ERRORS): _ERRORS_ENTRY.size,
}

_pack_put = _PUT_HEADER.pack
_pack_expiring_put = _PUT_EXPIRING_HEADER.pack


# Values to bytes.


def encode_put(item_id: int, data: bytes, add_ms: int, expiry_ms: int, errors: int = 0) -> bytes:
    """The PUT of an item, of at most `MAX_DATA_BYTES`; `expiry_ms` 0 is never."""
    if expiry_ms:
        return _pack_expiring_put(EXPIRING_PUT_FIRST_BYTE, len(data), errors, item_id, add_ms, expiry_ms) + data
    return _pack_put(PUT_FIRST_BYTE, len(data), errors, item_id, add_ms) + data


def encode_read_head(item_id: int) -> bytes:
    """Everything up to that id is done."""
    return _READ_HEAD_RECORD.pack(_READ_HEAD << 4 | 2, item_id)


def encode_read_done(ids: Sequence[int]) -> bytes:
    """Those ids are done: one record, also for none, or one for each `MAX_IDS_PER_RECORD`."""
    return b"".join(
        _with_data(RecordCommand.READ_DONE, _little_endian(ids[start : start + MAX_IDS_PER_RECORD]))
        for start in range(0, max(1, len(ids)), MAX_IDS_PER_RECORD)
    )


def encode_done_ranges(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Encode ranges of done ids, both ends included, as records of at most `MAX_IDS_PER_RECORD` ids each."""
    return b"".join(
        _with_data(
            RecordCommand.DONE_RANGES,
            _little_endian(each for pair in ranges[start : start + MAX_IDS_PER_RECORD] for each in pair),
        )
        for start in range(0, len(ranges), MAX_IDS_PER_RECORD)
    )


def encode_errors(errors: Mapping[int, int]) -> bytes:
    """Those ids have so many errors: a record for each `MAX_IDS_PER_RECORD`, for none nothing."""
    entries = [_ERRORS_ENTRY.pack(item_id, count) for item_id, count in errors.items()]
    return b"".join(
        _with_data(RecordCommand.ERRORS, b"".join(entries[start : start + MAX_IDS_PER_RECORD]))
        for start in range(0, len(entries), MAX_IDS_PER_RECORD)
    )


class Targets(NamedTuple):
    """For whom the PUT is that follows: for these readers alone, or for all but these."""

    readers: frozenset[bytes]
    """Names as in the file names. The parent's own is always `kestrel.scroll.name_encoding.OWN_READER`."""

    are_left_out: bool

    def has(self, reader: bytes) -> bool:
        """Whether it is for that one."""
        return (reader in self.readers) is not self.are_left_out


def encode_targets(targets: Targets) -> bytes:
    """The next PUT is for those readers."""
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
"""This reader is deleted: whatever else its file says, there is no such reader."""


class Held(NamedTuple):
    """Somebody reads this reader's items by their ids."""

    by: bytes
    """What they call themselves."""
    head: int
    """They have released everything up to that id; what is behind it is kept for them."""


def encode_held(held: Held | None) -> bytes:
    """From here on that is so; or, for None, nobody reads by ids any more."""
    return _with_data(RecordCommand.HELD, b"" if held is None else _ID.pack(held.head) + held.by)


def encode_checksum(checksum: int) -> bytes:
    """Return a CHECKSUM record: `checksum` is the CRC-32 of the bytes since the previous one, or since the start."""
    return _with_data(RecordCommand.CHECKSUM, _CHECKSUM.pack(checksum))


# Bytes to values.


def decode_put(record: bytes) -> Item:
    """The item of a whole PUT record. An expiry of 0, which libkestrel does not write, is never."""
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
    """The item's id in a PUT record."""
    item_id: int = _ID.unpack_from(record, _ID_AT)[0]
    return item_id


def data_bytes(record: bytes) -> int:
    """How large the item of a PUT record is."""
    size: int = _COUNT.unpack_from(record, 1)[0]
    return size


class ScrollFileRecord:
    """One record, and how many bytes of the file it takes.

    `command` may be a number that `RecordCommand` does not know. `item_id` is the id of a PUT, or the head of a
    READ_HEAD or HELD.
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
        """What the format calls it."""
        try:
            return RecordCommand(self.command).name
        except ValueError:
            return "UNKNOWN"

    @property
    def raw(self) -> bytes:
        """All of its bytes: of a PUT, what `decode_put` takes."""
        return self._buffer[self._position : self._position + self.size]

    @property
    def data(self) -> bytes:
        """What stands behind its header: the item of a PUT."""
        return self._buffer[self._data_at : self._position + self.size]

    @property
    def data_size(self) -> int:
        """How many bytes that is."""
        return self._position + self.size - self._data_at

    @property
    def ids(self) -> Sequence[int]:
        """The ids of a READ_DONE."""
        return _numbers(self.data)

    @property
    def ranges(self) -> Iterable[tuple[int, int]]:
        """The ranges of a DONE_RANGES, each from its first id to its last."""
        numbers = _numbers(self.data)
        return zip(numbers[::2], numbers[1::2], strict=True)

    @property
    def errors(self) -> Mapping[int, int]:
        """The error counts of an ERRORS, by id. The last of an id counts, and none is negative."""
        return {item_id: count for item_id, count in _ERRORS_ENTRY.iter_unpack(self.data) if count >= 0}

    @property
    def targets(self) -> Targets | None:
        """Those of a TARGETS, or None if its data are none: then somebody else means something else by the command."""
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
        """What a HELD says, or None if it says that nothing is held."""
        data = self.data
        return Held(data[_ID_BYTES:], self.item_id) if len(data) > _ID_BYTES else None

    @property
    def checksum(self) -> int | None:
        """The CRC-32 in a CHECKSUM record, or None if its data have another size."""
        if self.data_size != _CHECKSUM.size:
            return None
        checksum: int = _CHECKSUM.unpack(self.data)[0]
        return checksum


def decode_record(data: bytes, position: int, part: Whole | None = None) -> ScrollFileRecord | None:
    """The record that begins there, or None at a zero byte, which ends a file.

    The bytes are all there is or the beginning of `part`; a record that goes on behind them is looked for there.
    Raises `UnfinishedRecord` when the whole ends before the record does, and `DamagedRecord` when it is none.
    No more than the size of the record is read, and that only when it is a possible size and there.
    """
    first = data[position]
    if not first:
        return None
    whole = part or BufferAlone(data)
    command, words = first >> 4, first & 15
    data_at = position + 1 + words * _WORD_BYTES
    if command < _WITH_DATA:
        if command == _READ_HEAD and words < 2:
            raise DamagedRecord("a READ_HEAD without its id")
        end = data_at
    else:
        if words not in _PUT_HEADERS if command == _PUT else words < 1:
            raise DamagedRecord(f"impossible header of {words} words")
        if data_at > whole.length:
            raise UnfinishedRecord(data_at - position)
        size: int = _COUNT.unpack(whole.look(position + 1, _COUNT.size))[0]
        if not 0 <= size <= MAX_DATA_BYTES:
            raise DamagedRecord(f"impossible size {size}")
        if command in _ENTRY_BYTES and size % _ENTRY_BYTES[command]:
            raise DamagedRecord(f"impossible size {size}")
        end = data_at + size
    if end > whole.length:
        raise UnfinishedRecord(end - position)
    if end > len(data):
        data = whole.look(position, end - position)
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
