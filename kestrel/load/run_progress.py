"""A line on the terminal that says how far a run is."""

from __future__ import annotations

from typing import Final, TextIO

from kestrel.load.run_stats import RunStats
from kestrel.tools.progress import TerminalLine

REDRAW_INTERVAL_S: Final = 0.2


class RunProgress:
    """Drawn on standard error when that is a terminal, and taken away at the end."""

    def __init__(self, tool: str, run_stats: RunStats, stream: TextIO | None = None) -> None:
        self._tool = tool
        self._run_stats = run_stats
        self._line = TerminalLine(stream)

    def draw(self) -> None:
        """As it is now. The last lanes alone: a run may have many."""
        if self._line.is_terminal:
            request_stats_list = "  ".join(
                f"{request_stats.name} {request_stats.items:,}"
                for request_stats in self._run_stats.request_stats_list[-3:]
            )
            self._line.draw(f"{self._tool}: {request_stats_list}")

    def clear(self) -> None:
        """Take it away."""
        self._line.clear()
