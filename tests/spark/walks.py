"""Walks of documents: blocks of Python, each with what it prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

DOCS: Final = Path(__file__).parents[2] / "docs"
_STEP: Final = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(page: str, title: str, level: str = "##") -> str:
    """From that heading to the next one of its level."""
    text = (DOCS / page).read_text()
    return text.partition(f"\n{level} {title}\n")[2].partition(f"\n{level} ")[0]


def walk(page: str, places: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Do what the section "A walk" says, each thing at its place; fails where something else is printed."""
    steps = _STEP.findall(section(page, "A walk"))
    assert len(steps) >= 4
    names: dict[str, Any] = {}
    for program, output in steps:
        for here, there in places.items():
            program = program.replace(here, there)
        exec(compile(program, page, "exec"), names)
        assert capsys.readouterr().out == output
