"""Conversion of client arguments to the values in requests: names in bytes, times in whole milliseconds.

Invalid arguments raise TypeError or ValueError before anything is sent.
"""

from __future__ import annotations

from math import ceil, isfinite
from typing import Final, TypeAlias

from kestrel.client.errors import RequestError
from kestrel.commands import MAX_DELAY_MS
from kestrel.errors import BadQueueName
from kestrel.tls import TlsOptions

Name: TypeAlias = bytes | str
"""A queue's name. A string is sent as UTF-8."""


LONGEST_TIMEOUT_S: Final = 2_147_483
"""Longest timeout, about 24 days: the operating system stores it in milliseconds as a 31-bit number."""


def name_bytes(queue: Name) -> bytes:
    """Return the name as bytes. Raises TypeError for other types, and `BadQueueName` for a string that is not UTF-8.

    Other rules for names are not checked.
    """
    if isinstance(queue, bytes):
        return queue
    if not isinstance(queue, str):
        raise TypeError(f"a queue's name must be bytes or a string, not {type(queue).__name__}")
    try:
        return queue.encode()
    except UnicodeEncodeError:
        raise BadQueueName("queue name is not valid UTF-8: it contains a lone surrogate") from None


def check_item(data: object) -> None:
    """Raise TypeError unless `data` is bytes."""
    if not isinstance(data, bytes):
        raise TypeError(f"items must be bytes, not {type(data).__name__}")


def check_items(items: object) -> None:
    """Raise TypeError if a single item is passed instead of an iterable of items."""
    if isinstance(items, bytes | str):
        raise TypeError(f"items must be an iterable of bytes, not {type(items).__name__}")


def to_milliseconds(seconds: float) -> int:
    """Convert seconds to milliseconds; negative times become 0. Raises TypeError or ValueError for no finite number."""
    return max(0, round(_finite("a time", seconds) * 1000))


def expiry_ms(expires_in: float | None) -> int:
    """Convert an expiry in seconds to milliseconds. None means never, and becomes 0.

    Raises `RequestError` unless it is more than 0, and TypeError or ValueError for no finite number.
    """
    if expires_in is None:
        return 0
    if _finite("expires_in", expires_in) <= 0:
        raise RequestError("expires_in must be more than 0")
    return max(1, round(expires_in * 1000))


def delay_ms(delay: float | None) -> int:
    """Convert a delay in seconds to milliseconds, rounded up. None becomes 0.

    Raises `RequestError` if it is negative or longer than `MAX_DELAY_MS`, and TypeError or ValueError for no finite
    number.
    """
    if delay is None:
        return 0
    ms = ceil(_finite("delay", delay) * 1000)
    if not 0 <= ms <= MAX_DELAY_MS:
        raise RequestError(f"delay must be 0 to {MAX_DELAY_MS // 1000} seconds")
    return ms


def check_options(timeout_s: float, tls: TlsOptions | None) -> None:
    """Raise TypeError or ValueError unless these client options are valid. The files of `tls` are not read."""
    if _finite("timeout_s", timeout_s) <= 0:
        raise ValueError(f"timeout_s must be more than 0, not {timeout_s!r}")
    if timeout_s > LONGEST_TIMEOUT_S:
        raise ValueError(f"timeout_s must be at most {LONGEST_TIMEOUT_S} (24 days), not {timeout_s!r}")
    if not isinstance(tls, TlsOptions | None):
        raise TypeError(f"tls must be TlsOptions or None, not {tls!r}")


def _finite(what: str, seconds: float) -> float:
    try:
        if isfinite(seconds):
            return seconds
    except TypeError:
        raise TypeError(f"{what} must be a number of seconds, not {seconds!r}") from None
    raise ValueError(f"{what} must be a finite number of seconds, not {seconds!r}")
