"""docs/protocol_thrift.md: its calls in words and in bytes, its tables, and its programs.

Each example is played to a new server in memory, as a whole and byte by byte.
"""

from __future__ import annotations

import re
import subprocess
from importlib.resources import as_file
from pathlib import Path
from typing import Final

import pytest

from kestrel.protocols import thrift_binary as binary
from tests.docs.commands import run_python
from tests.docs.markdown import code_blocks
from tests.docs.test_protocols import PAGES, rows_below
from tests.docs.thrift_examples import IDL as SERVICE
from tests.docs.thrift_examples import ThriftBlock, is_true, play, thrift_blocks_in
from tests.protocols.thrift_clients import IDL
from tests.server.running import PATIENCE_S, Processes

PAGE: Final = PAGES["protocol_thrift"]

BLOCKS: Final = {
    f"{name} line {block.number}": block for name, page in PAGES.items() for block in thrift_blocks_in(page)
}

IN_BYTES: Final = {name: block for name, block in BLOCKS.items() if any(said.lines for said in block.said)}

PROGRAMS: Final = code_blocks(PAGE, "python")

_PRINTS: Final = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)


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


def run(program: str, folder: Path) -> None:
    """Run a program of the page. It must print the documented lines."""
    with Processes(folder / "server") as processes:
        server = processes.serve('queuePath = "queues"\nmaxOpenTransactions = 100\n')
        assert '"localhost", 2229' in program
        here = program.replace('"localhost", 2229', f'"127.0.0.1", {server.port_of("thrift")}')
        printed = run_python(folder, "-c", here).splitlines()
        server.stop()
    assert printed and printed == _PRINTS.findall(program)


def test_each_library_has_a_program() -> None:
    assert len(PROGRAMS) == PAGE.count("\n```python") == 2


@pytest.mark.needs("thrift")
def test_program_for_apache_thrift_prints_the_documented_lines(tmp_path: Path) -> None:
    (compile_line,) = re.findall(r"^    (thrift --gen .*) kestrel\.thrift$", PAGE, re.MULTILINE)
    (tmp_path / "server").mkdir()
    with as_file(IDL) as path:
        subprocess.run([*compile_line.split(), str(path)], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    (program,) = [program for program in PROGRAMS if "TBinaryProtocol" in program]
    run(program, tmp_path)


def test_program_for_thriftpy2_prints_the_documented_lines(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "kestrel.thrift").write_bytes(IDL.read_bytes())
    (program,) = [program for program in PROGRAMS if "thriftpy2" in program]
    run(program, tmp_path)
