"""The opcodes of Kestrel's journal and the fields behind each of them.

Every record is one byte opcode and then little-endian fields. docs/journal_format.md tells their meaning.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final


class Opcode(IntEnum):
    """What a record does to the queue."""

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


ADD_HEADER: Final = Struct("<Bii")
"""opcode, size (4 + data), expiry in seconds since the epoch (0 none)."""

ADDX_HEADER: Final = Struct("<Biqq")
"""opcode, size (16 + data), add time ms, expiry ms (0 none)."""

XID_RECORD: Final = Struct("<Bi")
"""opcode, xid: the whole record of SAVE_XID, UNREMOVE, CONFIRM_REMOVE and REMOVE_TENTATIVE_XID."""

XID_ITEM_HEADER: Final = Struct("<Biiqq")
"""opcode, xid, size (16 + data), add time ms, expiry ms: ADD_XID and CONTINUE."""

STATE_DUMP_RECORD: Final = Struct("<Bii")
"""opcode 8, xid, how many ADD_XIDs follow and end the file: the other meaning of CONTINUE's opcode."""

BARE_SIZE: Final = 1
"""REMOVE and REMOVE_TENTATIVE are their opcode alone."""
