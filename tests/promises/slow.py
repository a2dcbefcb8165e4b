"""A server over journals whose disk is slow: what is done in threads ends when a test says so."""

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
    """Threads stand still until `end_threads`; the disk fails when it is told to. One limit of memory holds for all."""

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
        """Let all that threads do end, and all that comes of it."""
        self.settle()
        while len(self.threads):
            self.threads.run_all()
            self.settle()

    def talk(self, client: MemoryClient, request: bytes) -> bytes:
        """Send a request, let everything end that it leads to, and take what comes back."""
        client.send(request)
        self.end_threads()
        return client.take()
