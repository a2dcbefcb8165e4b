"""A Spark session with the settings for journals; embedded in this process unless a master is named."""

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
"""Settings of every session.

Tasks talk to Python over Unix sockets, which halves their start time. The umask lets only the owner read written files,
as for queue files. Spark shows a stream's options in its plans; the redaction hides the password of a server set.
"""

_ALONE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.authenticate": "true",
}
"""Settings of an embedded session, which no other host needs to reach."""


def is_embedded(master: str) -> bool:
    """Return True if all of Spark runs in this process with that master; ``local-cluster`` starts other processes."""
    return master.startswith("local") and not master.startswith("local-cluster")


def settings_with(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session with that master; an entry of `settings` overrides the default."""
    ours = _SETTINGS | (_ALONE if is_embedded(settings.get("spark.master", master)) else {})
    return {**ours, **settings}


def own_scratch(environment: MutableMapping[str, str]) -> None:
    """Point ``SPARK_LOCAL_DIRS`` to a new folder that only the owner can read, unless the variable is already set.

    Spark stores spilled and shuffled data there, which includes items. The folder is deleted when this process exits.
    """
    if "SPARK_LOCAL_DIRS" not in environment:
        folder = mkdtemp(prefix="kestrel-spark-")
        environment["SPARK_LOCAL_DIRS"] = folder
        atexit.register(rmtree, folder, ignore_errors=True)


def session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the running Spark session or start one; it is embedded (``local[*]``) unless `master` is given.

    Workers run this same Python, which has pyarrow; by default Spark would start the first Python on PATH.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    master = master or EMBEDDED
    if is_embedded((settings or {}).get("spark.master", master)):
        own_scratch(os.environ)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # otherwise Spark picks another address and warns
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings_with(master, settings or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
