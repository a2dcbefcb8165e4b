"""docs/settings.md: its tables list every setting of the configuration with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from kestrel.config.model import (
    AdminSettings,
    AliasSettings,
    Config,
    LoggingSettings,
    QueueSettings,
    TlsSettings,
    ZooKeeperSettings,
    state_folder,
)
from kestrel.config.setting import TABLE, TABLES, Setting, SettingKind, settings_of
from tests.docs.markdown import section, tables

PAGE: Final = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()

HEADINGS: Final[dict[type[attrs.AttrsInstance], str]] = {
    QueueSettings: "Settings of a queue",
    AliasSettings: "Settings of an alias",
    Config: "Settings of the server",
    LoggingSettings: "Settings of the log",
    AdminSettings: "Settings of the admin port",
    TlsSettings: "Settings of TLS",
    ZooKeeperSettings: "Settings of ZooKeeper",
}
"""Heading of the table for each class."""

each_class = pytest.mark.parametrize("cls", HEADINGS)


def tables_below(heading: str) -> list[list[list[str]]]:
    """Return the tables below a heading, without their header rows."""
    return [rows for _, *rows in tables(section(PAGE, heading))]


def value_of(kind: SettingKind, cell: str) -> Any:
    """Return the value that a cell of the column `default` denotes."""
    if cell.startswith("~/.local/state/kestrel/"):
        return str(state_folder() / cell.removeprefix("~/.local/state/kestrel/"))
    written = {"true": True, "false": False}.get(cell, int(cell) if cell.isdigit() else cell)
    return kind.parse(written)


def single_settings(cls: type[attrs.AttrsInstance]) -> dict[str, Setting]:
    """Return the settings of a class that are not tables of the file."""
    return {field: each for field, each in settings_of(cls).items() if each.kind not in (TABLE, TABLES)}


@each_class
def test_table_lists_every_setting(cls: type[attrs.AttrsInstance]) -> None:
    names = [row[0].strip("`") for row in tables_below(HEADINGS[cls])[0]]
    assert names == [setting.kestrel_name for setting in single_settings(cls).values()]


@each_class
def test_defaults_are_those_of_the_code(cls: type[attrs.AttrsInstance]) -> None:
    cells = {row[0].strip("`"): row[2] for row in tables_below(HEADINGS[cls])[0]}
    fields = {field.name: field for field in attrs.fields(cls)}
    for name, setting in single_settings(cls).items():
        default = fields[name].default
        if default is attrs.NOTHING:
            assert cells[setting.kestrel_name] == "required"
        else:
            value = default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]
            cell = cells[setting.kestrel_name]
            assert (value in ({}, ())) if cell == "empty" else (value_of(setting.kind, cell) == value)


def test_every_table_of_the_file_is_listed() -> None:
    tables = settings_of(Config).keys() - single_settings(Config).keys()
    assert {row[0].strip("`") for row in tables_below("Settings of the server")[1]} == tables
