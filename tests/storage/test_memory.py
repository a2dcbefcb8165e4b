"""The memory backend keeps the storage contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from kestrel.errors import BadStorageArgument
from kestrel.storage.interfaces import InThread, IStorageFactory
from kestrel.storage.memory import MemoryStorage, MemoryStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.suite import StorageContract
from kestrel.testing.threads import SteppedThreads
from tests.sample import examples


class TestMemory(StorageContract):
    factory = MemoryStorageFactory()
    max_examples = examples(60)

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> MemoryStorage:
        self.limit = MemoryLimit()
        return MemoryStorage(self.limit)

    def refuse_puts(self, subject: StorageUnderTest) -> None:
        self.limit.most_bytes = 0

    def test_it_takes_nothing_on_a_medium_and_holds_everything_in_memory(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5")
        assert (queue.disk_bytes, queue.mem_items, queue.mem_bytes) == (0, 2, 9)

    def test_what_is_committed_is_as_safe_as_it_will_be(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        assert list(subject.storage.commit([queue])) == []


def test_its_factory_is_a_storage_factory_that_promises_nothing_durable() -> None:
    factory = MemoryStorageFactory()
    assert verifyObject(IStorageFactory, factory)
    assert "durable" not in factory.capabilities


@pytest.mark.parametrize(("argument", "options"), [("somewhere", {}), ("", {"reserve": "1"})])
def test_its_description_has_no_argument_and_no_options(argument: str, options: dict[str, str]) -> None:
    with pytest.raises(BadStorageArgument):
        MemoryStorageFactory().storage(argument, options, Clock(), SteppedThreads(), MemoryLimit())
