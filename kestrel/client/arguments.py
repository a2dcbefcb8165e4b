"""What callers of a client say, as requests say it: names in bytes, times in whole milliseconds."""

from __future__ import annotations

from typing import TypeAlias

from kestrel.client.errors import RequestError

Name: TypeAlias = bytes | str
"""A queue's name. A string is sent as UTF-8."""


def name_bytes(queue: Name) -> bytes:
    """The name as it is sent."""
    return queue.encode() if isinstance(queue, str) else queue


def milliseconds(seconds: float) -> int:
    """So many milliseconds, and none for a time that has gone by."""
    return max(0, round(seconds * 1000))


def expiry_ms(expires_in: float | None) -> int:
    """In how many milliseconds an item expires, 0 for never. Raises `RequestError` where it would have no time."""
    if expires_in is None:
        return 0
    if expires_in <= 0:
        raise RequestError("an item must have some time until it expires")
    return max(1, round(expires_in * 1000))
