"""Storage plugins of other distributions are found, and each error in one is reported in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from kestrel.errors import BadStorageArgument, BrokenStoragePlugin
from kestrel.storage import plugins
from kestrel.storage.interfaces import IStorage, IStorageFactory
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.plugins import list_plugins, plugin_named
from kestrel.storage.registry import FACTORIES, settings_bounded_by, settings_unused_by, storage_from_string
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.threads import SteppedThreads
from tests.storage.distributions import ACME, drop_in, install, module, on_the_path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on the path, for distributions and drop-ins."""
    with on_the_path(tmp_path):
        yield tmp_path


def described(description: str) -> IStorage:
    return storage_from_string(description, Clock(), SteppedThreads(), MemoryLimit())


def refusal_of(description: str) -> str:
    """Return the error message of a description. Fail if it has several lines."""
    with pytest.raises(BadStorageArgument) as refused:
        described(description)
    message = str(refused.value)
    assert "\n" not in message
    return message


def install_acme(folder: Path, *lines: str, entry_point: str = "acme:AcmeFactory") -> None:
    """Install the correct plugin with these additional lines."""
    install(folder, f"acme = {entry_point}")
    module(folder, *lines)


def drop_in_acme(folder: Path, line: str = "", name: str = "acme_dropin") -> Path:
    """Make a drop-in of the correct plugin with this additional line. Returns its path."""
    return drop_in(folder, name, f"{ACME}\n{line}\nplugin = AcmeFactory()\n")


# Finding plugins.


@pytest.mark.parametrize("entry_point", ["acme:AcmeFactory", "acme:factory", "acme:nested.factory"])
def test_entry_point_names_a_factory_or_its_class(folder: Path, entry_point: str) -> None:
    install_acme(folder, "factory = AcmeFactory()", "class nested: factory = factory", entry_point=entry_point)
    assert isinstance(described("acme:"), MemoryStorage)


def test_drop_in_is_found_by_the_name_of_its_factory(folder: Path) -> None:
    drop_in_acme(folder)
    assert isinstance(described("acme:"), MemoryStorage)


def test_drop_in_factory_without_iplugin_is_ignored(folder: Path) -> None:
    source = ACME.replace("@implementer(IStorageFactory, IPlugin)", "@implementer(IStorageFactory)")
    drop_in(folder, "acme_dropin", source + "\nplugin = AcmeFactory()\n")
    assert refusal_of("acme:").startswith("there is no storage 'acme'; there are journal, memory, postgres, scroll;")


def test_factory_shared_by_two_drop_ins_counts_once(folder: Path) -> None:
    drop_in_acme(folder)
    drop_in(folder, "acme_same", "from twisted.plugins.acme_dropin import plugin\n")
    assert isinstance(described("acme:"), MemoryStorage)


def test_plugin_provides_the_factory_interface(folder: Path) -> None:
    install_acme(folder)
    factory = plugin_named("acme", FACTORIES)
    assert verifyObject(IStorageFactory, factory)
    assert (factory.name, factory.help) == ("acme", "acme:  keeps queues nowhere for long.")
    assert factory.capabilities == {"errors_kept"}


def test_plugin_declares_unused_and_bounded_settings(folder: Path) -> None:
    install_acme(folder)
    assert settings_unused_by("acme:here?x=y") == {"max_journal_size_bytes"}
    assert settings_bounded_by("acme:here?x=y") == {"max_memory_size_bytes": 1024}


def test_plugin_uses_all_settings_by_default(folder: Path) -> None:
    install_acme(folder, "del AcmeFactory.unused_settings, AcmeFactory.largest_used")
    assert settings_unused_by("acme:") == frozenset()
    assert settings_bounded_by("acme:") == {}


@pytest.mark.parametrize("description", ["journal:/somewhere", "scroll:/somewhere", "memory:"])
def test_built_in_storage_needs_no_plugin_search(description: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[str] = []
    for search in ("entry_points", "getModule"):
        monkeypatch.setattr(plugins, search, lambda *args, search=search, **options: searches.append(search))
    described(description)
    settings_unused_by(description)
    settings_bounded_by(description)
    assert searches == []


def test_unused_plugin_is_not_imported(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory\nother = other:Factory")
    module(folder)
    module(folder, "raise SystemExit('the whole process')", name="other")
    assert isinstance(described("acme:"), MemoryStorage)
    assert "other" not in sys.modules


# Duplicate names.


def test_plugin_never_replaces_a_built_in_storage(folder: Path) -> None:
    install(folder, "memory = acme:AcmeFactory")
    module(folder, "AcmeFactory.name = 'memory'")
    path = drop_in_acme(folder, "AcmeFactory.name = 'journal'")
    assert settings_unused_by("memory:") == frozenset()
    found = list_plugins(FACTORIES)
    assert (found.usable, found.broken) == ([], [])
    assert found.ignored == [
        "storage 'memory' of acme-storage 1.2: a built-in storage has that name",
        f"storage 'journal' of the drop-in {path}: a built-in storage has that name",
    ]


def test_entry_point_wins_over_drop_in_of_same_name(folder: Path) -> None:
    install_acme(folder)
    path = drop_in_acme(folder)
    assert plugin_named("acme", FACTORIES).origin == "acme-storage 1.2"
    found = list_plugins(FACTORIES)
    assert [factory.origin for factory in found.usable] == ["acme-storage 1.2"]
    assert found.ignored == [f"storage 'acme' of the drop-in {path}: an installed distribution has one of that name"]


def test_error_names_both_distributions_of_a_duplicate_name(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory\nfine = acme:Fine")
    install(folder, "acme = elsewhere:Factory", name="other", version="3")
    module(folder, "class Fine(AcmeFactory): name = 'fine'")
    assert isinstance(described("fine:"), MemoryStorage)
    message, start, end = refusal_of("acme:"), "there is more than one storage 'acme': ", "; remove all but one"
    assert message.startswith(start) and message.endswith(end)
    origins = message.removeprefix(start).removesuffix(end).split(" and ")
    assert {*origins} == {"acme-storage 1.2 (acme:AcmeFactory)", "other 3 (elsewhere:Factory)"}
    found = list_plugins(FACTORIES)
    assert ([factory.name for factory in found.usable], found.broken) == (["fine"], [message])


def test_error_names_both_drop_ins_of_a_duplicate_name(folder: Path) -> None:
    paths = [drop_in_acme(folder, name=name) for name in ("acme_one", "acme_two")]
    message = refusal_of("acme:")
    assert all(f"the drop-in {path} (twisted.plugins.{path.stem}:plugin)" in message for path in paths)


# Unknown names.


def test_error_for_unknown_name_lists_all_storages(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    drop_in_acme(folder, "AcmeFactory.name = 'tape'", name="tape_dropin")
    assert refusal_of("punch-cards:here") == (
        "there is no storage 'punch-cards'; there are acme, journal, memory, postgres, scroll, tape;"
        " twistd kestrel --help-storage lists them"
    )


@pytest.mark.parametrize(("name", "meant"), [("jurnal", "journal"), ("Scroll", "scroll"), ("acne", "acme")])
def test_error_suggests_a_similar_name(folder: Path, name: str, meant: str) -> None:
    install(folder, "acme = acme:AcmeFactory")
    assert f"(did you mean {meant}?)" in refusal_of(f"{name}:")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_driver", "ModuleNotFoundError: No module named 'no_such_driver'"),
        ("raise ValueError('on\\ntwo lines')", "ValueError: on two lines"),
        ("raise SystemExit", "SystemExit"),
        ("def", "SyntaxError: invalid syntax (acme_dropin.py, line 1)"),
        (ACME + "\ndel AcmeFactory.name\nplugin = AcmeFactory()", "AttributeError: "),
    ],
)
def test_error_for_unknown_name_reports_broken_drop_ins(
    folder: Path, capfd: pytest.CaptureFixture[str], source: str, why: str
) -> None:
    path = drop_in(folder, "acme_dropin", source)
    message = f"the drop-in {path} cannot be used: {why}"
    assert f"; twistd kestrel --help-storage lists them; {message}" in refusal_of("acme:")
    (broken,) = list_plugins(FACTORIES).broken
    assert message in broken
    assert capfd.readouterr() == ("", "")


def test_broken_drop_in_does_not_hide_others(folder: Path) -> None:
    drop_in(folder, "acme_broken", "import no_such_driver")
    drop_in_acme(folder)
    assert isinstance(described("acme:"), MemoryStorage)


# Broken plugins.

BAD_NAMES = "its unused_settings are not a set of names"
BAD_BOUNDS = "its largest_used does not map settings in bytes to numbers"

BAD_ATTRIBUTES = {
    "name = 'tape'": "its factory has another name, 'tape'",
    "help = None": "its help is not a string",
    "capabilities = frozenset({'durable', 'flying'})": (
        "this release knows no capability flying; it knows durable, errors_kept, order_kept, ranges, shared_fanout"
    ),
    "capabilities = 'durable'": "its capabilities are not a set",
    "unused_settings = 'max_items'": BAD_NAMES,
    "unused_settings = {1}": BAD_NAMES,
    "largest_used = 3": BAD_BOUNDS,
    "largest_used = {'expire_to_queue': 3}": BAD_BOUNDS,
    "largest_used = {'max_memory_size_bytes': '1KiB'}": BAD_BOUNDS,
}
"""An attribute of the factory, and the start of the reason."""

BROKEN = {
    **{each: ("acme:AcmeFactory", f"AcmeFactory.{each}", why) for each, why in BAD_ATTRIBUTES.items()},
    "invalid syntax": ("acme:is:wrong", "", "its entry point 'acme:is:wrong' does not name an object; write it as"),
    "no such module": ("nowhere:x", "", "nowhere cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    "a module that raises": ("acme:x", "1 / 0", "acme cannot be imported: ZeroDivisionError: division by zero"),
    "a module that exits": ("acme:x", "raise SystemExit(3)", "acme cannot be imported: SystemExit: 3"),
    "no such object": ("acme:Factori", "", "acme has no Factori"),
    "no such object in an object": ("acme:AcmeFactory.x", "", "acme has no AcmeFactory.x"),
    "an object that cannot be looked up": (
        "acme:x",
        "def __getattr__(name): 1 / 0",
        "acme:x cannot be looked up: ZeroDivisionError: division by zero",
    ),
    "a class that takes an argument": (
        "acme:Needy",
        "class Needy:\n    def __init__(self, what): pass",
        "acme:Needy cannot be created: TypeError: ",
    ),
    "a class that raises our own error": (
        "acme:Needy",
        "class Needy:\n    def __init__(self): raise BadStorageArgument('set ACME_HOME')",
        "acme:Needy cannot be created: BadStorageArgument: set ACME_HOME",
    ),
    "a module for an object": (
        "acme",
        "",
        "acme is not an IStorageFactory: it does not declare the interface, it has no name, it has no help, it has no"
        " capabilities, it has no storage",
    ),
    "a method with other arguments": (
        "acme:Factory",
        "class Factory(AcmeFactory):\n    def storage(self): pass",
        "acme:Factory is not an IStorageFactory: storage: implementation doesn't allow enough arguments",
    ),
    "an attribute that raises": (
        "acme:Factory",
        "class Factory(AcmeFactory):\n    help = property(lambda self: 1 / 0)",
        "acme:Factory cannot be inspected: ZeroDivisionError: division by zero",
    ),
}
"""The entry point, an additional line of the module, and the start of the reason, by kind of error."""


@pytest.mark.parametrize(("entry_point", "line", "why"), BROKEN.values(), ids=BROKEN)
def test_error_of_broken_plugin_names_its_distribution(folder: Path, entry_point: str, line: str, why: str) -> None:
    install_acme(folder, line, entry_point=entry_point)
    assert settings_unused_by("acme:") == frozenset()
    assert settings_bounded_by("acme:") == {}
    message = refusal_of("acme:")
    assert message.startswith(f"storage 'acme' of acme-storage 1.2 cannot be used: {why}")
    found = list_plugins(FACTORIES)
    assert (found.usable, found.ignored, found.broken) == ([], [], [message])


def test_error_of_broken_drop_in_names_its_file(folder: Path) -> None:
    path = drop_in_acme(folder, "AcmeFactory.capabilities = {'flying'}")
    message = f"storage 'acme' of the drop-in {path} cannot be used: this release knows no capability flying"
    assert refusal_of("acme:").startswith(message)


@pytest.mark.parametrize("name", ["3", "None"])
def test_drop_in_name_that_is_no_text_is_reported(folder: Path, name: str) -> None:
    path = drop_in_acme(folder, f"AcmeFactory.name = {name}")
    message = f"storage '{name}' of the drop-in {path} cannot be used: its factory has another name, {name}"
    assert list_plugins(FACTORIES).broken == [message]


def test_distribution_without_metadata_is_reported_without_name(folder: Path) -> None:
    install(folder, "acme = nowhere:x")
    next(folder.glob("*.dist-info/METADATA")).unlink()
    assert refusal_of("acme:").startswith("storage 'acme' of a distribution without a name cannot be used: ")


def test_unreadable_entry_points_are_reported(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    next(folder.glob("*.dist-info/entry_points.txt")).write_bytes(b"[kestrel.storage_backends]\n\xff = x:y\n")
    message = refusal_of("acme:")
    assert message.startswith("the entry points of what is installed cannot be read: UnicodeDecodeError: ")
    assert list_plugins(FACTORIES).broken == [message]
    assert isinstance(described("memory:"), MemoryStorage)


# Creating the storage.


def test_argument_error_of_the_factory_is_passed_on(folder: Path) -> None:
    install_acme(folder)
    assert refusal_of("acme:?colour=red") == "acme: takes no options, and says so"


BROKEN_METHODS = {
    "a fault": ("raise RuntimeError('no\\nroom')", "its factory cannot create a storage: RuntimeError: no room"),
    "an exit": ("raise SystemExit", "its factory cannot create a storage: SystemExit"),
    "nothing": ("return None", "the object from its factory is not an IStorage: it does not declare the interface, "),
    "half a storage": (
        "half = MemoryStorage()\n        half.start = lambda: None\n        return half",
        "the object from its factory is not an IStorage: start: implementation doesn't allow enough arguments",
    ),
    "a storage that cannot be inspected": (
        "class Odd(MemoryStorage): refusal = property(lambda self: 1 / 0)\n        return Odd()",
        "the storage from its factory cannot be inspected: ZeroDivisionError: division by zero",
    ),
}
"""The body of a factory's `storage`, and the start of the reason, by kind of error."""


@pytest.mark.parametrize(("body", "why"), BROKEN_METHODS.values(), ids=BROKEN_METHODS)
def test_error_of_factory_that_makes_no_storage_names_its_distribution(folder: Path, body: str, why: str) -> None:
    method = f"    def storage(self, argument, options, clock, in_thread, memory):\n        {body}"
    install_acme(folder, "class Factory(AcmeFactory):", method, entry_point="acme:Factory")
    with pytest.raises(BrokenStoragePlugin) as refused:
        described("acme:")
    assert str(refused.value).startswith(f"storage 'acme' of acme-storage 1.2 cannot be used: {why}")
