"""Limits: how much a queue holds, what happens beyond it, and what a connection may do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from kestrel.config.load import loads
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from kestrel.testing.threads import SteppedThreads
from tests.config_tables import queue
from tests.memcache_text import END, NOT_STORED, STORED, create, items, put, set_, stat, value
from tests.session.servers import store_of

ADDX_BYTES = 21
"""Bytes of an item's record before its data."""


def server_with(folder: Path | None, settings: str) -> MemoryServer:
    """Return a server whose queue "work" has these settings."""
    config = loads(f"maxOpenTransactions = 10\n[[queues]]\nname = 'work'\n{settings}\n")
    return MemoryServer(config=config, folder=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queues"


# Refused puts.


def test_put_is_refused_at_max_items(folder: Path) -> None:
    client = server_with(folder, "maxItems = 2").connect()
    puts = b"".join(set_(b"work", data) for data in (b"one", b"two", b"three"))
    assert client.ask(puts) == STORED * 2 + NOT_STORED
    assert client.ask(set_(b"other", b"item") * 3) == STORED * 3
    assert client.ask(b"get work\r\n") == value(b"work", b"one")
    assert client.ask(set_(b"work", b"four") + set_(b"work", b"five")) == STORED + NOT_STORED
    assert items(client, b"work") == [b"two", b"four"]
    assert client.ask(set_(b"work", b"six")) == STORED


def test_put_is_refused_at_or_over_max_size(folder: Path) -> None:
    client = server_with(folder, "maxSize = 10").connect()
    assert client.ask(set_(b"work", b"12345") + set_(b"work", b"67890")) == STORED * 2
    assert client.ask(set_(b"work", b"x")) == NOT_STORED, "the queue is at the limit"
    assert client.ask(set_(b"work", b"")) == NOT_STORED
    assert client.ask(b"get work\r\n") == value(b"work", b"12345")
    assert client.ask(set_(b"work", b"x" * 100)) == STORED, "the last item may pass the limit"
    assert client.ask(set_(b"work", b"x")) == NOT_STORED, "the queue is over the limit"
    assert client.ask(b"get work\r\n") == value(b"work", b"67890")
    assert client.ask(set_(b"work", b"x")) == NOT_STORED
    assert client.ask(b"get work\r\n") == value(b"work", b"x" * 100)
    assert client.ask(set_(b"work", b"x")) == STORED


@pytest.mark.parametrize("also", ["", "maxItems = 2", "discardOldWhenFull = true\nmaxItems = 2"])
def test_item_above_max_item_size_is_always_refused(folder: Path, also: str) -> None:
    client = server_with(folder, f"maxItemSize = 3\n{also}").connect()
    assert client.ask(set_(b"work", b"1234")) == NOT_STORED
    assert client.ask(set_(b"work", b"one") + set_(b"work", b"two")) == STORED * 2
    assert client.ask(set_(b"work", b"1234")) == NOT_STORED
    assert stat(client, b"work", "discarded") == "0"
    assert items(client, b"work") == [b"one", b"two"]


@pytest.mark.parametrize("limit", ["maxItems = 1", "maxSize = 3", "maxItemSize = 3"])
def test_refused_put_answers_not_stored_and_changes_nothing(folder: Path, limit: str) -> None:
    server = server_with(folder, limit)
    client = server.connect()
    assert client.ask(set_(b"work", b"one")) == STORED
    before = client.ask(b"dump_stats work\r\n")
    written = (folder / "work").read_bytes()
    assert client.ask(set_(b"work", b"refused") + b"version\r\n") == b"NOT_STORED\r\nVERSION 1.2.3\r\n"
    assert not client.is_closed
    assert client.ask(b"dump_stats work\r\n") == before
    assert (folder / "work").read_bytes() == written
    assert items(client, b"work") == [b"one"]


# discardOldWhenFull.


def test_full_queue_discards_from_its_head_until_there_is_room(folder: Path) -> None:
    client = server_with(folder, "discardOldWhenFull = true\nmaxItems = 3\nmaxSize = 10").connect()
    put(client, b"work", b"1", b"2", b"3")
    assert stat(client, b"work", "discarded") == "0"
    assert client.ask(set_(b"work", b"4")) == STORED
    assert (stat(client, b"work", "discarded"), stat(client, b"work", "items")) == ("1", "3")
    assert client.ask(set_(b"work", b"x" * 9)) == STORED
    assert stat(client, b"work", "discarded") == "2"
    assert client.ask(b"get work/peek\r\n") == value(b"work/peek", b"3")
    assert client.ask(set_(b"work", b"5")) == STORED
    assert stat(client, b"work", "discarded") == "4", "two fewer bring the queue below maxSize: 3 and 4 are discarded"
    assert items(client, b"work") == [b"x" * 9, b"5"]
    assert client.ask(set_(b"work", b"x" * 100) + set_(b"work", b"y" * 50)) == STORED * 2
    assert items(client, b"work") == [b"y" * 50]
    assert (stat(client, b"work", "total_items"), stat(client, b"work", "discarded")) == ("8", "5")


@pytest.mark.parametrize("again", [MemoryServer.restart, MemoryServer.crash])
def test_discarded_item_does_not_return_after_restart(folder: Path, again: Callable[[MemoryServer], None]) -> None:
    server = server_with(folder, "discardOldWhenFull = true\nmaxItems = 2")
    client = server.connect()
    put(client, b"work", b"1", b"2", b"3", b"4")
    assert (folder / "work").stat().st_size == 4 * (ADDX_BYTES + 1) + 2, (
        "four items, and two REMOVE records of one byte each"
    )
    again(server)
    client = server.connect()
    assert stat(client, b"work", "items") == "2"
    assert items(client, b"work") == [b"3", b"4"]


def test_full_queue_discards_head_that_is_only_on_disk(folder: Path) -> None:
    clock, threads = Clock(), SteppedThreads()
    storage = JournalStorage(bytes(folder), clock, threads, reserve_bytes=1)
    config = loads("[[queues]]\nname = 'work'\ndiscardOldWhenFull = true\nmaxItems = 4\nmaxMemorySize = 100\n")
    server = MemoryServer(storage, config=config, clock=clock)
    threads.run_all()
    client, reader = server.connect(), server.connect()
    large = [b"%d" % number * 60 for number in range(7)]
    assert client.ask(b"".join(set_(b"work", data) for data in large[:4])) == STORED * 4
    assert client.ask(b"get work\r\nget work\r\n") == value(b"work", large[0]) + value(b"work", large[1])
    assert (stat(client, b"work", "items"), stat(client, b"work", "mem_items")) == ("2", "0")
    client.send(b"".join(set_(b"work", data) for data in large[4:]))
    server.settle()
    reader.send(b"get work\r\n" * 5)
    server.settle()
    while threads:
        threads.run_all()
        server.settle()
    assert client.take() == STORED * 3
    assert stat(client, b"work", "discarded") == "1"
    assert reader.take() == b"".join(value(b"work", data) for data in large[3:]) + END


# Items that count toward the limits.


def test_open_reads_count_neither_in_items_nor_in_limits(folder: Path) -> None:
    for number, limit in enumerate(("maxItems = 2", "maxSize = 6")):
        client = server_with(folder / str(number), limit).connect()
        assert client.ask(set_(b"work", b"one") + set_(b"work", b"two")) == STORED * 2
        reply = client.ask(b"get work/open\r\nget work/open\r\n")
        assert reply == value(b"work/open", b"one") + value(b"work/open", b"two")
        figures = ("items", "bytes", "open_transactions")
        assert [stat(client, b"work", name) for name in figures] == ["0", "0", "2"]
        puts = b"".join(set_(b"work", data) for data in (b"six", b"ten", b"all"))
        assert client.ask(puts) == STORED * 2 + NOT_STORED
        assert [stat(client, b"work", name) for name in figures] == ["2", "6", "2"]
        assert client.ask(b"get work/close\r\n" + set_(b"work", b"all")) == END + NOT_STORED


@pytest.mark.parametrize("way", ["abort", "disconnect", "timeout", "restart", "crash"])
def test_returned_items_may_exceed_the_limits(folder: Path, way: str) -> None:
    server = server_with(folder, "maxItems = 2\nmaxSize = 6\nopenTransactionTimeout = '10s'")
    holder, client = server.connect(), server.connect()
    assert client.ask(set_(b"work", b"one") + set_(b"work", b"two")) == STORED * 2
    reply = holder.ask(b"get work/open\r\nget work/open\r\n")
    assert reply == value(b"work/open", b"one") + value(b"work/open", b"two")
    assert client.ask(set_(b"work", b"six") + set_(b"work", b"ten")) == STORED * 2
    match way:
        case "abort":
            assert holder.ask(b"get work/abort\r\n" * 2) == END * 2
        case "disconnect":
            holder.disconnect()
        case "timeout":
            server.advance(10)
        case "restart":
            server.restart()
        case "crash":
            server.crash()
    client = server.connect()
    assert stat(client, b"work", "items") == "4"
    assert client.ask(set_(b"work", b"all")) == NOT_STORED
    assert len({client.ask(b"get work\r\n") for _ in range(2)}) == 2
    assert client.ask(set_(b"work", b"all")) == NOT_STORED
    assert items(client, b"work") == [b"six", b"ten"]


def test_returned_items_may_exceed_limits_of_discarding_queue(folder: Path) -> None:
    client = server_with(folder, "maxItems = 2\ndiscardOldWhenFull = true").connect()
    assert client.ask(set_(b"work", b"one") + b"get work/open\r\n") == STORED + value(b"work/open", b"one")
    assert client.ask(set_(b"work", b"two") + set_(b"work", b"three") + b"get work/abort\r\n") == STORED * 2 + END
    assert (stat(client, b"work", "items"), stat(client, b"work", "discarded")) == ("3", "0")
    assert client.ask(set_(b"work", b"four")) == STORED
    assert items(client, b"work") == [b"three", b"four"]


@pytest.mark.parametrize("count", [2, 3000])
@pytest.mark.parametrize("is_discarding", [False, True])
@pytest.mark.parametrize("limit", ["maxItems", "maxSize"])
def test_expired_items_are_removed_before_limits_apply(
    folder: Path, limit: str, is_discarding: bool, count: int
) -> None:
    server = server_with(folder, f"{limit} = {count}\ndiscardOldWhenFull = {str(is_discarding).lower()}")
    client = server.connect()
    assert client.ask(set_(b"work", b"x", expiry=1) * count) == STORED * count
    server.advance(2)
    assert client.ask(set_(b"work", b"y")) == STORED
    assert items(client, b"work") == [b"y"]
    assert stat(client, b"work", "expired_items") == str(count)
    assert stat(client, b"work", "discarded") == "0"


def test_limits_apply_to_items_left_after_expiry(folder: Path) -> None:
    server = server_with(folder, "maxSize = 3000")
    client = server.connect()
    assert client.ask(set_(b"work", b"x", expiry=1) * 2999 + set_(b"work", b"y" * 3000)) == STORED * 3000
    server.advance(2)
    assert client.ask(set_(b"work", b"z")) == NOT_STORED
    assert items(client, b"work") == [b"y" * 3000]


def test_discarding_queue_moves_expired_items_and_counts_them_expired(folder: Path) -> None:
    server = server_with(folder, "maxSize = 3000\ndiscardOldWhenFull = true\nexpireToQueue = 'late'")
    client = server.connect()
    assert client.ask(set_(b"work", b"x", expiry=1) * 2999 + set_(b"work", b"y" * 3000)) == STORED * 3000
    server.advance(2)
    assert client.ask(set_(b"work", b"z")) == STORED
    assert items(client, b"work") == [b"z"]
    assert (stat(client, b"work", "expired_items"), stat(client, b"work", "discarded")) == ("2999", "1")
    assert items(client, b"late") == [b"x"] * 2999


@pytest.mark.parametrize("is_discarding", [False, True])
def test_expired_items_only_on_disk_are_removed_before_limits_apply(is_discarding: bool) -> None:
    storage = SteppedStorage()
    discarding = f"discardOldWhenFull = {str(is_discarding).lower()}"
    server = MemoryServer(storage, config=loads(queue("work", "maxItems = 2", discarding, "expireToQueue = 'late'")))
    client = server.connect()
    assert client.ask(set_(b"work", b"1", expiry=1) + set_(b"work", b"2", expiry=1)) == STORED * 2
    store = store_of(server)
    store.page_out()
    server.advance(2)
    first = client.ask(set_(b"work", b"3"))
    assert store.is_filling, "a put to a full queue checks whether the head has expired"
    store.end_fill()
    server.settle()
    if not is_discarding:  # the queue cannot know before the load; a refused producer tries again
        assert first == NOT_STORED
        first = client.ask(set_(b"work", b"3"))
    assert first == STORED
    assert items(client, b"work") == [b"3"]
    assert (stat(client, b"work", "expired_items"), stat(client, b"work", "discarded")) == ("2", "0")
    assert items(client, b"late") == [b"1", b"2"]


# Connections.

WRITES = [set_(b"work", b"refused"), b"flush work\r\n", b"flush_all\r\n", b"delete work\r\n", b"flush_expired work\r\n"]
READS = [b"get work\r\n", b"get work/t=100\r\n", b"get work/open\r\n", b"get work/peek\r\n", b"monitor work 1\r\n"]


@pytest.fixture
def server_at_limit(request: pytest.FixtureRequest) -> MemoryServer:
    """Return a server whose connection limit, set by the parameter, is 2."""
    return MemoryServer(config=loads(f"maxOpenTransactions = 10\n{request.param} = 2"))


@pytest.mark.parametrize("server_at_limit", ["connectionLimitRefuseWrites"], indirect=True)
def test_connection_over_write_limit_cannot_write(server_at_limit: MemoryServer) -> None:
    first, second = server_at_limit.connect(), server_at_limit.connect()
    assert first.ask(set_(b"work", b"one")) == second.ask(set_(b"work", b"two")) == STORED
    for request in WRITES:
        third = server_at_limit.connect()
        assert third.ask(b"get work/peek\r\n") == value(b"work/peek", b"one")
        assert third.ask(b"get work/open\r\nget work/abort\r\n") == value(b"work/open", b"one") + END
        reply = third.ask(request + b"version\r\n")
        assert reply.startswith(b"SERVER_ERROR ")
        assert b"VERSION" not in reply
        assert third.is_closed
    third = server_at_limit.connect()
    assert third.ask(b"flush_all_expired\r\n") == b"0\r\n"
    assert items(third, b"work") == [b"one", b"two"], "nothing was changed"
    for request in WRITES:
        assert not first.ask(request).startswith(b"SERVER_ERROR")


@pytest.mark.parametrize("server_at_limit", ["connectionLimitRefuseReads"], indirect=True)
def test_connection_over_read_limit_cannot_read(server_at_limit: MemoryServer) -> None:
    first, second = server_at_limit.connect(), server_at_limit.connect()
    assert second.ask(set_(b"work", b"one")) == STORED
    for number, request in enumerate(READS):
        third = server_at_limit.connect()
        assert third.ask(set_(b"work", b"%d" % number)) == STORED
        reply = third.ask(request + b"version\r\n")
        assert reply.startswith(b"SERVER_ERROR ")
        assert b"VERSION" not in reply
        assert third.is_closed
    third = server_at_limit.connect()
    assert third.ask(b"flush_expired work\r\n") == b"0\r\n"
    assert items(first, b"work") == [b"one", b"0", b"1", b"2", b"3", b"4"], "nothing was taken"


@pytest.mark.parametrize(
    ("server_at_limit", "request_"),
    [
        ("connectionLimitRefuseWrites", set_(b"work", b"one")),
        ("connectionLimitRefuseReads", b"get work\r\n"),
    ],
    indirect=["server_at_limit"],
)
def test_connection_limit_is_checked_when_connection_opens(server_at_limit: MemoryServer, request_: bytes) -> None:
    first, second, third = server_at_limit.connect(), server_at_limit.connect(), server_at_limit.connect()
    assert not first.ask(request_).startswith(b"SERVER_ERROR"), "it connected before the limit was reached"
    assert not second.ask(request_).startswith(b"SERVER_ERROR")
    first.disconnect()
    second.disconnect()
    fourth = server_at_limit.connect()
    assert not fourth.ask(request_).startswith(b"SERVER_ERROR"), "there are two again"
    fourth.disconnect()
    server_at_limit.reload(loads(""))
    assert third.ask(request_).startswith(b"SERVER_ERROR "), (
        "it stays refused when others leave or the limit is removed"
    )
    assert third.is_closed


# Clients.


def refused(server: MemoryServer, request: bytes) -> bool:
    """Return True if a new client that sends this gets an error and is disconnected."""
    client = server.connect()
    reply = client.ask(request + b"version\r\n")
    if not reply.startswith(b"SERVER_ERROR "):
        assert not client.is_closed
        client.disconnect()
        return False
    assert b"VERSION" not in reply
    assert client.is_closed
    return True


@pytest.mark.parametrize("listed", ['"somebody"', '["somebody", "somebody else"]', "[]"])
def test_client_not_on_enqueue_list_cannot_put(folder: Path, listed: str) -> None:
    server = server_with(folder, "")
    client = server.connect()
    assert client.ask(set_(b"work", b"one") + set_(b"work", b"two")) == STORED * 2
    server.restart(server_with(None, f"whiteListClientIdForEnqueue = {listed}").core.config)
    assert refused(server, set_(b"work", b"refused"))
    assert not refused(server, set_(b"other", b"item"))
    client = server.connect()
    reply = client.ask(b"get work/peek\r\nget work/open\r\n")
    assert reply == value(b"work/peek", b"one") + value(b"work/open", b"one")
    assert client.ask(b"get work/abort\r\n") == END
    assert items(client, b"work") == [b"one", b"two"]


@pytest.mark.parametrize("listed", ['"somebody"', '["somebody", "somebody else"]', "[]"])
def test_client_not_on_dequeue_list_cannot_get(folder: Path, listed: str) -> None:
    server = server_with(folder, f"whiteListClientIdForDequeue = {listed}")
    client = server.connect()
    assert client.ask(set_(b"work", b"one")) == STORED
    assert [refused(server, request) for request in READS] == [True] * len(READS)
    assert not refused(server, b"get other\r\n")
    assert client.ask(set_(b"work", b"two")) == STORED
    server.restart(loads(""))
    assert items(server.connect(), b"work") == [b"one", b"two"]


def test_enqueue_list_is_checked_on_parent_and_not_on_children() -> None:
    listed = {"open+x": "somebody", "listed": "somebody", "listed+x": "none"}
    config = "".join(queue(name, f"whiteListClientIdForEnqueue = '{known}'") for name, known in listed.items())
    server = MemoryServer(config=loads(config))
    client = server.connect()
    create(client, b"open+x", b"listed+x", b"listed+y")
    assert client.ask(set_(b"open", b"one")) == STORED
    assert items(client, b"open+x") == [b"one"]
    assert refused(server, set_(b"open+x", b"refused"))
    assert refused(server, set_(b"listed", b"refused"))
    assert not refused(server, set_(b"listed+x", b"two"))
    assert refused(server, set_(b"listed+y", b"refused")), "it inherits its parent's list"
    assert items(client, b"listed+x") == [b"two"]
    assert items(client, b"listed") == items(client, b"listed+y") == []
