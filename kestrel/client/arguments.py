"""What callers of a client say, as requests say it: names in bytes, times in whole milliseconds.

What is of the wrong type, or no number that a time can be, is a TypeError or ValueError before anything is sent.
"""

from __future__ import annotations

from math import isfinite
from typing import Final, TypeAlias

from kestrel.client.errors import RequestError
from kestrel.errors import BadQueueName
from kestrel.tls import TlsOptions

Name: TypeAlias = bytes | str
"""A queue's name. A string is sent as UTF-8."""


LONGEST_TIMEOUT_S: Final = 2_147_483
"""The system counts the milliseconds that it is to wait in 31 bits: some 24 days."""


def name_bytes(queue: Name) -> bytes:
    """The name as it is sent. Raises `BadQueueName` for a string that has no UTF-8."""
    if isinstance(queue, bytes):
        return queue
    if not isinstance(queue, str):
        raise TypeError(f"a queue's name is bytes or a string, not {type(queue).__name__}")
    try:
        return queue.encode()
    except UnicodeEncodeError:
        raise BadQueueName("queue name is no UTF-8: it has half of a surrogate pair") from None


def check_item(data: object) -> None:
    """Raise TypeError unless that is an item."""
    if not isinstance(data, bytes):
        raise TypeError(f"items are bytes, not {type(data).__name__}")


def check_items(items: object) -> None:
    """Raise TypeError where one item stands for many."""
    if isinstance(items, bytes | str):
        raise TypeError(f"many items are an iterable of bytes, not {type(items).__name__}")


def to_milliseconds(seconds: float) -> int:
    """So many milliseconds, and none for a time that has gone by."""
    return max(0, round(_finite("a time", seconds) * 1000))


def expiry_ms(expires_in: float | None) -> int:
    """In how many milliseconds an item expires, 0 for never. Raises `RequestError` where it would have no time."""
    if expires_in is None:
        return 0
    if _finite("expires_in", expires_in) <= 0:
        raise RequestError("an item must have some time until it expires")
    return max(1, round(expires_in * 1000))


def check_options(timeout_s: float, tls: TlsOptions | None) -> None:
    """Raise TypeError or ValueError unless clients can be made with these."""
    if _finite("timeout_s", timeout_s) <= 0:
        raise ValueError(f"timeout_s must be more than 0, not {timeout_s!r}")
    if timeout_s > LONGEST_TIMEOUT_S:
        raise ValueError(f"timeout_s can be {LONGEST_TIMEOUT_S} at most (24 days), not {timeout_s!r}")
    if not isinstance(tls, TlsOptions | None):
        raise TypeError(f"tls is TlsOptions or None, not {tls!r}")


def _finite(what: str, seconds: float) -> float:
    try:
        if isfinite(seconds):
            return seconds
    except TypeError:
        raise TypeError(f"{what} is a number of seconds, not {seconds!r}") from None
    raise ValueError(f"{what} is a finite number of seconds, not {seconds!r}")
