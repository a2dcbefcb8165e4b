"""The storage `memory:`, which loses all items when the process ends. Used for keepJournal = false, and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.errors import BadStorageArgument, ItemTooLarge, StorageRefused
from kestrel.journal.records import MAX_DATA_BYTES, encode_item
from kestrel.storage.interfaces import IContinue, InThread, IQueueStorage, IStorage, IStorageFactory, SettingsFor
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.window import Window


def refusal_of(limit: MemoryLimit) -> str | None:
    """Return why no item may be put into memory now, or None."""
    return "the server's memory is full" if limit.is_reached else None


@implementer(IQueueStorage, IContinue)
class MemoryQueue(Window):
    """A queue in memory (`IQueueStorage`, `IContinue`)."""

    disk_bytes = 0
    replayed_items = 0
    stats: Mapping[str, int] = {"logsize": 0, "journal_rewrites": 0, "journal_rotations": 0}

    def __init__(self, name: bytes, limit: MemoryLimit | None = None) -> None:
        super().__init__(limit)
        self.name = name

    def check_put(self, size: int) -> None:
        """Raise a `StorageError` if an item of `size` bytes cannot be put now."""
        if size > MAX_DATA_BYTES:
            raise ItemTooLarge(f"an item holds at most {MAX_DATA_BYTES} bytes")
        refusal = refusal_of(self._memory_limit)
        if refusal is not None:
            raise StorageRefused(refusal)
        self.check()

    def continue_(self, xid: int, data: bytes, add_ms: int, expiry_ms: int) -> None:
        self.check_put(len(data))
        self.finish(xid)
        self.append(encode_item(data, add_ms, expiry_ms))

    def fill(self) -> Deferred[None] | None:
        self.check()
        return None


@implementer(IStorage)
class MemoryStorage:
    """A storage whose queues are in memory (`IStorage`)."""

    def __init__(self, limit: MemoryLimit | None = None) -> None:
        self._limit = limit or MemoryLimit()
        self._queues: dict[bytes, MemoryQueue] = {}

    @property
    def refusal(self) -> str | None:
        return refusal_of(self._limit)

    def start(self, settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        return succeed({})

    def queue(self, name: bytes, settings: QueueSettings) -> MemoryQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = MemoryQueue(name, self._limit)
        return queue

    def rename(self, queue: MemoryQueue, name: bytes) -> None:
        """Give a queue another name, which no other queue has."""
        del self._queues[queue.name]
        queue.name = name
        self._queues[name] = queue

    def delete(self, queue: MemoryQueue) -> None:
        if self._queues.get(queue.name) is queue:
            del self._queues[queue.name]
        queue.memory.set_bytes(0)
        queue.failure = "the queue was deleted"

    def put(self, queues: Sequence[MemoryQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        for queue in queues:
            queue.check_put(len(data))
        record = encode_item(data, add_ms, expiry_ms)
        for queue in queues:
            queue.append(record)

    def commit(self, queues: Sequence[MemoryQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        for queue in queues:
            if queue.failure is None:
                queue.report_memory()
        return ()

    def close(self, compacts: bool = False) -> Deferred[None]:
        for queue in list(self._queues.values()):
            self.delete(queue)
        return succeed(None)


@implementer(IStorageFactory)
class MemoryStorageFactory:
    """The factory for ``memory:`` (`IStorageFactory`)."""

    name = "memory"
    help = "memory:  keeps queues in memory; nothing survives a restart. Takes no argument."
    capabilities = frozenset({"errors_kept"})

    def storage(
        self, argument: str, options: Mapping[str, str], clock: IReactorTime, in_thread: InThread, memory: MemoryLimit
    ) -> MemoryStorage:
        if argument or options:
            raise BadStorageArgument("memory: takes no argument and no options")
        return MemoryStorage(memory)
