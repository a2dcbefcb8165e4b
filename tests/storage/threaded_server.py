"""A server over a folder on a faulty disk, whose threads a test controls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.internet.task import Clock

from kestrel.config.model import Config
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryServer
from kestrel.testing.threads import SteppedThreads
from tests.storage.backends import MakeStorage


class ThreadedServer(MemoryServer):
    """A server whose jobs in threads run only when the test runs them. `options` are those of the storage."""

    def __init__(
        self, folder: Path, config: Config, make_storage: MakeStorage = JournalStorage, **options: Any
    ) -> None:
        self.queues = folder
        self.disk = FaultyDisk()
        self.threads = SteppedThreads()
        clock = Clock()
        options = {"reserve_bytes": 1000, "now_ms": self.now_ms, "disk": self.disk, **options}
        storage = make_storage(os.fsencode(folder), clock, self.threads, **options)
        super().__init__(storage, config=config, clock=clock)

    def end_threads(self) -> None:
        """Run all pending thread work, including work that it starts."""
        self.settle()
        while len(self.threads):
            self.threads.run_all()
            self.settle()
