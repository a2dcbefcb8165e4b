"""Storages with one bug each, derived from the example backend. All of them run the contract suite.

pytest does not collect this module with the other tests. `test_contract_suite.py` runs it and checks which tests fail.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

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


class LosesTheLastItem(LinesStorage):
    """A start loses the newest item of each queue."""

    def _load(self, path: bytes, size: int) -> LinesQueue | None:
        queue = super()._load(path, size)
        if queue is not None and queue.items:
            queue.bytes -= len(queue._waiting.pop().data)
            queue.replayed_items -= 1
        return queue


class ReordersOnAbort(LinesStorage):
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


class DoublesOnCompaction(LinesStorage):
    """A compaction writes each item twice."""

    def _replace(self, old: bytes, path: bytes, data: bytes) -> None:
        name, *puts = data.splitlines(keepends=True)
        copies = [line(kind, number + 0.5, *fields) for kind, number, *fields in map(json.loads, puts)]
        super()._replace(old, path, b"".join((name, *puts, *copies)))


class MixesTwoQueues(LinesStorage):
    """Names that differ only in case share a file."""

    def _new_path(self, name: bytes) -> bytes:
        return super()._new_path(name.lower())


class AcknowledgesBeforeTheCommit(LinesStorage):
    """A commit is reported as safe before its thread has begun."""

    def commit(self, queues: Sequence[LinesQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        self._in_thread(super().commit, queues)
        return ()


class AcknowledgesALaterBatch(LinesStorage):
    """A queue remains in use after a failed commit."""

    def _write(self, queue: LinesQueue, data: bytes, kept: list[Entry]) -> Deferred[None]:
        def ignore(failure: Failure) -> Failure:
            queue.failure = None
            return failure

        return super()._write(queue, data, kept).addErrback(ignore)


class TruncatesZeros(LinesStorage):
    """Zeros at the end of an item are lost on disk."""

    def put(self, queues: Sequence[LinesQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        super().put(queues, data, add_ms, expiry_ms)
        for queue in queues:
            queue.recorded[-1] = queue._waiting[-1]._replace(data=data.rstrip(b"\0")).line()


class LeaksDeletedQueues(LinesStorage):
    """A deleted queue returns after a start."""

    def _erase(self, path: bytes) -> None:
        self._disk.sync_folder(self._folder)


class KeepsWhatHasDied(LinesStorage):
    """Deleting a failed object deletes nothing."""

    def delete(self, queue: LinesQueue) -> None:
        if queue.failure is None:
            super().delete(queue)
        else:
            queue.is_deleted = True


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
