"""Items with keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.keyed import MAX_KEY_BYTES, NotKeyed, join, split


def test_bytes_of_an_item_with_a_key() -> None:
    assert join(b"42", b"hello") == b"\xc1K1" b"\x00\x02" b"42" b"hello"


@given(st.binary(min_size=1, max_size=300), st.binary(max_size=300))
def test_split_returns_key_and_data(key: bytes, data: bytes) -> None:
    assert split(join(key, data)) == (key, data)


def test_empty_and_too_long_keys_are_refused() -> None:
    longest = b"k" * MAX_KEY_BYTES
    assert split(join(longest, b"")) == (longest, b"")
    for key in (b"", longest + b"k"):
        with pytest.raises(ValueError, match=f"from 1 to 65535 bytes, not {len(key)}"):
            join(key, b"hello")


@given(st.text())
def test_text_is_never_an_item_with_a_key(text: str) -> None:
    with pytest.raises(NotKeyed, match="does not begin"):
        split(text.encode())


def test_item_with_incomplete_or_empty_key_is_refused() -> None:
    whole = join(b"key", b"")
    for end in range(3, len(whole)):
        with pytest.raises(NotKeyed, match="ends before the end of the key"):
            split(whole[:end])
    with pytest.raises(NotKeyed, match="ends before the end of the key"):
        split(b"\xc1K1\x00\x00hello")
