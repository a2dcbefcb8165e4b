"""The rounds of the expiration timer, and the bound on sweeping, discarding and moving in one tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from twisted.logger import LogLevel, capturedLogs

from kestrel.config.load import loads
from kestrel.config.model import Config, QueueSettings
from kestrel.errors import StorageError
from kestrel.item import Item
from kestrel.journal.records import encode_item
from kestrel.queues.expiry_sweeper import SWEPT_QUEUES_PER_SLICE
from kestrel.queues.limits import MAX_SWEPT_PER_PUT, MAX_SWEPT_PER_SLICE
from kestrel.queues.tick_scheduler import TICK_BUDGET_S
from kestrel.storage.memory import MemoryQueue, MemoryStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import STORED, items, set_, value
from tests.promises.slow_server import SlowServer

EVERY_SECOND: Final = "expirationTimerFrequency = '1s'\n"

ITEM_S: Final = TICK_BUDGET_S / 200
"""Seconds that it takes to take or put an item."""

MOST_IN_A_TURN: Final = TICK_BUDGET_S / ITEM_S + 2 * MAX_SWEPT_PER_SLICE
"""Work that starts in time may check a head, and then wait for it: two sweeps."""


class SteppingQueue(MemoryQueue):
    """A queue that counts each take as a step."""

    def __init__(self, name: bytes, step: Callable[[bytes], None]) -> None:
        super().__init__(name)
        self._step = step

    def take(self, opened: bool) -> Item | None:
        self._step(self.name)
        return super().take(opened)


class SteppingStorage(MemoryStorage):
    """A storage that counts each put and each take as a step."""

    def __init__(self, step: Callable[[bytes], None]) -> None:
        super().__init__()
        self._step = step

    def queue(self, name: bytes, settings: QueueSettings) -> MemoryQueue:
        return self._queues.setdefault(name, SteppingQueue(name, self._step))

    def put(self, queues: Sequence[MemoryQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        for queue in queues:
            self._step(queue.name)
        super().put(queues, data, add_ms, expiry_ms)


class SteppingServer(MemoryServer):
    """A server on which each step takes time.

    `steps` lists the queue of each step since `watch`, in order.
    """

    def __init__(self, config: Config) -> None:
        self.steps: list[bytes] = []
        self._seen = 0
        self.most_in_a_tick = 0
        super().__init__(SteppingStorage(self._step), config=config)

    def _step(self, name: bytes) -> None:
        self.steps.append(name)
        self.spend(ITEM_S)

    def tick(self) -> None:
        super().tick()
        self.most_in_a_tick = max(self.most_in_a_tick, len(self.steps) - self._seen)
        self._seen = len(self.steps)

    def fill(self, name: bytes, count: int) -> None:
        """Put that many items, which expire after a second."""
        for _ in range(count):
            self.manager.put(name, b"x", self.now_ms() + 1000)
        self.settle()

    def let_expire(self) -> None:
        """Let all items expire without running the timer."""
        self.step_wall_clock(2000)

    def watch(self) -> None:
        """Count steps from now on."""
        self.settle()
        self.steps.clear()
        self._seen = self.most_in_a_tick = 0


def expired_items(server: MemoryServer, *names: bytes) -> list[int]:
    return [server.manager.queue(name).counters.expired_items for name in names]


# The bound of a tick.


def reload_makes_queue_discard() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads(""))
    server.fill(b"work", 20_000)
    server.reload(loads("[default]\nmaxItems = 10\ndiscardOldWhenFull = true"))
    return server, set_(b"work", b"x"), 20_000 - 10


def get_behind_many_expired_items() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads(""))
    server.fill(b"work", 20_000)
    server.let_expire()
    return server, b"get work\r\n", 20_000


def many_queues_with_some_expired_items() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads(""))
    for number in range(500):
        server.fill(b"work%d" % number, 40)
    server.let_expire()
    return server, b"flush_all_expired\r\n", 20_000


def move_to_queue_with_many_expired_items() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads("[[queues]]\nname = 'work'\nexpireToQueue = 'late'"))
    server.fill(b"work", 100)
    server.fill(b"late", 20_000)
    server.let_expire()
    return server, b"get work\r\n", 100 + 100 * MAX_SWEPT_PER_PUT


def move_to_parent_of_many_children() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads("[[queues]]\nname = 'work'\nexpireToQueue = 'late'"))
    for number in range(199):
        server.manager.queue(b"late+%d" % number)
    server.fill(b"work", 100)
    server.let_expire()
    return server, b"get work\r\n", 100 + 100 * 200


@pytest.mark.parametrize(
    "arrange",
    [
        reload_makes_queue_discard,
        get_behind_many_expired_items,
        many_queues_with_some_expired_items,
        move_to_queue_with_many_expired_items,
        move_to_parent_of_many_children,
    ],
)
def test_large_work_takes_bounded_share_of_each_tick(arrange: Callable[[], tuple[SteppingServer, bytes, int]]) -> None:
    server, request, least = arrange()
    client = server.connect()
    server.watch()
    assert client.ask(request)
    assert len(server.steps) >= least, "all of it was done"
    # One reactor iteration sees the end of one tick and the start of the next.
    assert server.most_in_a_tick <= 2 * MOST_IN_A_TURN


# Rounds.


def test_round_returns_to_long_queue_after_the_others() -> None:
    server = SteppingServer(loads(EVERY_SECOND))
    server.fill(b"full", 3 * MAX_SWEPT_PER_SLICE)
    for name in (b"a", b"b", b"c"):
        server.fill(name, 1)
    server.let_expire()
    server.watch()
    server.advance(1)
    assert server.steps == [b"full"] * MAX_SWEPT_PER_SLICE + [b"a", b"b", b"c"] + [b"full"] * 2 * MAX_SWEPT_PER_SLICE


@pytest.mark.parametrize(
    ("most", "left"), [(1, [1998, 1997, 1996]), (MAX_SWEPT_PER_SLICE, [1499, 999, 499]), (1200, [799, 0, 0])]
)
def test_max_expire_sweep_bounds_each_round_of_each_queue(most: int, left: list[int]) -> None:
    server = SteppingServer(loads(f"{EVERY_SECOND}[default]\nmaxExpireSweep = {most}"))
    names = (b"a", b"b")
    for name in names:
        server.fill(name, 1999)
    server.let_expire()
    for each in left:
        server.advance(1)
        assert [server.manager.queue(name).store.items for name in names] == [each, each]


def test_running_round_is_not_started_again() -> None:
    server = SteppingServer(loads(EVERY_SECOND + "[default]\nmaxExpireSweep = 10"))
    server.fill(b"work", 100)
    server.let_expire()
    for _ in range(5):
        server.clock.advance(1)  # the timer is due, but no tick runs
    server.settle()
    assert expired_items(server, b"work") == [10]
    server.advance(1)
    assert expired_items(server, b"work") == [20]


def test_round_over_many_queues_checks_some_in_each_tick() -> None:
    server = SteppingServer(loads(EVERY_SECOND))
    names = [b"work%d" % number for number in range(3 * SWEPT_QUEUES_PER_SLICE + 50)]
    for name in names:
        server.fill(name, 1)
    server.let_expire()
    server.watch()
    server.advance(1)
    assert expired_items(server, *names) == [1] * len(names)
    assert server.most_in_a_tick == SWEPT_QUEUES_PER_SLICE


def test_round_over_many_queues_sweeps_few_hundred_items_per_tick() -> None:
    server = SteppingServer(loads(EVERY_SECOND))
    for number in range(50):
        server.fill(b"work%d" % number, MAX_SWEPT_PER_SLICE - 1)
    server.let_expire()
    server.watch()
    server.advance(1)
    assert len(server.steps) == 50 * (MAX_SWEPT_PER_SLICE - 1)
    assert server.most_in_a_tick < 2 * MAX_SWEPT_PER_SLICE


def test_queue_deleted_during_round_is_skipped() -> None:
    server = SteppingServer(loads(EVERY_SECOND))
    for name in (b"a", b"b"):
        server.fill(name, 3 * MAX_SWEPT_PER_SLICE)
    server.let_expire()
    server.clock.advance(1)
    while expired_items(server, b"a") == [0]:
        server.tick()
    deleted = server.manager.queue(b"a")
    server.manager.delete(b"a")
    server.settle()
    assert deleted.counters.expired_items == MAX_SWEPT_PER_SLICE
    assert expired_items(server, b"b") == [3 * MAX_SWEPT_PER_SLICE]


def test_stop_ends_the_running_round() -> None:
    server = SteppingServer(loads(EVERY_SECOND))
    server.fill(b"work", 3 * MAX_SWEPT_PER_SLICE)
    server.let_expire()
    server.clock.advance(1)
    while expired_items(server, b"work") == [0]:
        server.tick()
    server.core.expiry_sweeper.stop()
    server.advance(10)
    assert expired_items(server, b"work") == [MAX_SWEPT_PER_SLICE]


@pytest.mark.parametrize(("before", "after", "is_due_after_s"), [(3, 3, 1), (3, 5, 5), (3, 1, 1), (3, None, None)])
def test_changed_frequency_restarts_timer_and_equal_one_does_not(
    before: int, after: int | None, is_due_after_s: int | None
) -> None:
    server = SteppingServer(loads(""))
    server.core.expiry_sweeper.every(1000 * before)
    server.fill(b"work", 1)
    server.let_expire()
    server.advance(2)
    server.core.expiry_sweeper.every(None if after is None else 1000 * after)
    if is_due_after_s is None:
        server.advance(1000)
        assert expired_items(server, b"work") == [0]
    else:
        server.advance(is_due_after_s - 0.25)
        assert expired_items(server, b"work") == [0]
        server.advance(0.25)
        assert expired_items(server, b"work") == [1]


def test_masked_queue_is_swept() -> None:
    text = EVERY_SECOND + "[[queues]]\nname = 'work'\nmaxAge = '5s'\n"
    server = MemoryServer(config=loads(text))
    assert server.connect().ask(set_(b"work", b"item")) == STORED
    server.reload(loads(text + "[[aliases]]\nname = 'work'\ndestinationQueues = ['other']"))
    server.advance(6)
    server.reload(loads(""))
    assert items(server.connect(), b"work") == []
    assert expired_items(server, b"work") == [1]


# Queues that have failed or are too old.


def test_timer_sweeps_failed_queue_once_it_can_be_reopened() -> None:
    storage = SteppedStorage()
    config = loads(EVERY_SECOND + "[default]\nmaxAge = '3s'\n[[queues]]\nname = 'work'\nexpireToQueue = 'late'")
    server = MemoryServer(storage, config=config)
    client, other = server.connect(), server.connect()
    assert other.ask(set_(b"a", b"item") + set_(b"work", b"item") + set_(b"z", b"item")) == STORED * 3
    storage.holds_commits = True
    client.send(set_(b"work", b"lost"))
    server.settle()
    storage.reopen_refusal = "the disk is gone"
    storage.end_commits(error=StorageError("disk failed"))
    storage.holds_commits = False
    assert client.take() == b"SERVER_ERROR disk failed\r\n"
    for _ in range(5):
        server.advance(1)
    assert expired_items(server, b"a", b"z") == [1, 1], "the other queues are swept"
    assert server.manager.known(b"late") is None
    storage.reopen_refusal = None
    server.advance(1)
    assert items(other, b"late") == [b"item"]


def test_fault_in_one_queue_does_not_stop_rounds_of_others() -> None:
    class FaultyQueue(MemoryQueue):
        def peek(self) -> Item | None:
            if self.name == b"b":
                raise RuntimeError("internal fault")
            return super().peek()

    class FaultyStorage(MemoryStorage):
        def queue(self, name: bytes, settings: QueueSettings) -> MemoryQueue:
            return self._queues.setdefault(name, FaultyQueue(name))

    server = MemoryServer(FaultyStorage(), config=loads(EVERY_SECOND + "[default]\nmaxAge = '1s'"))
    names = [b"a", b"b", b"c"]
    queues = [server.manager.queue(name) for name in names]
    for _ in range(2):
        for queue in queues:
            queue.store.append(encode_item(b"item", server.now_ms(), 0))
        with capturedLogs() as events:
            server.advance(1)
            server.advance(1)
        assert [event for event in events if event["log_level"] is LogLevel.critical] != []
    assert expired_items(server, *names) == [2, 0, 2]


def test_queue_with_unsafe_take_is_not_deleted_for_its_age(tmp_path: Path) -> None:
    config = loads(EVERY_SECOND + "[default]\nsyncJournal = 0\nmaxQueueAge = '3s'")
    server = SlowServer(tmp_path / "queues", config)
    client = server.connect()
    assert server.ask(client, set_(b"work", b"item")) == STORED
    assert client.ask(b"get work\r\n") == b"", "the disk is slow"
    for _ in range(10):
        server.advance(1)
    assert server.manager.known(b"work") is not None
    server.end_threads()
    assert client.take() == value(b"work", b"item")
    server.advance(1)
    server.end_threads()
    assert server.manager.known(b"work") is None
    assert not (tmp_path / "queues" / "work").exists()
