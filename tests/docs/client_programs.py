"""Programs on the pages about clients in other languages: how they are run, and the lines that they print."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.child import Child
from tests.server.running import Processes, eventually

_PRINT: Final = re.compile(
    r"^\s*(?:print\b|console\.log|var_dump|p |fmt\.Println|show\(|System\.out\.println|put\(client|get\(client)"
    r".*\s(?:#|//|/\*) (?P<line>.*?)(?: \*/)?$",
    re.MULTILINE,
)
"""A line of a program that prints, in any of the languages, with the comment that says what."""


class Language(NamedTuple):
    """How the programs of a language are run."""

    file: str
    """Name of the file of a program."""
    commands: tuple[str, ...]
    """Commands that compile and run it. Only the last one runs the program."""


def printed_by(program: str) -> list[str]:
    """Return the lines that a program prints, according to its comments."""
    return [match["line"] for match in _PRINT.finditer(program)]


def run(
    program: str,
    language: Language,
    processes: Processes,
    port: int,
    while_it_runs: Callable[[Child[str]], None] = lambda running: None,
) -> None:
    """Run a program of a page with the server at a port. It must succeed and print the documented lines."""
    here, places = re.subn(r"\b(?:22133|2229)\b", str(port), program.replace("localhost", "127.0.0.1"))
    assert places == 1
    processes.write(language.file, here)
    *compilers, command = (line.split() for line in language.commands)
    for compiler in compilers:
        compiled = processes.run(*compiler)
        assert compiled.returncode == 0, compiled.stderr
    with Child[str](
        command,
        cwd=processes.folder,
        env=processes.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        while_it_runs(running)
        printed, errors = running.communicate()
    expected = printed_by(program)
    assert expected
    assert (running.returncode, printed.splitlines()) == (0, expected), errors


def ends_or(running: Child[str], happened: Callable[[], bool], what: str) -> None:
    """Wait until something happens in the server, or the program ends before that."""
    eventually(lambda: running.poll() is not None or happened(), what)
