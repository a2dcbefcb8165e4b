"""The examples of documents: blocks of Python with their output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

DOCS: Final = Path(__file__).parents[2] / "docs"
_STEP: Final = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(page: str, title: str, level: str = "##") -> str:
    """Return the section of that heading."""
    text = (DOCS / page).read_text()
    return text.partition(f"\n{level} {title}\n")[2].partition(f"\n{level} ")[0]


def walk(page: str, places: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the section "A walk", and fail if the output differs."""
    steps = _STEP.findall(section(page, "A walk"))
    assert len(steps) >= 4
    names: dict[str, Any] = {}
    for program, output in steps:
        for here, there in places.items():
            program = program.replace(here, there)
        exec(compile(program, page, "exec"), names)
        assert capsys.readouterr().out == output
