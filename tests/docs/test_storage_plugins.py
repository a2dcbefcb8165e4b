"""docs/storage_plugins.md: its code is that of the examples, and its tables list every refusal of a plugin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from twisted.internet.task import Clock

from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import CAPABILITIES
from kestrel.storage.registry import storage_from_string
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.threads import SteppedThreads
from tests.docs.markdown import table
from tests.storage.distributions import install, module, on_the_path

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"
PLUGIN: Final = "kestrel_sqlite.py"
PAGE: Final = (ROOT / "docs" / "storage_plugins.md").read_text()
EXCERPTS: Final = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FOUND: Final = "storage 'acme' of kestrel-acme 1.0 cannot be used: "
"""The beginning of a refusal of an installed plugin."""

FACTORY: Final = "kestrel_acme:AcmeFactory"
STORAGE: Final = "def storage(self, argument, options, clock, in_thread, memory)"
FAULTS: Final = {
    "its entry point": ("kestrel_acme:Acme:Factory", ""),
    "cannot be imported": (FACTORY, "import acme_driver"),
    "has no": (FACTORY, "del AcmeFactory"),
    "cannot be looked up": (FACTORY, "del AcmeFactory\ndef __getattr__(name): 1 / 0"),
    "cannot be created": (FACTORY, "AcmeFactory.__init__ = lambda self, dsn: None"),
    "is not an IStorageFactory": (FACTORY, "del AcmeFactory.help"),
    "cannot be inspected": (FACTORY, "AcmeFactory.help = property(lambda self: 1 / 0)"),
    "another name": (FACTORY, "AcmeFactory.name = 'emca'"),
    "help": (FACTORY, "AcmeFactory.help = None"),
    "capabilities": (FACTORY, "AcmeFactory.capabilities = ['durable']"),
    "capability": (FACTORY, "AcmeFactory.capabilities = {'wings'}"),
    "unused_settings": (FACTORY, "AcmeFactory.unused_settings = 'max_items'"),
    "largest_used": (FACTORY, "AcmeFactory.largest_used = {'max_memory_size_bytes': '1KiB'}"),
    "cannot create": (FACTORY, f"class AcmeFactory(AcmeFactory):\n    {STORAGE}: 1 / 0"),
    "not an IStorage": (FACTORY, f"class AcmeFactory(AcmeFactory):\n    {STORAGE}: return None"),
    "storage from its factory cannot be inspected": (
        FACTORY,
        "class Odd(MemoryStorage): refusal = property(lambda self: 1 / 0)\n"
        f"class AcmeFactory(AcmeFactory):\n    {STORAGE}: return Odd()",
    ),
}
"""The entry point and additional lines of the module for each fault of a plugin."""


@pytest.fixture
def package_folder(tmp_path: Path) -> Iterator[Path]:
    """Return the folder where the package of the page is installed."""
    with on_the_path(tmp_path):
        yield tmp_path


def beginnings(head: str) -> list[str]:
    """Return the first column of the table with this heading."""
    return [row[0].strip("`") for row in table(PAGE, head)]


def refusal(description: str) -> str:
    with pytest.raises(BadStorageArgument) as refused:
        storage_from_string(description, Clock(), SteppedThreads(), MemoryLimit())
    return str(refused.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_refusal_of_a_faulty_plugin_is_in_the_table(package_folder: Path, fault: str) -> None:
    entry_point, lines = FAULTS[fault]
    install(package_folder, f"acme = {entry_point}", name="kestrel-acme", version="1.0")
    module(package_folder, lines, name="kestrel_acme")
    sentence = refusal("acme:")
    assert sentence.startswith(FOUND)
    rows = [row for row in beginnings("sentence goes on") if sentence.removeprefix(FOUND).startswith(row)]
    assert rows == [beginnings("sentence goes on")[list(FAULTS).index(fault)]]


def test_table_lists_only_real_refusals() -> None:
    assert len(beginnings("sentence goes on")) == len(FAULTS)
    assert f"`{FOUND}`" in PAGE


def test_refusal_of_a_missing_plugin_is_in_the_table(package_folder: Path) -> None:
    sentences = [refusal("acme"), refusal("acme:")]
    install(package_folder, f"acme = {FACTORY}", name="kestrel-acme", version="1.0")
    install(package_folder, f"acme = {FACTORY}", name="acme", version="1.0")
    sentences.append(refusal("acme:"))
    next(package_folder.glob("acme-1.0.dist-info/entry_points.txt")).write_bytes(b"\xff")
    sentences.append(refusal("acme:"))
    rows = beginnings("sentence begins")
    assert [sentence[: len(row)] for sentence, row in zip(sentences, rows, strict=True)] == rows


def test_table_lists_the_capabilities() -> None:
    assert sorted(beginnings("capability")) == sorted(CAPABILITIES)


def test_plugin_without_faults_works(package_folder: Path) -> None:
    install(package_folder, f"acme = {FACTORY}", name="kestrel-acme", version="1.0")
    module(package_folder, name="kestrel_acme")
    assert refusal("acme:?colour=red") == "acme: takes no options, and says so"


@pytest.mark.parametrize(("file", "excerpt"), EXCERPTS, ids=[excerpt.split("\n")[0].strip() for _, excerpt in EXCERPTS])
def test_excerpt_is_the_code_of_the_example(file: str, excerpt: str) -> None:
    assert excerpt in (EXAMPLES / "storage-sqlite" / file).read_text()


def test_page_has_the_complete_sqlite_plugin() -> None:
    missing = (EXAMPLES / "storage-sqlite" / PLUGIN).read_text()
    for file, excerpt in EXCERPTS:
        if file == PLUGIN:
            missing = missing.replace(excerpt, "", 1)
    assert missing.strip() == ""


@pytest.mark.parametrize("file", ["setup.cfg", "pyproject.toml"])
def test_page_has_the_package_files_of_the_plugin(file: str) -> None:
    assert f"\n{(EXAMPLES / 'storage-sqlite' / file).read_text()}```" in PAGE


def test_page_has_at_most_4500_words_beside_table_lines() -> None:
    assert len([word for word in PAGE.split() if re.search(r"\w", word)]) <= 4500
