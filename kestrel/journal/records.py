"""One journal record: values to bytes and bytes to values.

An item in its ADDX record is also how a queue's window holds it in memory: one bytes object costs 74 bytes
over the data, an object with fields 170, and a child of a fanout queue can share it.
"""

from __future__ import annotations

from mmap import mmap
from typing import Final

from kestrel.item import Item
from kestrel.journal.opcodes import (
    ADD_HEADER,
    ADDX_HEADER,
    BARE_SIZE,
    XID_ITEM_HEADER,
    XID_RECORD,
    Opcode,
)

ADDX_HEADER_BYTES: Final = ADDX_HEADER.size
REMOVE_RECORD: Final = bytes([Opcode.REMOVE])
MAX_DATA_BYTES: Final = (1 << 31) - 1 - 16
"""The size field is a signed 32-bit number that counts the two times as well."""

_ADDX: Final = int(Opcode.ADDX)
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


def decode_item(record: bytes) -> Item:
    """The item of an ADDX record."""
    _, _, add_ms, expiry_ms = _unpack_addx(record)
    return Item(record[ADDX_HEADER_BYTES:], add_ms, expiry_ms)


def encode_open(xid: int) -> bytes:
    """The head becomes an open read under that xid."""
    return _pack_xid(Opcode.REMOVE_TENTATIVE_XID, xid)


def encode_confirm(xid: int) -> bytes:
    """That open read is finished."""
    return _pack_xid(Opcode.CONFIRM_REMOVE, xid)


def encode_put_back(xid: int) -> bytes:
    """That open read goes back to the head."""
    return _pack_xid(Opcode.UNREMOVE, xid)


class UnfinishedRecord(Exception):
    """The bytes end before the record does: the usual end of a file after a crash."""


class DamagedRecord(Exception):
    """These bytes are no record: an unknown opcode or an impossible size. Says which."""


class UnsupportedRecord(Exception):
    """A proper record of a release before 2.1 that is not read yet. Names it."""


class Record:
    """One record, and how many bytes of the file it takes.

    `xid`, `data`, `add_ms` and `expiry_ms` are set where the opcode has them; ADD has no add time (None).
    """

    __slots__ = ("add_ms", "data", "expiry_ms", "opcode", "size", "xid")

    def __init__(
        self,
        opcode: Opcode,
        size: int,
        xid: int = 0,
        data: bytes = b"",
        add_ms: int | None = None,
        expiry_ms: int = 0,
    ) -> None:
        self.opcode = opcode
        self.size = size
        self.xid = xid
        self.data = data
        self.add_ms = add_ms
        self.expiry_ms = expiry_ms


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


def decode_record(buffer: mmap | bytes, offset: int) -> Record:
    """The record that begins at `offset`.

    Raises `UnfinishedRecord` when the bytes end too early and `DamagedRecord` when they are no record.
    """
    try:
        opcode = Opcode(buffer[offset])
    except ValueError:
        raise DamagedRecord(f"unknown opcode {buffer[offset]}") from None
    start = offset + _HEADER_BYTES[opcode]
    if start > len(buffer):
        raise UnfinishedRecord
    if opcode in _BARE:
        return Record(opcode, BARE_SIZE)
    if opcode in _XID_ONLY:
        return Record(opcode, XID_RECORD.size, XID_RECORD.unpack_from(buffer, offset)[1])
    xid, add_ms = 0, None
    if opcode is Opcode.ADD:
        _, size, expiry_s = ADD_HEADER.unpack_from(buffer, offset)
        expiry_ms, counted = expiry_s * 1000, _EXPIRY_S_BYTES
    elif opcode is Opcode.ADDX:
        _, size, add_ms, expiry_ms = ADDX_HEADER.unpack_from(buffer, offset)
        counted = _TIMES_BYTES
    else:
        _, xid, size, add_ms, expiry_ms = XID_ITEM_HEADER.unpack_from(buffer, offset)
        if opcode is Opcode.CONTINUE and (0 <= size < _TIMES_BYTES or not 0 <= add_ms < _CONTINUE_END_MS):
            raise UnsupportedRecord("STATE_DUMP")
        counted = _TIMES_BYTES
    if size < counted:
        raise DamagedRecord(f"impossible size {size}")
    end = start + size - counted
    if end > len(buffer):
        raise UnfinishedRecord
    return Record(opcode, end - offset, xid, buffer[start:end], add_ms, expiry_ms)
