"""What a queue may hold: whether it takes one more item, and how much it has to give up for one that it took."""

from __future__ import annotations

from kestrel.config.model import QueueSettings


def is_too_large(settings: QueueSettings, size: int) -> bool:
    """Whether an item of that many bytes is never taken."""
    return settings.max_item_size_bytes is not None and size > settings.max_item_size_bytes


def is_full(settings: QueueSettings, items: int, size: int) -> bool:
    """Whether a queue that holds so many items, and so many bytes of data, stands at a limit or over it."""
    max_items, max_size = settings.max_items, settings.max_size_bytes
    return (max_items is not None and items >= max_items) or (max_size is not None and size >= max_size)
