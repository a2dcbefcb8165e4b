"""The policy for a put to a full queue."""

from __future__ import annotations

from enum import Enum


class FullPolicy(Enum):
    """The action of a put to a full queue."""

    REFUSE_PUTS = "refuse puts"
    """Refuse the item."""
    DROP_OLDEST = "drop the oldest"
    """Append the item, and drop the item at the head."""
