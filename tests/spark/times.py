"""Times of the tables: timestamps, which the journals have in ms since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(ms: int | None) -> datetime | None:
    """Return the timestamp of a time in ms, limited to the years of the tables (docs/spark.md)."""
    if ms is None:
        return None
    try:
        time = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        time = datetime(1 if ms < 0 else 9999, 12, 31, tzinfo=UTC)
    return min(max(time, datetime(2, 1, 1, tzinfo=UTC)), datetime(9999, 1, 1, tzinfo=UTC))


def ms_of(time: datetime | None) -> int | None:
    """Return a timestamp in ms since 1970."""
    return None if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


def collected(row: Row) -> dict[str, Any]:
    """Return a row of Spark with times in UTC. PySpark has local times without a time zone."""
    values = row.asDict(recursive=True)
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in values.items()}
