"""The factory for ``scroll:FOLDER`` storage."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.errors import BadStorageArgument
from kestrel.storage.folder_options import folder_argument, refuse_other_options, reserve_option
from kestrel.storage.interfaces import InThread, IStorageFactory
from kestrel.storage.scroll.queue import WINDOW_BYTES
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.storage.total_memory import MemoryLimit


@implementer(IStorageFactory)
class ScrollStorageFactory:
    """The factory of the scroll backend (`IStorageFactory`)."""

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
        self,
        argument: str,
        options: Mapping[str, str],
        clock: IReactorTime,
        in_thread: InThread,
        memory: MemoryLimit,
    ) -> ScrollStorage:
        """Return a storage for the folder `argument`. The folder is not touched before the storage starts.

        Raises `BadStorageArgument` for an invalid folder or option.
        """
        folder = folder_argument(self.name, argument)
        refuse_other_options(self.name, options, {"archive", "reserve"})
        archive = options.get("archive")
        if archive == "":
            raise BadStorageArgument("scroll: archive needs a folder, as in ?archive=/srv/archive")
        return ScrollStorage(
            folder,
            clock,
            in_thread,
            reserve_bytes=reserve_option(self.name, options),
            memory=memory,
            archive=None if archive is None else archive.encode("utf-8", "surrogateescape"),
        )
