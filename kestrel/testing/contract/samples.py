"""Data and names that are likely to break a storage."""

from __future__ import annotations

from typing import Final

ADD_MS: Final = 1_700_000_000_000

DATA: Final = {
    "empty": b"",
    "every byte": bytes(range(256)),
    "line ends": b"\r\nEND\r\n",
    "zeros": bytes(1000),
    "zeros at both ends": b"\0\0middle\0\0",
    "looks like records": b"\x01\x02\x10\x00\x00\x00\x05\x01\x00\x00\x00",
    "no UTF-8": b"\xff\xfe\xc3(",
    "a megabyte": b"\xff" * (1 << 20),
}
"""Data of items, by their special property."""

NAMES: Final = {
    "high bytes": b"\xe9t\xe9",
    "the low half of the high bytes": bytes(range(0x80, 0xC0)),
    "the high half of the high bytes": bytes(range(0xC0, 0x100)),
    "its own UTF-8 spelling": b"\xc3\xa9",
    "a fanout child": b"work+child",
    "two pluses": b"a+b+c",
    "a plus at the end": b"x+",
    "200 bytes": b"n" * 200,
    "shell characters": b"-rf*?;$(x)'\"\\:|",
}
"""Names of queues, by their special property."""


def huge_item() -> bytes:
    """Return two gigabytes of zeros. They take no memory until they are read."""
    return bytes(1 << 31)
