"""docs/tools.md: the tools print its examples, and its tables have their options."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

import kestrel
from kestrel.tools import qdump, qpack
from kestrel.tools.cli import command as cli
from kestrel.tools.convert import command as convert
from kestrel.tools.convert_config import command as convert_config
from tests.docs.commands import make_programs
from tests.docs.hexdump import dumps_in
from tests.docs.markdown import code_blocks, console_blocks, section
from tests.docs.test_journal_format import PAGE as JOURNAL_PAGE
from tests.docs.test_scroll_format import PAGE as SCROLL_PAGE
from tests.server.running import PATIENCE_S, Processes
from tests.tools.tool_processes import fill

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "tools.md").read_text()
TOOLS: Final = {
    "kestrel-qdump": qdump.main,
    "kestrel-qpack": qpack.main,
    "kestrel-convert": convert.main,
    "kestrel-convert-config": convert_config.main,
    "kestrel-cli": cli.main,
}

EXAMPLES: Final = [example for block in console_blocks(PAGE) for example in block]
"""The commands of the page with their output."""

VARYING: Final = re.compile(r"(?<=up )\S+(?=,)|(?<= put in )\S+(?= s)| +(oldest|[0-9.]+(ms|[smhd]))$", re.MULTILINE)
"""The uptime of a server, the duration of a load, and the age of the oldest item."""


def test_every_tool_has_an_example() -> None:
    assert set(re.findall(r"kestrel-[\w-]+", " ".join(command for command, _ in EXAMPLES))) == set(TOOLS)


def test_examples_of_journals_and_scrolls_print_the_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = {"work": dumps_in(JOURNAL_PAGE)[0][1]}
    fill(tmp_path, journal)
    fill(tmp_path / "spool", journal)
    items, own, own_later, child = (data for _, data in dumps_in(SCROLL_PAGE))
    scroll = {"work.1700000000000": items, "work.read.:own": own + own_later, "work.read.x": child}
    fill(tmp_path / "scrolls", scroll)
    (configuration,) = code_blocks(PAGE, "scala")
    (tmp_path / "production.scala").write_text(configuration)
    monkeypatch.setattr(kestrel, "__version__", "1.0.0")
    monkeypatch.chdir(tmp_path)
    for command, output in EXAMPLES:
        if "kestrel-cli" not in command:
            tool, *arguments = command.split()
            assert TOOLS[tool](arguments) == 0
            assert capsys.readouterr() == (output, "")


def test_examples_with_a_server_print_the_documented_output(tmp_path: Path) -> None:
    make_programs(tmp_path)
    commands = [(command, output) for command, output in EXAMPLES if "kestrel-cli" in command]
    with Processes(tmp_path) as processes:
        port = processes.serve('queuePath = "queues"\n').port
        environment = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "KESTREL_SERVERS": f"127.0.0.1:{port}",
        }
        for command, output in commands:
            done = subprocess.run(
                ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
            )
            printed = done.stdout.replace(f"127.0.0.1:{port}", "localhost:22133")
            printed = printed.replace(f"kestrel {kestrel.__version__},", "kestrel 1.0.0,")
            assert (VARYING.sub("T", printed), done.stderr) == (VARYING.sub("T", output), "")


def help_of(tool: str, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Return the help of a tool or command without its examples."""
    with pytest.raises(SystemExit) as end:
        TOOLS[tool]([*command, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out.partition("examples:")[0]


@pytest.mark.parametrize("tool", TOOLS)
def test_page_and_help_have_the_same_options(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    helps = help_of(tool, capsys)
    for command in re.findall(r"^    ([a-z-]+) {2,}", helps.partition("\ncommands:\n")[2], re.MULTILINE):
        helps += help_of(tool, capsys, command)
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", helps))
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section(PAGE, tool)))
    assert told - {"--help"} <= known
    assert known - told <= {"--help", "--version", "--print-completion", "--dry-run"}


def test_page_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    listed = help_of("kestrel-cli", capsys).partition("\ncommands:\n")[2]
    commands = re.findall(r"^    ([a-z-]+) {2,}", listed, re.MULTILINE)
    assert commands
    assert [name for name in commands if not re.search(rf"^\| .*`{name}\b.*` \|", PAGE, re.MULTILINE)] == []
