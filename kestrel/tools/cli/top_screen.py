"""The layout and the keys of the screen of `kestrel-cli top`, independent of a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from attrs import evolve, frozen

from kestrel.escaping import escape_bytes, show_name
from kestrel.tools.cli.admin_client import Overview, QueueRates, total
from kestrel.tools.formatting import count, show_duration, show_size, show_text

_GAP: Final = "  "
_LEAST_NAME: Final = 12
_MOST_NAME: Final = 60
_BAR: Final = 12


class ScreenColumn(NamedTuple):
    """A column of the table: its heading, its width, the value that it sorts by, and the format of the value."""

    heading: str
    width: int
    value: Callable[[QueueRates], Any]
    text: Callable[[Any], str]


def rate(value: float | None) -> str:
    """Return a rate per second as text, `-` if it is unknown."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _age(age_ms: int | None) -> str:
    return "-" if age_ms is None else show_duration(age_ms)


COLUMNS: Final = {
    "items": ScreenColumn("items", 9, lambda row: row.now.items, str),
    "bytes": ScreenColumn("bytes", 10, lambda row: row.now.bytes, show_size),
    "puts": ScreenColumn("puts/s", 8, lambda row: row.puts, rate),
    "gets": ScreenColumn("gets/s", 8, lambda row: row.gets, rate),
    "oldest": ScreenColumn("oldest", 7, lambda row: row.now.oldest_age_ms, _age),
    "waiters": ScreenColumn("waiters", 7, lambda row: row.now.waiters, str),
    "open": ScreenColumn("open", 6, lambda row: row.now.open_reads, str),
    "journal": ScreenColumn("journal", 10, lambda row: row.now.journal_bytes, show_size),
    "memory": ScreenColumn("memory", 10, lambda row: row.now.mem_bytes, show_size),
}

SORTS: Final = ("items", "bytes", "puts", "gets", "oldest", "waiters", "open", "journal", "name")

HELP: Final = (
    "q            quit",
    "j k, arrows  scroll; space, PgDn and PgUp by a page; g and G to the start and the end",
    "s S          sort by the next or the previous column",
    "r            reverse the order",
    "/            filter queues by name; Enter keeps the filter, Esc clears it",
    "p            pause",
    "h ?          this help",
)


@frozen
class ScreenView:
    """The state of the display: sorting, filter, scrolling, modes, and the current problem."""

    sort: str = "items"
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    is_paused: bool = False
    is_helping: bool = False
    offset: int = 0
    trouble: str = ""
    """Message that says why there is no newer response, or an empty string."""


def visible_rows(rows: Sequence[QueueRates], view: ScreenView) -> list[QueueRates]:
    """Return the rows that match the filter, sorted: the largest values first, names alphabetically."""
    wanted = view.filter.casefold()
    found = [row for row in rows if not wanted or wanted in clean_name(row.name).casefold()]
    found.sort(key=lambda row: row.name, reverse=view.is_reversed and view.sort == "name")
    if view.sort != "name":
        value = COLUMNS[view.sort].value
        found.sort(key=lambda row: value(row) or 0, reverse=not view.is_reversed)
    return found


def header(now: Overview, rows: Sequence[QueueRates]) -> list[str]:
    """Return three lines about the server."""
    figures = now.figures
    status = now.status if now.status == now.in_force else f"{now.status} ({now.in_force} in force)"
    items, size = figures.get("curr_items", 0), figures.get("bytes", 0)
    connections, memory = figures.get("curr_connections", 0), figures.get("mem_bytes", 0)
    return [
        f"{clean(now.name)}: kestrel {clean(now.version)} ({clean(now.build)}), {clean(now.storage)}",
        f"{clean(status)}, up {show_duration(now.uptime_ms)}, {count(connections, 'connection')}, "
        f"{count(len(now.queues), 'queue')}",
        f"{count(items, 'item')}, {show_size(size)}, {show_size(memory)} in memory, "
        f"{rate(total(row.puts for row in rows))} puts/s, {rate(total(row.gets for row in rows))} gets/s",
    ]


def table(rows: Sequence[QueueRates], sort: str, columns: int | None, deepest: int = 0) -> list[str]:
    """Return a line of headings and a line for each row, in `columns` columns, or as wide as needed if it is None.

    `deepest` is the number of items for a full bar; 0 means no bars. If there is too little room, columns at the right
    are omitted, but not the one that the table is sorted by.
    """
    names = [clean_name(row.name) for row in rows]
    name_width = min(max([width("queue"), *map(width, names)]), _MOST_NAME)
    shown = list(COLUMNS)
    has_bar = deepest > 0
    if columns is None:
        name_width = max([width("queue"), *map(width, names)])
    else:
        room = columns - min(name_width, _LEAST_NAME)
        while shown and sum(COLUMNS[each].width + len(_GAP) for each in shown) > room:
            shown.remove(next((each for each in reversed(shown) if each != sort), shown[0]))
        taken = sum(COLUMNS[each].width + len(_GAP) for each in shown)
        has_bar = has_bar and columns - taken - name_width >= _BAR + len(_GAP)
        name_width = max(1, min(name_width, columns - taken))
    lines = [_line(left("queue", name_width), [right(COLUMNS[each].heading, COLUMNS[each].width) for each in shown])]
    for name, row in zip(names, rows, strict=True):
        cells = [right(COLUMNS[each].text(COLUMNS[each].value(row)), COLUMNS[each].width) for each in shown]
        if has_bar:
            cells.append("#" * -(-_BAR * row.now.items // deepest))
        lines.append(_line(left(name, name_width), cells))
    return lines if columns is None else [truncate(line, columns) for line in lines]


def _line(name: str, cells: Sequence[str]) -> str:
    return _GAP.join([name, *cells]).rstrip()


class ScreenLine(NamedTuple):
    """A line of the screen. `style` is plain, bold, reverse, or alarm."""

    text: str
    style: str = "plain"


def screen(now: Overview, rows: Sequence[QueueRates], view: ScreenView, columns: int, lines: int) -> list[ScreenLine]:
    """Return the lines of a screen with `columns` columns and `lines` lines."""
    top = [ScreenLine(text, "bold" if number == 0 else "plain") for number, text in enumerate(header(now, rows))]
    if view.trouble:
        top.append(ScreenLine(clean(view.trouble), "alarm"))
    found = visible_rows(rows, view)
    if view.is_helping:
        body = [ScreenLine(text) for text in HELP]
    else:
        start = min(view.offset, last_offset(len(found), lines, view))
        page = found[start : start + page_size(lines, view)]
        texts = table(page, view.sort, columns, max((row.now.items for row in rows), default=0))
        body = [ScreenLine(left(texts[0], columns), "reverse"), *map(ScreenLine, texts[1:])]
    middle = [*top, *body][: max(0, lines - 1)]
    middle += [ScreenLine("")] * (lines - 1 - len(middle))
    return [
        ScreenLine(truncate(line.text, columns), line.style)
        for line in [*middle, ScreenLine(_footer(view, len(found)))]
    ][:lines]


def page_size(lines: int, view: ScreenView) -> int:
    """Return the number of queues that fit on the screen."""
    return max(1, lines - 5 - bool(view.trouble))


def last_offset(rows: int, lines: int, view: ScreenView) -> int:
    """Return the largest offset to which `rows` rows can be scrolled."""
    return max(0, rows - page_size(lines, view))


def _footer(view: ScreenView, found: int) -> str:
    if view.is_typing:
        return f"/{clean(view.filter)}_"
    parts = [f"sorted by {view.sort}" + (", reversed" if view.is_reversed else "")]
    if view.filter:
        parts.append(f"{count(found, 'queue')} matching {clean(view.filter)!r}")
    if view.is_paused:
        parts.append("PAUSED")
    return "  ".join([*parts, "h help  q quit"])


CUT: Final = "~"
"""The mark at the end of truncated text."""


def clean(text: str) -> str:
    """Return text with all characters escaped that do not take one or two columns."""
    shown = show_text(text)
    if shown.isascii():
        return shown
    return "".join(each if _is_plain(each) else f"\\u{ord(each):04x}" for each in shown)


def clean_name(name: bytes) -> str:
    """Return the shown name of a queue, with all characters escaped that do not take one or two columns."""
    shown = show_name(name)
    return shown if shown.isascii() else "".join(each if _is_plain(each) else escape_bytes(each) for each in shown)


def _is_plain(character: str) -> bool:
    """Return whether a character is printable and not a combining mark."""
    return character.isascii() or (character.isprintable() and not unicodedata.category(character).startswith("M"))


def width(text: str) -> int:
    """Return the number of columns of a clean text."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(each) in ("W", "F") else 1 for each in text)


def truncate(text: str, columns: int) -> str:
    """Return a clean text, truncated to `columns` columns."""
    if width(text) <= columns:
        return text
    kept, taken = "", len(CUT)
    for each in text:
        taken += width(each)
        if taken > columns:
            break
        kept += each
    return (kept + CUT)[: max(0, columns)]


def left(text: str, columns: int) -> str:
    """Return a clean text, left-aligned in exactly `columns` columns."""
    text = truncate(text, columns)
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """Return a clean text, right-aligned in exactly `columns` columns."""
    text = truncate(text, columns)
    return " " * (columns - width(text)) + text


_END: Final = 10**9
_ENTER: Final = ("\n", "\r", "enter")
_BACKSPACE: Final = ("\b", "\x7f", "backspace")
_LONGEST_FILTER: Final = 200


def apply_key(key: str, view: ScreenView, page: int, last: int) -> ScreenView | None:
    """Return the view after a key, or None to quit. `key` is a character or a name such as ``down``.

    `page` is the number of queues on a page. `last` is the largest offset of the view.
    """
    if view.is_typing:
        return _typed(key, view)
    if view.is_helping:
        return None if key == "q" else evolve(view, is_helping=False)
    moved = {"j": 1, "down": 1, "k": -1, "up": -1, " ": page, "npage": page, "ppage": -page}
    moved |= {"G": _END, "end": _END, "g": -_END, "home": -_END}
    if key in moved:
        return evolve(view, offset=max(0, min(min(view.offset, last) + moved[key], last)))
    match key:
        case "q":
            return None
        case "s" | "S":
            place = SORTS.index(view.sort) + (1 if key == "s" else -1)
            return evolve(view, sort=SORTS[place % len(SORTS)], offset=0)
        case "r":
            return evolve(view, is_reversed=not view.is_reversed, offset=0)
        case "p":
            return evolve(view, is_paused=not view.is_paused)
        case "h" | "?":
            return evolve(view, is_helping=True)
        case "/":
            return evolve(view, is_typing=True, offset=0)
        case "\x1b":
            return evolve(view, filter="", offset=0)
    return view


def _typed(key: str, view: ScreenView) -> ScreenView:
    if key in _ENTER:
        return evolve(view, is_typing=False)
    if key == "\x1b":
        return evolve(view, is_typing=False, filter="")
    if key in _BACKSPACE:
        return evolve(view, filter=view.filter[:-1])
    if len(key) == 1 and key.isprintable() and len(view.filter) < _LONGEST_FILTER:
        return evolve(view, filter=view.filter + key, offset=0)
    return view
