"""A flush of expired items: when it is done, what it counts, and what it waits for."""

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
    """Three queues with two expired items before a live one, and the outcomes of flushes."""

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

    def flush_expired(self, *queues: Queue) -> None:
        flush = ExpiredFlush(queues, self.server.scheduler)
        flush.done.addBoth(self.outcomes.append)
        self.server.settle()

    @property
    def result(self) -> ExpiredFlushResult:
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


def test_flush_of_no_queue_is_done_at_once(bench: Bench) -> None:
    bench.flush_expired()
    assert bench.result == ExpiredFlushResult(0, None)


def test_batch_is_safe_when_all_queues_are(bench: Bench) -> None:
    bench.storage.holds_commits = True
    bench.flush_expired(*bench.queues)
    batch = bench.result.batch
    assert batch is not None
    for name in (b"b", b"c", b"a"):
        assert not batch.is_settled
        bench.storage.end_commits(name)
    assert (batch.is_settled, batch.failure) == (True, None)


def fail_to_load(bench: Bench, store: SteppedQueue) -> None:
    store.end_fill(StorageError("unreadable"))


def delete(bench: Bench, store: SteppedQueue) -> None:
    bench.server.manager.delete(b"b")


def stop(bench: Bench, store: SteppedQueue) -> None:
    bench.server.manager.wake_all()


@pytest.mark.parametrize("way", [fail_to_load, delete, stop])
def test_unavailable_head_does_not_stop_flush_of_other_queues(
    bench: Bench, way: Callable[[Bench, SteppedQueue], None]
) -> None:
    store = bench.page_out(bench.queues[1])
    bench.flush_expired(*bench.queues)
    way(bench, store)
    assert bench.result.items == 4


def test_flush_of_one_queue_fails_with_it(bench: Bench) -> None:
    store = bench.page_out(bench.queues[0])
    bench.flush_expired(bench.queues[0])
    store.end_fill(StorageError("unreadable"))
    (outcome,) = bench.outcomes
    assert isinstance(outcome, Failure)
    assert str(outcome.value) == "unreadable"


def test_flush_takes_no_live_item_and_leaves_no_waiter(bench: Bench) -> None:
    bench.flush_expired(*bench.queues)
    assert bench.left == [1, 1, 1]
    assert [len(queue.waiters) for queue in bench.queues] == [0, 0, 0]
    empty = bench.server.manager.queue(b"empty")
    bench.server.settle()
    bench.outcomes.clear()
    bench.flush_expired(empty)
    assert bench.result == ExpiredFlushResult(0, None)
    assert len(empty.waiters) == 0
