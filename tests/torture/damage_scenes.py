"""Queue folders to be damaged, written by the real storages, with the items that were put and confirmed.

Items are put, taken, opened, confirmed and aborted across the files of a journal or a scroll. Then the process is
killed or stops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import DeferredOutcome
from tests.storage.backends import BACKENDS
from tests.storage.storage_harness import RunningStorage
from tests.torture.damage import quick_folder

Files: TypeAlias = dict[str, bytes]
"""Contents by path below the queue folder."""

CHECKPOINTED_S: Final = 11.0
"""Time after which a scroll has written checkpoints and erased files that no reader needs."""


class Scene(NamedTuple):
    """A folder with the items of its queues, recorded independently of the storage."""

    backend: str
    files: Files
    put: dict[bytes, set[bytes]]
    """The items that were put to each queue."""
    pending: dict[bytes, set[bytes]]
    """Those of them that were not confirmed."""
    only: str = ""
    """If set, only files below this path are damaged."""

    def lies_in(self, data: bytes, path: str) -> bool:
        """Return whether the record of that item is in that file."""
        return not path.startswith(".kestrel/") and data in self.files[path]


def files_below(folder: Path) -> Files:
    """Return all files in a folder and its subfolders."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class StorageRun(RunningStorage):
    """A started storage on a folder. A queue that could not be loaded is a `Failure` in `loaded`."""

    def __init__(self, folder: Path, backend: str, settings: QueueSettings) -> None:
        super().__init__(folder, lambda name: settings, make_storage=BACKENDS[backend].make)
        self._settings = settings
        self.loaded: dict[bytes, IQueueStorage | Failure] = self.wait(
            DeferredOutcome(self.storage.start(self._settings_for))
        )

    def queue(self, name: bytes) -> IQueueStorage:
        """Return the live queue of that name."""
        return self.storage.queue(name, self._settings)

    def put(self, data: bytes, *names: bytes) -> None:
        """Put one item to these queues and commit it."""
        queues = [self.queue(name) for name in names]
        self.storage.put(queues, data, self.now_ms(), 0)
        self.commit(*queues)

    def take(self, name: bytes, *, opened: bool = False) -> int:
        """Take the head, commit that, and return its xid."""
        queue = self.queue(name)
        item = self.head(queue, partial(queue.take, opened))
        assert item is not None
        self.commit(queue)
        return item.xid

    def confirm(self, name: bytes, xid: int) -> None:
        """Confirm an open read."""
        assert self.queue(name).confirm([xid]) == 1
        self.commit(self.queue(name))

    def abort(self, name: bytes, xid: int) -> None:
        """Return an open read to the head."""
        self.queue(name).put_back([xid], True)
        self.commit(self.queue(name))

    def commit(self, *queues: IQueueStorage) -> None:
        """Commit these queues and run all jobs. Raise the error of a commit."""
        outcomes = [DeferredOutcome(safe) for _, safe in self.storage.commit(queues)]
        self.run_all()
        for outcome in outcomes:
            self.wait(outcome)

    def items(self, name: bytes) -> list[bytes]:
        """Return the data of all items of a queue, without removing them."""
        queue = self.queue(name)
        items = list(iter(lambda: self.head(queue, partial(queue.take, True)), None))
        queue.put_back([item.xid for item in items], False)
        return [item.data for item in items]

    def run_upkeep(self) -> None:
        """Advance the time until checkpoints are written and unneeded files are erased."""
        self.clock.advance(CHECKPOINTED_S)
        self.run_all()


# Scenes.


class SceneWriter:
    """Runs operations on the queues of a scene, and records the expected items."""

    def __init__(self, folder: Path, backend: str, settings: QueueSettings) -> None:
        self.folder, self.backend = folder, backend
        self.run = StorageRun(folder, backend, settings)
        self.put_items: dict[bytes, list[bytes]] = defaultdict(list)
        self._waiting: dict[bytes, list[bytes]] = defaultdict(list)
        self._open: dict[bytes, dict[int, bytes]] = defaultdict(dict)

    def put(self, count: int, *names: bytes, padding: int = 0) -> None:
        """Put that many items to each of these queues."""
        for _ in range(count):
            number = sum(map(len, self.put_items.values()))
            data = b"item-%03d-of-%b;" % (number, names[0][:8]) + b"." * padding
            for name in names:
                self.put_items[name].append(data)
                self._waiting[name].append(data)
            self.run.put(data, *names)

    def take(self, name: bytes) -> None:
        """Take and remove the head."""
        self.run.take(name)
        del self._waiting[name][0]

    def open(self, name: bytes) -> int:
        """Open the head."""
        xid = self.run.take(name, opened=True)
        self._open[name][xid] = self._waiting[name].pop(0)
        return xid

    def confirm(self, name: bytes, xid: int) -> None:
        """Confirm an open read."""
        self.run.confirm(name, xid)
        del self._open[name][xid]

    def abort(self, name: bytes, xid: int) -> None:
        """Return an open read to the head."""
        self.run.abort(name, xid)
        self._waiting[name].insert(0, self._open[name].pop(xid))

    def scene(self, only: str = "") -> Scene:
        """Return the folder as a kill would leave it now."""
        pending = {name: {*self._waiting[name], *self._open[name].values()} for name in self.put_items}
        put = {name: set(items) for name, items in self.put_items.items()}
        return Scene(self.backend, files_below(self.folder), put, pending, only)


def three_file_journal(folder: Path) -> Scene:
    """Write two rotated files and a current one. Items of each file are finished by records of later files."""
    writer = SceneWriter(folder, "journal", QueueSettings(max_memory_size_bytes=260))
    name = b"work"
    writer.put(2, b"other")
    writer.put(6, name)
    writer.take(name)
    first, second = writer.open(name), writer.open(name)
    writer.confirm(name, first)
    writer.put(4, name)
    writer.confirm(name, second)
    third, fourth = writer.open(name), writer.open(name)
    writer.abort(name, third)
    writer.take(name)
    writer.put(4, name)
    writer.confirm(name, fourth)
    writer.open(name)
    writer.take(name)
    writer.put(1, name)
    return writer.scene()


def scroll_with_two_readers(folder: Path) -> Scene:
    """Write several writer files that a parent and its child have read in part, and a queue with a hashed name."""
    writer = SceneWriter(folder, "scroll", QueueSettings(default_journal_size_bytes=200))
    parent, child = b"news", b"news+a"
    writer.run.queue(parent)
    writer.run.queue(child)
    writer.put(1, b"\xe9" * 61)
    writer.put(5, parent, child)
    writer.take(parent)
    writer.take(child)
    held = writer.open(child)
    writer.put(5, parent, child)
    writer.put(1, child)
    writer.take(parent)
    writer.open(parent)
    writer.take(parent)
    writer.confirm(child, held)
    writer.abort(child, writer.open(child))
    writer.take(child)
    writer.open(child)
    writer.take(child)
    writer.put(5, parent, child)
    writer.take(parent)
    return writer.scene()


def hinted_scroll(folder: Path) -> Scene:
    """Write a scroll that is large enough for a hint, and stop in order, which writes the hint."""
    writer = SceneWriter(folder, "scroll", QueueSettings(default_journal_size_bytes=150_000))
    writer.put(7, b"large", padding=50_000)
    writer.take(b"large")
    writer.open(b"large")
    writer.take(b"large")
    writer.run.run_upkeep()
    writer.run.close()
    return writer.scene(only=".kestrel/")


MAKERS: Final[dict[str, Callable[[Path], Scene]]] = {
    "three-file-journal": three_file_journal,
    "scroll-with-two-readers": scroll_with_two_readers,
    "hinted-scroll": hinted_scroll,
}


def make_scene(name: str) -> Scene:
    """Return the scene of that name, freshly made."""
    with quick_folder() as folder:
        return MAKERS[name](folder)
