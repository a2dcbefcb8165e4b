"""Values as a person reads them: names, times, sizes, data, and tables of them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from kestrel.escaping import count as count

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
    """A queue's name as its files spell it, for a terminal."""
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


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges of consecutive ones, each with its first and last number."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


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


def stat_number(stats: Mapping[str, str], name: str) -> int:
    """Return a statistic as a number; 0 if it is missing or not a number."""
    value = stats.get(name, "")
    return int(value) if is_number(value) else 0


def is_number(value: str) -> bool:
    """Return whether a statistic is a whole number."""
    return value.isascii() and value.isdigit() and len(value) <= 20
