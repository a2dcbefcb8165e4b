"""Running scroll storages over a folder, with access to their disk, clock and threads."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.item import Item
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.threads import SteppedThreads
from tests.scroll.handwritten import T, unsealed

NEVER = QueueSettings()
SYNCED = QueueSettings(sync_journal_ms=0)
PERIOD_S = 0.5
PERIODIC = QueueSettings(sync_journal_ms=500)
FAMILY = b"work", b"work+x", b"work+y"
"""A parent and its children, which share a journal."""


class WatchedDisk(FaultyDisk):
    """A disk that also records operations.

    `done` has the operation, the file name and the number of bytes. Operations are write, read, sync, erase and
    rename, which records the new name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, str, int]] = []
        self._names: dict[int, str] = {}
        self._unreadable: set[str] = set()

    def cannot_read(self, file_name: str) -> None:
        """Make opening this file for reading fail from now on."""
        self._unreadable.add(file_name)

    def mend(self) -> None:
        super().mend()
        self._unreadable.clear()

    def open_append(self, path: bytes) -> int:
        descriptor = super().open_append(path)
        self._names[descriptor] = _name(path)
        return descriptor

    def open_read(self, path: bytes) -> int:
        if _name(path) in self._unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        descriptor = super().open_read(path)
        self._names[descriptor] = _name(path)
        return descriptor

    def duplicate(self, descriptor: int) -> int:
        copy = super().duplicate(descriptor)
        self._names[copy] = self._names[descriptor]
        return copy

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data)
        self.done.append(("write", self._names[descriptor], len(data)))

    def read(self, descriptor: int, offset: int, size: int) -> bytes:
        data = super().read(descriptor, offset, size)
        self.done.append(("read", self._names[descriptor], len(data)))
        return data

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.done.append(("sync", self._names[descriptor], 0))

    def erase(self, path: bytes) -> None:
        super().erase(path)
        self.done.append(("erase", _name(path), 0))

    def rename(self, old: bytes, new: bytes) -> None:
        super().rename(old, new)
        for descriptor, name in self._names.items():
            if name == _name(old):
                self._names[descriptor] = _name(new)
        self.done.append(("rename", _name(new), 0))

    def bytes_of(self, operation: str, part_of_name: str = "") -> int:
        """Return the number of bytes written or read since `done` was cleared."""
        return sum(size for done, name, size in self.done if done == operation and part_of_name in name)

    def writes(self) -> dict[str, int]:
        """Return the number of writes to each file since `done` was cleared."""
        names = [name for done, name, _ in self.done if done == "write"]
        return {name: names.count(name) for name in names}


def _name(path: bytes) -> str:
    return path.rpartition(b"/")[2].decode()


class Threads(SteppedThreads):
    """Threads that can run their newest job first."""

    def run_newest(self) -> None:
        """Run the newest job."""
        self._jobs.rotate(1)
        self.run_one()


class Scrolls:
    """A scroll storage started over a folder, with helpers for tests.

    `now_ms` is the wall clock, at first a second before T. Nothing is put before T. `loaded` is the result of the
    start.
    """

    def __init__(
        self,
        folder: Path,
        *,
        archive: Path | None = None,
        memory: MemoryLimit | None = None,
        settings: QueueSettings = NEVER,
        now_ms: int = T - 1000,
        arrange: Callable[[WatchedDisk], object] = lambda disk: None,
    ) -> None:
        self.folder = folder
        self.now_ms = now_ms
        self.clock = Clock()
        self.threads = Threads()
        self.disk = WatchedDisk()
        self.memory = memory or MemoryLimit()
        arrange(self.disk)
        self.settings = settings
        self.storage = ScrollStorage(
            str(folder).encode(),
            self.clock,
            self.threads,
            reserve_bytes=100,
            now_ms=lambda: self.now_ms,
            disk=self.disk,
            memory=self.memory,
            archive=None if archive is None else str(archive).encode(),
        )
        self.loaded: Any = self.wait(self.storage.start(lambda name: settings))
        self._is_closed = False

    def wait(self, deferred: Deferred[Any]) -> Any:
        """Run the threads and return the result of a Deferred, or raise its failure."""
        results: list[Any] = []
        deferred.addBoth(results.append)
        self.threads.run_all()
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]

    def queue(self, name: bytes = b"work", settings: QueueSettings | None = None) -> ScrollQueue:
        return self.storage.queue(name, settings or self.settings)

    def family(self, children: int = 2) -> list[ScrollQueue]:
        """Return the queue `work` and this many of its children `work+x` and `work+y`."""
        return [self.queue(name) for name in FAMILY[: 1 + children]]

    def put(self, to: ScrollQueue | list[ScrollQueue], *items: bytes, add_ms: int = T, expiry_ms: int = 0) -> None:
        """Put each item to a queue, or to all of some queues."""
        self.now_ms = max(self.now_ms, T)
        for data in items:
            self.storage.put(to if isinstance(to, list) else [to], data, add_ms, expiry_ms)

    def commit(self, *queues: ScrollQueue) -> None:
        """Commit and wait for it."""
        for _, outcome in self.storage.commit(queues):
            self.wait(outcome)

    def put_and_commit(self, to: ScrollQueue | list[ScrollQueue], *items: bytes) -> None:
        self.put(to, *items)
        self.commit(*(to if isinstance(to, list) else [to]))

    def begin_commit(self, *queues: ScrollQueue) -> list[Any]:
        """Commit, and return a list that receives each pending outcome."""
        outcomes: list[Any] = []
        for _, outcome in self.storage.commit(queues):
            outcome.addBoth(outcomes.append)
        return outcomes

    def fail_put(self, queue: ScrollQueue, data: bytes = b"lost") -> None:
        """Put an item whose write fails, and check that the commit fails."""
        self.disk.fail("write", errno.EIO, times=1)
        self.put(queue, data)
        (outcome,) = self.begin_commit(queue)
        assert isinstance(outcome, Failure)

    def delete(self, *queues: ScrollQueue) -> None:
        """Delete these queues, and wait for it."""
        for queue in queues:
            self.storage.delete(queue)
        self.commit(*queues)
        self.threads.run_all()

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and run all threads."""
        self.clock.advance(seconds)
        self.threads.run_all()

    def pass_period(self) -> None:
        """Let the sync period of PERIODIC end."""
        self.pass_time(PERIOD_S)

    def checkpoint(self) -> None:
        """Advance the clock until reader files and hints have been rewritten."""
        self.pass_time(10)

    def fill(self, queue: ScrollQueue) -> ScrollQueue:
        """Return the queue with its head in memory."""
        while (filling := queue.fill()) is not None:
            self.wait(filling)
        return queue

    def take(self, queue: ScrollQueue, items: int = 1) -> None:
        """Take and commit this many items of a queue."""
        for _ in range(items):
            assert self.fill(queue).take(False) is not None
        self.commit(queue)

    def take_all(self, queue: ScrollQueue | bytes = b"work") -> list[Item]:
        """Take every item of a queue. Threads run when an item must be read."""
        return list(self._each(queue, opened=False))

    def data(self, queue: ScrollQueue | bytes = b"work") -> list[bytes]:
        """Take every item of a queue and return the data."""
        return [item.data for item in self.take_all(queue)]

    def drain(self, *names: bytes) -> list[list[bytes]]:
        """Take every item of these queues and return the data of each queue."""
        return [self.data(name) for name in names]

    def look_through(self, queue: ScrollQueue | bytes = b"work") -> list[Item]:
        """Return every item of a queue without changing it."""
        queue = self.queue(queue) if isinstance(queue, bytes) else queue
        items = list(self._each(queue, opened=True))
        queue.put_back([item.xid for item in items], False)
        return items

    def show(self, *names: bytes) -> list[list[bytes]]:
        """Return the data of every item of these queues without changing them."""
        return [[item.data for item in self.look_through(name)] for name in names]

    def _each(self, queue: ScrollQueue | bytes, *, opened: bool) -> Iterator[Item]:
        queue = self.queue(queue) if isinstance(queue, bytes) else queue
        while True:
            item = queue.take(opened)
            if item is not None:
                yield item
            elif (filling := queue.fill()) is not None:
                self.wait(filling)
            elif not queue.has_head:
                return

    def files(self) -> dict[str, bytes]:
        """Return the files of the queue folder with their contents; reader files without checksums."""
        return files_in(self.folder)

    def writers(self) -> list[str]:
        """Return the names of the writer files, oldest first."""
        return sorted(name for name in self.files() if ".read." not in name)

    def reader(self, part: str = "") -> bytes:
        """Return the content of a reader file without its checksums."""
        return unsealed((self.folder / f"work.read.{part}").read_bytes())

    def family_readers(self) -> list[bytes]:
        """Return the content of the reader files of a family."""
        return [self.reader(part) for part in (":own", "x", "y")]

    def left_behind(self) -> Path:
        """Copy the folder as a crash of the process would leave it."""
        return Path(shutil.copytree(self.folder, new_folder(self.folder, "left-behind")))

    def close(self, *, compacts: bool = False, mends: bool = True) -> None:
        """Stop in an orderly way unless already stopped.

        With `mends`, the disk works again first.
        """
        if not self._is_closed:
            self._is_closed = True
            if mends:
                self.disk.mend()
            self.wait(self.storage.close(compacts))


def new_folder(beside: Path, name: str) -> Path:
    """Return the path of a folder that does not exist yet."""
    return next(path for n in range(1000) if not (path := beside.with_name(f"{name}-{n}")).exists())


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder with their contents; reader files without checksums."""
    return {path.name: unsealed(path.read_bytes()) for path in sorted(folder.iterdir()) if path.is_file()}


class Opener:
    """Starts storages, and stops those that a test has left running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[Scrolls] = []

    def __call__(self, folder: Path | None = None, *, contents: Path | None = None, **how: Any) -> Scrolls:
        """Start a storage over this folder, or over a new one, which may be a copy of another."""
        if contents is not None:
            shutil.copytree(contents, folder or self.folder / "queues")
        scrolls = Scrolls(folder or self.folder / "queues", **how)
        self._opened.append(scrolls)
        return scrolls

    def queue(self, *items: bytes, name: bytes = b"work", **how: Any) -> tuple[Scrolls, ScrollQueue]:
        """Start a storage with a queue that has these items."""
        scrolls = self(**how)
        queue = scrolls.queue(name)
        if items:
            scrolls.put_and_commit(queue, *items)
        return scrolls, queue

    def family(self, *items: bytes, children: int = 2, **how: Any) -> tuple[Scrolls, list[ScrollQueue]]:
        """Start a storage with a parent and its children, which have these items."""
        scrolls = self(**how)
        queues = scrolls.family(children)
        if items:
            scrolls.put_and_commit(queues, *items)
        return scrolls, queues

    def over(self, files: Mapping[str, bytes], folder: Path | None = None, **how: Any) -> Scrolls:
        """Start a storage over a folder with these files."""
        folder = folder or self.folder / "queues"
        for name, contents in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(contents)
        return self(folder, **how)

    def again(self, scrolls: Scrolls, **how: Any) -> Scrolls:
        """Stop a storage in an orderly way and start it again."""
        scrolls.close()
        return self(scrolls.folder, **{"settings": scrolls.settings, **how})

    def crashed(self, scrolls: Scrolls, **how: Any) -> Scrolls:
        """Start another storage over the current files, as after a crash of the process."""
        return self(scrolls.left_behind(), **{"settings": scrolls.settings, **how})

    def power_failed(self, scrolls: Scrolls, *, names_as_now: bool = False, **how: Any) -> Scrolls:
        """Start another storage over what a power failure would leave (`DurableState.copy`)."""
        copy = new_folder(scrolls.folder, "after-power-failure")
        scrolls.disk.medium.copy(str(scrolls.folder).encode(), str(copy).encode(), names_as_now=names_as_now)
        return self(copy, **{"settings": scrolls.settings, **how})

    def abandon(self, scrolls: Scrolls) -> None:
        """Treat a storage as crashed: do not stop it."""
        self._opened.remove(scrolls)

    def stop_all(self) -> None:
        """Stop every storage that is still running."""
        for scrolls in self._opened:
            scrolls.close()
