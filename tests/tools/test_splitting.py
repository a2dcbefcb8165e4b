"""Splitting of a byte stream into items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tools.cli.item_commands import split_lines, split_prefixed, take_whole
from kestrel.tools.tool_runner import ToolFailed

Split = Callable[[Iterable[bytes]], Iterator[list[bytes]]]

ANY = b"\x00\xff\r\x1b[2J caf\xc3\xa9"


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def items_of(split: Split, data: bytes) -> list[bytes]:
    """Return the items of a stream, which must not depend on its pieces."""
    ways = [[item for items in split(pieces(data, size)) for item in items] for size in (1, 2, 3, 7, len(data) or 1)]
    assert all(way == ways[0] for way in ways)
    return ways[0]


def up_to_the_failure(split: Split, data: Iterable[bytes]) -> tuple[list[bytes], str]:
    """Return the items before the failure, and its message."""
    items: list[bytes] = []
    with pytest.raises(ToolFailed) as failure:
        for complete in split(data):
            items += complete
    return items, str(failure.value)


def prefixed(*items: bytes) -> bytes:
    return b"".join(len(item).to_bytes(4, "big") + item for item in items)


@pytest.mark.parametrize(
    ("data", "items"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"a\r\nb\r", [b"a\r", b"b\r"]),
        (ANY + b"\n" + ANY, [ANY, ANY]),
    ],
)
def test_line_is_an_item_without_its_line_feed(data: bytes, items: list[bytes]) -> None:
    assert items_of(split_lines, data) == items


@pytest.mark.parametrize("items", [[], [b""], [b"a", b"", b"\n\n", ANY], [b"x" * 300, b"y"]])
def test_length_prefixed_items_have_any_bytes(items: list[bytes]) -> None:
    assert items_of(split_prefixed, prefixed(*items)) == items


@pytest.mark.parametrize("data", [b"", b"a\nb\n", ANY])
def test_whole_stream_is_one_item(data: bytes) -> None:
    assert items_of(take_whole, data) == [data]


def test_items_are_returned_when_complete() -> None:
    assert list(split_lines([b"a\nb", b"c\n", b"d"])) == [[b"a"], [b"bc"], [], [b"d"]]
    assert list(split_prefixed([prefixed(b"a") + b"\0\0", b"\0\1b"])) == [[b"a"], [b"b"]]


@pytest.mark.parametrize("size", [MAX_ITEM_BYTES, 1 << 20])
def test_long_line_is_refused_before_it_is_read(size: int) -> None:
    long = pieces(b"ab\nc\n" + b"x" * MAX_ITEM_BYTES + b"\nd\n", size)
    assert [item for items in split_lines(long) for item in items][2:] == [b"x" * MAX_ITEM_BYTES, b"d"]
    endless = (b"x" * size for _ in iter(int, 1))
    items, said = up_to_the_failure(split_lines, ([b"ab\nc\n", *pieces(b"x" * (MAX_ITEM_BYTES + 1) + b"\nd\n", size)]))
    assert items == [b"ab", b"c"]
    assert said == "line 3, which begins at byte 5, is longer than an item can be (16777216 bytes)"
    assert up_to_the_failure(split_lines, endless)[0] == []


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n", b"\xff\xff\xff\xff", b"\x01\x00\x00\x01x"])
def test_impossible_length_is_reported_with_its_place(garbage: bytes) -> None:
    items, said = up_to_the_failure(split_prefixed, pieces(prefixed(b"a", b"") + garbage, 3))
    assert items == [b"a", b""]
    assert said.startswith(f"the length of item 3, at byte 9, says {int.from_bytes(garbage[:4], 'big')} bytes, ")
    assert "does the input have lengths" in said


@pytest.mark.parametrize("end", [prefixed(b"abc")[:size] for size in range(1, 7)])
def test_incomplete_item_is_reported_with_its_place(end: bytes) -> None:
    items, said = up_to_the_failure(split_prefixed, [prefixed(b"a") + end])
    assert items == [b"a"]
    assert said == "the input ends within item 2, which begins at byte 5"


def test_endless_stream_is_refused_as_one_item() -> None:
    _, said = up_to_the_failure(take_whole, (b"x" * (1 << 20) for _ in iter(int, 1)))
    assert said == "the input is longer than an item can be (16777216 bytes)"
