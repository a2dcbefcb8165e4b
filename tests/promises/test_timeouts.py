"""Timeouts: open reads held too long, idle connections, and stale reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.memcache_text import END, STORED, is_missing, items, put, set_, stat, value
from tests.session.servers import MOMENT_S, config_of, counts, of_work, serving

ERROR: Final = b"ERROR\r\n"


def open_(client: MemoryClient, *datas: bytes) -> None:
    """Open reads, which must return these items."""
    for data in datas:
        assert client.ask(b"get work/open\r\n") == value(b"work/open", data)


def advance_until_just_before(server: MemoryServer, seconds: float) -> None:
    """Advance the clock to a moment before that time is over."""
    server.advance(seconds - MOMENT_S)


# Reads of a queue that was deleted.


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("is_there_again", [True, False])
def test_confirm_that_counts_read_of_deleted_queue_confirms_nothing(count: int, is_there_again: bool) -> None:
    server = serving()
    client, other = server.connect(), server.connect()
    put(other, b"work", b"one", b"two")
    open_(client, b"one", b"two")
    assert other.ask(b"delete work\r\n") == b"DELETED\r\n"
    if is_there_again:
        put(other, b"work", b"three")
        open_(client, b"three")
    assert client.ask(b"confirm work %d\r\n" % count) == ERROR
    assert not client.is_closed
    if is_there_again:
        assert counts(server) == (0, 1), "it is still open"
        client.disconnect()
        assert items(other, b"work") == [b"three"]
    else:
        assert is_missing(other, b"work")


# openTransactionTimeout.


def test_open_read_returns_to_head_at_its_timeout(tmp_path: Path) -> None:
    server = serving(of_work("openTransactionTimeout = '5s'"), folder=tmp_path / "queues")
    client, monitor, other = server.connect(), server.connect(), server.connect()
    put(other, b"work", b"one", b"two", b"behind")
    open_(client, b"one")
    server.advance(1)
    assert monitor.ask(b"monitor work 60 1\r\n") == value(b"work", b"two") + END
    advance_until_just_before(server, 4)
    assert counts(server) == (1, 2)
    server.advance(MOMENT_S)
    assert counts(server) == (2, 1), "exactly then, although nothing used the queue"
    advance_until_just_before(server, 1)
    assert counts(server) == (2, 1)
    server.advance(MOMENT_S)
    assert counts(server) == (3, 0)
    assert items(other, b"work") == [b"two", b"one", b"behind"], "each returned to the head at its own time"

    put(other, b"work", b"waited for")
    open_(client, b"waited for")
    server.advance(2)
    waiter, next_one = server.connect(), server.connect()
    for each in (waiter, next_one):
        assert each.ask(b"get work/t=60000/open\r\n") == b""
    advance_until_just_before(server, 3)
    assert waiter.take() == b""
    server.advance(MOMENT_S)
    assert waiter.take() == value(b"work/t=60000/open", b"waited for")
    advance_until_just_before(server, 5)
    assert next_one.take() == b""
    server.advance(MOMENT_S)
    assert next_one.take() == value(b"work/t=60000/open", b"waited for"), "its time started again"
    assert next_one.ask(b"get work/close\r\n") == END
    server.advance(60)
    assert counts(server) == (0, 0), "a finished read does not come back"
    server.crash()
    assert items(server.connect(), b"work") == []


@pytest.mark.parametrize("is_after_a_crash", [False, True])
def test_simultaneous_timeouts_return_items_in_order(is_after_a_crash: bool, tmp_path: Path) -> None:
    server = serving(of_work("openTransactionTimeout = '5s'"), folder=tmp_path / "queues")
    first, second = server.connect(), server.connect()
    taken = [b"%d" % number for number in range(20)]
    put(first, b"work", *taken, b"behind")
    for number, data in enumerate(taken):
        open_((first, second)[number % 2], data)
    server.advance(5)
    assert counts(server) == (21, 0)
    if is_after_a_crash:
        server.crash()
    assert items(server.connect(), b"work") == [*taken, b"behind"]


@pytest.mark.parametrize("option", [b"close", b"abort"])
def test_close_of_timed_out_read_ends_no_other_read(option: bytes) -> None:
    server = serving(of_work("openTransactionTimeout = '5s'"))
    client, other = server.connect(), server.connect()
    request = b"get work/%b\r\n" % option
    put(client, b"work", b"one", b"two")
    open_(client, b"one")
    server.advance(5)
    assert client.ask(request) == END
    assert counts(server) == (2, 0)

    open_(client, b"one")
    server.advance(5)
    open_(client, b"one", b"two")
    assert client.ask(request) == END
    assert counts(server) == (0, 2), "the reads opened since are still open"
    assert client.ask(request) == END
    assert counts(server) == ((0, 1) if option == b"close" else (1, 1))
    assert not client.is_closed
    client.disconnect()
    assert items(other, b"work") == ([b"two"] if option == b"close" else [b"two", b"one"])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_confirm_that_counts_timed_out_read_confirms_nothing(count: int) -> None:
    server = serving(of_work("openTransactionTimeout = '5s'"))
    client, other = server.connect(), server.connect()
    put(client, b"work", b"one", b"two", b"three")
    open_(client, b"one")
    server.advance(3)
    open_(client, b"two", b"three")
    server.advance(2)
    assert counts(server) == (1, 2)
    assert client.ask(b"confirm work %d\r\n" % count) == ERROR
    assert not client.is_closed
    assert counts(server) == (1, 2)
    client.disconnect()
    assert items(other, b"work") == [b"two", b"three", b"one"]


def test_timed_out_read_no_longer_counts_in_limit() -> None:
    server = serving(of_work("openTransactionTimeout = '5s'"), most_open=2)
    client = server.connect()
    put(client, b"work", b"one", b"two", b"three")
    for _ in range(3):
        open_(client, b"one", b"two")
        server.advance(5)
        assert counts(server) == (3, 0)
    assert client.ask(b"get work\r\n") == value(b"work", b"one"), "a plain get is allowed: nothing is open"
    assert client.ask(b"monitor work 10\r\n") == value(b"work", b"two") + value(b"work", b"three") + END
    put(client, b"work", b"four")
    assert client.ask(b"get work/open\r\n") == ERROR, "the limit is reached"
    assert client.is_closed


def test_timed_out_read_counts_as_an_abort() -> None:
    server = serving(of_work("openTransactionTimeout = '5s'\nmaxRedeliveries = 3\nerrorQueue = 'bad'"))
    client, other = server.connect(), server.connect()
    put(client, b"work", b"item", b"next")
    for number in (1, 2):
        open_(client, b"item")
        server.advance(5)
        assert stat(other, b"work", "canceled_transactions") == str(number)
    open_(client, b"item")
    assert other.ask(b"get bad\r\n") == END
    server.advance(5)
    assert stat(other, b"work", "canceled_transactions") == "3"
    assert items(other, b"bad") == [b"item"]
    assert items(other, b"work") == [b"next"]


@pytest.mark.parametrize(
    ("before", "after", "is_back_after_s"),
    [
        ("100s", "20s", 20),
        ("none", "20s", 20),
        ("20s", "1m", 60),
        ("100s", "5s", 10),
        ("none", "10s", 10),
        ("20s", "none", None),
    ],
)
def test_reload_of_open_transaction_timeout_applies_to_open_reads(
    before: str, after: str, is_back_after_s: int | None
) -> None:
    server = serving(of_work(f"openTransactionTimeout = '{before}'"))
    client, other = server.connect(), server.connect()
    put(client, b"work", b"item")
    open_(client, b"item")
    server.advance(10)
    assert counts(server) == (0, 1)
    server.control.new_config = config_of(of_work(f"openTransactionTimeout = '{after}'"))
    assert other.ask(b"reload\r\n") == b"Reloaded config.\r\n"
    if is_back_after_s is None:
        server.advance(1_000_000)
        assert counts(server) == (0, 1)
        return
    if is_back_after_s > 10:
        advance_until_just_before(server, is_back_after_s - 10)
        assert counts(server) == (0, 1)
        server.advance(MOMENT_S)
    assert counts(server) == (1, 0)
    open_(client, b"item")
    server.advance(100)
    assert counts(server) == (1, 0), "it also applies to reads opened later"


# clientTimeout.


def test_idle_connection_is_closed_after_client_timeout() -> None:
    server = MemoryServer(config=loads("clientTimeout = '10s'\nmaxOpenTransactions = 2"))
    silent = server.connect()
    advance_until_just_before(server, 10)
    assert not silent.is_closed
    server.advance(MOMENT_S)
    assert silent.is_closed, "it never sent a request"

    client = server.connect()
    put(client, b"work", b"one", b"two", b"three")
    open_(client, b"one", b"two")
    for _ in range(3):
        server.advance(6)
        assert client.ask(b"version\r\n").startswith(b"VERSION ")
    advance_until_just_before(server, 10)
    assert not client.is_closed
    server.advance(MOMENT_S)
    assert client.is_closed
    assert client.take() == b"", "the server sends nothing"
    assert items(server.connect(), b"work") == [b"one", b"two", b"three"]

    patient = MemoryServer()
    client = patient.connect()
    patient.advance(1_000_000)
    assert not client.is_closed, "without the setting no client is idle"


@pytest.mark.parametrize(
    "wait", [b"get work/t=60000", b"get work/t=60000/open", b"get work/peek/t=60000", b"monitor work 60"]
)
@pytest.mark.parametrize("is_served", [True, False])
def test_waiting_client_is_not_idle(wait: bytes, is_served: bool) -> None:
    server = MemoryServer(config=loads("clientTimeout = '10s'\nmaxOpenTransactions = 1"))
    client = server.connect()
    assert client.ask(wait + b"\r\n") == b""
    advance_until_just_before(server, 60)
    assert (client.take(), client.is_closed) == (b"", False)
    if is_served:
        put(server.connect(), b"work", b"item")
        assert client.take().startswith(value(wait.split()[1], b"item"))
    else:
        server.advance(MOMENT_S)
        assert client.take() == END
    advance_until_just_before(server, 10)
    assert not client.is_closed, "the idle time starts at the end of the wait"
    server.advance(MOMENT_S)
    assert client.is_closed


def server_with_simultaneous_timeouts(settings: str = "") -> MemoryServer:
    """Return a server where one client has opened 2500 items at the same time."""
    server = MemoryServer(
        config=loads(
            f"maxOpenTransactions = 10000\n[[queues]]\nname = 'work'\nopenTransactionTimeout = '5s'\n{settings}"
        )
    )
    client = server.connect()
    assert client.ask(b"".join(set_(b"work", b"%d" % number) for number in range(2500))) == STORED * 2500
    client.send(b"get work/open\r\n" * 2500)
    assert client.take().count(b"VALUE") == 2500
    return server


def test_simultaneous_timeouts_reach_error_queue_in_order() -> None:
    server = server_with_simultaneous_timeouts("maxRedeliveries = 1\nerrorQueue = 'bad'")
    server.advance(5)
    assert items(server.connect(), b"bad") == [b"%d" % number for number in range(2500)]


def test_waiter_gets_oldest_of_simultaneous_timeouts() -> None:
    server = server_with_simultaneous_timeouts()
    waiter = server.connect()
    assert waiter.ask(b"get work/t=60000\r\n") == b""
    server.advance(5)
    assert waiter.take() == value(b"work/t=60000", b"0")
