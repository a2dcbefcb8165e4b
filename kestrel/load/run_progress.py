"""The progress line of a run on the terminal."""

from __future__ import annotations

from typing import Final, TextIO

from kestrel.load.run_stats import RunStats
from kestrel.tools.progress import TerminalLine

REDRAW_INTERVAL_S: Final = 0.2


class RunProgress:
    """A progress line on standard error, which is drawn only on a terminal."""

    def __init__(self, tool: str, run_stats: RunStats, stream: TextIO | None = None) -> None:
        self._tool = tool
        self._run_stats = run_stats
        self._line = TerminalLine(stream)

    def draw(self) -> None:
        """Redraw the line. It shows only the last three kinds of requests, since a run may have many."""
        if self._line.is_terminal:
            request_stats_list = "  ".join(
                f"{request_stats.name} {request_stats.items:,}"
                for request_stats in self._run_stats.request_stats_list[-3:]
            )
            self._line.draw(f"{self._tool}: {request_stats_list}")

    def clear(self) -> None:
        """Erase the line."""
        self._line.clear()
