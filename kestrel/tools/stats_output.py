"""Statistics of servers and queues as tables, ``STAT`` lines and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kestrel.escaping import show_name
from kestrel.tools.formatting import align_table, count, show_duration, show_size, show_text

Figures = Mapping[str, str]

_QUEUE_FIGURE: Final = "queue_"
_FRACTION: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}")


def server_line(address: str, figures: Figures, queues: int, shown: int) -> str:
    """Return a one-line summary of a server. `shown` of its `queues` are listed below that line."""
    of_queues = count(queues, "queue") if shown == queues else f"{shown} of {count(queues, 'queue')}"
    up_ms = 1000 * stat_number(figures, "uptime")
    return (
        f"{show_text(address)}: kestrel {show_text(figures.get('version', '?'))}, up {show_duration(up_ms)}, "
        f"{of_queues}, {count(stat_number(figures, 'curr_items'), 'item')}, "
        f"{show_size(stat_number(figures, 'bytes'))}, {count(stat_number(figures, 'curr_connections'), 'connection')}"
    )


def queue_table(queues: Mapping[bytes, Figures]) -> Iterator[str]:
    """Yield a heading and one line per queue, then one line per alias."""
    rows = [
        [
            show_name(name),
            str(stat_number(figures, "items")),
            show_size(stat_number(figures, "bytes")),
            show_duration(stat_number(figures, "age")),
            str(stat_number(figures, "waiters")),
            str(stat_number(figures, "open_transactions")),
        ]
        for name, figures in queues.items()
        if "items" in figures
    ]
    if rows:
        yield from align_table([["queue", "items", "bytes", "last wait", "waiters", "open reads"], *rows])
    for name, figures in queues.items():
        if "put_items" in figures:
            put = count(stat_number(figures, "put_items"), "item")
            yield f"{show_name(name)}: alias of {show_text(figures.get('children', ''))}, {put} put to it"


def stat_lines(figures: Figures, queues: Mapping[bytes, Figures], *, is_of_queues: bool) -> Iterator[str]:
    """Yield ``STAT`` lines: all of the server's, or only those of `queues` if `is_of_queues`."""
    if not is_of_queues:
        yield from (f"STAT {name} {value}" for name, value in figures.items())
        return
    for queue, of_queue in queues.items():
        spelled = queue.decode("utf-8", "surrogateescape")
        yield from (f"STAT queue_{spelled}_{name} {value}" for name, value in of_queue.items())


def stats_json(address: str, figures: Figures, queues: Mapping[bytes, Figures]) -> dict[str, Any]:
    """Return the statistics of a server and its queues as a JSON object."""
    own = {name: value for name, value in figures.items() if not name.startswith(_QUEUE_FIGURE) or "_" not in name[6:]}
    return {
        "server": address,
        "stats": _values(own),
        "queues": {show_name(name): _values(of_queue) for name, of_queue in queues.items()},
    }


def _values(figures: Figures) -> dict[str, int | float | str]:
    return {name: _value(value) for name, value in figures.items()}


def _value(value: str) -> int | float | str:
    if _is_number(value):
        return int(value)
    return float(value) if _FRACTION.fullmatch(value) else show_text(value)


def stat_number(figures: Figures, name: str) -> int:
    """Return a statistic as a number; 0 if it is missing or not a number."""
    value = figures.get(name, "")
    return int(value) if _is_number(value) else 0


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 20
