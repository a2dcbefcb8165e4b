"""Compaction: a backend that keeps its medium small changes no contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel.testing.contract.backend import Backend, StorageUnderTest
from kestrel.testing.contract.model_check import ModelCheckedStorage
from kestrel.testing.contract.requirements import requires

PUT_BYTES = 100_000
KEPT_BYTES = 30_000
"""The bytes that a storage may still take after all but a few items are gone."""


@requires("durable")
class UpkeepTests(Backend):
    """Compaction with `upkeep_settings`."""

    @pytest.fixture
    def kept_small(self, tmp_path: Path) -> Iterator[StorageUnderTest]:
        """Provide a storage with limits of a few kilobytes."""
        subject = StorageUnderTest(self, tmp_path / "kept-small", **self.upkeep_settings)
        yield subject
        subject.end()

    def test_space_of_taken_items_is_freed(self, kept_small: StorageUnderTest) -> None:
        queue = kept_small.queue()
        items = [b"%05d" % number * 20 for number in range(PUT_BYTES // 100)]
        for number, data in enumerate(items):
            kept_small.put(queue, data)
            if number % 20 == 19:
                kept_small.commit(queue)
        for number, data in enumerate(items[:-3]):
            assert kept_small.get(queue).data == data
            if number % 20 == 19:
                kept_small.commit(queue)
        kept_small.commit(queue)
        self.compact(kept_small, queue)
        assert queue.disk_bytes < KEPT_BYTES
        self._check_that_it_is_small(kept_small)
        assert kept_small.data_in(queue) == items[-3:]
        again = kept_small.restarted()
        assert again.take_all_data(again.queue()) == items[-3:]

    def test_space_of_deleted_queues_is_freed(self, kept_small: StorageUnderTest) -> None:
        old = kept_small.queue()
        for _ in range(PUT_BYTES // 1000):
            kept_small.put(old, *[b"." * 100] * 10)
            kept_small.commit(old)
        kept_small.storage.delete(old)
        new = kept_small.queue()
        kept_small.commit(old, new)
        self.compact(kept_small, new)
        self._check_that_it_is_small(kept_small)
        assert kept_small.take_all_data(new) == []

    def _check_that_it_is_small(self, subject: StorageUnderTest) -> None:
        taken = self.taken_bytes(subject)
        assert taken < KEPT_BYTES, (
            f"taken_bytes() is {taken} and should be below {KEPT_BYTES}; override taken_bytes() if it counts free space"
            " that the storage will reuse"
        )

    def test_maintenance_does_not_grow_an_idle_queue(self, kept_small: StorageUnderTest) -> None:
        queue = kept_small.queue()
        kept_small.put(queue, *[b"%03d" % number for number in range(50)])
        kept_small.commit(queue)
        self.compact(kept_small, queue)
        size = queue.disk_bytes
        for _ in range(3):
            self.compact(kept_small, queue)
            assert queue.disk_bytes <= size
        assert (queue.items, queue.bytes) == (50, 150)

    def test_maintenance_keeps_the_items(self, kept_small: StorageUnderTest) -> None:
        tracked = ModelCheckedStorage(kept_small)
        names = [b"a", b"a+x", b"a+y", b"other"]
        for turn in range(30):
            for number in range(5):
                tracked.put(names, b"%d-%d;" % (turn, number) * 10, expires=number == 3)
            for name in names[:3]:
                tracked.take(name, opened=True)
                tracked.take(name, opened=turn % 3 == 0)
            opened = list(tracked.models[b"a+x"].opened)
            tracked.put_back(b"a+x", opened[1::3], failed=True)
            tracked.confirm(b"a+x", opened[2::3])
            tracked.compact(names[turn % 4])
            tracked.check()
        killed = tracked.killed()
        killed.check()
        for name in names:
            killed.compact(name)
        killed.check()
        killed.restarted().check()
