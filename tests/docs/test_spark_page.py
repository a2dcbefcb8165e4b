"""docs/spark.md names every option and every column that there is, and no other option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kestrel.spark.columns import PROBLEMS, RECORDS
from kestrel.spark.failures import SourceFailed
from kestrel.spark.table.filters import OF_FILES, OF_RECORDS
from kestrel.spark.table.options import parse_options

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def section(heading: str) -> str:
    """What stands below that heading."""
    return PAGE.split(f"### {heading}\n")[1].split("\n### ")[0]


def first_cells(text: str) -> list[str]:
    """The names in the first cells of a section's tables."""
    return [name for line in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)]


def test_the_columns_are_those_of_the_tables() -> None:
    assert first_cells(section("Columns")) == RECORDS.names
    assert set(first_cells(section("What is wrong"))) == set(PROBLEMS.names)


def test_the_options_are_those_that_the_source_knows() -> None:
    with pytest.raises(SourceFailed) as raised:
        parse_options({"path": "/spool", "zzz": ""})
    there_are = str(raised.value).partition("the options are ")[2].split(", ")
    assert sorted(first_cells(section("Options"))) == sorted(there_are)


def test_the_filters_that_are_taken_over_are_named() -> None:
    assert all(f"`{name}`" in section("Reading less") for name in (*OF_FILES, *OF_RECORDS))
