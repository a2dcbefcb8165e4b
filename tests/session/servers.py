"""Servers, configurations and items for tests that use one queue, "work"."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.errors import StorageError
from kestrel.storage.interfaces import IStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage
from tests.memcache_text import items, set_, stat

MOMENT_S: Final = 2**-10
"""Shortest time step in tests: about a millisecond, exact in binary."""


def config_of(settings: str = "", most_open: int = 10_000) -> Config:
    """Return a configuration of these lines."""
    return loads(f"maxOpenTransactions = {most_open}\n{settings}\n")


def serving(
    settings: str = "", *, most_open: int = 10_000, folder: Path | None = None, storage: IStorage | None = None
) -> MemoryServer:
    """Return a server with a configuration of these lines."""
    return MemoryServer(storage, config=config_of(settings, most_open), folder=folder)


def of_work(settings: str) -> str:
    """Return settings of the queue "work"."""
    return f"[[queues]]\nname = 'work'\n{settings}\n"


def many(number: int) -> list[bytes]:
    """Return that many numbered items."""
    return [b"%05d" % place for place in range(number)]


def counts(server: MemoryServer, queue: bytes = b"work") -> tuple[int, int]:
    """Return the number of items and of open reads. Asking does not count as use of the queue."""
    memcache = server.connect()
    return int(stat(memcache, queue, "items")), int(stat(memcache, queue, "open_transactions"))


def counts_in_memory(server: MemoryServer) -> int:
    """Return the number of items at this point of a tick."""
    queue = server.manager.known(b"work")
    return 0 if queue is None else queue.store.items


def drained(server: MemoryServer, queue: bytes = b"work") -> list[bytes]:
    """Take all items, head first."""
    return items(server.connect(), queue)


def store_of(server: MemoryServer, queue: bytes = b"work") -> SteppedQueue:
    """Return the queue in a storage that the test steps."""
    known = server.manager.known(queue)
    assert known is not None
    assert isinstance(known.store, SteppedQueue)
    return known.store


def end_commits(server: MemoryServer, storage: SteppedStorage) -> None:
    """End all held commits, and hold no further ones."""
    while storage.committing:
        storage.end_commits()
        server.settle()
    storage.holds_commits = False


def lose_commits(storage: SteppedStorage) -> None:
    """Make the held commits fail, and hold no further ones."""
    storage.end_commits(error=StorageError("disk failed"))
    storage.holds_commits = False


def fail(server: MemoryServer, storage: SteppedStorage) -> None:
    """Make a commit of "work" fail; earlier commits stay safe."""
    storage.holds_commits = True
    server.connect().send(set_(b"work", b"lost"))
    server.settle()
    lose_commits(storage)
    server.settle()
