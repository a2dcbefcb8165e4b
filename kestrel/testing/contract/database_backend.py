"""The base class of a database's test class, and the owned database that each test uses."""

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
from kestrel.testing.contract.backend import MAX_JOBS, DeferredOutcome, new_folder
from kestrel.testing.contract.requirements import ADD_MS
from kestrel.testing.threads import SteppedThreads, Threads

ATTEMPTS: Final = 100
"""The number of times a batch is applied before a test gives up on an unknown outcome."""

ALL: Final = 1 << 30
"""More items, and more bytes, than any test has."""


class DatabaseBackend(ABC):
    """The base class of a database's tests: how to make a database, and hooks that enable more tests."""

    lose_hold: ClassVar[Callable[[Any, IDatabase], None] | None] = None
    """Hook: end the connection of that database without its knowledge, so that another one can take ownership."""

    impossible: ClassVar[Callable[[Any, StoredQueue], QueueChanges] | None] = None
    """Hook: return changes that the database cannot apply, for a queue with items at positions 1 to 4."""

    fill_database: ClassVar[Callable[[Any, IDatabase], None] | None] = None
    """Hook: fill the database, so that it has no room for more data."""

    is_embedded: ClassVar[bool] = False
    """Hook: the database runs in its owner's process, with its files in the folder. Enables crash and disk tests."""

    unsafe_files: ClassVar[tuple[str, ...]] = ("*-shm",)
    """Patterns of files that the database rebuilds after a crash. They may be written through mapped memory."""

    max_examples: ClassVar[int] = 60
    """The number of random histories to try."""

    @abstractmethod
    def make_database(self, folder: Path, in_thread: InThread) -> IDatabase:
        """Return a new database, not called yet. It has the queues that an earlier one left in the folder."""

    def after_a_kill(self, owner: OwnedDatabase, folder: Path) -> None:
        """Fill `folder` with the files that a kill of the owner would leave now, without an owner. Default: a copy."""
        shutil.copytree(owner.folder, folder)

    @pytest.fixture
    def owner(self, tmp_path: Path) -> Iterator[OwnedDatabase]:
        """Provide the owner of a new, empty database."""
        owner = OwnedDatabase(self, tmp_path / "database")
        yield owner
        owner.end()


class OwnedDatabase:
    """A database whose ownership was taken, with its threads and shortcuts for tests."""

    def __init__(self, backend: DatabaseBackend, folder: Path, threads: Threads | None = None) -> None:
        """Take ownership of the database in that folder. `threads` defaults to `SteppedThreads`."""
        self.backend = backend
        self.folder = folder
        self.threads: Threads = SteppedThreads() if threads is None else threads
        self._others: list[OwnedDatabase] = []
        self._is_closed = False
        self.number = 0
        """The number of the last batch."""
        self.database = backend.make_database(folder, self.threads)
        try:
            listed: Sequence[StoredQueue] = self.wait(self.database.list_queues())
        except BaseException:
            self.close()
            raise
        self.queues = {queue.name: queue for queue in listed}
        assert len(self.queues) == len(listed), "list_queues returned a queue twice"
        self.found = dict(self.queues)
        """The queues at the time when ownership was taken."""

    # Waiting.

    def run_threads(self) -> None:
        """Run all jobs, including those they add."""
        for _ in range(MAX_JOBS):
            if not self.threads:
                return
            self.threads.run_one()
        raise AssertionError("jobs add more jobs without end")

    def wait(self, deferred: Deferred[Any]) -> Any:
        """Run jobs until the Deferred fires. Return its result, or raise its failure."""
        outcome = DeferredOutcome(deferred)
        while not outcome.is_there and self.threads:
            self.threads.run_one()
        assert outcome.is_there, "all jobs have run, but the Deferred has not fired"
        return outcome.result()

    # Batches.

    def batch(self, *changes: QueueChanges) -> WriteBatch:
        """Return the next batch, with these changes."""
        self.number += 1
        return WriteBatch(self.number, changes)

    def apply(self, *changes: QueueChanges) -> WriteBatch:
        """Apply the next batch and wait. Return it."""
        batch = self.batch(*changes)
        self.wait(self.database.apply(batch))
        return batch

    def apply_until_known(self, batch: WriteBatch) -> None:
        """Apply a batch, and repeat it while the database is away."""
        for _ in range(ATTEMPTS):
            try:
                self.wait(self.database.apply(batch))
            except DatabaseAway:
                continue
            return
        raise AssertionError(f"batch {batch.number} was sent {ATTEMPTS} times, and the database is still away")

    def changes(
        self,
        name: bytes = b"work",
        *,
        puts: Sequence[StoredItem] = (),
        removed: Sequence[tuple[int, int]] = (),
        errors: Mapping[int, int] | None = None,
        is_new: bool = False,
        floor: int | None = None,
    ) -> QueueChanges:
        """Return changes of a queue, with its totals after them. Its items are read to compute these.

        From now on the changes count as applied. An unknown queue is new.
        """
        is_new = is_new or name not in self.queues
        before = StoredQueue(name, 0, 0, 0, 0) if is_new else self.queues[name]
        items = [] if is_new else self.read(name)
        kept = [item for item in items if not any(first <= item.position <= last for first, last in removed)]
        kept += puts
        last = max([before.last, *(item.position for item in puts)])
        size = sum(len(item.data) for item in kept)
        queue = StoredQueue(name, len(kept), size, before.floor if floor is None else floor, last)
        self.queues[name] = queue
        return QueueChanges(queue, is_new, False, removed, puts, errors or {})

    def deletion(self, name: bytes = b"work") -> QueueChanges:
        """Return the deletion of a queue. From now on it counts as applied."""
        queue = self.queues.pop(name, StoredQueue(name, 0, 0, 0, 0))
        return QueueChanges(queue._replace(items=0, bytes=0), False, True, (), (), {})

    def put(self, name: bytes, *items: StoredItem) -> None:
        """Append items to a queue, in one batch."""
        self.apply(self.changes(name, puts=items))

    # Reads.

    def read(
        self, name: bytes = b"work", position: int | None = None, n: int = ALL, max_bytes: int = ALL
    ) -> list[StoredItem]:
        """Return the items of that queue; by default all of them."""
        if position is None:
            position = self.queues[name].floor if name in self.queues else 0
        return list(self.wait(self.database.read_after(name, position, n, max_bytes)))

    def positions(
        self, name: bytes = b"work", position: int | None = None, n: int = ALL, max_bytes: int = ALL
    ) -> list[int]:
        """Return the positions of the items of that queue; by default all of them."""
        return [item.position for item in self.read(name, position, n, max_bytes)]

    # Restarts and crashes.

    def another(self, folder: Path | None = None) -> OwnedDatabase:
        """Return another owner of the same folder, or of `folder`."""
        other = OwnedDatabase(self.backend, folder or self.folder)
        self._others.append(other)
        return other

    def restarted(self) -> OwnedDatabase:
        """Close the database, and return a new owner. Check that it finds all queues as they were."""
        self.close()
        again = self.another()
        assert again.found == self.queues
        return again

    def killed(self) -> OwnedDatabase:
        """Return an owner of the files that remain if the process is killed now."""
        folder = new_folder(self.folder)
        self.backend.after_a_kill(self, folder)
        return self.another(folder)

    def close(self) -> None:
        if not self._is_closed:
            self.wait(self.begin_close())

    def begin_close(self) -> Deferred[None]:
        """Call the database's `close` without waiting."""
        self._is_closed = True
        return self.database.close()

    def end(self) -> None:
        """Close this database and all databases derived from it."""
        for other in self._others:
            other.end()
        self.close()


def item(position: int, data: bytes | None = None, errors: int = 0) -> StoredItem:
    """Return an item at that position, with data and times derived from it."""
    data = b"%d" % position if data is None else data
    return StoredItem(position, data, ADD_MS + position % 1000, position % 3 and ADD_MS + 60_000, errors)


def items(*positions: int) -> list[StoredItem]:
    """Return items at these positions."""
    return [item(position) for position in positions]
