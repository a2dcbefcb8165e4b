"""The opcodes of Kestrel's journal and the layouts of their records.

A record is a one-byte opcode followed by little-endian fields. docs/journal_format.md describes their meaning.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final


class Opcode(IntEnum):
    """The type of a journal record."""

    ADD = 0
    REMOVE = 1
    ADDX = 2
    REMOVE_TENTATIVE = 3
    SAVE_XID = 4
    UNREMOVE = 5
    CONFIRM_REMOVE = 6
    ADD_XID = 7
    CONTINUE = 8
    REMOVE_TENTATIVE_XID = 9


BARE_OPCODES: Final = (Opcode.REMOVE, Opcode.REMOVE_TENTATIVE)
"""Records that consist of the opcode."""

XID_OPCODES: Final = (Opcode.REMOVE_TENTATIVE_XID, Opcode.CONFIRM_REMOVE, Opcode.UNREMOVE, Opcode.SAVE_XID)
"""Records that consist of the opcode and an xid."""

ITEM_OPCODES: Final = (Opcode.ADDX, Opcode.ADD, Opcode.ADD_XID, Opcode.CONTINUE)
"""Records that have an item. A STATE_DUMP, which shares its opcode with CONTINUE, has none."""

ADD_HEADER: Final = Struct("<Bii")
"""opcode, size (4 + data), expiry in seconds since the epoch (0: never)."""

ADDX_HEADER: Final = Struct("<Biqq")
"""opcode, size (16 + data), add time in ms, expiry in ms (0: never)."""

XID_RECORD: Final = Struct("<Bi")
"""opcode, xid: the whole record of SAVE_XID, UNREMOVE, CONFIRM_REMOVE and REMOVE_TENTATIVE_XID."""

XID_ITEM_HEADER: Final = Struct("<Biiqq")
"""opcode, xid, size (16 + data), add time in ms, expiry in ms (0: never): ADD_XID and CONTINUE."""

STATE_DUMP_RECORD: Final = Struct("<Bii")
"""opcode 8, xid, number of ADD_XID records that follow and end the file. It shares the opcode of CONTINUE."""

BARE_SIZE: Final = 1
"""Size of the records of `BARE_OPCODES`."""


# mypyc cannot compile subclasses of bytes, so this one is not in records.py.
class AnnouncedRecord(bytes):
    """The ADDX record of an item, with the xid that an ADD_XID record has announced for its open read."""

    xid: int
