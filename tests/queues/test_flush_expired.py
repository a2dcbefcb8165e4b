"""A sweep by itself: when it is done, what it counts, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.python.failure import Failure

from kestrel.errors import StorageError
from kestrel.queues.flush_expired import ExpiredFlush, ExpiredFlushResult
from kestrel.queues.queue import Queue
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage


class Bench:
    """Three queues with two expired items before one that lives on, and what sweeps over them brought."""

    def __init__(self) -> None:
        self.storage = SteppedStorage()
        self.server = MemoryServer(self.storage)
        self.queues = [self.server.manager.queue(name) for name in (b"a", b"b", b"c")]
        for queue in self.queues:
            for lives_ms in (1000, 1000, 0):
                expiry_ms = self.server.now_ms() + lives_ms if lives_ms else 0
                self.server.manager.put(queue.name, b"x", expiry_ms)
        self.server.advance(2)
        self.outcomes: list[ExpiredFlushResult | Failure] = []

    def sweep(self, *queues: Queue) -> None:
        sweep = ExpiredFlush(queues, self.server.scheduler)
        sweep.done.addBoth(self.outcomes.append)
        self.server.settle()

    @property
    def swept(self) -> ExpiredFlushResult:
        (outcome,) = self.outcomes
        assert isinstance(outcome, ExpiredFlushResult)
        return outcome

    def page_out(self, queue: Queue) -> SteppedQueue:
        assert isinstance(queue.store, SteppedQueue)
        queue.store.page_out()
        return queue.store

    @property
    def left(self) -> list[int]:
        return [queue.store.items for queue in self.queues]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_sweep_of_no_queue_is_done_at_once(bench: Bench) -> None:
    bench.sweep()
    assert bench.swept == ExpiredFlushResult(0, None)


def test_a_sweep_counts_what_expired_in_its_queues_alone(bench: Bench) -> None:
    bench.sweep(*bench.queues[:2])
    assert bench.swept.items == 4
    assert bench.left == [1, 1, 3]


def test_what_had_expired_before_is_not_counted_again(bench: Bench) -> None:
    bench.sweep(*bench.queues)
    bench.outcomes.clear()
    bench.sweep(*bench.queues)
    assert bench.swept == ExpiredFlushResult(0, None)


def test_its_batch_is_safe_when_all_queues_are(bench: Bench) -> None:
    bench.storage.holds_commits = True
    bench.sweep(*bench.queues)
    batch = bench.swept.batch
    assert batch is not None
    for name in (b"b", b"c", b"a"):
        assert not batch.is_settled
        bench.storage.end_commits(name)
    assert (batch.is_settled, batch.failure) == (True, None)


def test_its_batch_is_lost_with_the_first_that_is_lost(bench: Bench) -> None:
    bench.storage.holds_commits = True
    bench.sweep(*bench.queues)
    batch = bench.swept.batch
    assert batch is not None
    bench.storage.end_commits(b"b", error=StorageError("disk failed"))
    assert str(batch.failure) == "disk failed"


def test_a_sweep_waits_for_a_head_that_is_on_disk_alone(bench: Bench) -> None:
    store = bench.page_out(bench.queues[1])
    bench.sweep(*bench.queues)
    assert bench.outcomes == []
    assert bench.left == [1, 3, 1], "the others are swept meanwhile"
    store.end_fill()
    assert bench.swept.items == 6


def fail_to_load(bench: Bench, store: SteppedQueue) -> None:
    store.end_fill(StorageError("unreadable"))


def delete(bench: Bench, store: SteppedQueue) -> None:
    bench.server.manager.delete(b"b")


def stop(bench: Bench, store: SteppedQueue) -> None:
    bench.server.manager.wake_all()


@pytest.mark.parametrize("way", [fail_to_load, delete, stop])
def test_a_queue_of_which_the_head_never_comes_keeps_a_sweep_of_many_from_nothing(
    bench: Bench, way: Callable[[Bench, SteppedQueue], None]
) -> None:
    store = bench.page_out(bench.queues[1])
    bench.sweep(*bench.queues)
    way(bench, store)
    assert bench.swept.items == 4


def test_a_sweep_of_one_queue_fails_with_it(bench: Bench) -> None:
    store = bench.page_out(bench.queues[0])
    bench.sweep(bench.queues[0])
    store.end_fill(StorageError("unreadable"))
    (outcome,) = bench.outcomes
    assert isinstance(outcome, Failure)
    assert str(outcome.value) == "unreadable"


def test_a_sweep_takes_no_item_and_leaves_nobody_in_line(bench: Bench) -> None:
    bench.sweep(*bench.queues)
    assert bench.left == [1, 1, 1]
    assert [len(queue.waiters) for queue in bench.queues] == [0, 0, 0]
    empty = bench.server.manager.queue(b"empty")
    bench.server.settle()
    bench.outcomes.clear()
    bench.sweep(empty)
    assert bench.swept == ExpiredFlushResult(0, None)
    assert len(empty.waiters) == 0
