"""A storage with one queue, for tests that control its threads, its clock and its disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, Self

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.item import Item
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.faults import KillableDisk
from kestrel.testing.threads import SteppedThreads
from tests.storage.backends import MakeStorage

NOW_MS: Final = 1_700_000_000_000

each_pack_step = pytest.mark.parametrize(
    "step",
    [
        crash_points.PACK_WRITTEN,
        crash_points.PACK_SYNCED,
        crash_points.PACK_PUBLISHED,
        crash_points.PACK_REPLACED,
        crash_points.PACK_FINISHED,
    ],
)
"""Runs a test for each step of a rewrite or pack."""


class StorageHarness:
    """A storage over a folder, with its queue "work". Threads run when the test asks for it or waits for a result."""

    def __init__(
        self,
        folder: Path,
        settings: QueueSettings,
        *,
        make_storage: MakeStorage = JournalStorage,
        now_ms: int = NOW_MS,
        disk: KillableDisk | None = None,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.disk = disk or KillableDisk()
        self._make_storage = make_storage
        self._now_ms = now_ms
        self.storage = make_storage(
            os.fsencode(folder), self.clock, self.threads, reserve_bytes=1, now_ms=self.now_ms, disk=self.disk
        )

    def now_ms(self) -> int:
        return self._now_ms + int(self.clock.seconds() * 1000)

    def start(self) -> Self:
        """Start the storage and open the queue."""
        self.storage.start(lambda name: self.settings)
        self.threads.run_all()
        self.reopen()
        return self

    def reopen(self) -> None:
        """Open the queue again, if it has failed or was deleted."""
        self.queue = self.storage.queue(b"work", self.settings)

    def started_over(self, folder: Path) -> Self:
        """Return a started storage of the same kind over another folder."""
        return type(self)(folder, self.settings, make_storage=self._make_storage, now_ms=self._now_ms).start()

    def killed(self) -> Self:
        """Start another storage over a copy of the folder, as if the process had been killed now."""
        copy = Path(mkdtemp(dir=self.folder.parent))
        shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        return self.started_over(copy)

    def without_power(self) -> Self:
        """Start another storage over the files that a power failure would leave now."""
        left = self.folder.with_name("left")
        self.disk.medium.copy(os.fsencode(self.folder), os.fsencode(left))
        return self.started_over(left)

    def put(self, *items: bytes) -> None:
        """Put items, without a commit."""
        for data in items:
            self.storage.put([self.queue], data, self.now_ms(), 0)

    def take(self, opened: bool = False) -> Item:
        """Take the head of a queue that is not empty, without a commit. Load it first if it is on disk only."""
        while (item := self.queue.take(opened)) is None:
            filling = self.queue.fill()
            if filling is not None:
                self._wait(filling)
        return item

    def commit(self) -> Failure | None:
        """Commit the queue, and run jobs until the commit ends. Return its failure."""
        failures = [self._wait(safe) for _, safe in self.storage.commit([self.queue])]
        return failures[0] if failures else None

    def _wait(self, deferred: Deferred[Any]) -> Failure | None:
        results: list[object] = []
        deferred.addBoth(results.append)
        while not results:
            self.threads.run_one()
        return results[0] if isinstance(results[0], Failure) else None

    def close(self) -> None:
        """Close the storage on a disk that works. It must have closed all its files."""
        self.disk.mend()
        self.storage.close()
        self.threads.run_all()
        assert self.disk.open_descriptors == set()
