"""The commands on a page, and the comments that name the tests that run them.

A comment applies to the block after it, or to all `console` blocks of the page:

    <!-- run by tests/docs/test_tools.py -->
    <!-- consoles are run by tests/docs/test_tools.py -->
    <!-- not run: needs another host -->
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.child import LONG_S
from tests.server.running import TWISTD

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/README.md")])

PROGRAMS: Final = frozenset(
    (
        "make", "twistd", "pip", "python", "python3", "pytest", "nc", "ncat", "telnet", "openssl", "systemctl",
        "journalctl", "curl", "wget", "spark-submit", "spark-class", "runuser", "useradd", "install", "apt-get",
        "thrift", "memcstat", "memcaslap", "memcached", "printf", "echo", "seq", "cp", "mv", "rm", "mkdir",
        "chown", "chmod", "ln", "kill", "sudo", "su", "ssh", "rsync", "tar", "export", "source", "docker",
        "git", "podman", "buildah", "kubectl", "debootstrap", "psql", "createdb", "man", "pipx", "uv", "celery",
    )
)  # fmt: skip
"""First words of commands, besides `kestrel-*` and `.ci/run`."""

SHELLS: Final = frozenset(("sh", "bash", "shell", "console"))

_INDENT: Final = re.compile(r" {4,}(?=\S)")
_COMMENT: Final = re.compile(r"^\s*<!-- (.*) -->$")
_SET: Final = re.compile(r"(?:\w+=(?:'[^']*'|\"[^\"]*\"|\S)*\s+)+")
_ASIDE: Final = re.compile(r"\s{2,}\S.*$|\s#\s.*$")
_SYNOPSIS: Final = re.compile(r"\[-|\]\.\.\.|\b[A-Z]{4,}\.\.\.")
_INLINE: Final = re.compile(r"`((?:make [a-z][^`]*|\.ci/run))`")


class Command(NamedTuple):
    """A command of a page."""

    page: str
    """The path of the page in the repository."""
    line: int
    text: str
    note: str
    """The comment about the command, or an empty string."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def first_word(text: str) -> str:
    """Return the program without its folder and variables."""
    words = _SET.sub("", text, count=1).split() if _SET.match(text) else text.split()
    return words[0].rpartition("/")[2] if words else ""


def is_command(text: str, language: str) -> bool:
    """Return whether a line of a block is a command, and no synopsis, output or configuration."""
    if not text or text.startswith("#") or (_SYNOPSIS.search(text) and first_word(text).startswith("kestrel-")):
        return False
    program = first_word(text)
    return language in SHELLS or program in PROGRAMS or program.startswith("kestrel-") or text.startswith(".ci/run")


def without_aside(text: str) -> str:
    """Return a command without the remark after it, which begins with two blanks or a `#`."""
    if text.count("'") or text.count('"'):
        match = re.match(r"(?:'[^']*'|\"[^\"]*\"|[^'\"])*?(?=\s{2,}\S|\s#\s|$)", text)
        return match[0] if match else text
    return _ASIDE.sub("", text)


def blocks(text: str) -> Iterator[tuple[int, str, list[str], str]]:
    """Yield the first line number, language, lines and comment of each block."""
    lines = text.split("\n")
    note, index = "", 0
    while index < len(lines):
        line = lines[index]
        if match := _COMMENT.match(line):
            note = match[1]
        elif line.lstrip().startswith("```"):
            end = next(at for at in range(index + 1, len(lines)) if lines[at].strip() == "```")
            yield index + 2, line.strip().strip("`"), [each.strip() for each in lines[index + 1 : end]], note
            note, index = "", end
        elif _INDENT.match(line) and not lines[index - 1].strip():
            end = index
            while end < len(lines) and (_INDENT.match(lines[end]) or not lines[end].strip()):
                end += 1
            yield index + 1, "", [each.strip() for each in lines[index:end]], note
            note, index = "", end - 1
        elif line.strip():
            note = ""
        index += 1


def commands_of(page: Path) -> Iterator[Command]:
    """Yield the commands of a page: those in blocks, and `make` anywhere."""
    text, name = page.read_text(), str(page.relative_to(ROOT))
    of_consoles = re.search(r"^<!-- consoles are (run by \S+) -->$", text, re.MULTILINE)
    for number, language, lines, note in blocks(text):
        if language not in SHELLS and language:
            continue
        if language == "console" and of_consoles:
            note = note or of_consoles[1]
        held = ""
        for at, line in enumerate(lines):
            prompted = line.startswith("$ ")
            if language == "console" and not prompted and not held:
                continue
            line = held + line.removeprefix("$ ")
            if line.endswith("\\"):
                held = line[:-1]
                continue
            held = ""
            if is_command(line, language if prompted or language != "console" else ""):
                yield Command(name, number + at, without_aside(line), note)
    for match in _INLINE.finditer(text):
        yield Command(name, text.count("\n", 0, match.start()) + 1, match[1], "")


COMMANDS: Final = [command for page in PAGES for command in commands_of(page)]


def run_python(folder: Path, *arguments: str) -> str:
    """Run Python with this checkout in a folder, and return its output. It must succeed without errors."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples' / 'storage-sqlite'}"},
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def make_programs(folder: Path) -> None:
    """Write scripts to a folder that run this checkout: twistd, python and the installed commands."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    programs = {"twistd": f'{sys.executable} {TWISTD} "$@"'}
    programs |= dict.fromkeys(("python", "python3"), f'{sys.executable} "$@"')
    for line in setup["options.entry_points"]["console_scripts"].split("\n"):
        if line:
            name, module, function = re.split(r" = |:", line)
            program = f"import sys; from {module} import {function}; sys.exit({function}())"
            programs[name] = f"{sys.executable} -c '{program}' \"$@\""
    for name, runs in programs.items():
        (folder / name).write_text(f"#!/bin/sh\nexec {runs}\n")
        (folder / name).chmod(0o755)
