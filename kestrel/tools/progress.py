"""Progress lines on the terminal for long operations."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final, Self, TextIO, TypeAlias, TypeVar

T = TypeVar("T")

LARGE_BYTES: Final = 64 * 1024 * 1024
"""Fewer bytes are read so quickly that no progress is shown."""

LARGE_LOAD_BYTES: Final = 4 * 1024 * 1024
"""A load of at least this many bytes shows its progress from the beginning."""
SLOW_LOAD_S: Final = 1.0
"""A smaller load shows its progress after this time."""

_EVERY_S: Final = 0.1
_MB: Final = 1_000_000
_BAR_COLUMNS: Final = 20
_COLUMNS: Final = 80
"""Width of a terminal that does not report it."""


class TerminalLine:
    """A line of standard error that each `draw` overwrites. Draw only if `is_terminal`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_terminal = self._stream.isatty()
        self._is_drawn = False

    def draw(self, text: str) -> None:
        """Replace the line by `text`, cut to the width of the terminal."""
        self._is_drawn = True
        self._stream.write(f"\r{text[: self._columns() - 1]}\x1b[K")
        self._stream.flush()

    def clear(self) -> None:
        if self._is_drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except OSError:
            return _COLUMNS


def progress_bar(part: float) -> str:
    """Return a bar of fixed width for a part from 0 to 1."""
    bar = ("=" * int(_BAR_COLUMNS * part) + ">")[:_BAR_COLUMNS].ljust(_BAR_COLUMNS)
    return f"[{bar}] {100 * part:.0f}%"


class _TimedProgress:
    """A line on a terminal that is redrawn every 0.1 s, first after `delay_s` seconds. It is erased at exit."""

    def __init__(self, delay_s: float, stream: TextIO | None, seconds: Callable[[], float]) -> None:
        self._line = TerminalLine(stream)
        self._seconds = seconds
        self._start_s = seconds()
        self._next_s = self._start_s + delay_s

    def _passed_s(self) -> float | None:
        """Return the time since the start, in seconds, or None if the line is not due to be redrawn."""
        if not self._line.is_terminal or (now_s := self._seconds()) < self._next_s:
            return None
        self._next_s = now_s + _EVERY_S
        return now_s - self._start_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()


class ByteProgress(_TimedProgress):
    """Progress of an operation on `total` bytes, drawn on standard error.

    It is drawn from the beginning if `total` is at least `LARGE_BYTES` and standard error is a terminal.
    """

    def __init__(
        self, what: str, total: int, stream: TextIO | None = None, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(0, stream, seconds)
        self._what = what
        self._total = total
        self._reached: dict[bytes, int] = {}
        self.done = 0

    def reached(self, path: bytes, position: int) -> None:
        """Record that a file has been read up to `position`. Bytes read again do not count."""
        before = self._reached.get(path, 0)
        if position > before:
            self._reached[path] = position
            self.advance(position - before)

    def advance(self, size: int) -> None:
        """Add `size` bytes to those done, and redraw the line if it is due."""
        self.done += size
        if self._total < LARGE_BYTES or (passed_s := self._passed_s()) is None:
            return
        rate = self.done / passed_s if passed_s else 0.0
        left_s = round(max(0, self._total - self.done) / rate) if rate else 0
        self._line.draw(
            f"{self._what}: {min(100, 100 * self.done // self._total)}%"
            f"  {self.done // _MB} of {self._total // _MB} MB  {rate / _MB:.0f} MB/s"
            f"  {left_s // 60}:{left_s % 60:02d} left"
        )

    def counted(self, parts: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
        """Yield the parts, and add the size of each to the bytes done once it has been used."""
        for part in parts:
            yield part
            self.advance(size(part))


Progress: TypeAlias = Callable[[str, int], AbstractContextManager[ByteProgress]]
"""Begins the progress of an operation on a number of bytes, such as `ByteProgress` or `no_progress`."""


def no_progress(what: str, total: int) -> ByteProgress:
    """Return a progress that is not drawn."""
    return ByteProgress(what, 0)


class LoadProgress(_TimedProgress):
    """Progress of a load of items, drawn on standard error if that is a terminal and the load is large or slow.

    `total` is the number of bytes to read. If it is None, the line has no bar, only counts and the rate.
    """

    def __init__(
        self, total: int | None, stream: TextIO | None = None, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(0 if (total or 0) >= LARGE_LOAD_BYTES else SLOW_LOAD_S, stream, seconds)
        self._total = total

    def reached(self, items: int, size: int) -> None:
        """Redraw the line if it is due: `items` have been put, and `size` bytes of input have been read."""
        passed_s = self._passed_s()
        if passed_s is None:
            return
        rate = items / passed_s if passed_s else 0.0
        put = f"{items} items  {rate:.0f}/s"
        if not self._total:
            self._line.draw(f"{put}  {size / _MB:.1f} MB")
            return
        part = min(1.0, size / self._total)
        left_s = round(passed_s * (1 - part) / part) if part else 0
        sizes = f"{size / _MB:.1f} of {self._total / _MB:.1f} MB"
        self._line.draw(f"{progress_bar(part)}  {put}  {sizes}  {left_s // 60}:{left_s % 60:02d} left")
