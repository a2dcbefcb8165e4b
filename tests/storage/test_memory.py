"""The memory backend keeps the storage contract."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.task import Clock

from kestrel.storage.interfaces import InThread
from kestrel.storage.memory import MemoryStorage, MemoryStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.suite import StorageContract
from tests.sample import examples


class TestMemory(StorageContract):
    factory = MemoryStorageFactory()
    max_examples = examples(60)

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> MemoryStorage:
        self.limit = MemoryLimit()
        return MemoryStorage(self.limit)

    def refuse_puts(self, subject: StorageUnderTest) -> None:
        self.limit.most_bytes = 0

    def test_items_take_memory_and_no_disk(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5")
        assert (queue.disk_bytes, queue.mem_items, queue.mem_bytes) == (0, 2, 9)

    def test_commit_has_nothing_to_wait_for(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        assert list(subject.storage.commit([queue])) == []
