"""One Spark for all tests of a process, because it starts slowly. Tests that use it are marked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrel.spark.session import session

os.environ["KESTREL_TESTS_PYTHON"] = sys.executable
os.environ["PYSPARK_PYTHON"] = str(Path(__file__).with_name("worker_python.sh"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.needs("java"))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return an empty archive folder."""
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return an embedded Spark with two tasks at a time. Its folders belong to the test."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ["SPARK_LOCAL_DIRS"] = str(folder)
    started = session(
        "tests",
        settings={
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "4",
            # Generated code takes longer to compile than a few rows take to interpret.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()
