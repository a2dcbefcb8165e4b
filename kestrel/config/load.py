"""The loading of a file into a `Config`. A file with mistakes is refused, with all mistakes in one error."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any

from cattrs.errors import BaseValidationError

from kestrel.config.cross_table_problems import cross_table_problems
from kestrel.config.model import Config
from kestrel.config.tables import config_from_tables
from kestrel.config.value_problems import value_problems
from kestrel.errors import KestrelError


class ConfigError(KestrelError):
    """An invalid configuration. Its text is the source, with a line for each problem below it."""

    def __init__(self, source: str, *problems: str) -> None:
        super().__init__(source, *problems)
        self.source = source
        self.problems: tuple[str, ...] = problems
        """The problems. Each begins with the path of its setting, ``queues["work"].maxSize: ...``, if it has one."""

    def __str__(self) -> str:
        return "\n  ".join([f"{self.source}:", *self.problems])


def load(path: str | os.PathLike[str]) -> Config:
    """Return the configuration in a TOML file. Raises `ConfigError` if it is invalid or cannot be read."""
    source = os.fspath(path)
    try:
        with open(source, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(source, f"cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(source, f"line {line}: not UTF-8, which TOML is written in") from error
    return loads(text, source)


def loads(text: str, source: str = "configuration") -> Config:
    """Return the configuration in a TOML text. Raises `ConfigError`, which calls the text `source`."""
    tables = _parse(text, source)
    problems: list[str] = []
    config = None
    try:
        config = config_from_tables(tables)
    except BaseValidationError as error:
        problems += value_problems(error, tables)
    problems += cross_table_problems(tables)
    if config is None or problems:
        raise ConfigError(source, *problems)
    return config


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, _syntax_problem(str(error), text)) from error
    except RecursionError:
        raise ConfigError(source, "not usable TOML: brackets are nested too deeply") from None
    except ValueError as error:  # Python refuses numbers of more than some thousand digits
        raise ConfigError(source, f"not usable TOML: {error}") from error


def _syntax_problem(message: str, text: str) -> str:
    place = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if place is None:
        return f"not TOML: {message}"
    what, line, column = place.groups()
    if line is None:
        return f"line {text.count(chr(10)) + 1}, the end: {what}"
    return f"line {line}, column {column}: {what}"
