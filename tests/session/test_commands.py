"""Each command over a connection in memory, with a clock that the test advances."""

from __future__ import annotations

import re

import pytest

from kestrel.compiled import BUILD
from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.errors import StorageError
from kestrel.queues.manager import FLUSHED_PER_SLICE
from kestrel.testing.server import EPOCH_MS, MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import put, set_, stats, value
from tests.session.servers import fail, store_of


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(session_settings=Config(max_open_transactions=10))


@pytest.fixture
def client(server: MemoryServer) -> MemoryClient:
    return server.connect()


@pytest.fixture
def slow(storage: SteppedStorage) -> MemoryServer:
    """Return a server over a storage that the test steps."""
    return MemoryServer(storage, session_settings=Config(max_open_transactions=10))


def queue_names(client: MemoryClient) -> list[bytes]:
    return re.findall(rb"queue '(.*)' \{", client.ask(b"dump_stats\r\n"))


# set and get.


def test_items_come_out_in_put_order(client: MemoryClient) -> None:
    assert client.ask(set_(b"work", b"one") + set_(b"work", b"two") + set_(b"work", b"three")) == b"STORED\r\n" * 3
    assert (
        client.ask(b"get work\r\n" * 4)
        == value(b"work", b"one") + value(b"work", b"two") + value(b"work", b"three") + b"END\r\n"
    )


@pytest.mark.parametrize("data", [b"", b"\r\n", b"END\r\n", b"\x00\xff\x80", b"x" * 300_000])
def test_item_keeps_its_bytes(client: MemoryClient, data: bytes) -> None:
    assert client.ask(set_(b"work", data)) == b"STORED\r\n"
    assert client.ask(b"get work\r\n") == value(b"work", data)


def test_queue_names_are_case_sensitive(client: MemoryClient) -> None:
    put(client, b"work", b"lower")
    put(client, b"Work", b"upper")
    assert client.ask(b"get Work\r\nget WORK\r\nget work\r\n") == value(b"Work", b"upper") + b"END\r\n" + value(
        b"work", b"lower"
    )


def test_reply_repeats_requested_key_and_has_zero_flags(client: MemoryClient) -> None:
    assert client.ask(b"set work 77 0 3\r\none\r\n" * 2) == b"STORED\r\n" * 2
    assert client.ask(b"get work/t=5/what\r\n") == b"VALUE work/t=5/what 0 3\r\none\r\nEND\r\n"
    assert client.ask(b"get work/open\r\n") == b"VALUE work/open 0 3\r\none\r\nEND\r\n"


def test_reply_can_name_the_queue_without_options() -> None:
    client = MemoryServer(config=loads("echoRequestedKey = false\n")).connect()
    put(client, b"work", b"one", b"two")
    assert client.ask(b"get work/t=5/what\r\n") == value(b"work", b"one")
    assert client.ask(b"get work/open\r\n") == value(b"work", b"two")


def test_replies_keep_the_order_of_requests(client: MemoryClient) -> None:
    asked = b"version\r\n" + set_(b"work", b"one") + b"get work\r\nget work\r\ndelete work\r\nflush work\r\nversion\r\n"
    expected = b"VERSION 1.2.3\r\nSTORED\r\n" + value(b"work", b"one") + b"END\r\nDELETED\r\nEND\r\nVERSION 1.2.3\r\n"
    assert client.ask(asked) == expected


# noreply.


def test_set_with_noreply_stores_and_sends_nothing(client: MemoryClient) -> None:
    assert client.ask(b"set work 0 0 1 noreply\r\nx\r\n") == b""
    assert client.ask(b"get work\r\n") == value(b"work", b"x")


@pytest.mark.parametrize("line", [b"delete work noreply", b"flush_all noreply", b"flush_all 0 noreply"])
def test_removal_with_noreply_removes_and_sends_nothing(client: MemoryClient, line: bytes) -> None:
    put(client, b"work", b"x")
    assert client.ask(line + b"\r\n") == b""
    assert client.ask(b"get work\r\nversion\r\n") == b"END\r\nVERSION 1.2.3\r\n"


def test_other_replies_keep_their_order_around_noreply(client: MemoryClient) -> None:
    silent = b"set work 0 0 1 noreply\r\n%b\r\n"
    asked = silent % b"1" + b"get work\r\n" + silent % b"2" + set_(b"work", b"3") + b"delete other noreply\r\n"
    asked += b"get work\r\nflush_all noreply\r\nversion\r\n" + silent % b"4" + b"get work\r\n"
    expected = value(b"work", b"1") + b"STORED\r\n" + value(b"work", b"2") + b"VERSION 1.2.3\r\n" + value(b"work", b"4")
    assert client.ask(asked) == expected


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"set work x 0 3 noreply\r\none\r\n",
        b"set work 0 x 3 noreply\r\none\r\n",
        b"set a.b 0 0 3 noreply\r\none\r\n",
        b"delete a.b noreply\r\n",
    ],
)
def test_error_with_noreply_is_not_sent(server: MemoryServer, client: MemoryClient, request_bytes: bytes) -> None:
    assert client.ask(request_bytes + b"version\r\n") == b"VERSION 1.2.3\r\n"
    assert not client.is_closed
    assert queue_names(server.connect()) == []


def test_item_put_with_noreply_before_a_disconnect_is_stored(server: MemoryServer, client: MemoryClient) -> None:
    client.send(b"set work 0 0 1 noreply\r\nx\r\n")
    client.disconnect()
    assert server.connect().ask(b"get work\r\n") == value(b"work", b"x")


# Errors.


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"set work x 0 3\r\none\r\n",
        b"set work 0 x 3\r\none\r\n",
        b"set a.b 0 0 3\r\none\r\n",
        b"get\r\n",
        b"get /\r\n",
        b"get  work\r\n",
        b"get a.b\r\n",
        b"get work/t=soon\r\n",
        b"monitor work\r\n",
        b"monitor a.b 10\r\n",
        b"monitor work soon\r\n",
        b"delete\r\n",
        b"flush\r\n",
        b"flush_expired\r\n",
        b"confirm\r\n",
        b"confirm work\r\n",
        b"confirm work many\r\n",
    ],
)
def test_recoverable_error_keeps_the_connection(client: MemoryClient, request_bytes: bytes) -> None:
    reply = client.ask(request_bytes + b"version\r\n")
    assert re.fullmatch(rb"CLIENT_ERROR [^\r\n]+\r\nVERSION 1.2.3\r\n", reply)
    assert not client.is_closed


def test_too_large_item_is_refused_before_its_data_is_read(client: MemoryClient) -> None:
    assert client.ask(b"set work 0 0 16777217\r\n") == b"CLIENT_ERROR item too large\r\n"
    assert client.is_closed


def test_bad_data_chunk_stores_nothing(server: MemoryServer, client: MemoryClient) -> None:
    assert client.ask(b"set work 0 0 3\r\none__") == b"CLIENT_ERROR bad data chunk\r\n"
    assert server.connect().ask(b"get work\r\n") == b"END\r\n"


# Expiry.


def test_item_expires_after_its_seconds(server: MemoryServer, client: MemoryClient) -> None:
    client.ask(set_(b"work", b"brief", 2) + set_(b"work", b"lasting"))
    server.advance(2.0)
    assert client.ask(b"get work/peek\r\n") == value(b"work/peek", b"brief")
    server.advance(0.001)
    assert client.ask(b"get work/peek\r\n") == value(b"work/peek", b"lasting")
    assert client.ask(b"get work\r\n") == value(b"work", b"lasting")


def test_expiry_of_zero_means_never(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one")
    server.advance(10 * 365 * 24 * 3600)
    assert client.ask(b"get work\r\n") == value(b"work", b"one")


def test_negative_expiry_means_already_expired(client: MemoryClient) -> None:
    assert client.ask(set_(b"work", b"one", -1)) == b"STORED\r\n"
    assert client.ask(b"get work\r\n") == b"END\r\n"


def test_expiry_of_a_million_is_seconds_since_epoch(client: MemoryClient) -> None:
    client.ask(set_(b"work", b"of 1970", 1_000_000) + set_(b"work", b"of 11 days from now", 999_999))
    assert client.ask(b"get work\r\n") == value(b"work", b"of 11 days from now")


def test_put_drops_expired_items_at_the_head(server: MemoryServer, client: MemoryClient) -> None:
    client.ask(set_(b"work", b"brief", 1) * 2)
    server.advance(1.5)
    put(client, b"work", b"new")
    counted = stats(client)
    assert (counted["queue_work_items"], counted["queue_work_expired_items"]) == ("1", "2")


def test_flush_all_expired_returns_the_total_count(server: MemoryServer, client: MemoryClient) -> None:
    client.ask(set_(b"work", b"a", 1) + set_(b"other", b"b", 1) * 2 + set_(b"third", b"c"))
    server.advance(1.5)
    assert client.ask(b"flush_all_expired\r\n") == b"3\r\n"
    assert client.ask(b"flush_all_expired\r\n") == b"0\r\n"
    assert client.ask(b"get third\r\n") == value(b"third", b"c")


def test_open_read_does_not_expire(server: MemoryServer, client: MemoryClient) -> None:
    client.ask(set_(b"work", b"one", 1))
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"one")
    server.advance(1.5)
    assert client.ask(b"flush_expired work\r\n") == b"0\r\n"
    assert client.ask(b"confirm work 1\r\n") == b"END\r\n"


def test_item_that_expired_while_open_is_not_redelivered(server: MemoryServer, client: MemoryClient) -> None:
    client.ask(set_(b"work", b"one", 1) + b"get work/open\r\n")
    server.advance(1.5)
    assert client.ask(b"get work/abort\r\nget work\r\n") == b"END\r\nEND\r\n"


# Open reads.


def test_open_read_is_not_given_to_others(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one", b"two")
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"one")
    assert server.connect().ask(b"get work\r\nget work\r\n") == value(b"work", b"two") + b"END\r\n"


@pytest.mark.parametrize("options", [b"close/open", b"open/close"])
def test_close_runs_before_open_at_the_limit(options: bytes) -> None:
    client = MemoryServer(session_settings=Config(max_open_transactions=1)).connect()
    put(client, b"work", b"one", b"two")
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"one")
    assert client.ask(b"get work/%b\r\n" % options) == value(b"work/" + options, b"two")


def test_close_runs_even_without_a_next_item(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one")
    assert client.ask(b"get work/open\r\nget work/close/open\r\n") == value(b"work/open", b"one") + b"END\r\n"
    client.disconnect()
    assert server.connect().ask(b"get work\r\n") == b"END\r\n"


def test_close_without_open_read_is_ignored(client: MemoryClient) -> None:
    put(client, b"work", b"one")
    assert client.ask(b"get work/close\r\n") == b"END\r\n"
    assert client.ask(b"get work/close/open\r\n") == value(b"work/close/open", b"one")


def test_abort_returns_item_to_the_head(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one", b"two")
    assert client.ask(b"get work/open\r\nget work/abort\r\n") == value(b"work/open", b"one") + b"END\r\n"
    assert server.connect().ask(b"get work\r\nget work\r\n") == value(b"work", b"one") + value(b"work", b"two")


def test_close_and_abort_end_the_oldest_open_read(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one", b"two", b"three")
    client.ask(b"get work/open\r\n" * 3)
    assert client.ask(b"get work/close\r\nget work/abort\r\n") == b"END\r\nEND\r\n"
    other = server.connect()
    assert other.ask(b"get work\r\nget work\r\n") == value(b"work", b"two") + b"END\r\n"
    client.disconnect()
    assert other.ask(b"get work\r\n") == value(b"work", b"three")


def test_close_and_abort_affect_only_own_connection_and_queue(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one", b"two")
    put(client, b"other", b"three")
    second = server.connect()
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"one")
    assert second.ask(b"get other/open\r\n") == value(b"other/open", b"three")
    assert second.ask(b"get work/close\r\nget work/abort\r\nconfirm work 1\r\n") == b"END\r\nEND\r\nERROR\r\n"
    client.disconnect()
    assert second.ask(b"get work\r\nget work\r\n") == value(b"work", b"one") + value(b"work", b"two")


def test_plain_get_with_open_read_is_an_error_and_closes(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one", b"two")
    assert client.ask(b"get work/open\r\nget work\r\nversion\r\n") == value(b"work/open", b"one") + b"ERROR\r\n"
    assert client.is_closed
    assert server.connect().ask(b"get work\r\nget work\r\n") == value(b"work", b"one") + value(b"work", b"two")


def test_peek_with_open_read_shows_the_next_item(client: MemoryClient) -> None:
    put(client, b"work", b"one", b"two")
    reply = client.ask(b"get work/open\r\nget work/peek\r\n")
    assert reply == value(b"work/open", b"one") + value(b"work/peek", b"two")
    assert not client.is_closed


def test_open_above_the_limit_is_an_error_and_closes(server: MemoryServer) -> None:
    server.session_settings = Config(max_open_transactions=2)
    client = server.connect()
    put(client, b"work", b"one", b"two", b"three")
    expected = value(b"work/open", b"one") + value(b"work/open", b"two") + b"ERROR\r\n"
    assert client.ask(b"get work/open\r\n" * 3 + b"version\r\n") == expected
    assert client.is_closed
    assert server.connect().ask(b"get work\r\n") == value(b"work", b"one")


def test_limit_counts_per_connection_and_queue(server: MemoryServer) -> None:
    server.session_settings = Config(max_open_transactions=1)
    first, second = server.connect(), server.connect()
    put(first, b"work", b"one", b"two")
    put(first, b"other", b"three")
    reply = first.ask(b"get work/open\r\nget other/open\r\n")
    assert reply == value(b"work/open", b"one") + value(b"other/open", b"three")
    assert second.ask(b"get work/open\r\n") == value(b"work/open", b"two")


def test_open_above_limit_of_empty_queue_is_an_error(server: MemoryServer) -> None:
    server.session_settings = Config(max_open_transactions=1)
    client = server.connect()
    put(client, b"work", b"one")
    assert client.ask(b"get work/open\r\nget work/open/t=100\r\n") == value(b"work/open", b"one") + b"ERROR\r\n"


def test_confirm_ends_the_oldest_reads(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one", b"two", b"three")
    client.ask(b"get work/open\r\n" * 3)
    assert client.ask(b"confirm work 2\r\n") == b"END\r\n"
    client.disconnect()
    assert server.connect().ask(b"get work\r\nget work\r\n") == value(b"work", b"three") + b"END\r\n"


@pytest.mark.parametrize("count", [b"3", b"0", b"-1", b"2147483647"])
def test_confirm_of_more_than_open_or_zero_confirms_nothing(
    server: MemoryServer, client: MemoryClient, count: bytes
) -> None:
    put(client, b"work", b"one", b"two")
    client.ask(b"get work/open\r\n" * 2)
    assert client.ask(b"confirm work %b\r\nversion\r\n" % count) == b"ERROR\r\nVERSION 1.2.3\r\n"
    assert client.ask(b"confirm work 2\r\n") == b"END\r\n"
    client.disconnect()
    assert server.connect().ask(b"get work\r\n") == b"END\r\n"


# Whole queues.


def test_delete_removes_queue_and_accepts_missing_one(client: MemoryClient) -> None:
    put(client, b"work", b"one")
    assert client.ask(b"delete work\r\ndelete work\r\ndelete never\r\n") == b"DELETED\r\n" * 3
    assert queue_names(client) == []
    assert client.ask(b"get work\r\n") == b"END\r\n"


@pytest.mark.parametrize("ending", [b"get work/close\r\n", b"get work/abort\r\n"])
def test_stale_open_read_of_deleted_queue_affects_nothing(
    server: MemoryServer, client: MemoryClient, ending: bytes
) -> None:
    other = server.connect()
    put(other, b"work", b"old")
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"old")
    other.ask(b"delete work\r\n")
    put(other, b"work", b"new", b"newer")
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"new")
    assert client.ask(ending) == b"END\r\n"
    client.disconnect()
    assert (
        other.ask(b"get work\r\nget work\r\nget work\r\n")
        == value(b"work", b"new") + value(b"work", b"newer") + b"END\r\n"
    )


def test_flush_drops_items_but_no_open_read(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one", b"two", b"three")
    client.ask(b"get work/open\r\n")
    assert client.ask(b"flush work\r\n") == b"END\r\n"
    assert stats(client)["queue_work_items"] == "0"
    client.disconnect()
    assert server.connect().ask(b"get work\r\nget work\r\n") == value(b"work", b"one") + b"END\r\n"


@pytest.mark.parametrize(
    "referring",
    [
        set_(b"work", b"one"),
        b"get work\r\n",
        b"get work/open\r\n",
        b"get work/peek\r\n",
        b"get work/t=5\r\n",
        b"monitor work 1\r\n",
    ],
)
def test_request_creates_the_queue(server: MemoryServer, client: MemoryClient, referring: bytes) -> None:
    client.send(referring)
    assert queue_names(server.connect()) == [b"work"]


@pytest.mark.parametrize(
    ("referring", "reply"),
    [
        (b"delete work\r\n", b"DELETED\r\n"),
        (b"flush work\r\n", b"END\r\n"),
        (b"flush_expired work\r\n", b"0\r\n"),
        (b"confirm work 1\r\n", b"ERROR\r\n"),
        (b"get work/abort\r\n", b"END\r\n"),
        (b"get work/close\r\n", b"END\r\n"),
        (b"dump_stats work\r\n", b"queue 'work' {\r\n  \r\n}\r\nEND\r\n"),
    ],
)
def test_request_creates_no_queue(client: MemoryClient, referring: bytes, reply: bytes) -> None:
    assert client.ask(referring) == reply
    assert queue_names(client) == []
    assert stats(client)["queue_creates"] == "0"


# The server.


def test_shutdown_closes_without_a_reply_and_stops_server(server: MemoryServer, client: MemoryClient) -> None:
    assert client.ask(b"shutdown\r\nversion\r\n") == b""
    assert client.is_closed
    assert server.control.is_shut_down


# stats and dump_stats.

# fmt: off
SERVER_STATS = [
    "uptime", "time", "version", "curr_items", "total_items", "bytes", "reserved_memory_ratio", "curr_connections",
    "total_connections", "cmd_get", "cmd_set", "cmd_peek", "get_hits", "get_misses", "bytes_read", "bytes_written",
    "queue_creates", "queue_deletes", "queue_expires",
    "rejected_connections", "foreign_requests", "build",
]
QUEUE_STATS = [
    "items", "bytes", "total_items", "logsize", "expired_items", "mem_items", "mem_bytes", "age", "discarded",
    "waiters", "open_transactions", "transactions", "canceled_transactions", "total_flushes", "journal_rewrites",
    "journal_rotations",
]
# The order of Kestrel. Figures that Kestrel does not have follow the server's and each queue's.


def test_stats_come_in_the_order_of_kestrel(client: MemoryClient) -> None:
    put(client, b"work", b"one")
    names = list(stats(client))
    of_queue = [name for name in names if name.startswith("queue_work_")]
    assert names[: len(SERVER_STATS)] == SERVER_STATS
    assert [name.removeprefix("queue_work_") for name in of_queue][: len(QUEUE_STATS)] == QUEUE_STATS
    assert {"queue_work_age_msec", "queue_work_create_time"} <= set(of_queue)


def test_dump_stats_shows_figures_of_stats_without_prefix(client: MemoryClient) -> None:
    put(client, b"work", b"one")
    lines = client.ask(b"dump_stats\r\n").decode().split("\r\n")
    assert (lines[0], lines[-3:]) == ("queue 'work' {", ["}", "END", ""])
    assert all(re.fullmatch(r"  \w+=\S+", line) for line in lines[1:-3])
    names = [line.strip().split("=")[0] for line in lines[1:-3]]
    assert names[: len(QUEUE_STATS)] == QUEUE_STATS


def test_dump_stats_lists_the_named_queues(client: MemoryClient) -> None:
    put(client, b"a", b"one")
    put(client, b"b", b"one")
    put(client, b"c", b"one")
    dumped = client.ask(b"dump_stats c missing a\r\n")
    assert re.findall(rb"queue '(\w+)'", dumped) == [b"c", b"missing", b"a"]
    assert b"queue 'missing' {\r\n  \r\n}\r\n" in dumped


def test_server_counts_items_requests_and_connections(server: MemoryServer, client: MemoryClient) -> None:
    other = server.connect()
    put(client, b"work", b"one", b"three")
    put(client, b"other", b"x")
    client.ask(b"get work\r\nget work/peek\r\nget empty\r\ndelete other\r\n")
    counted = stats(client)
    assert counted["version"] == "1.2.3"
    assert counted["build"] == BUILD
    assert counted["time"] == str(EPOCH_MS // 1000)
    expected = {
        "curr_items": "1",
        "total_items": "3",
        "bytes": "5",
        "curr_connections": "2",
        "total_connections": "2",
        "cmd_get": "2",
        "cmd_set": "3",
        "cmd_peek": "1",
        "get_misses": "1",
        "queue_creates": "3",
        "queue_deletes": "1",
        "queue_expires": "0",
    }
    assert {name: counted[name] for name in expected} == expected
    other.disconnect()
    counted = stats(client)
    assert (counted["curr_connections"], counted["total_connections"]) == ("1", "2")


def test_bytes_read_and_written_are_counted(client: MemoryClient) -> None:
    def read_and_written(reply: bytes) -> list[int]:
        return [int(number) for number in re.findall(rb"STAT bytes_(?:read|written) (\d+)", reply)]

    first = client.ask(b"stats\r\n")
    versions = client.ask(b"version\r\n" * 10)
    second = client.ask(b"stats\r\n")
    assert read_and_written(first) == [len(b"stats\r\n"), 0]
    assert read_and_written(second) == [len(b"stats\r\n" * 2 + b"version\r\n" * 10), len(first + versions)]


def test_uptime_is_seconds_since_start(server: MemoryServer, client: MemoryClient) -> None:
    server.advance(61.5)
    server.step_wall_clock(-3_600_000)
    assert stats(client)["uptime"] == "61"


def test_queue_counts_items_and_transactions(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"1", b"22", b"333", b"4444")
    client.ask(b"get work/open\r\nget work/open\r\nget work/abort\r\n")
    waiter = server.connect()
    waiter.ask(b"get other/t=1000\r\n")
    counted = stats(client)
    expected = {
        "items": "3",  # 1, 333 and 4444
        "bytes": "8",
        "mem_items": "3",
        "mem_bytes": "8",
        "total_items": "4",
        "open_transactions": "1",
        "transactions": "2",
        "canceled_transactions": "1",
        "total_flushes": "0",
        "waiters": "0",
        "discarded": "0",
        "expired_items": "0",
    }
    assert {name: counted["queue_work_" + name] for name in expected} == expected
    assert counted["queue_other_waiters"] == "1"
    client.ask(b"flush work\r\n")
    flushed = stats(client)
    assert (flushed["queue_work_total_flushes"], flushed["queue_work_items"]) == ("1", "0")
    assert flushed["queue_work_open_transactions"] == "1"


def test_oldest_age_is_that_of_the_first_item(server: MemoryServer, client: MemoryClient) -> None:
    assert client.ask(b"get work\r\n") == b"END\r\n"
    assert stats(client)["queue_work_oldest_age_msec"] == "0"
    put(client, b"work", b"one")
    server.advance(0.25)
    put(client, b"work", b"two")
    server.advance(0.5)
    assert stats(client)["queue_work_oldest_age_msec"] == "750"
    client.ask(b"get work/open\r\n")
    assert stats(client)["queue_work_oldest_age_msec"] == "500"
    client.ask(b"get work/abort\r\n")
    assert stats(client)["queue_work_oldest_age_msec"] == "750"
    server.step_wall_clock(-3_600_000)
    assert stats(client)["queue_work_oldest_age_msec"] == "0"


def test_oldest_age_is_missing_while_head_is_on_disk(slow: MemoryServer) -> None:
    client = slow.connect()
    put(client, b"work", b"one")
    assert stats(client)["queue_work_oldest_age_msec"] == "0"
    store_of(slow, b"work").page_out()
    assert "queue_work_oldest_age_msec" not in stats(client)


def test_age_is_waiting_time_of_last_fetched_item(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"work", b"one")
    server.advance(0.25)
    put(client, b"work", b"two", b"three")
    assert stats(client)["queue_work_age"] == "0"
    client.ask(b"get work\r\n")
    counted = stats(client)
    assert (counted["queue_work_age"], counted["queue_work_age_msec"]) == ("250", "250")
    server.advance(0.5)
    assert stats(client)["queue_work_age"] == "250"
    client.ask(b"get work\r\n")
    assert stats(client)["queue_work_age"] == "500"
    client.ask(b"get work\r\n")
    assert stats(client)["queue_work_age"] == "0"


# A slow, full or failing storage.


@pytest.mark.parametrize(
    ("request_bytes", "reply", "head"),
    [
        (set_(b"work", b"three"), b"STORED\r\n", b"one"),
        (b"get work\r\n", value(b"work", b"one"), b"two"),
        (b"get work/open\r\n", value(b"work/open", b"one"), b"two"),
        (b"flush work\r\n", b"END\r\n", None),
        (b"flush_all\r\n", b"Flushed all queues.\r\n", None),
        (b"flush_expired work\r\n", b"0\r\n", None),
        (b"delete work\r\n", b"DELETED\r\n", None),
    ],
)
def test_reply_waits_until_its_record_is_safe(
    storage: SteppedStorage, slow: MemoryServer, request_bytes: bytes, reply: bytes, head: bytes | None
) -> None:
    client, other = slow.connect(), slow.connect()
    put(client, b"work", b"one", b"two")
    storage.holds_commits = True
    answer = client.ask(request_bytes)
    if storage.committing:
        assert answer == b""
        if head is not None:
            assert other.ask(b"get work/peek\r\n") == b"", "a peek also waits for changes that are not safe"
        storage.end_commits()
        answer = client.take()
        assert other.take() == (b"" if head is None else value(b"work/peek", head))
    else:
        assert request_bytes.startswith((b"flush_expired", b"delete"))
    assert answer == reply


@pytest.mark.parametrize("ending", [b"get work/close\r\n", b"get work/abort\r\n", b"confirm work 1\r\n"])
def test_reply_to_ending_a_read_waits_until_it_is_safe(
    storage: SteppedStorage, slow: MemoryServer, ending: bytes
) -> None:
    client = slow.connect()
    put(client, b"work", b"one")
    client.ask(b"get work/open\r\n")
    storage.holds_commits = True
    assert client.ask(ending) == b""
    storage.end_commits()
    assert client.take() == b"END\r\n"


def test_noreply_waits_for_no_commit(storage: SteppedStorage, slow: MemoryServer) -> None:
    client = slow.connect()
    storage.holds_commits = True
    assert client.ask(b"set work 0 0 1 noreply\r\nx\r\n" * 3 + b"version\r\n") == b"VERSION 1.2.3\r\n"
    storage.end_commits()
    assert client.ask(b"get work\r\n") == b""
    storage.end_commits()
    assert client.take() == value(b"work", b"x")


def test_failed_commit_sends_errors_only_for_requests_with_a_reply(storage: SteppedStorage, slow: MemoryServer) -> None:
    client = slow.connect()
    storage.holds_commits = True
    silent = b"set work 0 0 1 noreply\r\nx\r\n"
    assert client.ask(silent + set_(b"work", b"y") + silent + b"version\r\n") == b""
    storage.end_commits(error=StorageError("disk full"))
    reply = client.take()
    assert re.fullmatch(rb"SERVER_ERROR [^\r\n]+\r\nVERSION 1.2.3\r\n", reply)


@pytest.mark.parametrize("reading", [b"get work\r\n", b"get work/peek\r\n", b"get work/open\r\n"])
def test_unsafe_item_is_shown_to_no_client(storage: SteppedStorage, slow: MemoryServer, reading: bytes) -> None:
    writer, reader = slow.connect(), slow.connect()
    storage.holds_commits = True
    assert writer.ask(set_(b"work", b"one")) == b""
    assert reader.ask(reading) == b""
    storage.end_commits(error=StorageError("disk failed"))
    if storage.committing:
        storage.end_commits(error=StorageError("disk failed"))
    assert writer.take() == b"SERVER_ERROR disk failed\r\n"
    assert reader.take() == b"SERVER_ERROR disk failed\r\n"


def test_full_disk_refuses_only_puts(storage: SteppedStorage, slow: MemoryServer) -> None:
    client = slow.connect()
    put(client, b"work", b"one", b"two")
    storage.refusal = "disk full"
    assert client.ask(set_(b"work", b"three") + b"get work/open\r\nget work/close\r\nget work\r\n") == (
        b"SERVER_ERROR disk full\r\n" + value(b"work/open", b"one") + b"END\r\n" + value(b"work", b"two")
    )
    storage.refusal = None
    assert client.ask(set_(b"work", b"four") + b"get work\r\n") == b"STORED\r\n" + value(b"work", b"four")


def test_queue_that_cannot_be_reopened_answers_errors_until_it_can(storage: SteppedStorage, slow: MemoryServer) -> None:
    client = slow.connect()
    put(client, b"work", b"safe")
    storage.reopen_refusal = "the disk is gone"
    fail(slow, storage)
    assert client.ask(b"get work\r\n") == b"SERVER_ERROR the disk is gone\r\n"
    assert client.ask(set_(b"work", b"more")) == b"SERVER_ERROR the disk is gone\r\n"
    assert client.ask(set_(b"other", b"one")) == b"STORED\r\n"
    assert not client.is_closed
    storage.reopen_refusal = None
    assert client.ask(b"get work\r\n") == value(b"work", b"safe")


@pytest.mark.parametrize(("emptying", "reply"), [(b"delete work\r\n", b"DELETED\r\n"), (b"flush work\r\n", b"END\r\n")])
def test_removal_during_load_answers_waiting_get_with_end(slow: MemoryServer, emptying: bytes, reply: bytes) -> None:
    client, other = slow.connect(), slow.connect()
    put(client, b"work", b"one")
    store = store_of(slow)
    store.page_out()
    assert client.ask(b"get work\r\n") == b""
    assert other.ask(emptying) == reply
    store.end_fill()
    assert client.take() == b"END\r\n"
    assert client.ask(b"get work\r\n") == b"END\r\n"


# Thousands of queues.


@pytest.mark.parametrize("asked", [b"stats", b"dump_stats", b"dump_config", b"flush_all"])
def test_requests_about_all_queues_are_interleaved_with_others(
    server: MemoryServer, client: MemoryClient, asked: bytes
) -> None:
    names = [b"q%03d" % number for number in range(4 * FLUSHED_PER_SLICE)]
    for name in names:
        put(client, name, b"item")
    other = server.connect()
    client.send(asked + b"\r\n")
    server.tick()
    other.send(b"version\r\n")
    server.tick()
    server.tick()
    assert bytes(other.received) == b"VERSION 1.2.3\r\n"
    assert not client.received.endswith((b"END\r\n", b"Flushed all queues.\r\n"))
    reply = client.take()
    if asked == b"flush_all":
        assert reply == b"Flushed all queues.\r\n"
        assert [queue.store.items for queue in server.manager.all_queues()] == [0] * len(names)
    else:
        assert reply.endswith(b"END\r\n")
        assert [name for name in names if name not in reply] == []
