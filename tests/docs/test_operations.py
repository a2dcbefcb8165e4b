"""docs/operations.md: the server writes its log lines, and its exit statuses are complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from kestrel.server import startup_errors
from tests.docs.markdown import section

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "operations.md").read_text()
TROUBLE: Final = section(PAGE, "Troubleshooting")

LINES: Final = re.findall(r"^\| `([^`]+)` \|", TROUBLE, re.MULTILINE)

_PLACEHOLDER: Final = re.compile(r"\b[A-Z]{3,}\b")


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Return every string of the package, with asterisks in place of values."""
    return [
        re.sub(r"\{[^}]*\}", "*", node.value)
        for path in sorted((ROOT / "kestrel").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize("line", LINES)
def test_log_line_is_written_by_the_server(line: str, said: list[str]) -> None:
    wanted = _PLACEHOLDER.sub("*", line)
    assert any(wanted in each for each in said)


def test_table_lists_the_exit_statuses() -> None:
    told = set(map(int, re.findall(r"^\| (\d+) \|", TROUBLE, re.MULTILINE)))
    ours = {value for name, value in vars(startup_errors).items() if name.startswith("EX_")}
    assert told == ours | {1}  # of twistd
