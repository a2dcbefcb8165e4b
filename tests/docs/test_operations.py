"""docs/operations.md: what it says is in the log is said by the server, and each exit status is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from kestrel.server import startup_errors

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "operations.md").read_text()
TROUBLE: Final = PAGE.partition("\n## Troubleshooting\n")[2].partition("\n## ")[0]

LINES: Final = re.findall(r"^\| `([^`]+)` \|", TROUBLE, re.MULTILINE)

_PLACEHOLDER: Final = re.compile(r"\b[A-Z]{3,}\b")


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Every string of the server's, with a mark in place of what is filled in."""
    return [
        re.sub(r"\{[^}]*\}", "*", node.value)
        for path in sorted((ROOT / "kestrel").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_log_is_one_that_the_server_writes(line: str, said: list[str]) -> None:
    wanted = _PLACEHOLDER.sub("*", line)
    assert any(wanted in each for each in said)


def test_the_exit_statuses_are_those_of_the_server() -> None:
    told = set(map(int, re.findall(r"^\| (\d+) \|", TROUBLE, re.MULTILINE)))
    ours = {value for name, value in vars(startup_errors).items() if name.startswith("EX_")}
    assert told == ours | {1}  # which is twistd's
