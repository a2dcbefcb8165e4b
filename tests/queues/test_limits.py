"""QueueLimits: when a queue is full, and when an item is too large."""

from __future__ import annotations

import pytest

from kestrel.config.model import QueueSettings
from kestrel.queues.limits import QueueLimits


@pytest.mark.parametrize(
    ("most", "size", "is_over"),
    [(None, 1 << 40, False), (10, 9, False), (10, 10, False), (10, 11, True), (1, 0, False)],
)
def test_item_is_too_large_only_above_max_item_size(most: int | None, size: int, is_over: bool) -> None:
    assert QueueLimits(QueueSettings(max_item_size_bytes=most)).is_too_large(size) is is_over


@pytest.mark.parametrize(
    ("max_items", "max_size", "items", "size", "is_at_a_limit"),
    [
        (None, None, 1 << 40, 1 << 40, False),
        (3, None, 2, 1 << 40, False),
        (3, None, 3, 0, True),
        (3, None, 4, 0, True),
        (None, 10, 1 << 40, 9, False),
        (None, 10, 1, 10, True),
        (None, 10, 1, 11, True),
        (3, 10, 2, 9, False),
        (3, 10, 3, 9, True),
        (3, 10, 2, 10, True),
        (3, 10, 0, 0, False),
    ],
)
def test_queue_is_full_at_or_over_either_limit(
    max_items: int | None, max_size: int | None, items: int, size: int, is_at_a_limit: bool
) -> None:
    limits = QueueLimits(QueueSettings(max_items=max_items, max_size_bytes=max_size))
    assert limits.is_full(items, size) is is_at_a_limit
