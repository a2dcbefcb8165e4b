"""The items that a server would find in a folder of any kind, read by a storage in a copy."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.threads import SteppedThreads
from tests.journal.restarts import NOW_MS
from tests.storage.backends import BACKENDS


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
        copy = shutil.copytree(folder, Path(parent) / "queues")
        threads = SteppedThreads()
        storage = BACKENDS[kind].make(os.fsencode(copy), Clock(), threads, reserve_bytes=1, now_ms=lambda: now_ms)
        loaded = _result(storage.start(lambda name: QueueSettings()), threads)
        try:
            for name, queue in loaded.items():
                assert not isinstance(queue, Failure), f"{name!r}: {queue}"
                yield name, _items(queue, threads)
        finally:
            _result(storage.close(), threads)


def served(kind: str, folder: Path, now_ms: int = NOW_MS) -> dict[bytes, list[Held]]:
    """Return the queues that a server finds at its start, with their items."""
    return {name: list(items) for name, items in each_served(kind, folder, now_ms)}


def _items(queue: IQueueStorage, threads: SteppedThreads) -> Iterator[Held]:
    assert queue.open_reads == 0
    counted, taken = queue.items, 0
    while queue.items:
        item = queue.take(False)
        if item is None:
            filling = queue.fill()
            assert filling is not None
            _result(filling, threads)
        else:
            taken += 1
            yield Held(item.data, item.add_ms, item.expiry_ms, item.errors)
    assert taken == counted


def _result(deferred: Deferred[Any], threads: SteppedThreads) -> Any:
    results: list[Any] = []
    deferred.addBoth(results.append)
    threads.run_all()
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]
