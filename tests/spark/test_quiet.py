"""A quiet start: its output is hidden, and that of the started process is shown later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn
from unittest.mock import Mock

import pytest

from kestrel.spark.fleet_cli import main
from kestrel.spark.startup import MOST_HELD_BYTES, capture_stderr
from kestrel.tools.tool_runner import ToolFailed
from tests.child import Child

ECHO: Final = """\
import os
os.write(2, b"WARN while it starts\\n")
os.write(1, b"started")
os.write(2, os.read(0, 100))
"""


def test_output_of_a_quiet_start_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    with capture_stderr():
        os.write(2, b"WARN something")
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def test_output_of_a_failed_start_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no"), capture_stderr():
        os.write(2, b"the reason")
        raise ValueError("no")
    assert capfd.readouterr().err == "the reason"


def test_failed_start_shows_end_of_long_output(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no"), capture_stderr():
        for _ in range(100):
            os.write(2, b"\n" * MOST_HELD_BYTES)
        os.write(2, b"the reason")
        raise ValueError("no")
    assert capfd.readouterr().err == "the reason".rjust(MOST_HELD_BYTES, "\n")


def test_later_output_of_the_started_process_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    reading, shown = os.pipe()
    before = os.dup(2)
    os.dup2(shown, 2)
    os.close(shown)
    try:
        with capture_stderr():
            child = Child[bytes]([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert child.stdout is not None and child.stdout.read(7) == b"started"
    finally:
        os.dup2(before, 2)
        os.close(before)
    with child:
        child.communicate(b"ERROR later")
    with open(reading, "rb") as heard:  # ends when no process has the pipe open
        assert heard.read() == b"ERROR later"


def test_kestrel_fleet_hides_the_start_but_not_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def starts(tool: str, master: str | None, settings: object) -> Mock:
        os.write(2, b"WARN while it starts\n")
        return Mock()

    def fails(spark: object, *_: object, **__: object) -> NoReturn:
        os.write(2, b"ERROR later\n")
        raise ToolFailed("it is no Spark", 1)

    monkeypatch.setattr("kestrel.spark.startup.check_installed", lambda: None)
    monkeypatch.setattr("kestrel.spark.session.session", starts)
    monkeypatch.setattr("kestrel.spark.fleet.verify.verify", fails)
    assert main(["verify", str(tmp_path)]) == 1
    assert capfd.readouterr().err == "ERROR later\nkestrel-fleet: it is no Spark\n"
