"""A Spark session that is right for journals: embedded, unless a master is named."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping, MutableMapping
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

from pyspark.sql import SparkSession

EMBEDDED: Final = "local[*]"

_SETTINGS: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.sql.redaction.string.regex": r"(?<=zks?://)[^/\s]+(?=@)",
}
"""Tasks talk to Python over sockets of the file system, which halves the time that it takes them to begin.

What is written is for its owner alone, as the files of queues are. Spark shows a stream's options in its plans, but not
the password of a server set among them.
"""

_ALONE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.authenticate": "true",
}
"""Of an embedded one: nobody else has to reach it, and so nobody can."""


def is_embedded(master: str) -> bool:
    """Whether all of Spark is in this process with that master. A ``local-cluster`` has others."""
    return master.startswith("local") and not master.startswith("local-cluster")


def settings_with(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What a session with that master is started with; ``settings`` count for more than ours."""
    ours = _SETTINGS | (_ALONE if is_embedded(settings.get("spark.master", master)) else {})
    return {**ours, **settings}


def own_scratch(environment: MutableMapping[str, str]) -> None:
    """Let what an embedded Spark spills and shuffles, items among it, lie in a folder for the owner alone.

    It goes with this process. Whoever has named a folder (``SPARK_LOCAL_DIRS``) has chosen.
    """
    if "SPARK_LOCAL_DIRS" not in environment:
        folder = mkdtemp(prefix="kestrel-spark-")
        environment["SPARK_LOCAL_DIRS"] = folder
        atexit.register(rmtree, folder, ignore_errors=True)


def session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session, embedded (``local[*]``) unless a master is named; one that runs already is taken as it is.

    Workers are the same Python, which has pyarrow: Spark would start whichever is first on PATH.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    master = master or EMBEDDED
    if is_embedded((settings or {}).get("spark.master", master)):
        own_scratch(os.environ)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or it looks for another one, and warns of it
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings_with(master, settings or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
