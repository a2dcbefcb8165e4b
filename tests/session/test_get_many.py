"""Gets of many items during storage failures, queue changes, deletions, half-closes and stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kestrel.protocols import thrift_binary as binary
from kestrel.queues.counters import QueueCounters
from kestrel.session.item_feed import MAX_FED_ITEMS_PER_SLICE
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.session.servers import (
    config_of,
    counts,
    drained,
    end_commits,
    fail,
    lose_commits,
    many,
    of_work,
    serving,
)
from tests.session.thrift_calls import LONG_MS, Refused, ThriftClient, data_of, ids_of

ERRORS: Final = "maxRedeliveries = 1\nerrorQueue = 'bad'"
"""An item that fails once moves to the error queue."""

AUTO_ABORT = pytest.mark.parametrize("auto_abort_ms", [0, LONG_MS])

LEAVE = pytest.mark.parametrize("leave", [ThriftClient.disconnect, ThriftClient.half_close])


def waiting(server: MemoryServer, max_items: int, wait_ms: int = 1000, auto_abort_ms: int = 0) -> ThriftClient:
    """Return a client whose get of "work" waits for more than the items that are there."""
    client = ThriftClient(server)
    client.send_get(b"work", max_items, wait_ms, auto_abort_ms)
    assert client.waits()
    return client


def counters(server: MemoryServer) -> QueueCounters:
    """Return the counters of "work"; they stay valid after the server has stopped."""
    queue = server.manager.known(b"work")
    assert queue is not None
    return queue.counters


def confirm_result(server: MemoryServer, client: ThriftClient, auto_abort_ms: int) -> list[bytes]:
    """Confirm what a get returned, check that no other read is open, and return the items.

    Without auto-abort no read may be open.
    """
    taken = client.taken()
    assert counts(server)[1] == (len(taken) if auto_abort_ms else 0)
    assert client.confirm(b"work", *ids_of(taken)) == (len(taken) if auto_abort_ms else 0)
    return data_of(taken)


# A storage failure while a get waits.


@AUTO_ABORT
@pytest.mark.parametrize("max_items", [5, 10, -1])
@pytest.mark.parametrize("collected", [0, 2])
def test_waiting_get_returns_items_present_after_failure(
    slow: MemoryServer, storage: SteppedStorage, collected: int, max_items: int, auto_abort_ms: int
) -> None:
    writer = ThriftClient(slow)
    writer.put(b"work", *many(5)[:collected])
    client = waiting(slow, max_items, auto_abort_ms=auto_abort_ms)
    fail(slow, storage)
    assert writer.put(b"work", *many(5)[collected:]) == 5 - collected
    slow.advance(1)
    assert confirm_result(slow, client, auto_abort_ms) == many(5)
    client.disconnect()
    slow.advance(LONG_MS / 1000)
    assert counts(slow) == (0, 0)


@AUTO_ABORT
@LEAVE
def test_disconnect_after_failure_returns_the_items(
    slow: MemoryServer, storage: SteppedStorage, leave: Callable[[ThriftClient], None], auto_abort_ms: int
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
def test_failure_between_time_slices_of_get_loses_no_item(
    slow: MemoryServer, storage: SteppedStorage, max_items: int
) -> None:
    client = ThriftClient(slow)
    client.put(b"work", *many(200))
    storage.holds_commits = True
    ThriftClient(slow).send_put(b"work", b"lost")
    slow.settle()
    client.send_get(b"work", max_items, 0, LONG_MS)
    lose_commits(storage)
    try:
        taken = client.taken()
    except Refused:
        taken = []
    assert counts(slow) == (200 - len(taken), len(taken))
    assert client.confirm(b"work", *ids_of(taken)) == len(taken)
    assert data_of(taken) + drained(slow) == many(200)


@pytest.mark.parametrize("collected", [0, 2])
def test_waiting_get_is_refused_if_queue_cannot_be_reopened(
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
    assert client.waits(), "it was answered only once"
    assert drained(slow) == [*many(collected), b"next"]


# Queues that change or are deleted.


@AUTO_ABORT
def test_waiting_get_returns_items_after_queue_gets_a_journal(tmp_path: Path, auto_abort_ms: int) -> None:
    server = serving(of_work("fanoutOnly = true"), folder=tmp_path / "queues")
    writer = ThriftClient(server)
    client = waiting(server, 10, auto_abort_ms=auto_abort_ms)
    server.reload(config_of())
    assert writer.put(b"work", *many(5)) == 5
    server.advance(1)
    assert confirm_result(server, client, auto_abort_ms) == many(5)
    server.crash()
    assert drained(server) == []


def test_get_of_queue_deleted_between_slices_returns_nothing(server: MemoryServer) -> None:
    client, other = ThriftClient(server), ThriftClient(server)
    client.put(b"work", *many(200))
    client.send_get(b"work", 200, 0, LONG_MS)
    other.delete_queue(b"work")
    assert client.taken() == []
    assert other.put(b"work", *many(3)) == 3
    assert counts(server) == (3, 0)
    assert client.items(b"work") == many(3)


@pytest.mark.parametrize("is_there_again", [False, True])
def test_ids_of_queue_deleted_before_reply_are_invalid(storage: SteppedStorage, is_there_again: bool) -> None:
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
    assert data_of(client.get(b"work", 5, 0, LONG_MS)) == many(2), "the limit has room again"
    assert counts(server) == (1, 2)


# Items that expire while a get waits.


@AUTO_ABORT
@pytest.mark.parametrize("max_items", [2, 10])
def test_item_that_expires_during_wait_is_not_returned(
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


class MovingClockServer(MemoryServer):
    """A server whose wall clock advances each time it is read, while `hurries` is set."""

    hurries = False

    def now_ms(self) -> int:
        if self.hurries:
            self.step_wall_clock(10)
        return super().now_ms()


@pytest.mark.parametrize("left_ms", range(0, 120, 10))
def test_item_that_expires_during_reply_leaves_no_open_read(left_ms: int) -> None:
    server = MovingClockServer(config=config_of())
    writer = ThriftClient(server)
    writer.put(b"work", b"short", expiry_ms=500)
    writer.put(b"work", b"long", expiry_ms=1000 + left_ms)
    client = waiting(server, 10)
    server.hurries = True
    server.advance(1)
    server.hurries = False
    assert data_of(client.taken()) in ([], [b"long"])
    assert counts(server)[1] == 0


# Stopping the server.


@pytest.mark.parametrize(
    ("items", "max_items", "wait_ms"), [(3, 5, 60_000), (200, 300, 60_000), (200, 300, 0), (200, 150, 0)]
)
def test_stop_requeues_collected_items_without_counting_failures(
    items: int, max_items: int, wait_ms: int, tmp_path: Path
) -> None:
    server = serving(of_work(ERRORS), folder=tmp_path / "queues")
    client = ThriftClient(server)
    client.put(b"work", *many(items))
    client.send_get(b"work", max_items, wait_ms, LONG_MS)
    if wait_ms:
        assert client.waits()  # otherwise the get is between two time slices
    figures = counters(server)
    server.restart()
    assert client.taken() == []
    assert client.is_closed
    assert figures.canceled_transactions == 0
    assert drained(server, b"bad") == []
    assert drained(server) == many(items)


def test_stop_with_held_reply_counts_no_failures(storage: SteppedStorage) -> None:
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
def test_satisfied_get_is_answered_after_half_close(
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
@pytest.mark.parametrize("calls_before", [0, 200])
def test_get_that_would_wait_is_canceled_by_half_close(
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


# Memory.


def test_collected_items_count_once_in_memory(tmp_path: Path) -> None:
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
