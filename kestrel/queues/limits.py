"""The limits of a queue: its size, the size and age of its items, and its clients."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.storage.interfaces import IQueueStorage

MAX_SWEPT_PER_SLICE: Final = 500
"""Items swept in one slice, which takes about a millisecond. The sweep continues in a later tick."""

MAX_MOVED_PER_SLICE: Final = 200
"""Items moved to another queue in one slice of a sweep. With the moves, it takes about a millisecond as well."""

MAX_SWEPT_PER_PUT: Final = 50
"""Items swept by a put before its own work. The limit is low because a put may go to many children."""

MAX_SWEPT_FOR_ROOM: Final = 5_000
"""Items swept by a put to full queues, which takes about ten milliseconds. With more, the item is accepted anyway."""


def is_expired(item: Item, max_age_ms: int | None, now_ms: int) -> bool:
    """Return True if an item has expired: by its own expiry time, or because it is older than maxAge."""
    return 0 < item.expiry_ms < now_ms or (max_age_ms is not None and item.add_ms + max_age_ms < now_ms)


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
        return is_expired(item, self.max_age_ms, now_ms)
