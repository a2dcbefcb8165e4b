"""The text protocol over connections in memory, with a clock that the test advances."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import END
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
    store_of,
)
from tests.session.slow_storage import LimitedStorage

VERSION: Final = b":1.2.3\n"

REFUSED_PUT: Final = b"-Server not available for operation setItem\n"
NOT_THAT_MANY: Final = b"-Not that many transactions open.\n"


@pytest.fixture
def client(server: MemoryServer) -> MemoryClient:
    return server.connect("text")


@pytest.fixture
def other(server: MemoryServer) -> MemoryClient:
    return server.connect("text")


def put_(*items: bytes, queue: bytes = b"work", expiry: bytes = b"") -> bytes:
    """Return a request that puts these items."""
    return b"put %b%b:\n%b\n" % (queue, b" " + expiry if expiry else b"", b"".join(item + b"\n" for item in items))


def put(client: MemoryClient, *items: bytes, queue: bytes = b"work") -> None:
    assert client.ask(put_(*items, queue=queue)) == b"+%d\n" % len(items)


def lines(*items: bytes) -> bytes:
    """Return these items as a reply has them."""
    return b"".join(b":%b\n" % item for item in items)


def is_error(reply: bytes) -> bool:
    """Return True if the reply is exactly one error with a reason."""
    return reply[:1] == b"-" and len(reply) > 3 and reply.find(b"\n") == len(reply) - 1


# put.


@pytest.mark.parametrize("item", [b"\x00\xff\x80", b"\xc3\xa9", b" ", b":", b"get work", b"a\rb", b"x" * 300_000])
def test_item_keeps_its_bytes(client: MemoryClient, item: bytes) -> None:
    put(client, item)
    assert client.ask(b"get work\n") == lines(item)
    assert client.ask(b"put work:\r\n%b\r\r\n\r\n" % item) == b"+1\n"
    assert client.ask(b"get work\n") == lines(item + b"\r"), "of two CRs the second belongs to the line end"


@pytest.mark.parametrize(
    ("settings", "stored", "count"),
    [
        ("maxItems = 2", [b"1", b"2"], 2),
        ("maxSize = 4", [b"1", b"2", b"333"], 3),
        ("maxItemSize = 2", [b"1", b"2", b"4", b"5"], 4),
        ("maxItemSize = 3", [b"1", b"2", b"333", b"4", b"5"], 5),
        ("maxItems = 2\ndiscardOldWhenFull = true", [b"4", b"5"], 5),
        ("maxItems = 2\nmaxItemSize = 2", [b"1", b"2"], 2),
    ],
)
def test_put_continues_after_refused_item_and_counts_stored_ones(
    settings: str, stored: list[bytes], count: int
) -> None:
    server = serving(of_work(settings))
    assert server.connect("text").ask(put_(b"1", b"2", b"333", b"4", b"5")) == b"+%d\n" % count
    assert drained(server) == stored


def test_put_to_alias_counts_items_that_every_queue_stored() -> None:
    server = serving(
        "[[aliases]]\nname = 'all'\ndestinationQueues = ['large', 'small']\n[[queues]]\nname = 'small'\nmaxItems = 1"
    )
    client = server.connect("text")
    assert client.ask(put_(b"one", b"two", queue=b"all")) == b"+1\n"
    assert client.ask(b"get all 60000\npeek all\nflush all\ndelete all\nmonitor all 10\n") == b"*\n*\n+0\n+0\n*\n"
    assert (drained(server, b"large"), drained(server, b"small")) == ([b"one", b"two"], [b"one"])


def test_put_of_too_many_items_stores_none() -> None:
    server = serving("maxTextPutItems = 3")
    client = server.connect("text")
    assert client.ask(put_(*many(3))) == b"+3\n"
    first, *behind = client.ask(put_(*many(4)) + b"version\n").splitlines(keepends=True)
    assert is_error(first)
    assert behind == [VERSION]
    assert drained(server) == many(3)
    put(client, b"next")
    assert drained(server) == [b"next"], "the other items are not stored either"


def test_put_refused_midway_by_storage_reports_stored_count() -> None:
    storage = LimitedStorage(room=3)
    server = serving(storage=storage)
    client = server.connect("text")
    assert client.ask(put_(*many(5))) == b"+3\n"
    reply = client.ask(put_(*many(5)[3:]))
    assert is_error(reply)
    assert b"disk full" in reply
    assert not client.is_closed
    storage.room = None
    assert client.ask(put_(*many(5)[3:])) == b"+2\n"
    assert drained(server) == many(5)


def busy(put_s: float = 0.0005) -> tuple[MemoryServer, LimitedStorage]:
    """Return a server on which each put takes that many seconds."""
    storage = LimitedStorage()
    server = serving(storage=storage)
    storage.at_put = lambda: server.spend(put_s)
    return server, storage


def test_long_put_does_not_block_other_clients() -> None:
    server, _ = busy()
    client, other = server.connect("text"), server.connect("text")
    client.send(put_(*many(500)))
    other.send(put_(b"one", queue=b"other") + b"get other\n")
    for _ in range(5):
        server.tick()
    assert 0 < counts_in_memory(server) < 500, "the put is still running"
    assert bytes(other.received) == b"+1\n:one\n"
    assert client.take() == b"+500\n"
    assert drained(server) == many(500)


def test_disconnect_during_long_put_keeps_stored_items() -> None:
    server, _ = busy()
    client, other = server.connect("text"), server.connect("text")
    client.send(put_(*many(500)) + put_(b"behind"))
    for _ in range(3):
        server.tick()
    client.disconnect()
    server.settle()
    stored = counts_in_memory(server)
    assert 0 < stored < 500
    put(other, b"next")
    assert drained(server) == [*many(500)[:stored], b"next"]


def test_stop_during_long_put_reports_stored_count() -> None:
    server, _ = busy()
    client = server.connect("text")
    client.send(put_(*many(500)))
    server.tick()
    stopped: list[object] = []
    server.stop().addCallback(stopped.append)
    reply = client.take()
    assert stopped
    assert client.is_closed
    assert reply == b"+%d\n" % counts_in_memory(server)


@pytest.mark.parametrize("safe_commits", [0, 1], ids=["first", "later"])
def test_long_put_that_loses_items_reports_only_safe_ones(safe_commits: int) -> None:
    server, storage = busy()
    client = server.connect("text")
    storage.holds_commits = True
    client.send(put_(*many(500)))
    safe = 0
    for _ in range(safe_commits):
        while not storage.committing:
            server.tick()
        storage.end_commits()
        safe = len(store_of(server).safe)
    while not storage.committing:
        server.tick()
    server.tick()
    assert safe < counts_in_memory(server) < 500
    storage.room = 500
    lose_commits(storage)
    reply = client.take()
    assert reply == b"+%d\n" % safe if safe else is_error(reply)
    assert storage.room == 500, "no further item was put"
    assert not client.is_closed
    assert drained(server) == many(500)[:safe]


def test_long_put_checks_the_clock_after_each_item() -> None:
    server, _ = busy(put_s=0.01)
    client = server.connect("text")
    for child in range(100):
        assert client.ask(b"get work+%d\n" % child) == b"*\n"
    client.send(put_(*many(20)))
    stored = [counts_in_memory(server)]
    while not server.is_at_rest:
        server.tick()
        stored.append(counts_in_memory(server))
    assert max(after - before for before, after in pairwise([0, *stored])) == 1
    assert client.take() == b"+20\n"
    assert drained(server) == drained(server, b"work+99") == many(20)


def test_long_put_continues_in_new_queue_after_delete() -> None:
    server, _ = busy()
    client, other = server.connect("text"), server.connect("text")
    client.send(put_(*many(300)))
    server.tick()
    assert 0 < counts_in_memory(server) < 300
    assert other.ask(b"delete work\n") == b"+0\n"
    assert client.take() == b"+300\n"
    left = drained(server)
    assert 0 < len(left) < 300
    assert left == many(300)[-len(left) :]


# Expiry.


def test_item_expires_after_its_milliseconds(server: MemoryServer, client: MemoryClient) -> None:
    assert client.ask(put_(b"one", b"two", expiry=b"500")) == b"+2\n"
    server.advance(0.5)
    assert client.ask(b"get work\n") == b":one\n"
    server.advance(0.001)
    assert client.ask(b"get work\n") == b"*\n"


# get and open reads.


def test_get_leaves_its_item_open(server: MemoryServer, client: MemoryClient, other: MemoryClient) -> None:
    put(client, b"one", b"two")
    assert client.ask(b"get work\n") == b":one\n"
    assert counts(server) == (1, 1)
    assert other.ask(b"get work\n") == b":two\n"
    client.disconnect()
    assert drained(server) == [b"one"]


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (b"get work\n", b":00003\n"),
        (b"get work 1000\n", b":00003\n"),
        (b"peek work\n", b":00003\n"),
        (b"peek work 1000\n", b":00003\n"),
        (b"monitor work 0\n", b"*\n"),
        (b"monitor work 1000\n", b":00003\n:00004\n:00005\n*\n"),
    ],
)
def test_get_peek_and_monitor_confirm_open_reads_first(request_: bytes, reply: bytes, tmp_path: Path) -> None:
    server = serving(most_open=3, folder=tmp_path / "queues")
    client = server.connect("text")
    put(client, *many(6))
    assert client.ask(b"monitor work 1000\n") == lines(*many(3)) + b"*\n"
    assert counts(server) == (3, 3)
    assert client.ask(request_) == reply
    server.crash()
    assert drained(server) == many(6)[3:], "the first three are confirmed; the others come back"


@pytest.mark.parametrize("request_", [b"get work\n", b"get work 1000\n", b"peek work\n", b"monitor work 1000\n"])
def test_request_refused_for_status_still_confirms(server: MemoryServer, client: MemoryClient, request_: bytes) -> None:
    put(client, b"one", b"two")
    assert client.ask(b"get work\n") == b":one\n"
    set_status(server, b"Quiescent")
    assert is_error(client.ask(request_))
    assert counts(server) == (1, 0)
    client.disconnect()
    set_status(server, b"Up")
    assert drained(server) == [b"two"]


@pytest.mark.parametrize("count", [b"3", b"2147483647", b"0", b"-1"])
def test_confirm_of_more_than_open_or_zero_confirms_nothing(count: bytes) -> None:
    server = serving(most_open=2)
    client = server.connect("text")
    put(client, *many(2))
    assert client.ask(b"monitor work 1000\n") == lines(*many(2)) + b"*\n"
    assert client.ask(b"confirm work %b\n" % count) == NOT_THAT_MANY
    assert counts(server) == (0, 2)
    assert client.ask(b"confirm work 1\nconfirm work 1\nconfirm work 1\n") == b"+1\n+1\n" + NOT_THAT_MANY
    assert counts(server) == (0, 0)


@pytest.mark.parametrize("end", ["disconnect", "quit", "half-close"])
def test_disconnect_requeues_open_reads_in_order(end: str, tmp_path: Path) -> None:
    server = serving(most_open=4, folder=tmp_path / "queues")
    client = server.connect("text")
    put(client, *many(6))
    assert client.ask(b"monitor work 1000\n") == lines(*many(4)) + b"*\n"
    if end == "disconnect":
        client.disconnect()
    elif end == "quit":
        assert client.ask(b"quit\nversion\n") == b""
    else:
        client.half_close()
    server.settle()
    assert client.is_closed
    assert counts(server) == (6, 0)
    server.crash()
    assert drained(server) == many(6)


def test_timed_out_read_is_not_confirmed_by_next_get() -> None:
    server = serving(of_work("openTransactionTimeout = '5s'"))
    client = server.connect("text")
    put(client, b"one", b"two")
    assert client.ask(b"get work\n") == b":one\n"
    server.advance(5)
    assert counts(server) == (2, 0)
    assert client.ask(b"get work\n") == b":one\n"
    server.advance(5)
    assert client.ask(b"confirm work 1\n") == NOT_THAT_MANY
    assert drained(server) == [b"one", b"two"]


# monitor.


def test_monitor_sends_items_as_they_come_and_star_at_end(
    server: MemoryServer, client: MemoryClient, other: MemoryClient
) -> None:
    put(other, b"one")
    assert client.ask(b"monitor work 1000\n") == b":one\n"
    put(other, b"two", b"three")
    assert client.take() == b":two\n:three\n"
    server.advance(1 - MOMENT_S)
    assert client.take() == b""
    server.advance(MOMENT_S)
    assert client.take() == b"*\n"
    assert counts(server) == (0, 3)
    put(other, b"four")
    assert client.take() == b""


def test_open_read_limit_of_one_allows_consecutive_gets() -> None:
    server = serving(most_open=1)
    client = server.connect("text")
    put(client, *many(3))
    assert client.ask(b"get work\nget work\nmonitor work 1000\nget work\n") == lines(*many(3)) + b"*\n*\n"


# Replies wait until the change that they report is safe.


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (put_(b"three"), b"+1\n"),
        (put_(b"three", b"four"), b"+2\n"),
        (b"get work\n", b":two\n"),
        (b"peek work\n", b":two\n"),
        (b"monitor work 0\n", b"*\n"),
        (b"monitor work 1000\n", b":two\n*\n"),
        (b"confirm work 1\n", b"+1\n"),
        (b"flush work\n", b"+0\n"),
        (b"flush_all\n", b"+0\n"),
        (b"flush_expired late\n", b"+1\n"),
        (b"flush_all_expired\n", b"+1\n"),
    ],
)
def test_reply_waits_until_its_change_is_safe(
    slow: MemoryServer, storage: SteppedStorage, request_: bytes, reply: bytes
) -> None:
    client = slow.connect("text")
    put(client, b"one", b"two")
    assert client.ask(b"get work\n" + put_(b"expired", queue=b"late", expiry=b"-1")) == b":one\n+1\n"
    storage.holds_commits = True
    assert client.ask(request_) == b""
    slow.advance(1)
    assert client.take() == b""
    end_commits(slow, storage)
    assert client.take() == reply


@pytest.mark.parametrize("request_", [b"get work 1000\n", b"peek work 1000\n", b"monitor work 1000\n"])
def test_waiting_request_fails_at_once_if_its_confirm_is_lost(
    slow: MemoryServer, storage: SteppedStorage, request_: bytes
) -> None:
    client, other = slow.connect("text"), slow.connect("text")
    put(other, b"one")
    assert client.ask(b"get work\n") == b":one\n"
    storage.holds_commits = True
    assert client.ask(request_) == b""
    lose_commits(storage)
    reply = client.take()
    assert is_error(reply.removeprefix(b":one\n") if request_.startswith(b"monitor") else reply)
    slow.advance(1)
    assert client.take() == b""
    client.disconnect()
    assert drained(slow) == [b"one"]


@pytest.mark.parametrize("request_", [b"get work\n", b"peek work\n", b"monitor work 1000\n", b"confirm work 1\n"])
def test_confirm_of_failed_queue_is_error_once(slow: MemoryServer, storage: SteppedStorage, request_: bytes) -> None:
    client = slow.connect("text")
    put(client, b"one", b"two")
    assert client.ask(b"get work\n") == b":one\n"
    fail(slow, storage)
    assert is_error(client.ask(request_))
    assert client.ask(b"get work\nget work\nget work\n") == b":one\n:two\n*\n"


# Status.


def set_status(server: MemoryServer, status: bytes) -> None:
    assert server.connect().ask(b"status %b\r\n" % status) == END


@pytest.mark.parametrize("status", [b"ReadOnly", b"Quiescent"])
def test_read_only_refuses_changes_and_connection_stays(server: MemoryServer, status: bytes) -> None:
    client = server.connect("text")
    put(client, b"one", b"two")
    set_status(server, status)
    assert client.ask(put_(b"three") + b"version\n") == REFUSED_PUT + VERSION
    assert client.ask(b"flush work\n") == b"-Server not available for operation flush\n"
    assert client.ask(b"delete work\n") == b"-Server not available for operation delete\n"
    for request in (b"flush_all\n", b"flush_expired work\n"):
        assert is_error(client.ask(request))
    assert client.ask(b"flush_all_expired\n") == b"+0\n"
    assert not client.is_closed
    set_status(server, b"Up")
    assert drained(server) == [b"one", b"two"]


# Other commands and errors.


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (b"\n", b"-Unknown command: \n"),
        (b"nonsense work\n", b"-Unknown command: nonsense\n"),
        (b"get\n", b"-Queue name required.\n"),
        (b"put\n", b"-Queue name required.\n"),
        (b"delete\n", b"-Queue name required.\n"),
        (b"flush\n", b"-Queue name required.\n"),
        (b"flush_expired\n", b"-Queue name required.\n"),
        (b"monitor work\n", b"-Queue name & timeout required.\n"),
        (b"confirm work\n", b"-Queue name & count required.\n"),
        (b"get work soon\n", b"-Error parsing timeout.\n"),
        (b"peek work soon\n", b"-Error parsing timeout.\n"),
        (b"monitor work soon\n", b"-Error parsing timeout.\n"),
        (b"confirm work all\n", b"-Error parsing count.\n"),
    ],
)
def test_invalid_request_is_an_error_and_connection_stays(client: MemoryClient, request_: bytes, reply: bytes) -> None:
    assert client.ask(request_ + b"version\n") == reply + VERSION


def test_invalid_request_confirms_nothing(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"one", b"two")
    assert client.ask(b"get work\nget work soon\nmonitor work\npeek work soon\n").startswith(b":one\n-")
    assert counts(server) == (1, 1)


def test_lists_of_figures_and_settings_end_in_a_star(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"one", b"two")
    *figures, star = client.ask(b"stats\n").splitlines()
    assert star == b"*"
    assert all(line[:1] == b":" for line in figures)
    assert {b":curr_items 2", b":queue_work_items 2", b":queue_work_bytes 6", b":version 1.2.3"} <= set(figures)
    *settings, star = client.ask(b"dump_config work\n").splitlines()
    assert star == b"*"
    assert b":work maxItems none" in settings
    assert client.ask(b"reload\n") == b"+0\n"
    assert server.control.reloads == 1
