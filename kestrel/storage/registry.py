"""Creation of a storage from its description ``name:argument?option=value&option=value``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl

from twisted.internet.interfaces import IReactorTime

from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import InThread, IStorage, IStorageFactory
from kestrel.storage.journal.factory import JournalStorageFactory
from kestrel.storage.memory import MemoryStorageFactory
from kestrel.storage.plugins import plugin_named
from kestrel.storage.scroll.factory import ScrollStorageFactory
from kestrel.storage.total_memory import MemoryLimit

FACTORIES: Final[Mapping[str, IStorageFactory]] = {
    factory.name: factory for factory in (JournalStorageFactory(), ScrollStorageFactory(), MemoryStorageFactory())
}
"""The built-in storages. A plugin cannot replace one, and is not looked for if a built-in one is used."""


def storage_from_string(description: str, clock: IReactorTime, in_thread: InThread, memory: MemoryLimit) -> IStorage:
    """Return the storage of that description, without touching its medium. Raises `BadStorageArgument`."""
    name, colon, rest = description.partition(":")
    if not colon:
        raise BadStorageArgument(f"{description!r} names no storage; write it as in journal:/var/spool/kestrel")
    factory = _factory_named(name)
    argument, _, query = rest.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise BadStorageArgument(f"the options {query!r} cannot be read; write them as in ?reserve=16MiB") from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise BadStorageArgument(f"{query!r} names an option twice")
    return factory.storage(argument, options, clock, in_thread, memory)


def settings_unused_by(description: str) -> Collection[str]:
    """Return the names of queue settings, as in `QueueSettings`, that have no effect on that storage."""
    return getattr(_factory_of(description), "unused_settings", frozenset())


def settings_bounded_by(description: str) -> Mapping[str, int]:
    """Return the values of queue settings, by name, above which they have no further effect on that storage."""
    return getattr(_factory_of(description), "largest_used", {})


def _factory_named(name: str) -> IStorageFactory:
    return FACTORIES.get(name) or plugin_named(name, FACTORIES)


def _factory_of(description: str) -> IStorageFactory | None:
    """Return the factory, or None if it cannot be loaded. Using the storage then reports the reason."""
    try:
        return _factory_named(description.partition(":")[0])
    except BadStorageArgument:
        return None
