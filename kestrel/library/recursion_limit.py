"""How many in a row may be answered before they have asked."""

from __future__ import annotations

from typing import Final

MAX_SYNCHRONOUS_CALLBACKS: Final = 100
"""Answers in a row that are there when the call returns."""


class RecursionLimit:
    """Counts the answers that are there when a call returns, and says when one must wait for the reactor.

    Who has such an answer goes on within the call that gave it, and may ask again, deeper on the stack each time.
    """

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers = 0

    def may_recurse(self) -> bool:
        """Whether one more may be answered at once; after a False the count begins anew."""
        self._answers = (self._answers + 1) % (MAX_SYNCHRONOUS_CALLBACKS + 1)
        return self._answers > 0
