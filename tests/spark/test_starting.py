"""Where Spark cannot start, a sentence says what is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from kestrel.spark.starting import check_installed, first_line, is_sparks
from kestrel.tools.running import ToolFailed


def test_without_java_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolFailed, match="no java on PATH: apt-get install openjdk-17-jre-headless") as failed:
        check_installed()
    assert failed.value.status == 2


def test_java_is_looked_for_where_spark_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ToolFailed, match=f"no java in JAVA_HOME, {tmp_path}: apt-get install"):
        check_installed()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(0o755)
    check_installed()


def test_without_pyspark_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_of_what_spark_says_the_line_that_matters_is_told(said: str, first: str) -> None:
    assert first_line(Exception(said)) == first


def test_only_what_spark_raised_is_told_as_its_failure() -> None:
    assert is_sparks(PySparkException("no"))
    assert not is_sparks(ValueError("ours"))
