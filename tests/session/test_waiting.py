"""Waiting: which client gets the next item, until when, and what happens if it has disconnected."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from kestrel.config.model import Config
from kestrel.errors import StorageError
from kestrel.item import Item
from kestrel.queues.queue import MAX_SERVED_PER_SLICE
from kestrel.queues.waiters import Waiter
from kestrel.session.item_feed import MAX_FED_ITEMS_PER_SLICE
from kestrel.session.session import MAX_COMMANDS_PER_SLICE
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import put, set_, value
from tests.session.servers import drained, end_commits, lose_commits, store_of

LEAVE = pytest.mark.parametrize("leave", [MemoryClient.disconnect, MemoryClient.half_close])


@pytest.fixture
def server(storage: SteppedStorage) -> MemoryServer:
    return MemoryServer(storage, session_settings=Config(max_open_transactions=1000))


@pytest.fixture
def writer(server: MemoryServer) -> MemoryClient:
    return server.connect()


def asks(server: MemoryServer, request: bytes) -> MemoryClient:
    """Return a new client that sends this and gets no reply."""
    client = server.connect()
    assert client.ask(request + b"\r\n") == b""
    return client


def items_in(reply: bytes) -> list[bytes]:
    """Return the items of a reply that consists only of VALUE blocks."""
    found = re.findall(rb"VALUE (work(?:/\S+)?) 0 \d+\r\n(.*?)\r\nEND\r\n", reply, re.DOTALL)
    assert b"".join(value(key, data) for key, data in found) == reply
    return [data for _, data in found]


# Order of waiters.


def test_waiters_are_served_in_order_of_arrival(server: MemoryServer, writer: MemoryClient) -> None:
    waiters = [asks(server, b"get work/t=1000") for _ in range(3)]
    put(writer, b"work", b"one", b"two")
    assert [waiter.take() for waiter in waiters] == [value(b"work/t=1000", b"one"), value(b"work/t=1000", b"two"), b""]
    put(writer, b"work", b"three")
    assert waiters[2].take() == value(b"work/t=1000", b"three")


def test_wait_blocks_no_other_client(server: MemoryServer, writer: MemoryClient) -> None:
    asks(server, b"get work/t=1000")
    other = server.connect()
    assert other.ask(set_(b"other", b"one") + b"get other\r\nversion\r\n") == (
        b"STORED\r\n" + value(b"other", b"one") + b"VERSION 1.2.3\r\n"
    )


def test_expired_item_ends_no_wait(server: MemoryServer, writer: MemoryClient) -> None:
    waiter = asks(server, b"get work/t=1000")
    assert writer.ask(set_(b"work", b"expired", -1)) == b"STORED\r\n"
    assert waiter.take() == b""
    put(writer, b"work", b"one")
    assert waiter.take() == value(b"work/t=1000", b"one")


def test_deleted_queue_answers_waiters_as_an_empty_one(server: MemoryServer, writer: MemoryClient) -> None:
    waiters = [asks(server, request) for request in (b"get work/t=1000", b"get work/peek/t=1000", b"monitor work 10")]
    assert writer.ask(b"delete work\r\n") == b"DELETED\r\n"
    assert [waiter.take() for waiter in waiters] == [b"END\r\n"] * 3
    put(writer, b"work", b"one")
    assert drained(server) == [b"one"]


def test_thousands_of_waiters_are_served_in_order_over_many_ticks(server: MemoryServer, writer: MemoryClient) -> None:
    items = [b"%d" % number for number in range(3000)]
    put(writer, b"work", *items)
    queue = server.manager.queue(b"work")
    store_of(server).page_out()
    served: list[bytes] = []

    def on_result(item: Item | None, error: Exception | None) -> None:
        assert item is not None
        served.append(item.data)

    for _ in items:
        queue.join(Waiter(on_result, opens=False, peeks=False, is_blocking=True))
    store_of(server).end_fill()
    counts = [0, len(served)]
    while not server.is_at_rest:
        server.tick()
        counts.append(len(served))
    assert served == items
    assert max(after - before for before, after in pairwise(counts)) == MAX_SERVED_PER_SLICE


# Duration of waits.


@pytest.mark.parametrize(
    "request_bytes", [b"get work/t=250", b"get work/peek/t=250", b"get work/t=250/open", b"gets work/t=250"]
)
def test_wait_ends_exactly_at_its_time(server: MemoryServer, writer: MemoryClient, request_bytes: bytes) -> None:
    waiter = asks(server, request_bytes)
    server.advance(0.2499)
    assert waiter.take() == b""
    server.advance(0.0001)
    assert waiter.take() == b"END\r\n"
    put(writer, b"work", b"one")
    assert waiter.take() == b""
    assert drained(server) == [b"one"]


@pytest.mark.parametrize("wait", [b"0", b"-1", b"-2147483648"])
@pytest.mark.parametrize("peek", [b"", b"/peek"])
def test_wait_of_zero_or_less_does_not_wait(server: MemoryServer, wait: bytes, peek: bytes) -> None:
    assert server.connect().ask(b"get work/t=%b%b\r\n" % (wait, peek)) == b"END\r\n"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_wall_clock_change_does_not_affect_a_wait(server: MemoryServer, writer: MemoryClient, step_ms: int) -> None:
    waiter, watcher = asks(server, b"get work/t=1000"), asks(server, b"monitor work 1")
    server.step_wall_clock(step_ms)
    server.advance(0.999)
    assert (waiter.take(), watcher.take()) == (b"", b"")
    server.advance(0.001)
    assert (waiter.take(), watcher.take()) == (b"END\r\n", b"END\r\n")


def test_ended_wait_leaves_no_timer(server: MemoryServer, writer: MemoryClient) -> None:
    served, gone = asks(server, b"get work/t=1000"), asks(server, b"get work/t=1000")
    put(writer, b"work", b"one")
    gone.disconnect()
    assert served.take() == value(b"work/t=1000", b"one")
    assert server.clock.getDelayedCalls() == []


def test_very_long_wait_is_accepted(server: MemoryServer, writer: MemoryClient) -> None:
    waiter = asks(server, b"get work/t=2147483647")
    server.advance(2_000_000)
    assert waiter.take() == b""
    put(writer, b"work", b"one")
    assert waiter.take() == value(b"work/t=2147483647", b"one")


def test_waiting_peek_takes_nothing_from_waiters_behind_it(server: MemoryServer, writer: MemoryClient) -> None:
    peekers = [asks(server, b"get work/peek/t=1000") for _ in range(2)]
    getter = asks(server, b"get work/t=1000")
    late = asks(server, b"get work/peek/t=1000")
    put(writer, b"work", b"one")
    assert [peeker.take() for peeker in peekers] == [value(b"work/peek/t=1000", b"one")] * 2
    assert (getter.take(), late.take()) == (value(b"work/t=1000", b"one"), b"")
    assert drained(server) == []


# Requests behind a wait.


def test_requests_behind_a_wait_are_answered_after_it_in_order(server: MemoryServer, writer: MemoryClient) -> None:
    waiter = asks(server, b"get work/t=1000\r\nversion\r\n" + set_(b"other", b"x") + b"get other")
    put(writer, b"work", b"one")
    assert waiter.take() == value(b"work/t=1000", b"one") + b"VERSION 1.2.3\r\nSTORED\r\n" + value(b"other", b"x")


def test_requests_sent_during_a_wait_are_kept(server: MemoryServer) -> None:
    waiter = asks(server, b"get work/t=100")
    assert waiter.ask(b"ver") == b""
    assert waiter.ask(b"sion\r\nquit\r\n") == b""
    server.advance(0.1)
    assert waiter.take() == b"END\r\nVERSION 1.2.3\r\n"
    assert waiter.is_closed


def test_waits_behind_a_wait_begin_when_it_ends(server: MemoryServer, writer: MemoryClient) -> None:
    waiter = asks(server, b"get work/t=100\r\nget work/t=100")
    server.advance(0.1)
    assert waiter.take() == b"END\r\n"
    server.advance(0.099)
    assert waiter.take() == b""
    put(writer, b"work", b"one")
    assert waiter.take() == value(b"work/t=100", b"one")


def test_replies_before_a_wait_are_sent_at_once(server: MemoryServer) -> None:
    assert server.connect().ask(b"version\r\nget work/t=1000\r\n") == b"VERSION 1.2.3\r\n"


# Clients that disconnect.


@LEAVE
def test_disconnected_waiter_takes_no_item(
    server: MemoryServer, writer: MemoryClient, leave: Callable[[MemoryClient], None]
) -> None:
    waiter = asks(server, b"get work/t=1000\r\nversion")
    leave(waiter)
    assert waiter.take() == b""
    assert waiter.is_closed
    put(writer, b"work", b"one")
    assert drained(server) == [b"one"]


def test_waiter_that_disconnects_as_item_comes_takes_none(server: MemoryServer, writer: MemoryClient) -> None:
    waiter, next_one = asks(server, b"get work/t=1000"), asks(server, b"get work/t=1000")
    writer.send(set_(b"work", b"one"))
    waiter.disconnect()
    assert writer.take() == b"STORED\r\n"
    assert next_one.take() == value(b"work/t=1000", b"one")


@LEAVE
def test_waiter_that_disconnects_before_item_is_safe_takes_none(
    storage: SteppedStorage, server: MemoryServer, writer: MemoryClient, leave: Callable[[MemoryClient], None]
) -> None:
    waiter = asks(server, b"get work/t=1000")
    storage.holds_commits = True
    assert writer.ask(set_(b"work", b"one") + set_(b"work", b"two")) == b""
    leave(waiter)
    end_commits(server, storage)
    assert writer.take() == b"STORED\r\nSTORED\r\n"
    assert waiter.take() == b""
    assert waiter.is_closed
    assert drained(server) == [b"one", b"two"]


def test_waiter_that_does_not_read_and_disconnects_takes_none(server: MemoryServer, writer: MemoryClient) -> None:
    put(writer, b"big", b"x" * 300_000)
    waiter = server.connect()
    waiter.reads = False
    assert waiter.ask(b"get big\r\nget work/t=1000\r\n") == b""
    put(writer, b"work", b"one")
    waiter.disconnect()
    assert drained(server) == [b"one"]


@pytest.mark.parametrize(
    ("lost", "reply", "left"),
    [
        # The waiter was to get the aborted item.
        (b"get work/abort\r\n", b"SERVER_ERROR disk failed\r\n", [b"one"]),
        # The open read returned to the head and went to the waiter.
        (b"flush work\r\n", value(b"work/t=1000", b"one"), []),
    ],
    ids=["abort", "flush"],
)
def test_waiter_fails_in_failed_commit_only_without_item(
    storage: SteppedStorage, server: MemoryServer, writer: MemoryClient, lost: bytes, reply: bytes, left: list[bytes]
) -> None:
    put(writer, b"work", b"one")
    holder = server.connect()
    assert holder.ask(b"get work/open\r\n") == value(b"work/open", b"one")
    waiter = asks(server, b"get work/t=1000")
    storage.holds_commits = True
    holder.send(lost)
    server.settle()
    lose_commits(storage)
    assert waiter.take() == reply
    assert drained(server) == left


@pytest.mark.parametrize("request_bytes", [b"get work/close/open/t=1000", b"get work/t=1000/close/open"])
def test_waiting_get_reports_loss_of_its_close(
    storage: SteppedStorage, server: MemoryServer, writer: MemoryClient, request_bytes: bytes
) -> None:
    put(writer, b"work", b"one")
    client = server.connect()
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"one")
    storage.holds_commits = True
    assert client.ask(request_bytes + b"\r\n") == b""
    lose_commits(storage)
    server.settle()
    assert client.take() == b"SERVER_ERROR disk failed\r\n"
    client.disconnect()
    assert drained(server) == [b"one"]


@LEAVE
def test_disconnect_requeues_open_reads_in_take_order(
    server: MemoryServer, writer: MemoryClient, leave: Callable[[MemoryClient], None]
) -> None:
    put(writer, b"work", b"one", b"two", b"three", b"four")
    reader = server.connect()
    assert items_in(reader.ask(b"get work/open\r\n" * 3)) == [b"one", b"two", b"three"]
    leave(reader)
    assert reader.take() == b""
    assert reader.is_closed
    assert drained(server) == [b"one", b"two", b"three", b"four"]


def test_aborted_and_retaken_read_returns_in_its_new_order(server: MemoryServer, writer: MemoryClient) -> None:
    put(writer, b"work", b"one", b"two")
    reader = server.connect()
    taken = reader.ask(b"get work/open\r\nget work/open\r\n") + reader.ask(b"get work/abort\r\nget work/open\r\n")[5:]
    assert items_in(taken) == [b"one", b"two", b"one"]
    reader.disconnect()
    assert drained(server) == [b"two", b"one"]


# Half-closed connections.


def test_wait_that_starts_after_half_close_is_canceled(server: MemoryServer, writer: MemoryClient) -> None:
    client = server.connect()
    client.send(b"version\r\n" * 200 + b"get work/t=1000\r\nversion\r\n")
    client.half_close()
    assert client.take() == b"VERSION 1.2.3\r\n" * 200
    assert client.is_closed
    put(writer, b"work", b"one")
    assert drained(server) == [b"one"]


@pytest.mark.parametrize("times", [1, MAX_COMMANDS_PER_SLICE])
def test_requests_before_half_close_are_answered_before_close(server: MemoryServer, times: int) -> None:
    client = server.connect()
    client.send((set_(b"work", b"one") + b"get work\r\nget work\r\n") * times)
    client.half_close()
    assert client.take() == (b"STORED\r\n" + value(b"work", b"one") + b"END\r\n") * times
    assert client.is_closed


@pytest.mark.parametrize(("behind", "reply"), [(b"version\r\n", b"VERSION 1.2.3\r\n"), (b"get empty/t=1000\r\n", b"")])
def test_held_replies_are_delivered_after_half_close(
    storage: SteppedStorage, server: MemoryServer, behind: bytes, reply: bytes
) -> None:
    storage.holds_commits = True
    client = server.connect()
    assert client.ask(set_(b"work", b"one") + behind) == b""
    client.half_close()
    assert client.take() == b""
    assert not client.is_closed
    storage.end_commits()
    assert client.take() == b"STORED\r\n" + reply
    assert client.is_closed


def test_half_close_passes_item_to_next_waiter(
    storage: SteppedStorage, server: MemoryServer, writer: MemoryClient
) -> None:
    waiter = asks(server, b"get work/t=1000\r\nget work/t=1000")
    other = asks(server, b"get work/t=1000")
    storage.holds_commits = True
    assert writer.ask(set_(b"work", b"one")) == b""
    waiter.half_close()
    server.settle()
    end_commits(server, storage)
    assert waiter.take() == b"", "both gets are canceled"
    assert waiter.is_closed
    assert other.take() == value(b"work/t=1000", b"one")


def test_incomplete_request_at_half_close_is_dropped(server: MemoryServer) -> None:
    client = server.connect()
    client.send(b"version\r\nset work 0 0 5\r\nhel")
    client.half_close()
    assert client.take() == b"VERSION 1.2.3\r\n"
    assert client.is_closed
    assert drained(server) == []


# Heads that are not in memory.


def test_waiters_keep_their_order_while_head_is_loaded(server: MemoryServer, writer: MemoryClient) -> None:
    put(writer, b"work", b"one", b"two")
    store_of(server).page_out()
    requests = [b"get work/t=1000", b"get work", b"get work/peek", b"get work/t=1000"]
    clients = [asks(server, request) for request in requests]
    store_of(server).end_fill()
    taken = [value(b"work/t=1000", b"one"), value(b"work", b"two"), b"END\r\n", b""]
    assert [client.take() for client in clients] == taken
    put(writer, b"work", b"three")
    assert clients[3].take() == value(b"work/t=1000", b"three")


@pytest.mark.parametrize("request_bytes", [b"get work", b"get work/open", b"get work/peek", b"get work/t=1000"])
def test_stop_during_load_of_head_answers_error_instead_of_end(
    server: MemoryServer, writer: MemoryClient, request_bytes: bytes
) -> None:
    put(writer, b"work", b"one")
    store_of(server).page_out()
    client, other = asks(server, request_bytes), asks(server, b"get empty/t=1000")
    server.stop()
    assert (client.take(), other.take()) == (b"SERVER_ERROR the server stops\r\n", b"END\r\n")


def test_wait_that_ends_during_load_is_answered_with_the_head(server: MemoryServer, writer: MemoryClient) -> None:
    put(writer, b"work", b"one")
    store_of(server).page_out()
    first, second = asks(server, b"get work/t=100"), asks(server, b"get work/t=100")
    server.advance(1)
    assert (first.take(), second.take()) == (b"", b"")
    store_of(server).end_fill()
    assert (first.take(), second.take()) == (value(b"work/t=100", b"one"), b"END\r\n")
    assert first.ask(b"version\r\n").startswith(b"VERSION")


def test_unreadable_head_is_an_error_and_not_an_empty_queue(server: MemoryServer, writer: MemoryClient) -> None:
    put(writer, b"work", b"one")
    store_of(server).page_out()
    clients = [asks(server, request) for request in (b"get work", b"get work/t=1000", b"monitor work 10")]
    store_of(server).end_fill(StorageError("unreadable"))
    assert [client.take() for client in clients] == [b"SERVER_ERROR unreadable\r\n"] * 3
    assert [client.is_closed for client in clients] == [False] * 3
    assert clients[0].ask(b"get work\r\n") == b"", "it is loaded again"
    store_of(server).end_fill()
    assert clients[0].take() == value(b"work", b"one")


# monitor.


def test_monitor_sends_items_as_they_come_until_its_end(server: MemoryServer, writer: MemoryClient) -> None:
    watcher = asks(server, b"monitor work 2")
    put(writer, b"work", b"one")
    assert watcher.take() == value(b"work", b"one")
    server.advance(1.5)
    put(writer, b"work", b"two", b"three")
    assert watcher.take() == value(b"work", b"two") + value(b"work", b"three")
    server.advance(0.499)
    assert watcher.take() == b""
    server.advance(0.001)
    assert watcher.take() == b"END\r\n"
    put(writer, b"work", b"four")
    assert watcher.take() == b""


@pytest.mark.parametrize("limits", [b"0", b"-1", b"0 5", b"10 0", b"-5 -5"])
def test_monitor_of_zero_time_or_items_ends_at_once(server: MemoryServer, writer: MemoryClient, limits: bytes) -> None:
    put(writer, b"work", b"one")
    assert writer.ask(b"monitor work %b\r\nversion\r\n" % limits) == b"END\r\nVERSION 1.2.3\r\n"
    assert drained(server) == [b"one"]


@pytest.mark.parametrize("max_items", [b"", b" -1", b" 3", b" 7"])
def test_monitor_ends_at_limit_of_open_reads(server: MemoryServer, writer: MemoryClient, max_items: bytes) -> None:
    server.session_settings = Config(max_open_transactions=3)
    put(writer, b"work", b"one", b"two", b"three", b"four")
    watcher = server.connect()
    expected = value(b"work", b"one") + value(b"work", b"two") + value(b"work", b"three") + b"END\r\n"
    assert watcher.ask(b"monitor work 10%b\r\n" % max_items) == expected
    assert not watcher.is_closed
    assert watcher.ask(b"monitor work 10%b\r\n" % max_items) == b"END\r\n"


def test_monitor_counts_earlier_open_reads(server: MemoryServer, writer: MemoryClient) -> None:
    server.session_settings = Config(max_open_transactions=3)
    put(writer, b"work", b"one", b"two", b"three", b"four")
    watcher = server.connect()
    assert watcher.ask(b"get work/open\r\n" * 2 + b"monitor work 10\r\n") == (
        value(b"work/open", b"one") + value(b"work/open", b"two") + value(b"work", b"three") + b"END\r\n"
    )


def test_monitor_that_loses_an_item_ends_with_an_error(
    storage: SteppedStorage, server: MemoryServer, writer: MemoryClient
) -> None:
    put(writer, b"work", b"one")
    watcher = server.connect()
    assert watcher.ask(b"monitor work 10 100\r\nversion\r\n") == value(b"work", b"one")
    storage.holds_commits = True
    writer.send(set_(b"work", b"two") + set_(b"work", b"three"))
    assert watcher.take() == b""
    lose_commits(storage)
    assert watcher.take() == b"SERVER_ERROR disk failed\r\nVERSION 1.2.3\r\n"
    assert writer.take() == b"SERVER_ERROR disk failed\r\n" * 2
    put(writer, b"work", b"four")
    watcher.disconnect()
    assert drained(server) == [b"one", b"four"]


def test_close_of_item_sent_before_a_loss_fails(
    storage: SteppedStorage, server: MemoryServer, writer: MemoryClient
) -> None:
    watcher = server.connect()
    storage.holds_commits = True
    watcher.send(set_(b"slow", b"in front") + b"monitor work 10 100\r\n")
    writer.send(set_(b"work", b"one"))
    server.settle()
    storage.end_commits(b"work")
    writer.send(set_(b"work", b"two"))
    server.settle()
    storage.end_commits(b"work", error=StorageError("disk failed"))
    server.settle()
    assert watcher.take() == b""
    storage.end_commits(b"slow")
    storage.holds_commits = False
    assert watcher.take() == b"STORED\r\n" + value(b"work", b"one") + b"SERVER_ERROR disk failed\r\n"
    assert watcher.ask(b"get work/close\r\n").startswith(b"SERVER_ERROR "), "it is not closed, and will be redelivered"
    end_commits(server, storage)
    assert drained(server) == [b"one"]


def test_monitor_that_loses_many_items_sends_one_error(
    storage: SteppedStorage, server: MemoryServer, writer: MemoryClient
) -> None:
    items = [b"%d" % number for number in range(2 * MAX_FED_ITEMS_PER_SLICE)]
    put(writer, b"work", *items)
    watcher = server.connect()
    storage.holds_commits = True
    watcher.send(b"monitor work 10 -1\r\n")
    assert watcher.take() == b""
    lose_commits(storage)
    assert watcher.take() == b"SERVER_ERROR disk failed\r\n"
    assert watcher.ask(b"confirm work 1\r\n") == b"ERROR\r\n", "it never had an open read"
    assert drained(server) == items


def test_requests_behind_a_monitor_are_answered_after_it(server: MemoryServer, writer: MemoryClient) -> None:
    watcher = asks(server, b"monitor work 1 5\r\nconfirm work 1\r\nversion")
    put(writer, b"work", b"one")
    assert watcher.take() == value(b"work", b"one")
    server.advance(1)
    assert watcher.take() == b"END\r\nEND\r\nVERSION 1.2.3\r\n"


@pytest.mark.parametrize("come_together", [False, True])
def test_monitor_takes_one_item_and_goes_to_end_of_line(
    server: MemoryServer, writer: MemoryClient, come_together: bool
) -> None:
    holder = server.connect()
    if come_together:
        put(writer, b"work", b"one", b"two", b"three")
        assert items_in(holder.ask(b"get work/open\r\n" * 3)) == [b"one", b"two", b"three"]
    watcher, waiter = asks(server, b"monitor work 10"), asks(server, b"get work/t=1000")
    if come_together:
        holder.disconnect()
    else:
        for item in (b"one", b"two", b"three"):
            put(writer, b"work", item)
    assert watcher.take() == value(b"work", b"one") + value(b"work", b"three")
    assert waiter.take() == value(b"work/t=1000", b"two")


def test_new_waiter_is_served_after_earlier_monitor(server: MemoryServer, writer: MemoryClient) -> None:
    watcher = asks(server, b"monitor work 10")
    late = server.connect()
    writer.send(set_(b"work", b"one"))
    late.send(b"get work/t=1000\r\n")
    writer.send(set_(b"work", b"two"))
    assert (watcher.take(), late.take()) == (value(b"work", b"one") + value(b"work", b"two"), b"")


def test_monitor_of_many_items_leaves_items_to_other_clients(server: MemoryServer, writer: MemoryClient) -> None:
    put(writer, b"work", *(b"%d" % number for number in range(1000)))
    watcher, other = server.connect(), server.connect()
    watcher.send(b"monitor work 10 -1\r\n")
    other.send(b"get work\r\n")
    server.tick()
    server.tick()
    assert len(items_in(bytes(other.received))) == 1
    assert len(items_in(watcher.take())) == 999


@pytest.fixture
def monitor_between_slices(server: MemoryServer, writer: MemoryClient) -> MemoryClient:
    """Return a client that monitors a queue of more items than one time slice sends; the next slice is due."""
    put(writer, b"work", *(b"%d" % number for number in range(300)))
    watcher = server.connect()
    watcher.send(b"monitor work 10\r\n")
    return watcher


def test_monitor_between_slices_ends_when_queue_is_deleted(
    server: MemoryServer, writer: MemoryClient, monitor_between_slices: MemoryClient
) -> None:
    writer.send(b"delete work\r\n")
    *items, last, rest = monitor_between_slices.take().split(b"END\r\n")
    assert len(items) == MAX_FED_ITEMS_PER_SLICE
    assert (last, rest) == (b"", b"")
    assert writer.take() == b"DELETED\r\n"
    assert monitor_between_slices.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"


def test_deletion_between_slices_of_monitor_delays_no_client(
    server: MemoryServer, writer: MemoryClient, monitor_between_slices: MemoryClient
) -> None:
    other = server.connect()
    writer.send(b"delete work\r\n")
    other.send(b"version\r\n" * 200)  # more than one time slice, behind the monitor's
    assert other.take() == b"VERSION 1.2.3\r\n" * 200


def test_monitor_between_slices_fails_if_queue_becomes_unusable(
    server: MemoryServer, monitor_between_slices: MemoryClient
) -> None:
    store_of(server).failure = "disk failed"
    *items, last = monitor_between_slices.take().split(b"END\r\n")
    assert len(items) == MAX_FED_ITEMS_PER_SLICE
    assert last == b"SERVER_ERROR disk failed\r\n"


def test_unread_monitor_ends_when_queue_is_deleted(server: MemoryServer, writer: MemoryClient) -> None:
    server.session_settings = Config(max_open_transactions=1000, max_pipeline_bytes=1000)
    put(writer, b"work", *[b"x" * 1000] * 300)
    watcher = server.connect()
    watcher.reads = False
    watcher.send(b"monitor work 10\r\n")
    server.settle()
    assert writer.ask(b"delete work\r\n") == b"DELETED\r\n"
    watcher.reads = True
    *items, last, rest = watcher.take().split(b"END\r\n")
    assert 0 < len(items) < 300, "the monitor was held up"
    assert (last, rest) == (b"", b"")


@pytest.mark.parametrize("emptied_by", [b"flush work", b"get work"])
@pytest.mark.parametrize("request_", [b"get work", b"get work/peek"])
def test_empty_reply_waits_until_queue_is_safely_empty(
    server: MemoryServer, storage: SteppedStorage, writer: MemoryClient, emptied_by: bytes, request_: bytes
) -> None:
    put(writer, b"work", b"one")
    storage.holds_commits = True
    assert writer.ask(emptied_by + b"\r\n") == b""
    reader = asks(server, request_)
    storage.end_commits()
    assert reader.take() == b"END\r\n"
