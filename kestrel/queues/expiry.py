"""Expiry of items."""

from __future__ import annotations

from typing import Final

from kestrel.item import Item

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
