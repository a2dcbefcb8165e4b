"""Items that carry a key: a number or a name that an item keeps, however often it is put.

Whoever puts at least once may put an item twice, and whoever takes it can tell only by a key. So both stand in the
item, in one envelope that any language can make:

| bytes | what |
|---|---|
| 3 | `c1 4b 31`, by which it is known: no text in UTF-8 has the first of them anywhere |
| 2 | how long the key is, from 1 to 65535, the higher byte first |
| so many | the key |
| the rest | the data |
"""

from __future__ import annotations

from typing import Final

from kestrel.errors import KestrelError

MARK: Final = b"\xc1K1"
"""How it begins."""

LENGTH_BYTES: Final = 2

MAX_KEY_BYTES: Final = 65535


class NotKeyed(KestrelError):
    """An item is no envelope of key and data."""


def join(key: bytes, data: bytes) -> bytes:
    """The item that has both. Raises ValueError for a key that is empty or too long."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has from 1 to {MAX_KEY_BYTES} bytes, not {len(key)}")
    return b"".join((MARK, len(key).to_bytes(LENGTH_BYTES, "big"), key, data))


def split(item: bytes) -> tuple[bytes, bytes]:
    """Key and data. Raises `NotKeyed` for what `join` has not made."""
    begin = len(MARK) + LENGTH_BYTES
    if not item.startswith(MARK):
        raise NotKeyed("the item has no key: it does not begin as items with keys do")
    size = int.from_bytes(item[len(MARK) : begin], "big")
    if not size or len(item) < begin + size:
        raise NotKeyed("the item has no key: it ends before the key that it announces")
    return item[begin : begin + size], item[begin + size :]
