"""Storage plugins of other distributions: their discovery, loading and checked factories. Each error is one sentence.

Plugins are entry points of the group ``kestrel.storage_backends``. Drop-ins are also plugins: objects that provide
`IPlugin` and `IStorageFactory`, in modules of folders ``twisted/plugins``. Plugins are looked for only on request, and
an entry point is imported only if its storage is used. So a broken plugin does not affect a server without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple

from twisted.internet.interfaces import IReactorTime
from twisted.plugin import IPlugin
from twisted.python.modules import getModule
from zope.interface import implementer
from zope.interface.exceptions import BrokenImplementation, BrokenMethodImplementation, DoesNotImplement, Invalid
from zope.interface.interface import InterfaceClass
from zope.interface.verify import verifyObject

from kestrel.errors import BadStorageArgument, BrokenStoragePlugin
from kestrel.storage.failures import describe_error
from kestrel.storage.interfaces import CAPABILITIES, InThread, IStorage, IStorageFactory
from kestrel.storage.total_memory import MemoryLimit

FAULTS: Final = (Exception, SystemExit)
"""Errors that a plugin's code may raise. A module that calls `sys.exit` on import must not stop the server."""


class Plugin:
    """A storage that was found under a name.

    `found` is its entry point, or the factory itself in a drop-in, whose module has been imported already. `origin`
    says where it was found, for messages. `reference` names the object.
    """

    def __init__(self, name: str, origin: str, reference: str, found: object) -> None:
        self.name = name
        self.origin = origin
        self.reference = reference
        self.found = found

    def __str__(self) -> str:
        return f"storage {self.name!r} of {self.origin}"

    def load(self) -> object:
        """Return the object that should be a factory. Raises `BrokenStoragePlugin`."""
        return _load_entry_point(self.found, self) if isinstance(self.found, EntryPoint) else self.found

    def broken(self, why: str) -> BrokenStoragePlugin:
        """Return the error that says that this plugin cannot be used, and why."""
        return BrokenStoragePlugin(f"{self} cannot be used: {why}")

    @contextmanager
    def wrapping_errors(self, what_fails: str) -> Iterator[None]:
        """Turn any error in the block into `BrokenStoragePlugin`, which says that `what_fails` failed."""
        try:
            yield
        except BrokenStoragePlugin:
            raise
        except FAULTS as error:
            raise self.broken(f"{what_fails}: {describe_error(error)}") from error


def _load_entry_point(entry: EntryPoint, plugin: Plugin) -> object:
    """Import the object that an entry point names. If it is a class that is not a factory itself, call it."""
    if entry.pattern.match(entry.value) is None:
        raise plugin.broken(f"its entry point {entry.value!r} does not name an object; write it as module:object")
    with plugin.wrapping_errors(f"{entry.module} cannot be imported"):
        found: object = import_module(entry.module)
    for word in filter(None, (entry.attr or "").split(".")):
        with plugin.wrapping_errors(f"{plugin.reference} cannot be looked up"):
            if not hasattr(found, word):
                raise plugin.broken(f"{entry.module} has no {entry.attr}")
            found = getattr(found, word)
    if isinstance(found, type) and not IStorageFactory.providedBy(found):
        with plugin.wrapping_errors(f"{plugin.reference} cannot be created"):
            found = found()
    return found


@implementer(IStorageFactory)
class PluginFactory:
    """The checked factory of a plugin (`IStorageFactory`). Raises `BrokenStoragePlugin` if the plugin has none."""

    def __init__(self, plugin: Plugin) -> None:
        factory: Any = plugin.load()
        with plugin.wrapping_errors(f"{plugin.reference} cannot be inspected"):
            wrong = _contract_problem(factory, plugin)
            if wrong:
                raise plugin.broken(wrong)
            self.help: str = factory.help
            self.capabilities: Set[str] = factory.capabilities
            self.unused_settings: Set[str] = getattr(factory, "unused_settings", frozenset())
            self.largest_used: Mapping[str, int] = getattr(factory, "largest_used", {})
        self.name = plugin.name
        self.origin = plugin.origin
        self._plugin = plugin
        self._factory = factory

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> IStorage:
        """Return a storage. Raises `BadStorageArgument` with the factory's own message, or with one about its error."""
        try:
            storage: IStorage = self._factory.storage(argument, options, clock, in_thread, memory)
        except BadStorageArgument:
            raise
        except FAULTS as error:
            raise self._plugin.broken(f"its factory cannot create a storage: {describe_error(error)}") from error
        with self._plugin.wrapping_errors("the storage from its factory cannot be inspected"):
            missing = _missing_members(IStorage, storage)
            if missing:
                raise self._plugin.broken(f"the object from its factory is not an IStorage: {missing}")
        return storage


def _contract_problem(factory: Any, plugin: Plugin) -> str:
    """Return how the object violates the contract for the plugin's factory, or ""."""
    missing = _missing_members(IStorageFactory, factory)
    if missing:
        return f"{plugin.reference} is not an IStorageFactory: {missing}"
    if factory.name != plugin.name:
        return f"its factory has another name, {factory.name!r}"
    if not isinstance(factory.help, str):
        return "its help is not a string"
    if not isinstance(factory.capabilities, Set):
        return "its capabilities are not a set"
    unknown = sorted(str(each) for each in factory.capabilities if each not in CAPABILITIES)
    if unknown:
        return f"this release knows no capability {', '.join(unknown)}; it knows {', '.join(sorted(CAPABILITIES))}"
    unused: object = getattr(factory, "unused_settings", frozenset())
    if not isinstance(unused, Set) or not all(isinstance(name, str) for name in unused):
        return "its unused_settings are not a set of names"
    largest: object = getattr(factory, "largest_used", {})
    if not isinstance(largest, Mapping) or not all(
        isinstance(name, str) and name.endswith("_bytes") and isinstance(bound, int) for name, bound in largest.items()
    ):
        return "its largest_used does not map settings in bytes to numbers"
    return ""


def _missing_members(interface: InterfaceClass, candidate: object) -> str:
    """Describe on one line how `candidate` differs from the interface. Return "" if it provides all members.

    Raises the errors that its attributes raise.
    """
    try:
        verifyObject(interface, candidate)
    except Invalid as error:
        return ", ".join(map(_describe, getattr(error, "exceptions", (error,))))
    return ""


def _describe(error: Invalid) -> str:
    if isinstance(error, DoesNotImplement):
        return "it does not declare the interface"
    if isinstance(error, BrokenImplementation):
        return f"it has no {getattr(error.name, '__name__', error.name)}"
    if isinstance(error, BrokenMethodImplementation):
        return f"{getattr(error.method, '__name__', error.method)}: {error.mess}"
    return " ".join(str(error).split())


# Discovery.

GROUP: Final = "kestrel.storage_backends"
"""The group of entry points. The name of an entry point is the word before the colon of a description."""


class PluginList(NamedTuple):
    """All plugins that were found."""

    usable: Sequence[PluginFactory]
    """Plugins that can be used, in order of their names."""
    ignored: Sequence[str]
    """Messages about plugins whose name belongs to another storage."""
    broken: Sequence[str]
    """Messages about plugins that cannot be used."""


def plugin_named(name: str, built_in: Collection[str]) -> PluginFactory:
    """Return the factory of the plugin with that name. The caller checks the built-in storages first.

    Raises `BadStorageArgument` if there is none, or `BrokenStoragePlugin` if it cannot be used. `built_in` is listed in
    the first message.
    """
    from_entry_points = _entry_point_plugins()
    matches: Sequence[Plugin] = [plugin for plugin in from_entry_points if plugin.name == name]
    if not matches:
        from_drop_ins, broken = _drop_ins()
        matches = [plugin for plugin in from_drop_ins if plugin.name == name]
        if not matches:
            known = sorted({*built_in, *(plugin.name for plugin in (*from_entry_points, *from_drop_ins))})
            raise BadStorageArgument(_unknown_name_message(name, known, broken))
    return PluginFactory(_single(matches))


def list_plugins(built_in: Collection[str]) -> PluginList:
    """Return all plugins. Imports all of them, and raises nothing."""
    from_drop_ins, broken = _drop_ins()
    from_entry_points: Sequence[Plugin] = ()
    try:
        from_entry_points = _entry_point_plugins()
    except BrokenStoragePlugin as error:
        broken.append(str(error))
    ignored = []
    by_name: dict[str, list[Plugin]] = defaultdict(list)
    entry_point_names = {plugin.name for plugin in from_entry_points}
    for plugin in (*from_entry_points, *from_drop_ins):
        if plugin.name in built_in:
            ignored.append(f"{plugin}: a built-in storage has that name")
        elif plugin in from_drop_ins and plugin.name in entry_point_names:
            ignored.append(f"{plugin}: an installed distribution has one of that name")
        else:
            by_name[plugin.name].append(plugin)
    usable = []
    for _, plugins in sorted(by_name.items()):
        try:
            usable.append(PluginFactory(_single(plugins)))
        except BrokenStoragePlugin as error:
            broken.append(str(error))
    return PluginList(usable, ignored, broken)


def _unknown_name_message(name: str, known: Sequence[str], broken: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    sentence = f"there is no storage {name!r}; there are {', '.join(known)}"
    if close:
        sentence += f" (did you mean {close[0]}?)"
    return "; ".join([f"{sentence}; twistd kestrel --help-storage lists them", *broken])


def _single(plugins: Sequence[Plugin]) -> Plugin:
    """Return the only plugin. Raises `BrokenStoragePlugin` if there are several, because any of them may be meant."""
    if len(plugins) > 1:
        places = " and ".join(f"{plugin.origin} ({plugin.reference})" for plugin in plugins)
        raise BrokenStoragePlugin(f"there is more than one storage {plugins[0].name!r}: {places}; remove all but one")
    return plugins[0]


def _entry_point_plugins() -> list[Plugin]:
    try:
        return [Plugin(entry.name, _distribution_of(entry), entry.value, entry) for entry in entry_points(group=GROUP)]
    except FAULTS as error:  # the metadata of all distributions is read, and may be damaged
        sentence = f"the entry points of what is installed cannot be read: {describe_error(error)}"
        raise BrokenStoragePlugin(sentence) from error


def _distribution_of(entry: EntryPoint) -> str:
    words = () if entry.dist is None else (entry.dist.name, entry.dist.version)
    return " ".join(filter(None, words)) or "a distribution without a name"


def _drop_ins() -> tuple[list[Plugin], list[str]]:
    """Return the drop-ins, and messages about modules that cannot be imported.

    `twisted.plugin.getPlugins` finds the same objects, but logs failed imports. The server looks for its storage before
    it has a log, so tracebacks would go to stderr.
    """
    package = import_module("twisted.plugins")
    found: dict[int, Plugin] = {}  # a module may have imported the object of another
    broken = []
    for module in getModule(package.__name__).iterModules():
        origin = f"the drop-in {module.filePath.path}"
        try:
            for attribute, value in vars(import_module(module.name)).items():
                if IPlugin.providedBy(value) and IStorageFactory.providedBy(value):
                    plugin = Plugin(str(value.name), origin, f"{module.name}:{attribute}", value)
                    found.setdefault(id(value), plugin)
        except FAULTS as error:
            broken.append(f"{origin} cannot be used: {describe_error(error)}")
    return list(found.values()), broken
