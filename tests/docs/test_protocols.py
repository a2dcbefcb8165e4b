"""docs/protocols.md and the page of each protocol: examples, lists of statistics, limits.

Each conversation is played to a new server in memory, as a whole and byte by byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import attrs
import pytest

from kestrel.config.load import loads
from kestrel.config.model import AliasSettings, Config, QueueSettings
from kestrel.config.setting import settings_of
from kestrel.protocols import memcache, text
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.docs.markdown import section, tables

_DOCS: Final = Path(__file__).parents[2] / "docs"

PAGES: Final = {
    name: (_DOCS / f"{name}.md").read_text()
    for name in ("protocols", "protocol_memcache", "protocol_text", "protocol_thrift")
}

MAX_OPEN_READS: Final = 100
"""The setting of examples without another value."""

_BLOCK: Final = re.compile(
    r"(?:^```toml\n(?P<toml>(?:(?!```).*\n)*)```\n\n)?"
    r"^```(?P<kind>conversation|thrift) ?(?P<settings>.*)\n(?P<lines>(?:(?!```).*\n)*)```$",
    re.MULTILINE,
)
_LINE_ENDS: Final = {"memcache": "\r\n", "text": "\n"}
_LINE: Final = re.compile(r"(2?)(--|[<>])(?: (.*))?")
_TIME: Final = re.compile(r"(\d+) (ms|s) go by")


class Line(NamedTuple):
    """A line: a request (`direction` >) or reply (<) of a client, or an event (--)."""

    client: int
    direction: str
    text: str


class Block(NamedTuple):
    """An example: its line number, configuration, the protocols of its two clients, and its lines."""

    number: int
    config: Config
    protocols: tuple[str, str]
    lines: list[Line]


class Example(NamedTuple):
    """A fenced block of any kind, with its lines unparsed. `words` are the words of its first line without settings."""

    kind: str
    number: int
    config: Config
    words: list[str]
    lines: list[str]


def examples_in(page: str) -> Iterator[Example]:
    """Yield the examples of a page. Their settings are in the first line, or in a TOML block directly above."""
    for match in _BLOCK.finditer(page):
        number = page.count("\n", 0, match.start("settings")) + 1
        words = match["settings"].split()
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        others = [word for word in words if "=" not in word]
        config = _config(settings, match["toml"] or "")
        yield Example(match["kind"], number, config, others, match["lines"].splitlines())


def blocks_in(page: str) -> Iterator[Block]:
    """Yield the conversations of a page. The first line names the protocol, or those of two clients."""
    for example in examples_in(page):
        if example.kind == "conversation":
            first, second = {0: ["memcache"] * 2, 1: example.words * 2, 2: example.words}[len(example.words)]
            yield Block(example.number, example.config, (first, second), [_line(text) for text in example.lines])


def _config(settings: dict[str, str], toml: str) -> Config:
    if "maxOpenTransactions" not in toml:
        settings = {"maxOpenTransactions": str(MAX_OPEN_READS)} | settings
    return loads("".join(f"{name} = {value}\n" for name, value in settings.items()) + toml)


def _line(text: str) -> Line:
    line = _LINE.fullmatch(text)
    assert line, f"no line of a conversation: {text!r}"
    return Line(int(line[1] or 1), line[2], line[3] or "")


def play(block: Block, *, piece_bytes: int | None = None) -> None:
    """Play an example with requests in pieces. Fail if the server behaves differently."""
    Playing(block.config, block.protocols, piece_bytes).play(block.lines)


class Playing:
    """A new server, its clients with their protocols, and the numbers of disconnected clients.

    With `keeps_scrolls` the server uses the scroll storage, in a temporary folder.
    """

    def __init__(
        self, config: Config, protocols: tuple[str, str], piece_bytes: int | None, *, keeps_scrolls: bool = False
    ) -> None:
        if keeps_scrolls:
            self._folder = TemporaryDirectory()
            self.server = MemoryServer(config=config, folder=Path(self._folder.name), make_storage=ScrollStorage)
        else:
            self.server = MemoryServer(config=config)
        self.protocols = protocols
        self.clients: dict[int, MemoryClient] = {}
        self.gone: set[int] = set()
        self.piece_bytes = piece_bytes

    def client(self, number: int) -> MemoryClient:
        """Return the client with a number, connected at its first use."""
        if number not in self.clients:
            self.clients[number] = self.server.connect(self.protocols[number - 1])
        return self.clients[number]

    def play(self, lines: list[Line]) -> None:
        """Play all lines. At the end no reply and no disconnection may be left."""
        for (number, direction), group in groupby(lines, key=lambda line: line[:2]):
            texts = [line.text for line in group]
            end = _LINE_ENDS[self.protocols[number - 1]]
            said = "".join(f"{text}{end}" for text in texts).encode("latin-1")
            if direction == ">":
                self.nothing_is_said()
                self.send(self.client(number), said)
            elif direction == "<":
                assert self.client(number).take() == said
            else:
                for text in texts:
                    self.happen(number, text)
        self.it_is_over()

    def it_is_over(self) -> None:
        """Fail after replies or disconnections that the example does not show."""
        self.nothing_is_said()
        assert {number for number, client in self.clients.items() if client.is_closed} == self.gone

    def send(self, client: MemoryClient, said: bytes) -> None:
        """Send a request, in pieces if required."""
        size = self.piece_bytes or len(said)
        for start in range(0, len(said), size):
            client.send(said[start : start + size])
            if self.piece_bytes:
                self.server.settle()

    def nothing_is_said(self) -> None:
        """Fail after a reply that the example does not show."""
        for number, client in self.clients.items():
            assert client.take() == b"", f"client {number} was told more"

    def happen(self, number: int, what: str) -> None:
        """Apply an event."""
        if time := _TIME.fullmatch(what):
            self.nothing_is_said()
            self.server.advance(int(time[1]) / (1000 if time[2] == "ms" else 1))
        elif what == "the client half-closes":
            self.client(number).half_close()
        elif what == "the client disconnects":
            self.client(number).disconnect()
            self.gone.add(number)
        else:
            assert what == "the server hangs up", f"nothing that can happen: {what}"
            self.nothing_is_said()
            assert self.client(number).is_closed
            self.gone.add(number)


BLOCKS: Final = {f"{name} line {block.number}": block for name, page in PAGES.items() for block in blocks_in(page)}

"""A minimal example."""


def cells_below(heading: str, page: str) -> list[list[str]]:
    """Return the rows of the first table below a heading."""
    return tables(section(PAGES[page], heading))[0][1:]


def rows_below(heading: str, page: str = "protocols") -> list[list[str]]:
    """Return the rows of the first table below a heading, without backticks around cells."""
    return [[cell.strip("`") for cell in row] for row in cells_below(heading, page)]


def figures_of_a_queue(*, is_parent: bool) -> list[str]:
    """Return the figures of a queue without a journal."""
    return [row[0] for row in rows_below("Figures of a queue") if is_parent or row[0] != "children"]


def test_all_examples_are_found() -> None:
    assert len(BLOCKS) == sum(page.count("\n```conversation") for page in PAGES.values())
    assert all(len(list(blocks_in(PAGES[name]))) >= 5 for name in ("protocols", "protocol_memcache", "protocol_text"))


@pytest.mark.parametrize("piece_bytes", [None, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_example_gets_its_replies(block: Block, piece_bytes: int | None) -> None:
    play(block, piece_bytes=piece_bytes)


@pytest.mark.parametrize(
    "lines",
    ["< END\n< STORED\n", "< END\n-- the server hangs up\n", "< END\n2-- the server hangs up\n", "< END\n2< END\n", ""],
)
def test_wrong_example_fails(lines: str) -> None:
    (block,) = blocks_in(f"```conversation\n> get jobs\n{lines}```\n")
    with pytest.raises(AssertionError):
        play(block)


@pytest.mark.parametrize("parent", ["jobs", "news"])
def test_stats_have_the_listed_figures_in_order(parent: str) -> None:
    server = [row[0] for row in rows_below("Figures of the server")]
    queue = [f"queue_jobs_{name}" for name in figures_of_a_queue(is_parent=parent == "jobs")]
    client = MemoryServer().connect()
    client.ask(f"get {parent}+child\r\nset jobs 0 0 1\r\nx\r\n".encode())
    names = [line.split()[1] for line in client.ask(b"stats\r\n").decode().splitlines()[:-1]]
    assert [name for name in names if "+child" not in name] == server + queue


def test_dump_stats_has_the_listed_figures_in_order() -> None:
    listed = figures_of_a_queue(is_parent=False)
    client = MemoryServer().connect()
    client.ask(b"set jobs 0 0 1\r\nx\r\n")
    lines = client.ask(b"dump_stats jobs nothing\r\n").decode().split("\r\n")
    shown = [line.split("=")[0] for line in lines[1 : len(listed) + 1]]
    assert shown == [f"  {name}" for name in listed]
    assert lines[len(listed) + 1 :] == ["}", "queue 'nothing' {", "  ", "}", "END", ""]


def shown_figures(server: MemoryServer) -> list[str]:
    """Return the figures of a queue with an item in `dump_stats`."""
    reply = server.connect().ask(b"set jobs 0 0 1\r\nx\r\ndump_stats jobs\r\n")
    return re.findall(r"^  (\w+)=", reply.decode(), re.MULTILINE)


def test_figures_of_a_journal_are_listed_in_order(tmp_path: Path) -> None:
    listed = figures_of_a_queue(is_parent=False) + [row[0] for row in rows_below("Figures of a journal")]
    assert shown_figures(MemoryServer(folder=tmp_path)) == listed


def test_figures_of_a_scroll_are_listed(tmp_path: Path) -> None:
    journal = {*figures_of_a_queue(is_parent=False), *(row[0] for row in rows_below("Figures of a journal"))}
    shown = shown_figures(MemoryServer(folder=tmp_path, make_storage=ScrollStorage))
    assert set(shown) == journal - {"journal_packs"} | {row[0] for row in rows_below("Figures of a scroll")}


def test_figures_of_an_alias_are_listed_in_order() -> None:
    config = loads('[[aliases]]\nname = "orders"\ndestinationQueues = ["billing"]\n')
    lines = MemoryServer(config=config).connect().ask(b"dump_stats orders\r\n").decode().splitlines()
    assert [line.split("=")[0].strip() for line in lines[1:-2]] == [row[0] for row in rows_below("Figures of an alias")]


def test_limits_are_listed_with_their_defaults() -> None:
    settings = {setting.kestrel_name: (field, setting.kind) for field, setting in settings_of(Config).items()}
    defaults = {field.name: field.default for field in attrs.fields(Config)}
    rows = rows_below("Bounds")
    names = ["maxLineSize", "maxRequestItemSize", "maxRequestSize", "maxTextPutItems", "maxThriftListSize"]
    names += ["maxPipelineBytes", "maxTotalRequestSize", "requestTimeout", "maxUncommittedBytes", "maxConnections"]
    assert [row[0] for row in rows] == [*names, "maxQueues"]
    for name, default, _ in rows:
        field, kind = settings[name]
        assert kind.parse(int(default) if default.isdigit() else default) == defaults[field]


def test_named_settings_exist() -> None:
    classes = (Config, QueueSettings, AliasSettings)
    known = {each.kestrel_name for cls in classes for each in settings_of(cls).values()}
    known.update(text._KESTREL_OPERATION_NAMES.values())
    for page in PAGES.values():
        named = set(re.findall(r"`([a-z]+(?:[A-Z][a-z]+)+)(?: = [^`]*)?`", page))
        assert named and named <= known


@pytest.mark.parametrize(("page", "words"), [("protocol_memcache", memcache._PARSERS), ("protocol_text", text._SYNTAX)])
def test_table_lists_every_request(page: str, words: Mapping[bytes, object]) -> None:
    codes = [code for row in cells_below("Requests", page) for code in re.findall(r"`([^`]+)`", row[0])]
    named = {re.split(r"[ \[]", code)[0] for code in codes}
    assert named == {word.decode() for word in words} - {"add", "replace", "append", "prepend", "cas"}


def test_page_names_every_operation_that_text_may_refuse() -> None:
    assert all(f"`{operation}`" in PAGES["protocol_text"] for operation in text._KESTREL_OPERATION_NAMES.values())
