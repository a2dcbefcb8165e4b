"""A server over journals on a slow disk: work in threads ends only when the test lets it."""

from __future__ import annotations

from pathlib import Path

from kestrel.config.model import Config
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.server import MemoryClient
from tests.storage.threaded_server import ThreadedServer


class SlowServer(ThreadedServer):
    """A server whose threads do not run until `end_threads`.

    `disk` can be told to fail. All queues share one memory limit.
    """

    def __init__(self, where: Path, config: Config) -> None:
        limit = MemoryLimit(config.max_total_memory_bytes)
        super().__init__(where, config, reserve_bytes=1, memory=limit)
        self.manager.memory_limit = limit
        self.end_threads()

    def ask(self, client: MemoryClient, request: bytes) -> bytes:
        """Send a request, run everything that it starts, and return the reply."""
        client.send(request)
        self.end_threads()
        return client.take()
