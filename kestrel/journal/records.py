"""One journal record: values to bytes and bytes to values.

An item in its ADDX record is also how a queue's window holds it in memory: one bytes object costs 74 bytes
over the data, an object with fields 170, and a child of a fanout queue can share it.
"""

from __future__ import annotations

from typing import Final, cast

from kestrel.disk.records import BufferAlone, DamagedRecord, UnfinishedRecord, Whole
from kestrel.item import Item
from kestrel.journal.announced_record import AnnouncedRecord
from kestrel.journal.opcodes import (
    ADD_HEADER,
    ADDX_HEADER,
    BARE_SIZE,
    STATE_DUMP_RECORD,
    XID_ITEM_HEADER,
    XID_RECORD,
    Opcode,
)

ADDX_HEADER_BYTES: Final = ADDX_HEADER.size
XID_RECORD_BYTES: Final = XID_RECORD.size
REMOVE_RECORD: Final = bytes([Opcode.REMOVE])
MAX_DATA_BYTES: Final = (1 << 31) - 1 - 16
"""The size field is a signed 32-bit number that counts the two times as well."""

_ADDX: Final = int(Opcode.ADDX)
_ADDX_OPCODE: Final = bytes([Opcode.ADDX])
_CONTINUE: Final = int(Opcode.CONTINUE)
_TIMES_BYTES: Final = 16
_EXPIRY_S_BYTES: Final = 4
_CONTINUE_END_MS: Final = 1 << 44
"""Opcode 8 has two meanings: in a STATE_DUMP an ADD_XID stands where a CONTINUE has its add time, and reads as more."""

_pack_addx = ADDX_HEADER.pack
_unpack_addx = ADDX_HEADER.unpack_from
_pack_xid = XID_RECORD.pack


def encode_item(data: bytes, add_ms: int, expiry_ms: int) -> bytes:
    """The ADDX record of an item."""
    return _pack_addx(_ADDX, _TIMES_BYTES + len(data), add_ms, expiry_ms) + data


PLACEHOLDER: Final = encode_item(b"", 0, 1)
"""The record that takes the place of an item that is gone: `kestrel.item.Item.is_placeholder`."""


def decode_item(record: bytes) -> Item:
    """The item of an ADDX record."""
    _, _, add_ms, expiry_ms = _unpack_addx(record)
    item = Item(record[ADDX_HEADER_BYTES:], add_ms, expiry_ms)
    if type(record) is not bytes:
        item.xid = cast(AnnouncedRecord, record).xid
    return item


def encode_announced_item(data: bytes, add_ms: int, expiry_ms: int, xid: int) -> bytes:
    """The ADDX record of an item which knows the xid that an older release's ADD_XID announced for its opening."""
    record = AnnouncedRecord(encode_item(data, add_ms, expiry_ms))
    record.xid = xid
    return record


def encode_open(xid: int) -> bytes:
    """The head becomes an open read under that xid."""
    return _pack_xid(Opcode.REMOVE_TENTATIVE_XID, xid)


def encode_confirm(xid: int) -> bytes:
    """That open read is finished."""
    return _pack_xid(Opcode.CONFIRM_REMOVE, xid)


def encode_put_back(xid: int, errors: int | None = None) -> bytes:
    """That open read goes back to the head: with so many errors, or None with one more than it had."""
    unremove = _pack_xid(Opcode.UNREMOVE, xid)
    return unremove if errors is None else _pack_xid(Opcode.SAVE_XID, errors) + unremove


def encode_continued_item(data: bytes, add_ms: int, expiry_ms: int) -> bytes:
    """The ADDX record of an item that a CONTINUE adds.

    Its add time is one that no reader takes for the beginning of an ADD_XID, whatever follows in the file: 1 ms later
    where its first byte would be that opcode, and within what a CONTINUE can say.
    """
    add_ms = min(max(add_ms, 0), _CONTINUE_END_MS - 1)
    return encode_item(data, add_ms + (add_ms & 0xFF == Opcode.ADD_XID), expiry_ms)


def encode_continue(xid: int, item_record: bytes) -> bytes:
    """That open read is finished and that item, an `encode_continued_item`, stands at the tail: both or neither."""
    return _pack_xid(Opcode.CONTINUE, xid) + item_record[1:]


def added_item(record: bytes) -> bytes | None:
    """The ADDX record of the item that a record of ours adds, or None."""
    if record[0] == _ADDX:
        return record
    return _ADDX_OPCODE + record[XID_RECORD_BYTES:] if record[0] == _CONTINUE else None


class JournalFileRecord:
    """One record, and how many bytes of the file it takes.

    `xid`, `data`, `add_ms` and `expiry_ms` are set where the opcode has them; ADD has no add time (None).
    `restates` is None but for a STATE_DUMP, which shares CONTINUE's opcode: then how many open reads it restates.
    `errors` is None but for an UNREMOVE whose item goes back with so many errors, as the record before it says
    (`kestrel.journal.error_counts`); without that it has one more than before.
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
        """What the format calls it."""
        return self.opcode.name if self.restates is None else "STATE_DUMP"


_XID_ONLY: Final = frozenset({Opcode.SAVE_XID, Opcode.UNREMOVE, Opcode.CONFIRM_REMOVE, Opcode.REMOVE_TENTATIVE_XID})
_BARE: Final = frozenset({Opcode.REMOVE, Opcode.REMOVE_TENTATIVE})
_HEADER_BYTES: Final = {
    **dict.fromkeys(_BARE, BARE_SIZE),
    **dict.fromkeys(_XID_ONLY, XID_RECORD.size),
    Opcode.ADD: ADD_HEADER.size,
    Opcode.ADDX: ADDX_HEADER.size,
    Opcode.ADD_XID: XID_ITEM_HEADER.size,
    Opcode.CONTINUE: XID_ITEM_HEADER.size,
}


def _state_dump(whole: Whole, offset: int) -> JournalFileRecord | None:
    """The STATE_DUMP that begins there, or None if that is a CONTINUE: they share an opcode.

    A STATE_DUMP's second number counts the ADD_XIDs that follow it and end the file; a CONTINUE's is a size and
    at least 16, and eight bytes of time follow it, where the other has an ADD_XID, which reads as a later time.
    """
    restated = offset + STATE_DUMP_RECORD.size
    if restated > whole.length:
        raise UnfinishedRecord(STATE_DUMP_RECORD.size)
    _, xid, count = STATE_DUMP_RECORD.unpack(whole.look(offset, STATE_DUMP_RECORD.size))
    if count < _TIMES_BYTES:
        if _end_of_restated(whole, restated, count) != whole.length:
            raise DamagedRecord("something follows a STATE_DUMP")
    else:
        try:
            if _end_of_restated(whole, restated, count) != whole.length:
                return None
        except (UnfinishedRecord, DamagedRecord):
            return None
    return JournalFileRecord(Opcode.CONTINUE, whole.length - offset, xid, restates=count)


def _end_of_restated(whole: Whole, offset: int, count: int) -> int:
    """The end of so many ADD_XIDs."""
    if count < 0:
        raise DamagedRecord(f"impossible size {count}")
    for _ in range(count):
        header = whole.look(offset, XID_ITEM_HEADER.size)
        if header and header[0] != Opcode.ADD_XID:
            raise DamagedRecord("a STATE_DUMP restates something else than open reads")
        if len(header) < XID_ITEM_HEADER.size:
            raise UnfinishedRecord(whole.length + 1)
        size = XID_ITEM_HEADER.unpack(header)[2]
        if size < _TIMES_BYTES:
            raise DamagedRecord(f"impossible size {size}")
        offset += XID_ITEM_HEADER.size - _TIMES_BYTES + size
        if offset > whole.length:
            raise UnfinishedRecord(whole.length + 1)
    return offset


def decode_record(buffer: bytes, offset: int, whole: Whole | None = None) -> JournalFileRecord:
    """The record that begins at `offset` of a buffer, which is all there is or the beginning of `whole`.

    Raises `UnfinishedRecord` when the bytes end too early and `DamagedRecord` when they are no record.
    """
    try:
        opcode = Opcode(buffer[offset])
    except ValueError:
        raise DamagedRecord(f"unknown opcode {buffer[offset]}") from None
    if opcode is Opcode.CONTINUE and (
        state_dump := _state_dump(whole or BufferAlone(buffer), offset)
    ) is not None:
        return state_dump
    start = offset + _HEADER_BYTES[opcode]
    if start > len(buffer):
        raise UnfinishedRecord(_HEADER_BYTES[opcode])
    if opcode in _BARE:
        return JournalFileRecord(opcode, BARE_SIZE)
    if opcode in _XID_ONLY:
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
            raise DamagedRecord("neither a CONTINUE nor a STATE_DUMP")
    if size < counted:
        raise DamagedRecord(f"impossible size {size}")
    end = start + size - counted
    if end > len(buffer):
        raise UnfinishedRecord(end - offset)
    return JournalFileRecord(opcode, end - offset, xid, buffer[start:end], add_ms, expiry_ms)
