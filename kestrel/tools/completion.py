"""Completion for shells, from a command's own options: ``--print-completion SHELL``."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from kestrel.tools.output import Output

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")
"""Of those that the library knows, the ones of the systems that the server runs on."""

_FILES: Final = frozenset({"FILE", "PATH", "IN", "PRODUCTION.SCALA"})
_FOLDERS: Final = frozenset({"FOLDER", "DIR"})
"""What stands in the help for an argument that is the name of a file, or of a folder."""


def add_completion_option(parser: ArgumentParser) -> None:
    """``--print-completion SHELL``: prints the script that completes this command, and ends."""
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=SHELLS,
        action=_PrintCompletion,
        help=f"print what makes this shell complete the command line ({', '.join(SHELLS)}), and exit",
    )


def completion(parser: ArgumentParser, shell: str) -> str:
    """A script for that shell, one of `SHELLS`: commands, options, their choices, and files where such are meant."""
    import shtab  # twenty times as slow to import as argparse, and seldom wanted

    for action in _actions(parser):
        name = action.metavar if isinstance(action.metavar, str) else ""
        if name in _FILES | _FOLDERS:
            action.complete = shtab.FILE if name in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


class _PrintCompletion(Action):
    """Takes effect at once, as --version does: what the command wants besides may be missing."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        output = Output()
        output.line(completion(parser, str(values)))
        output.flush()
        parser.exit()


def _actions(parser: ArgumentParser) -> Iterator[Action]:
    """Of a parser, and of those of its commands. argparse has no public way to ask for them."""
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _actions(command)
