"""docs/guide.md: its tables list every setting with its default, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from twisted.internet.task import Clock

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.config.queue_settings import AliasSettings, QueueSettings
from kestrel.config.server_settings import (
    AdminSettings,
    LoggingSettings,
    ServerSettings,
    ZooKeeperSettings,
    state_folder,
)
from kestrel.config.setting import settings_of
from kestrel.config.setting_kinds import SettingKind
from kestrel.protocols import memcache
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.threads import SteppedThreads
from tests.docs.test_protocols import Block, blocks_in, play

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "guide.md").read_text()

CONFIGURATIONS: Final = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

TABLES: Final[dict[str, type[attrs.AttrsInstance]]] = {
    "Settings of a queue": QueueSettings,
    "Settings of an alias": AliasSettings,
    "Settings of the server": ServerSettings,
    "Settings of the log": LoggingSettings,
}
"""What each table of settings is about, by its heading; two share theirs (see `rows_of`)."""


def section(heading: str) -> str:
    """What stands under a heading, which must be the only one of its words, up to the next one."""
    found = re.split(rf"^#+ {re.escape(heading)}\n", PAGE, flags=re.MULTILINE)
    assert len(found) == 2, f"there are {len(found) - 1} headings {heading!r}"
    return re.split(r"^#+ ", found[1], maxsplit=1, flags=re.MULTILINE)[0]


def tables_in(text: str) -> list[list[list[str]]]:
    """The tables of a text, without their heads, as rows of cells."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]] for table in tables
    ]


def first_words(heading: str) -> set[str]:
    """The first word of everything in code font in the first column of a section's tables."""
    rows = [row for table in tables_in(section(heading)) for row in table]
    return {code.split()[0] for row in rows for code in re.findall(r"`([^`]+)`", row[0])}


def rows_of(cls: type[attrs.AttrsInstance]) -> list[list[str]]:
    """The rows of the guide's table about the settings of a class."""
    admin, zookeeper = tables_in(section("Settings of the admin port and of ZooKeeper"))
    further = {AdminSettings: admin, ZooKeeperSettings: zookeeper}
    if cls in further:
        return further[cls]
    (heading,) = [heading for heading, each in TABLES.items() if each is cls]
    return tables_in(section(heading))[0]


each_class = pytest.mark.parametrize("cls", [*TABLES.values(), AdminSettings, ZooKeeperSettings])


# Tables.


@each_class
def test_every_setting_is_in_its_table_and_nothing_else(cls: type[attrs.AttrsInstance]) -> None:
    assert [row[0].strip("`") for row in rows_of(cls)] == [each.kestrel_name for each in settings_of(cls).values()]


def test_every_table_of_a_file_is_named() -> None:
    tables = settings_of(Config).keys() - settings_of(ServerSettings).keys()
    assert {row[0].strip("`") for row in tables_in(section("Settings of the server"))[1]} == tables


@each_class
def test_the_defaults_are_those_of_the_table(cls: type[attrs.AttrsInstance]) -> None:
    told = {row[0].strip("`"): row[2] for row in rows_of(cls)}
    fields = {field.name: field for field in attrs.fields(cls)}
    for name, each in settings_of(cls).items():
        default = fields[name].default
        if default is attrs.NOTHING:
            assert told[each.kestrel_name] == "required"
        else:
            value = default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]
            assert as_told(each.kind, told[each.kestrel_name]) == value


def as_told(kind: SettingKind, text: str) -> Any:
    """The value that a cell of the guide stands for."""
    if text == "empty":
        return {} if kind.name.startswith("table") else ()
    if text.startswith("~/.local/state/kestrel/"):
        return str(state_folder() / text.removeprefix("~/.local/state/kestrel/"))
    written = {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)
    return kind.parse(written)


def test_every_command_is_in_the_table_and_nothing_else() -> None:
    assert first_words("Commands") == {word.decode() for word in memcache._PARSERS}


def test_every_figure_of_stats_is_in_a_table() -> None:
    client = MemoryServer().connect()
    client.ask(b"set jobs 0 0 1\r\nx\r\n")
    names = [line.split()[1] for line in client.ask(b"stats\r\n").decode().splitlines()[:-1]]
    server = {name for name in names if not name.startswith("queue_jobs_")}
    queue = {name.removeprefix("queue_jobs_") for name in names} - server
    assert first_words("Figures of the server") == server
    assert queue <= first_words("Figures of a queue")


def test_every_figure_of_a_journal_is_in_a_table(tmp_path: Path) -> None:
    clock, threads = Clock(), SteppedThreads()
    server = MemoryServer(JournalStorage(str(tmp_path).encode(), clock, threads, reserve_bytes=1), clock=clock)
    threads.run_all()
    server.settle()
    client = server.connect()
    client.ask(b"set jobs 0 0 1\r\nx\r\n")
    shown = re.findall(r"^  (\w+)=", client.ask(b"dump_stats jobs\r\n").decode(), re.MULTILINE)
    assert {*shown, "children"} == first_words("Figures of a queue")


def test_every_figure_of_a_scroll_is_in_a_table(tmp_path: Path) -> None:
    clock, threads = Clock(), SteppedThreads()
    server = MemoryServer(ScrollStorage(str(tmp_path).encode(), clock, threads, reserve_bytes=1), clock=clock)
    threads.run_all()
    server.settle()
    client = server.connect()
    client.ask(b"set jobs 0 0 1\r\nx\r\n")
    shown = re.findall(r"^  (\w+)=", client.ask(b"dump_stats jobs\r\n").decode(), re.MULTILINE)
    of_a_journal = first_words("Figures of a queue") - {"journal_packs", "children"}
    assert set(shown) == of_a_journal | first_words("Further figures in a scroll")


def test_every_difference_from_kestrel_is_in_the_table() -> None:
    numbers = re.findall(r"^## (\d+)\. ", (ROOT / "docs" / "differences.md").read_text(), re.MULTILINE)
    (table,) = tables_in(section("Differences from Kestrel"))
    told = [row[0] for row in table]
    assert told == [str(number) for number in range(1, len(told) + 1)]
    assert numbers and set(numbers) <= set(told)


# Examples.


def test_there_are_examples() -> None:
    assert len(CONFIGURATIONS) == PAGE.count("\n```toml") >= 5
    assert len(list(blocks_in(PAGE))) == PAGE.count("\n```conversation") >= 2


@pytest.mark.parametrize("text", CONFIGURATIONS, ids=range(1, len(CONFIGURATIONS) + 1))
def test_a_configuration_loads_as_it_stands(text: str) -> None:
    loads(text)


@pytest.mark.parametrize("block", list(blocks_in(PAGE)), ids=lambda block: f"line {block.number}")
def test_example_is_answered_as_it_says(block: Block) -> None:
    play(block)
