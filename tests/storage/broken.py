"""Storages with one fault each, and the one that they were made of: all of them run the contract suite.

Not collected with the other tests: `test_contract_suite.py` runs it, and sees what fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.storage.interfaces import InThread, IQueueStorage, SettingsFor
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.suite import OnFaultyDisk, StorageContract
from tests.storage.tiny import Family, Stored, TinyQueue, TinyStorage, TinyStorageFactory


class TestUnbroken(OnFaultyDisk, StorageContract):
    factory = TinyStorageFactory()
    has_window = True
    storage_class: type[TinyStorage] = TinyStorage

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> TinyStorage:
        return self.storage_class(str(folder).encode(), clock, in_thread, self.disk)

    def refuse_puts(self, subject: StorageUnderTest) -> None:
        subject.storage.refusal = "for a test"

    def compact(self, subject: StorageUnderTest, queue: IQueueStorage) -> None:
        subject.storage.compact(queue.family)


class LosesTheLastItem(TinyStorage):
    """At a start the newest item of each queue is missing."""

    def load(self, name: bytes, settings_for: SettingsFor) -> Family:
        family = super().load(name, settings_for)
        for queue in family.queues.values():
            if queue.order:
                queue.order.pop()
                queue.window_items = min(queue.window_items, len(queue.order))
                queue.replayed_items = len(queue.order)
        return family


class ReordersOnAbort(TinyStorage):
    """What is put back is not in the order that was asked for."""

    def queue(self, name: bytes, settings: QueueSettings) -> TinyQueue:
        queue = super().queue(name, settings)
        queue.put_back = lambda xids, failed: TinyQueue.put_back(queue, xids[::-1], failed)  # type: ignore[method-assign]
        return queue


class ForgetsConfirms(TinyStorage):
    """What was confirmed is there again after a start."""

    def replay(self, family: Family, record: dict[str, Any], settings_for: SettingsFor) -> None:
        if record["op"] != "done":
            super().replay(family, record, settings_for)


class DoublesOnCompaction(TinyStorage):
    """A compaction writes every item twice."""

    def record_put(self, family: Family, item_id: int, queues: Any, stored: Stored) -> None:
        super().record_put(family, item_id, queues, stored)
        if family is not self.families[family.name]:
            super().record_put(family, item_id, queues, stored)


class MixesTwoQueues(TinyStorage):
    """Names that differ in the case of a letter alone are one file."""

    def path(self, family_name: bytes) -> bytes:
        return super().path(family_name.lower())


class AcknowledgesBeforeTheCommit(TinyStorage):
    """A commit is said to be safe when a thread is yet to begin it."""

    def commit(self, queues: Sequence[TinyQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        self.in_thread(super().commit, queues)
        return ()


class AcknowledgesALaterBatch(TinyStorage):
    """A sync that failed is forgotten: the queue goes on, and the next sync is believed."""

    def sync_failed(self, family: Family, failure: Failure) -> None:
        failure.raiseException()


class TruncatesZeros(TinyStorage):
    """Zeros at the end of an item are lost on the disk."""

    def encoded(self, data: bytes) -> str:
        return super().encoded(data.rstrip(b"\0"))


class LeaksDeletedQueues(TinyStorage):
    """A queue that was deleted is there again after a start."""

    def replay(self, family: Family, record: dict[str, Any], settings_for: SettingsFor) -> None:
        if record["op"] != "drop":
            super().replay(family, record, settings_for)


class KeepsWhatHasDied(TinyStorage):
    """With an object that has died nothing is deleted."""

    def delete(self, queue: TinyQueue) -> None:
        if queue.failure is None:
            super().delete(queue)
        else:
            queue.family = self.queue(queue.name, queue.settings).family


class TestLosesTheLastItem(TestUnbroken):
    storage_class = LosesTheLastItem


class TestReordersOnAbort(TestUnbroken):
    storage_class = ReordersOnAbort


class TestForgetsConfirms(TestUnbroken):
    storage_class = ForgetsConfirms


class TestDoublesOnCompaction(TestUnbroken):
    storage_class = DoublesOnCompaction


class TestMixesTwoQueues(TestUnbroken):
    storage_class = MixesTwoQueues


class TestAcknowledgesBeforeTheCommit(TestUnbroken):
    storage_class = AcknowledgesBeforeTheCommit


class TestAcknowledgesALaterBatch(TestUnbroken):
    storage_class = AcknowledgesALaterBatch


class TestTruncatesZeros(TestUnbroken):
    storage_class = TruncatesZeros


class TestLeaksDeletedQueues(TestUnbroken):
    storage_class = LeaksDeletedQueues


class TestKeepsWhatHasDied(TestUnbroken):
    storage_class = KeepsWhatHasDied
