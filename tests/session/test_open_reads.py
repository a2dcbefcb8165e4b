"""Open reads of one connection: their order, and those that have ended without a request."""

from __future__ import annotations

import pytest

from kestrel.config.model import Config
from kestrel.errors import QueueFailed, TooFewOpenReads
from kestrel.queues.queue import Queue
from kestrel.session.open_reads import MAX_REMEMBERED_ENDED_READS, ConnectionOpenReads
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.session.servers import lose_commits


class Bench:
    """A queue and the open reads of one connection."""

    def __init__(self) -> None:
        self.storage = SteppedStorage()
        self.server = MemoryServer(self.storage, session_settings=Config(max_open_transactions=1))
        self.reads = ConnectionOpenReads()

    @property
    def queue(self) -> Queue:
        return self.server.manager.queue(b"work")

    def put(self, *items: bytes) -> None:
        for data in items:
            self.server.manager.put(b"work", data, 0)
        self.server.settle()

    def open(self, count: int = 1) -> list[tuple[IQueueStorage, int]]:
        """Open that many reads. Return the store and the xid of each."""
        opened = []
        for _ in range(count):
            item = self.queue.take_now(opens=True)
            assert item is not None
            self.reads.add(self.queue, item)
            opened.append((self.queue.store, item.xid))
        self.server.settle()
        return opened

    def fail(self) -> None:
        """Make the queue's storage fail; the queue is reopened."""
        self.storage.holds_commits = True
        self.queue.touch()
        self.server.settle()
        lose_commits(self.storage)
        self.server.settle()

    def left(self) -> list[bytes]:
        """Take the items of the queue, head first."""
        items = []
        while (item := self.queue.take_now(opens=False)) is not None:
            items.append(item.data)
        return items


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.put(b"a", b"b", b"c")
    return bench


def test_forgotten_read_is_not_counted(bench: Bench) -> None:
    first, _ = bench.open(2)
    bench.reads.forget(b"work", *first)
    assert bench.reads.count(b"work") == 1
    bench.reads.close_oldest(b"work")
    assert bench.reads.close_oldest(b"work") is None


def test_count_costs_the_same_however_many_are_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(*[b"x"] * 1000)
    bench.open(1000)
    store = bench.queue.store
    is_open = store.is_open
    looked_at = 0

    def is_open_counted(xid: int) -> bool:
        nonlocal looked_at
        looked_at += 1
        return is_open(xid)

    monkeypatch.setattr(store, "is_open", is_open_counted)
    for _ in range(100):
        assert bench.reads.count(b"work") == 1000
    assert looked_at <= 200


# Reads that timed out. Of very many, the youngest end first, some time slices before the others.


@pytest.fixture
def with_moving_item(bench: Bench) -> Bench:
    """Return a bench with three reads, the youngest of which is moving to another queue.

    It is still open in the storage, but belongs to no client.
    """
    bench.queue.open_read_table.ended(bench.open(3)[-1][1])
    return bench


def test_moving_item_is_not_requeued_on_disconnect(with_moving_item: Bench) -> None:
    with_moving_item.reads.put_back_all()
    assert with_moving_item.left() == [b"a", b"b"]
    assert with_moving_item.queue.store.open_reads == 1


def test_moving_item_is_not_closed_with_the_others(with_moving_item: Bench) -> None:
    with_moving_item.reads.close_all(b"work")
    assert with_moving_item.queue.store.open_reads == 1


def test_confirm_that_counts_moving_item_is_refused_once(with_moving_item: Bench) -> None:
    with pytest.raises(TooFewOpenReads):
        with_moving_item.reads.confirm(b"work", 3)
    assert with_moving_item.queue.store.open_reads == 3
    assert with_moving_item.reads.confirm(b"work", 2) is not None
    assert with_moving_item.queue.store.open_reads == 1


# After a storage failure.


def test_each_lost_read_is_reported_once_before_newer_reads(bench: Bench) -> None:
    bench.open(2)
    bench.fail()
    bench.open(1)
    for _ in range(2):
        with pytest.raises(QueueFailed):
            bench.reads.close_oldest(b"work")
    assert bench.reads.count(b"work") == 1
    assert bench.reads.close_oldest(b"work") is not None
    assert bench.reads.count(b"work") == 0
    assert bench.left() == [b"b", b"c"]


def test_newer_read_is_requeued_after_confirm_of_lost_read(bench: Bench) -> None:
    client, other = bench.server.connect(), bench.server.connect()
    opened = b"VALUE work/open 0 1\r\na\r\nEND\r\n"
    assert client.ask(b"get work/open\r\n") == opened
    bench.fail()
    assert client.ask(b"get work/open\r\n") == opened
    assert client.ask(b"confirm work 1\r\n").startswith(b"SERVER_ERROR ")
    client.disconnect()
    assert other.ask(b"get work\r\n") == b"VALUE work 0 1\r\na\r\nEND\r\n"


def test_confirm_that_reported_loss_can_be_repeated_for_newer_reads(bench: Bench) -> None:
    bench.open(1)
    bench.fail()
    bench.open(2)
    with pytest.raises(QueueFailed):
        bench.reads.confirm(b"work", 2)
    assert bench.reads.confirm(b"work", 2) is not None
    assert bench.left() == [b"c"]


def test_abort_of_lost_read_changes_nothing(bench: Bench) -> None:
    bench.open(1)
    bench.fail()
    bench.open(1)
    assert bench.reads.abort_oldest(b"work") is None
    assert bench.reads.count(b"work") == 1


def test_forgotten_lost_read_is_not_reported(bench: Bench) -> None:
    held, not_had = bench.open(2)
    bench.fail()
    assert not bench.queue.owns_store(held[0])
    bench.reads.count(b"work")
    bench.reads.forget(b"work", *not_had)
    with pytest.raises(QueueFailed):
        bench.reads.close_oldest(b"work")
    assert bench.reads.close_oldest(b"work") is None


def test_number_of_remembered_lost_reads_is_bounded(bench: Bench) -> None:
    bench.put(*[b"x"] * 100)
    for _ in range(MAX_REMEMBERED_ENDED_READS // 100 + 2):
        bench.open(100)
        bench.fail()
    failures = 0
    while True:
        try:
            assert bench.reads.close_oldest(b"work") is None
            break
        except QueueFailed:
            failures += 1
    assert failures == MAX_REMEMBERED_ENDED_READS


def test_disconnect_with_lost_reads_requeues_no_read_of_other_clients(bench: Bench) -> None:
    bench.open(2)
    bench.fail()
    item = bench.queue.take_now(opens=True)
    assert item is not None
    bench.reads.put_back_all()
    assert bench.queue.store.is_open(item.xid)
    assert bench.left() == [b"b", b"c"]
