"""Timeouts: open reads that are held for too long, connections that ask for nothing, and reads that are stale."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.promises.speaking import END, STORED, items, set_, stat, value

ERROR: Final = b"ERROR\r\n"

MOMENT_S: Final = 2**-10
"""The least time there is: about a millisecond, without rounding."""


def config_of(settings: str, *, most_open: int = 100) -> Config:
    """Settings of the queue "work"."""
    return loads(f"maxOpenTransactions = {most_open}\n[[queues]]\nname = 'work'\n{settings}\n")


def served(settings: str, *, most_open: int = 100, folder: Path | None = None) -> MemoryServer:
    return MemoryServer(config=config_of(settings, most_open=most_open), folder=folder)


def put(client: MemoryClient, *datas: bytes) -> None:
    assert client.ask(b"".join(set_(b"work", data) for data in datas)) == STORED * len(datas)


def open_(client: MemoryClient, *datas: bytes) -> None:
    """Open reads, which must be of these items."""
    for data in datas:
        assert client.ask(b"get work/open\r\n") == value(b"work", data)


def counts(client: MemoryClient) -> tuple[int, int]:
    """How many items the queue has, and how many open reads. To ask is no use of the queue."""
    return int(stat(client, b"work", "items")), int(stat(client, b"work", "open_transactions"))


def last(server: MemoryServer, seconds: float) -> None:
    """Let all but a moment of that time go by."""
    server.advance(seconds - MOMENT_S)


# Reads of a queue that was deleted.


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("is_there_again", [True, False])
def test_a_confirm_that_counts_a_read_of_a_deleted_queue_is_an_error_and_confirms_nothing(
    count: int, is_there_again: bool
) -> None:
    server = served("")
    client, other = server.connect(), server.connect()
    put(other, b"one", b"two")
    open_(client, b"one", b"two")
    assert other.ask(b"delete work\r\n") == b"DELETED\r\n"
    if is_there_again:
        put(other, b"three")
        open_(client, b"three")
    assert client.ask(b"confirm work %d\r\n" % count) == ERROR
    assert not client.is_closed
    if is_there_again:
        assert counts(other) == (0, 1), "it is still open"
        client.disconnect()
        assert items(other, b"work") == [b"three"]
    else:
        assert other.ask(b"dump_stats work\r\n") == b"queue 'work' {\r\n  \r\n}\r\nEND\r\n"


# openTransactionTimeout.


def test_an_open_read_goes_back_to_the_head_when_its_time_is_over(tmp_path: Path) -> None:
    server = served("openTransactionTimeout = '5s'", folder=tmp_path / "queues")
    client, monitor, other = server.connect(), server.connect(), server.connect()
    put(other, b"one", b"two", b"behind")
    open_(client, b"one")
    server.advance(1)
    assert monitor.ask(b"monitor work 60 1\r\n") == value(b"work", b"two") + END
    last(server, 4)
    assert counts(other) == (1, 2)
    server.advance(MOMENT_S)
    assert counts(other) == (2, 1), "exactly then, though nobody used the queue"
    last(server, 1)
    assert counts(other) == (2, 1)
    server.advance(MOMENT_S)
    assert counts(other) == (3, 0)
    assert items(other, b"work") == [b"two", b"one", b"behind"], "each went to the head as its time was over"

    put(other, b"waited for")
    open_(client, b"waited for")
    server.advance(2)
    waiter, next_one = server.connect(), server.connect()
    for each in (waiter, next_one):
        assert each.ask(b"get work/t=60000/open\r\n") == b""
    last(server, 3)
    assert waiter.take() == b""
    server.advance(MOMENT_S)
    assert waiter.take() == value(b"work", b"waited for")
    last(server, 5)
    assert next_one.take() == b""
    server.advance(MOMENT_S)
    assert next_one.take() == value(b"work", b"waited for"), "its time began anew"
    assert next_one.ask(b"get work/close\r\n") == END
    server.advance(60)
    assert counts(other) == (0, 0), "what was finished does not come back"
    server.crash()
    assert items(server.connect(), b"work") == []


@pytest.mark.parametrize("is_after_a_crash", [False, True])
def test_open_reads_that_time_out_together_come_back_in_the_order_in_which_they_were_taken(
    is_after_a_crash: bool, tmp_path: Path
) -> None:
    server = served("openTransactionTimeout = '5s'", folder=tmp_path / "queues")
    first, second = server.connect(), server.connect()
    taken = [b"%d" % number for number in range(20)]
    put(first, *taken, b"behind")
    for number, data in enumerate(taken):
        open_((first, second)[number % 2], data)
    server.advance(5)
    assert counts(first) == (21, 0)
    if is_after_a_crash:
        server.crash()
    assert items(server.connect(), b"work") == [*taken, b"behind"]


@pytest.mark.parametrize("option", [b"close", b"abort"])
def test_a_close_of_a_read_that_timed_out_touches_nothing(option: bytes) -> None:
    server = served("openTransactionTimeout = '5s'")
    client, other = server.connect(), server.connect()
    request = b"get work/%b\r\n" % option
    put(client, b"one", b"two")
    open_(client, b"one")
    server.advance(5)
    assert client.ask(request) == END
    assert counts(other) == (2, 0)

    open_(client, b"one")
    server.advance(5)
    open_(client, b"one", b"two")
    assert client.ask(request) == END
    assert counts(other) == (0, 2), "what it opened since is still open"
    assert client.ask(request) == END
    assert counts(other) == ((0, 1) if option == b"close" else (1, 1))
    assert not client.is_closed
    client.disconnect()
    assert items(other, b"work") == ([b"two"] if option == b"close" else [b"two", b"one"])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_confirm_that_counts_a_read_that_timed_out_is_an_error_and_confirms_nothing(count: int) -> None:
    server = served("openTransactionTimeout = '5s'")
    client, other = server.connect(), server.connect()
    put(client, b"one", b"two", b"three")
    open_(client, b"one")
    server.advance(3)
    open_(client, b"two", b"three")
    server.advance(2)
    assert counts(other) == (1, 2)
    assert client.ask(b"confirm work %d\r\n" % count) == ERROR
    assert not client.is_closed
    assert counts(other) == (1, 2)
    client.disconnect()
    assert items(other, b"work") == [b"two", b"three", b"one"]


def test_a_read_that_timed_out_frees_its_place_under_the_limit() -> None:
    server = served("openTransactionTimeout = '5s'", most_open=2)
    client = server.connect()
    put(client, b"one", b"two", b"three")
    for _ in range(3):
        open_(client, b"one", b"two")
        server.advance(5)
        assert counts(client) == (3, 0)
    assert client.ask(b"get work\r\n") == value(b"work", b"one"), "a plain get is allowed: nothing is open"
    assert client.ask(b"monitor work 10\r\n") == value(b"work", b"two") + value(b"work", b"three") + END
    put(client, b"four")
    assert client.ask(b"get work/open\r\n") == ERROR, "both places are taken"
    assert client.is_closed


def test_a_read_that_timed_out_counts_as_an_abort() -> None:
    server = served("openTransactionTimeout = '5s'\nmaxRedeliveries = 3\nerrorQueue = 'bad'")
    client, other = server.connect(), server.connect()
    put(client, b"item", b"next")
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
def test_a_reload_of_open_transaction_timeout_holds_for_reads_that_are_open(
    before: str, after: str, is_back_after_s: int | None
) -> None:
    server = served(f"openTransactionTimeout = '{before}'")
    client, other = server.connect(), server.connect()
    put(client, b"item")
    open_(client, b"item")
    server.advance(10)
    assert counts(other) == (0, 1)
    server.control.new_config = config_of(f"openTransactionTimeout = '{after}'")
    assert other.ask(b"reload\r\n") == b"Reloaded config.\r\n"
    if is_back_after_s is None:
        server.advance(1_000_000)
        assert counts(other) == (0, 1)
        return
    if is_back_after_s > 10:
        last(server, is_back_after_s - 10)
        assert counts(other) == (0, 1)
        server.advance(MOMENT_S)
    assert counts(other) == (1, 0)
    open_(client, b"item")
    server.advance(100)
    assert counts(other) == (1, 0), "and for those that are opened from now on"


# clientTimeout.


def test_an_idle_connection_is_closed_after_client_timeout() -> None:
    server = MemoryServer(config=loads("clientTimeout = '10s'\nmaxOpenTransactions = 2"))
    silent = server.connect()
    last(server, 10)
    assert not silent.is_closed
    server.advance(MOMENT_S)
    assert silent.is_closed, "it never asked for anything"

    client = server.connect()
    put(client, b"one", b"two", b"three")
    open_(client, b"one", b"two")
    for _ in range(3):
        server.advance(6)
        assert client.ask(b"version\r\n").startswith(b"VERSION ")
    last(server, 10)
    assert not client.is_closed
    server.advance(MOMENT_S)
    assert client.is_closed
    assert client.take() == b"", "without a word"
    assert items(server.connect(), b"work") == [b"one", b"two", b"three"]

    patient = MemoryServer()
    client = patient.connect()
    patient.advance(1_000_000)
    assert not client.is_closed, "without the setting nobody is idle"


@pytest.mark.parametrize(
    "wait", [b"get work/t=60000", b"get work/t=60000/open", b"get work/peek/t=60000", b"monitor work 60"]
)
@pytest.mark.parametrize("is_served", [True, False])
def test_waiting_is_not_idle(wait: bytes, is_served: bool) -> None:
    server = MemoryServer(config=loads("clientTimeout = '10s'\nmaxOpenTransactions = 1"))
    client = server.connect()
    assert client.ask(wait + b"\r\n") == b""
    last(server, 60)
    assert (client.take(), client.is_closed) == (b"", False)
    if is_served:
        put(server.connect(), b"item")
        assert client.take().startswith(value(b"work", b"item"))
    else:
        server.advance(MOMENT_S)
        assert client.take() == END
    last(server, 10)
    assert not client.is_closed, "it is idle from the end of its waiting"
    server.advance(MOMENT_S)
    assert client.is_closed


def many_that_time_out_together(settings: str = "") -> MemoryServer:
    """2500 items that one client has opened at the same time."""
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


def test_reads_that_time_out_together_reach_the_error_queue_in_their_order() -> None:
    server = many_that_time_out_together("maxRedeliveries = 1\nerrorQueue = 'bad'")
    server.advance(5)
    assert items(server.connect(), b"bad") == [b"%d" % number for number in range(2500)]


def test_who_waits_gets_the_oldest_of_the_reads_that_time_out_together() -> None:
    server = many_that_time_out_together()
    waiter = server.connect()
    assert waiter.ask(b"get work/t=60000\r\n") == b""
    server.advance(5)
    assert waiter.take() == value(b"work", b"0")
