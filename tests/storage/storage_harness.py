"""Storages over a folder, for tests that control their threads, clock and disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, Self

import pytest
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.storage.interfaces import IQueueStorage, SettingsFor
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.faults import FaultyDisk, KillableDisk
from kestrel.testing.threads import SteppedThreads
from tests.storage.backends import MakeStorage

NOW_MS: Final = 1_700_000_000_000

MAX_FILLS: Final = 100
"""The number of fills after which the head must be in memory. One is usual, but tiny files may hold no item."""

MAX_JOBS: Final = 1000
"""The number of jobs after which a test is considered stuck."""

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


class RunningStorage:
    """A storage that `start` starts. Its jobs run when a test asks for it or waits for a result."""

    def __init__(
        self,
        folder: Path,
        settings_for: SettingsFor,
        *,
        clock: Clock | None = None,
        disk: FaultyDisk | None = None,
        threads: SteppedThreads | None = None,
        make_storage: MakeStorage = JournalStorage,
        now_ms: int = NOW_MS,
    ) -> None:
        """`now_ms` is the wall clock when `clock` is at 0."""
        self.folder = folder
        self.clock = clock or Clock()
        self.disk = disk or KillableDisk()
        self.threads = SteppedThreads() if threads is None else threads
        self.loaded: dict[bytes, IQueueStorage] = {}
        """The queues that the start has found."""
        self._settings_for = settings_for
        self._now_ms = now_ms
        self._is_closed = False
        self.storage = make_storage(
            os.fsencode(folder), self.clock, self.threads, reserve_bytes=1, now_ms=self.now_ms, disk=self.disk
        )

    def now_ms(self) -> int:
        return self._now_ms + int(self.clock.seconds() * 1000)

    def start(self) -> Self:
        """Start the storage. All queues must be loaded, without open reads."""
        loaded = self.wait(DeferredOutcome(self.storage.start(self._settings_for)))
        assert isinstance(loaded, dict)
        for queue in loaded.values():
            assert not isinstance(queue, Failure), queue
            assert (queue.open_reads, queue.replayed_items) == (0, queue.items)
        self.loaded = loaded
        return self

    def run_all(self) -> None:
        """Run all jobs, and the jobs that they add."""
        for _ in range(MAX_JOBS):
            if not self.threads:
                self.clock.advance(0)  # calls of the next tick
                if not self.threads:
                    return
            self.threads.run_one()
        raise AssertionError("jobs add more jobs without end")

    def wait(self, outcome: DeferredOutcome) -> object:
        """Run jobs until the Deferred fires. Return its result, or raise its failure."""
        for _ in range(MAX_JOBS):
            if outcome.is_there:
                break
            if self.threads:
                self.threads.run_one()
            else:
                self.clock.advance(0)
        assert outcome.is_there, "all jobs have run, but the Deferred has not fired"
        return outcome.result()

    def head(
        self, queue: IQueueStorage, look: Callable[[], Item | None], filling: DeferredOutcome | None = None
    ) -> Item | None:
        """Return the result of a take or peek once the head is in memory. `filling` is a fill that is under way."""
        for _ in range(MAX_FILLS):
            item = look()
            if item is not None:
                return item
            if filling is None:
                deferred = queue.fill()
                if deferred is None:
                    return look()
                filling = DeferredOutcome(deferred)
            self.wait(filling)
            filling = None
        raise AssertionError(f"the head is not in memory after {MAX_FILLS} fills")

    def drain(self, queue: IQueueStorage) -> Iterator[Item]:
        """Take all items of a queue."""
        while (item := self.head(queue, partial(queue.take, False))) is not None:
            yield item
        assert (queue.items, queue.bytes, queue.mem_items, queue.mem_bytes) == (0, 0, 0, 0)

    def close(self) -> None:
        """Close the storage, unless it is closed. It must have waited for its jobs and closed all files."""
        if self._is_closed:
            return
        self._is_closed = True
        self.wait(DeferredOutcome(self.storage.close()))
        assert not self.threads, "the storage did not wait for a job"
        assert not self.disk.open_descriptors

    def abandon(self) -> None:
        """Close the storage, and all files even if that fails."""
        with suppress(Exception):
            self.close()
        while self.disk.open_descriptors:
            os.close(self.disk.open_descriptors.pop())

    def file_bytes(self, name: bytes) -> int:
        """Return the size of all files of the queue of that name."""
        prefixes = (name + b".", name + b"~~")
        with os.scandir(os.fsencode(self.folder)) as entries:
            return sum(
                entry.stat().st_size for entry in entries if entry.name == name or entry.name.startswith(prefixes)
            )


class StorageHarness(RunningStorage):
    """A storage with its queue "work"."""

    def __init__(
        self,
        folder: Path,
        settings: QueueSettings,
        *,
        disk: FaultyDisk | None = None,
        make_storage: MakeStorage = JournalStorage,
        now_ms: int = NOW_MS,
    ) -> None:
        super().__init__(folder, lambda name: settings, disk=disk, make_storage=make_storage, now_ms=now_ms)
        self.settings = settings
        self._make_storage = make_storage

    def start(self) -> Self:
        """Start the storage, run all jobs, and open the queue."""
        super().start()
        self.run_all()
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
        shutil.copytree(self.folder, copy, dirs_exist_ok=True, copy_function=_link_or_copy)
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
        item = self.head(self.queue, partial(self.queue.take, opened))
        assert item is not None, "the queue is empty, but should have an item"
        return item

    def commit(self) -> QueueFailed | None:
        """Commit the queue, and run jobs until the commit ends. Return its failure."""
        for _, safe in self.storage.commit([self.queue]):
            try:
                self.wait(DeferredOutcome(safe))
            except QueueFailed as failure:
                return failure
        return None

    def close(self) -> None:
        """Close the storage on a disk that works."""
        self.disk.mend()
        super().close()


def _link_or_copy(source: str, target: str) -> None:
    """Link a rotated file, so that the copy has the inode that the segment log names, and copy other files."""
    name = os.path.basename(source)
    if "/.kestrel/" not in source and name.rpartition(".")[2].isdigit():
        os.link(source, target)
    else:
        shutil.copy2(source, target)
