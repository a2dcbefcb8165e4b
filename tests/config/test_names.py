"""What a queue may be called in a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.config.names import parent_of, parse_queue_name
from kestrel.errors import BadQueueName
from kestrel.queues.names import check_queue_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("work", b"work"),
        ("work+audit", b"work+audit"),
        ("+x", b"+x"),
        ("x+", b"x+"),
        ("a+b+c", b"a+b+c"),
        ("Größe", "Größe".encode()),
        ("x" * 200, b"x" * 200),
    ],
)
def test_legal_names_become_utf8(text: str, name: bytes) -> None:
    assert parse_queue_name(text) == name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "cannot be empty"),
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
    with pytest.raises(ValueError) as caught:
        parse_queue_name(text)
    assert complaint in str(caught.value)


@given(st.text(max_size=210) | st.text("ab+./~ \t\x01\x7f\u00e9", max_size=4))
def test_a_file_and_a_client_are_held_to_the_same_rule(text: str) -> None:
    def is_legal(check: object, name: str | bytes) -> bool:
        try:
            check(name)
        except (ValueError, BadQueueName):
            return False
        return True

    assert is_legal(parse_queue_name, text) == is_legal(check_queue_name, text.encode())


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
def test_the_parent_is_what_stands_before_the_first_plus(name: bytes, parent: bytes | None) -> None:
    assert parent_of(name) == parent
