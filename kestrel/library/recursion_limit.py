"""A recursion limit for synchronous callbacks."""

from __future__ import annotations

from typing import Final

MAX_SYNCHRONOUS_CALLBACKS: Final = 100
"""Maximum number of results in a row that are available when the call returns."""


class RecursionLimit:
    """A counter of results that are available when a call returns.

    A callback that runs at once may call again, deeper on the stack each time. At the limit, the next result must wait
    for a later tick.
    """

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers = 0

    def may_recurse(self) -> bool:
        """Count a result. Return False, and restart the count, if the result must wait for a later tick."""
        self._answers = (self._answers + 1) % (MAX_SYNCHRONOUS_CALLBACKS + 1)
        return self._answers > 0
