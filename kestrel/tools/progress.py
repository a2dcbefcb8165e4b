"""A line on the terminal that says how far a long work is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, Self, TextIO

LARGE_BYTES: Final = 64 * 1024 * 1024
"""Less is read before anybody asks."""

_EVERY_S: Final = 0.1
_MB: Final = 1_000_000


class Progress:
    """How many of `total` bytes are done: drawn on standard error when that is a terminal and the work is large.

    As a context it takes the line away at its end, however it ends.
    """

    def __init__(
        self, what: str, total: int, stream: TextIO | None = None, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._total = total
        self._stream = stream or sys.stderr
        self._seconds = seconds
        self._is_shown = total >= LARGE_BYTES and self._stream.isatty()
        self._start_s = self._drawn_s = seconds() if self._is_shown else 0.0
        self._reached: dict[bytes, int] = {}
        self.done = 0

    def reached(self, path: bytes, position: int) -> None:
        """That file has been read up to there; what is read again does not count."""
        before = self._reached.get(path, 0)
        if position > before:
            self._reached[path] = position
            self.advance(position - before)

    def advance(self, size: int) -> None:
        """So many more bytes are done."""
        self.done += size
        if self._is_shown:
            now_s = self._seconds()
            if now_s - self._drawn_s >= _EVERY_S:
                self._drawn_s = now_s
                self._draw(now_s - self._start_s)

    def _draw(self, passed_s: float) -> None:
        rate = self.done / passed_s
        left_s = round(max(0, self._total - self.done) / rate) if rate else 0
        self._stream.write(
            f"\r{self._what}: {min(100, 100 * self.done // self._total)}%"
            f"  {self.done // _MB} of {self._total // _MB} MB  {rate / _MB:.0f} MB/s"
            f"  {left_s // 60}:{left_s % 60:02d} left\x1b[K"
        )
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
