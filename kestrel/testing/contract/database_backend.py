"""What an author tells of a database, and one that is owned: all that the tests of an `IDatabase` are given."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import DatabaseAway
from kestrel.storage.database import IDatabase, QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from kestrel.testing.contract.backend import MAX_JOBS, DeferredOutcome
from kestrel.testing.contract.samples import ADD_MS
from kestrel.testing.threads import SteppedThreads, Threads

ATTEMPTS: Final = 100
"""So often a batch is applied at most until it is known what became of it."""

ALL: Final = 1 << 30
"""More items, and more bytes, than any test has."""


class DatabaseBackend(ABC):
    """How the suite makes a database, and the hooks by which an author opens further tests."""

    lose_hold: ClassVar[Callable[[Any, IDatabase], None] | None] = None
    """Hook: end the connection of that database behind its back, so that another one can take ownership."""

    impossible: ClassVar[Callable[[Any, StoredQueue], QueueChanges] | None] = None
    """Hook: changes of that queue, which has items at positions 1 to 4, that the database cannot apply."""

    fill_database: ClassVar[Callable[[Any, IDatabase], None] | None] = None
    """Hook: leave that database no room for more than it has."""

    is_embedded: ClassVar[bool] = False
    """Hook: the database runs in the process of its owner, and keeps its files in the folder. Opens the tests of kills,
    failing disks and power failures."""

    unsafe_files: ClassVar[tuple[str, ...]] = ("*-shm",)
    """Patterns of files that the database rebuilds after a crash. They may be written through mapped memory."""

    max_examples: ClassVar[int] = 60
    """How many random histories are tried."""

    @abstractmethod
    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        """A database that nobody has called yet; made of the same folder again, it has the same queues."""

    def after_a_kill(self, owner: OwnedDatabase, folder: Path) -> None:
        """Let `folder` name what is left if the process of that owner dies now; nobody owns it. Here: a copy."""
        shutil.copytree(owner.folder, folder)

    @pytest.fixture
    def owner(self, tmp_path: Path) -> Iterator[OwnedDatabase]:
        """A database of which nothing was known before."""
        owner = OwnedDatabase(self, tmp_path / "database")
        yield owner
        owner.end()


class OwnedDatabase:
    """A database that belongs to us, with its threads, and short words for what tests do with it."""

    def __init__(self, backend: DatabaseBackend, folder: Path, threads: Threads | None = None) -> None:
        """Take ownership of the database in that folder. Its jobs run in `SteppedThreads` unless others are given."""
        self.backend = backend
        self.folder = folder
        self.threads: Threads = SteppedThreads() if threads is None else threads
        self._others: list[OwnedDatabase] = []
        self._is_closed = False
        self.number = 0
        """Of the last batch."""
        self.database = backend.make_database(folder, self.threads)
        try:
            listed: Sequence[StoredQueue] = self.wait(self.database.list_queues())
        except BaseException:
            self.close()
            raise
        self.queues = {queue.name: queue for queue in listed}
        assert len(self.queues) == len(listed), "a queue is there twice"
        self.found = dict(self.queues)
        """What there was when ownership was taken."""

    # Waiting.

    def run_threads(self) -> None:
        """Do all jobs, and what they lead to."""
        for _ in range(MAX_JOBS):
            if not self.threads:
                return
            self.threads.run_one()
        raise AssertionError("the jobs do not come to an end")

    def wait(self, deferred: Deferred[Any]) -> Any:
        """What it fires with, when the threads have run; raises its failure."""
        outcome = DeferredOutcome(deferred)
        while not outcome.is_there and self.threads:
            self.threads.run_one()
        assert outcome.is_there, "all threads have run, and the Deferred has not fired"
        return outcome.result()

    # Batches.

    def batch(self, *changes: QueueChanges) -> WriteBatch:
        """The next one, with these changes."""
        self.number += 1
        return WriteBatch(self.number, changes)

    def apply(self, *changes: QueueChanges) -> WriteBatch:
        """Apply the next batch, and wait for it."""
        batch = self.batch(*changes)
        self.wait(self.database.apply(batch))
        return batch

    def apply_until_known(self, batch: WriteBatch) -> None:
        """Apply it again as long as the database is away."""
        for _ in range(ATTEMPTS):
            try:
                self.wait(self.database.apply(batch))
            except DatabaseAway:
                continue
            return
        raise AssertionError(f"the database is still away when batch {batch.number} comes for the {ATTEMPTS}th time")

    def changes(
        self,
        name: bytes = b"work",
        *,
        puts: Sequence[StoredItem] = (),
        removed: Sequence[tuple[int, int]] = (),
        errors: Mapping[int, int] | None = None,
        is_new: bool = False,
        gone_to: int | None = None,
    ) -> QueueChanges:
        """Changes of a queue, with the figures that it has afterwards; all items that it has are read for them.

        They are taken for applied from now on. A queue that nobody knows is new.
        """
        is_new = is_new or name not in self.queues
        before = StoredQueue(name, 0, 0, 0, 0) if is_new else self.queues[name]
        items = [] if is_new else self.read(name)
        kept = [item for item in items if not any(first <= item.position <= last for first, last in removed)]
        kept += puts
        last = max([before.last, *(item.position for item in puts)])
        size = sum(len(item.data) for item in kept)
        queue = StoredQueue(name, len(kept), size, before.gone_to if gone_to is None else gone_to, last)
        self.queues[name] = queue
        return QueueChanges(queue, is_new, False, removed, puts, errors or {})

    def deletion(self, name: bytes = b"work") -> QueueChanges:
        """The end of a queue, taken for applied from now on."""
        queue = self.queues.pop(name, StoredQueue(name, 0, 0, 0, 0))
        return QueueChanges(queue._replace(items=0, bytes=0), False, True, (), (), {})

    def put(self, name: bytes, *items: StoredItem) -> None:
        """Items behind those that the queue has, in a batch of their own."""
        self.apply(self.changes(name, puts=items))

    # Reads.

    def read(
        self, name: bytes = b"work", position: int | None = None, n: int = ALL, max_bytes: int = ALL
    ) -> list[StoredItem]:
        """Items of that queue; as a rule all of them."""
        if position is None:
            position = self.queues[name].gone_to if name in self.queues else 0
        return list(self.wait(self.database.read_after(name, position, n, max_bytes)))

    def positions(
        self, name: bytes = b"work", position: int | None = None, n: int = ALL, max_bytes: int = ALL
    ) -> list[int]:
        """Where they stand."""
        return [item.position for item in self.read(name, position, n, max_bytes)]

    # Ends and new beginnings.

    def another(self, folder: Path | None = None) -> OwnedDatabase:
        """One more owner, of the same folder or that one."""
        other = OwnedDatabase(self.backend, folder or self.folder)
        self._others.append(other)
        return other

    def restarted(self) -> OwnedDatabase:
        """Closed, and another owner of the same database; the queues are as the last batch left each."""
        self.close()
        again = self.another()
        assert again.found == self.queues
        return again

    def killed(self) -> OwnedDatabase:
        """The owner of what is left when the process dies now."""
        numbered = (self.folder.with_name(f"{self.folder.name}~{number}") for number in range(1, 1 << 30))
        folder = next(path for path in numbered if path not in self._folders())
        self.backend.after_a_kill(self, folder)
        return self.another(folder)

    def _folders(self) -> set[Path]:
        return {self.folder, *(path for other in self._others for path in other._folders())}

    def close(self) -> None:
        """Close the database unless it is closed."""
        if not self._is_closed:
            self.wait(self.begin_close())

    def begin_close(self) -> Deferred[None]:
        """Call the database's `close`, and do not wait for it."""
        self._is_closed = True
        return self.database.close()

    def end(self) -> None:
        """Close this, and all that came of it."""
        for other in self._others:
            other.end()
        self.close()


def item(position: int, data: bytes | None = None, errors: int = 0) -> StoredItem:
    """An item at that position, with data and times of its own."""
    data = b"%d" % position if data is None else data
    return StoredItem(position, data, ADD_MS + position % 1000, position % 3 and ADD_MS + 60_000, errors)


def items(*positions: int) -> list[StoredItem]:
    """Items at these positions."""
    return [item(position) for position in positions]
