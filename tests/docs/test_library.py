"""docs/library.md: its programs print the documented lines, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import attrs
import pytest

from kestrel.library import JournaledQueueConfig, JournaledQueueReaderConfig
from tests.docs.commands import run_python
from tests.docs.markdown import code_blocks, table

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "library.md").read_text()

PROGRAMS: Final = code_blocks(PAGE, "python")
_PRINTED: Final = re.compile(r"print\)?.*  # (.*)$", re.MULTILINE)


def names_in(heading: str) -> list[str]:
    """Return the names in the first column of the table with this heading."""
    return [name for row in table(PAGE, f"`{heading}`") for name in re.findall(r"`(\w+)`", row[0])]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(1, len(PROGRAMS) + 1))
def test_program_prints_the_documented_lines(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    printed = _PRINTED.findall(program)
    assert printed and run_python(tmp_path, "program.py").splitlines() == printed


def test_all_programs_are_found() -> None:
    assert len(PROGRAMS) == PAGE.count("\n```python") == 3


@pytest.mark.parametrize("config", [JournaledQueueConfig, JournaledQueueReaderConfig])
def test_table_lists_every_setting(config: type[attrs.AttrsInstance]) -> None:
    assert sorted(names_in(config.__name__)) == sorted(attrs.fields_dict(config))
