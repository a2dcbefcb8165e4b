"""Shell completion scripts, generated from a command's options: ``--print-completion SHELL``."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from kestrel.tools.output import Output

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")
"""Shells that shtab supports and that run on the server's systems."""

_FILES: Final = frozenset({"FILE", "PATH", "IN", "PRODUCTION.SCALA"})
_FOLDERS: Final = frozenset({"FOLDER", "DIR"})
"""Metavars of the arguments that name a folder; `_FILES` has those that name a file."""


def add_completion_option(parser: ArgumentParser) -> None:
    """Add ``--print-completion SHELL``, which prints the completion script of this command and exits."""
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=SHELLS,
        action=_PrintCompletion,
        help=f"print the completion script for this shell ({', '.join(SHELLS)}), and exit",
    )


def completion(parser: ArgumentParser, shell: str) -> str:
    """Return the script for a shell of `SHELLS`. It completes commands, options, choices, and file names."""
    import shtab  # twenty times as slow to import as argparse, and seldom used

    for action in _actions(parser):
        name = action.metavar if isinstance(action.metavar, str) else ""
        if name in _FILES | _FOLDERS:
            action.complete = shtab.FILE if name in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


class _PrintCompletion(Action):
    """An action that prints and exits at once, like --version, so that required arguments may be missing."""

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
    """Yield the actions of a parser and of its subcommands. argparse has no public API for them."""
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _actions(command)
