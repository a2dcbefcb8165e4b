"""Storages with one bug each, derived from the example backend. All of them run the contract suite.

pytest does not collect this module with the other tests. `test_contract_suite.py` runs it and checks which tests fail.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from examples.backend import Entry, LinesQueue, LinesStorage, _all_lines, line
from kestrel.config.model import QueueSettings
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import StorageUnderTest
from tests.storage.test_example import TestExample


class TestUnbroken(TestExample):
    def compact(self, subject: StorageUnderTest, queue: IQueueStorage) -> None:
        if queue.disk_bytes:
            old_path, queue.path = queue.path, subject.storage._new_path(queue.name)
            subject.storage._replace(old_path, queue.path, _all_lines(queue))
            queue.disk_bytes = os.path.getsize(queue.path)


class LosesNewestItem(LinesStorage):
    """A start loses the newest item of each queue."""

    def _load(self, path: bytes, size: int) -> LinesQueue | None:
        queue = super()._load(path, size)
        if queue is not None and queue.items:
            queue.bytes -= len(queue._waiting.pop().data)
            queue.replayed_items -= 1
        return queue


class ReversesAbortedItems(LinesStorage):
    """Items are put back in the reverse order."""

    def queue(self, name: bytes, settings: QueueSettings) -> LinesQueue:
        queue = super().queue(name, settings)
        queue.put_back = lambda xids, failed: LinesQueue.put_back(queue, xids[::-1], failed)  # type: ignore[method-assign]
        return queue


class ForgetsConfirms(LinesStorage):
    """Confirmed items return after a start."""

    def queue(self, name: bytes, settings: QueueSettings) -> LinesQueue:
        queue = super().queue(name, settings)

        def confirm(xids: Sequence[int]) -> int:
            count = LinesQueue.confirm(queue, xids)
            queue.recorded.pop()
            return count

        queue.confirm = confirm  # type: ignore[method-assign]
        return queue


class DuplicatesItemsInCompaction(LinesStorage):
    """A compaction writes each item twice."""

    def _replace(self, old: bytes, path: bytes, data: bytes) -> None:
        name, *puts = data.splitlines(keepends=True)
        copies = [line(kind, number + 0.5, *fields) for kind, number, *fields in map(json.loads, puts)]
        super()._replace(old, path, b"".join((name, *puts, *copies)))


class IgnoresCaseOfNames(LinesStorage):
    """Names that differ only in case share a file."""

    def _new_path(self, name: bytes) -> bytes:
        return super()._new_path(name.lower())


class AcknowledgesBeforeCommit(LinesStorage):
    """A commit is reported as safe before its thread has begun."""

    def commit(self, queues: Sequence[LinesQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        self._in_thread(super().commit, queues)
        return ()


class ForgetsFailedSync(LinesStorage):
    """A queue remains in use after a failed commit."""

    def _write(self, queue: LinesQueue, data: bytes, kept: list[Entry]) -> Deferred[None]:
        def ignore(failure: Failure) -> Failure:
            queue.failure = None
            return failure

        return super()._write(queue, data, kept).addErrback(ignore)


class DropsTrailingZeros(LinesStorage):
    """Zeros at the end of an item are lost on disk."""

    def put(self, queues: Sequence[LinesQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        super().put(queues, data, add_ms, expiry_ms)
        for queue in queues:
            queue.recorded[-1] = queue._waiting[-1]._replace(data=data.rstrip(b"\0")).line()


class RestoresDeletedQueues(LinesStorage):
    """A deleted queue returns after a start."""

    def _erase(self, path: bytes) -> None:
        self._disk.sync_folder(self._folder)


class IgnoresDeleteOfFailedQueue(LinesStorage):
    """Deleting a failed object deletes nothing."""

    def delete(self, queue: LinesQueue) -> None:
        if queue.failure is None:
            super().delete(queue)
        else:
            queue.is_deleted = True


FOUND_BY: Final[Mapping[type[LinesStorage], tuple[str, ...]]] = {
    LosesNewestItem: ("test_items_keep_their_add_and_expiry_times", "test_kill_after_a_commit_loses_nothing"),
    ReversesAbortedItems: ("test_first_xid_put_back_becomes_the_head",),
    ForgetsConfirms: (
        "test_restart_does_not_restore_items_confirmed_out_of_order",
        "test_kill_after_a_commit_loses_nothing",
    ),
    DuplicatesItemsInCompaction: ("test_space_of_taken_items_is_freed", "test_maintenance_keeps_the_items"),
    IgnoresCaseOfNames: ("test_similar_names_are_different_queues",),
    AcknowledgesBeforeCommit: (
        "test_acknowledged_commit_survives_a_kill",
        "test_synced_commit_survives_a_power_failure",
    ),
    ForgetsFailedSync: ("test_changes_recorded_during_a_failed_commit_fail",),
    DropsTrailingZeros: ("test_items_keep_arbitrary_bytes",),
    RestoresDeletedQueues: ("test_committed_deletion_is_not_undone",),
    IgnoresDeleteOfFailedQueue: ("test_deletion_of_a_failed_object_deletes_the_reopened_queue",),
}
"""The contract tests that find each bug."""

for bug in FOUND_BY:
    globals()[f"Test{bug.__name__}"] = type(f"Test{bug.__name__}", (TestUnbroken,), {"storage_class": bug})
