"""docs/protocol_thrift.md is true: its calls in words and in bytes, its tables, its clients.

Each example is played to a fresh server in memory, as a whole and byte by byte.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import as_file
from pathlib import Path
from typing import Final

import pytest

from kestrel.protocols import thrift_binary as binary
from tests.docs.test_protocols import PAGES, rows_below
from tests.docs.thrift_examples import IDL as SERVICE
from tests.docs.thrift_examples import ThriftBlock, bytes_of, explained, play, thrift_blocks_in
from tests.protocols.thrift_clients import IDL
from tests.server.running import PATIENCE_S, Processes

PAGE: Final = PAGES["protocol_thrift"]

BLOCKS: Final = {
    f"{name} line {block.number}": block for name, page in PAGES.items() for block in thrift_blocks_in(page)
}

IN_BYTES: Final = {name: block for name, block in BLOCKS.items() if any(said.lines for said in block.said)}

each_example = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)

PROGRAMS: Final = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

_PRINTS: Final = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)

IN_WORDS: Final = '```thrift\n> put("jobs", ["hello"])\n< 1\n```\n'


def in_bytes() -> str:
    """The same example with its bytes."""
    (block,) = thrift_blocks_in(IN_WORDS)
    lines = []
    for said, frame in zip(block.said, play(block), strict=True):
        lines += [f"{said.direction} {said.words}", *explained(frame)]
    return "\n".join(["```thrift", *lines, "```\n"])


def explanations_are_true(block: ThriftBlock) -> bool:
    """Whether what is said of the bytes of an example is what they are."""
    return all(said.lines == explained(bytes_of(said.lines)) for said in block.said if said.lines)


def test_there_are_examples() -> None:
    assert len(BLOCKS) == sum(page.count("\n```thrift") for page in PAGES.values()) >= 10
    assert len(IN_BYTES) >= 5


@each_example
def test_example_is_answered_as_it_says(block: ThriftBlock) -> None:
    play(block)


@each_example
def test_example_is_answered_the_same_byte_by_byte(block: ThriftBlock) -> None:
    play(block, piece_bytes=1)


@pytest.mark.parametrize("block", IN_BYTES.values(), ids=IN_BYTES)
def test_what_is_said_of_bytes_is_what_they_are(block: ThriftBlock) -> None:
    assert explanations_are_true(block)


def test_every_method_is_in_an_example() -> None:
    calls = [said.words for block in thrift_blocks_in(PAGE) for said in block.said if said.direction == ">"]
    assert set(SERVICE.Kestrel.thrift_services) <= {words.split("(")[0] for words in calls}


def test_an_example_with_its_bytes_is_as_good_as_one_in_words() -> None:
    (block,) = thrift_blocks_in(in_bytes())
    assert all(said.lines for said in block.said) and explanations_are_true(block)
    play(block)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("< 1\n", "< 2\n"),
        ("< 1\n", ""),
        ("\n> put", "\n2> put"),
        ("hello", "world"),
        ("68 65 6c 6c 6f", "68 65 6c 6c 70"),
        ("00 00 00 01     ", "00 00 00 02     "),
    ],
)
def test_an_example_that_is_not_true_fails(right: str, wrong: str) -> None:
    page = in_bytes()
    assert right in page
    (block,) = thrift_blocks_in(page.replace(right, wrong, 1))
    with pytest.raises(AssertionError):
        play(block)


def test_a_wrong_word_about_a_byte_is_found() -> None:
    page = in_bytes()
    assert 'string: "jobs"' in page
    (block,) = thrift_blocks_in(page.replace('string: "jobs"', 'string: "work"'))
    play(block)
    assert not explanations_are_true(block)


# Tables.


def test_the_methods_are_those_of_the_idl() -> None:
    idl = IDL.read_text()
    methods = {f"{returns} {name}" for returns, name in re.findall(r"^  (\S+) (\w+)\(", idl, re.MULTILINE)}
    rows = rows_below("The service", "protocol_thrift")
    assert {f"{row[1].split('`')[0]} {row[0].split('(')[0]}" for row in rows} == methods
    for row in rows:
        arguments = re.sub(r"\d: ", "", idl.split(f" {row[0].split('(')[0]}(")[1].split(")")[0])
        assert row[0].split("(")[1] == f"{arguments})"


@pytest.mark.parametrize(
    ("heading", "struct"), [("peek", "QueueInfo"), ("Items by their ids", "RangeItem")]
)
def test_the_fields_of_a_struct_are_those_of_the_idl(heading: str, struct: str) -> None:
    rows = rows_below(heading, "protocol_thrift")
    idl = IDL.read_text().split(f"struct {struct} ")[1].split("\n}")[0]
    fields = re.findall(r"^  (\d): (?:optional )?(\w+) (\w+)$", idl, re.MULTILINE)
    told = [(*row[0].replace("`", "").split(), row[1]) for row in rows]
    assert told == [(id_, name, type_) for id_, type_, name in fields]


def test_the_numbers_of_statuses_are_those_of_the_idl() -> None:
    rows = rows_below("Status and version", "protocol_thrift")
    assert {row[1]: int(row[0]) for row in rows} == SERVICE.Status._NAMES_TO_VALUES


def test_the_types_of_exceptions_are_those_that_there_are() -> None:
    rows = rows_below("Errors", "protocol_thrift")
    assert {int(row[0]) for row in rows} == {
        binary.UNKNOWN_METHOD,
        binary.INVALID_MESSAGE_TYPE,
        binary.INTERNAL_ERROR,
        binary.PROTOCOL_ERROR,
    }


# Clients, against a real server.


def run(program: str, folder: Path) -> None:
    """Run a program of the page; it must print what it says it does."""
    with Processes(folder / "server") as processes:
        server = processes.serve('queuePath = "queues"\nmaxOpenTransactions = 100\n')
        assert '"localhost", 2229' in program
        here = program.replace('"localhost", 2229', f'"127.0.0.1", {server.port_of("thrift")}')
        ran = subprocess.run(
            [sys.executable, "-c", here], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        server.stop()
    expected = _PRINTS.findall(program)
    assert (ran.stderr, ran.stdout.splitlines()) == ("", expected) and expected


def test_there_is_a_program_for_each_library() -> None:
    assert len(PROGRAMS) == PAGE.count("\n```python") == 2


@pytest.mark.needs("thrift")
def test_the_program_for_apache_thrift_runs_as_it_says(tmp_path: Path) -> None:
    (compile_line,) = re.findall(r"^    (thrift --gen .*) kestrel\.thrift$", PAGE, re.MULTILINE)
    (tmp_path / "server").mkdir()
    with as_file(IDL) as path:
        subprocess.run([*compile_line.split(), str(path)], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    (program,) = [program for program in PROGRAMS if "TBinaryProtocol" in program]
    run(program, tmp_path)


def test_the_program_for_thriftpy2_runs_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "kestrel.thrift").write_bytes(IDL.read_bytes())
    (program,) = [program for program in PROGRAMS if "thriftpy2" in program]
    run(program, tmp_path)
