"""The memory backend: nothing survives the process. For queues with keepJournal = false, and for tests."""

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
from kestrel.storage.interfaces import (
    IContinue,
    InThread,
    IQueueStorage,
    IStorage,
    IStorageFactory,
    SettingsFor,
)
from kestrel.storage.total_memory import MemoryLimit, MemoryShare
from kestrel.storage.window import Window


def refusal_of(limit: MemoryLimit) -> str | None:
    """None, or why nothing is put into memory now."""
    return "the server's memory is full" if limit.is_reached else None


@implementer(IQueueStorage, IContinue)
class MemoryQueue(Window):
    """One queue in memory (`IQueueStorage`, `IContinue`)."""

    disk_bytes = 0
    replayed_items = 0
    stats: Mapping[str, int] = {"logsize": 0, "journal_rewrites": 0, "journal_rotations": 0}

    def __init__(self, name: bytes, limit: MemoryLimit | None = None) -> None:
        super().__init__()
        self.name = name
        self._limit = limit or MemoryLimit()
        self.memory = MemoryShare(self._limit)

    @property
    def mem_bytes(self) -> int:
        """All data is in memory."""
        return self.bytes

    def check_put(self, size: int) -> None:
        """Raise the `StorageError` why it takes no item of so many bytes now, if there is one."""
        if size > MAX_DATA_BYTES:
            raise ItemTooLarge(f"an item holds at most {MAX_DATA_BYTES} bytes")
        refusal = refusal_of(self._limit)
        if refusal is not None:
            raise StorageRefused(refusal)
        self.check()

    def continue_(self, xid: int, data: bytes, add_ms: int, expiry_ms: int) -> None:
        """End that open read and append an item."""
        self.check_put(len(data))
        self.finish(xid)
        self.append(encode_item(data, add_ms, expiry_ms))

    def fill(self) -> Deferred[None] | None:
        """None: the head is always in memory."""
        self.check()
        return None


@implementer(IStorage)
class MemoryStorage:
    """All queues in memory (`IStorage`)."""

    def __init__(self, limit: MemoryLimit | None = None) -> None:
        self._limit = limit or MemoryLimit()
        self._queues: dict[bytes, MemoryQueue] = {}

    @property
    def refusal(self) -> str | None:
        """None, or why no put is taken now."""
        return refusal_of(self._limit)

    def start(self, settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        """Nothing to load."""
        return succeed({})

    def queue(self, name: bytes, settings: QueueSettings) -> MemoryQueue:
        """The queue of that name, or a new one."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = MemoryQueue(name, self._limit)
        return queue

    def delete(self, queue: MemoryQueue) -> None:
        """Forget it."""
        if self._queues.get(queue.name) is queue:
            del self._queues[queue.name]
        queue.memory.set_bytes(0)
        queue.failure = "the queue was deleted"

    def put(self, queues: Sequence[MemoryQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append to each queue; they share the bytes."""
        for queue in queues:
            queue.check_put(len(data))
        record = encode_item(data, add_ms, expiry_ms)
        for queue in queues:
            queue.append(record)

    def commit(self, queues: Sequence[MemoryQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Nothing is safer than it was; but now it is known how much there is."""
        for queue in queues:
            if queue.failure is None:
                queue.memory.set_bytes(queue.memory_bytes)
        return ()

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Forget everything."""
        for queue in list(self._queues.values()):
            self.delete(queue)
        return succeed(None)


@implementer(IStorageFactory)
class MemoryStorageFactory:
    """``memory:`` (`IStorageFactory`)."""

    name = "memory"
    help = "memory:  keeps queues in memory; nothing survives a restart. Takes no argument."
    capabilities = frozenset({"errors_kept"})

    def storage(
        self,
        argument: str,
        options: Mapping[str, str],
        clock: IReactorTime,
        in_thread: InThread,
        memory: MemoryLimit,
    ) -> MemoryStorage:
        """An empty storage."""
        if argument or options:
            raise BadStorageArgument("memory: takes no argument and no options")
        return MemoryStorage(memory)
