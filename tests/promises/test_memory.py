"""maxTotalMemory: the memory that items and replies of all queues and connections may take together."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

import pytest

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import END, STORED, items, put, set_, stat, value
from tests.promises.slow_server import SlowServer

KIB: Final = 1024
MIB: Final = 1024 * KIB
LIMIT: Final = """
maxOpenTransactions = 1000
maxTotalMemory = "64KiB"
[[queues]]
name = "fleeting"
keepJournal = false
"""


def some(count: int) -> list[bytes]:
    """Return distinct items of one KiB."""
    return [b"%04d" % number * (KIB // 4) for number in range(count)]


@pytest.fixture
def server(tmp_path: Path) -> MemoryServer:
    return MemoryServer(config=loads(LIMIT), folder=tmp_path / "queues")


@pytest.fixture
def client(server: MemoryServer) -> MemoryClient:
    return server.connect()


def used(server: MemoryServer) -> int:
    server.settle()
    return server.manager.memory_limit.used_bytes


def test_items_beyond_max_total_memory_stay_ordered_on_disk(client: MemoryClient) -> None:
    put(client, b"a", *some(40))
    put(client, b"b", *some(200))
    assert stat(client, b"a", "mem_items") == "40"
    assert stat(client, b"b", "items") == "200"
    assert 15 <= int(stat(client, b"b", "mem_items")) <= 25
    assert items(client, b"b") == some(200)
    assert items(client, b"a") == some(40)


def test_limit_applies_to_items_loaded_at_start(server: MemoryServer, client: MemoryClient) -> None:
    for queue in (b"a", b"b", b"c", b"d"):
        put(client, queue, *some(50))
    server.restart()
    client = server.connect()
    assert used(server) < 64 * KIB + 50 * (KIB + 100), "one queue is loaded before its items are counted"
    assert [items(client, queue) for queue in (b"a", b"b", b"c", b"d")] == [some(50)] * 4


def test_reload_of_max_total_memory_applies_at_once(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"a", *some(60))
    server.reload(loads(LIMIT.replace("64KiB", "128KiB")))
    put(client, b"b", *some(30))
    assert stat(client, b"b", "mem_items") == "30"


def test_full_memory_refuses_puts_without_journal(client: MemoryClient) -> None:
    put(client, b"fleeting", *some(60))
    put(client, b"a", *some(3))
    assert client.ask(set_(b"fleeting", b"x")) == b"SERVER_ERROR the server's memory is full\r\n"
    assert client.ask(b"get fleeting\r\n" * 5) == b"".join(value(b"fleeting", data) for data in some(5))
    put(client, b"fleeting", b"x")


def test_held_replies_count_toward_memory() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=loads(LIMIT))
    client, reader = server.connect(), server.connect()
    put(client, b"fleeting", *some(1))
    before = used(server)
    assert client.ask(b"get fleeting/open\r\n") == value(b"fleeting/open", some(1)[0])
    assert used(server) == before, "an open read takes as much as its item did"
    put(client, b"a", *some(100))
    assert used(server) == before, "the storage of this test counts no memory"
    storage.holds_commits = True
    reader.send(b"get a\r\n" * 70)
    server.settle()
    assert used(server) > before + 60 * KIB, "the gets are not committed, so their replies are held"
    assert client.ask(set_(b"fleeting", b"x")).startswith(b"SERVER_ERROR")
    storage.end_commits()
    storage.holds_commits = False
    server.settle()
    assert reader.take().count(b"VALUE") == 70
    assert used(server) == before
    assert client.ask(b"get fleeting/close\r\n") == END
    assert used(server) == 0
    put(client, b"fleeting", b"x")


def test_open_reads_count_until_they_are_closed(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"a", *some(20))
    full = used(server)
    assert client.ask(b"get a/open\r\n" * 20).count(b"VALUE") == 20
    assert used(server) == full
    assert client.ask(b"confirm a 20\r\n") == END
    assert used(server) == 0


@pytest.mark.parametrize("end", [b"flush a\r\n", b"delete a\r\n", b"get a\r\n" * 30])
def test_removed_items_no_longer_count(server: MemoryServer, client: MemoryClient, end: bytes) -> None:
    put(client, b"a", *some(30))
    assert used(server) > 30 * KIB
    client.ask(end)
    assert used(server) == 0


@pytest.mark.parametrize("way", ["it is deleted", "its disk fails"])
def test_loads_of_a_lost_queue_do_not_count(way: str, tmp_path: Path) -> None:
    config = loads("maxTotalMemory = '1GiB'\n[[queues]]\nname = 'a'\nmaxMemorySize = '4KiB'\n")
    server = SlowServer(tmp_path / "queues", config)
    client = server.connect()
    for data in some(20):
        assert server.ask(client, set_(b"a", data)) == STORED
    assert client.ask(b"get a\r\n" * 4) == b"".join(value(b"a", data) for data in some(4))
    assert stat(client, b"a", "mem_items") == "0"
    assert len(server.threads) == 1, "a thread is about to read the next items"
    if way == "it is deleted":
        assert client.ask(b"delete a\r\n") == b"DELETED\r\n"
        server.end_threads()
    else:
        server.disk.fail("write", errno.EIO, times=1)
        assert client.ask(set_(b"a", b"lost")).startswith(b"SERVER_ERROR")
        server.end_threads()
        for data in some(20)[4:]:
            assert server.ask(client, b"get a\r\n") == value(b"a", data)
    assert used(server) == 0


def test_unread_replies_count_until_client_reads_them(server: MemoryServer, client: MemoryClient) -> None:
    put(client, b"fleeting", *some(1))
    before = used(server)
    reader = server.connect()
    put(reader, b"a", b"x" * MIB)
    reader.reads = False
    reader.send(b"get a\r\n")
    assert used(server) >= before + MIB
    assert client.ask(set_(b"fleeting", b"x")) == b"SERVER_ERROR the server's memory is full\r\n"
    reader.reads = True
    assert reader.take() == value(b"a", b"x" * MIB)
    assert used(server) == before
    put(client, b"fleeting", b"x")


def test_unread_replies_no_longer_count_after_disconnect(server: MemoryServer) -> None:
    client = server.connect()
    put(client, b"a", b"x" * MIB)
    client.reads = False
    client.send(b"get a\r\n")
    assert used(server) >= MIB
    client.disconnect()
    assert used(server) == 0


def test_unread_lists_leave_memory_to_others() -> None:
    server = MemoryServer(config=loads(LIMIT.replace("64KiB", "2MiB")))
    for number in range(700):
        server.manager.queue(b"%03d" % number + b"x" * 190)
    for request in (b"stats\r\n", b"dump_stats\r\n", b"dump_config\r\n") * 5:
        client = server.connect()
        client.reads = False
        client.send(request * 100)
    assert 0 < used(server) < MIB
    put(server.connect(), b"fleeting", b"x")


def test_slow_disk_keeps_memory_near_the_limit(tmp_path: Path) -> None:
    config = loads("maxTotalMemory = '1MiB'\n[default]\nsyncJournal = 0\n")
    server = SlowServer(tmp_path / "queues", config)
    clients = [server.connect() for _ in range(20)]
    for client in clients:
        client.send(set_(b"a", b"x" * (MIB // 4)))
        server.settle()
    assert used(server) < 3 * MIB, "nothing is safe yet, so everything counts"
    server.end_threads()
    replies = [client.take() for client in clients]
    taken = replies.count(STORED)
    assert 4 <= taken < 12
    assert replies[taken:] == [b"SERVER_ERROR the server's memory is full, and the disk is slow\r\n"] * (20 - taken)
    assert server.ask(clients[0], set_(b"a", b"last")) == STORED, "the disk has caught up"
    for _ in range(taken):
        assert server.ask(clients[0], b"get a\r\n") == value(b"a", b"x" * (MIB // 4))
    assert server.ask(clients[0], b"get a\r\n") == value(b"a", b"last")


def test_items_in_full_memory_can_move_to_queue_without_journal(tmp_path: Path) -> None:
    moving = "[[queues]]\nname = 'brief'\nkeepJournal = false\nmaxAge = '1s'\nexpireToQueue = 'fleeting'\n"
    server = MemoryServer(config=loads(LIMIT + moving), folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"brief", *some(60))
    assert client.ask(set_(b"brief", b"x")).startswith(b"SERVER_ERROR")
    server.advance(2)
    assert client.ask(b"get brief\r\n") == END
    server.advance(2)
    assert items(client, b"fleeting") == some(60)
    assert used(server) == 0
