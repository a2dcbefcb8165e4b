"""The examples of docs/embedding.md run: two .tac files, a program, and three modules of tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.docs.commands import run_python
from tests.docs.markdown import code_blocks
from tests.server.running import ROOT, TWISTD, Processes, own_port

PAGE: Final = (ROOT / "docs" / "embedding.md").read_text()
SAVED: Final = dict(
    re.findall(r"[Ss]ave\s(?:this|it)\sas\s`([\w.]+)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
)
BLOCKS: Final = code_blocks(PAGE, "python")
COMMANDS: Final = re.findall(r"^    (twistd .*)$", PAGE, re.MULTILINE)
TESTS: Final = sorted(name for name in SAVED if name.startswith("test_"))


def test_every_example_is_saved_or_is_the_program() -> None:
    assert sorted(SAVED) == ["daemon.tac", "queues.tac", *TESTS]
    assert TESTS == ["test_memory.py", "test_plugin.py", "test_sockets.py"]
    assert len(BLOCKS) == len(SAVED) + 1


@pytest.mark.parametrize("name", TESTS)
def test_tests_of_the_page_pass(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SAVED[name])
    assert " passed" in run_python(
        tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", name
    )


def test_program_prints_what_its_comments_say(tmp_path: Path) -> None:
    (program,) = [block for block in BLOCKS if "react(" in block]
    printed = re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)
    (tmp_path / "program.py").write_text(program)
    assert run_python(tmp_path, "program.py").splitlines() == printed


@pytest.mark.parametrize("command", COMMANDS)
def test_tac_file_serves(tmp_path: Path, command: str) -> None:
    twistd, *arguments = shlex.split(command)
    assert twistd == "twistd"
    (config,) = code_blocks(PAGE, "toml")
    (tmp_path / arguments[-1]).write_text(SAVED[arguments[-1]])
    with own_port() as port, Processes(tmp_path) as processes:
        processes.write("kestrel.toml", config.replace("22133", str(port)))
        server = processes.launch([str(TWISTD), *arguments]).serves()
        with server.connect() as client:
            client.put(b"work", b"hello")
            assert client.get(b"work") == b"hello"
        server.stop()


def test_page_has_at_most_1200_words_beside_code() -> None:
    text = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 1200
