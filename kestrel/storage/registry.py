"""The built-in storages, and the creation of a storage from its description ``name:argument?option=value``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.config.units import parse_size
from kestrel.errors import BadStorageArgument
from kestrel.storage.folder_resources import RESERVE_BYTES
from kestrel.storage.interfaces import InThread, IStorage, IStorageFactory
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.memory import MemoryStorageFactory
from kestrel.storage.plugins import plugin_named
from kestrel.storage.postgres.factory import PostgresStorageFactory
from kestrel.storage.scroll.queue import WINDOW_BYTES
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.storage.total_memory import MemoryLimit


class _FolderOptions:
    """The folder and the options in the description of a storage that keeps queues in a folder.

    Raises `BadStorageArgument` if the folder is missing, or an option is not in `known` or not valid.
    """

    def __init__(self, storage: str, argument: str, options: Mapping[str, str], known: Collection[str]) -> None:
        if not argument:
            raise BadStorageArgument(f"{storage}: needs a folder, as in {storage}:/var/spool/kestrel")
        unknown = sorted(set(options) - set(known))
        if unknown:
            knows = ", ".join(sorted(known))
            raise BadStorageArgument(f"{storage}: has no option {', '.join(unknown)}; it knows {knows}")
        self.folder = _path(argument.rstrip("/") or "/")
        self.reserve_bytes = RESERVE_BYTES
        reserve = options.get("reserve")
        if reserve is not None:
            try:
                self.reserve_bytes = int(reserve) if reserve.isdigit() else parse_size(reserve)
            except ValueError as error:
                raise BadStorageArgument(f"{storage}: reserve: {error}") from error


def _path(argument: str) -> bytes:
    return argument.encode("utf-8", "surrogateescape")


@implementer(IStorageFactory)
class JournalStorageFactory:
    """The factory for ``journal:FOLDER`` (`IStorageFactory`)."""

    name = "journal"
    help = (
        "journal:FOLDER[?reserve=SIZE]  keeps queues in Kestrel's journal files in FOLDER. reserve (16MiB) is disk"
        " space that is released when the disk is full, so that items can still be taken."
    )
    capabilities = frozenset({"durable", "errors_kept", "order_kept"})

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> JournalStorage:
        of = _FolderOptions(self.name, argument, options, {"reserve"})
        return JournalStorage(of.folder, clock, in_thread, reserve_bytes=of.reserve_bytes, memory=memory)


@implementer(IStorageFactory)
class ScrollStorageFactory:
    """The factory for ``scroll:FOLDER`` (`IStorageFactory`)."""

    name = "scroll"
    help = (
        "scroll:FOLDER[?archive=FOLDER][&reserve=SIZE]  keeps queues in libkestrel's journal files in FOLDER: an item"
        " is written once for a queue and all its children. Files that no queue needs any longer are moved to the"
        " archive folder, or erased if there is none. reserve (16MiB) is disk space for the writes that find the disk"
        " full."
    )
    capabilities = frozenset({"durable", "ranges", "shared_fanout", "errors_kept"})
    unused_settings = frozenset(
        {"max_journal_size_bytes", "min_journal_compact_delay_ms", "disable_aggressive_rewrites"}
    )
    """Queue settings that control rewrites of a journal. Writer files of a scroll are never rewritten to save space."""
    largest_used: Mapping[str, int] = {"max_memory_size_bytes": WINDOW_BYTES}
    """The largest effective value of a queue setting. A scroll never holds more of a queue in memory."""

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> ScrollStorage:
        of = _FolderOptions(self.name, argument, options, {"archive", "reserve"})
        archive = options.get("archive")
        if archive == "":
            raise BadStorageArgument("scroll: archive needs a folder, as in ?archive=/srv/archive")
        return ScrollStorage(
            of.folder,
            clock,
            in_thread,
            reserve_bytes=of.reserve_bytes,
            memory=memory,
            archive=None if archive is None else _path(archive),
        )


FACTORIES: Final[Mapping[str, IStorageFactory]] = {
    factory.name: factory
    for factory in (JournalStorageFactory(), ScrollStorageFactory(), MemoryStorageFactory(), PostgresStorageFactory())
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
