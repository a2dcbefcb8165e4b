"""docs/client.md: its programs print the documented lines, and its tables are complete.

The programs of README.md and docs/worker.md too.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, Final

import pytest

from kestrel.client import errors
from kestrel.client.asyncio_client import AsyncClient
from kestrel.client.blocking import BlockingClient
from kestrel.client.client import Client
from kestrel.errors import BadQueueName
from kestrel.tls import TlsOptions
from tests.client.certificates import Authority
from tests.docs.commands import run_python
from tests.docs.markdown import section, tables
from tests.server.running import ROOT, Processes

PAGES: Final = {name: (ROOT / name).read_text() for name in ("docs/client.md", "docs/worker.md", "README.md")}
PAGE: Final = PAGES["docs/client.md"]

_PROGRAM: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINT: Final = re.compile(r"^ *print\(.*?\)(?:  # (.*))?$", re.MULTILINE)

PROGRAMS: Final = {
    f"{name} line {page.count(chr(10), 0, match.start(1)) + 1}": match[1]
    for name, page in PAGES.items()
    for match in _PROGRAM.finditer(page)
}

CONFIG: Final = 'queuePath = "queues"\nmaxOpenTransactions = 100\n[[queues]]\nname = "small"\nmaxItems = 2\n'
HOST: Final = "mq.example"
"""The name in the certificate of the server with TLS."""

PLACES: Final = {
    '"localhost"': '"127.0.0.1:{plain}"',
    '"localhost", 22133': '"127.0.0.1", {plain}',
    '"localhost:22133"': '"127.0.0.1:{plain}"',
    '"localhost:22134"': '"127.0.0.1:{tls}"',
}
"""Addresses of servers on the pages, and their replacements in the test."""

_PLACE: Final = re.compile("|".join(sorted(map(re.escape, PLACES), key=len, reverse=True)))


def is_test(program: str) -> bool:
    """Return whether pytest runs a program."""
    return "\ndef test_" in program


def printed_by(program: str) -> list[str]:
    """Return the lines that a program prints, according to its comments."""
    return _PRINT.findall(program) if not is_test(program) else []


def run(program: str, folder: Path) -> None:
    """Run a program with the servers that it uses. It must succeed and print the documented lines."""
    if not _PLACE.search(program):
        check_program(program, folder, printed_by(program))
        return
    (folder / "server").mkdir()
    cert_file, key_file = Authority(folder).sign(HOST)
    with Processes(folder / "server") as processes:
        tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={cert_file}"
        server = processes.serve(CONFIG, "--memcache", tls)
        plain, secure = re.findall(r"memcache: listening on 127\.0\.0\.1:(\d+)", server.logged())
        here = _PLACE.sub(lambda match: PLACES[match[0]].format(plain=plain, tls=secure), program)
        told = [line.replace("localhost:22133", f"127.0.0.1:{plain}") for line in printed_by(program)]
        check_program(here, folder, told)


def check_program(program: str, folder: Path, lines: list[str]) -> None:
    """Check that a program prints these lines, or that its tests pass."""
    (folder / "test_program.py").write_text(program)
    with_pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test(program) else []
    output = run_python(folder, *with_pytest, "test_program.py")
    assert is_test(program) or output.splitlines() == lines


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_program_prints_the_documented_lines(program: str, tmp_path: Path) -> None:
    assert is_test(program) or (printed_by(program) and "" not in printed_by(program))
    run(program, tmp_path)


def test_all_programs_are_found() -> None:
    assert len(PROGRAMS) == sum(page.count("\n```python") for page in PAGES.values()) >= 12


# Tables.


def rows_below(heading: str) -> list[list[str]]:
    """Return the rows of the tables in a section of the page."""
    return [row for _, *rows in tables(section(PAGE, heading)) for row in rows]


def code_in(cell: str) -> str:
    """Return the text in code font in a cell."""
    return cell.split("`")[1]


def parameters_of(client: type, method: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method by name."""
    _, *parameters = inspect.signature(getattr(client, method)).parameters.values()
    return {parameter.name: parameter for parameter in parameters}


def shown(client: type, method: str) -> str:
    """Return a method as the page shows it."""
    words = []
    for name, parameter in parameters_of(client, method).items():
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        default = "" if parameter.default is parameter.empty else f"={parameter.default}"
        words.append(f"{stars}{name}{default}")
    return f"{method}({', '.join(words)})"


@pytest.mark.parametrize("client", [BlockingClient, AsyncClient, Client])
def test_table_lists_the_methods_of_the_clients(client: type) -> None:
    methods = [name for name, _ in inspect.getmembers(client, inspect.isfunction) if not name.startswith("_")]
    told = [code_in(row[0]) for row in rows_below("What all can do") if "(" in row[0]]
    assert sorted(told) == sorted(shown(client, method) for method in methods)


def test_table_lists_the_options_with_their_defaults() -> None:
    told = {code_in(row[0]): row[1].strip("`") for row in rows_below("What all can do") if "(" not in row[0]}
    words: dict[Any, str] = {None: "none", False: "no", "memcache": '"memcache"'}
    known = {}
    for client in (BlockingClient, AsyncClient, Client):
        for name, parameter in parameters_of(client, "__init__").items():
            if parameter.kind is parameter.KEYWORD_ONLY or name == "protocol":
                known[name] = words.get(parameter.default, str(parameter.default))
    for_tests = {"random", "seconds"}
    assert told == {name: default for name, default in known.items() if name not in for_tests}


def test_table_lists_the_errors() -> None:
    told = {code_in(row[0]): row[2] for row in rows_below("Errors")}
    classes = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    for name in ("ClientFailure", "Refused"):
        assert f"`{name}`" in PAGE and name not in told
        del classes[name]
    assert set(told) == {*classes, BadQueueName.__name__}
    for name, each in classes.items():
        is_unknown = issubclass(each, errors.ConnectionFailed) and not issubclass(each, errors.CannotConnect)
        assert (told[name] == "unknown") == is_unknown


def test_table_lists_the_tls_options() -> None:
    told = [code_in(row[0]) for row in rows_below("TLS")]
    assert told == [field.name for field in dataclasses.fields(TlsOptions)]


def test_named_modules_exist() -> None:
    cells = [row[0] for row in rows_below("A client of your own")]
    stems = [name.rpartition(".")[2] for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    assert stems and all((ROOT / "kestrel" / "client" / f"{stem}.py").exists() for stem in stems)
