"""A subclass of bytes for a record. It has its own module, because mypyc cannot compile subclasses of bytes."""

from __future__ import annotations


class AnnouncedRecord(bytes):
    """The ADDX record of an item, with the xid that an ADD_XID record has announced for its open read."""

    xid: int
