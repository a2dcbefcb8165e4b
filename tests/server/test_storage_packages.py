"""Storages in packages that are built and installed: regular, editable, and as drop-ins."""

from __future__ import annotations

from typing import Final

import pytest

from kestrel.server.options import storage_help
from kestrel.server.startup_errors import EX_CONFIG
from tests.server.running import Processes
from tests.server.scratch_environment import ScratchEnvironment
from tests.storage.distributions import ACME, drop_in

BROKEN: Final = (
    ACME
    + """

class Careless(AcmeFactory):
    name = "careless"
    def storage(self, *described): return {}["dsn"]
"""
)
BROKEN_ENTRIES: Final = {"careless": "Careless", "memory": "AcmeFactory"}

REFUSALS: Final = {
    "away": "storage 'away' of acme-away 1.0 cannot be used: acme_away cannot be imported: ModuleNotFoundError: No"
    " module named 'acme_driver'",
    "careless": "storage 'careless' of acme-broken 1.0 cannot be used: its factory cannot create a storage: KeyError:"
    " 'dsn'",
}
"""The beginning of the error about a refused storage. tests/storage/test_plugins.py has all reasons."""

WAYS: Final = ("regular", "editable", "dropped")
"""The installation of each storage."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> ScratchEnvironment:
    """Return an environment with a storage for each installation, and with broken ones."""
    scratch = ScratchEnvironment(tmp_path_factory.mktemp("scratch"))
    regular = scratch.package("acme-regular", named("regular"), {"regular": "AcmeFactory"})
    editable = scratch.package("acme-editable", named("editable"), {"editable": "AcmeFactory"}, version="2.0rc1")
    broken = scratch.package("acme-broken", BROKEN, BROKEN_ENTRIES)
    away = scratch.package("acme-away", "import acme_driver\n", {"away": "AcmeFactory"})
    scratch.install(str(regular), str(broken), str(away), "--editable", str(editable))
    scratch.drop_in("acme_dropped", named("dropped") + "\nplugin = AcmeFactory()\n")
    return scratch


def named(name: str) -> str:
    """Return the source of a valid module, with its factory under that name."""
    return f"{ACME}\nAcmeFactory.name = {name!r}\n"


@pytest.fixture
def installed(processes: Processes, scratch: ScratchEnvironment) -> Processes:
    """Return servers of the scratch environment."""
    processes.command = scratch.twistd
    return processes


@pytest.mark.parametrize("way", WAYS)
def test_server_uses_a_storage_of_every_installation(installed: Processes, way: str) -> None:
    server = installed.serve("", "--storage", f"{way}:")
    with server.connect() as client:
        client.put(b"work", b"hello")
        assert client.get(b"work") == b"hello"
    assert f"serves 0 queues with 0 items of {way}:" in server.logged()
    server.stop()
    assert server.stderr() == ""


def test_help_storage_lists_valid_and_broken_storages(installed: Processes, scratch: ScratchEnvironment) -> None:
    shown = installed.run(*installed.twistd("--help-storage"))
    assert (shown.returncode, shown.stderr) == (0, "")
    text = " ".join(shown.stdout.split())
    usable, text = text.split(" Ignored: ")
    ignored, broken = text.split(" Broken: ")
    about = "acme: keeps queues nowhere for long. - errors_kept: an item keeps its error count as long as it exists,"
    assert f" editable (from acme-editable 2.0rc1) {about}" in usable
    assert f" regular (from acme-regular 1.0) {about}" in usable
    assert f" dropped (from the drop-in {scratch.site}/twisted/plugins/acme_dropped.py) {about}" in usable
    assert " careless (from acme-broken 1.0) " in usable  # its behaviour is known only when it is used
    assert usable.startswith("Storages, by the word before the colon of --storage: journal (built in) journal:FOLDER")
    assert ignored == "- storage 'memory' of acme-broken 1.0: a built-in storage has that name"
    assert f"- {REFUSALS['away']}" in broken


@pytest.mark.parametrize("name", REFUSALS)
def test_broken_storage_is_refused_without_a_traceback(installed: Processes, name: str) -> None:
    refused = installed.run(*installed.twistd("--storage", f"{name}:", "--validate"))
    assert (refused.returncode, refused.stdout) == (EX_CONFIG, "")
    assert refused.stderr.startswith(f"kestrel: {REFUSALS[name]}")
    assert refused.stderr.count("\n") == 1


def test_unknown_storage_error_lists_broken_drop_ins(installed: Processes) -> None:
    path = drop_in(installed.folder, "acme_torn", "import acme_driver\n")
    sentence = f"the drop-in {path} cannot be used: ModuleNotFoundError: No module named 'acme_driver'"
    refused = installed.run(*installed.twistd("--storage", "torn:", "--validate"))
    assert (refused.returncode, refused.stdout) == (EX_CONFIG, "")
    # Before that, twistd itself looks for plugins, and reports in its own way what it could not import.
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("kestrel: there is no storage 'torn'; there are away, careless, dropped, ")
    assert last.endswith(f"; twistd kestrel --help-storage lists them; {sentence}")
    shown = installed.run(*installed.twistd("--help-storage"))
    assert shown.returncode == 0
    assert f"- {sentence}" in " ".join(shown.stdout.split())


def test_broken_storage_does_not_affect_servers_without_it(installed: Processes) -> None:
    server = installed.serve("", "--storage", "memory:")
    assert "acme" not in server.logged() + server.stderr()


# The list.


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_list_is_as_wide_as_the_terminal_and_keeps_words(columns: int) -> None:
    lines = storage_help(columns).splitlines()
    assert columns - 20 < max(len(line) for line in lines) <= columns
    assert any("scroll:FOLDER[?archive=FOLDER][&reserve=SIZE]" in line for line in lines)


def test_list_has_a_minimum_width() -> None:
    assert storage_help(0) == storage_help(1) == storage_help(40)
