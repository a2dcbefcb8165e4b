"""docs/spark.md lists every option and column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kestrel.spark.columns import PROBLEMS, RECORDS
from kestrel.spark.options import SourceFailed
from kestrel.spark.table.options import parse_options
from kestrel.spark.table.reader import OF_FILES, OF_RECORDS
from tests.docs.markdown import section

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def first_cells(text: str) -> list[str]:
    """Return the names in the first cells of the tables."""
    return [name for line in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)]


def test_table_lists_the_columns() -> None:
    assert first_cells(section(PAGE, "Columns")) == RECORDS.names
    assert set(first_cells(section(PAGE, "What is wrong"))) == set(PROBLEMS.names)


def test_table_lists_the_options() -> None:
    with pytest.raises(SourceFailed) as raised:
        parse_options({"path": "/spool", "zzz": ""})
    there_are = str(raised.value).partition("the options are ")[2].split(", ")
    assert sorted(first_cells(section(PAGE, "Options"))) == sorted(there_are)


def test_page_names_the_supported_filters() -> None:
    assert all(f"`{name}`" in section(PAGE, "Reading less") for name in (*OF_FILES, *OF_RECORDS))
