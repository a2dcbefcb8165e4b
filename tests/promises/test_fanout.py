"""Fanout queues: a put to a parent also goes to each of its children."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path

import pytest

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.config_tables import alias, queue
from tests.memcache_text import END, NOT_STORED, STORED, create, items, put, set_, stat, value
from tests.promises.slow_server import SlowServer
from tests.session.servers import store_of

KIB = 1024

FANOUT_ONLY = queue("a", "fanoutOnly = true")


@pytest.fixture
def server(tmp_path: Path) -> MemoryServer:
    return MemoryServer(folder=tmp_path / "queues")


@pytest.fixture
def client(server: MemoryServer) -> MemoryClient:
    return server.connect()


def files(server: MemoryServer) -> set[str]:
    """Return the names of the journal files."""
    assert server.folder is not None
    return {path.name for path in server.folder.iterdir() if path.is_file()}


# Parents and children.


def test_put_to_parent_reaches_every_child(client: MemoryClient) -> None:
    create(client, b"a+x", b"a+y", b"a+y+z", b"ab+x")
    put(client, b"a", b"one", b"two")
    assert client.ask(b"get a+x/open\r\nget a+x/close\r\n") == value(b"a+x/open", b"one") + END
    assert client.ask(b"get a+y/open\r\nget a+y/abort\r\n") == value(b"a+y/open", b"one") + END
    assert items(client, b"a") == [b"one", b"two"]
    assert items(client, b"a+x") == [b"two"]
    assert items(client, b"a+y") == [b"one", b"two"]
    assert items(client, b"a+y+z") == [b"one", b"two"]
    assert items(client, b"ab+x") == []


@pytest.mark.parametrize("creation", [b"get a+x", b"get a+x/peek", b"get a+x/open", b"monitor a+x 1"])
def test_child_starts_empty(server: MemoryServer, client: MemoryClient, creation: bytes) -> None:
    put(client, b"a", b"one")
    creator = server.connect()
    creator.send(creation + b"\r\n")
    server.advance(1)
    assert creator.take() == END
    put(client, b"a", b"two")
    assert items(client, b"a+x") == [b"two"]
    assert items(client, b"a") == [b"one", b"two"]


def test_put_to_child_reaches_only_that_child(client: MemoryClient) -> None:
    create(client, b"a", b"a+x", b"a+y", b"a+x+z")
    put(client, b"a+x", b"one")
    assert [items(client, name) for name in (b"a", b"a+y", b"a+x+z")] == [[], [], []]
    assert items(client, b"a+x") == [b"one"]


def test_put_to_parent_reports_result_of_parent(tmp_path: Path) -> None:
    unlimited = queue("a+x", "maxItems = 'none'", "maxItemSize = 'none'")
    config = loads(queue("a", "maxItems = 1", "maxItemSize = 3") + unlimited)
    client = MemoryServer(config=config, folder=tmp_path / "queues").connect()
    create(client, b"a+x")
    assert client.ask(set_(b"a", b"long")) == NOT_STORED
    put(client, b"a", b"one")
    assert client.ask(set_(b"a", b"two")) == NOT_STORED
    assert items(client, b"a+x") == [b"long", b"one", b"two"]
    assert items(client, b"a") == [b"one"]


def test_full_child_skips_the_item(tmp_path: Path) -> None:
    limits = {"a+full": "maxItems = 1", "a+heavy": "maxSize = 3", "a+small": "maxItemSize = 3"}
    config = loads("".join(queue(name, limit) for name, limit in limits.items()))
    client = MemoryServer(config=config, folder=tmp_path / "queues").connect()
    create(client, b"a+full", b"a+heavy", b"a+small", b"a+z")
    put(client, b"a", b"one", b"three", b"two")
    assert items(client, b"a+full") == [b"one"]
    assert items(client, b"a+heavy") == [b"one"]
    assert items(client, b"a+small") == [b"one", b"two"]
    assert items(client, b"a+z") == items(client, b"a") == [b"one", b"three", b"two"]
    put(client, b"a", b"four")
    assert items(client, b"a+full") == [b"four"], "it has room again"


@pytest.mark.parametrize("failed", [b"a+x", b"a+z"])
@pytest.mark.parametrize("parents_settings", ["", "keepJournal = false", "fanoutOnly = true"])
def test_failed_child_makes_put_fail_and_store_nothing(failed: bytes, parents_settings: str) -> None:
    journaled = queue("a+x", "keepJournal = true") + queue("a+z", "keepJournal = true")
    storage = SteppedStorage()
    server = MemoryServer(storage, config=loads(queue("a", parents_settings) + journaled))
    client = server.connect()
    queues = [b"a", b"a+w", b"a+x", b"a+y", b"a+z"]
    create(client, *queues)
    store_of(server, failed).failure = storage.reopen_refusal = "disk failed"

    assert client.ask(set_(b"a", b"lost")).startswith(b"SERVER_ERROR ")
    assert not client.is_closed
    storage.reopen_refusal, storage.refusal = None, "disk full"
    assert client.ask(set_(b"a", b"lost")).startswith(b"SERVER_ERROR ")
    storage.refusal = None
    assert [items(client, name) for name in queues] == [[]] * len(queues)
    put(client, b"a", b"one")
    assert items(client, failed) == items(client, b"a+y") == [b"one"]


def test_put_to_parent_encodes_the_item_once(server: MemoryServer, client: MemoryClient) -> None:
    children = [b"a+%d" % number for number in range(10)]
    create(client, *children)
    item = bytes(256 * KIB)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        put(client, b"a", item)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The client's request may still be in memory.
    assert len(item) <= after - before < 3 * len(item), "eleven queues share one record"
    assert [items(client, name) for name in (b"a", *children)] == [[item]] * 11


def test_put_to_parent_serves_waiters_of_children(tmp_path: Path) -> None:
    server = MemoryServer(config=loads("maxOpenTransactions = 10"), folder=tmp_path / "queues")
    client = server.connect()
    requests = [b"get a+x/t=1000", b"get a+y/t=1000/open", b"get a+y/t=1000/peek", b"monitor a+z 1", b"get a/t=1000"]
    waiting = [server.connect() for _ in requests]
    assert [waiter.ask(request + b"\r\n") for waiter, request in zip(waiting, requests, strict=True)] == [b""] * 5
    put(client, b"a", b"one", b"two")
    assert [waiter.take() for waiter in waiting] == [
        value(b"a+x/t=1000", b"one"),
        value(b"a+y/t=1000/open", b"one"),
        value(b"a+y/t=1000/peek", b"two"),
        value(b"a+z", b"one") + value(b"a+z", b"two"),
        value(b"a/t=1000", b"one"),
    ]
    assert [items(client, name) for name in (b"a+x", b"a+y", b"a+z", b"a")] == [[b"two"], [b"two"], [], [b"two"]]


def test_parent_and_children_have_separate_journals_and_settings(tmp_path: Path) -> None:
    limits = queue("a", "maxItems = 2") + queue("a+more", "maxItems = 3")
    config = loads(limits + queue("a+memory", "keepJournal = false"))
    server = MemoryServer(config=config, folder=tmp_path / "queues")
    client = server.connect()
    create(client, b"a+heir", b"a+more", b"a+memory")
    for number in range(4):
        client.ask(set_(b"a", b"%d" % number))
    assert [stat(client, name, "items") for name in (b"a", b"a+heir", b"a+more", b"a+memory")] == ["2", "2", "3", "2"]
    assert files(server) == {"a", "a+heir", "a+more"}
    assert items(client, b"a+heir") == [b"0", b"1"]
    server.crash()
    client = server.connect()
    assert items(client, b"a") == [b"0", b"1"]
    assert items(client, b"a+heir") == []
    assert items(client, b"a+more") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("again", [MemoryServer.restart, MemoryServer.crash])
def test_restart_finds_children_on_disk(server: MemoryServer, client: MemoryClient, again: object) -> None:
    create(client, b"a", b"a+empty", b"a+x", b"a+y", b"b+x")
    put(client, b"a", b"one")
    assert items(client, b"a+empty") == [b"one"]
    assert client.ask(b"delete a+y\r\n") == b"DELETED\r\n"
    assert callable(again)
    again(server)
    client = server.connect()
    assert client.ask(set_(b"a", b"two") + set_(b"b", b"three")) == STORED * 2
    assert items(client, b"a") == items(client, b"a+x") == [b"one", b"two"]
    assert items(client, b"a+empty") == [b"two"]
    assert items(client, b"a+y") == []
    assert items(client, b"b+x") == [b"three"], "its parent did not exist"


def test_deleting_parent_keeps_its_children(server: MemoryServer, client: MemoryClient) -> None:
    create(client, b"a+x", b"a+y")
    put(client, b"a", b"one")
    assert client.ask(b"delete a\r\n") == b"DELETED\r\n"
    assert files(server) == {"a+x", "a+y"}
    put(client, b"a", b"two")
    assert items(client, b"a") == [b"two"]
    assert items(client, b"a+x") == [b"one", b"two"]
    assert client.ask(b"delete a\r\n") == b"DELETED\r\n"
    server.restart()
    client = server.connect()
    put(client, b"a", b"three")
    assert items(client, b"a+y") == [b"one", b"two", b"three"]


def test_flushing_parent_keeps_items_of_children(server: MemoryServer, client: MemoryClient) -> None:
    create(client, b"a+x")
    put(client, b"a", b"one")
    assert client.ask(set_(b"a", b"gone", expiry=1)) == STORED
    assert client.ask(b"flush a\r\n") == END
    assert items(client, b"a") == []
    assert stat(client, b"a+x", "items") == "2"
    server.advance(2)
    assert client.ask(b"flush_expired a\r\n") == b"0\r\n"
    assert stat(client, b"a+x", "items") == "2"
    server.crash()
    client = server.connect()
    assert items(client, b"a") == []
    assert items(client, b"a+x") == [b"one"]


# fanoutOnly.


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_fanout_only_parent_answers_stored_and_keeps_no_item(tmp_path: Path, is_on_disk: bool) -> None:
    config = loads(FANOUT_ONLY + queue("a+full", "maxItems = 1"))
    server = MemoryServer(config=config, folder=tmp_path / "queues" if is_on_disk else None)
    client, waiter = server.connect(), server.connect()
    waiter.send(b"get a/t=1000\r\n")
    put(client, b"a", b"gone")
    create(client, b"a+x", b"a+full")
    put(client, b"a", b"one", b"two")
    assert stat(client, b"a", "items") == stat(client, b"a", "bytes") == stat(client, b"a", "mem_items") == "0"
    assert items(client, b"a") == []
    server.advance(1)
    assert waiter.take() == END
    assert items(client, b"a+x") == [b"one", b"two"]
    assert items(client, b"a+full") == [b"one"]


def test_fanout_only_parent_counts_its_puts() -> None:
    server = MemoryServer(config=loads(FANOUT_ONLY + alias("all", "a")))
    client = server.connect()
    put(client, b"a", b"one")
    create(client, b"a+x")
    put(client, b"a", b"two", b"three")
    put(client, b"all", b"four")
    assert (stat(client, b"a", "total_items"), stat(client, b"a+x", "total_items")) == ("4", "3")
    parent = server.manager.known(b"a")
    assert parent is not None and parent.histograms.puts == 4
    assert server.manager.counters.total_items == 7


def test_fanout_only_parent_does_not_count_refused_puts() -> None:
    server = MemoryServer(config=loads(FANOUT_ONLY + "maxItemSize = 3\n"))
    client = server.connect()
    for names in ((b"a",), (b"a", b"a+x")):
        create(client, *names)
        assert client.ask(set_(b"a", b"four")) == b"NOT_STORED\r\n"
    assert (stat(client, b"a", "total_items"), server.manager.counters.total_items) == ("0", 0)


def test_fanout_only_parent_has_no_journal_file(tmp_path: Path) -> None:
    server = MemoryServer(config=loads(FANOUT_ONLY), folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"a", b"one")
    create(client, b"a", b"a+x")
    put(client, b"a", b"one")
    assert client.ask(b"flush a\r\n") == END
    assert files(server) == {"a+x"}
    server.restart()
    client = server.connect()
    put(client, b"a", b"two")
    create(client, b"a")
    assert files(server) == {"a+x"}
    assert items(client, b"a+x") == [b"one", b"two"]


def test_empty_parent_loses_journal_file_when_fanout_only_is_enabled(
    server: MemoryServer, client: MemoryClient
) -> None:
    create(client, b"a")
    assert files(server) == {"a"}
    server.reload(loads(FANOUT_ONLY))
    assert files(server) == set()
    server.reload(loads(""))
    put(client, b"a", b"one")
    server.reload(loads(FANOUT_ONLY))
    assert files(server) == {"a"}, "it still has an item"
    assert items(client, b"a") == [b"one"]
    put(client, b"a", b"gone")
    assert files(server) == set()


@pytest.mark.parametrize("are_open", [False, True])
@pytest.mark.parametrize("switch", [MemoryServer.reload, MemoryServer.restart, MemoryServer.crash])
def test_items_put_before_fanout_only_can_still_be_taken(
    server: MemoryServer, client: MemoryClient, switch: object, are_open: bool
) -> None:
    create(client, b"a+x")
    put(client, b"a", b"one", b"two", b"three")
    holder = server.connect()
    if are_open:
        server.session_settings = Config(max_open_transactions=3)
        assert holder.ask(b"get a/open\r\n" * 3).count(b"VALUE") == 3
    assert callable(switch)
    switch(server, loads(FANOUT_ONLY))
    client = server.connect()
    put(client, b"a", b"four")
    holder.disconnect()
    assert client.ask(b"get a\r\n") == value(b"a", b"one")
    server.restart()
    client = server.connect()
    assert client.ask(b"get a/open\r\n") == value(b"a/open", b"two")
    client.disconnect()
    client = server.connect()
    assert items(client, b"a") == [b"two", b"three"]
    assert items(client, b"a+x") == [b"one", b"two", b"three", b"four"]
    server.restart()
    client = server.connect()
    assert items(client, b"a") == []
    assert files(server) == {"a+x"}, "no items are left to keep in a journal"


@pytest.mark.parametrize("before", [(), (b"old",)])
@pytest.mark.parametrize("is_used_between", [True, False])
def test_parent_keeps_items_again_when_fanout_only_is_disabled(
    server: MemoryServer, client: MemoryClient, before: tuple[bytes, ...], is_used_between: bool
) -> None:
    create(client, b"a+x")
    for data in before:
        put(client, b"a", data)
    server.reload(loads(FANOUT_ONLY))
    if is_used_between:
        assert client.ask(b"get a/peek\r\n").endswith(END)
        put(client, b"a", b"gone")
    server.reload(loads(""))
    put(client, b"a", b"one")
    assert "a" in files(server)
    server.crash()
    client = server.connect()
    put(client, b"a", b"two")
    server.restart()
    assert items(server.connect(), b"a") == [*before, b"one", b"two"]


@pytest.mark.parametrize("has_children", [False, True])
def test_fanout_only_parent_refuses_item_above_max_item_size(has_children: bool) -> None:
    server = MemoryServer(config=loads(FANOUT_ONLY + "maxItemSize = 3\n"))
    client = server.connect()
    if has_children:
        assert client.ask(b"get a+x\r\n") == END
    assert client.ask(set_(b"a", b"four")) == NOT_STORED
    put(client, b"a", b"one")
    assert items(client, b"a+x") == [b"one"] * has_children


def test_parent_refuses_puts_until_its_journal_can_be_created(tmp_path: Path) -> None:
    disk = FaultyDisk()
    server = MemoryServer(config=loads(FANOUT_ONLY), folder=tmp_path / "queues", disk=disk)
    client = server.connect()
    put(client, b"a", b"gone")
    disk.fail("open", errno.EMFILE)
    server.reload(loads(""))
    assert client.ask(set_(b"a", b"lost")) == b"SERVER_ERROR the queue cannot be loaded: Too many open files\r\n"
    disk.mend()
    put(client, b"a", b"one")
    server.crash()
    assert items(server.connect(), b"a") == [b"one"]


def test_parent_with_overlong_name_does_not_stop_reload(tmp_path: Path) -> None:
    long_name = b"\xff" * 150  # each byte becomes two in the file name
    server = MemoryServer(config=loads("[default]\nfanoutOnly = true"), folder=tmp_path / "queues")
    client = server.connect()
    queues = [b"a", long_name, b"z"]
    assert client.ask(b"".join(set_(name, b"gone") for name in queues)) == STORED * 3
    server.control.new_config = loads(alias("both", "a", "z"))
    assert client.ask(b"reload\r\n") == b"Reloaded config.\r\n"
    put(client, b"both", b"one")
    assert [items(client, name) for name in (b"a", b"z")] == [[b"one"]] * 2
    assert client.ask(set_(long_name, b"lost")) == b"CLIENT_ERROR queue name is too long for a file name\r\n"
    put(client, b"a", b"two")
    server.crash()
    assert items(server.connect(), b"a") == [b"two"]


@pytest.mark.parametrize("then", ["a reload", "a put", "the timer"])
def test_journal_of_fanout_only_parent_is_removed_after_pending_sync(then: str, tmp_path: Path) -> None:
    synced = "expirationTimerFrequency = '1s'\n" + queue("a", "syncJournal = 0")
    fanout_only = loads(synced + "fanoutOnly = true")
    server = SlowServer(tmp_path / "queues", loads(synced))
    client = server.connect()
    assert server.ask(client, set_(b"a", b"one")) == STORED
    assert client.ask(b"get a\r\n") == b"", "the disk is slow"
    server.reload(fanout_only)
    server.end_threads()
    assert client.take() == value(b"a", b"one")
    if then == "a reload":
        server.reload(fanout_only)
    elif then == "a put":
        assert server.ask(client, set_(b"a", b"gone")) == STORED
    else:
        server.advance(1)
    server.end_threads()
    assert not (tmp_path / "queues" / "a").exists()


def test_masked_child_gets_no_items(server: MemoryServer, client: MemoryClient) -> None:
    create(client, b"a+x", b"a+y")
    server.reload(loads(alias("a+x", "mail")))
    put(client, b"a", b"one")
    put(client, b"a+x", b"two")
    server.reload(loads(""))
    put(client, b"a", b"three")
    assert items(client, b"a+x") == [b"three"], "it is a child again"
    assert items(client, b"a") == items(client, b"a+y") == [b"one", b"three"]
    assert items(client, b"mail") == [b"two"]
