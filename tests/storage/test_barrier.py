"""The barrier: no reply before its batch is safe, and no queue committed twice at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.storage.barrier import Barrier, Batch, CommittedQueue, combine_batches
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage


class Store:
    """A queue store without contents."""

    commit_unit: object = None


Pairs: TypeAlias = list[tuple[list[Store], Deferred[object]]]
Calls: TypeAlias = list[Callable[[], None]]


class FakeStorage:
    """A storage that records its commits. A commit of a store in `results` returns that Deferred."""

    def __init__(self) -> None:
        self.commits: list[list[Store]] = []
        self.results: dict[Store, Deferred[object]] = {}
        self.error: Exception | None = None
        self.pairs_for: Callable[[Sequence[Store]], Pairs] = self._pairs_for

    def commit(self, queues: Sequence[Store]) -> Pairs:
        self.commits.append(list(queues))
        if self.error is not None:
            raise self.error
        return self.pairs_for(queues)

    def _pairs_for(self, queues: Sequence[Store]) -> Pairs:
        return [([store], self.results[store]) for store in queues if store in self.results]


class FakeQueue(CommittedQueue):
    """A queue that records its failures, and gets a new store after each."""

    def __init__(self, storage: FakeStorage) -> None:
        super().__init__(storage, Store())
        self.failures: list[Exception] = []
        self.reopened: Callable[[], object] = lambda: None

    def batch_is_safe(self, batch: Batch, now_s: float) -> None:
        pass

    def commit_failed(self, failure: Exception) -> None:
        self.failures.append(failure)
        self.store = Store()
        self.reopened()

    def hold_commits(self) -> Deferred[object]:
        """Return the Deferred that ends the commits of this store."""
        result = self.storage.results[self.store] = Deferred()
        return result


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def scheduled() -> Calls:
    """Return the list of calls that the barrier scheduled."""
    return []


@pytest.fixture
def barrier(scheduled: Calls) -> Barrier:
    return Barrier(scheduled.append)


@pytest.fixture
def queue(storage: FakeStorage) -> FakeQueue:
    return FakeQueue(storage)


@pytest.fixture
def other(storage: FakeStorage) -> FakeQueue:
    return FakeQueue(storage)


DISK_ERROR = QueueFailed("the disk is gone")
BACKEND_ERROR = "a bug of the backend"


def commit(barrier: Barrier, *queues: FakeQueue) -> list[Batch]:
    """Change the queues in one tick, and end it. Return their batches."""
    batches = [barrier.touch(queue) for queue in queues]
    barrier.end_of_tick()
    return batches


def outcomes(*batches: Batch) -> list[object]:
    """Return for each batch "open", "safe" or its failure."""
    return [("safe" if batch.failure is None else batch.failure) if batch.is_settled else "open" for batch in batches]


# Batches.


def test_batch_is_committed_at_the_end_of_the_tick(barrier: Barrier, queue: FakeQueue) -> None:
    batch = barrier.touch(queue)
    assert (outcomes(batch), queue.storage.commits) == (["open"], [])
    barrier.end_of_tick()
    assert (outcomes(batch), queue.storage.commits) == (["safe"], [[queue.store]])
    assert (queue.open_batch, queue.committing) == (None, None)


def test_batch_is_safe_when_its_commit_is(barrier: Barrier, queue: FakeQueue, other: FakeQueue) -> None:
    first, second = queue.hold_commits(), other.hold_commits()
    batches = commit(barrier, queue, other)
    assert outcomes(*batches) == ["open", "open"]
    second.callback(None)
    assert outcomes(*batches) == ["open", "safe"]
    first.callback(None)
    assert outcomes(*batches) == ["safe", "safe"]


def test_batch_is_safe_at_once_if_its_commit_is(barrier: Barrier, queue: FakeQueue) -> None:
    queue.storage.results[queue.store] = succeed(None)
    assert outcomes(*commit(barrier, queue)) == ["safe"]


def test_untouched_queue_is_not_committed(barrier: Barrier, queue: FakeQueue, other: FakeQueue) -> None:
    commit(barrier, queue)
    commit(barrier, other)
    barrier.end_of_tick()
    assert queue.storage.commits == [[queue.store], [other.store]]


def test_queues_of_a_storage_share_a_commit(barrier: Barrier, queue: FakeQueue, other: FakeQueue) -> None:
    commit(barrier, queue, other, queue)
    assert queue.storage.commits == [[queue.store, other.store]]


# Pending commits.


def test_queue_is_not_committed_during_a_commit(barrier: Barrier, queue: FakeQueue) -> None:
    pending = queue.hold_commits()
    commit(barrier, queue)
    (later,) = commit(barrier, queue)
    barrier.end_of_tick()
    assert (len(queue.storage.commits), outcomes(later)) == (1, ["open"])
    queue.storage.results.clear()
    pending.callback(None)
    barrier.end_of_tick()
    assert (len(queue.storage.commits), outcomes(later)) == (2, ["safe"])


@pytest.mark.parametrize("has_later_batch", [True, False])
def test_end_of_a_commit_schedules_a_tick_for_a_later_batch(
    barrier: Barrier, queue: FakeQueue, scheduled: Calls, has_later_batch: bool
) -> None:
    pending = queue.hold_commits()
    commit(barrier, queue)
    if has_later_batch:
        commit(barrier, queue)
    scheduled.clear()
    pending.callback(None)
    assert len(scheduled) == has_later_batch


def test_queues_that_share_files_are_committed_together(
    barrier: Barrier, queue: FakeQueue, other: FakeQueue, scheduled: Calls
) -> None:
    queue.store.commit_unit = other.store.commit_unit = "shared"
    pending = queue.hold_commits()
    commit(barrier, queue)
    (waiting,) = commit(barrier, other)
    (later,) = commit(barrier, queue)
    scheduled.clear()
    queue.storage.results.clear()
    pending.callback(None)
    assert (len(scheduled), outcomes(waiting, later)) == (1, ["open", "open"])
    barrier.end_of_tick()
    assert queue.storage.commits == [[queue.store], [other.store, queue.store]]
    assert outcomes(waiting, later) == ["safe", "safe"]


def test_queues_with_one_deferred_settle_together(barrier: Barrier, storage: FakeStorage) -> None:
    together: Deferred[object] = Deferred()
    storage.pairs_for = lambda queues: [(list(queues), together)]
    batches = commit(barrier, *(FakeQueue(storage) for _ in range(3)))
    assert outcomes(*batches) == ["open"] * 3
    together.errback(DISK_ERROR)
    assert outcomes(*batches) == [DISK_ERROR] * 3


# Failures.


def test_failed_commit_fails_its_batch_and_queue_only(barrier: Barrier, queue: FakeQueue, other: FakeQueue) -> None:
    pending = queue.hold_commits()
    batches = commit(barrier, queue, other)
    pending.errback(DISK_ERROR)
    assert outcomes(*batches) == [DISK_ERROR, "safe"]
    assert (queue.failures, other.failures) == ([DISK_ERROR], [])


def test_queue_is_usable_after_a_commit_that_failed_at_once(barrier: Barrier, queue: FakeQueue) -> None:
    queue.storage.results[queue.store] = fail(DISK_ERROR)
    assert outcomes(*commit(barrier, queue)) == [DISK_ERROR]
    assert queue.failures == [DISK_ERROR]
    assert outcomes(*commit(barrier, queue)) == ["safe"]


def test_later_batch_fails_with_the_earlier_one_and_is_not_committed(barrier: Barrier, queue: FakeQueue) -> None:
    pending = queue.hold_commits()
    batches = commit(barrier, queue) + commit(barrier, queue)
    pending.errback(DISK_ERROR)
    barrier.end_of_tick()
    assert outcomes(*batches) == [DISK_ERROR, DISK_ERROR]
    assert (len(queue.storage.commits), queue.failures) == (1, [DISK_ERROR])


def test_queue_is_reopened_before_the_failure_is_reported(barrier: Barrier, queue: FakeQueue) -> None:
    pending = queue.hold_commits()
    (batch,) = commit(barrier, queue)
    failures: list[int] = []
    batch.when_settled(lambda: failures.append(len(queue.failures)))
    pending.errback(DISK_ERROR)
    assert failures == [1]


def test_changes_while_a_queue_is_reopened_are_a_new_batch(barrier: Barrier, queue: FakeQueue) -> None:
    pending = queue.hold_commits()
    commit(barrier, queue)
    barrier.touch(queue)
    batches: list[Batch] = []
    queue.reopened = lambda: batches.append(barrier.touch(queue))
    pending.errback(DISK_ERROR)
    assert outcomes(*batches) == ["open"]
    barrier.end_of_tick()
    assert (outcomes(*batches), queue.storage.commits[-1]) == (["safe"], [queue.store])


def test_changes_of_a_new_store_are_a_new_batch(barrier: Barrier, queue: FakeQueue) -> None:
    before = barrier.touch(queue)
    queue.store = Store()
    (after,) = commit(barrier, queue)
    assert isinstance(before.failure, QueueFailed)
    assert outcomes(after) == ["safe"]


def test_failure_of_an_old_store_keeps_changes_of_the_new_one(barrier: Barrier, queue: FakeQueue) -> None:
    pending = queue.hold_commits()
    commit(barrier, queue)
    store = queue.store = Store()
    later = barrier.touch(queue)
    queue.commit_failed = queue.failures.append
    pending.errback(DISK_ERROR)
    barrier.end_of_tick()
    assert (outcomes(later), queue.storage.commits[-1]) == (["safe"], [store])


def test_commit_that_raises_fails_its_storage_only(barrier: Barrier) -> None:
    broken, sound = FakeStorage(), FakeStorage()
    broken.error = ZeroDivisionError(BACKEND_ERROR)
    lost_queue, safe_queue = FakeQueue(broken), FakeQueue(sound)
    lost, safe = commit(barrier, lost_queue, safe_queue)
    assert isinstance(lost.failure, QueueFailed)
    assert outcomes(safe) == ["safe"]
    assert (len(lost_queue.failures), safe_queue.failures) == (1, [])
    broken.error = None
    assert outcomes(*commit(barrier, lost_queue)) == ["safe"]


@pytest.mark.parametrize(
    "stores_for",
    [lambda store: [Store()], lambda store: [store, Store()], lambda store: [store, store]],
    ids=["a foreign queue", "the queue and a foreign one", "the queue twice"],
)
def test_batch_fails_if_the_commit_returns_wrong_queues(
    barrier: Barrier, storage: FakeStorage, other: FakeQueue, stores_for: Callable[[Store], list[Store]]
) -> None:
    confused = FakeStorage()
    confused.pairs_for = lambda queues: [(stores_for(queues[0]), Deferred())]
    queue = FakeQueue(confused)
    wrong, right = commit(barrier, queue, other)
    assert isinstance(wrong.failure, QueueFailed)
    assert outcomes(right) == ["safe"]
    queue.storage = storage
    assert outcomes(*commit(barrier, queue)) == ["safe"]


def test_queue_that_cannot_be_reopened_blocks_no_other(barrier: Barrier, queue: FakeQueue) -> None:
    together: Deferred[object] = Deferred()
    storage = FakeStorage()
    storage.pairs_for = lambda queues: [(list(queues), together)]
    faulty, sound = FakeQueue(storage), FakeQueue(storage)
    faulty.reopened = lambda: 1 / 0
    batches = commit(barrier, faulty, sound)
    later = barrier.touch(faulty)
    together.errback(DISK_ERROR)
    assert outcomes(*batches, later) == [DISK_ERROR] * 3
    assert outcomes(*commit(barrier, queue)) == ["safe"]


@pytest.mark.parametrize("raises", [True, False], ids=["commit raises", "its Deferred fails"])
def test_server_survives_a_backend_that_cannot_reopen_queues(raises: bool) -> None:
    class Faulty(SteppedStorage):
        is_mended = True

        def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
            if not self.is_mended:
                raise OSError(BACKEND_ERROR)
            return super().queue(name, settings)

        def commit(self, queues: Sequence[IQueueStorage]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
            if self.is_mended:
                return super().commit(queues)
            for queue in queues:
                assert isinstance(queue, SteppedQueue)
                queue.failure = "failed"
            if raises:
                raise OSError(BACKEND_ERROR)
            return [(queues, fail(OSError(BACKEND_ERROR)))]

    storage = Faulty()
    server = MemoryServer(storage)
    client, other = server.connect(), server.connect()
    assert client.ask(b"set work 0 0 1\r\na\r\n") == b"STORED\r\n"
    storage.is_mended = False
    assert client.ask(b"set work 0 0 1\r\nb\r\n").startswith(b"SERVER_ERROR ")
    assert other.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"
    storage.is_mended = True
    assert other.ask(b"get work\r\n") == b"VALUE work 0 1\r\na\r\nEND\r\n"


# Calls at the end of a tick.


def test_calls_run_once_and_in_order_after_all_commits_began(barrier: Barrier, queue: FakeQueue) -> None:
    calls: list[tuple[str, int]] = []
    for name in ("a", "b", "c"):
        barrier.at_end_of_tick(lambda name=name: calls.append((name, len(queue.storage.commits))))
    commit(barrier, queue)
    barrier.end_of_tick()
    assert calls == [("a", 1), ("b", 1), ("c", 1)]


def test_call_that_raises_does_not_prevent_the_next(barrier: Barrier) -> None:
    calls: list[str] = []
    barrier.at_end_of_tick(lambda: 1 / 0)
    barrier.at_end_of_tick(lambda: calls.append("b"))
    barrier.end_of_tick()
    assert calls == ["b"]


def test_changes_of_a_call_are_committed_in_the_next_tick(barrier: Barrier, queue: FakeQueue, scheduled: Calls) -> None:
    batches: list[Batch] = []
    barrier.at_end_of_tick(lambda: batches.append(barrier.touch(queue)))
    barrier.end_of_tick()
    assert (outcomes(*batches), len(scheduled)) == (["open"], 2)
    scheduled[-1]()
    assert outcomes(*batches) == ["safe"]


def test_end_of_tick_is_scheduled_once(barrier: Barrier, queue: FakeQueue, other: FakeQueue, scheduled: Calls) -> None:
    barrier.touch(queue)
    barrier.touch(other)
    barrier.at_end_of_tick(lambda: None)
    assert len(scheduled) == 1


# Callbacks of a batch.


def test_callbacks_of_a_batch_run_in_order_when_it_settles() -> None:
    batch, calls = Batch(), []
    batch.when_settled(lambda: calls.append("first"))
    batch.when_settled(lambda: calls.append("second"))
    assert calls == []
    batch.settle(None)
    assert calls == ["first", "second"]


def test_callback_of_a_settled_batch_runs_at_once() -> None:
    batch, failures = Batch(), []
    batch.settle(DISK_ERROR)
    batch.when_settled(lambda: failures.append(batch.failure))
    assert failures == [DISK_ERROR]


# Combined batches.


def test_none_or_one_batch_needs_no_combination() -> None:
    batch = Batch()
    assert (combine_batches([]), combine_batches([batch])) == (None, batch)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_combined_batch_is_safe_when_the_last_one_is(order: tuple[int, ...]) -> None:
    batches = [Batch(), Batch(), Batch()]
    combined = combine_batches(batches)
    for index in order:
        assert outcomes(combined) == ["open"]
        batches[index].settle(None)
    assert outcomes(combined) == ["safe"]


def test_combined_batch_fails_once_with_the_first_failure() -> None:
    batches = [Batch(), Batch(), Batch()]
    combined = combine_batches(batches)
    failures: list[object] = []
    combined.when_settled(lambda: failures.append(combined.failure))
    batches[0].settle(None)
    batches[2].settle(DISK_ERROR)
    batches[1].settle(QueueFailed("another"))
    assert failures == [DISK_ERROR]


def test_combination_of_settled_batches_is_settled() -> None:
    safe, lost = Batch(), Batch()
    safe.settle(None)
    lost.settle(DISK_ERROR)
    assert outcomes(combine_batches([safe, safe]), combine_batches([safe, lost])) == ["safe", DISK_ERROR]


# Ticks that the hub begins and ends.


def test_begun_tick_schedules_nothing(barrier: Barrier, queue: FakeQueue, scheduled: Calls) -> None:
    calls: list[object] = []
    barrier.begin_tick()
    batch = barrier.touch(queue)
    barrier.at_end_of_tick(lambda: calls.extend(outcomes(batch)))
    assert (scheduled, queue.storage.commits) == ([], [])
    barrier.end_of_tick()
    assert (scheduled, queue.storage.commits, calls) == ([], [[queue.store]], ["safe"])


def test_changes_after_a_begun_tick_are_scheduled(barrier: Barrier, queue: FakeQueue, scheduled: Calls) -> None:
    barrier.begin_tick()
    barrier.end_of_tick()
    assert queue.storage.commits == []
    barrier.touch(queue)
    assert scheduled == [barrier.end_of_tick]
    scheduled.pop()()
    assert queue.storage.commits == [[queue.store]]


def test_changes_of_a_call_at_the_end_of_a_begun_tick_are_scheduled(
    barrier: Barrier, queue: FakeQueue, scheduled: Calls
) -> None:
    barrier.begin_tick()
    barrier.at_end_of_tick(lambda: barrier.touch(queue) and None)
    barrier.end_of_tick()
    assert (queue.storage.commits, scheduled) == ([], [barrier.end_of_tick])


@pytest.mark.parametrize(
    ("fails_in", "error"), [("commit", ValueError), ("call", ValueError), ("call", KeyboardInterrupt)]
)
def test_begun_tick_is_over_after_an_error(
    barrier: Barrier,
    queue: FakeQueue,
    scheduled: Calls,
    fails_in: str,
    error: type[BaseException],
) -> None:
    def raise_error() -> Pairs:
        raise error

    barrier.begin_tick()
    barrier.touch(queue)
    if fails_in == "commit":
        queue.storage.pairs_for = lambda queues: raise_error()
    else:
        barrier.at_end_of_tick(raise_error)
    with suppress(KeyboardInterrupt):
        barrier.end_of_tick()
    assert scheduled == []
    barrier.touch(queue)
    assert scheduled == [barrier.end_of_tick]


def test_call_scheduled_before_a_begun_tick_has_nothing_to_do(
    barrier: Barrier, queue: FakeQueue, scheduled: Calls
) -> None:
    barrier.touch(queue)
    barrier.begin_tick()
    barrier.end_of_tick()
    assert queue.storage.commits == [[queue.store]]
    scheduled.pop()()
    assert queue.storage.commits == [[queue.store]]


def test_commit_that_ends_between_begun_ticks_schedules_the_next(
    barrier: Barrier, queue: FakeQueue, scheduled: Calls
) -> None:
    pending = queue.hold_commits()
    for _ in range(2):
        barrier.begin_tick()
        commit(barrier, queue)
    assert (len(queue.storage.commits), scheduled) == (1, [])
    queue.storage.results.clear()
    pending.callback(None)
    scheduled.pop()()
    assert len(queue.storage.commits) == 2
