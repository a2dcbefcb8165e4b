"""docs/tools.md is true: its examples are what the tools print, and its tables have their options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from kestrel.tools import qdump, qpack
from tests.docs.test_journal_format import dumps

PAGE: Final = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
TOOLS: Final = {"kestrel-qdump": qdump.main, "kestrel-qpack": qpack.main}


def examples() -> list[tuple[str, str]]:
    """Command lines and what follows them, in the order of the page."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    pairs = [each.partition("\n") for block in blocks for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in pairs]


def test_there_are_examples_of_both_tools() -> None:
    assert {command.split()[0] for command, _ in examples()} == set(TOOLS)


def test_the_examples_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").write_bytes(dumps()[0][1])
    monkeypatch.chdir(tmp_path)
    for command, output in examples():
        tool, *arguments = command.split()
        assert TOOLS[tool](arguments) == 0
        assert capsys.readouterr() == (output, "")


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_and_the_help_have_the_same_options(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        TOOLS[tool](["--help"])
    assert end.value.code == 0
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out.partition("examples:")[0]))
    (section,) = re.findall(rf"^## {tool}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section))
    assert told <= known
    assert known - told <= {"--help", "--version", "--dry-run"}
