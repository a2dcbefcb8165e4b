"""Databases with one fault each, and the one that they were made of: all of them run the suite of databases.

Not collected with the other tests: `test_contract_suite.py` runs it, and sees what fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twisted.internet.defer import Deferred

from kestrel.errors import StorageRefused
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from kestrel.testing.databases import MemoryDatabase, MemoryTables
from tests.storage.windowed import test_contract as test_windowed_contract


class TestUnbrokenDatabase(test_windowed_contract.TestMemoryDatabase):
    pass


class Careless(MemoryTables):
    """They look at nothing that is done to them."""

    def check(self, queue: StoredQueue, items: Sequence[StoredItem]) -> None:
        pass


class ForgetsTheNumber(Careless):
    """A batch whose answer was lost is applied once more."""

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        super().apply(batch, epoch)
        self.last_number = 0


class RemembersTheNumberOfAnother(Careless):
    """A new owner's first batch is taken for the last one's."""

    def own(self, owner: object) -> int:
        number = self.last_number
        epoch = super().own(owner)
        self.last_number = number
        return epoch


class AppliesQueueByQueue(MemoryTables):
    """Each queue's changes are a transaction of their own."""

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        for change in batch.changes:
            super().apply(batch._replace(changes=[change]), epoch)
            self.last_number = 0
        self.last_number = batch.number


class ShowsWhatIsPending(MemoryDatabase):
    """What a batch removes is gone before what it puts is there: a read sees it so, and a kill leaves it so."""

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        whole = super().apply
        first = whole(batch._replace(number=-batch.number, changes=[each._replace(puts=()) for each in batch.changes]))
        return first.addCallback(lambda _: whole(batch))


class BelongsToTwo(Careless):
    """Whoever asks is the owner."""

    def own(self, owner: object) -> int:
        self.owner = None
        return super().own(owner)


class ListensToTheLastOwner(Careless):
    """What an earlier owner sends is applied."""

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        super().apply(batch, self.epoch)


class IgnoresIsNew(Careless):
    """A new queue has the items of the one that had its name."""

    def change(
        self, queues: dict[bytes, StoredQueue], items: dict[bytes, list[StoredItem]], change: QueueChanges
    ) -> None:
        super().change(queues, items, change._replace(is_new=False))


class LeavesTheEndOfRanges(Careless):
    """The last position of a range is not taken for a part of it."""

    def remove(self, items: list[StoredItem], removed: Sequence[tuple[int, int]]) -> None:
        super().remove(items, [(first, last - 1) for first, last in removed])


class LosesErrors(Careless):
    """Error counts are not kept."""

    def change(
        self, queues: dict[bytes, StoredQueue], items: dict[bytes, list[StoredItem]], change: QueueChanges
    ) -> None:
        super().change(queues, items, change._replace(errors={}))


class ReadsNewestFirst(Careless):
    """The newest items are found where the oldest are asked for."""

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        found = super().read_after(name, position, 1 << 30, 1 << 30)
        return found[-n:]


class MixesNames(Careless):
    """Names end where they have a zero, as strings of C do."""

    def change(
        self, queues: dict[bytes, StoredQueue], items: dict[bytes, list[StoredItem]], change: QueueChanges
    ) -> None:
        queue = change.queue._replace(name=change.queue.name.partition(b"\0")[0])
        super().change(queues, items, change._replace(queue=queue))

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        return super().read_after(name.partition(b"\0")[0], position, n, max_bytes)


class NeedsRoomForEverything(MemoryTables):
    """Where there is none, a batch that takes items out is refused as well."""

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        if self.room is not None:
            raise StorageRefused("the database is full")
        super().apply(batch, epoch)


class TestForgetsTheNumber(TestUnbrokenDatabase):
    tables_class = ForgetsTheNumber


class TestRemembersTheNumberOfAnother(TestUnbrokenDatabase):
    tables_class = RemembersTheNumberOfAnother


class TestAppliesQueueByQueue(TestUnbrokenDatabase):
    tables_class = AppliesQueueByQueue


class TestShowsWhatIsPending(TestUnbrokenDatabase):
    tables_class = Careless

    def make_database(self, folder: Path, in_thread: InThread) -> MemoryDatabase:
        return ShowsWhatIsPending(super().make_database(folder, in_thread).tables, in_thread)


class TestBelongsToTwo(TestUnbrokenDatabase):
    tables_class = BelongsToTwo


class TestListensToTheLastOwner(TestUnbrokenDatabase):
    tables_class = ListensToTheLastOwner


class TestIgnoresIsNew(TestUnbrokenDatabase):
    tables_class = IgnoresIsNew


class TestLeavesTheEndOfRanges(TestUnbrokenDatabase):
    tables_class = LeavesTheEndOfRanges


class TestLosesErrors(TestUnbrokenDatabase):
    tables_class = LosesErrors


class TestReadsNewestFirst(TestUnbrokenDatabase):
    tables_class = ReadsNewestFirst


class TestMixesNames(TestUnbrokenDatabase):
    tables_class = MixesNames


class TestNeedsRoomForEverything(TestUnbrokenDatabase):
    tables_class = NeedsRoomForEverything
