"""A sentence names the software that is missing for Spark."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from kestrel.spark.startup import check_installed, first_line, is_spark_error
from kestrel.tools.tool_runner import ToolFailed
from tests.child import PATIENCE_S

ROOT = Path(__file__).parents[2]


def test_missing_java_is_reported_with_its_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolFailed, match="no java on PATH: apt-get install openjdk-17-jre-headless") as failed:
        check_installed()
    assert failed.value.status == 2


def test_java_is_searched_where_spark_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ToolFailed, match=f"no java in JAVA_HOME, {tmp_path}: apt-get install"):
        check_installed()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(0o755)
    check_installed()


def test_missing_pyspark_is_reported_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name))
    with pytest.raises(ToolFailed, match=r"pyspark not installed: pip install 'kestrel-mq\[spark\]'"):
        check_installed()


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ("[PATH_NOT_FOUND] No such path. SQLSTATE: 42K03\nmore", "[PATH_NOT_FOUND] No such path. SQLSTATE: 42K03"),
        ("An error occurred while calling o1.x.\n: java.io.IOException: no\n\tat a.b(C:1)", "java.io.IOException: no"),
        ("It was thrown:\nTraceback (most recent call last):\n  File\nOSError: no\n", "OSError: no"),
        ("", "Exception"),
    ],
)
def test_most_important_line_of_sparks_output_is_reported(said: str, first: str) -> None:
    assert first_line(Exception(said)) == first


def test_only_exceptions_of_spark_are_reported_as_its_failure() -> None:
    assert is_spark_error(PySparkException("no"))
    assert not is_spark_error(ValueError("ours"))


WITHOUT_SPARK = """
import sys

MISSING = {"pyspark", "pyarrow", "numpy", "pandas", "matplotlib", "jinja2"}


class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Without())
from importlib import import_module

import_module(sys.argv[1])._parser().format_help()
"""
"""Return a program that reads a command's help without the extra."""


@pytest.mark.parametrize("command", ["report_cli", "fleet_cli"])
def test_command_without_the_extra_has_its_own_help(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, f"kestrel.spark.{command}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
