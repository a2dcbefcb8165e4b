"""A line on the terminal that says how far a run is."""

from __future__ import annotations

import sys
from typing import Final, TextIO

from kestrel.load.figures import Figures

EVERY_S: Final = 0.2


class RunProgress:
    """Drawn on standard error when that is a terminal, and taken away at the end."""

    def __init__(self, tool: str, figures: Figures, stream: TextIO | None = None) -> None:
        self._tool = tool
        self._figures = figures
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._is_drawn = False

    def draw(self) -> None:
        """As it is now. The last lanes alone: a run may have many."""
        if self._is_terminal:
            self._is_drawn = True
            lanes = "  ".join(f"{lane.name} {lane.items:,}" for lane in self._figures.lanes[-3:])
            self._stream.write(f"\r{self._tool}: {lanes}"[:80] + "\x1b[K")
            self._stream.flush()

    def clear(self) -> None:
        """Take it away."""
        if self._is_drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
