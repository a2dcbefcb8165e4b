"""The items that a server would find in a folder of any kind, read by a storage in a copy."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kestrel.config.model import QueueSettings
from tests.journal.restarts import NOW_MS
from tests.storage.backends import BACKENDS
from tests.storage.storage_harness import RunningStorage


class Held(NamedTuple):
    """An item of a queue."""

    data: bytes
    add_ms: int
    expiry_ms: int
    errors: int


def each_served(kind: str, folder: Path, now_ms: int = NOW_MS) -> Iterator[tuple[bytes, Iterator[Held]]]:
    """Yield the queues that a server finds at its start, with their items, to be read before the next queue.

    The storage starts in a copy of the folder, next to it.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        copy = Path(shutil.copytree(folder, Path(parent) / "queues"))
        run = RunningStorage(copy, lambda name: QueueSettings(), make_storage=BACKENDS[kind].make, now_ms=now_ms)
        run.start()
        try:
            for name, queue in run.loaded.items():
                yield name, (Held(item.data, item.add_ms, item.expiry_ms, item.errors) for item in run.drain(queue))
        finally:
            run.close()


def served(kind: str, folder: Path, now_ms: int = NOW_MS) -> dict[bytes, list[Held]]:
    """Return the queues that a server finds at its start, with their items."""
    return {name: list(items) for name, items in each_served(kind, folder, now_ms)}
