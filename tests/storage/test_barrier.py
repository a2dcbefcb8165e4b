"""No reply before its record is safe, and no queue committed twice at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.storage.barrier import Barrier, Batch, CommittedQueue, combine_batches
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage


class Contents:
    """A queue's contents, to be told apart."""


class FakeStorage:
    """Notes what is committed. A queue named in `pending` waits for a Deferred that the test fires."""

    def __init__(self) -> None:
        self.commits: list[list[Contents]] = []
        self.waits_for: dict[Contents, Deferred[object]] = {}
        self.error: Exception | None = None

    def commit(self, queues: Sequence[Contents]) -> list[tuple[list[Contents], Deferred[object]]]:
        self.commits.append(list(queues))
        if self.error is not None:
            raise self.error
        return [([store], self.waits_for[store]) for store in queues if store in self.waits_for]


class FakeQueue(CommittedQueue):
    """What the barrier needs to know of a queue; `failures` is what it was told."""

    def __init__(self, storage: FakeStorage) -> None:
        super().__init__(storage, Contents())
        self.failures: list[Exception] = []
        self.reopened: Callable[[], object] = lambda: None

    def batch_is_safe(self, batch: Batch, now_s: float) -> None:
        pass

    def commit_failed(self, failure: Exception) -> None:
        self.failures.append(failure)
        self.store = Contents()
        self.reopened()

    def will_wait(self) -> Deferred[object]:
        """The next commit of it is safe when that fires."""
        outcome = self.storage.waits_for[self.store] = Deferred()
        return outcome


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def scheduled() -> list[Callable[[], None]]:
    """What the barrier asked to be called soon."""
    return []


@pytest.fixture
def barrier(scheduled: list[Callable[[], None]]) -> Barrier:
    return Barrier(scheduled.append)


@pytest.fixture
def queue(storage: FakeStorage) -> FakeQueue:
    return FakeQueue(storage)


@pytest.fixture
def other(storage: FakeStorage) -> FakeQueue:
    return FakeQueue(storage)


DISK_ERROR = QueueFailed("the disk is gone")


def outcome(batch: Batch) -> object:
    """What has become of a batch."""
    if not batch.is_settled:
        return "open"
    return "safe" if batch.failure is None else batch.failure


# Batches.


def test_what_one_tick_records_on_a_queue_is_one_batch(barrier: Barrier, queue: FakeQueue) -> None:
    assert barrier.touch(queue) is barrier.touch(queue)


def test_each_queue_has_its_own_batch(barrier: Barrier, queue: FakeQueue, other: FakeQueue) -> None:
    assert barrier.touch(queue) is not barrier.touch(other)


def test_a_batch_is_not_settled_before_its_commit(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue
) -> None:
    batch = barrier.touch(queue)
    assert (outcome(batch), storage.commits) == ("open", [])
    barrier.end_of_tick()
    assert (outcome(batch), storage.commits) == ("safe", [[queue.store]])


def test_a_batch_is_not_settled_before_its_commit_is_safe(barrier: Barrier, queue: FakeQueue) -> None:
    pending = queue.will_wait()
    batch = barrier.touch(queue)
    barrier.end_of_tick()
    assert outcome(batch) == "open"
    pending.callback(None)
    assert outcome(batch) == "safe"


def test_an_untouched_queue_is_not_committed(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue, other: FakeQueue
) -> None:
    barrier.touch(queue)
    barrier.end_of_tick()
    barrier.touch(other)
    barrier.end_of_tick()
    barrier.end_of_tick()
    assert storage.commits == [[queue.store], [other.store]]


def test_one_commit_takes_all_touched_queues_of_a_storage(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue, other: FakeQueue
) -> None:
    barrier.touch(queue)
    barrier.touch(other)
    barrier.touch(queue)
    barrier.end_of_tick()
    assert storage.commits == [[queue.store, other.store]]


def test_each_storage_is_asked_to_commit_its_own_queues(barrier: Barrier) -> None:
    disk, memory = FakeStorage(), FakeStorage()
    on_disk, in_memory = FakeQueue(disk), FakeQueue(memory)
    barrier.touch(on_disk)
    barrier.touch(in_memory)
    barrier.end_of_tick()
    assert (disk.commits, memory.commits) == ([[on_disk.store]], [[in_memory.store]])


def test_a_commit_that_was_safe_at_once_settles_at_once(barrier: Barrier, queue: FakeQueue) -> None:
    queue.storage.waits_for[queue.store] = succeed(None)
    batch = barrier.touch(queue)
    barrier.end_of_tick()
    assert outcome(batch) == "safe"


# Pending commits.


def test_a_queue_is_not_committed_while_a_commit_of_it_is_pending(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue
) -> None:
    pending = queue.will_wait()
    barrier.touch(queue)
    barrier.end_of_tick()
    later = barrier.touch(queue)
    barrier.end_of_tick()
    barrier.end_of_tick()
    assert (len(storage.commits), outcome(later)) == (1, "open")
    del storage.waits_for[queue.store]
    pending.callback(None)
    barrier.end_of_tick()
    assert (len(storage.commits), outcome(later)) == (2, "safe")


def test_the_end_of_a_commit_brings_the_next_tick_when_a_batch_waits_for_it(
    barrier: Barrier, queue: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    pending = queue.will_wait()
    barrier.touch(queue)
    barrier.end_of_tick()
    barrier.touch(queue)
    barrier.end_of_tick()
    scheduled.clear()
    pending.callback(None)
    assert len(scheduled) == 1


def test_a_queue_that_is_not_synced_is_not_delayed_by_one_that_is(
    barrier: Barrier, queue: FakeQueue, other: FakeQueue
) -> None:
    queue.will_wait()
    slow, fast = barrier.touch(queue), barrier.touch(other)
    barrier.end_of_tick()
    assert (outcome(slow), outcome(fast)) == ("open", "safe")
    again = barrier.touch(other)
    barrier.end_of_tick()
    assert (outcome(slow), outcome(again)) == ("open", "safe")


def test_pending_queues_are_safe_each_in_its_own_time(
    barrier: Barrier, queue: FakeQueue, other: FakeQueue
) -> None:
    first, second = queue.will_wait(), other.will_wait()
    batches = [barrier.touch(queue), barrier.touch(other)]
    barrier.end_of_tick()
    second.callback(None)
    assert [outcome(batch) for batch in batches] == ["open", "safe"]
    first.callback(None)
    assert [outcome(batch) for batch in batches] == ["safe", "safe"]


def test_queues_that_one_deferred_stands_for_settle_together(barrier: Barrier) -> None:
    together: Deferred[object] = Deferred()

    class Grouping(FakeStorage):
        def commit(self, queues: Sequence[Contents]) -> list[tuple[list[Contents], Deferred[object]]]:
            return [(list(queues), together)]

    storage = Grouping()
    batches = [barrier.touch(FakeQueue(storage)) for _ in range(3)]
    barrier.end_of_tick()
    assert [outcome(batch) for batch in batches] == ["open"] * 3
    together.errback(DISK_ERROR)
    assert [outcome(batch) for batch in batches] == [DISK_ERROR] * 3


# Failures.


def test_a_lost_batch_says_why_and_its_queue_is_told(barrier: Barrier, queue: FakeQueue) -> None:
    pending = queue.will_wait()
    batch = barrier.touch(queue)
    barrier.end_of_tick()
    pending.errback(DISK_ERROR)
    assert (outcome(batch), queue.failures) == (DISK_ERROR, [DISK_ERROR])


def test_a_commit_that_failed_at_once_loses_its_batch(barrier: Barrier, queue: FakeQueue) -> None:
    queue.storage.waits_for[queue.store] = fail(DISK_ERROR)
    batch = barrier.touch(queue)
    barrier.end_of_tick()
    assert (outcome(batch), queue.failures) == (DISK_ERROR, [DISK_ERROR])


def test_a_batch_that_stands_on_a_lost_one_is_lost_with_it_and_never_committed(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue
) -> None:
    pending = queue.will_wait()
    first = barrier.touch(queue)
    barrier.end_of_tick()
    later = barrier.touch(queue)
    barrier.end_of_tick()
    pending.errback(DISK_ERROR)
    barrier.end_of_tick()
    assert (outcome(first), outcome(later)) == (DISK_ERROR, DISK_ERROR)
    assert (len(storage.commits), queue.failures) == (1, [DISK_ERROR])


def test_another_queue_of_the_tick_is_not_lost_with_it(
    barrier: Barrier, queue: FakeQueue, other: FakeQueue
) -> None:
    pending = queue.will_wait()
    barrier.touch(queue)
    batch = barrier.touch(other)
    barrier.end_of_tick()
    pending.errback(DISK_ERROR)
    assert (outcome(batch), other.failures) == ("safe", [])


def test_the_queue_is_opened_anew_before_anyone_hears_of_the_loss(barrier: Barrier, queue: FakeQueue) -> None:
    pending = queue.will_wait()
    batch = barrier.touch(queue)
    barrier.end_of_tick()
    heard: list[int] = []
    batch.when_settled(lambda: heard.append(len(queue.failures)))
    pending.errback(DISK_ERROR)
    assert heard == [1]


def test_what_is_recorded_while_it_is_opened_anew_is_a_batch_of_its_own(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue
) -> None:
    pending = queue.will_wait()
    barrier.touch(queue)
    barrier.end_of_tick()
    barrier.touch(queue)
    recorded: list[Batch] = []
    queue.reopened = lambda: recorded.append(barrier.touch(queue))
    pending.errback(DISK_ERROR)
    assert outcome(recorded[0]) == "open"
    barrier.end_of_tick()
    assert (outcome(recorded[0]), storage.commits[-1]) == ("safe", [queue.store])


def test_what_was_recorded_on_contents_that_are_no_more_is_lost(barrier: Barrier, queue: FakeQueue) -> None:
    before = barrier.touch(queue)
    queue.store = Contents()
    barrier.end_of_tick()
    assert isinstance(before.failure, QueueFailed)
    assert queue.storage.commits == []


def test_what_is_recorded_on_new_contents_is_a_batch_of_its_own(barrier: Barrier, queue: FakeQueue) -> None:
    before = barrier.touch(queue)
    queue.store = Contents()
    after = barrier.touch(queue)
    assert isinstance(before.failure, QueueFailed)
    barrier.end_of_tick()
    assert (after.is_settled, after.failure) == (True, None)


def test_a_loss_takes_nothing_with_it_that_was_recorded_on_new_contents(barrier: Barrier, queue: FakeQueue) -> None:
    outcome = queue.will_wait()
    barrier.touch(queue)
    barrier.end_of_tick()
    queue.store = Contents()
    later = barrier.touch(queue)
    store = queue.store
    queue.commit_failed = queue.failures.append
    outcome.errback(QueueFailed("lost"))
    barrier.end_of_tick()
    assert (later.is_settled, later.failure, queue.storage.commits[-1]) == (True, None, [store])


def test_a_queue_is_used_again_after_a_loss(barrier: Barrier, queue: FakeQueue) -> None:
    queue.storage.waits_for[queue.store] = fail(DISK_ERROR)
    barrier.touch(queue)
    barrier.end_of_tick()
    batch = barrier.touch(queue)
    barrier.end_of_tick()
    assert outcome(batch) == "safe"


def test_a_backend_whose_commit_raises_loses_that_batch_and_no_other(barrier: Barrier) -> None:
    broken, sound = FakeStorage(), FakeStorage()
    broken.error = ZeroDivisionError("a fault of the backend's")
    lost, safe = FakeQueue(broken), FakeQueue(sound)
    batches = [barrier.touch(lost), barrier.touch(safe)]
    barrier.end_of_tick()
    assert isinstance(batches[0].failure, QueueFailed)
    assert (outcome(batches[1]), safe.failures) == ("safe", [])
    assert len(lost.failures) == 1


def test_after_a_commit_that_raised_the_next_tick_goes_on(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue
) -> None:
    storage.error = ZeroDivisionError("a fault of the backend's")
    barrier.touch(queue)
    barrier.end_of_tick()
    storage.error = None
    batch = barrier.touch(queue)
    barrier.end_of_tick()
    assert outcome(batch) == "safe"


Pairs = list[tuple[list[Contents], Deferred[object]]]


@pytest.mark.parametrize(
    "pairs_for",
    [
        lambda store: [([Contents()], Deferred())],
        lambda store: [([store, Contents()], Deferred())],
        lambda store: [([store, store], Deferred())],
    ],
    ids=["one it was not asked for", "one that it was and one that it was not", "one twice"],
)
def test_a_backend_whose_commit_names_the_wrong_queues_leaves_none_waiting_for_ever(
    barrier: Barrier, storage: FakeStorage, other: FakeQueue, pairs_for: Callable[[Contents], Pairs]
) -> None:
    class Confused(FakeStorage):
        def commit(self, queues: Sequence[Contents]) -> Pairs:
            return pairs_for(queues[0])

    queue = FakeQueue(Confused())
    batches = [barrier.touch(queue), barrier.touch(other)]
    barrier.end_of_tick()
    assert isinstance(batches[0].failure, QueueFailed)
    assert outcome(batches[1]) == "safe"
    queue.storage = storage
    again = barrier.touch(queue)
    barrier.end_of_tick()
    assert outcome(again) == "safe"


def test_a_queue_that_cannot_be_opened_anew_for_a_fault_of_its_backend_keeps_nobody_waiting(
    barrier: Barrier, queue: FakeQueue
) -> None:
    together: Deferred[object] = Deferred()

    class Grouping(FakeStorage):
        def commit(self, queues: Sequence[Contents]) -> Pairs:
            return [(list(queues), together)]

    storage = Grouping()
    faulty, sound = FakeQueue(storage), FakeQueue(storage)
    faulty.reopened = lambda: 1 / 0
    batches = [barrier.touch(faulty), barrier.touch(sound)]
    barrier.end_of_tick()
    later = barrier.touch(faulty)
    together.errback(DISK_ERROR)
    assert [outcome(batch) for batch in (*batches, later)] == [DISK_ERROR] * 3
    safe = barrier.touch(queue)
    barrier.end_of_tick()
    assert outcome(safe) == "safe"


@pytest.mark.parametrize("raises", [True, False], ids=["it raises", "its Deferred fails"])
def test_a_backend_that_cannot_even_open_a_queue_whose_commit_failed_does_not_stop_the_server(raises: bool) -> None:
    class Faulty(SteppedStorage):
        is_mended = True

        def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
            if not self.is_mended:
                raise OSError("a fault of the backend's")
            return super().queue(name, settings)

        def commit(self, queues: Sequence[IQueueStorage]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
            if self.is_mended:
                return super().commit(queues)
            for queue in queues:
                assert isinstance(queue, SteppedQueue)
                queue.failure = "dead"
            if raises:
                raise OSError("a fault of the backend's")
            return [(queues, fail(OSError("a fault of the backend's")))]

    storage = Faulty()
    server = MemoryServer(storage)
    client, other = server.connect(), server.connect()
    assert client.ask(b"set work 0 0 1\r\na\r\n") == b"STORED\r\n"
    storage.is_mended = False
    assert client.ask(b"set work 0 0 1\r\nb\r\n").startswith(b"SERVER_ERROR ")
    assert other.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"
    storage.is_mended = True
    assert other.ask(b"get work\r\n") == b"VALUE work 0 1\r\na\r\nEND\r\n"


# A deleted queue.


def test_a_deleted_queues_batch_is_safe_when_its_storage_has_nothing_to_commit(
    barrier: Barrier, queue: FakeQueue
) -> None:
    batch = barrier.touch(queue)
    barrier.end_of_tick()
    assert (outcome(batch), queue.open_batch, queue.committing) == ("safe", None, None)


def test_a_queue_deleted_while_its_commit_is_pending_is_committed_after_it(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue
) -> None:
    pending = queue.will_wait()
    barrier.touch(queue)
    barrier.end_of_tick()
    deletion = barrier.touch(queue)
    barrier.end_of_tick()
    assert outcome(deletion) == "open"
    storage.waits_for.clear()
    pending.callback(None)
    barrier.end_of_tick()
    assert outcome(deletion) == "safe"


# Releasing.


def test_what_waits_for_the_tick_is_released_after_all_commits_have_begun(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue
) -> None:
    committed: list[int] = []
    barrier.at_end_of_tick(lambda: committed.append(len(storage.commits)))
    barrier.touch(queue)
    barrier.end_of_tick()
    assert committed == [1]


def test_releases_come_in_the_order_in_which_they_were_asked_for(barrier: Barrier) -> None:
    released: list[str] = []
    for name in ("a", "b", "c"):
        barrier.at_end_of_tick(lambda name=name: released.append(name))
    barrier.end_of_tick()
    assert released == ["a", "b", "c"]


def test_each_is_released_once(barrier: Barrier) -> None:
    released: list[str] = []
    barrier.at_end_of_tick(lambda: released.append("a"))
    barrier.end_of_tick()
    barrier.end_of_tick()
    assert released == ["a"]


def test_a_release_that_raises_does_not_keep_the_others(barrier: Barrier) -> None:
    released: list[str] = []
    barrier.at_end_of_tick(lambda: 1 / 0)
    barrier.at_end_of_tick(lambda: released.append("b"))
    barrier.end_of_tick()
    assert released == ["b"]


def test_what_a_release_asks_for_comes_in_the_next_tick(
    barrier: Barrier, queue: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    asked: list[Batch] = []
    barrier.at_end_of_tick(lambda: asked.append(barrier.touch(queue)))
    barrier.end_of_tick()
    assert (outcome(asked[0]), len(scheduled)) == ("open", 2)
    scheduled[-1]()
    assert outcome(asked[0]) == "safe"


def test_a_tick_is_asked_for_once(
    barrier: Barrier, queue: FakeQueue, other: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    barrier.touch(queue)
    barrier.touch(other)
    barrier.at_end_of_tick(lambda: None)
    assert len(scheduled) == 1


def test_nothing_to_do_asks_for_no_tick(
    barrier: Barrier, queue: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    pending = queue.will_wait()
    barrier.touch(queue)
    barrier.end_of_tick()
    scheduled.clear()
    pending.callback(None)
    assert scheduled == []


# Those who wait for a batch.


def test_those_who_wait_hear_of_it_once_in_the_order_in_which_they_came() -> None:
    batch, heard = Batch(), []
    batch.when_settled(lambda: heard.append("first"))
    batch.when_settled(lambda: heard.append("second"))
    assert heard == []
    batch.settle(None)
    assert heard == ["first", "second"]


def test_whoever_comes_after_it_is_settled_hears_at_once() -> None:
    batch, heard = Batch(), []
    batch.settle(DISK_ERROR)
    batch.when_settled(lambda: heard.append(batch.failure))
    assert heard == [DISK_ERROR]


# Several batches as one.


def test_all_of_none_is_none_and_all_of_one_is_that_one() -> None:
    batch = Batch()
    assert (combine_batches([]), combine_batches([batch])) == (None, batch)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_all_of_many_is_safe_when_the_last_of_them_is(order: tuple[int, ...]) -> None:
    batches = [Batch(), Batch(), Batch()]
    together = combine_batches(batches)
    for index in order:
        assert outcome(together) == "open"
        batches[index].settle(None)
    assert outcome(together) == "safe"


def test_all_of_many_is_lost_with_the_first_that_is_lost_and_once() -> None:
    batches = [Batch(), Batch(), Batch()]
    together = combine_batches(batches)
    heard: list[object] = []
    together.when_settled(lambda: heard.append(together.failure))
    batches[0].settle(None)
    batches[2].settle(DISK_ERROR)
    batches[1].settle(QueueFailed("another"))
    assert heard == [DISK_ERROR]


def test_all_of_many_that_are_settled_already_is_settled() -> None:
    safe, lost = Batch(), Batch()
    safe.settle(None)
    lost.settle(DISK_ERROR)
    assert (outcome(combine_batches([safe, safe])), outcome(combine_batches([safe, lost]))) == ("safe", DISK_ERROR)


# Turns whose end somebody else calls.


def test_within_a_turn_nothing_is_scheduled_and_its_end_commits_and_releases(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    released: list[str] = []
    barrier.begin_tick()
    batch = barrier.touch(queue)
    barrier.at_end_of_tick(lambda: released.append(str(outcome(batch))))
    assert (scheduled, storage.commits) == ([], [])
    barrier.end_of_tick()
    assert (scheduled, storage.commits, released) == ([], [[queue.store]], ["safe"])


def test_after_a_turn_what_is_recorded_is_scheduled_as_ever(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    barrier.begin_tick()
    barrier.end_of_tick()
    assert storage.commits == []
    barrier.touch(queue)
    assert scheduled == [barrier.end_of_tick]
    scheduled.pop()()
    assert storage.commits == [[queue.store]]


def test_a_release_at_the_end_of_a_turn_may_record_more_which_is_scheduled(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    barrier.begin_tick()
    barrier.at_end_of_tick(lambda: barrier.touch(queue) and None)
    barrier.end_of_tick()
    assert (storage.commits, scheduled) == ([], [barrier.end_of_tick])


@pytest.mark.parametrize("fails", ["commit", "release", "release for good"])
def test_a_turn_whose_end_fails_is_over_all_the_same(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue, scheduled: list[Callable[[], None]], fails: str
) -> None:
    def fail() -> None:
        raise KeyboardInterrupt if fails == "release for good" else ValueError

    barrier.begin_tick()
    barrier.touch(queue)
    if fails == "commit":
        storage.error = ValueError()
    else:
        barrier.at_end_of_tick(fail)
    with suppress(KeyboardInterrupt):
        barrier.end_of_tick()
    assert scheduled == []
    storage.error = None
    barrier.touch(queue)
    assert scheduled == [barrier.end_of_tick]


def test_what_was_scheduled_before_a_turn_finds_nothing_to_do_after_it(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    barrier.touch(queue)
    barrier.begin_tick()
    barrier.end_of_tick()
    assert storage.commits == [[queue.store]]
    scheduled.pop()()
    assert storage.commits == [[queue.store]]


def test_a_commit_that_settles_between_turns_is_followed_by_the_next(
    barrier: Barrier, storage: FakeStorage, queue: FakeQueue, scheduled: list[Callable[[], None]]
) -> None:
    pending = queue.will_wait()
    for _ in range(2):
        barrier.begin_tick()
        barrier.touch(queue)
        barrier.end_of_tick()
    assert (len(storage.commits), scheduled) == (1, [])
    storage.waits_for.clear()
    pending.callback(None)
    scheduled.pop()()
    assert len(storage.commits) == 2
