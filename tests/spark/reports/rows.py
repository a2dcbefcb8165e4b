"""Handmade item histories, as rows of `HISTORIES` with times in ms."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from pyspark.sql.types import StructField, TimestampType

from kestrel.spark.columns import HISTORIES, drop_column
from tests.spark.times import at

START_MS: Final = 1_700_000_000_000
COLUMNS: Final = drop_column(HISTORIES, "data")


def _name(column: StructField) -> str:
    return f"{column.name.removesuffix('_time')}_ms" if column.dataType == TimestampType() else column.name


NAMES: Final = tuple(map(_name, COLUMNS))
"""Names of the columns, with the unit of times."""

SERVERS: Final = ("alpha", "beta", "<script>")
QUEUES: Final = ("work", "mail", "work+all")


def item(server: str = "alpha", queue: str = "work", **columns: Any) -> dict[str, Any]:
    """Return an item that is queued, unless the columns differ."""
    row: dict[str, Any] = dict.fromkeys(NAMES)
    row |= {"server": server, "folder": f"/{server}", "format": "journal", "journal": queue, "queue": queue}
    row |= {"file": queue, "offset": 0, "add_ms": START_MS, "data_bytes": 10, "state": "queued"}
    row |= {"opens": 0, "aborts": 0, "errors": 0}
    assert set(columns) <= set(row)
    return row | columns


def as_columns(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of `COLUMNS`."""
    return tuple(at(row[name]) if name.endswith("_ms") else row[name] for name in NAMES)


def random_items(count: int, seed: int) -> list[dict[str, Any]]:
    """Return items of all kinds. Their bounds are true, except where a clock was set back or an item has no add time.
    """
    random = Random(seed)
    return [_random_item(random, place) for place in range(count)]


def _random_item(random: Random, place: int) -> dict[str, Any]:
    add_ms: int | None = START_MS + random.randrange(300_000)
    if random.random() < 0.1:
        add_ms = random.choice([None, 0, -5, 2**62])
    state = random.choice(["queued", "open", "removed", "removed", "confirmed", "confirmed", "continued", "done"])
    is_scroll = state == "done" or (state == "queued" and random.random() < 0.2)
    columns: dict[str, Any] = {"offset": place, "add_ms": add_ms, "state": state}
    columns["data_bytes"] = random.randrange(1, 500)
    columns |= {"errors": random.randrange(8), "position": place if state in ("queued", "open") else None}
    opens = max(int(state in ("open", "confirmed", "continued")), random.randrange(9))
    columns |= {"opens": None, "aborts": None} if is_scroll else {"opens": opens, "aborts": max(0, opens - 1)}
    columns["expiry_ms"] = random.choice([None, None, START_MS + random.randrange(400_000)])
    bounds = sorted(START_MS + random.randrange(-10_000, 400_000) for _ in range(4))
    if not is_scroll and (opens or state == "removed"):
        columns |= {"taken_after_ms": bounds[0], "taken_before_ms": random.choice([bounds[1], None])}
    if state in ("removed", "confirmed", "continued", "done"):
        columns |= {"removed_after_ms": random.choice([bounds[2], None]) if is_scroll else bounds[2]}
        columns |= {"removed_before_ms": random.choice([bounds[3], bounds[3], None])}
        columns |= {"expired": random.choice(["yes", "no", "maybe"])}
        columns |= {"discarded": random.choice(["maybe", "no", None])}
    return item(random.choice(SERVERS), random.choice(QUEUES), **columns)
