"""The commands of docs/storage_plugins.md and of examples/storage-sqlite install and serve the SQLite plugin."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.server.running import ROOT, Processes
from tests.server.scratch_environment import ScratchEnvironment
from tests.storage.distributions import drop_in

PAGE: Final = (ROOT / "docs" / "storage_plugins.md").read_text()

INSTALL: Final = "pip install ."
INSTALL_EDITABLE: Final = "pip install --editable ."
INSTALL_TESTS: Final = "pip install 'kestrel-mq[test]'"
LIST: Final = "twistd kestrel --help-storage"
SERVE: Final = "twistd --nodaemon kestrel --storage sqlite:/srv/kestrel.sqlite"
TEST: Final = "pytest -k 'not model'"

EXAMPLE: Final = ROOT / "examples" / "storage-sqlite"


def block(language: str, begin: str) -> str:
    """Return the only block of a language with this beginning."""
    (found,) = re.findall(rf"^```{language}\n({re.escape(begin)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def scratch(tmp_path: Path) -> ScratchEnvironment:
    """Return an environment without other storages."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return ScratchEnvironment(folder)


@pytest.fixture
def installed(tmp_path: Path, scratch: ScratchEnvironment) -> Iterator[Processes]:
    """Return processes of servers in that environment."""
    with Processes(tmp_path) as processes:
        processes.command = scratch.twistd
        yield processes


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a copy of the example that pip may change."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "storage-sqlite", ignore=shutil.ignore_patterns("build", "*-info")))


CRASHES: Final = (
    "pytest -k 'kill or power_failure or failed_sync or failed_write or full_disk or after_close or other_threads'"
)


def test_every_command_of_the_page_is_run() -> None:
    shown = re.findall(r"^    ((?:pip|twistd|pytest|python)\b.*)$", PAGE, re.MULTILINE)
    named = re.findall(r"`((?:pip|twistd|pytest|python) [^`]*)`", PAGE)
    run_elsewhere = {"pytest -rs", CRASHES}  # by test_contract_suite.py and test_sqlite_contract.py
    assert {*shown, *named} - run_elsewhere == {INSTALL, INSTALL_EDITABLE, INSTALL_TESTS, LIST, SERVE, TEST}


@pytest.mark.parametrize("command", [INSTALL, INSTALL_EDITABLE])
def test_installed_package_is_listed_and_serves(
    installed: Processes, scratch: ScratchEnvironment, package: Path, command: str
) -> None:
    pip, install, *arguments = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    scratch.install(*arguments, folder=package)
    check_that_it_is_listed(installed, "from kestrel-sqlite 1.0.0")
    check_that_it_serves(installed)


def test_module_without_a_package_is_listed_and_serves(installed: Processes, scratch: ScratchEnvironment) -> None:
    shutil.copy(EXAMPLE / "kestrel_sqlite.py", scratch.site)
    path = drop_in(scratch.site, "sqlite_plugin", block("python", "from twisted.plugin import IPlugin"))
    check_that_it_is_listed(installed, f"from the drop-in {path}")
    check_that_it_serves(installed)


def check_that_it_is_listed(installed: Processes, origin: str) -> None:
    twistd, *arguments = shlex.split(LIST)
    assert twistd == "twistd"
    listed = installed.run(*installed.command, *arguments)
    assert (listed.returncode, listed.stderr) == (0, "")
    about = f"sqlite ({origin}) sqlite:FILE keeps queues in a SQLite database in FILE - durable:"
    assert about in " ".join(listed.stdout.split())


def check_that_it_serves(installed: Processes) -> None:
    twistd, nodaemon, kestrel, *arguments = shlex.split(SERVE.replace("/srv/", f"{installed.folder}/"))
    assert (twistd, nodaemon, kestrel) == ("twistd", "--nodaemon", "kestrel")
    server = installed.serve("", *arguments)
    with server.connect() as client:
        client.put(b"work", b"hello", b"world")
        assert client.get(b"work") == b"hello"
    server.kill()
    with installed.serve("", *arguments).connect() as client:
        assert client.get(b"work") == b"world"


def test_readme_of_the_example_shows_the_commands_of_the_page() -> None:
    shown = re.findall(r"^    (\S.*)$", (EXAMPLE / "README.md").read_text(), re.MULTILINE)
    assert shown == ["pip install ./examples/storage-sqlite", SERVE]


def test_requirements_of_the_tests_are_an_extra() -> None:
    (requirement,) = shlex.split(INSTALL_TESTS)[2:]
    name, extra = requirement.removesuffix("]").split("[")
    setup = (ROOT / "setup.cfg").read_text()
    assert f"\nname = {name}\n" in setup
    needed = setup.partition(f"\n{extra} =\n")[2].partition("\n\n")[0].partition("\nlibmemcached")[0]
    assert re.search(r"^    pytest\b", needed, re.MULTILINE)
    assert re.search(r"^    hypothesis\b", needed, re.MULTILINE)


def test_shortened_run_skips_only_the_random_histories(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("from tests.storage.test_sqlite_contract import TestSqlite, TestSqliteDatabase\n")
    _, *arguments = shlex.split(TEST)
    of_all = pytester.runpytest_inprocess("-p", "no:twisted", "--collect-only", "-q", *arguments)
    found = of_all.parseoutcomes()
    assert found["deselected"] == 2
    assert not any("history" in line for line in of_all.outlines if "::" in line and "model" in line)
