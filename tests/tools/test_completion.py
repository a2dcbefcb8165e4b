"""Shell completion of the tools' command lines."""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from kestrel.tools import qpack
from kestrel.tools.arguments import SHELLS, completion, make_parser
from tests.tools.tool_processes import run, run_command

ROOT: Final = Path(__file__).parents[2]
SETUP: Final = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
MODULES: Final = {
    name.strip(): function.strip().removesuffix(":main")
    for name, _, function in (
        line.partition("=") for line in SETUP["options.entry_points"]["console_scripts"].split("\n") if line
    )
}
"""The module of each command."""

TAB: Final = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
words=($(complete -p "$1"))
for i in "${!words[@]}"; do
    if [ "${words[i]}" = -F ]; then "${words[i + 1]}"; fi
done
for reply in "${COMPREPLY[@]}"; do echo "$reply"; done
"""
"""A script for bash that completes a command line like the TAB key."""


def script_of(command: str) -> str:
    """Return the completion script of a command for bash."""
    printed = run_command([sys.executable, "-m", MODULES[command], "--print-completion", "bash"])
    assert (printed.returncode, printed.stderr) == (0, b"")
    return printed.stdout.decode()


def completed(folder: Path, script: str, *words: str) -> set[str]:
    """Return the completions that bash offers in a folder."""
    path = folder.with_suffix(".completion")
    path.write_text(script)
    done = run_command(["bash", "--norc", "-c", TAB, "bash", str(path), *words], cwd=folder, text=True)
    assert done.stderr == ""
    return set(done.stdout.splitlines())


@pytest.fixture(scope="module")
def cli() -> str:
    return script_of("kestrel-cli")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["p"], {"put", "peek"}),
        (["--proto"], {"--protocol"}),
        (["--protocol", "t"], {"thrift"}),
        (["get", "--w"], {"--wait"}),
        (["--server", "mq1", "flush-"], {"flush-expired"}),
        (["top", "--sort", "pu"], {"puts"}),
        (["--ca", "c"], {"ca.pem", "certs"}),
    ],
)
def test_bash_completes_commands_options_choices_and_files(
    tmp_path: Path, cli: str, words: list[str], offered: set[str]
) -> None:
    (tmp_path / "ca.pem").touch()
    (tmp_path / "certs").mkdir()
    assert completed(tmp_path, cli, "kestrel-cli", *words) == offered


def test_bash_completes_only_folders_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "special").touch()
    script = completion(qpack._parser(), "bash")
    assert completed(tmp_path, script, "kestrel-qpack", "--verify", "sp") == {"spool"}


@pytest.mark.parametrize("command", MODULES)
def test_every_command_has_completion(tmp_path: Path, command: str) -> None:
    assert completed(tmp_path, script_of(command), command, "--ver") >= {"--version"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str) -> None:
    parser = make_parser("kestrel-some", "Does something.", "examples:")
    script = completion(parser, shell)
    assert "kestrel-some" in script
    assert "version" in script


def test_unknown_shell_is_refused() -> None:
    refused = run("qpack", "--print-completion", "ksh")
    assert refused.returncode == 2
    assert all(shell in refused.stderr.decode() for shell in SHELLS)


def test_completion_library_is_imported_only_when_needed() -> None:
    program = "import sys; from kestrel.tools.cli import command; command._parser(); sys.exit('shtab' in sys.modules)"
    run_command([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("option", [("--print-completion", "bash"), ("--help",)])
@pytest.mark.parametrize("command", MODULES)
def test_broken_pipe_and_full_disk_are_handled(command: str, option: tuple[str, ...]) -> None:
    argv = [sys.executable, "-m", MODULES[command], *option]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = run_command(argv, stdout=output, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with open("/dev/full", "wb") as output:
        done = run_command(argv, stdout=output, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{command}: standard output cannot be written: No space left on device; ")
    assert done.stderr.count("\n") == 1
