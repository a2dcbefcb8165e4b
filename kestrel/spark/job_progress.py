"""A line on the terminal that says how far Spark has come."""

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
    """A stage that is at work."""

    tasks: int
    done: int
    active: int


class JobProgress:
    """How many tasks of the jobs at work are done: drawn on standard error when that is a terminal.

    As a context it draws for as long as that lasts, and takes the line away at its end, however it ends. Over Spark
    Connect nobody knows, and it says what is done without numbers.
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
        """Show how far it is now."""
        stages = list(self._stages())
        tasks = sum(stage.tasks for stage in stages)
        text = self._what
        if tasks:
            done, active = sum(stage.done for stage in stages), sum(stage.active for stage in stages)
            text += f": {done} of {tasks} tasks, {active} at work"
        self._line.draw(text)

    def _draw_on(self) -> None:
        while not self._has_ended.wait(_EVERY_S):
            with suppress(Exception):  # a session that ends has nothing to say, and the work must not suffer
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
    """Those that are at work."""
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
