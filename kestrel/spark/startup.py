"""Start of Spark for the commands, without its messages, and with clear messages if something is missing."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from select import POLLIN, poll
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from kestrel.spark.failures import SourceFailed
from kestrel.tools.tool_runner import EX_FOUND, EX_USAGE, ToolFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS: Final = f"-Dlog4j.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""Java options that limit Spark's log to errors."""

_MODULES: Final = ("pyspark", "pyarrow", "numpy", "pandas")


def add_master_option(parser: ArgumentParser) -> None:
    """Add ``--master URL``."""
    parser.add_argument(
        "--master",
        metavar="URL",
        help="the Spark master, such as spark://head:7077 (default: this machine, local[*])",
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


@contextmanager
def use_spark(tool: str, master: str | None, doing: str) -> Iterator[SparkSession]:
    """Provide a Spark session for the work of a command, with a progress line that names the work.

    The session is embedded unless `master` is given. A running session is reused; a session that was started here is
    stopped at the end. `SourceFailed` and the errors of Spark, with their first line, become a `ToolFailed`.
    """
    check_installed()
    from pyspark.sql import SparkSession

    from kestrel.spark.job_progress import JobProgress

    was_there = SparkSession.getActiveSession() is not None
    with capture_stderr():
        spark = _start(tool, master, {} if was_there else {"spark.driver.extraJavaOptions": _JAVA_OPTIONS})
    if not was_there:
        _let_interrupts_end_it()
    try:
        with JobProgress(spark, doing):
            yield spark
    except SourceFailed as failed:
        raise ToolFailed(str(failed), EX_USAGE) from failed
    except Exception as error:
        if not is_spark_error(error):
            raise
        raise ToolFailed(f"Spark failed: {first_line(error)}", EX_FOUND) from error
    finally:
        if not was_there:
            spark.stop()


def _start(tool: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    from kestrel.spark.session import session

    try:
        return session(tool, master, settings)
    except Exception as error:
        if not is_spark_error(error):
            raise
        where = "here" if master is None else f"with the master {master}"
        raise ToolFailed(f"Spark cannot be started {where}: {first_line(error)}", EX_FOUND) from error


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


MOST_HELD_BYTES: Final = 16 * 1024
"""Limit of the captured bytes; older bytes are dropped."""

_READ_BYTES: Final = 64 * 1024


@contextmanager
def capture_stderr() -> Iterator[None]:
    """Capture the standard error of this process and of its new children until the context ends.

    Children may run longer; their later output is shown at once. If the context ends with an error, the last
    `MOST_HELD_BYTES` of the captured output are shown, because they may contain the reason.
    """
    sys.stderr.flush()
    heard, said = os.pipe()
    ear = _StderrReader(heard, os.dup(2))
    standard_error = os.dup(2)
    os.dup2(said, 2)
    os.close(said)
    Thread(target=ear.listen, name="kestrel standard error", daemon=True).start()
    try:
        yield
    except Exception:
        ear.pass_on(is_held_shown=True)
        raise
    finally:
        sys.stderr.flush()
        ear.pass_on(is_held_shown=False)
        os.dup2(standard_error, 2)
        os.close(standard_error)


class _StderrReader:
    """A reader of the pipe that replaces standard error, which drains it until all writers have closed it.

    Without it a writer would block on a full pipe. The reader owns and closes both descriptors.
    """

    def __init__(self, heard: int, standard_error: int) -> None:
        self._heard = heard
        self._standard_error = standard_error
        self._lock = Lock()
        self._held: bytes | None = b""
        """Captured bytes, or None once output is passed on."""

    def listen(self) -> None:
        """Read until all writers have closed the pipe."""
        said = _poll(self._heard)
        while True:
            said.poll()
            with self._lock:
                if said.poll(0) and not self._hear():
                    os.close(self._heard)
                    os.close(self._standard_error)
                    return

    def pass_on(self, *, is_held_shown: bool) -> None:
        """Pass on all later output at once; show or drop the captured output first."""
        said = _poll(self._heard)
        with self._lock:
            if self._held is None:
                return
            while said.poll(0) and self._hear():
                pass
            held, self._held = self._held, None
            if is_held_shown:
                self._show(held)

    def _hear(self) -> bool:
        """Read once and return False at the end of the pipe."""
        data = os.read(self._heard, _READ_BYTES)
        if self._held is None:
            self._show(data)
        else:
            self._held = (self._held + data)[-MOST_HELD_BYTES:]
        return bool(data)

    def _show(self, data: bytes) -> None:
        with suppress(OSError):  # the terminal may be gone, but writers must not block
            while data:
                data = data[os.write(self._standard_error, data) :]


def _poll(descriptor: int) -> poll:
    """Return a poll object that reports data or end of file on the descriptor."""
    asked = poll()
    asked.register(descriptor, POLLIN)
    return asked
