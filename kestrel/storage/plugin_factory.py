"""A wrapper for the factory of a plugin, which checks the contract and turns all errors into messages."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.errors import BadStorageArgument
from kestrel.storage.capabilities import CAPABILITIES
from kestrel.storage.failures import describe_error
from kestrel.storage.interface_check import missing_members
from kestrel.storage.interfaces import InThread, IStorage, IStorageFactory
from kestrel.storage.plugin import FAULTS, Plugin
from kestrel.storage.total_memory import MemoryLimit


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
        self,
        argument: str,
        options: Mapping[str, str],
        clock: IReactorTime,
        in_thread: InThread,
        memory: MemoryLimit,
    ) -> IStorage:
        """Return a storage. Raises `BadStorageArgument` with the factory's own message, or with one about its error."""
        try:
            storage: IStorage = self._factory.storage(argument, options, clock, in_thread, memory)
        except BadStorageArgument:
            raise
        except FAULTS as error:
            raise self._plugin.broken(f"its factory cannot create a storage: {describe_error(error)}") from error
        with self._plugin.wrapping_errors("the storage from its factory cannot be inspected"):
            missing = missing_members(IStorage, storage)
            if missing:
                raise self._plugin.broken(f"the object from its factory is not an IStorage: {missing}")
        return storage


def _contract_problem(factory: Any, plugin: Plugin) -> str:
    """Return how the object violates the contract for the plugin's factory, or ""."""
    missing = missing_members(IStorageFactory, factory)
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
