"""``journal:FOLDER``: the journal backend by its described string."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.config.units import parse_size
from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import InThread, IStorageFactory
from kestrel.storage.journal import JournalStorage
from kestrel.storage.total_memory import MemoryLimit


@implementer(IStorageFactory)
class JournalStorageFactory:
    """``journal:FOLDER`` (`IStorageFactory`)."""

    name = "journal"
    help = (
        "journal:FOLDER[?reserve=SIZE]  keeps queues in Kestrel's journal files in FOLDER. reserve (16MiB) is disk"
        " space put by, so that a full disk still takes the writes that found it full."
    )
    capabilities = frozenset({"durable", "errors_kept"})

    def storage(
        self,
        argument: str,
        options: Mapping[str, str],
        clock: IReactorTime,
        in_thread: InThread,
        memory: MemoryLimit,
    ) -> JournalStorage:
        """A storage over that folder; nothing is touched before it is started."""
        if not argument:
            raise BadStorageArgument("journal: needs a folder, as in journal:/var/spool/kestrel")
        unknown = sorted(set(options) - {"reserve"})
        if unknown:
            raise BadStorageArgument(f"journal: has no option {', '.join(unknown)}; it knows reserve")
        try:
            reserve = options.get("reserve", "16MiB")
            reserve_bytes = int(reserve) if reserve.isdigit() else parse_size(reserve)
        except ValueError as error:
            raise BadStorageArgument(f"journal: reserve: {error}") from error
        folder = argument.rstrip("/") or "/"
        path = folder.encode("utf-8", "surrogateescape")
        return JournalStorage(path, clock, in_thread, reserve_bytes=reserve_bytes, memory=memory)
