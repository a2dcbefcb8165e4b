"""Error for a text that cannot be parsed at all."""

from __future__ import annotations

from kestrel.errors import KestrelError


class ScalaError(KestrelError):
    """A text cannot be parsed. `line` is where, counted from 1, and the message contains it."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(f"line {line}: {sentence}")
        self.line = line
