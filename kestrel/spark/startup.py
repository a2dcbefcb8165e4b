"""Spark for the commands: its start without messages, clear messages if something is missing, and a progress line."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, TextIO

from kestrel.spark.options import SourceFailed
from kestrel.tools.arguments import option
from kestrel.tools.progress import TerminalLine, progress_bar
from kestrel.tools.tool_runner import EX_FOUND, EX_USAGE, ToolFailed, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS: Final = f"-Dlog4j.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""Java options that limit Spark's log to errors."""

_MODULES: Final = ("pyspark", "pyarrow", "numpy", "pandas")


MASTER: Final = option(
    "--master", "URL", str, "the Spark master, such as spark://head:7077 (default: this machine, local[*])"
)


def check_installed(*more: str) -> None:
    """Raise `ToolFailed` unless Java, the Python packages that Spark needs, and the packages `more` are installed."""
    missing = [name for name in (*_MODULES, *more) if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolFailed(f"{' and '.join(missing)} not installed: pip install 'kestrel-mq[spark]'", EX_USAGE)
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=os.path.join(home, "bin") if home else None) is None:
        where = f"in JAVA_HOME, {home}" if home else "on PATH"
        raise ToolFailed(
            f"Spark runs on Java, 17 or 21, and there is no java {where}: apt-get install openjdk-17-jre-headless",
            EX_USAGE,
        )


def run_command(tool: str, work: Callable[[], int]) -> int:
    """Run a command as `kestrel.tools.tool_runner.run` does. `SourceFailed` is an error of its arguments."""

    def checked() -> int:
        try:
            return work()
        except SourceFailed as failed:
            raise ToolFailed(str(failed), EX_USAGE) from failed

    return run(tool, checked)


@contextmanager
def use_spark(tool: str, master: str | None, doing: str) -> Iterator[SparkSession]:
    """Provide a Spark session for the work of a command, with a progress line that names the work.

    The session is embedded unless `master` is given. A running session is reused; a session that was started here is
    stopped at the end. The errors of Spark become a `ToolFailed` with their first line.
    """
    check_installed()
    from pyspark.sql import SparkSession

    from kestrel.spark.session import session

    was_there = SparkSession.getActiveSession() is not None
    where = "here" if master is None else f"with the master {master}"
    with capture_stderr(), _spark_errors_explained(f"Spark cannot be started {where}"):
        spark = session(tool, master, {} if was_there else {"spark.driver.extraJavaOptions": _JAVA_OPTIONS})
    if not was_there:
        _let_interrupts_end_it()
    try:
        with _spark_errors_explained("Spark failed"), show_progress(spark, doing):
            yield spark
    finally:
        if not was_there:
            spark.stop()


@contextmanager
def _spark_errors_explained(failure: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_spark_error(error):
            raise
        raise ToolFailed(f"{failure}: {first_line(error)}", EX_FOUND) from error


def _let_interrupts_end_it() -> None:
    """Restore Python's SIGINT handler: Spark's handler calls Java during another call, which logs tracebacks.

    Stopping the session also stops its jobs. A null handler keeps Py4J's log messages off the terminal.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not logging.root.handlers:
        logging.root.addHandler(logging.NullHandler())


def is_spark_error(error: Exception) -> bool:
    """Return True if PySpark or Py4J, its bridge to Java, raised the error."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def first_line(error: Exception) -> str:
    """Return the message of an error in one line, without the Java or Python traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback ") for line in lines):
        lines = [line for line in lines if not line.startswith(("at ", "SQLSTATE"))][-1:]
    elif lines and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    return lines[0].removeprefix(": ") if lines else type(error).__name__


_PROGRESS_EVERY_S: Final = 0.2


@contextmanager
def show_progress(spark: SparkSession, what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Draw the number of finished tasks on standard error until the context ends, if that is a terminal."""
    line = TerminalLine(stream)
    has_ended = Event()

    def draw() -> None:
        while not has_ended.wait(_PROGRESS_EVERY_S):
            with suppress(Exception):  # a closing session raises; progress must not fail the job
                line.draw(progress_text(spark, what))

    thread = Thread(target=draw, name="kestrel progress", daemon=True)
    if line.is_terminal:
        thread.start()
    try:
        yield
    finally:
        has_ended.set()
        if line.is_terminal:
            thread.join()
            line.clear()


def progress_text(spark: SparkSession, what: str) -> str:
    """Return a bar, the work's name and the task counts of all running stages; on Spark Connect only the name."""
    from pyspark.errors import PySparkException

    try:
        tracker = spark.sparkContext.statusTracker()
    except PySparkException:
        return what
    stages = [stage for each in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(each)) is not None]
    if not (tasks := sum(stage.numTasks for stage in stages)):
        return what
    done = sum(stage.numCompletedTasks for stage in stages)
    active = sum(stage.numActiveTasks for stage in stages)
    return f"{progress_bar(done / tasks)}  {what}: {done} of {tasks} tasks, {active} at work"


MOST_HELD_BYTES: Final = 16 * 1024
"""Limit of the captured bytes; older bytes are dropped."""

_READ_BYTES: Final = 64 * 1024

_END_OF_CAPTURE: Final = b"\0kestrel: the captured output ends here\0"


@contextmanager
def capture_stderr() -> Iterator[None]:
    """Capture the standard error of this process and of its new children until the context ends.

    Children may run longer; their later output is shown at once. If the context ends with an error, the last
    `MOST_HELD_BYTES` of the captured output are shown, because they may contain the reason.
    """
    sys.stderr.flush()
    reading, writing = os.pipe()
    standard_error = os.dup(2)
    has_failed, has_ended = Event(), Event()
    arguments = reading, os.dup(2), has_failed, has_ended
    Thread(target=_relay_stderr, args=arguments, name="kestrel standard error", daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    except Exception:
        has_failed.set()
        raise
    finally:
        sys.stderr.flush()
        os.write(2, _END_OF_CAPTURE)
        has_ended.wait()
        os.dup2(standard_error, 2)
        os.close(standard_error)


def _relay_stderr(reading: int, standard_error: int, has_failed: Event, has_ended: Event) -> None:
    """Read the pipe that replaces standard error until all writers have closed it; otherwise they would block.

    Output before the mark is kept, and shown at the mark if the context has failed. Later output is shown at once.
    """
    held = mark = later = b""
    while not mark and (data := os.read(reading, _READ_BYTES)):
        held, mark, later = (held + data).partition(_END_OF_CAPTURE)
        if not mark:
            held = held[-MOST_HELD_BYTES - len(_END_OF_CAPTURE) :]
    if has_failed.is_set():
        _show(standard_error, held[-MOST_HELD_BYTES:])
    has_ended.set()
    while later or (later := os.read(reading, _READ_BYTES)):
        _show(standard_error, later)
        later = b""
    os.close(reading)
    os.close(standard_error)


def _show(standard_error: int, data: bytes) -> None:
    with suppress(OSError):  # the terminal may be gone, but writers must not block
        while data:
            data = data[os.write(standard_error, data) :]
