"""The examples of docs/spark.md print what the page shows, and its tables have all columns and states."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from kestrel.spark import fleet_cli, item_histories, queue_history, report_cli
from kestrel.spark.columns import EXPORTED_ITEMS, EXPORTED_TEXTS, HISTORIES
from tests.journal.handwritten import REMOVE, addx
from tests.server.running import Processes
from tests.spark.walks import section, walk
from tests.tools.tool_processes import fill

PAGE: Final = "spark.md"
FLEET: Final = "Looking after many folders"


def first_columns(text: str) -> list[str]:
    """Return the texts in backquotes in the first columns of tables."""
    return [name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]


def test_example_prints_its_output(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_columns_and_states_of_histories_are_documented() -> None:
    journals = (getattr(queue_history, name) for name in ("QUEUED", "OPEN", "REMOVED", "CONFIRMED", "CONTINUED"))
    listed = first_columns(section(PAGE, "Histories of items"))
    assert listed == [*HISTORIES.names, *journals, item_histories.DONE]


def test_examples_print_what_the_page_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "data" / "web1" / "spool", {"orders": addx(b"gone!") + REMOVE + addx(b"again") + addx(b"again")})
    fill(tmp_path / "data" / "web2" / "spool", {"orders": addx(b"order two!"), "mail": addx(b"hi")})
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```console\n(.*?)^```$", section(PAGE, FLEET), re.MULTILINE | re.DOTALL)
    for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = example.partition("\n")
        assert fleet_cli.main(shlex.split(command)[1:]) == 0
        assert capsys.readouterr() == (output, "")


def test_named_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    helps = ""
    for command in ("verify", "pack", "export", "import"):
        with pytest.raises(SystemExit):
            fleet_cli.main([command, "--help"])
        helps += capsys.readouterr().out.partition("examples:")[0]
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", helps))
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section(PAGE, FLEET)))
    assert told - {"--verify"} <= known
    assert known - told <= {"--help", "--queued"}


def test_columns_of_the_page_are_those_of_items() -> None:
    listed = first_columns(section(PAGE, FLEET).partition("### Items out and in")[2])
    names = EXPORTED_ITEMS.names
    assert listed == [*names, *[name for name in EXPORTED_TEXTS.names if name not in names]]
