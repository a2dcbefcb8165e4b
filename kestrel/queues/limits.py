"""The limits of a queue: its size, the size of its items, and its clients."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.queues.expiry import is_expired
from kestrel.storage.interfaces import IQueueStorage

_NO_LIMIT: Final = 1 << 60


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueLimits:
    """The settings that are needed for each item, as plain values for speed.

    The methods are Kestrel's rules. A subclass may have other rules.
    """

    __slots__ = (
        "dequeuers",
        "discards_old",
        "enqueuers",
        "expires_to",
        "has_fanout_only",
        "is_never_full",
        "max_age_ms",
        "max_bytes",
        "max_item_bytes",
        "max_items",
    )

    def __init__(self, settings: QueueSettings) -> None:
        self.max_items = _NO_LIMIT if settings.max_items is None else settings.max_items
        self.max_bytes = _NO_LIMIT if settings.max_size_bytes is None else settings.max_size_bytes
        self.max_item_bytes = _NO_LIMIT if settings.max_item_size_bytes is None else settings.max_item_size_bytes
        self.max_age_ms = settings.max_age_ms
        self.expires_to = settings.expire_to_queue
        self.discards_old = settings.discard_old_when_full
        self.is_never_full = self.discards_old or (settings.max_items is None and settings.max_size_bytes is None)
        self.enqueuers = settings.white_list_client_id_for_enqueue
        self.dequeuers = settings.white_list_client_id_for_dequeue
        self.has_fanout_only = settings.fanout_only

    def is_too_large(self, size: int) -> bool:
        """Return True if an item of `size` bytes is always refused."""
        return size > self.max_item_bytes

    def is_full(self, items: int, size: int) -> bool:
        """Return True if a queue of `items` items and `size` bytes has reached a limit."""
        return items >= self.max_items or size >= self.max_bytes

    def has_room(self, store: IQueueStorage) -> bool:
        """Return True if a put may append an item to `store`."""
        return not self.is_full(store.items, store.bytes)

    def is_exceeded(self, store: IQueueStorage, last_size: int) -> bool:
        """Return True if the head must be discarded, after an item of `last_size` bytes was put."""
        return self.is_full(store.items - 1, store.bytes - last_size)

    def is_expired(self, item: Item, now_ms: int) -> bool:
        """Return True if `item` has expired."""
        return is_expired(item, self.max_age_ms, now_ms)
