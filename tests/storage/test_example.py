"""The contract suite, run on the example backend."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet.task import Clock

from examples.backend import LinesStorage, LinesStorageFactory
from kestrel.storage.interfaces import InThread
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.suite import OnFaultyDisk, StorageContract
from tests.sample import examples


class TestExample(OnFaultyDisk, StorageContract):
    factory = LinesStorageFactory()
    storage_class: type[LinesStorage] = LinesStorage
    max_examples = examples(20)

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> LinesStorage:
        self.limit = MemoryLimit()
        return self.storage_class(os.fsencode(folder), in_thread, self.limit, self.disk)

    def refuse_puts(self, subject: StorageUnderTest) -> None:
        self.limit.most_bytes = 0
