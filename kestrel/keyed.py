"""Items with a key: a number or name that stays the same however often the item is put.

A producer that puts at least once may put an item twice, and a consumer can detect that only by a key. So an item holds
key and data in an envelope that any language can make:

| bytes | content |
|---|---|
| 3 | `c1 4b 31`, the mark; valid UTF-8 text never contains the first byte |
| 2 | length of the key, 1 to 65535, big-endian |
| length | the key |
| the rest | the data |
"""

from __future__ import annotations

from typing import Final

from kestrel.errors import KestrelError

MARK: Final = b"\xc1K1"
"""The first bytes of an item with a key."""

LENGTH_BYTES: Final = 2

MAX_KEY_BYTES: Final = 65535


class NotKeyed(KestrelError):
    """An item that is not an envelope of key and data."""


def join(key: bytes, data: bytes) -> bytes:
    """Return an item with a key. Raises ValueError for a key that is empty or too long."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has from 1 to {MAX_KEY_BYTES} bytes, not {len(key)}")
    return b"".join((MARK, len(key).to_bytes(LENGTH_BYTES, "big"), key, data))


def split(item: bytes) -> tuple[bytes, bytes]:
    """Return the key and the data of an item. Raises `NotKeyed` if it was not made by `join`."""
    begin = len(MARK) + LENGTH_BYTES
    if not item.startswith(MARK):
        raise NotKeyed("the item has no key: it does not begin with the mark of keyed items")
    size = int.from_bytes(item[len(MARK) : begin], "big")
    if not size or len(item) < begin + size:
        raise NotKeyed("the item has no key: it ends before the end of the key")
    return item[begin : begin + size], item[begin + size :]
