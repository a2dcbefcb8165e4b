"""The compared storages, each over a folder, and a disk that counts bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred, execute
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from benchmarks.journals import QUEUE, JournalMaker
from benchmarks.scrolls import ScrollMaker
from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.storage.interfaces import InThread, IQueueStorage, IStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.scroll.storage import ScrollStorage

JOURNAL: Final = "journal"
SCROLL: Final = "scroll"
STORAGES: Final = (JOURNAL, SCROLL)

Loaded = dict[bytes, IQueueStorage | Failure]


class CountingDisk(Disk):
    """A disk that counts the bytes read from and written to files."""

    def __init__(self) -> None:
        self.bytes_written = 0
        self.bytes_read = 0

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all of the data, and count it."""
        self.bytes_written += len(data)
        super().write(descriptor, data)

    def read(self, descriptor: int, offset: int, size: int) -> bytes:
        """Read up to `size` bytes at `offset`, and count them."""
        data = super().read(descriptor, offset, size)
        self.bytes_read += len(data)
        return data


def make_storage(
    name: str,
    folder: Path,
    clock: IReactorTime,
    in_thread: InThread = execute,
    *,
    disk: Disk | None = None,
    now_ms: Callable[[], int] | None = None,
) -> IStorage:
    """Return a storage over that folder, without a reserve. By default thread work is done at once."""
    kind: Callable[..., IStorage] = {JOURNAL: JournalStorage, SCROLL: ScrollStorage}[name]
    times = {} if now_ms is None else {"now_ms": now_ms}
    return kind(os.fsencode(folder), clock, in_thread, reserve_bytes=0, disk=disk, **times)


def make_backlog(
    name: str,
    folder: Path,
    seed: int,
    item_bytes: int,
    items: int,
    *,
    taken: int = 0,
    journal_file_bytes: int | None = None,
) -> None:
    """Write the files of a queue that holds that many items, after `taken` others were taken.

    `journal_file_bytes` is the size of a journal's files. Its default is the size that a server lets a backlog's files
    reach.
    """
    if name == SCROLL:
        with ScrollMaker(folder, seed, item_bytes) as scroll:
            scroll.put(taken + items)
            scroll.take(taken)
        return
    file_bytes = journal_file_bytes or QueueSettings().max_memory_size_bytes
    with JournalMaker(folder, seed, item_bytes, file_bytes=file_bytes) as journal:
        journal.put(taken + items)
        journal.remove(taken)


def bytes_in(folder: Path) -> int:
    """Return the total size of the files directly in that folder."""
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


class Opened:
    """A started storage with its own clock, and the queues that it found."""

    def __init__(self, name: str, folder: Path, settings: QueueSettings | None = None) -> None:
        self.settings = settings or QueueSettings()
        self.clock = Clock()
        self.disk = CountingDisk()
        self.storage = make_storage(name, folder, self.clock, disk=self.disk)
        loaded: list[Loaded] = []
        starting: Deferred[Loaded] = self.storage.start(lambda _: self.settings)
        starting.addCallback(loaded.append)
        for queue in loaded[0].values():
            if isinstance(queue, Failure):
                queue.raiseException()
        self.queues = loaded[0]

    def queue(self, name: bytes = QUEUE) -> Any:
        """Return the queue of that name."""
        return self.storage.queue(name, self.settings)

    def take(self, queue: Any, opened: bool = False) -> Any:
        """Take the head of a queue, loading it into memory if needed. Return None if the queue is empty."""
        item = queue.take(opened)
        while item is None and queue.fill() is not None:
            item = queue.take(opened)
        return item

    def let_checkpoints_come(self) -> None:
        """Move the clock forward by a minute, so that periodic work is done."""
        self.clock.advance(60)
