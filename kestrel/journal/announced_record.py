"""A record that knows more than its bytes say. (Apart, since the extension can have no class of bytes.)"""

from __future__ import annotations


class AnnouncedRecord(bytes):
    """The ADDX record of an item, and the number that its next opening was announced with."""

    xid: int
