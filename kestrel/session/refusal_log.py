"""The log of refused requests, with a bounded number of lines per second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

log = Logger(__name__)

MAX_LOG_LINES: Final = 10
LOG_WINDOW_S: Final = 1.0


class RefusalLog:
    """A log of refusals with at most `MAX_LOG_LINES` per second. The next line has the number of omitted refusals."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._began_s = float("-inf")
        self._lines = 0
        self._left_out = 0

    def log(self, who: str, identity: bytes | None, what: str) -> None:
        """Log a refusal, unless there were too many lines in this second.

        `who` is the client's address, and `identity` its name, if it has one. `what` is a sentence without an item's
        data.
        """
        now_s = self._seconds()
        if now_s >= self._began_s + LOG_WINDOW_S:
            self._began_s, self._lines = now_s, 0
        if self._lines >= MAX_LOG_LINES:
            self._left_out += 1
            return
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        log.warn(
            "Refused: {who} ({identity}): {what}{more}",
            who=who,
            identity="no name" if identity is None else repr(identity.decode("utf-8", "backslashreplace")),
            what=what,
            more=f"; {left_out} more refusals before it are not logged" if left_out else "",
        )
