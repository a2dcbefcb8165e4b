"""The state of a queue as the load tools see it, in any protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from kestrel.client.errors import BadReply


class QueueState(NamedTuple):
    """The state of a queue at one moment."""

    exists: bool | None
    """True if the queue existed before the request; None if the protocol does not tell."""
    items: int = 0
    """Number of items in the queue and of open reads."""
    journal_bytes: int = 0

    @classmethod
    def of(cls, figures: Mapping[str, str]) -> Self:
        """Return the state that a queue's statistics show. Without statistics the queue does not exist.

        Raise `BadReply` if ``items`` is missing or a value is not a number.
        """
        if not figures:
            return cls(False)
        try:
            items = int(figures["items"]) + int(figures.get("open_transactions", "0"))
            return cls(True, items, int(figures.get("logsize", "0")))
        except (KeyError, ValueError):
            raise BadReply("the statistics of the queue are not numbers") from None
