"""Gets of many items while storages fail, queues change and go, clients half-close and the server stops."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from kestrel.errors import StorageError
from kestrel.protocols import thrift_binary as binary
from kestrel.queues.counters import QueueCounters
from kestrel.session.item_feed import MAX_FED_ITEMS_PER_SLICE
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.promises.speaking import stat
from tests.session.served import config_of, many, of_work, serving
from tests.session.thrift_calls import LONG_MS, Refused, ThriftClient, data_of, ids_of

ERRORS: Final = "maxRedeliveries = 1\nerrorQueue = 'bad'"
"""An item that fails once is not in its queue any more."""

AUTO_ABORT = pytest.mark.parametrize("auto_abort_ms", [0, LONG_MS])

LEAVE = pytest.mark.parametrize("leave", [ThriftClient.disconnect, ThriftClient.half_close])


@pytest.fixture
def server() -> MemoryServer:
    return serving()


@pytest.fixture
def storage() -> SteppedStorage:
    return SteppedStorage()


@pytest.fixture
def slow(storage: SteppedStorage) -> MemoryServer:
    """A server over a storage that the test steps."""
    return serving(storage=storage)


def waiting(server: MemoryServer, max_items: int, wait_ms: int = 1000, auto_abort_ms: int = 0) -> ThriftClient:
    """A client whose get of "work" waits, with what is there already."""
    client = ThriftClient(server)
    client.send_get(b"work", max_items, wait_ms, auto_abort_ms)
    assert client.waits()
    return client


def counts(server: MemoryServer) -> tuple[int, int]:
    """How many items "work" has, and how many open reads. To ask is no use of the queue."""
    memcache = server.connect()
    return int(stat(memcache, b"work", "items")), int(stat(memcache, b"work", "open_transactions"))


def counters(server: MemoryServer) -> QueueCounters:
    """The counters of "work", which outlive the run of the server."""
    queue = server.manager.known(b"work")
    assert queue is not None
    return queue.counters


def drained(server: MemoryServer, queue: bytes = b"work") -> list[bytes]:
    """Take all that is there, head first."""
    return ThriftClient(server).items(queue)


def fail(server: MemoryServer, storage: SteppedStorage) -> None:
    """Let the storage of "work" fail in a commit; what had been safe is safe."""
    storage.holds_commits = True
    ThriftClient(server).send_put(b"work", b"lost")
    server.settle()
    storage.end_commits(error=StorageError("disk failed"))
    storage.holds_commits = False
    server.settle()


def end_commits(server: MemoryServer, storage: SteppedStorage) -> None:
    """All that waits becomes safe."""
    while storage.committing:
        storage.end_commits()
        server.settle()
    storage.holds_commits = False


def ends_what_it_got(server: MemoryServer, client: ThriftClient, auto_abort_ms: int) -> list[bytes]:
    """What a get was answered, once nothing of it is open any more; without auto-abort nothing is."""
    taken = client.taken()
    assert counts(server)[1] == (len(taken) if auto_abort_ms else 0)
    assert client.confirm(b"work", *ids_of(taken)) == (len(taken) if auto_abort_ms else 0)
    return data_of(taken)


# A storage that fails while a get waits.


@AUTO_ABORT
@pytest.mark.parametrize("max_items", [5, 10, -1])
@pytest.mark.parametrize("collected", [0, 2])
def test_a_get_that_waits_over_a_failure_is_answered_with_what_is_there_after_it(
    slow: MemoryServer, storage: SteppedStorage, collected: int, max_items: int, auto_abort_ms: int
) -> None:
    writer = ThriftClient(slow)
    writer.put(b"work", *many(5)[:collected])
    client = waiting(slow, max_items, auto_abort_ms=auto_abort_ms)
    fail(slow, storage)
    assert writer.put(b"work", *many(5)[collected:]) == 5 - collected
    slow.advance(1)
    assert ends_what_it_got(slow, client, auto_abort_ms) == many(5)
    client.disconnect()
    slow.advance(LONG_MS / 1000)
    assert counts(slow) == (0, 0)


@AUTO_ABORT
@LEAVE
def test_who_leaves_a_get_that_waited_over_a_failure_takes_nothing_along(
    slow: MemoryServer,
    storage: SteppedStorage,
    leave: Callable[[ThriftClient], None],
    auto_abort_ms: int,
) -> None:
    writer = ThriftClient(slow)
    writer.put(b"work", *many(2))
    client = waiting(slow, 10, auto_abort_ms=auto_abort_ms)
    fail(slow, storage)
    writer.put(b"work", *many(5)[2:])
    leave(client)
    slow.settle()
    assert counts(slow) == (5, 0)
    assert drained(slow) == many(5)


@pytest.mark.parametrize("max_items", [MAX_FED_ITEMS_PER_SLICE, MAX_FED_ITEMS_PER_SLICE + 10, -1])
def test_a_get_whose_storage_fails_between_two_of_its_turns_costs_no_item(
    slow: MemoryServer, storage: SteppedStorage, max_items: int
) -> None:
    client = ThriftClient(slow)
    client.put(b"work", *many(200))
    storage.holds_commits = True
    ThriftClient(slow).send_put(b"work", b"lost")
    slow.settle()
    client.send_get(b"work", max_items, 0, LONG_MS)
    storage.end_commits(error=StorageError("disk failed"))
    storage.holds_commits = False
    try:
        taken = client.taken()
    except Refused:
        taken = []
    assert counts(slow) == (200 - len(taken), len(taken))
    assert client.confirm(b"work", *ids_of(taken)) == len(taken)
    assert data_of(taken) + drained(slow) == many(200)


@AUTO_ABORT
def test_gets_that_wait_over_a_disk_that_fails_share_what_comes_after_it(tmp_path: Path, auto_abort_ms: int) -> None:
    disk = FaultyDisk()
    server = MemoryServer(config=config_of(), folder=tmp_path / "queues", disk=disk)
    writer = ThriftClient(server)
    clients = [waiting(server, 10, auto_abort_ms=auto_abort_ms) for _ in range(3)]
    disk.fail("write", errno.EIO, times=1)
    with pytest.raises(Refused):
        writer.put(b"work", b"lost")
    for item in many(9):
        assert writer.put(b"work", item) == 1
    server.advance(1)
    taken = [client.taken() for client in clients]
    assert [len(part) for part in taken] == [3, 3, 3]
    assert sorted(chain.from_iterable(map(data_of, taken))) == many(9)
    assert counts(server) == (0, 9 if auto_abort_ms else 0)
    assert writer.confirm(b"work", *chain.from_iterable(map(ids_of, taken))) == (9 if auto_abort_ms else 0)
    server.crash()
    assert drained(server) == []


@pytest.mark.parametrize("collected", [0, 2])
def test_a_get_that_waits_is_refused_when_its_queue_cannot_be_opened_again_and_holds_nothing(
    slow: MemoryServer, storage: SteppedStorage, collected: int
) -> None:
    writer = ThriftClient(slow)
    writer.put(b"work", b"gone")
    writer.items(b"work")
    writer.put(b"work", *many(collected))
    client = waiting(slow, 10, auto_abort_ms=LONG_MS)
    storage.reopen_refusal = "no such disk"
    fail(slow, storage)
    with pytest.raises(Refused):
        client.taken()
    storage.reopen_refusal = None
    assert writer.put(b"work", b"next") == 1
    slow.advance(1)
    assert client.waits(), "it was answered once"
    assert drained(slow) == [*many(collected), b"next"]


# Queues that change, and queues that go.


@AUTO_ABORT
def test_a_get_that_waits_while_its_queue_is_given_a_journal_is_answered_with_what_comes_after_it(
    tmp_path: Path, auto_abort_ms: int
) -> None:
    server = serving(of_work("fanoutOnly = true"), folder=tmp_path / "queues")
    writer = ThriftClient(server)
    client = waiting(server, 10, auto_abort_ms=auto_abort_ms)
    server.reload(config_of())
    assert writer.put(b"work", *many(5)) == 5
    server.advance(1)
    assert ends_what_it_got(server, client, auto_abort_ms) == many(5)
    server.crash()
    assert drained(server) == []


def test_a_queue_that_is_deleted_between_two_turns_of_a_get_has_nothing_for_it(server: MemoryServer) -> None:
    client, other = ThriftClient(server), ThriftClient(server)
    client.put(b"work", *many(200))
    client.send_get(b"work", 200, 0, LONG_MS)
    other.delete_queue(b"work")
    assert client.taken() == []
    assert other.put(b"work", *many(3)) == 3
    assert counts(server) == (3, 0)
    assert client.items(b"work") == many(3)


@pytest.mark.parametrize("is_there_again", [False, True])
def test_ids_of_a_queue_that_was_deleted_before_they_were_told_end_nothing_and_free_the_limit(
    storage: SteppedStorage, is_there_again: bool
) -> None:
    server = serving(most_open=2, storage=storage)
    client, other = ThriftClient(server), ThriftClient(server)
    client.put(b"work", *many(2))
    storage.holds_commits = True
    client.send_get(b"work", 2, 0, LONG_MS)
    assert client.waits()
    other.send(b"delete_queue", binary.binary_field(1, b"work"))
    if is_there_again:
        other.send_put(b"work", *many(3))
    end_commits(server, storage)
    stale = ids_of(client.taken())
    if not is_there_again:
        ThriftClient(server).put(b"work", *many(3))
    assert client.confirm(b"work", *stale) == client.abort(b"work", *stale) == 0
    assert data_of(client.get(b"work", 5, 0, LONG_MS)) == many(2), "none of the limit is taken up"
    assert counts(server) == (1, 2)


# What expires while a get waits.


@AUTO_ABORT
@pytest.mark.parametrize("max_items", [2, 10])
def test_an_item_that_expires_while_a_get_waits_is_not_given_out(
    server: MemoryServer, max_items: int, auto_abort_ms: int
) -> None:
    writer = ThriftClient(server)
    writer.put(b"work", b"short", expiry_ms=500)
    client = waiting(server, max_items, 1000, auto_abort_ms)
    server.advance(0.75)
    writer.put(b"work", b"long")
    server.advance(0.25)
    assert data_of(client.taken()) == [b"long"]
    assert drained(server) == []
    assert counts(server) == (0, 1 if auto_abort_ms else 0)
    assert counters(server).expired_items == 1
    assert counters(server).canceled_transactions == 0


def test_a_get_all_of_whose_items_have_expired_is_answered_with_none_at_its_time(server: MemoryServer) -> None:
    ThriftClient(server).put(b"work", b"one", b"two", expiry_ms=500)
    client = waiting(server, 10)
    server.advance(1)
    assert client.taken() == []
    assert drained(server) == []
    assert counters(server).expired_items == 2


def test_what_expires_while_a_get_waits_goes_to_nobody_else_either(server: MemoryServer) -> None:
    ThriftClient(server).put(b"work", b"one", expiry_ms=500)
    client = waiting(server, 10)
    next_one = waiting(server, 1, 5000)
    server.advance(1)
    assert client.taken() == []
    assert next_one.waits()


class HurriedServer(MemoryServer):
    """While `hurries`, its wall clock goes on with each look at it."""

    hurries = False

    def now_ms(self) -> int:
        if self.hurries:
            self.step_wall_clock(10)
        return super().now_ms()


@pytest.mark.parametrize("left_ms", range(0, 120, 10))
def test_what_expires_while_the_reply_is_made_is_given_out_or_goes_and_is_held_by_nobody(left_ms: int) -> None:
    server = HurriedServer(config=config_of())
    writer = ThriftClient(server)
    writer.put(b"work", b"short", expiry_ms=500)
    writer.put(b"work", b"long", expiry_ms=1000 + left_ms)
    client = waiting(server, 10)
    server.hurries = True
    server.advance(1)
    server.hurries = False
    assert data_of(client.taken()) in ([], [b"long"])
    assert counts(server)[1] == 0


def test_what_expires_while_a_get_waits_moves_as_it_would_have() -> None:
    server = serving(of_work("expireToQueue = 'old'"))
    ThriftClient(server).put(b"work", b"one", b"two", expiry_ms=500)
    client = waiting(server, 10)
    server.advance(1)
    assert client.taken() == []
    drained(server)
    assert drained(server, b"old") == [b"one", b"two"]


def test_what_a_reload_made_expire_while_a_get_waits_is_not_given_out(server: MemoryServer) -> None:
    writer = ThriftClient(server)
    writer.put(b"work", b"old")
    client = waiting(server, 10, 10_000)
    server.advance(9)
    writer.put(b"work", b"young")
    server.reload(config_of(of_work("maxAge = '5s'")))
    server.advance(1)
    assert data_of(client.taken()) == [b"young"]


# A server that stops.


@pytest.mark.parametrize(
    ("items", "max_items", "wait_ms"), [(3, 5, 60_000), (200, 300, 60_000), (200, 300, 0), (200, 150, 0)]
)
def test_a_stop_gives_out_nothing_that_could_not_be_confirmed_any_more_and_nobody_has_failed(
    items: int, max_items: int, wait_ms: int, tmp_path: Path
) -> None:
    server = serving(of_work(ERRORS), folder=tmp_path / "queues")
    client = ThriftClient(server)
    client.put(b"work", *many(items))
    client.send_get(b"work", max_items, wait_ms, LONG_MS)
    if wait_ms:
        assert client.waits()  # or else it is between two turns
    figures = counters(server)
    server.restart()
    assert client.taken() == []
    assert client.is_closed
    assert figures.canceled_transactions == 0
    assert drained(server, b"bad") == []
    assert drained(server) == many(items)


def test_a_stop_while_a_reply_is_held_counts_no_failure_of_its_items(storage: SteppedStorage) -> None:
    server = serving(of_work(ERRORS), storage=storage)
    client = ThriftClient(server)
    client.put(b"work", *many(3))
    storage.holds_commits = True
    client.send_get(b"work", 3, 0, 500)
    assert client.waits()
    server.stop()
    server.advance(1)
    end_commits(server, storage)
    assert data_of(client.taken()) == many(3)
    assert client.is_closed
    end_commits(server, storage)
    queue = server.manager.known(b"work")
    assert queue is not None
    assert (queue.store.items, queue.store.open_reads) == (3, 0)
    assert queue.counters.canceled_transactions == 0


# Clients that half-close.


@AUTO_ABORT
@pytest.mark.parametrize("wait_ms", [0, 1000])
@pytest.mark.parametrize("calls_before", [0, 200])
def test_a_get_that_found_all_it_wants_is_answered_though_its_client_has_sent_its_last_byte(
    server: MemoryServer, calls_before: int, wait_ms: int, auto_abort_ms: int
) -> None:
    client = ThriftClient(server)
    client.put(b"work", *many(3))
    for _ in range(calls_before):
        client.send(b"get_version")
    client.send_get(b"work", 2, wait_ms, auto_abort_ms)
    client.half_close()
    *before, reply = client.replies()
    assert len(before) == calls_before
    assert isinstance(reply.result, list)
    assert data_of(reply.result) == many(2)
    assert client.is_closed
    assert counts(server) == (1, 2 if auto_abort_ms else 0)


@AUTO_ABORT
def test_a_get_that_found_all_it_wants_is_answered_after_its_client_half_closed_while_the_reply_was_held(
    slow: MemoryServer, storage: SteppedStorage, auto_abort_ms: int
) -> None:
    client = ThriftClient(slow)
    client.put(b"work", *many(3))
    storage.holds_commits = True
    client.send_get(b"work", 2, 1000, auto_abort_ms)
    assert client.waits()
    client.half_close()
    assert client.waits()
    end_commits(slow, storage)
    assert data_of(client.taken()) == many(2)
    assert client.is_closed
    end_commits(slow, storage)
    assert counts(slow) == (1, 2 if auto_abort_ms else 0)


@AUTO_ABORT
@pytest.mark.parametrize("calls_before", [0, 200])
def test_a_get_that_would_wait_for_more_is_given_up_when_its_client_half_closes_and_takes_nothing(
    server: MemoryServer, calls_before: int, auto_abort_ms: int
) -> None:
    client = ThriftClient(server)
    client.put(b"work", *many(3))
    for _ in range(calls_before):
        client.send(b"get_version")
    client.send_get(b"work", 5, 1000, auto_abort_ms)
    client.half_close()
    assert len(client.replies()) == calls_before
    assert client.is_closed
    assert counts(server) == (3, 0)
    assert drained(server) == many(3)


@AUTO_ABORT
def test_what_a_client_that_half_closes_gives_back_is_not_served_to_its_own_next_get(
    slow: MemoryServer, storage: SteppedStorage, auto_abort_ms: int
) -> None:
    client, writer = ThriftClient(slow), ThriftClient(slow)
    client.send_get(b"work", 1, 1000, auto_abort_ms)
    client.send_get(b"work", 1, 1000, auto_abort_ms)
    assert client.waits()
    storage.holds_commits = True
    writer.send_put(b"work", b"one")
    assert client.waits(), "the first get has its answer, which is held, and the second waits"
    client.half_close()
    end_commits(slow, storage)
    assert client.waits(), "both are given up"
    assert client.is_closed
    assert counts(slow) == (1, 0)
    assert drained(slow) == [b"one"]


# Memory.


def test_what_a_get_has_collected_counts_once_in_the_memory(tmp_path: Path) -> None:
    server = serving("maxTotalMemory = '100MiB'", folder=tmp_path / "queues")
    ThriftClient(server).put(b"work", *(b"x" * 100_000 for _ in range(10)))
    memory = server.manager.memory_limit
    in_the_queue = memory.used_bytes
    assert in_the_queue > 1_000_000
    client = waiting(server, 20)
    assert memory.used_bytes == in_the_queue
    client.disconnect()
    server.settle()
    assert memory.used_bytes == in_the_queue


def test_what_two_clients_took_goes_back_in_the_order_of_taking_whoever_was_answered_first(
    server: MemoryServer,
) -> None:
    first = waiting(server, 2, LONG_MS, LONG_MS)
    second = waiting(server, 1, LONG_MS, LONG_MS)
    other = ThriftClient(server)
    other.put(b"work", b"one")
    other.put(b"work", b"two")
    later = ids_of(second.taken())
    other.put(b"work", b"three")
    earlier = ids_of(first.taken())
    assert other.abort(b"work", *earlier, *later) == 3
    assert drained(server) == [b"one", b"two", b"three"]
