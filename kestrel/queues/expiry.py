"""When an item expires."""

from __future__ import annotations

from typing import Final

from kestrel.item import Item

MAX_SWEPT_PER_SLICE: Final = 500
"""Items; that takes about a millisecond. Then it is the turn of others, and the sweep goes on in a later one."""

MAX_MOVED_PER_SLICE: Final = 200
"""Items that expire into another queue: that takes as long, with what follows."""

MAX_SWEPT_PER_PUT: Final = 50
"""Items that a put lets go on its way: there may be many children that it goes to."""

MAX_SWEPT_FOR_ROOM: Final = 5_000
"""Items that a put to full queues lets go at most: about ten milliseconds. If there are more it is taken all the same.
"""


def is_expired(item: Item, max_age_ms: int | None, now_ms: int) -> bool:
    """Whether an item has expired: by its client's wish, or because it is older than maxAge."""
    return 0 < item.expiry_ms < now_ms or (max_age_ms is not None and item.add_ms + max_age_ms < now_ms)
