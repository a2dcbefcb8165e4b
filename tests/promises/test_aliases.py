"""Aliases: a put to an alias goes to its destination queues."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.config_tables import alias, queue
from tests.memcache_text import END, NOT_STORED, STORED, create, is_missing, items, put, set_, stat, stats, value
from tests.session.servers import store_of

NO_ALIAS = "maxOpenTransactions = 10\n"
ALIAS = NO_ALIAS + alias("al", "one", "two")


@pytest.fixture
def server(tmp_path: Path) -> MemoryServer:
    return MemoryServer(config=loads(ALIAS), folder=tmp_path / "queues")


@pytest.fixture
def client(server: MemoryServer) -> MemoryClient:
    return server.connect()


def warnings_of(events: Sequence[LogEvent], word: str) -> list[str]:
    """Return the warnings that contain this word."""
    texts = [formatEvent(event) for event in events if event["log_level"] == LogLevel.warn]
    return [text for text in texts if word in text]


# Puts.


def test_put_to_alias_reaches_each_destination(server: MemoryServer, client: MemoryClient) -> None:
    waiter = server.connect()
    waiter.send(b"get two/t=1000\r\n")
    assert client.ask(set_(b"al", b"first") + set_(b"al", b"second", expiry=1)) == STORED * 2
    assert waiter.take() == value(b"two/t=1000", b"first")
    assert items(client, b"one") == [b"first", b"second"]
    server.crash()
    client = server.connect()
    assert client.ask(b"get two/peek\r\n") == value(b"two/peek", b"second")
    server.advance(2)
    assert client.ask(b"get two\r\n") == END, "the item kept its expiry"


@pytest.mark.parametrize("destinations", [("full", "one", "two"), ("one", "full", "two"), ("one", "two", "full")])
@pytest.mark.parametrize("limit", ["maxItems = 1", "maxSize = 5", "maxItemSize = 5"])
def test_full_destination_skips_item_and_refuses_put(
    tmp_path: Path, destinations: tuple[str, ...], limit: str
) -> None:
    config = loads(queue("full", limit) + alias("al", *destinations))
    client = MemoryServer(config=config, folder=tmp_path / "queues").connect()
    put(client, b"al", b"first")
    assert client.ask(set_(b"al", b"second")) == NOT_STORED
    assert not client.is_closed
    assert items(client, b"one") == items(client, b"two") == [b"first", b"second"]
    assert items(client, b"full") == [b"first"]
    put(client, b"al", b"third")


@pytest.mark.parametrize("failed", [b"one", b"four"])
def test_failed_destination_makes_put_fail_and_store_nothing(failed: bytes) -> None:
    tables = queue("three", "keepJournal = false") + alias("al", "one", "inner")
    storage = SteppedStorage()
    server = MemoryServer(storage, config=loads(tables + alias("inner", "two", "three", "four")))
    client = server.connect()
    queues = [b"one", b"two", b"two+child", b"three", b"four"]
    create(client, *queues)
    store_of(server, failed).failure = storage.reopen_refusal = "disk failed"

    assert client.ask(set_(b"al", b"lost")).startswith(b"SERVER_ERROR ")
    assert not client.is_closed
    storage.reopen_refusal, storage.refusal = None, "disk full"
    assert client.ask(set_(b"al", b"lost")).startswith(b"SERVER_ERROR ")
    storage.refusal = None
    assert [items(client, name) for name in queues] == [[]] * len(queues)
    put(client, b"al", b"item")
    assert [items(client, name) for name in queues] == [[b"item"]] * len(queues)


def test_destinations_may_be_aliases_and_fanout_parents(tmp_path: Path) -> None:
    aliases = alias("al", "inner", "news", "silent") + alias("inner", "innermost", "plain") + alias("innermost", "deep")
    queues = queue("deep", "maxItems = 2") + queue("news+full", "maxItems = 1") + queue("silent", "fanoutOnly = true")
    client = MemoryServer(config=loads(aliases + queues), folder=tmp_path / "queues").connect()
    create(client, b"news+x", b"news+full", b"silent+x")
    put(client, b"al", b"first", b"second")
    assert client.ask(set_(b"al", b"third")) == NOT_STORED
    for name in (b"plain", b"news", b"news+x", b"silent+x"):
        assert items(client, name) == [b"first", b"second", b"third"]
    assert items(client, b"deep") == [b"first", b"second"]
    assert items(client, b"news+full") == [b"first"]
    assert items(client, b"silent") == []


def test_item_reaches_each_queue_once(tmp_path: Path) -> None:
    outer = alias("al", "news+x", "left", "news", "right", "work")
    config = loads(outer + alias("left", "work", "news") + alias("right", "left", "news+y", "work"))
    client = MemoryServer(config=config, folder=tmp_path / "queues").connect()
    create(client, b"news+x", b"news+y", b"news+z")
    put(client, b"al", b"first", b"second")
    for name in (b"news", b"news+x", b"news+y", b"news+z", b"work"):
        assert items(client, name) == [b"first", b"second"]


# Other commands.


@pytest.mark.parametrize(
    "request_",
    [
        b"get al",
        b"gets al",
        b"get al/t=60000",
        b"get al/open",
        b"get al/open/t=60000",
        b"get al/close/open/t=60000",
        b"get al/peek",
        b"get al/peek/t=60000",
        b"get al/close",
        b"get al/abort",
        b"monitor al 60",
        b"monitor al 60 5",
        b"monitor al 60 -1",
    ],
)
def test_reads_of_alias_answer_end_at_once(server: MemoryServer, client: MemoryClient, request_: bytes) -> None:
    put(client, b"al", b"first")
    before = stats(client)["queue_creates"]
    assert client.ask(request_ + b"\r\nversion\r\n") == END + b"VERSION 1.2.3\r\n"
    assert stats(client)["queue_creates"] == before
    assert items(client, b"one") == items(client, b"two") == [b"first"]
    assert server.folder is not None
    assert not (server.folder / "al").exists()
    server.reload(loads(NO_ALIAS))
    assert is_missing(client, b"al")


def test_flush_and_delete_of_alias_do_nothing(server: MemoryServer, client: MemoryClient) -> None:
    assert client.ask(set_(b"al", b"gone", expiry=1) + set_(b"al", b"first")) == STORED * 2
    server.advance(2)
    before = stats(client)["queue_creates"]
    assert client.ask(b"flush_expired al\r\nflush al\r\ndelete al\r\n") == b"0\r\n" + END + b"DELETED\r\n"
    assert stats(client)["queue_creates"] == before
    assert stat(client, b"one", "items") == stat(client, b"two", "items") == "2"
    assert client.ask(b"flush_expired one\r\n") == b"1\r\n"
    assert client.ask(set_(b"al", b"second")) == STORED, "the alias still exists"
    assert items(client, b"one") == items(client, b"two") == [b"first", b"second"]


@pytest.mark.parametrize("is_started_with_it", [True, False])
def test_alias_masks_queue_of_its_name_and_logs_it(tmp_path: Path, is_started_with_it: bool) -> None:
    server = MemoryServer(config=loads(NO_ALIAS), folder=tmp_path / "queues")
    client = server.connect()
    assert client.ask(set_(b"al", b"masked") + set_(b"one", b"old")) == STORED * 2
    with capturedLogs() as events:
        if is_started_with_it:
            server.restart(loads(ALIAS))
        else:
            server.reload(loads(ALIAS))
    assert len(warnings_of(events, "al")) == 1
    client = server.connect()
    assert client.ask(b"get al\r\nget al/peek\r\nget al/t=1000\r\n") == END * 3
    put(client, b"al", b"new")
    assert client.ask(b"flush al\r\ndelete al\r\nflush_expired al\r\n") == END + b"DELETED\r\n0\r\n"
    assert items(client, b"one") == [b"old", b"new"]
    assert client.ask(b"flush_all\r\n") == b"Flushed all queues.\r\n"
    server.restart()
    server.reload(loads(NO_ALIAS))
    client = server.connect()
    assert items(client, b"al") == [b"masked"]
    with capturedLogs() as events:
        client.ask(b"delete al\r\n")
        server.reload(loads(ALIAS))
    assert warnings_of(events, "al") == [], "no queue is masked"


def test_child_of_alias_is_an_ordinary_queue(client: MemoryClient) -> None:
    create(client, b"al+x")
    put(client, b"al", b"first")
    assert items(client, b"al+x") == []
    put(client, b"al+x", b"second")
    assert items(client, b"al+x") == [b"second"]
    assert items(client, b"one") == items(client, b"two") == [b"first"]
