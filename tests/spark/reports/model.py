"""The figures of the views in plain Python, item by item."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Row = Mapping[str, Any]
Key = tuple[str, str | None, str | None]

LEFT: Final = ("queued", "open")

FIRST_INVALID_MS: Final = 17_577_216_000_000
"""The beginning of the year 2527."""


def grouped(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Return the items of each queue, of each server and of all."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        server, queue = row["server"], row["queue"]
        for key in (("queue", server, queue), ("server", server, None), ("fleet", None, None)):
            groups.setdefault(key, []).append(row)
    return groups


def known(time_ms: int | None) -> int | None:
    return time_ms if time_ms is not None and 0 < time_ms < FIRST_INVALID_MS else None


def not_before(*times: int | None) -> int | None:
    there = [time for time in times if time is not None]
    return max(there) if there else None


def gone_between(row: Row) -> tuple[int | None, int | None]:
    after = not_before(known(row["removed_after_ms"]), known(row["add_ms"]))
    before = known(row["removed_before_ms"])
    return after, None if before is None else not_before(before, after)


def is_gone(row: Row) -> bool:
    return row["state"] not in LEFT


def is_taken(row: Row) -> bool:
    return bool(row["opens"]) or row["state"] == "open" or (is_gone(row) and row["expired"] != "yes")


def throughput(rows: Iterable[Row], interval_ms: int) -> dict[int | None, list[int]]:
    table: dict[int | None, list[int]] = {}
    for row in rows:
        events = [(known(row["add_ms"]), 0)] + ([(gone_between(row)[1], 2)] if is_gone(row) else [])
        for time, place in events:
            figures = table.setdefault(None if time is None else time // interval_ms * interval_ms, [0, 0, 0, 0])
            figures[place] += 1
            figures[place + 1] += row["data_bytes"]
    return table


def depth(rows: list[Row], starts: Iterable[int], interval_ms: int) -> dict[int, list[int]]:
    """Return the depth at the end of each interval, by asking each item whether it is there."""

    def are_there(is_there: Callable[[Row, int], bool], end: int) -> list[int]:
        there = [row["data_bytes"] for row in rows if is_there(row, end)]
        return [len(there), sum(there)]

    table = {}
    for start in starts:
        least, most = (are_there(each, start + interval_ms) for each in (certainly_there, maybe_there))
        table[start] = [least[0], most[0], least[1], most[1]]
    return table


def certainly_there(row: Row, end: int) -> bool:
    add, (after, _) = known(row["add_ms"]), gone_between(row)
    return add is not None and add < end and (not is_gone(row) or (after is not None and after >= end))


def maybe_there(row: Row, end: int) -> bool:
    add, (_, before) = known(row["add_ms"]), gone_between(row)
    return (add is None or add < end) and (not is_gone(row) or before is None or before >= end)


def changes_at(rows: Iterable[Row], interval_ms: int) -> set[int]:
    """Return the beginnings of intervals in which the depth may have changed."""
    times = [known(row["add_ms"]) for row in rows]
    times += [time for row in rows if is_gone(row) for time in gone_between(row)]
    return {time // interval_ms * interval_ms for time in times if time is not None}


def percentile(values: list[int], rank: float) -> int | None:
    return None if not values else sorted(values)[math.ceil(rank * len(values)) - 1]


def waits(rows: Iterable[Row], now_ms: int) -> tuple[list[int], list[int], int]:
    """Return the minimum and maximum waiting times of the items, and the number of unknown ones."""
    least, most, unknown = [], [], 0
    for row in filter(is_taken, rows):
        add, after, before = (known(row[name]) for name in ("add_ms", "taken_after_ms", "taken_before_ms"))
        if add is None or after is None:
            unknown += 1
            continue
        least.append(max(after, add) - add)
        most.append(max(least[-1], (now_ms if before is None else before) - add))
    return least, most, unknown
