"""What is wrong with a text as a whole, so that nothing can be made of it."""

from __future__ import annotations

from kestrel.errors import KestrelError


class ScalaError(KestrelError):
    """A text that cannot be read. Its text is a sentence, `line` where it is, from 1 on."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(f"line {line}: {sentence}")
        self.line = line
