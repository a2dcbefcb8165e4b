"""A progress line on the terminal for Spark jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Event, Thread
from typing import Final, NamedTuple, Self, TextIO

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kestrel.tools.progress import TerminalLine

_EVERY_S: Final = 0.2


class Stage(NamedTuple):
    """Task counts of a running stage."""

    tasks: int
    done: int
    active: int


class JobProgress:
    """A progress line with the number of finished tasks, drawn on standard error if that is a terminal.

    As a context manager it redraws the line until the context ends, then clears it. Over Spark Connect the task counts
    are not available, and the line shows only the name of the work.
    """

    def __init__(
        self,
        spark: SparkSession,
        what: str,
        stream: TextIO | None = None,
        stages: Callable[[], Iterable[Stage]] | None = None,
    ) -> None:
        self._what = what
        self._line = TerminalLine(stream)
        self._stages = stages or (lambda: active_stages(spark))
        self._has_ended = Event()
        self._thread: Thread | None = None

    def draw(self) -> None:
        """Draw the current progress once."""
        stages = list(self._stages())
        tasks = sum(stage.tasks for stage in stages)
        text = self._what
        if tasks:
            done, active = sum(stage.done for stage in stages), sum(stage.active for stage in stages)
            text += f": {done} of {tasks} tasks, {active} at work"
        self._line.draw(text)

    def _draw_on(self) -> None:
        while not self._has_ended.wait(_EVERY_S):
            with suppress(Exception):  # a closing session raises; progress must not fail the job
                self.draw()

    def __enter__(self) -> Self:
        if self._line.is_terminal:
            self._thread = Thread(target=self._draw_on, name="kestrel progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join()
            self._line.clear()


def active_stages(spark: SparkSession) -> list[Stage]:
    """Return the running stages, or an empty list over Spark Connect."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except PySparkException:  # Spark Connect
        return []
    stages = []
    for stage_id in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage_id)
        if info is not None:
            stages.append(Stage(info.numTasks, info.numCompletedTasks, info.numActiveTasks))
    return stages
