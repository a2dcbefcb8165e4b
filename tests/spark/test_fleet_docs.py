"""The section of docs/spark.md about kestrel-fleet is true: its examples, its options, its columns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from kestrel.spark.columns import EXPORTED_ITEMS, EXPORTED_TEXTS
from kestrel.spark.fleet_cli import main
from tests.journal.handwritten import REMOVE, addx
from tests.spark.test_docs import PAGE, first_columns
from tests.spark.walks import section
from tests.tools.tool_processes import fill

TITLE: Final = "Looking after many folders"


def test_the_examples_print_what_the_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "data" / "web1" / "spool", {"orders": addx(b"gone!") + REMOVE + addx(b"again") + addx(b"again")})
    fill(tmp_path / "data" / "web2" / "spool", {"orders": addx(b"order two!"), "mail": addx(b"hi")})
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```console\n(.*?)^```$", section(PAGE, TITLE), re.MULTILINE | re.DOTALL)
    for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = example.partition("\n")
        assert main(shlex.split(command)[1:]) == 0
        assert capsys.readouterr() == (output, "")


def test_it_names_options_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    helps = ""
    for command in ("verify", "pack", "export", "import"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        helps += capsys.readouterr().out.partition("examples:")[0]
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", helps))
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section(PAGE, TITLE)))
    assert told - {"--verify"} <= known
    assert known - told <= {"--help", "--queued"}


def test_its_columns_are_those_of_items() -> None:
    listed = first_columns(section(PAGE, TITLE).partition("### Items out and in")[2])
    names = EXPORTED_ITEMS.names
    assert listed == [*names, *[name for name in EXPORTED_TEXTS.names if name not in names]]
