"""The scroll backend keeps the storage contract."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet.task import Clock

from kestrel.storage.interfaces import InThread
from kestrel.storage.registry import ScrollStorageFactory
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.contract.suite import StorageContract
from tests.sample import examples
from tests.storage.folder_tests import FolderTests

NOW_MS = 1_700_003_600_000


class TestScroll(FolderTests, StorageContract):
    factory = ScrollStorageFactory()
    max_examples = examples(60)
    has_window = True

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> ScrollStorage:
        return ScrollStorage(
            os.fsencode(folder), clock, in_thread, reserve_bytes=100, now_ms=lambda: NOW_MS, disk=self.disk
        )
