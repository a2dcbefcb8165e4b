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


BARE_OPCODES: Final = frozenset({Opcode.REMOVE, Opcode.REMOVE_TENTATIVE})
"""The opcodes of records that consist of the opcode only."""

XID_OPCODES: Final = frozenset({Opcode.SAVE_XID, Opcode.UNREMOVE, Opcode.CONFIRM_REMOVE, Opcode.REMOVE_TENTATIVE_XID})
"""The opcodes of records that have only an xid (`XID_RECORD`)."""

ADD_HEADER: Final = Struct("<Bii")
"""opcode, size (4 + data), expiry in seconds since the epoch (0: never)."""

ADDX_HEADER: Final = Struct("<Biqq")
"""opcode, size (16 + data), add time in ms, expiry in ms (0: never)."""

ADDX_SIZE: Final = Struct("<xi")
"""The first bytes of an ADDX. Only the size is unpacked."""

ADDX_SIZE_END: Final = 5
"""Offset in an ADDX of the bytes that its size counts."""

TIMES_BYTES: Final = 16
"""Size of the two times, which the size of an ADDX, ADD_XID or CONTINUE includes."""

XID_RECORD: Final = Struct("<Bi")
"""opcode, xid: the whole record."""

XID_ITEM_HEADER: Final = Struct("<Biiqq")
"""opcode, xid, size (16 + data), add time in ms, expiry in ms (0: never): ADD_XID and CONTINUE."""

STATE_DUMP_RECORD: Final = Struct("<Bii")
"""opcode 8, xid, number of ADD_XID records that follow and end the file. It shares the opcode of CONTINUE."""

BARE_SIZE: Final = 1
"""Size of a record of `BARE_OPCODES`."""
