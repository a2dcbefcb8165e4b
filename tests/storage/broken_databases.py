"""Databases with one bug each, which the contract suite has to find.

pytest does not collect this module by itself: `test_contract_suite.py` runs it and checks which tests fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from twisted.internet.defer import Deferred

from kestrel.errors import StorageRefused
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.storage.interfaces import InThread
from kestrel.testing.databases import MemoryDatabase, MemoryTables
from tests.storage.windowed import test_contract as test_windowed_contract


class TestUnbrokenDatabase(test_windowed_contract.TestMemoryDatabase):
    database_class: type[MemoryDatabase] = MemoryDatabase

    def make_database(self, folder: Path, in_thread: InThread) -> MemoryDatabase:
        return self.database_class(super().make_database(folder, in_thread).tables, in_thread)


class UncheckedTables(MemoryTables):
    """Tables that do not check their contents."""

    def check(self, queue: StoredQueue, items: Sequence[StoredItem]) -> None:
        pass


class AppliesRepeatedBatchAgain(UncheckedTables):
    """A batch that is sent again is applied again."""

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        super().apply(batch, epoch)
        self.last_number = 0


class KeepsBatchNumberOfLastOwner(UncheckedTables):
    """The first batch of a new owner is taken for a repeated batch of the last owner."""

    def own(self, owner: object) -> int:
        number = self.last_number
        epoch = super().own(owner)
        self.last_number = number
        return epoch


class AppliesQueueByQueue(MemoryTables):
    """The changes of each queue are a separate transaction."""

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        for change in batch.changes:
            super().apply(batch._replace(changes=[change]), epoch)
            self.last_number = 0
        self.last_number = batch.number


class AppliesRemovesBeforePuts(MemoryDatabase):
    """Removes are applied before puts, so that a read or a kill can see half of a batch."""

    def apply(self, batch: WriteBatch) -> Deferred[None]:
        whole = super().apply
        first = whole(batch._replace(number=-batch.number, changes=[each._replace(puts=()) for each in batch.changes]))
        return first.addCallback(lambda _: whole(batch))


class AllowsTwoOwners(UncheckedTables):
    """A second owner is accepted while there is one."""

    def own(self, owner: object) -> int:
        self.owner = None
        return super().own(owner)


class ObeysEarlierOwner(UncheckedTables):
    """Batches of an earlier owner are applied."""

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        super().apply(batch, self.epoch)


class IgnoresIsNew(UncheckedTables):
    """A new queue has the items of an earlier queue of that name."""

    def change(
        self, queues: dict[bytes, StoredQueue], items: dict[bytes, list[StoredItem]], change: QueueChanges
    ) -> None:
        super().change(queues, items, change._replace(is_new=False))


class ExcludesEndOfRanges(UncheckedTables):
    """The last position of a removed range is not removed."""

    def remove(self, items: list[StoredItem], removed: Sequence[tuple[int, int]]) -> None:
        super().remove(items, [(first, last - 1) for first, last in removed])


class LosesErrors(UncheckedTables):
    """Error counts are not stored."""

    def change(
        self, queues: dict[bytes, StoredQueue], items: dict[bytes, list[StoredItem]], change: QueueChanges
    ) -> None:
        super().change(queues, items, change._replace(errors={}))


class ReadsNewestFirst(UncheckedTables):
    """A read returns the newest items instead of the oldest."""

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        found = super().read_after(name, position, 1 << 30, 1 << 30)
        return found[-n:]


class EndsNamesAtZeroByte(UncheckedTables):
    """Names end at their first zero byte, like strings in C."""

    def change(
        self, queues: dict[bytes, StoredQueue], items: dict[bytes, list[StoredItem]], change: QueueChanges
    ) -> None:
        queue = change.queue._replace(name=change.queue.name.partition(b"\0")[0])
        super().change(queues, items, change._replace(queue=queue))

    def read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> list[StoredItem]:
        return super().read_after(name.partition(b"\0")[0], position, n, max_bytes)


class NeedsRoomForEverything(MemoryTables):
    """A full database also refuses batches that only remove items."""

    def apply(self, batch: WriteBatch, epoch: int) -> None:
        if self.room is not None:
            raise StorageRefused("the database is full")
        super().apply(batch, epoch)


FOUND_BY: Final[Mapping[type[MemoryTables] | type[MemoryDatabase], tuple[str, ...]]] = {
    AppliesRepeatedBatchAgain: ("test_repeated_batch_succeeds_without_being_applied_again",),
    KeepsBatchNumberOfLastOwner: ("test_each_owner_begins_with_batch_number_one",),
    AppliesQueueByQueue: ("test_batch_with_one_impossible_change_changes_nothing",),
    AppliesRemovesBeforePuts: ("test_read_sees_whole_batches", "test_kill_leaves_whole_batches"),
    AllowsTwoOwners: ("test_second_owner_is_refused_with_a_reason",),
    ObeysEarlierOwner: ("test_replaced_owner_applies_no_batch",),
    IgnoresIsNew: ("test_new_queue_replaces_the_stored_one",),
    ExcludesEndOfRanges: ("test_removed_range_includes_both_ends",),
    LosesErrors: ("test_last_batch_sets_the_error_count",),
    ReadsNewestFirst: ("test_read_returns_at_most_n_items",),
    NeedsRoomForEverything: ("test_items_can_be_removed_from_a_full_database",),
    EndsNamesAtZeroByte: ("test_names_are_compared_byte_by_byte",),
}
"""The contract tests that find each bug."""

for bug in FOUND_BY:
    classes = {"tables_class": bug}
    if bug is AppliesRemovesBeforePuts:
        classes = {"tables_class": UncheckedTables, "database_class": bug}
    globals()[f"Test{bug.__name__}"] = type(f"Test{bug.__name__}", (TestUnbrokenDatabase,), classes)
