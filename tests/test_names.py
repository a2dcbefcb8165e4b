"""Queue names."""

from __future__ import annotations

import pytest

from kestrel.errors import BadQueueName
from kestrel.names import check_queue_name, children_among, parent_of


@pytest.mark.parametrize(
    "name",
    [b"work", b"work+audit", b"+x", b"x+", b"a+b+c", "Größe".encode(), b"\xe9\xff", b"x" * 200],
)
def test_valid_names_are_accepted(name: bytes) -> None:
    check_queue_name(name)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "required"),
        ("x" * 201, "longer than 200 bytes"),
        ("ü" * 101, "longer than 200 bytes"),
        ("+", 'cannot be called "+"'),
        ("a.b", "cannot hold"),
        ("a/b", "cannot hold"),
        ("a~b", "cannot hold"),
        ("a b", "cannot hold"),
        ("a\tb", "cannot hold"),
        ("a\n", "cannot hold"),
        ("a\x7f", "cannot hold"),
        ("a\0", "cannot hold"),
    ],
)
def test_illegal_names_are_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(BadQueueName) as caught:
        check_queue_name(text.encode())
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "parent"),
    [
        (b"a", None),
        (b"a+x", b"a"),
        (b"a+x+y", b"a"),
        (b"a+", b"a"),
        (b"+x", None),
        (b"+", None),
        (b"++x", None),
    ],
)
def test_parent_is_the_part_before_the_first_plus(name: bytes, parent: bytes | None) -> None:
    assert parent_of(name) == parent


def test_children_are_distinguished_from_other_names() -> None:
    names = [b"work+b", b"work", b"work2+x", b"+work", b"other", b"work+a+b"]
    assert children_among(names, b"work") == [b"work+a+b", b"work+b"]
    assert children_among(names, b"work+a") == []
