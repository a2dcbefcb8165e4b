"""Which storage a described string means: ``name:argument?option=value&option=value``."""

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
"""Those that are built in. Nobody else's can take the place of one, and with one nobody else's is looked for."""


def storage_from_string(description: str, clock: IReactorTime, in_thread: InThread, memory: MemoryLimit) -> IStorage:
    """The storage of that description; touches nothing yet. Raises `BadStorageArgument` with a sentence."""
    name, colon, rest = description.partition(":")
    if not colon:
        raise BadStorageArgument(f"{description!r} names no storage; write it as in journal:/var/spool/kestrel")
    factory = _factory_named(name)
    argument, _, query = rest.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise BadStorageArgument(f"{query!r} are no options; write them as in ?reserve=16MiB") from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise BadStorageArgument(f"{query!r} names an option twice")
    return factory.storage(argument, options, clock, in_thread, memory)


def settings_unused_by(description: str) -> Collection[str]:
    """The settings of a queue, as `QueueSettings` names them, that the storage of that description does not go by."""
    return getattr(_factory_of(description), "unused_settings", frozenset())


def settings_bounded_by(description: str) -> Mapping[str, int]:
    """The largest values of settings of a queue, by the same names, that the storage of that description goes by."""
    return getattr(_factory_of(description), "largest_used", {})


def _factory_named(name: str) -> IStorageFactory:
    return FACTORIES.get(name) or plugin_named(name, FACTORIES)


def _factory_of(description: str) -> IStorageFactory | None:
    """None where it cannot be had: who wants to use the storage is told why."""
    try:
        return _factory_named(description.partition(":")[0])
    except BadStorageArgument:
        return None
