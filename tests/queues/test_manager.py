"""The manager: names to queues, over a slow or failing storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from kestrel.config.load import loads
from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed, StorageError
from kestrel.item import Item
from kestrel.queues.stat_definitions import stats_of
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.memory import MemoryQueue, MemoryStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage
from tests.memcache_text import items

FIVE_ITEMS: Final = "[default]\nmaxItems = 5"


class Bench:
    """A server over a stepped storage, whose manager the test calls."""

    def __init__(self, storage: SteppedStorage | None = None, config: str = "") -> None:
        self.storage = storage or SteppedStorage()
        self.server = MemoryServer(self.storage, config=loads(config))
        self.manager = self.server.manager
        self.tick = self.server.settle

    def put(self, name: bytes, *items: bytes) -> None:
        for data in items:
            self.manager.put(name, data, 0)
        self.tick()

    def items(self, name: bytes) -> list[bytes]:
        return items(self.server.connect(), name)

    def wait(self, name: bytes) -> list[bytes | None]:
        """Wait for an item of a queue, and return the list that receives the answer."""
        answers: list[bytes | None] = []

        def on_result(item: Item | None, error: Exception | None) -> None:
            answers.append(None if item is None else item.data)

        self.manager.queue(name).join(Waiter(on_result, opens=False, peeks=False, is_blocking=True))
        return answers

    def fail(self, name: bytes) -> Batch:
        """Make the next commit of a queue fail."""
        self.storage.holds_commits = True
        batch = self.manager.put(name, b"lost", 0)
        self.tick()
        self.storage.end_commits(name, error=StorageError("disk failed"))
        self.storage.holds_commits = False
        return batch


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Names.


def test_creation_of_queue_is_committed_at_end_of_tick(bench: Bench) -> None:
    queue = bench.manager.queue(b"parent+child")
    assert queue.unsettled_batch is not None
    bench.tick()
    assert queue.unsettled_batch is None


def test_queue_without_journal_is_kept_in_memory() -> None:
    bench = Bench(config="[[queues]]\nname = 'brief'\nkeepJournal = false")
    assert type(bench.manager.queue(b"brief").storage) is MemoryStorage
    assert bench.manager.queue(b"lasting").storage is bench.storage


def test_child_gets_items_put_after_its_creation(bench: Bench) -> None:
    bench.put(b"parent", b"one")
    assert bench.manager.plain_queue(b"parent") is not None
    bench.manager.queue(b"parent+child")
    assert bench.manager.plain_queue(b"parent") is None
    bench.put(b"parent", b"two")
    assert bench.items(b"parent+child") == [b"two"]
    bench.manager.delete(b"parent+child")
    assert bench.manager.plain_queue(b"parent") is bench.manager.queue(b"parent")


def test_deleted_or_failed_queue_is_not_plain(bench: Bench) -> None:
    bench.put(b"work", b"one")
    queue = bench.manager.plain_queue(b"work")
    assert queue is bench.manager.queue(b"work")
    bench.manager.delete(b"work")
    assert bench.manager.plain_queue(b"work") is None
    bench.put(b"work", b"two")
    again = bench.manager.plain_queue(b"work")
    assert again is not None
    again.store.failure = "disk failed"
    assert bench.manager.plain_queue(b"work") is None


# Start and stop.


class FullStorage(SteppedStorage):
    """A storage with one queue that has an item, and one that cannot be loaded until `is_mended`."""

    is_mended = False

    def start(self, settings_for: Callable[[bytes], QueueSettings]) -> Deferred[dict[bytes, Any]]:
        good = self.queue(b"good", settings_for(b"good"))
        self.put([good], b"one", 0, 0)
        good.replayed_items = 1
        return succeed({b"good": good, b"bad": Failure(QueueFailed("damaged"))})

    def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
        if name == b"bad" and not self.is_mended:
            raise QueueFailed("damaged")
        return super().queue(name, settings)


def test_queue_that_cannot_be_loaded_is_retried_at_each_use() -> None:
    storage = FullStorage()
    bench = Bench(storage)
    for use in (bench.manager.queue, bench.manager.existing, bench.manager.flush, bench.manager.flush_expired):
        with pytest.raises(QueueFailed, match="damaged"):
            use(b"bad")
    with pytest.raises(QueueFailed, match="damaged"):
        bench.manager.put(b"bad", b"two", 0)
    assert bench.items(b"good") == [b"one"]
    storage.is_mended = True
    bench.put(b"bad", b"two")
    assert bench.items(b"bad") == [b"two"]


def test_stop_answers_waiters_commits_and_closes(bench: Bench) -> None:
    calls: list[str] = []

    class ClosingStorage(SteppedStorage):
        def commit(self, queues: Any) -> Any:
            calls.append("commit")
            return super().commit(queues)

        def close(self, compacts: bool = False) -> Deferred[None]:
            calls.append("close")
            return super().close(compacts)

    bench = Bench(ClosingStorage())
    answers = bench.wait(b"empty")
    batch = bench.manager.put(b"work", b"one", 0)
    closed: list[None] = []
    bench.manager.close().addCallback(closed.append)
    assert answers == [None]
    assert batch.is_settled and batch.failure is None
    assert calls == ["commit", "close"]
    assert closed == [None]


# Whole queues.


def test_failed_delete_changes_nothing(bench: Bench) -> None:
    class StubbornStorage(SteppedStorage):
        def delete(self, queue: Any) -> None:
            raise StorageError("its files could not be removed")

    bench = Bench(StubbornStorage())
    answers = bench.wait(b"work")
    queue = bench.manager.known(b"work")
    with pytest.raises(StorageError):
        bench.manager.delete(b"work")
    assert bench.manager.known(b"work") is queue
    assert (answers, bench.manager.counters.queue_deletes) == ([], 0)
    bench.put(b"work", b"one")
    assert answers == [b"one"]


def test_delete_during_commit_leaves_new_queue_alone(bench: Bench) -> None:
    bench.storage.holds_commits = True
    stored = bench.manager.put(b"work", b"old", 0)
    bench.tick()
    deleted = bench.manager.delete(b"work")
    again = bench.manager.put(b"work", b"new", 0)
    assert deleted is not None
    bench.tick()
    while bench.storage.committing:
        bench.storage.end_commits()
        bench.tick()
    bench.storage.holds_commits = False
    assert [batch.is_settled for batch in (stored, deleted, again)] == [True, True, True]
    assert again.failure is None
    assert bench.items(b"work") == [b"new"]


def test_failed_commit_after_delete_does_not_bring_queue_back(bench: Bench) -> None:
    bench.storage.holds_commits = True
    bench.manager.put(b"work", b"old", 0)
    bench.tick()
    bench.manager.delete(b"work")
    bench.tick()
    bench.storage.end_commits(b"work", error=StorageError("disk failed"))
    bench.tick()
    assert bench.manager.known(b"work") is None
    bench.storage.holds_commits = False
    bench.put(b"work", b"new")
    assert bench.items(b"work") == [b"new"]


@pytest.mark.parametrize("use", ["flush_all", "flush_all_expired"])
def test_failed_queue_does_not_stop_flush_of_others(bench: Bench, use: str) -> None:
    for name in (b"a", b"b", b"c"):
        bench.manager.put(name, b"brief", bench.server.now_ms() + 500)
    bench.tick()
    bench.server.step_wall_clock(1000)
    bench.storage.reopen_refusal = "the disk is gone"
    bench.fail(b"b")
    getattr(bench.manager, use)()
    bench.tick()
    left = [queue.store.items for queue in bench.manager.all_queues() if queue.name != b"b"]
    assert left == [0, 0]


# A failing storage.


def test_failed_queue_can_be_deleted(bench: Bench) -> None:
    bench.put(b"work", b"safe")
    bench.storage.reopen_refusal = "the disk is gone"
    bench.fail(b"work")
    bench.manager.delete(b"work")
    bench.tick()
    assert bench.manager.known(b"work") is None


class StuckStorage(SteppedStorage):
    """A storage that cannot remove the files of a queue while `is_stuck`."""

    is_stuck = True

    def delete(self, queue: MemoryQueue) -> None:
        queue.failure = "the queue was deleted"
        if self.is_stuck:
            raise StorageError("the queue's files could not be removed")
        super().delete(queue)


def test_failed_delete_can_be_repeated_until_it_succeeds() -> None:
    storage = StuckStorage()
    bench = Bench(storage)
    bench.put(b"work", b"one")
    for _ in range(3):
        with pytest.raises(StorageError, match="could not be removed"):
            bench.manager.delete(b"work")
        bench.tick()
    assert bench.manager.existing(b"work") is not None
    assert bench.items(b"work") == [b"one"], "the remaining items are kept"
    storage.is_stuck = False
    assert bench.manager.delete(b"work") is not None
    bench.tick()
    assert bench.manager.existing(b"work") is None


# Settings.


def test_settings_changed_during_load_take_effect() -> None:
    opened: list[tuple[bytes, int | None]] = []

    class LoadingStorage(SteppedStorage):
        def __init__(self) -> None:
            super().__init__()
            self.loading: Deferred[dict[bytes, Any]] = Deferred()

        def start(self, settings_for: Callable[[bytes], QueueSettings]) -> Deferred[dict[bytes, Any]]:
            return self.loading

        def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
            opened.append((name, settings.max_items))
            return super().queue(name, settings)

    storage = LoadingStorage()
    bench = Bench(storage)
    loaded = storage.queue(b"work", QueueSettings())
    bench.server.reload(loads(FIVE_ITEMS))
    storage.loading.callback({b"work": loaded})
    assert opened[-1] == (b"work", 5)
    queue = bench.manager.known(b"work")
    assert queue is not None
    assert (queue.store, queue.settings.max_items) == (loaded, 5)


def test_unavailable_queue_does_not_stop_change_of_settings(bench: Bench) -> None:
    bench.put(b"good", b"one")
    bench.put(b"bad", b"one")
    bench.storage.reopen_refusal = "the disk is gone"
    bench.fail(b"bad")
    bench.server.reload(loads(FIVE_ITEMS))
    assert [queue.settings.max_items for queue in bench.manager.all_queues()] == [5, 5]


def test_stats_describe_reopened_queue(bench: Bench) -> None:
    bench.put(b"work", b"safe")
    bench.storage.reopen_refusal = "the queue is being loaded again"
    bench.fail(b"work")
    bench.storage.reopen_refusal = None
    assert bench.manager.reopen_failed()
    assert dict(stats_of(bench.manager, b"work"))["items"] == 1
