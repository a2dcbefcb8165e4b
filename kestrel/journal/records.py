"""Encoding and decoding of journal records.

Queues also keep items in memory as ADDX records. One bytes object takes 74 bytes more than the data, an object with
fields 170, and the children of a fanout queue can share it.
"""

from __future__ import annotations

from typing import Final, cast

from kestrel.disk.reader import BufferSource, ByteSource, DamagedRecord, UnfinishedRecord
from kestrel.item import Item
from kestrel.journal.opcodes import (
    ADD_HEADER,
    ADDX_HEADER,
    BARE_OPCODES,
    BARE_SIZE,
    ITEM_OPCODES,
    STATE_DUMP_RECORD,
    XID_ITEM_HEADER,
    XID_OPCODES,
    XID_RECORD,
    AnnouncedRecord,
    Opcode,
)

ADDX_HEADER_BYTES: Final = ADDX_HEADER.size
XID_RECORD_BYTES: Final = XID_RECORD.size
REMOVE_RECORD: Final = bytes([Opcode.REMOVE])
MAX_DATA_BYTES: Final = (1 << 31) - 1 - 16
"""Limit of an item's data: the size field is a signed 32-bit number that includes the two times."""

_ADDX: Final = int(Opcode.ADDX)
_ADDX_OPCODE: Final = bytes([Opcode.ADDX])
_CONTINUE: Final = int(Opcode.CONTINUE)
_TIMES_BYTES: Final = 16
_ADDX_TIMES_AT: Final = ADDX_HEADER_BYTES - _TIMES_BYTES
_EXPIRY_S_BYTES: Final = 4
_CONTINUE_END_MS: Final = 1 << 44
"""Upper bound of a CONTINUE's add time. A STATE_DUMP has an ADD_XID there, which reads as a larger number."""

_pack_addx: Final = ADDX_HEADER.pack
_unpack_addx: Final = ADDX_HEADER.unpack_from
_pack_xid: Final = XID_RECORD.pack


def encode_item(data: bytes, add_ms: int, expiry_ms: int) -> bytes:
    """Return the ADDX record of an item. Times are in milliseconds since the epoch; `expiry_ms` 0 means never."""
    return _pack_addx(_ADDX, _TIMES_BYTES + len(data), add_ms, expiry_ms) + data


class ItemEncoder:
    """An encoder of ADDX records for one thread. Items of the same size and time share the bytes of their header."""

    def __init__(self) -> None:
        self._size = -1
        self._add_ms = self._expiry_ms = 0
        self._header = b""

    def encode(self, data: bytes, add_ms: int, expiry_ms: int) -> bytes:
        """Return the same record as `encode_item`."""
        size = len(data)
        if size != self._size or add_ms != self._add_ms or expiry_ms != self._expiry_ms:
            self._header = _pack_addx(_ADDX, _TIMES_BYTES + size, add_ms, expiry_ms)
            self._size, self._add_ms, self._expiry_ms = size, add_ms, expiry_ms
        return self._header + data


PLACEHOLDER: Final = encode_item(b"", 0, 1)
"""The record that replaces a removed or lost item (`kestrel.item.Item.is_placeholder`)."""


def decode_item(record: bytes) -> Item:
    """Return the item of an ADDX record."""
    _, _, add_ms, expiry_ms = _unpack_addx(record)
    item = Item(record[ADDX_HEADER_BYTES:], add_ms, expiry_ms)
    if type(record) is not bytes:
        item.xid = cast(AnnouncedRecord, record).xid
    return item


class ItemDecoder:
    """A decoder of ADDX records for one thread. It decodes the times of adjacent items once if they are equal."""

    def __init__(self) -> None:
        self._times = b""
        self._add_ms = self._expiry_ms = 0

    def decode(self, record: bytes) -> Item:
        """Return the same item as `decode_item`."""
        times = record[_ADDX_TIMES_AT:ADDX_HEADER_BYTES]
        if times != self._times:
            _, _, self._add_ms, self._expiry_ms = _unpack_addx(record)
            self._times = times
        item = Item(record[ADDX_HEADER_BYTES:], self._add_ms, self._expiry_ms)
        if type(record) is not bytes:
            item.xid = cast(AnnouncedRecord, record).xid
        return item


def encode_open(xid: int) -> bytes:
    """Return the record that makes the head an open read with the id `xid`."""
    return _pack_xid(Opcode.REMOVE_TENTATIVE_XID, xid)


def encode_confirm(xid: int) -> bytes:
    """Return the record that confirms an open read."""
    return _pack_xid(Opcode.CONFIRM_REMOVE, xid)


def encode_put_back(xid: int, errors: int | None = None) -> bytes:
    """Return the records that put an open read back at the head.

    The item then has `errors` errors, or one more than before if `errors` is None.
    """
    unremove = _pack_xid(Opcode.UNREMOVE, xid)
    return unremove if errors is None else _pack_xid(Opcode.SAVE_XID, errors) + unremove


def encode_continued_item(data: bytes, add_ms: int, expiry_ms: int) -> bytes:
    """Return the ADDX record of an item for a CONTINUE record.

    The add time is limited to the range of a CONTINUE. If its first byte would be the opcode of ADD_XID, it is 1 ms
    later. So no reader takes the CONTINUE for a STATE_DUMP.
    """
    add_ms = min(max(add_ms, 0), _CONTINUE_END_MS - 1)
    return encode_item(data, add_ms + (add_ms & 0xFF == Opcode.ADD_XID), expiry_ms)


def encode_continue(xid: int, item_record: bytes) -> bytes:
    """Return a CONTINUE record, which confirms an open read and adds an item at the tail in one step.

    `item_record` is a result of `encode_continued_item`.
    """
    return _pack_xid(Opcode.CONTINUE, xid) + item_record[1:]


def added_item(record: bytes) -> bytes | None:
    """Return the ADDX record of the item that an ADDX or CONTINUE record adds, or None for other records."""
    if record[0] == _ADDX:
        return record
    return _ADDX_OPCODE + record[XID_RECORD_BYTES:] if record[0] == _CONTINUE else None


class JournalFileRecord:
    """A decoded record. `size` is its size in the file in bytes.

    `xid`, `data`, `add_ms` and `expiry_ms` are set if the opcode has them; `add_ms` of an ADD is None.
    `restates` is the number of open reads that a STATE_DUMP restates, otherwise None; it shares the opcode of CONTINUE.
    `errors` is the error count that precedes an UNREMOVE (`cursor.ErrorCounts`), otherwise None. An UNREMOVE
    without an error count adds one error.
    """

    __slots__ = ("add_ms", "data", "errors", "expiry_ms", "opcode", "restates", "size", "xid")

    def __init__(
        self,
        opcode: Opcode,
        size: int,
        xid: int = 0,
        data: bytes = b"",
        add_ms: int | None = None,
        expiry_ms: int = 0,
        restates: int | None = None,
    ) -> None:
        self.opcode = opcode
        self.size = size
        self.xid = xid
        self.data = data
        self.add_ms = add_ms
        self.expiry_ms = expiry_ms
        self.restates = restates
        self.errors: int | None = None

    @property
    def name(self) -> str:
        """The name of the record's type in the documentation of the format."""
        return self.opcode.name if self.restates is None else "STATE_DUMP"

    @property
    def adds_item(self) -> bool:
        """Whether the record adds an item to the queue."""
        return self.opcode in ITEM_OPCODES and self.restates is None

    def item_record(self, now_ms: int) -> bytes:
        """Return the ADDX record of the item that the record adds. `now_ms` is its add time if the record has none.

        That of an ADD_XID also has the xid that an older release announced for the item's open read.
        """
        item = encode_item(self.data, now_ms if self.add_ms is None else self.add_ms, self.expiry_ms)
        if self.opcode is not Opcode.ADD_XID:
            return item
        announced = AnnouncedRecord(item)
        announced.xid = self.xid
        return announced


_HEADER_BYTES: Final = {
    **dict.fromkeys(BARE_OPCODES, BARE_SIZE),
    **dict.fromkeys(XID_OPCODES, XID_RECORD.size),
    Opcode.ADD: ADD_HEADER.size,
    Opcode.ADDX: ADDX_HEADER.size,
    Opcode.ADD_XID: XID_ITEM_HEADER.size,
    Opcode.CONTINUE: XID_ITEM_HEADER.size,
}


def _state_dump(source: ByteSource, offset: int) -> JournalFileRecord | None:
    """Return the STATE_DUMP that begins at `offset`, or None if the record is a CONTINUE. They share an opcode.

    The second number of a STATE_DUMP counts the ADD_XIDs that follow it and end the file. The second number of a
    CONTINUE is a size of at least 16. Its add time follows, at the position where a STATE_DUMP has its first ADD_XID.
    """
    restated = offset + STATE_DUMP_RECORD.size
    if restated > source.length:
        raise UnfinishedRecord(STATE_DUMP_RECORD.size)
    _, xid, count = STATE_DUMP_RECORD.unpack(source.read_at(offset, STATE_DUMP_RECORD.size))
    if count < _TIMES_BYTES:
        if _end_of_restated(source, restated, count) != source.length:
            raise DamagedRecord("data follows a STATE_DUMP")
    else:
        try:
            if _end_of_restated(source, restated, count) != source.length:
                return None
        except (UnfinishedRecord, DamagedRecord):
            return None
    return JournalFileRecord(Opcode.CONTINUE, source.length - offset, xid, restates=count)


def _end_of_restated(source: ByteSource, offset: int, count: int) -> int:
    """Return the offset after `count` ADD_XIDs that begin at `offset`. Raise `DamagedRecord` or `UnfinishedRecord`."""
    if count < 0:
        raise DamagedRecord(f"impossible size {count}")
    for _ in range(count):
        header = source.read_at(offset, XID_ITEM_HEADER.size)
        if header and header[0] != Opcode.ADD_XID:
            raise DamagedRecord("a STATE_DUMP contains a record other than ADD_XID")
        if len(header) < XID_ITEM_HEADER.size:
            raise UnfinishedRecord(source.length + 1)
        size = XID_ITEM_HEADER.unpack(header)[2]
        if size < _TIMES_BYTES:
            raise DamagedRecord(f"impossible size {size}")
        offset += XID_ITEM_HEADER.size - _TIMES_BYTES + size
        if offset > source.length:
            raise UnfinishedRecord(source.length + 1)
    return offset


def decode_record(buffer: bytes, offset: int, source: ByteSource | None = None) -> JournalFileRecord:
    """Return the record that begins at `offset` of `buffer`.

    `buffer` is the beginning of `source`, or all bytes if there is no `source`. Raise `UnfinishedRecord` if the bytes
    end too early and `DamagedRecord` if they are not a record.
    """
    try:
        opcode = Opcode(buffer[offset])
    except ValueError:
        raise DamagedRecord(f"unknown opcode {buffer[offset]}") from None
    if opcode is Opcode.CONTINUE and (state_dump := _state_dump(source or BufferSource(buffer), offset)) is not None:
        return state_dump
    start = offset + _HEADER_BYTES[opcode]
    if start > len(buffer):
        raise UnfinishedRecord(_HEADER_BYTES[opcode])
    if opcode in BARE_OPCODES:
        return JournalFileRecord(opcode, BARE_SIZE)
    if opcode in XID_OPCODES:
        return JournalFileRecord(opcode, XID_RECORD.size, XID_RECORD.unpack_from(buffer, offset)[1])
    xid, add_ms = 0, None
    if opcode is Opcode.ADD:
        _, size, expiry_s = ADD_HEADER.unpack_from(buffer, offset)
        expiry_ms, counted = expiry_s * 1000, _EXPIRY_S_BYTES
    elif opcode is Opcode.ADDX:
        _, size, add_ms, expiry_ms = ADDX_HEADER.unpack_from(buffer, offset)
        counted = _TIMES_BYTES
    else:
        _, xid, size, add_ms, expiry_ms = XID_ITEM_HEADER.unpack_from(buffer, offset)
        counted = _TIMES_BYTES
        if opcode is Opcode.CONTINUE and not 0 <= add_ms < _CONTINUE_END_MS:
            raise DamagedRecord("opcode 8 is neither a CONTINUE nor a STATE_DUMP")
    if size < counted:
        raise DamagedRecord(f"impossible size {size}")
    end = start + size - counted
    if end > len(buffer):
        raise UnfinishedRecord(end - offset)
    return JournalFileRecord(opcode, end - offset, xid, buffer[start:end], add_ms, expiry_ms)
