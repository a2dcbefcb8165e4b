"""Servers, configurations and items for tests that use one queue, "work"."""

from __future__ import annotations

from pathlib import Path

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.storage.interfaces import IStorage
from kestrel.testing.server import MemoryServer


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
