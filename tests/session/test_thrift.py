"""The thrift service over a whole server."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs

from kestrel.errors import StorageError
from kestrel.item import Item
from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.codec import QueueInfo
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import STORED, set_, stat, value
from tests.session.servers import (
    MOMENT_S,
    counts,
    counts_in_memory,
    drained,
    end_commits,
    fail,
    lose_commits,
    many,
    of_work,
    serving,
)
from tests.session.thrift_calls import (
    LONG_MS,
    QUIESCENT,
    READ_ONLY,
    UP,
    Refused,
    Reply,
    Taken,
    ThriftClient,
    data_of,
    ids_of,
)


@pytest.fixture
def client(server: MemoryServer) -> ThriftClient:
    return ThriftClient(server)


@pytest.fixture
def other(server: MemoryServer) -> ThriftClient:
    return ThriftClient(server)


def is_refused(call: Callable[[], object], type_: int = binary.INTERNAL_ERROR) -> bool:
    """Return True if the call raises an exception of this type with a reason."""
    with pytest.raises(Refused) as refusal:
        call()
    return refusal.value.type == type_ and bool(refusal.value.message)


# put.


@pytest.mark.parametrize(
    ("settings", "count", "stored"),
    [
        ("maxItems = 2", 2, [b"1", b"2"]),
        ("maxSize = 4", 3, [b"1", b"2", b"333"]),
        ("maxItemSize = 2", 2, [b"1", b"2"]),
        ("maxItemSize = 3", 5, [b"1", b"2", b"333", b"4", b"5"]),
        ("maxItems = 2\ndiscardOldWhenFull = true", 5, [b"4", b"5"]),
    ],
)
def test_put_stops_at_first_refused_item(settings: str, count: int, stored: list[bytes]) -> None:
    client = ThriftClient(serving(of_work(settings)))
    assert client.put(b"work", b"1", b"2", b"333", b"4", b"5") == count
    assert client.items(b"work") == stored


def test_put_to_alias_stops_where_one_queue_refuses() -> None:
    server = serving(
        "[[aliases]]\nname = 'all'\ndestinationQueues = ['large', 'small']\n[[queues]]\nname = 'small'\nmaxItems = 2"
    )
    client = ThriftClient(server)
    assert client.put(b"all", b"one", b"two") == 2
    assert drained(server, b"large") == drained(server, b"small") == [b"one", b"two"]
    assert client.put(b"all", b"1", b"2", b"3", b"4") == 2
    assert drained(server, b"small") == [b"1", b"2"]
    assert drained(server, b"large") == [b"1", b"2", b"3"], (
        "the refused item went there, as on the other ports, later ones did not"
    )


def test_too_large_item_is_an_exception_and_nothing_is_put() -> None:
    client = ThriftClient(serving("maxRequestItemSize = 10"))
    assert is_refused(lambda: client.put(b"work", b"one", b"x" * 11, b"two"))
    assert client.items(b"work") == []
    assert client.put(b"work", b"x" * 10) == 1


def test_put_of_too_many_items_stores_none() -> None:
    client = ThriftClient(serving("maxThriftListSize = 5"))
    assert is_refused(lambda: client.put(b"work", *many(6)))
    assert client.items(b"work") == []
    assert client.put(b"work", *many(5)) == 5
    assert is_refused(lambda: client.confirm(b"work", *range(6)))
    assert client.confirm(b"work", *range(5)) == 0


# Expiry.


@pytest.mark.parametrize("expiry_ms", [500, 2**31 - 1])
def test_item_expires_after_its_milliseconds(server: MemoryServer, client: ThriftClient, expiry_ms: int) -> None:
    assert client.put(b"work", b"one", b"two", expiry_ms=expiry_ms) == 2
    server.advance(expiry_ms / 1000)
    assert client.items(b"work", 1) == [b"one"]
    server.advance(0.001)
    assert client.items(b"work") == []
    assert client.peek(b"work").head is None


# get: number of items.


@pytest.mark.parametrize("wait_ms", [0, 1000])
def test_get_of_zero_items_returns_none_at_once(client: ThriftClient, wait_ms: int) -> None:
    client.put(b"work", b"one")
    assert client.get(b"work", 0, wait_ms) == []
    assert client.get(b"work", 0, wait_ms, LONG_MS) == []
    assert client.items(b"work") == [b"one"]


@pytest.mark.parametrize("max_items", [-1, -(2**31), 6, 2**31 - 1])
def test_reply_has_at_most_max_thrift_list_size_items(max_items: int) -> None:
    client = ThriftClient(serving("maxThriftListSize = 5"))
    for item in many(12):
        client.put(b"work", item)
    assert client.items(b"work", max_items) == many(12)[:5]
    client.send_get(b"work", max_items, 1000)
    assert data_of(client.taken()) == many(12)[5:10], "more items would not fit, so it does not wait"
    assert client.items(b"work", max_items) == many(12)[10:]


@pytest.mark.parametrize("size", [0, 1, 17, 100, 333, 334, 490, 512, 800])
@pytest.mark.parametrize("auto_abort_ms", [0, LONG_MS])
@pytest.mark.parametrize("wait_ms", [0, 1000])
def test_reply_fits_max_request_size_and_remaining_items_stay(size: int, auto_abort_ms: int, wait_ms: int) -> None:
    server = serving("maxRequestSize = 1024")
    client = ThriftClient(server)
    items = [item + b"x" * size for item in many(60)]
    for item in items:
        client.put(b"work", item)
    taken = data_of(client.get(b"work", -1, wait_ms, auto_abort_ms))
    assert taken == items[: len(taken)]
    assert 512 < client.frame_bytes <= 1024 or len(taken) == 1
    info = client.peek(b"work")
    assert (info.head, info.items) == (items[len(taken)], len(items) - len(taken))
    left = items[len(taken) :]
    while left:
        more = data_of(client.get(b"work", 60, wait_ms, auto_abort_ms)) if wait_ms == 0 else client.items(b"work")
        assert more == left[: len(more)] != []
        assert client.frame_bytes <= 1024
        left = left[len(more) :]


def test_get_takes_items_while_memory_allows_and_at_least_one(tmp_path: Path) -> None:
    server = serving("maxTotalMemory = '64KiB'", folder=tmp_path / "queues")
    client = ThriftClient(server)
    items = [item * 200 for item in many(200)]
    client.put(b"work", *items)
    seen: list[bytes] = []
    while taken := client.get(b"work", -1, 0, LONG_MS):
        assert len(taken) <= 64
        assert client.confirm(b"work", *ids_of(taken)) == len(taken)
        seen += data_of(taken)
    assert seen == items


def test_item_that_does_not_fit_goes_to_next_waiter() -> None:
    server = serving("maxRequestSize = 1024")
    first, second, writer = (ThriftClient(server) for _ in range(3))
    first.send_get(b"work", 2, 1000)
    assert first.waits()
    writer.put(b"work", b"a" * 600)
    second.send_get(b"work", 1, 1000)
    assert second.waits()
    writer.put(b"work", b"b" * 600)
    assert data_of(first.taken()) == [b"a" * 600]
    assert data_of(second.taken()) == [b"b" * 600]


# get: waiting.


def test_waiting_get_returns_at_max_items(client: ThriftClient, other: ThriftClient) -> None:
    other.put(b"work", b"one")
    client.send_get(b"work", 3, 1000)
    assert client.waits()
    other.put(b"work", b"two")
    assert client.waits()
    other.put(b"work", b"three", b"four")
    assert data_of(client.taken()) == [b"one", b"two", b"three"]
    assert other.items(b"work") == [b"four"]


@pytest.mark.parametrize("max_items", [3, -1])
@pytest.mark.parametrize("put", [[], [b"one"], [b"one", b"two"]])
def test_waiting_get_returns_available_items_at_its_time(
    server: MemoryServer, client: ThriftClient, other: ThriftClient, max_items: int, put: list[bytes]
) -> None:
    client.send_get(b"work", max_items, 250)
    other.put(b"work", *put)
    server.advance(0.2499)
    assert client.waits()
    server.advance(0.0001)
    assert data_of(client.taken()) == put
    server.advance(1)
    assert other.put(b"work", b"late") == 1
    assert client.waits(), "it was answered only once"
    assert other.items(b"work") == [b"late"]


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 5), st.sampled_from([None, 150])),
    st.tuples(
        st.just("get"),
        st.integers(0, 2),
        st.sampled_from([-1, 0, 1, 2, 3, 10]),
        st.sampled_from([0, 100, 250]),
        st.sampled_from([0, LONG_MS]),
    ),
    st.tuples(st.just("pass time"), st.sampled_from([0.05, 0.1, 0.2])),
    st.tuples(st.just("leave"), st.integers(0, 2)),
)


@given(st.lists(STEPS, min_size=5, max_size=25))
@settings(deadline=None)
def test_random_gets_and_disconnects_neither_lose_nor_duplicate_items(steps: list[tuple[Any, ...]]) -> None:
    server = serving()
    clients = [ThriftClient(server) for _ in range(3)]
    writer = ThriftClient(server)
    numbers = count()
    lasting: set[bytes] = set()
    fleeting: set[bytes] = set()
    seen: list[bytes] = []

    def look() -> None:
        for client in clients:
            for reply in client.replies():
                taken = reply.result
                assert isinstance(taken, list), taken
                seen.extend(data_of(taken))
                leased = [number for number in ids_of(taken) if number]
                assert writer.confirm(b"work", *leased) == len(leased)

    for step in steps:
        match step:
            case "put", number, expiry_ms:
                items = [b"%05d" % place for place in islice(numbers, number)]
                assert writer.put(b"work", *items, expiry_ms=expiry_ms) == number
                (fleeting if expiry_ms else lasting).update(items)
            case "get", who, max_items, wait_ms, auto_abort_ms:
                clients[who].send_get(b"work", max_items, wait_ms, auto_abort_ms)
            case "pass time", seconds:
                server.advance(seconds)
            case "leave", who:
                look()
                clients[who].disconnect()
                clients[who] = ThriftClient(server)
        look()
    server.advance(10)
    look()
    seen += drained(server)
    assert len(seen) == len(set(seen))
    assert lasting <= set(seen) <= lasting | fleeting
    assert counts(server) == (0, 0)


def test_get_of_many_items_does_not_block_other_clients(server: MemoryServer) -> None:
    client, other = ThriftClient(server), ThriftClient(server)
    client.put(b"work", *many(5000))
    client.send_get(b"work", -1)
    other.send(b"get_version")
    for _ in range(3):
        server.tick()
    assert counts_in_memory(server) > 0, "the get is still running"
    assert other.result() == b"1.2.3"
    assert data_of(client.taken()) == many(5000)


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_internal_fault_in_get_ends_only_that_connection(
    server: MemoryServer, wait_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = ThriftClient(server), ThriftClient(server)
    client.put(b"work", *many(300))
    queue = server.manager.queue(b"work")
    take_now, taken = queue.take_now, count()

    def fault(opens: bool) -> Item | None:
        if next(taken) == 100:
            raise ValueError("internal fault")
        return take_now(opens)

    monkeypatch.setattr(queue, "take_now", fault)
    with capturedLogs() as logs:
        client.send_get(b"work", 300, wait_ms)
        assert is_refused(client.result)
    assert client.is_closed
    assert [event for event in logs if event["log_level"] >= LogLevel.error] != []
    assert counts(server) == (300, 0)
    assert other.items(b"work") == many(300)
    assert server.clock.getDelayedCalls() == []


# Clients that disconnect.


@pytest.mark.parametrize("auto_abort_ms", [0, LONG_MS])
@pytest.mark.parametrize("leave", [ThriftClient.disconnect, ThriftClient.half_close])
def test_disconnected_waiter_takes_no_items(
    leave: Callable[[ThriftClient], None], auto_abort_ms: int, tmp_path: Path
) -> None:
    server = serving(of_work("maxRedeliveries = 2\nerrorQueue = 'bad'"), folder=tmp_path / "queues")
    client, other = ThriftClient(server), ThriftClient(server)
    other.put(b"work", b"one", b"two")
    client.send_get(b"work", 5, 1000, auto_abort_ms)
    assert client.waits()
    other.put(b"work", b"three", b"four")
    assert other.items(b"work") == [], "the items are assigned to the first client"
    leave(client)
    server.settle()
    assert counts(server) == (4, 0)
    assert stat(server.connect(), b"work", "canceled_transactions") == "0", "no item has failed"
    assert other.abort(b"work", *ids_of(other.get(b"work", 4, 0, LONG_MS))) == 4
    assert counts(server) == (4, 0), "this was the first failure of each item"
    server.crash()
    assert drained(server) == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("auto_abort_ms", [0, LONG_MS])
@pytest.mark.parametrize("leave", [ThriftClient.disconnect, ThriftClient.half_close])
def test_waiter_that_disconnects_before_items_are_safe_takes_none(
    slow: MemoryServer, storage: SteppedStorage, leave: Callable[[ThriftClient], None], auto_abort_ms: int
) -> None:
    client, writer = ThriftClient(slow), ThriftClient(slow)
    client.send_get(b"work", 3, 1000, auto_abort_ms)
    assert client.waits()
    storage.holds_commits = True
    writer.send_put(b"work", *many(5))
    assert client.waits()
    leave(client)
    end_commits(slow, storage)
    assert client.waits(), "it gets no reply"
    assert client.is_closed
    assert writer.result() == 5
    assert counts(slow) == (5, 0)
    assert drained(slow) == many(5)


# Open reads by id.


def test_ids_are_unique_and_increase_across_queues_and_connections(client: ThriftClient, other: ThriftClient) -> None:
    client.put(b"work", *many(6))
    client.put(b"other", *many(2))
    ids = ids_of(client.get(b"work", 2, 0, LONG_MS))
    ids += ids_of(other.get(b"work", 2, 0, LONG_MS))
    ids += ids_of(other.get(b"other", 2, 0, LONG_MS))
    assert client.abort(b"work", *ids[:2]) == 2
    ids += ids_of(client.get(b"work", 4, 0, LONG_MS))
    assert len(ids) == 10
    assert all(before < after for before, after in pairwise(ids))
    assert 0 < ids[0] <= ids[-1] < 2**53


def test_any_connection_may_confirm_and_abort(server: MemoryServer, client: ThriftClient, other: ThriftClient) -> None:
    client.put(b"work", b"one", b"two")
    first, second = ids_of(client.get(b"work", 2, 0, LONG_MS))
    assert other.confirm(b"work", first) == 1
    assert other.abort(b"work", second) == 1
    assert client.confirm(b"work", first, second) == 0
    assert drained(server) == [b"two"]


@pytest.mark.parametrize("end", [ThriftClient.confirm, ThriftClient.abort])
def test_id_of_another_queue_is_ignored(server: MemoryServer, client: ThriftClient, end: Callable[..., int]) -> None:
    client.put(b"work", b"one")
    client.put(b"other", b"two")
    of_work, of_other = (ids_of(client.get(queue, 1, 0, LONG_MS))[0] for queue in (b"work", b"other"))
    assert end(client, b"other", of_work) == 0
    assert end(client, b"missing", of_work) == 0
    assert (counts(server), counts(server, b"other")) == ((0, 1), (0, 1))
    assert end(client, b"work", of_work, of_other) == 1
    assert counts(server, b"other") == (0, 1)


@pytest.mark.parametrize("end", [ThriftClient.confirm, ThriftClient.abort])
@pytest.mark.parametrize("again", [ThriftClient.confirm, ThriftClient.abort])
def test_ended_read_counts_once(
    server: MemoryServer, client: ThriftClient, end: Callable[..., int], again: Callable[..., int]
) -> None:
    client.put(b"work", b"one", b"two")
    first, second = ids_of(client.get(b"work", 2, 0, LONG_MS))
    assert end(client, b"work", first, first) == 1
    assert again(client, b"work", first, second) == 1
    assert again(client, b"work", first, second) == 0
    assert counts(server)[1] == 0


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_aborted_items_return_to_head_in_take_order(client: ThriftClient, order: list[int]) -> None:
    client.put(b"work", *many(14))
    ids = ids_of(client.get(b"work", 12, 0, LONG_MS))
    for first in (8, 4, 0):
        assert client.abort(b"work", *(ids[first + place] for place in order)) == 4
    assert client.items(b"work") == many(14)


# Auto-abort.


@pytest.mark.parametrize("auto_abort_ms", [1, 1000, 2**31 - 1])
def test_single_read_returns_exactly_at_its_time(
    server: MemoryServer, client: ThriftClient, auto_abort_ms: int
) -> None:
    client.put(b"work", b"one", b"two")
    (number,) = ids_of(client.get(b"work", 1, 0, auto_abort_ms))
    server.advance((auto_abort_ms - 0.5) / 1000)
    assert counts(server) == (1, 1)
    server.advance(0.0005)
    assert counts(server) == (2, 0)
    assert client.confirm(b"work", number) == 0
    assert client.items(b"work") == [b"one", b"two"]


@pytest.mark.parametrize("auto_aborts_ms", [(1000, 1000, 1000, 1000), (1030, 1000, 1010, 980)])
def test_items_taken_shortly_after_each_other_return_in_order(
    server: MemoryServer, client: ThriftClient, auto_aborts_ms: tuple[int, ...]
) -> None:
    client.put(b"work", *many(5))
    for auto_abort_ms in auto_aborts_ms:
        client.get(b"work", 1, 0, auto_abort_ms)
        server.advance(0.02)
    server.advance(0.92)
    assert counts(server)[0] < 5, "the first is due"
    server.advance(0.1)
    assert counts(server) == (5, 0)
    assert client.items(b"work") == many(5)


def test_continuous_gets_delay_auto_abort_by_at_most_a_tenth(server: MemoryServer, client: ThriftClient) -> None:
    client.put(b"work", *many(200))
    for _ in range(110):
        client.get(b"work", 1, 0, 1000)
        server.advance(0.01)
    assert counts(server)[1] <= 100
    server.advance(2)
    assert counts(server) == (200, 0)


@pytest.mark.parametrize("wait_ms", [0, 5000])
def test_auto_abort_time_starts_when_held_reply_is_sent(storage: SteppedStorage, wait_ms: int) -> None:
    server = serving(of_work("maxRedeliveries = 1\nerrorQueue = 'bad'"), storage=storage)
    client = ThriftClient(server)
    client.put(b"work", b"one")
    storage.holds_commits = True
    client.send_get(b"work", 1, wait_ms, 500)
    server.advance(60)
    assert client.waits()
    end_commits(server, storage)
    assert data_of(client.taken()) == [b"one"]
    server.advance(0.5 - MOMENT_S)
    assert counts(server) == (0, 1)
    server.advance(MOMENT_S)
    assert drained(server, b"bad") == [b"one"]


def held_up(server: MemoryServer, storage: SteppedStorage, auto_abort_ms: int) -> ThriftClient:
    """Return a client that reads nothing; its get of two items is safe, but held behind a large reply."""
    client, writer = ThriftClient(server), ThriftClient(server)
    writer.put(b"work", *many(2))
    writer.put(b"large", b"x" * 300_000)
    client.stop_reading()
    storage.holds_commits = True
    client.send_get(b"large", 1)
    client.send_get(b"work", 2, 0, auto_abort_ms)
    server.settle()
    storage.end_commits(b"large")
    server.settle()
    storage.end_commits(b"work")
    server.settle()
    end_commits(server, storage)
    return client


def test_auto_abort_time_starts_after_slow_client_reads_reply(storage: SteppedStorage) -> None:
    server = serving(of_work("maxRedeliveries = 1\nerrorQueue = 'bad'"), storage=storage)
    client = held_up(server, storage, 500)
    server.advance(60)
    assert counts(server) == (0, 2)
    client.resume_reading()
    _, reply = client.replies()
    assert isinstance(reply.result, list)
    server.advance(0.5 - MOMENT_S)
    assert drained(server, b"bad") == []
    assert client.confirm(b"work", *ids_of(reply.result)) == 2
    server.advance(60)
    assert counts(server) == (0, 0)


def held_get(server: MemoryServer, storage: SteppedStorage) -> ThriftClient:
    """Return a client whose get of two items waits for a commit for longer than the auto-abort time."""
    client = ThriftClient(server)
    client.put(b"work", *many(2))
    storage.holds_commits = True
    client.send_get(b"work", 2, 0, 500)
    server.advance(60)
    assert client.waits()
    return client


def disconnect_before_the_commit(server: MemoryServer, storage: SteppedStorage) -> None:
    held_get(server, storage).disconnect()
    end_commits(server, storage)


def lose_the_commit(server: MemoryServer, storage: SteppedStorage) -> None:
    client = held_get(server, storage)
    lose_commits(storage)
    assert is_refused(client.result)


def disconnect_with_an_unread_reply(server: MemoryServer, storage: SteppedStorage) -> None:
    client = held_up(server, storage, 500)
    server.advance(60)
    client.disconnect()
    server.settle()


@pytest.mark.parametrize(
    "prevent_reply", [disconnect_before_the_commit, lose_the_commit, disconnect_with_an_unread_reply]
)
def test_unsent_reply_counts_no_failure(
    prevent_reply: Callable[[MemoryServer, SteppedStorage], None], storage: SteppedStorage
) -> None:
    server = serving(of_work("maxRedeliveries = 1\nerrorQueue = 'bad'"), storage=storage)
    prevent_reply(server, storage)
    assert counts(server) == (2, 0)
    assert stat(server.connect(), b"work", "canceled_transactions") == "0"
    server.advance(60)
    assert drained(server, b"bad") == []
    assert drained(server) == many(2)


def test_stale_id_ends_no_newer_read(server: MemoryServer, client: ThriftClient) -> None:
    client.put(b"work", b"one")
    stale = ids_of(client.get(b"work", 1, 0, 500))
    server.advance(0.5)
    fresh = ids_of(client.get(b"work", 1, 0, LONG_MS))
    assert client.confirm(b"work", *stale) == 0
    assert client.abort(b"work", *stale) == 0
    assert counts(server) == (0, 1)
    assert client.confirm(b"work", *fresh) == 1


def test_each_aborted_or_returned_read_counts_once(server: MemoryServer, client: ThriftClient) -> None:
    memcache = server.connect()

    def figures() -> tuple[str, str]:
        return stat(memcache, b"work", "transactions"), stat(memcache, b"work", "canceled_transactions")

    client.put(b"work", *many(4))
    ids = ids_of(client.get(b"work", 4, 0, 500))
    assert figures() == ("4", "0")
    client.confirm(b"work", ids[0])
    assert figures() == ("4", "0")
    client.abort(b"work", ids[1])
    assert figures() == ("4", "1")
    server.advance(0.5)
    assert figures() == ("4", "3")
    server.advance(60)
    client.abort(b"work", *ids)
    assert figures() == ("4", "3")
    client.items(b"work")
    assert figures() == ("4", "3"), "a plain get opens no read"


def test_failed_reads_move_to_error_queue_in_order() -> None:
    server = serving(of_work("maxRedeliveries = 3\nerrorQueue = 'bad'"))
    client = ThriftClient(server)
    client.put(b"work", *many(3))
    client.get(b"work", 3, 0, 500)
    server.advance(0.5)
    assert client.abort(b"work", *ids_of(client.get(b"work", 3, 0, LONG_MS))) == 3
    assert drained(server, b"bad") == []
    client.send_get(b"work", 5, 1000)
    assert client.waits()
    client.disconnect()  # this is no failure of an item
    client = ThriftClient(server)
    assert data_of(client.get(b"work", 3, 0, 500)) == many(3)
    server.advance(0.5)
    assert drained(server) == []
    assert drained(server, b"bad") == many(3)


@pytest.mark.parametrize(("auto_abort_ms", "seconds"), [(1000, 1), (LONG_MS, 5)])
def test_shorter_open_transaction_timeout_ends_a_read(auto_abort_ms: int, seconds: float) -> None:
    server = serving(of_work("openTransactionTimeout = '5s'"))
    client = ThriftClient(server)
    client.put(b"work", b"one")
    ids = ids_of(client.get(b"work", 1, 0, auto_abort_ms))
    server.advance(seconds - MOMENT_S)
    assert counts(server) == (0, 1)
    server.advance(MOMENT_S)
    assert counts(server) == (1, 0)
    assert client.confirm(b"work", *ids) == 0


def test_open_reads_survive_disconnect_and_end_at_their_time(server: MemoryServer, client: ThriftClient) -> None:
    client.put(b"work", b"one", b"two")
    first, _ = ids_of(client.get(b"work", 2, 0, 500))
    client.disconnect()
    assert counts(server) == (0, 2)
    other = ThriftClient(server)
    assert other.confirm(b"work", first) == 1
    server.advance(0.5)
    assert other.items(b"work") == [b"two"]


# The limit of open reads.


def free_by_confirm(server: MemoryServer, client: ThriftClient, ids: list[int]) -> None:
    assert client.confirm(b"work", *ids) == 3


def free_by_confirm_of_another(server: MemoryServer, client: ThriftClient, ids: list[int]) -> None:
    assert ThriftClient(server).confirm(b"work", *ids) == 3


def free_by_abort(server: MemoryServer, client: ThriftClient, ids: list[int]) -> None:
    assert client.abort(b"work", *ids) == 3


def free_by_time(server: MemoryServer, client: ThriftClient, ids: list[int]) -> None:
    server.advance(1)


def free_by_delete(server: MemoryServer, client: ThriftClient, ids: list[int]) -> None:
    ThriftClient(server).delete_queue(b"work")


@pytest.mark.parametrize(
    "free", [free_by_confirm, free_by_confirm_of_another, free_by_abort, free_by_time, free_by_delete]
)
def test_full_connection_opens_no_reads_until_some_end(
    free: Callable[[MemoryServer, ThriftClient, list[int]], None],
) -> None:
    server = serving(most_open=3)
    client, writer = ThriftClient(server), ThriftClient(server)
    for _ in range(3):
        writer.put(b"work", *many(6))
        ids = ids_of(client.get(b"work", 2, 0, 1000) + client.get(b"work", 5, 0, 1000))
        assert len(ids) == 3
        assert client.get(b"work", 5, 0, 1000) == []
        free(server, client, ids)
        writer.flush_queue(b"work")
    writer.put(b"work", *many(6))
    assert data_of(client.get(b"work", -1, 0, 1000)) == many(3)


def fill_limit_with_held_replies(server: MemoryServer, storage: SteppedStorage, wait_ms: int) -> ThriftClient:
    """Return a client that may hold three open reads and has asked for more in three calls. Nothing is safe yet."""
    client = ThriftClient(server)
    client.put(b"work", *many(10))
    storage.holds_commits = True
    for max_items in (2, 5, 5):
        client.send_get(b"work", max_items, wait_ms, LONG_MS)
    server.advance(1)
    assert client.waits()
    assert counts_in_memory(server) == 7
    return client


@pytest.mark.parametrize("wait_ms", [0, 500])
def test_open_reads_of_held_replies_count_in_the_limit(storage: SteppedStorage, wait_ms: int) -> None:
    server = serving(most_open=3, storage=storage)
    client = fill_limit_with_held_replies(server, storage, wait_ms)
    end_commits(server, storage)
    taken = [reply.result for reply in client.replies()]
    assert [data_of(part) for part in taken if isinstance(part, list)] == [many(10)[:2], many(10)[2:3], []]
    assert client.get(b"work", 10, 0, LONG_MS) == []
    assert counts(server) == (7, 3)


@pytest.mark.parametrize("wait_ms", [0, 500])
def test_lost_replies_free_the_limit_of_open_reads(storage: SteppedStorage, wait_ms: int) -> None:
    server = serving(most_open=3, storage=storage)
    client = fill_limit_with_held_replies(server, storage, wait_ms)
    lose_commits(storage)
    assert [type(reply.result) for reply in client.replies()] == [Refused] * 3
    assert counts(server) == (10, 0)
    assert data_of(client.get(b"work", 10, 0, LONG_MS)) == many(10)[:3]


@pytest.mark.parametrize("wait_ms", [0, 500])
def test_full_connection_may_get_without_auto_abort(wait_ms: int) -> None:
    server = serving(most_open=3)
    client = ThriftClient(server)
    client.put(b"work", *many(10))
    assert len(client.get(b"work", 3, 0, LONG_MS)) == 3
    client.send_get(b"work", 10, wait_ms)
    server.advance(1)
    assert client.taken() == [Taken(item, 0) for item in many(10)[3:]]


# Queues that are deleted or flushed.


@pytest.mark.parametrize("is_there_again", [False, True])
def test_delete_removes_open_reads_of_queue(is_there_again: bool, tmp_path: Path) -> None:
    server = serving(folder=tmp_path / "queues")
    client, other = ThriftClient(server), ThriftClient(server)
    client.put(b"work", *many(4))
    ids = ids_of(client.get(b"work", 2, 0, 500))
    other.delete_queue(b"work")
    fresh: list[int] = []
    if is_there_again:
        other.put(b"work", b"new", b"newer")
        fresh = ids_of(other.get(b"work", 1, 0, LONG_MS))
    assert client.abort(b"work", *ids) == 0
    assert client.confirm(b"work", *ids) == 0
    with capturedLogs() as logs:
        server.advance(60)
    assert not logs, "no timer of the deleted reads remains"
    if is_there_again:
        assert counts(server) == (1, 1)
        assert other.abort(b"work", *fresh) == 1
    server.crash()
    assert drained(server) == ([b"new", b"newer"] if is_there_again else [])


def test_deleted_queue_answers_waiters_with_nothing(server: MemoryServer, client: ThriftClient) -> None:
    other = ThriftClient(server)
    collecting = ThriftClient(server)
    collecting.send_get(b"work", 5, 1000)
    other.put(b"work", b"one")
    assert collecting.waits()
    client.send_get(b"work", 5, 1000, LONG_MS)
    assert client.waits()
    other.delete_queue(b"work")
    assert client.taken() == []
    assert collecting.taken() == []
    other.put(b"work", b"two")
    assert other.items(b"work") == [b"two"]


def test_flush_keeps_items_collected_by_waiting_get(server: MemoryServer, client: ThriftClient) -> None:
    other = ThriftClient(server)
    client.send_get(b"work", 3, 1000)
    other.put(b"work", b"one", b"two")
    other.flush_queue(b"work")
    server.advance(1)
    assert data_of(client.taken()) == [b"one", b"two"]


# Restart and crash.


@pytest.mark.parametrize("start_again", [MemoryServer.restart, MemoryServer.crash])
def test_restart_requeues_open_reads_and_old_ids_are_unknown(
    start_again: Callable[[MemoryServer], None], tmp_path: Path
) -> None:
    server = serving(folder=tmp_path / "queues")
    client, other = ThriftClient(server), ThriftClient(server)
    client.put(b"work", *many(10))
    ids = ids_of(client.get(b"work", 3, 0, LONG_MS))
    ids += ids_of(other.get(b"work", 3, 0, LONG_MS))
    ids += ids_of(client.get(b"work", 2, 0, LONG_MS))
    assert client.confirm(b"work", ids[1], ids[6]) == 2
    server.advance(0.001)
    start_again(server)
    expected = [item for place, item in enumerate(many(10)) if place not in (1, 6)]
    client = ThriftClient(server)
    info = client.peek(b"work")
    assert (info.items, info.open_reads, info.head) == (8, 0, b"00000")
    taken = client.get(b"work", -1, 0, LONG_MS)
    assert data_of(taken) == expected
    assert min(ids_of(taken)) > max(ids)
    assert client.confirm(b"work", *ids) == client.abort(b"work", *ids) == 0
    assert counts(server) == (0, 8)
    assert client.confirm(b"work", *ids_of(taken)) == 8


@pytest.mark.parametrize("is_crash", [False, True], ids=["stop", "crash"])
def test_collected_items_are_sent_at_stop_and_survive_crash(is_crash: bool, tmp_path: Path) -> None:
    server = serving(folder=tmp_path / "queues")
    client = ThriftClient(server)
    client.put(b"work", *many(3))
    client.send_get(b"work", 5, 60_000)
    assert client.waits()
    server.advance(0.001)
    if is_crash:
        server.crash()
        assert drained(server) == many(3)
    else:
        server.restart()
        assert data_of(client.taken()) == many(3)
        assert drained(server) == []
    assert client.is_closed


# A failing storage.


def test_reads_of_failed_queue_are_redelivered_and_not_confirmed(slow: MemoryServer, storage: SteppedStorage) -> None:
    client = ThriftClient(slow)
    client.put(b"work", *many(4))
    old = ids_of(client.get(b"work", 2, 0, LONG_MS))
    fail(slow, storage)
    new = ids_of(client.get(b"work", 1, 0, LONG_MS))
    assert client.confirm(b"work", *old, *new) == 1, "only the newer read"
    assert client.abort(b"work", *old, *new) == 0
    slow.advance(LONG_MS)
    assert drained(slow) == many(4)[1:]


def test_failed_storage_frees_the_limit_of_open_reads(storage: SteppedStorage) -> None:
    server = serving(most_open=2, storage=storage)
    client = ThriftClient(server)
    client.put(b"work", *many(3))
    assert len(client.get(b"work", 3, 0, LONG_MS)) == 2
    fail(server, storage)
    assert data_of(client.get(b"work", 3, 0, LONG_MS)) == many(2)


@pytest.mark.parametrize("end", [b"confirm", b"abort"])
def test_lost_confirm_or_abort_is_an_exception_and_items_return(
    slow: MemoryServer, storage: SteppedStorage, end: bytes
) -> None:
    client = ThriftClient(slow)
    client.put(b"work", *many(3))
    ids = ids_of(client.get(b"work", 2, 0, LONG_MS))
    storage.holds_commits = True
    client.send_ids(end, b"work", ids)
    assert client.waits()
    lose_commits(storage)
    assert is_refused(client.result)
    assert client.confirm(b"work", *ids) == 0
    assert client.items(b"work") == many(3)


# Status.


@pytest.mark.parametrize("status", [READ_ONLY, QUIESCENT])
def test_read_only_and_quiescent_refuse_calls_but_allow_ending_reads(server: MemoryServer, status: int) -> None:
    client = ThriftClient(server)
    client.put(b"work", *many(4))
    first, second, third = ids_of(client.get(b"work", 3, 0, 500))
    client.set_status(status)
    other = ThriftClient(server)
    assert is_refused(lambda: other.put(b"work", b"more"))
    assert is_refused(lambda: other.flush_queue(b"work"))
    assert is_refused(lambda: other.flush_all_queues())
    assert is_refused(lambda: other.delete_queue(b"work"))
    assert other.confirm(b"work", first) == 1
    assert other.abort(b"work", second) == 1
    assert counts(server) == (2, 1)
    if status == QUIESCENT:
        assert is_refused(lambda: other.get(b"work", 1))
        assert is_refused(lambda: other.get(b"work", 1, 1000, LONG_MS))
        assert is_refused(lambda: other.peek(b"work"))
    else:
        assert other.peek(b"work").head == b"00001"
        assert other.items(b"work", 1) == [b"00001"]
    server.advance(0.5)
    assert other.confirm(b"work", third) == 0
    other.set_status(UP)
    assert not other.is_closed
    assert drained(server)[0] == b"00002"


# peek.


def test_peek_describes_queue_and_takes_nothing(tmp_path: Path) -> None:
    server = serving(folder=tmp_path / "queues")
    client, other = ThriftClient(server), ThriftClient(server)
    client.put(b"work", b"one", b"three")
    server.advance(1.5)
    client.put(b"work", b"four")
    client.get(b"work", 1, 0, LONG_MS)
    server.advance(1)
    for _ in range(2):
        info = other.peek(b"work")
        size = (tmp_path / "queues" / "work").stat().st_size
        assert size > 0
        assert info == QueueInfo(b"three", 2, 9, size, 2500, 0, 1)
    assert other.items(b"work") == [b"three", b"four"]


def test_peek_counts_waiters(server: MemoryServer, client: ThriftClient, other: ThriftClient) -> None:
    client.send_get(b"work", 2, 1000)
    memcache = server.connect()
    assert memcache.ask(b"get work/t=1000\r\n") == b""
    assert other.peek(b"work") == QueueInfo(waiters=2)
    memcache.disconnect()
    assert other.peek(b"work") == QueueInfo(waiters=1)
    server.advance(1)
    assert other.peek(b"work") == QueueInfo()


def test_peek_of_missing_queue_or_alias_is_all_zeros() -> None:
    server = serving("[[aliases]]\nname = 'all'\ndestinationQueues = ['work']")
    client = ThriftClient(server)
    assert client.peek(b"missing") == QueueInfo()
    client.put(b"all", b"one")
    assert client.peek(b"all") == QueueInfo()
    assert client.peek(b"work").head == b"one"


def test_list_queues_names_queues_but_not_aliases() -> None:
    client = ThriftClient(serving("[[aliases]]\nname = 'all'\ndestinationQueues = ['work']"))
    assert client.list_queues() == []
    for queue in (b"work", b"mail", b"all", b"mail+spark"):
        client.put(queue, b"one")
    assert client.list_queues() == [b"mail", b"mail+spark", b"work"]


def test_list_queues_is_refused_if_the_names_exceed_a_reply() -> None:
    client = ThriftClient(serving("maxRequestSize = 1024"))
    for number in range(6):
        client.put(b"%d" % number * 180, b"one")
    assert is_refused(client.list_queues)
    assert client.get_version()


# Messages.


def test_concurrent_calls_are_answered_in_order(client: ThriftClient) -> None:
    put = client.send_put(b"work", b"one", b"two")
    peek = client.send(b"get_version")
    get = client.send_get(b"work", 1)
    unknown = client.send(b"no_such_method")
    flush = client.send(b"flush_queue", binary.binary_field(1, b"work"))
    empty = client.send_get(b"work", 1)
    replies = client.replies()
    assert [(reply.name, reply.seqid) for reply in replies] == [
        (b"put", put),
        (b"get_version", peek),
        (b"get", get),
        (b"no_such_method", unknown),
        (b"flush_queue", flush),
        (b"get", empty),
    ]
    assert [reply.result for reply in replies[:3]] == [2, b"1.2.3", [Taken(b"one", 0)]]
    assert [reply.result for reply in replies[4:]] == [None, []]


def test_call_is_answered_in_its_own_encoding(server: MemoryServer) -> None:
    old = ThriftClient(server, is_strict=False)
    assert old.put(b"work", b"one") == 1
    seqid = old.send(b"get_version")
    assert old.replies() == [Reply(b"get_version", seqid, b"1.2.3", is_strict=False)]
    seqid = old.send_get(b"", 1)
    reply = old.reply()
    assert reply is not None
    assert isinstance(reply.result, Refused)
    assert (reply.name, reply.seqid, reply.is_strict) == (b"get", seqid, False)
    assert old.items(b"work") == [b"one"]


@pytest.mark.parametrize("name", [b"no_such_method", b"", b"PUT"])
def test_unknown_method_is_reported(client: ThriftClient, name: bytes) -> None:
    client.send(name)
    assert is_refused(client.result, binary.UNKNOWN_METHOD)
    assert client.get_version() == b"1.2.3"


def test_missing_argument_is_a_protocol_error(client: ThriftClient) -> None:
    client.put(b"work", b"one")
    for method in (b"get", b"put", b"confirm", b"abort"):
        client.send(method, binary.binary_field(1, b"work"))
        assert is_refused(client.result, binary.PROTOCOL_ERROR)
    for method in (b"peek", b"flush_queue", b"delete_queue", b"set_status"):
        client.send(method)
        assert is_refused(client.result, binary.PROTOCOL_ERROR)
    client.send(b"get", binary.binary_field(1, b"work"), binary.i32_field(2, 1))
    assert client.taken() == [Taken(b"one", 0)]


@pytest.mark.parametrize("size", [1025, 2**31 - 1, -1])
def test_too_large_frame_is_refused_before_its_data_is_read(size: int) -> None:
    server = serving("maxRequestSize = 1024")
    client = ThriftClient(server)
    client.send_bytes(size.to_bytes(4, "big", signed=True) + binary.header(b"put", binary.CALL, 9))
    reply = client.reply()
    assert reply is not None
    assert isinstance(reply.result, Refused)
    assert (reply.name, reply.seqid, reply.result.type) == (b"put", 9, binary.INTERNAL_ERROR)
    assert client.is_closed


# Other protocols.


def test_reads_of_one_protocol_are_separate_from_others(server: MemoryServer, client: ThriftClient) -> None:
    memcache = server.connect()
    assert memcache.ask(set_(b"work", b"one") + set_(b"work", b"two")) == STORED * 2
    assert memcache.ask(b"get work/open\r\n") == value(b"work/open", b"one")
    (number,) = ids_of(client.get(b"work", 2, 0, LONG_MS))
    assert memcache.ask(b"confirm work 2\r\n") == b"ERROR\r\n"
    assert client.confirm(b"work", *range(number - 5, number + 5)) == 1
    memcache.disconnect()
    assert drained(server) == [b"one"]


# No read stays open.

TROUBLES = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 4)),
    st.tuples(
        st.just("get"),
        st.integers(0, 2),
        st.sampled_from([-1, 1, 2, 3, 10]),
        st.sampled_from([0, 100, 250]),
        st.sampled_from([0, 150, LONG_MS]),
    ),
    st.tuples(st.just("end"), st.integers(0, 2), st.sampled_from([b"confirm", b"abort"]), st.integers(1, 3)),
    st.tuples(st.just("pass time"), st.sampled_from([0.05, 0.1, 0.2])),
    st.tuples(st.just("leave"), st.integers(0, 2)),
    st.tuples(st.just("half close"), st.integers(0, 2)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("delete")),
    st.tuples(st.just("hold commits")),
    st.tuples(st.just("end commits"), st.booleans()),
    st.tuples(st.just("fail")),
)


@given(st.lists(TROUBLES, min_size=10, max_size=25))
@settings(deadline=None)
def test_no_read_stays_open_after_disconnects_and_timeouts(steps: list[tuple[Any, ...]]) -> None:
    storage = SteppedStorage()
    server = serving(storage=storage)
    clients = [ThriftClient(server) for _ in range(3)]
    ids: list[int] = []

    def look(client: ThriftClient) -> None:
        for reply in client.replies():
            if isinstance(reply.result, list):
                ids.extend(ids_of(reply.result))

    def end_some(is_lost: bool) -> None:
        if storage.committing:
            storage.end_commits(error=StorageError("disk failed") if is_lost else None)
            server.settle()

    def replace(who: int) -> None:
        look(clients[who])
        clients[who] = ThriftClient(server)

    with capturedLogs() as logs:
        for step in steps:
            match step:
                case "put", number:
                    ThriftClient(server).send_put(b"work", *many(number))
                case "get", who, max_items, wait_ms, auto_abort_ms:
                    clients[who].send_get(b"work", max_items, wait_ms, auto_abort_ms)
                case "end", who, end, number:
                    look(clients[who])
                    clients[who].send_ids(end, b"work", ids[-number:])
                case "pass time", seconds:
                    server.advance(seconds)
                case "leave", who:
                    look(clients[who])
                    clients[who].disconnect()
                    replace(who)
                case "half close", who:
                    look(clients[who])
                    clients[who].half_close()
                    replace(who)
                case ("flush",):
                    ThriftClient(server).send(b"flush_queue", binary.binary_field(1, b"work"))
                case ("delete",):
                    ThriftClient(server).send(b"delete_queue", binary.binary_field(1, b"work"))
                case ("hold commits",):
                    storage.holds_commits = True
                case "end commits", is_lost:
                    end_some(is_lost)
                case ("fail",):
                    fail(server, storage)
            server.settle()
        storage.holds_commits = False
        for client in clients:
            client.disconnect()
        for _ in range(3):
            end_some(is_lost=False)
            server.advance(LONG_MS / 1000)
        assert drained(server) is not None
        server.settle()
    assert counts(server) == (0, 0)
    assert [event for event in logs if event["log_level"] >= LogLevel.error] == []
