"""The screen of top without a terminal: rates, sorting, widths, keys."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.escaping import show_name, unescape_name
from kestrel.tools.cli import top_screen
from kestrel.tools.cli.admin_client import COLUMNS, Overview, QueueRates, parse_overview, rows, total
from kestrel.tools.cli.top_screen import (
    SORTS,
    ScreenView,
    apply_key,
    clean,
    clean_name,
    screen,
    table,
    truncate,
    visible_rows,
    width,
)

SERVER: dict[str, Any] = {
    "name": "mq1",
    "version": "1.0.0",
    "build": "pure",
    "storage": "memory:",
    "status": "Up",
    "in_force": "Up",
    "figures": {"curr_items": 3, "bytes": 30, "curr_connections": 1, "mem_bytes": 30, "build": "pure"},
}


def answer(uptime_ms: int, **queues: dict[str, int]) -> Overview:
    """Return the overview of a server with these non-zero values of its queues."""
    rows = [[name, *(figures.get(column, 0) for column in COLUMNS)] for name, figures in queues.items()]
    return parsed(rows, uptime_ms)


def parsed(queues: list[list[Any]], uptime_ms: int = 1) -> Overview:
    body = {"server": {**SERVER, "uptime_ms": uptime_ms}, "columns": ["name", *COLUMNS], "queues": queues}
    return parse_overview(json.dumps(body).encode())


def rates_of(before: Overview | None, now: Overview) -> dict[bytes, tuple[float | None, float | None]]:
    return {row.name: (row.puts, row.gets) for row in rows(before, now)}


def some(**items: int) -> list[QueueRates]:
    return rows(None, answer(1, **{name: {"items": number} for name, number in items.items()}))


def test_rates_are_differences_over_the_uptime() -> None:
    before = answer(1000, work={"put_items": 10, "get_items_hit": 4})
    now = answer(3000, work={"put_items": 30, "get_items_hit": 5})
    assert rates_of(before, now) == {b"work": (10.0, 0.5)}


def test_unknown_age_of_the_oldest_item_is_a_dash() -> None:
    unknown = [None if each == "oldest_age_msec" else 7 for each in COLUMNS]
    oldest = top_screen.COLUMNS["oldest"]
    found = rows(None, parsed([["a", *([7] * len(COLUMNS))], ["b", *unknown]]))
    assert [oldest.text(oldest.value(row)) for row in found] == ["7ms", "-"]
    with pytest.raises(ValueError, match="not an overview"):
        parsed([["b", *(None if each == "items" else 7 for each in COLUMNS)]])


def test_new_queue_counts_from_zero() -> None:
    before = answer(1000, work={"put_items": 10, "get_items_hit": 9})
    now = answer(2000, work={"put_items": 12, "get_items_hit": 1}, fresh={"put_items": 3})
    assert rates_of(before, now) == {b"work": (12.0, 1.0), b"fresh": (3.0, 0.0)}


def test_rates_are_unknown_at_first_and_after_a_restart() -> None:
    now = answer(1000, work={"put_items": 10})
    assert rates_of(None, now) == rates_of(answer(5000), now) == rates_of(now, now) == {b"work": (None, None)}
    assert (total([1.0, None]), total([1.0, 2.0])) == (None, 3.0)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"server": {}, "columns": [], "queues": []}']
)
def test_invalid_overview_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not an overview"):
        parse_overview(body)


@pytest.mark.parametrize("value", ["1", 1.5, None, True, [1]])
def test_value_that_is_no_integer_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not an overview"):
        answer(1, work={"items": value})


def test_rows_are_sorted_by_size_or_name() -> None:
    found = some(c=1, a=5, b=5)
    assert [row.name for row in visible_rows(found, ScreenView())] == [b"a", b"b", b"c"]
    assert [row.name for row in visible_rows(found, ScreenView(is_reversed=True))] == [b"c", b"a", b"b"]
    assert [row.name for row in visible_rows(found, ScreenView(sort="name", is_reversed=True))] == [b"c", b"b", b"a"]
    assert [row.name for row in visible_rows(found, ScreenView(filter="B"))] == [b"b"]


def test_names_are_escaped() -> None:
    assert clean_name(b"a\x1b[2J\x9b\x07") == r"a\x1b[2J\x9b\x07"
    assert clean_name("café \u202eevil e\u0301".encode()) == r"café \xe2\x80\xaeevil e\xcc\x81"
    assert clean_name("\x9b".encode()) == r"\xc2\x9b"
    assert clean("\x85\n\xad") == "\\x85\\n\\u00ad"


@given(st.lists(st.binary(min_size=1), unique=True))
def test_top_shows_each_name_of_an_overview_once(names: list[bytes]) -> None:
    found = answer(1, **{show_name(name): {} for name in names}).queues
    assert list(found) == names
    shown = [clean_name(name) for name in found]
    assert [unescape_name(each.encode()) for each in shown] == names


@pytest.mark.parametrize("name", ["\ud800", 1, None])
def test_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="not an overview"):
        parsed([[name, *(0 for _ in COLUMNS)]])


def test_wide_characters_take_two_columns() -> None:
    assert width("\u5217a") == 3
    assert truncate("\u5217\u5217", 3) == "\u5217~"
    assert [truncate("abc", columns) for columns in (0, 1, 2, 3)] == ["", "~", "a~", "abc"]


@pytest.mark.parametrize("columns", [1, 5, 20, 40, 80, 132, 300])
@pytest.mark.parametrize("lines", [1, 2, 5, 24])
@pytest.mark.parametrize("sort", SORTS)
def test_screen_fits_the_terminal(columns: int, lines: int, sort: str) -> None:
    found = some(**{"a" * 200: 1, "\u00e5\u00b8": 2, "b": 10**12})
    now = answer(1)
    for view in (
        ScreenView(sort=sort),
        ScreenView(sort=sort, trouble="away " * 100),
        ScreenView(is_helping=True),
        ScreenView(offset=99),
    ):
        shown = screen(now, found, view, columns, lines)
        assert len(shown) == lines
        assert max(width(line.text) for line in shown) <= columns


def test_narrow_table_keeps_the_sorted_column() -> None:
    headings = table(some(work=1), "journal", 30)[0].split()
    assert headings == ["queue", "items", "journal"]


def test_bar_shows_the_depth_of_a_queue() -> None:
    lines = table(some(full=8, half=4, empty=0), "items", 132, 8)
    assert [line.count("#") for line in lines] == [0, 12, 6, 0]


def test_server_is_shown_above_its_queues() -> None:
    shown = [
        line.text for line in screen(answer(61_000, work={"items": 3}), some(work=3), ScreenView(trouble="gone"), 90, 9)
    ]
    assert shown[:4] == [
        "mq1: kestrel 1.0.0 (pure), memory:",
        "Up, up 1m1s, 1 connection, 1 queue",
        "3 items, 30 B, 30 B in memory, - puts/s, - gets/s",
        "gone",
    ]
    assert shown[5].split()[:2] == ["work", "3"]


def after(keys: list[str] | str, view: ScreenView | None = None) -> ScreenView:
    view = view or ScreenView()
    for key in keys:
        pressed_view = apply_key(key, view, 10, 50)
        assert pressed_view is not None
        view = pressed_view
    return view


def test_keys_change_the_view() -> None:
    assert apply_key("q", ScreenView(), 10, 50) is None
    assert after("s").sort == "bytes"
    assert after("S").sort == "name"
    assert after("rp") == ScreenView(is_reversed=True, is_paused=True)
    assert after("?").is_helping
    assert after("?j") == ScreenView()


def test_scrolling_stops_at_the_ends() -> None:
    assert after("jjk").offset == 1
    assert after("k").offset == 0
    assert after(" ").offset == 10
    assert after("Gj").offset == 50
    assert after(["G", "ppage", "down"]).offset == 41
    assert after("Gg").offset == 0


def test_filter_is_typed_and_kept_or_dropped() -> None:
    assert after("/qp") == ScreenView(is_typing=True, filter="qp")
    assert after("/qp\x7f\n") == ScreenView(filter="q")
    assert after("/qp\x1b") == ScreenView()
    assert after("/a\x07b\n\x1b") == ScreenView()
