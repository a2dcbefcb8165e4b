"""A line on the terminal that says how far a run is."""

from __future__ import annotations

from typing import Final, TextIO

from kestrel.load.figures import Figures
from kestrel.tools.progress import TerminalLine

EVERY_S: Final = 0.2


class RunProgress:
    """Drawn on standard error when that is a terminal, and taken away at the end."""

    def __init__(self, tool: str, figures: Figures, stream: TextIO | None = None) -> None:
        self._tool = tool
        self._figures = figures
        self._line = TerminalLine(stream)

    def draw(self) -> None:
        """As it is now. The last lanes alone: a run may have many."""
        if self._line.is_terminal:
            lanes = "  ".join(f"{lane.name} {lane.items:,}" for lane in self._figures.lanes[-3:])
            self._line.draw(f"{self._tool}: {lanes}")

    def clear(self) -> None:
        """Take it away."""
        self._line.clear()
