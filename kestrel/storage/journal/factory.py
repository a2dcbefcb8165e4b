"""The factory of the journal backend, for storage strings that begin with ``journal:``."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from kestrel.storage.folder_options import folder_argument, refuse_other_options, reserve_option
from kestrel.storage.interfaces import InThread, IStorageFactory
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.total_memory import MemoryLimit


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
        self,
        argument: str,
        options: Mapping[str, str],
        clock: IReactorTime,
        in_thread: InThread,
        memory: MemoryLimit,
    ) -> JournalStorage:
        """Return a storage for the folder `argument`. It touches nothing before it is started."""
        folder = folder_argument(self.name, argument)
        refuse_other_options(self.name, options, {"reserve"})
        reserve_bytes = reserve_option(self.name, options)
        return JournalStorage(folder, clock, in_thread, reserve_bytes=reserve_bytes, memory=memory)
