"""Values as a person reads them: names, times, sizes, data, tables of them, and statistics of servers and queues."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kestrel.escaping import count as count
from kestrel.escaping import show_name

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNSAFE_CHARACTERS: Final = re.compile(r"[^ -\[\]-~\xa0-\U0010ffff]|[\ud800-\udfff]")
"""Control characters, the backslash, and bytes that are no UTF-8."""
_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def show_data(data: bytes) -> str:
    """Data as text: UTF-8 where it is that, other bytes and control characters escaped, all on one line."""
    return show_text(data.decode("utf-8", "surrogateescape"))


def show_text(text: str) -> str:
    """Text without control characters, which a terminal might obey."""
    return _UNSAFE_CHARACTERS.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return _ESCAPES.get(character) or f"\\x{ord(character) & 0xFF:02x}"


def spell_queue(name: bytes) -> str:
    """A queue's name as its files spell it: a byte above 127 is the Latin-1 character of that number."""
    return name.decode("latin-1")


def show_queue(name: bytes) -> str:
    """The same, for a terminal."""
    return show_text(spell_queue(name))


def show_path(path: bytes) -> str:
    """A path or file name, for a terminal."""
    return show_text(path.decode("utf-8", "surrogateescape"))


def show_time(ms: int) -> str:
    """A time in UTC, and its milliseconds since the epoch; the number alone where no calendar has it."""
    try:
        time = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z ({ms})"


def show_size(size: int) -> str:
    """A size in the unit that suits it, in 1024s, with three digits or four."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.{1 if amount < 100 else 0}f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def show_duration(ms: int) -> str:
    """A duration in its two largest units: ``3d2h``, ``1m30s``; below a minute ``1.5s``, below a second ``350ms``."""
    if ms < 1000:
        return f"{ms}ms" if ms else "0"
    if ms < 60_000:
        return f"{ms / 1000:.1f}".removesuffix(".0") + "s"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{seconds}s"


def align_table(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> Iterator[str]:
    """Yield the lines of a table. The columns in `left`, by default the first one, are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


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
            show_duration(stat_number(figures, "oldest_age_msec")) if "oldest_age_msec" in figures else "-",
        ]
        for name, figures in queues.items()
        if "items" in figures
    ]
    if rows:
        yield from align_table([["queue", "items", "bytes", "last wait", "waiters", "open reads", "oldest"], *rows])
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
