"""Storages of other distributions are found, and whatever is wrong with one is told in a sentence of its own."""

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
    """The sentence with which a description is refused: one line."""
    with pytest.raises(BadStorageArgument) as refused:
        described(description)
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence


# Found.


@pytest.mark.parametrize("entry_point", ["acme:AcmeFactory", "acme:factory", "acme:nested.factory"])
def test_an_entry_point_names_a_factory_or_a_class_that_makes_one(folder: Path, entry_point: str) -> None:
    install(folder, f"acme = {entry_point}")
    module(folder, "factory = AcmeFactory()", "class nested: factory = factory")
    assert isinstance(described("acme:"), MemoryStorage)


def test_a_drop_in_is_found_by_the_name_of_its_factory(folder: Path) -> None:
    drop_in(folder, "acme_dropin", ACME + "\nplugin = AcmeFactory()\n")
    assert isinstance(described("acme:"), MemoryStorage)


def test_a_factory_in_a_drop_in_that_says_not_to_be_a_plugin_is_none(folder: Path) -> None:
    source = ACME.replace("@implementer(IStorageFactory, IPlugin)", "@implementer(IStorageFactory)")
    drop_in(folder, "acme_dropin", source + "\nplugin = AcmeFactory()\n")
    assert refusal_of("acme:").startswith("there is no storage 'acme'; there are journal, memory, scroll;")


def test_a_factory_that_two_drop_ins_have_in_common_is_one(folder: Path) -> None:
    drop_in(folder, "acme_dropin", ACME + "\nplugin = AcmeFactory()\n")
    drop_in(folder, "acme_same", "from twisted.plugins.acme_dropin import plugin\n")
    assert isinstance(described("acme:"), MemoryStorage)


def test_a_plugin_is_held_to_the_contract_of_a_factory(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    module(folder)
    factory = plugin_named("acme", FACTORIES)
    assert verifyObject(IStorageFactory, factory)
    assert (factory.name, factory.help) == ("acme", "acme:  keeps queues nowhere for long.")
    assert factory.capabilities == {"errors_kept"}


def test_the_settings_that_a_plugin_does_not_go_by_are_known(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    module(folder)
    assert settings_unused_by("acme:here?x=y") == {"max_journal_size_bytes"}
    assert settings_bounded_by("acme:here?x=y") == {"max_memory_size_bytes": 1024}


def test_a_plugin_that_says_nothing_of_settings_goes_by_all_of_them(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    module(folder, "del AcmeFactory.unused_settings, AcmeFactory.largest_used")
    assert settings_unused_by("acme:") == frozenset()
    assert settings_bounded_by("acme:") == {}


@pytest.mark.parametrize("description", ["journal:/somewhere", "scroll:/somewhere", "memory:"])
def test_nothing_is_looked_for_where_the_storage_is_built_in(description: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    for way in ("entry_points", "getModule"):
        monkeypatch.setattr(plugins, way, lambda *args, way=way, **options: looked.append(way))
    described(description)
    settings_unused_by(description)
    settings_bounded_by(description)
    assert looked == []


def test_a_plugin_that_nobody_asks_for_is_not_imported(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory\nother = other:Factory")
    module(folder)
    module(folder, "raise SystemExit('the whole process')", name="other")
    assert isinstance(described("acme:"), MemoryStorage)
    assert "other" not in sys.modules


# One of each name.


def test_a_plugin_never_takes_the_place_of_a_built_in_storage_and_the_list_says_so(folder: Path) -> None:
    install(folder, "memory = acme:AcmeFactory")
    module(folder, "AcmeFactory.name = 'memory'")
    drop_in(folder, "acme_dropin", ACME + "\nAcmeFactory.name = 'journal'\nplugin = AcmeFactory()\n")
    assert settings_unused_by("memory:") == frozenset()
    found = list_plugins(FACTORIES)
    assert (found.usable, found.broken) == ([], [])
    assert found.ignored == [
        "storage 'memory' of acme-storage 1.2: a built-in storage has that name",
        f"storage 'journal' of the drop-in {folder}/twisted/plugins/acme_dropin.py: a built-in storage has that name",
    ]


def test_an_entry_point_wins_over_a_drop_in_of_the_same_name_and_the_list_says_so(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    module(folder)
    drop_in(folder, "acme_dropin", ACME + "\nplugin = AcmeFactory()\n")
    assert plugin_named("acme", FACTORIES).origin == "acme-storage 1.2"
    found = list_plugins(FACTORIES)
    assert [factory.origin for factory in found.usable] == ["acme-storage 1.2"]
    path = folder / "twisted" / "plugins" / "acme_dropin.py"
    assert found.ignored == [f"storage 'acme' of the drop-in {path}: an installed distribution has one of that name"]


def test_two_distributions_with_the_same_name_are_an_error_that_names_both(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory\nfine = acme:Fine")
    install(folder, "acme = elsewhere:Factory", name="other", version="3")
    module(folder, "class Fine(AcmeFactory): name = 'fine'")
    assert isinstance(described("fine:"), MemoryStorage)
    sentence = refusal_of("acme:")
    assert sentence.startswith("there is more than one storage 'acme': ")
    assert {"acme-storage 1.2 (acme:AcmeFactory)", "other 3 (elsewhere:Factory)"} == set(
        sentence.removeprefix("there is more than one storage 'acme': ")
        .removesuffix("; remove all but one")
        .split(" and ")
    )
    found = list_plugins(FACTORIES)
    assert ([factory.name for factory in found.usable], found.broken) == (["fine"], [sentence])


def test_two_drop_ins_with_the_same_name_are_an_error_that_names_both(folder: Path) -> None:
    paths = [drop_in(folder, name, ACME + "\nplugin = AcmeFactory()\n") for name in ("acme_one", "acme_two")]
    sentence = refusal_of("acme:")
    assert all(f"the drop-in {path} (twisted.plugins.{path.stem}:plugin)" in sentence for path in paths)


# Not found.


def test_a_name_that_is_none_is_told_with_those_that_there_are(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    drop_in(folder, "tape_dropin", ACME + "\nAcmeFactory.name = 'tape'\nplugin = AcmeFactory()\n")
    assert refusal_of("punch-cards:here") == (
        "there is no storage 'punch-cards'; there are acme, journal, memory, scroll, tape;"
        " twistd kestrel --help-storage lists them"
    )


@pytest.mark.parametrize(("name", "meant"), [("jurnal", "journal"), ("Scroll", "scroll"), ("acne", "acme")])
def test_a_name_that_is_nearly_one_is_told_which(folder: Path, name: str, meant: str) -> None:
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
def test_a_drop_in_that_cannot_be_imported_is_told_where_a_storage_is_missing(
    folder: Path, capfd: pytest.CaptureFixture[str], source: str, why: str
) -> None:
    path = drop_in(folder, "acme_dropin", source)
    sentence = f"the drop-in {path} cannot be used: {why}"
    assert f"; twistd kestrel --help-storage lists them; {sentence}" in refusal_of("acme:")
    assert [sentence in told for told in list_plugins(FACTORIES).broken] == [True]
    assert capfd.readouterr() == ("", "")


def test_a_drop_in_that_cannot_be_imported_is_nothing_to_the_others(folder: Path) -> None:
    drop_in(folder, "acme_broken", "import no_such_driver")
    drop_in(folder, "acme_dropin", ACME + "\nplugin = AcmeFactory()\n")
    assert isinstance(described("acme:"), MemoryStorage)


# Broken.

BROKEN = {
    "is not written as one": (
        "acme:is:wrong",
        "",
        "its entry point 'acme:is:wrong' does not name an object; write it as",
    ),
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
    "another name": ("acme:AcmeFactory", "AcmeFactory.name = 'tape'", "its factory has another name, 'tape'"),
    "a help that is not a string": ("acme:AcmeFactory", "AcmeFactory.help = None", "its help is not a string"),
    "an unknown capability": (
        "acme:AcmeFactory",
        "AcmeFactory.capabilities = frozenset({'durable', 'flying'})",
        "this release knows no capability flying; it knows durable, errors_kept, order_kept, ranges, shared_fanout",
    ),
    "capabilities that are a word": (
        "acme:AcmeFactory",
        "AcmeFactory.capabilities = 'durable'",
        "its capabilities are not a set",
    ),
    "unused settings that are a word": (
        "acme:AcmeFactory",
        "AcmeFactory.unused_settings = 'max_items'",
        "its unused_settings are not a set of names",
    ),
    "unused settings that are no names": (
        "acme:AcmeFactory",
        "AcmeFactory.unused_settings = {1}",
        "its unused_settings are not a set of names",
    ),
    "bounds that are no mapping": (
        "acme:AcmeFactory",
        "AcmeFactory.largest_used = 3",
        "its largest_used does not map settings in bytes to numbers",
    ),
    "bounds of what is not in bytes": (
        "acme:AcmeFactory",
        "AcmeFactory.largest_used = {'expire_to_queue': 3}",
        "its largest_used does not map settings in bytes to numbers",
    ),
    "bounds that are no numbers": (
        "acme:AcmeFactory",
        "AcmeFactory.largest_used = {'max_memory_size_bytes': '1KiB'}",
        "its largest_used does not map settings in bytes to numbers",
    ),
}
"""An entry point, what stands in the module besides, and how the sentence goes on."""


@pytest.mark.parametrize(("entry_point", "lines", "why"), BROKEN.values(), ids=BROKEN)
def test_a_plugin_that_is_broken_is_told_in_a_sentence_with_its_distribution(
    folder: Path, entry_point: str, lines: str, why: str
) -> None:
    install(folder, f"acme = {entry_point}")
    module(folder, lines)
    sentence = refusal_of("acme:")
    assert sentence.startswith(f"storage 'acme' of acme-storage 1.2 cannot be used: {why}")
    found = list_plugins(FACTORIES)
    assert (found.usable, found.ignored, found.broken) == ([], [], [sentence])


@pytest.mark.parametrize(("entry_point", "lines", "why"), BROKEN.values(), ids=BROKEN)
def test_what_settings_a_broken_plugin_goes_by_is_no_question(
    folder: Path, entry_point: str, lines: str, why: str
) -> None:
    install(folder, f"acme = {entry_point}")
    module(folder, lines)
    assert settings_unused_by("acme:") == frozenset()
    assert settings_bounded_by("acme:") == {}


def test_a_broken_drop_in_is_told_with_its_file(folder: Path) -> None:
    path = drop_in(folder, "acme_dropin", ACME + "\nAcmeFactory.capabilities = {'flying'}\nplugin = AcmeFactory()\n")
    sentence = f"storage 'acme' of the drop-in {path} cannot be used: this release knows no capability flying"
    assert refusal_of("acme:").startswith(sentence)


@pytest.mark.parametrize("name", ["3", "None"])
def test_a_drop_in_whose_name_is_no_text_is_told_with_its_file(folder: Path, name: str) -> None:
    path = drop_in(folder, "acme_dropin", ACME + f"\nAcmeFactory.name = {name}\nplugin = AcmeFactory()\n")
    sentence = f"storage '{name}' of the drop-in {path} cannot be used: its factory has another name, {name}"
    assert list_plugins(FACTORIES).broken == [sentence]


def test_a_distribution_without_a_name_is_called_that(folder: Path) -> None:
    install(folder, "acme = nowhere:x")
    next(folder.glob("*.dist-info/METADATA")).unlink()
    assert refusal_of("acme:").startswith("storage 'acme' of a distribution without a name cannot be used: ")


def test_entry_points_that_cannot_be_read_are_told(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    next(folder.glob("*.dist-info/entry_points.txt")).write_bytes(b"[kestrel.storage_backends]\n\xff = x:y\n")
    sentence = refusal_of("acme:")
    assert sentence.startswith("the entry points of what is installed cannot be read: UnicodeDecodeError: ")
    assert list_plugins(FACTORIES).broken == [sentence]
    assert isinstance(described("memory:"), MemoryStorage)


# Asked for a storage.


def test_the_factorys_own_sentence_about_arguments_is_left_as_it_is(folder: Path) -> None:
    install(folder, "acme = acme:AcmeFactory")
    module(folder)
    assert refusal_of("acme:?colour=red") == "acme: takes no options, and says so"


MAKES = {
    "a fault": (
        "raise RuntimeError('no\\nroom')",
        "its factory cannot create a storage: RuntimeError: no room",
    ),
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
"""What stands in a factory's `storage`, and how the sentence goes on."""


@pytest.mark.parametrize(("body", "why"), MAKES.values(), ids=MAKES)
def test_a_factory_that_makes_no_storage_is_told_in_a_sentence_with_its_distribution(
    folder: Path, body: str, why: str
) -> None:
    install(folder, "acme = acme:Factory")
    arguments = "self, argument, options, clock, in_thread, memory"
    module(folder, "class Factory(AcmeFactory):", f"    def storage({arguments}):", f"        {body}")
    with pytest.raises(BrokenStoragePlugin) as refused:
        described("acme:")
    assert str(refused.value).startswith(f"storage 'acme' of acme-storage 1.2 cannot be used: {why}")
