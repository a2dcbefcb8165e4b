"""The open reads of one connection: which is the oldest, and what becomes of those that ended unasked."""

from __future__ import annotations

import pytest

from kestrel.errors import QueueFailed, StorageError, TooFewOpenReads
from kestrel.queues.queue import Queue
from kestrel.session.open_reads import MAX_REMEMBERED_ENDED_READS, ConnectionOpenRead, ConnectionOpenReads
from kestrel.session.settings import SessionSettings
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage


class Bench:
    """One queue, and the reads of one connection."""

    def __init__(self) -> None:
        self.storage = SteppedStorage()
        self.server = MemoryServer(self.storage, session_settings=SessionSettings(max_open_reads=1))
        self.reads = ConnectionOpenReads()

    @property
    def queue(self) -> Queue:
        return self.server.manager.queue(b"work")

    def put(self, *items: bytes) -> None:
        for data in items:
            self.server.manager.put(b"work", data, 0)
        self.server.settle()

    def open(self, count: int = 1) -> list[ConnectionOpenRead]:
        """Open so many reads."""
        opened = []
        for _ in range(count):
            item = self.queue.take_now(opens=True)
            assert item is not None
            opened.append(self.reads.add(self.queue, item))
        self.server.settle()
        return opened

    def fail(self) -> None:
        """The queue's storage fails; it is opened anew."""
        self.storage.holds_commits = True
        self.queue.touch()
        self.server.settle()
        self.storage.end_commits(error=StorageError("disk failed"))
        self.storage.holds_commits = False
        self.server.settle()

    def delete(self) -> None:
        self.server.manager.delete(b"work")
        self.server.settle()

    def left(self) -> list[bytes]:
        """What is in the queue, head first."""
        items = []
        while (item := self.queue.take_now(opens=False)) is not None:
            items.append(item.data)
        return items


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.put(b"a", b"b", b"c")
    return bench


# While all goes well.


def test_closing_ends_the_oldest_and_aborting_returns_it(bench: Bench) -> None:
    bench.open(3)
    bench.reads.close_oldest(b"work")
    bench.reads.abort_oldest(b"work")
    assert bench.reads.count(b"work") == 1
    assert bench.left() == [b"b"]


def test_confirming_ends_the_oldest_or_leaves_all_as_they_are(bench: Bench) -> None:
    bench.open(3)
    for count in (4, 0, -1):
        with pytest.raises(TooFewOpenReads):
            bench.reads.confirm(b"work", count)
    bench.reads.confirm(b"work", 2)
    bench.reads.put_back_all()
    assert bench.left() == [b"c"]


def test_all_go_back_in_the_order_in_which_they_were_taken(bench: Bench) -> None:
    bench.open(2)
    bench.reads.put_back_all()
    assert bench.reads.count(b"work") == 0
    assert bench.left() == [b"a", b"b", b"c"]


def test_a_read_that_the_client_never_had_is_none(bench: Bench) -> None:
    first, _ = bench.open(2)
    bench.reads.forget(first)
    assert bench.reads.count(b"work") == 1
    bench.reads.close_oldest(b"work")
    assert bench.reads.close_oldest(b"work") is None


def test_counting_costs_the_same_however_many_are_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(*[b"x"] * 1000)
    bench.open(1000)
    store = bench.queue.store
    is_open = store.is_open
    looked_at = 0

    def counted(xid: int) -> bool:
        nonlocal looked_at
        looked_at += 1
        return is_open(xid)

    monkeypatch.setattr(store, "is_open", counted)
    for _ in range(100):
        assert bench.reads.count(b"work") == 1000
    assert looked_at <= 200


# While those that were held for too long end: of very many the youngest do so first, some turns before the others.


@pytest.fixture
def ending(bench: Bench) -> Bench:
    """Three reads, the youngest of which is on its way to another queue: open in the storage, and nobody's."""
    bench.queue.open_read_table.ended(bench.open(3)[-1].xid)
    return bench


def test_what_is_on_its_way_elsewhere_does_not_go_back_with_a_connection_that_ends(ending: Bench) -> None:
    ending.reads.put_back_all()
    assert ending.left() == [b"a", b"b"]
    assert ending.queue.store.open_reads == 1


def test_what_is_on_its_way_elsewhere_is_not_closed_with_the_others(ending: Bench) -> None:
    ending.reads.close_all(b"work")
    assert ending.queue.store.open_reads == 1


def test_a_confirm_that_counts_what_is_on_its_way_elsewhere_is_refused_once(ending: Bench) -> None:
    with pytest.raises(TooFewOpenReads):
        ending.reads.confirm(b"work", 3)
    assert ending.queue.store.open_reads == 3
    assert ending.reads.confirm(b"work", 2) is not None
    assert ending.queue.store.open_reads == 1


# After the queue's storage failed.


def test_each_lost_read_is_told_once_and_then_those_opened_since_are_closed(bench: Bench) -> None:
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


def test_a_confirm_of_lost_reads_leaves_those_opened_since_alone(bench: Bench) -> None:
    bench.open(1)
    bench.fail()
    bench.open(1)
    with pytest.raises(QueueFailed):
        bench.reads.confirm(b"work", 1)
    assert bench.reads.count(b"work") == 1
    bench.reads.put_back_all()
    assert bench.left() == [b"a", b"b", b"c"]


def test_a_client_that_confirms_lost_reads_and_leaves_gives_back_what_it_has_opened_since(bench: Bench) -> None:
    client, other = bench.server.connect(), bench.server.connect()
    item = b"VALUE work 0 1\r\na\r\nEND\r\n"
    assert client.ask(b"get work/open\r\n") == item
    bench.fail()
    assert client.ask(b"get work/open\r\n") == item
    assert client.ask(b"confirm work 1\r\n").startswith(b"SERVER_ERROR ")
    client.disconnect()
    assert other.ask(b"get work\r\n") == item


def test_a_confirm_that_was_told_of_the_loss_can_be_repeated_for_those_opened_since(bench: Bench) -> None:
    bench.open(1)
    bench.fail()
    bench.open(2)
    with pytest.raises(QueueFailed):
        bench.reads.confirm(b"work", 2)
    assert bench.reads.confirm(b"work", 2) is not None
    assert bench.left() == [b"c"]


def test_aborting_a_lost_read_touches_nothing(bench: Bench) -> None:
    bench.open(1)
    bench.fail()
    bench.open(1)
    assert bench.reads.abort_oldest(b"work") is None
    assert bench.reads.count(b"work") == 1


def test_a_lost_read_that_the_client_never_had_is_not_told(bench: Bench) -> None:
    held, not_had = bench.open(2)
    bench.fail()
    assert not held.is_open
    bench.reads.count(b"work")
    bench.reads.forget(not_had)
    with pytest.raises(QueueFailed):
        bench.reads.close_oldest(b"work")
    assert bench.reads.close_oldest(b"work") is None


def test_a_client_that_never_closes_does_not_make_the_server_remember_without_end(bench: Bench) -> None:
    bench.put(*[b"x"] * 100)
    for _ in range(MAX_REMEMBERED_ENDED_READS // 100 + 2):
        bench.open(100)
        bench.fail()
    told = 0
    while True:
        try:
            assert bench.reads.close_oldest(b"work") is None
            break
        except QueueFailed:
            told += 1
    assert told == MAX_REMEMBERED_ENDED_READS


def test_a_client_that_leaves_with_lost_reads_returns_nobody_elses(bench: Bench) -> None:
    bench.open(2)
    bench.fail()
    item = bench.queue.take_now(opens=True)
    assert item is not None
    bench.reads.put_back_all()
    assert bench.queue.store.is_open(item.xid)
    assert bench.left() == [b"b", b"c"]


# After the queue was deleted.


def test_closing_a_read_of_a_deleted_queue_touches_nothing_and_ends_no_other_read(bench: Bench) -> None:
    bench.open(1)
    bench.delete()
    bench.put(b"new")
    bench.open(1)
    assert bench.reads.close_oldest(b"work") is None
    assert bench.reads.count(b"work") == 1
    bench.reads.put_back_all()
    assert bench.left() == [b"new"]


def test_a_confirm_counts_no_read_of_a_deleted_queue(bench: Bench) -> None:
    bench.open(1)
    bench.delete()
    with pytest.raises(TooFewOpenReads):
        bench.reads.confirm(b"work", 1)
    bench.put(b"new")
    bench.open(1)
    assert bench.reads.confirm(b"work", 1) is not None
