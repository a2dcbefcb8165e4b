"""``scroll:FOLDER``: the scroll backend by its described string."""

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
    """``scroll:FOLDER`` (`IStorageFactory`)."""

    name = "scroll"
    help = (
        "scroll:FOLDER[?archive=FOLDER][&reserve=SIZE]  keeps queues in libkestrel's journal files in FOLDER: an item"
        " is written once for a queue and all its children. archive is a folder that files move to when nobody needs"
        " them any more; without it they are erased. reserve (16MiB) is disk space put by, so that a full disk still"
        " takes the writes that found it full."
    )
    capabilities = frozenset({"durable", "ranges", "shared_fanout", "errors_kept"})
    unused_settings = frozenset(
        {"max_journal_size_bytes", "min_journal_compact_delay_ms", "disable_aggressive_rewrites"}
    )
    """Settings of a queue that are about rewriting; here nothing is rewritten."""
    largest_used: Mapping[str, int] = {"max_memory_size_bytes": WINDOW_BYTES}
    """Above that a setting of a queue changes nothing: no more of it is in memory."""

    def storage(
        self,
        argument: str,
        options: Mapping[str, str],
        clock: IReactorTime,
        in_thread: InThread,
        memory: MemoryLimit,
    ) -> ScrollStorage:
        """A storage over that folder; nothing is touched before it is started."""
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
