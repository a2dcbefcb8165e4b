"""A server over journals on a slow disk: work in threads ends only when the test lets it."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet.task import Clock

from kestrel.config.model import Config
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.threads import SteppedThreads


class SlowServer(MemoryServer):
    """A server whose threads do not run until `end_threads`.

    `disk` can be told to fail. All queues share one memory limit.
    """

    def __init__(self, where: Path, config: Config) -> None:
        self.threads = SteppedThreads()
        self.disk = FaultyDisk()
        clock = Clock()
        limit = MemoryLimit(config.max_total_memory_bytes)
        storage = JournalStorage(
            os.fsencode(where),
            clock,
            self.threads,
            reserve_bytes=1,
            now_ms=self.now_ms,
            disk=self.disk,
            memory=limit,
        )
        super().__init__(storage, config=config, clock=clock)
        self.manager.memory_limit = limit
        self.end_threads()

    def end_threads(self) -> None:
        """Run all pending thread work, including work that it starts."""
        self.settle()
        while len(self.threads):
            self.threads.run_all()
            self.settle()

    def ask(self, client: MemoryClient, request: bytes) -> bytes:
        """Send a request, run everything that it starts, and return the reply."""
        client.send(request)
        self.end_threads()
        return client.take()
