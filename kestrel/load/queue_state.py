"""What the load tools see of a queue, in whatever protocol they ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from kestrel.client.errors import BadReply


class QueueState(NamedTuple):
    """A queue at a glance."""

    exists: bool | None
    """Whether it was there before it was looked at; None where the protocol does not say."""
    items: int = 0
    """In the queue, and open."""
    journal_bytes: int = 0

    @classmethod
    def of(cls, figures: Mapping[str, str]) -> Self:
        """What the figures of a queue say. Raises `BadReply`."""
        if not figures:
            return cls(False)
        try:
            items = int(figures["items"]) + int(figures.get("open_transactions", "0"))
            return cls(True, items, int(figures.get("logsize", "0")))
        except (KeyError, ValueError):
            raise BadReply("the figures of the queue are no numbers") from None
