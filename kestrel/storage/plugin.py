"""A storage plugin of another distribution: its loading, and its checked factory. Each error is one sentence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime
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


class Plugin(ABC):
    """A storage that was found under a name.

    `origin` says where it was found, for messages. `reference` names the object.
    """

    def __init__(self, name: str, origin: str, reference: str) -> None:
        self.name = name
        self.origin = origin
        self.reference = reference

    def __str__(self) -> str:
        return f"storage {self.name!r} of {self.origin}"

    @abstractmethod
    def load(self) -> object:
        """Return the object that should be a factory. Raises `BrokenStoragePlugin`."""

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


class EntryPointPlugin(Plugin):
    """A plugin of an entry point, which names a factory or a class to call without arguments."""

    def __init__(self, entry: EntryPoint) -> None:
        words = () if entry.dist is None else (entry.dist.name, entry.dist.version)
        origin = " ".join(filter(None, words)) or "a distribution without a name"
        super().__init__(entry.name, origin, entry.value)
        self._entry = entry

    def load(self) -> object:
        """Import the object. If it is a class that is not a factory itself, call it."""
        entry = self._entry
        if entry.pattern.match(entry.value) is None:
            raise self.broken(f"its entry point {entry.value!r} does not name an object; write it as module:object")
        with self.wrapping_errors(f"{entry.module} cannot be imported"):
            found: object = import_module(entry.module)
        for word in filter(None, (entry.attr or "").split(".")):
            with self.wrapping_errors(f"{self.reference} cannot be looked up"):
                if not hasattr(found, word):
                    raise self.broken(f"{entry.module} has no {entry.attr}")
                found = getattr(found, word)
        if isinstance(found, type) and not IStorageFactory.providedBy(found):
            with self.wrapping_errors(f"{self.reference} cannot be created"):
                found = found()
        return found


class DropInPlugin(Plugin):
    """A factory in a module of a folder ``twisted/plugins``. The module has been imported already."""

    def __init__(self, name: str, origin: str, reference: str, factory: object) -> None:
        super().__init__(name, origin, reference)
        self._factory = factory

    def load(self) -> object:
        """Return the factory."""
        return self._factory


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
