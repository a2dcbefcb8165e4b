"""What happens to a put when the queue is full."""

from __future__ import annotations

from enum import Enum


class FullPolicy(Enum):
    """What a full queue does."""

    REFUSE_PUTS = "refuse puts"
    """It takes nothing more."""
    DROP_OLDEST = "drop the oldest"
    """It takes the item, and drops the one at its head."""
