"""docs/library.md is true: its programs run and print what they say, and its tables have all that there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs
import pytest

from kestrel.library import JournaledQueueConfig, JournaledQueueReaderConfig

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "library.md").read_text()
LONG_S: Final = 60

PROGRAMS: Final = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
_PRINTED: Final = re.compile(r"print\)?.*  # (.*)$", re.MULTILINE)


def names_in(heading: str) -> list[str]:
    """What the first column of the table names that begins with this cell."""
    table = PAGE.split(f"| `{heading}` |")[1].split("\n\n")[0]
    return [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(1, len(PROGRAMS) + 1))
def test_a_program_prints_what_it_says(program: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=LONG_S, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = _PRINTED.findall(program)
    assert told and done.stdout.splitlines() == told


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == PAGE.count("\n```python") == 3


@pytest.mark.parametrize("config", [JournaledQueueConfig, JournaledQueueReaderConfig])
def test_every_setting_is_in_its_table_and_nothing_else(config: type[attrs.AttrsInstance]) -> None:
    assert sorted(names_in(config.__name__)) == sorted(attrs.fields_dict(config))
