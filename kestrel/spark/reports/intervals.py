"""Interval lengths of a report, independent of Spark."""

from __future__ import annotations

from typing import Final

from kestrel.spark.failures import SourceFailed

MOST_INTERVALS: Final = 200
"""Maximum number of default intervals in the time range."""

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY
_ROUND: Final = (
    *(1, 10, 100, _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(_MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 7 * _DAY, 30 * _DAY, 90 * _DAY),
)

LONGEST_MS: Final = 100 * _YEAR


def suitable_interval_ms(first_ms: int, last_ms: int) -> int:
    """Return the shortest round interval that divides the time range into at most `MOST_INTERVALS`."""
    for interval_ms in _ROUND:
        if last_ms // interval_ms - first_ms // interval_ms < MOST_INTERVALS:
            return interval_ms
    return _YEAR * ((last_ms - first_ms) // (_YEAR * (MOST_INTERVALS - 1)) + 1)


def checked_interval_ms(interval_ms: int) -> int:
    """Return the interval. Raises `SourceFailed` if it is out of range."""
    if not 1 <= interval_ms <= LONGEST_MS:
        raise SourceFailed(f"an interval must be from 1 ms to 100 years, not {interval_ms} ms")
    return interval_ms
