"""The expiry timer's rounds, and that no tick does more than its share of what there is to sweep, discard and move."""

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
from kestrel.queues.expiry import MAX_SWEPT_PER_PUT, MAX_SWEPT_PER_SLICE
from kestrel.queues.expiry_sweeper import SWEPT_QUEUES_PER_SLICE
from kestrel.queues.tick_scheduler import TICK_BUDGET_S
from kestrel.storage.memory import MemoryQueue, MemoryStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.promises.slow import SlowServer
from tests.promises.speaking import STORED, items, set_, value

EVERY_SECOND: Final = "expirationTimerFrequency = '1s'\n"

ITEM_S: Final = TICK_BUDGET_S / 200
"""What it takes to take an item from a queue, or to put one to it."""

MOST_IN_A_TURN: Final = TICK_BUDGET_S / ITEM_S + 2 * MAX_SWEPT_PER_SLICE
"""Whoever begins in time may look at a head, and then stand in line for it: those are two sweeps."""


class SteppingQueue(MemoryQueue):
    """Each item that leaves it is a step."""

    def __init__(self, name: bytes, step: Callable[[bytes], None]) -> None:
        super().__init__(name)
        self._step = step

    def take(self, opened: bool) -> Item | None:
        self._step(self.name)
        return super().take(opened)


class SteppingStorage(MemoryStorage):
    """Each item that comes to a queue or leaves it is a step."""

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
    """A server to which each step is work. `steps` are the queues of all that were made since `watch`, in order."""

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
        """So many items, which live for a second."""
        for _ in range(count):
            self.manager.put(name, b"x", self.now_ms() + 1000)
        self.settle()

    def let_expire(self) -> None:
        """All that is there has expired; no timer was due meanwhile."""
        self.step_wall_clock(2000)

    def watch(self) -> None:
        """What is done from now on is looked at."""
        self.settle()
        self.steps.clear()
        self._seen = self.most_in_a_tick = 0


def expired_items(server: MemoryServer, *names: bytes) -> list[int]:
    return [server.manager.queue(name).counters.expired_items for name in names]


# A tick is bounded.


def a_reload_makes_a_queue_discard() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads(""))
    server.fill(b"work", 20_000)
    server.reload(loads("[default]\nmaxItems = 10\ndiscardOldWhenFull = true"))
    return server, set_(b"work", b"x"), 20_000 - 10


def a_get_behind_many_that_have_expired() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads(""))
    server.fill(b"work", 20_000)
    server.let_expire()
    return server, b"get work\r\n", 20_000


def many_queues_with_some_that_have_expired() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads(""))
    for number in range(500):
        server.fill(b"work%d" % number, 40)
    server.let_expire()
    return server, b"flush_all_expired\r\n", 20_000


def a_move_to_a_queue_in_which_many_have_expired() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads("[[queues]]\nname = 'work'\nexpireToQueue = 'late'"))
    server.fill(b"work", 100)
    server.fill(b"late", 20_000)
    server.let_expire()
    return server, b"get work\r\n", 100 + 100 * MAX_SWEPT_PER_PUT


def a_move_to_a_parent_of_many_children() -> tuple[SteppingServer, bytes, int]:
    server = SteppingServer(loads("[[queues]]\nname = 'work'\nexpireToQueue = 'late'"))
    for number in range(199):
        server.manager.queue(b"late+%d" % number)
    server.fill(b"work", 100)
    server.let_expire()
    return server, b"get work\r\n", 100 + 100 * 200


@pytest.mark.parametrize(
    "arrange",
    [
        a_reload_makes_a_queue_discard,
        a_get_behind_many_that_have_expired,
        many_queues_with_some_that_have_expired,
        a_move_to_a_queue_in_which_many_have_expired,
        a_move_to_a_parent_of_many_children,
    ],
)
def test_a_large_work_takes_no_more_than_a_small_share_of_each_tick(
    arrange: Callable[[], tuple[SteppingServer, bytes, int]],
) -> None:
    server, request, least = arrange()
    client = server.connect()
    server.watch()
    assert client.ask(request)
    assert len(server.steps) >= least, "all of it was done"
    # A reactor's turn sees the end of one tick and the beginning of the next.
    assert server.most_in_a_tick <= 2 * MOST_IN_A_TURN


# Rounds.


def test_a_round_comes_back_to_a_queue_with_many_expired_items_after_the_others() -> None:
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


def test_a_round_that_is_still_under_way_is_not_begun_again() -> None:
    server = SteppingServer(loads(EVERY_SECOND + "[default]\nmaxExpireSweep = 10"))
    server.fill(b"work", 100)
    server.let_expire()
    for _ in range(5):
        server.clock.advance(1)  # the timer is due, and nobody has the turn to do it
    server.settle()
    assert expired_items(server, b"work") == [10]
    server.advance(1)
    assert expired_items(server, b"work") == [20]


def test_a_round_over_many_queues_looks_at_some_in_each_tick() -> None:
    server = SteppingServer(loads(EVERY_SECOND))
    names = [b"work%d" % number for number in range(3 * SWEPT_QUEUES_PER_SLICE + 50)]
    for name in names:
        server.fill(name, 1)
    server.let_expire()
    server.watch()
    server.advance(1)
    assert expired_items(server, *names) == [1] * len(names)
    assert server.most_in_a_tick == SWEPT_QUEUES_PER_SLICE


def test_a_round_over_many_queues_sweeps_a_few_hundred_items_in_each_tick() -> None:
    server = SteppingServer(loads(EVERY_SECOND))
    for number in range(50):
        server.fill(b"work%d" % number, MAX_SWEPT_PER_SLICE - 1)
    server.let_expire()
    server.watch()
    server.advance(1)
    assert len(server.steps) == 50 * (MAX_SWEPT_PER_SLICE - 1)
    assert server.most_in_a_tick < 2 * MAX_SWEPT_PER_SLICE


def test_a_queue_that_is_deleted_in_the_midst_of_a_round_is_left_out() -> None:
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


def test_a_stop_ends_the_round_that_is_under_way() -> None:
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
def test_another_frequency_counts_from_when_it_is_set_and_the_same_one_goes_on(
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


def test_a_queue_that_an_alias_masks_is_swept_as_well() -> None:
    text = EVERY_SECOND + "[[queues]]\nname = 'work'\nmaxAge = '5s'\n"
    server = MemoryServer(config=loads(text))
    assert server.connect().ask(set_(b"work", b"item")) == STORED
    server.reload(loads(text + "[[aliases]]\nname = 'work'\ndestinationQueues = ['other']"))
    server.advance(6)
    server.reload(loads(""))
    assert items(server.connect(), b"work") == []
    assert expired_items(server, b"work") == [1]


# Queues that failed, and queues that are too old.


def test_a_queue_that_could_not_be_opened_anew_is_swept_when_it_can_be_though_nobody_uses_it() -> None:
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
    assert expired_items(server, b"a", b"z") == [1, 1], "it keeps nobody else from being swept"
    assert server.manager.known(b"late") is None
    storage.reopen_refusal = None
    server.advance(1)
    assert items(other, b"late") == [b"item"]


def test_a_fault_at_one_queue_ends_the_rounds_of_no_other() -> None:
    class FaultyQueue(MemoryQueue):
        def peek(self) -> Item | None:
            if self.name == b"b":
                raise RuntimeError("a fault of ours")
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


def test_a_queue_whose_last_take_is_not_safe_yet_is_not_deleted_for_its_age(tmp_path: Path) -> None:
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
