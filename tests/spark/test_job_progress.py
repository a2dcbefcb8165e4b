"""The progress line on the terminal while Spark works."""

from __future__ import annotations

import io
from threading import Event
from types import SimpleNamespace
from typing import Any

from kestrel.spark.startup import progress_text, show_progress
from tests.child import PATIENCE_S


class Terminal(io.StringIO):
    """A stream that is a terminal or not. `is_drawn` is set at the first write."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.is_drawn = Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.is_drawn.set()
        return super().write(text)


def spark_with(*stages: tuple[int, int, int]) -> Any:
    """Return a session whose running stages have these numbers of tasks, of finished tasks and of active tasks."""
    names = ("numTasks", "numCompletedTasks", "numActiveTasks")
    infos = [SimpleNamespace(**dict(zip(names, stage, strict=True))) for stage in stages]
    tracker = SimpleNamespace(getActiveStageIds=lambda: range(len(infos)), getStageInfo=infos.__getitem__)
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))


def test_progress_counts_the_tasks_of_all_running_stages() -> None:
    assert progress_text(spark_with((80, 12, 2), (4, 0, 0)), "verifying") == (
        "[==>                 ] 14%  verifying: 12 of 84 tasks, 2 at work"
    )


def test_progress_before_the_first_task_names_the_work() -> None:
    assert progress_text(spark_with(), "verifying") == "verifying"


def test_line_is_drawn_and_erased_at_the_end() -> None:
    stream = Terminal()
    with show_progress(spark_with((80, 12, 2)), "verifying", stream):
        assert stream.is_drawn.wait(PATIENCE_S)
    assert stream.getvalue().startswith("\r[===>                ] 15%  verifying: 12 of 80 tasks, 2 at work\x1b[K")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_nothing_is_drawn_without_a_terminal() -> None:
    stream = Terminal(is_terminal=False)
    with show_progress(spark_with(), "verifying", stream):
        pass
    assert stream.getvalue() == ""
