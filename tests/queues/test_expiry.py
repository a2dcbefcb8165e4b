"""Expiry: the millisecond at which an item expires."""

from __future__ import annotations

import pytest

from kestrel.item import Item
from kestrel.queues.limits import is_expired

ADDED_MS = 1_000_000


@pytest.mark.parametrize(
    ("expiry_ms", "max_age_ms", "expired_from_ms"),
    [
        (0, None, None),
        (ADDED_MS + 500, None, ADDED_MS + 501),
        (0, 300, ADDED_MS + 301),
        (ADDED_MS + 500, 300, ADDED_MS + 301),
        (ADDED_MS + 300, 500, ADDED_MS + 301),
        (ADDED_MS + 300, 300, ADDED_MS + 301),
        (1, None, 2),
        (0, 0, ADDED_MS + 1),
        (ADDED_MS - 500, 300, ADDED_MS - 499),
    ],
)
def test_item_expires_just_after_the_earlier_of_its_times(
    expiry_ms: int, max_age_ms: int | None, expired_from_ms: int | None
) -> None:
    item = Item(b"x", ADDED_MS, expiry_ms)
    if expired_from_ms is None:
        assert not is_expired(item, max_age_ms, 1 << 62)
    else:
        assert not is_expired(item, max_age_ms, expired_from_ms - 1)
        assert is_expired(item, max_age_ms, expired_from_ms)
        assert is_expired(item, max_age_ms, 1 << 62)
