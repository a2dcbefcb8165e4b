"""Start of Spark for the commands, with clear messages if something is missing."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestrel.tools.tool_runner import EX_FOUND, EX_USAGE, ToolFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS: Final = f"-Dlog4j.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""Java options that limit Spark's log to errors."""

MODULES: Final = ("pyspark", "pyarrow", "numpy", "pandas")


def check_installed() -> None:
    """Raise `ToolFailed` unless the Python packages and Java that Spark needs are installed."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
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
def start_spark(tool: str, master: str | None) -> Iterator[SparkSession]:
    """Provide a Spark session for the context, embedded unless `master` is given; a running session is reused.

    A session that was started here is stopped at the end. Errors of Spark become a `ToolFailed` with their first line.
    """
    check_installed()
    from pyspark.sql import SparkSession

    from kestrel.spark.session import session

    was_there = SparkSession.getActiveSession() is not None
    try:
        spark = session(tool, master, {} if was_there else {"spark.driver.extraJavaOptions": _JAVA_OPTIONS})
    except Exception as error:
        if not is_spark_error(error):
            raise
        where = "here" if master is None else f"with the master {master}"
        raise ToolFailed(f"Spark cannot be started {where}: {first_line(error)}", EX_FOUND) from error
    if not was_there:
        _let_interrupts_end_it()
    try:
        yield spark
    except Exception as error:
        if not is_spark_error(error):
            raise
        raise ToolFailed(f"Spark failed: {first_line(error)}", EX_FOUND) from error
    finally:
        if not was_there:
            spark.stop()


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
