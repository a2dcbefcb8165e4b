"""docs/protocol_thrift.md: its calls in words and in bytes, its tables, and its programs.

Each example is played to a new server in memory, as a whole and byte by byte.
"""

from __future__ import annotations

import re
import sys
from typing import Final

import pytest

from kestrel.protocols import thrift_binary as binary
from tests.docs.client_programs import Language, run
from tests.docs.markdown import code_blocks, section
from tests.docs.test_protocols import PAGES, rows_below
from tests.docs.thrift_examples import IDL as SERVICE
from tests.docs.thrift_examples import ThriftBlock, is_true, play, thrift_blocks_in
from tests.server.running import Processes
from tests.session.thrift_libraries import IDL

PAGE: Final = PAGES["protocol_thrift"]

BLOCKS: Final = {
    f"{name} line {block.number}": block for name, page in PAGES.items() for block in thrift_blocks_in(page)
}

IN_BYTES: Final = {name: block for name, block in BLOCKS.items() if any(said.lines for said in block.said)}


def test_all_examples_are_found() -> None:
    assert len(BLOCKS) == sum(page.count("\n```thrift") for page in PAGES.values()) >= 10
    assert len(IN_BYTES) >= 5


@pytest.mark.parametrize("piece_bytes", [None, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_example_gets_its_replies(block: ThriftBlock, piece_bytes: int | None) -> None:
    play(block, piece_bytes=piece_bytes)


def test_explanations_have_the_texts_and_numbers_of_their_bytes() -> None:
    lines = [line for block in IN_BYTES.values() for said in block.said for line in said.lines]
    assert len(lines) > 50
    assert [line for line in lines if not is_true(line)] == []


def test_every_method_has_an_example() -> None:
    calls = [said.words for block in thrift_blocks_in(PAGE) for said in block.said if said.direction == ">"]
    assert set(SERVICE.Kestrel.thrift_services) <= {words.split("(")[0] for words in calls}


# Tables.


def test_table_lists_the_methods_of_the_idl() -> None:
    idl = IDL.read_text()
    methods = {f"{returns} {name}" for returns, name in re.findall(r"^  (\S+) (\w+)\(", idl, re.MULTILINE)}
    rows = rows_below("The service", "protocol_thrift")
    assert {f"{row[1].split('`')[0]} {row[0].split('(')[0]}" for row in rows} == methods
    for row in rows:
        arguments = re.sub(r"\d: ", "", idl.split(f" {row[0].split('(')[0]}(")[1].split(")")[0])
        assert row[0].split("(")[1] == f"{arguments})"


@pytest.mark.parametrize(("heading", "struct"), [("peek", "QueueInfo"), ("Items by their ids", "RangeItem")])
def test_table_lists_the_fields_of_a_struct(heading: str, struct: str) -> None:
    rows = rows_below(heading, "protocol_thrift")
    idl = IDL.read_text().split(f"struct {struct} ")[1].split("\n}")[0]
    fields = re.findall(r"^  (\d): (?:optional )?(\w+) (\w+)$", idl, re.MULTILINE)
    told = [(*row[0].replace("`", "").split(), row[1]) for row in rows]
    assert told == [(id_, name, type_) for id_, type_, name in fields]


def test_table_lists_the_statuses() -> None:
    rows = rows_below("Status and version", "protocol_thrift")
    assert {row[1]: int(row[0]) for row in rows} == SERVICE.Status._NAMES_TO_VALUES


def test_table_lists_the_exception_types() -> None:
    rows = rows_below("Errors", "protocol_thrift")
    errors = {binary.UNKNOWN_METHOD, binary.INVALID_MESSAGE_TYPE, binary.INTERNAL_ERROR, binary.PROTOCOL_ERROR}
    assert {int(row[0]) for row in rows} == errors


# Clients, against a real server.


CLIENTS: Final = {
    "Python with Apache thrift": (
        "python", Language("jobs.py", ("thrift --gen py -out . kestrel.thrift", f"{sys.executable} jobs.py")),
        ("thrift",),
    ),
    "Python with thriftpy2": ("python", Language("jobs.py", (f"{sys.executable} jobs.py",)), ()),
    "Ruby": (
        "ruby", Language("jobs.rb", ("thrift --gen rb kestrel.thrift", "ruby -I gen-rb jobs.rb")),
        ("thrift", "ruby", "thrift-ruby"),
    ),
    "Perl": (
        "perl", Language("jobs.pl", ("thrift --gen perl kestrel.thrift", "perl -I gen-perl jobs.pl")),
        ("thrift", "thrift-perl"),
    ),
}  # fmt: skip
"""The programs by the heading of their section: language of the code block, how it is run, and system packages."""

EACH_CLIENT: Final = pytest.mark.parametrize(
    "heading", [pytest.param(heading, marks=pytest.mark.needs(*needs)) for heading, (_, _, needs) in CLIENTS.items()]
)


@EACH_CLIENT
def test_program_prints_the_documented_lines(heading: str, processes: Processes) -> None:
    fence, language, _ = CLIENTS[heading]
    (program,) = code_blocks(section(PAGE, heading), fence)
    (processes.folder / "kestrel.thrift").write_bytes(IDL.read_bytes())
    server = processes.serve('queuePath = "queues"\nmaxOpenTransactions = 100\n')
    run(program, language, processes, server.port_of("thrift"))


def test_each_program_of_the_page_is_run() -> None:
    fences = sum(PAGE.count(f"\n```{fence}\n") for fence in {fence for fence, _, _ in CLIENTS.values()})
    assert fences == len(CLIENTS)


@pytest.mark.parametrize("heading", CLIENTS)
def test_page_has_the_commands_of_a_program(heading: str) -> None:
    commands = [command for command in CLIENTS[heading][1].commands if not command.startswith(sys.executable)]
    assert re.findall(r"^    (.*)$", section(PAGE, heading), re.MULTILINE)[: len(commands)] == commands
