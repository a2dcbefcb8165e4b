"""docs/spark.md is true: its walk prints what it says, and its tables have all columns and states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from kestrel.spark import report_cli
from kestrel.spark.columns import HISTORIES
from kestrel.spark.history import histories, journal
from tests.server.running import Processes
from tests.spark.walks import section, walk

PAGE: Final = "spark.md"


def first_columns(text: str) -> list[str]:
    """What stands in backquotes in the first columns of tables."""
    return [name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]


def test_the_walk_prints_what_it_says(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Processes(tmp_path) as processes:
        port = processes.serve('queuePath = "var/queues"\n').port
        places = {'"localhost"': f'"127.0.0.1:{port}"', "var/queues": str(processes.folder / "var/queues")}
        walk(PAGE, places, capsys)
        command = re.search(r"^    \.venv/bin/kestrel-report (.*)$", section(PAGE, "A walk"), re.MULTILINE)
        assert command is not None
        arguments = command[1].replace("var/queues", places["var/queues"]).replace("report", str(tmp_path / "report"))
        assert report_cli.main(arguments.split()) == 0
    assert "orders" in capsys.readouterr().out
    assert "orders" in (tmp_path / "report" / "index.html").read_text()


def test_the_columns_and_states_of_histories_are_told() -> None:
    journals = (getattr(journal, name) for name in ("QUEUED", "OPEN", "REMOVED", "CONFIRMED", "CONTINUED"))
    listed = first_columns(section(PAGE, "Histories of items"))
    assert listed == [*HISTORIES.names, *journals, histories.DONE]
