"""Transfers of many items from one queue to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.config.load import loads
from kestrel.errors import ClientError, StorageError
from kestrel.queues.moves import MOVE_RETRY_S
from kestrel.queues.transfer import MAX_TRANSFERS, MAX_UNDER_WAY, Transfer, Transfers
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.memcache_text import END, create, items, put, set_, stat

ALL = 1_000_000


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def transfers_of(server: MemoryServer) -> Transfers:
    return Transfers(server.manager, server.scheduler)


def start(server: MemoryServer, source: bytes, target: bytes, count: int = ALL) -> Transfer:
    return transfers_of(server).start(server.manager.queue(source), target, count)


def with_errors(server: MemoryServer, count: int) -> MemoryClient:
    """Put that many numbered items to "errors", create "work", and return the client that did it."""
    client = server.connect()
    put(client, b"errors", *numbered(0, count))
    create(client, b"work")
    return client


def waiting_for_failed_target() -> tuple[SteppedStorage, MemoryServer, Transfer]:
    """Return a storage, its server, and a transfer of ten items from "errors" to "work", whose storage has failed."""
    storage = SteppedStorage()
    server = MemoryServer(storage)
    with_errors(server, 10)
    server.manager.queue(b"work").store.failure = "disk failed"
    storage.reopen_refusal = "disk failed"
    transfer = start(server, b"errors", b"work")
    server.settle()
    return storage, server, transfer


@pytest.mark.parametrize("count", [0, 1, MAX_UNDER_WAY + 1, 500, ALL])
def test_the_first_items_move_in_order(count: int) -> None:
    server = MemoryServer()
    client = server.connect()
    put(client, b"errors", *numbered(0, 500))
    put(client, b"work", b"before")
    transfer = start(server, b"errors", b"work", count)
    server.settle()
    moved = min(count, 500)
    assert (transfer.items, transfer.moved, transfer.is_running, transfer.reason) == (moved, moved, False, None)
    assert items(client, b"work") == [b"before", *numbered(0, moved)]
    assert items(client, b"errors") == numbered(moved, 500)


def test_items_that_arrive_later_stay() -> None:
    server = MemoryServer()
    client = with_errors(server, 300)
    transfer = start(server, b"errors", b"work")
    put(client, b"errors", b"x")
    assert (transfer.moved, items(client, b"errors")) == (300, [b"x"])


def test_items_that_are_only_on_disk_move_too(tmp_path: Path) -> None:
    config = loads("[[queues]]\nname = 'errors'\nmaxMemorySize = 1000\n")
    server = MemoryServer(folder=tmp_path / "queues", config=config)
    client = server.connect()
    create(client, b"work")
    put(client, b"errors", *[b"x" * 100] * 50)
    assert stat(client, b"errors", "mem_items") != "50"
    transfer = start(server, b"errors", b"work")
    server.settle()
    assert (transfer.moved, transfer.is_running) == (50, False)
    assert (stat(client, b"errors", "items"), stat(client, b"errors", "open_transactions")) == ("0", "0")
    server.restart()
    assert items(server.connect(), b"work") == [b"x" * 100] * 50


def test_in_flight_items_are_few_and_survive_stop() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client = with_errors(server, 300)
    storage.holds_commits = True
    transfer = start(server, b"errors", b"work")
    server.settle()
    source = server.manager.queue(b"errors")
    assert (source.store.open_reads, transfer.moved, transfer.is_running) == (MAX_UNDER_WAY, 0, True)
    storage.end_commits(b"errors")
    server.settle()
    transfer.stop("it was stopped")
    assert transfer.is_running
    storage.holds_commits = False
    while storage.committing:
        storage.end_commits()
        server.settle()
    assert (transfer.moved, transfer.is_running, transfer.reason) == (MAX_UNDER_WAY, False, "it was stopped")
    assert items(client, b"work") == numbered(0, MAX_UNDER_WAY)
    assert items(client, b"errors") == numbered(MAX_UNDER_WAY, 300)


def test_full_target_ends_transfer_and_preserves_refused_items() -> None:
    server = MemoryServer(config=loads("[[queues]]\nname = 'work'\nmaxItems = 5\n"))
    client = with_errors(server, 100)
    transfer = start(server, b"errors", b"work")
    server.settle()
    assert (transfer.moved, transfer.is_running) == (5, False)
    assert transfer.reason == "work does not accept an item, because of a limit in its settings"
    head = server.manager.queue(b"errors").store.peek()
    assert head is not None
    assert head.errors == 0
    assert items(client, b"errors") == numbered(5, 100)


def test_a_target_whose_storage_fails_delays_it() -> None:
    storage, server, transfer = waiting_for_failed_target()
    assert (transfer.moved, transfer.is_running, transfer.delay) == (0, True, "disk failed")
    storage.reopen_refusal = None
    server.advance(MOVE_RETRY_S)
    assert (transfer.moved, transfer.is_running, transfer.delay) == (10, False, None)
    assert items(server.connect(), b"work") == numbered(0, 10)


@pytest.mark.parametrize("way", ["deleted", "failed"])
def test_it_ends_with_its_source(way: str) -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client = with_errors(server, 300)
    storage.holds_commits = True
    transfer = start(server, b"errors", b"work")
    server.settle()
    if way == "deleted":
        client.send(b"delete errors\r\n")
        server.settle()
    storage.end_commits(b"errors", error=StorageError("disk failed"))
    server.settle()
    assert (transfer.is_running, transfer.reason) == (False, "the queue was deleted, or its storage failed")


def test_an_item_keeps_its_expiry() -> None:
    server = MemoryServer()
    client = server.connect()
    put(client, b"errors", b"old", expiry=5)
    put(client, b"errors", b"new", expiry=60)
    create(client, b"work")
    server.advance(1)
    start(server, b"errors", b"work")
    server.advance(10)
    assert items(client, b"work") == [b"new"]
    put(client, b"errors", b"late", expiry=60)
    start(server, b"errors", b"work")
    server.advance(61)
    assert client.ask(b"get work\r\n") == END


@pytest.mark.parametrize("ticks", range(0, 14, 2))
def test_a_crash_loses_no_item(tmp_path: Path, ticks: int) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client = with_errors(server, 300)
    start(server, b"errors", b"work")
    for _ in range(ticks):
        server.tick()
    server.crash()
    client = server.connect()
    moved, left = items(client, b"work"), items(client, b"errors")
    assert left == numbered(300 - len(left), 300)
    assert moved == numbered(0, len(moved))
    assert 0 <= len(moved) + len(left) - 300 <= MAX_UNDER_WAY


def test_a_stop_of_the_server_loses_and_doubles_no_item(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client = with_errors(server, 300)
    transfers = transfers_of(server)
    transfers.start(server.manager.queue(b"errors"), b"work", ALL)
    server.tick()
    transfers.stop()
    server.restart()
    client = server.connect()
    assert items(client, b"work") + items(client, b"errors") == numbered(0, 300)


CONFIG = """
[[queues]]
name = 'relay'
fanoutOnly = true
[[aliases]]
name = 'al'
destinationQueues = ['errors', 'work']
"""


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (b"errors", b"nothing", "there is no queue nothing"),
        (b"errors", b"errors", "a put to errors goes to errors, too"),
        (b"errors", b"al", "a put to al goes to errors, too"),
        (b"work+child", b"work", "a put to work goes to work+child, too"),
        (b"errors", b"relay", "relay has no children and keeps no items (fanoutOnly)"),
    ],
)
def test_targets_that_cannot_take_the_items_are_refused(source: bytes, target: bytes, why: str) -> None:
    server = MemoryServer(config=loads(CONFIG))
    client = server.connect()
    create(client, b"work", b"work+child", b"relay", b"errors")
    put(client, source, b"item")
    with pytest.raises(ClientError, match=f"^{why.replace('(', '.').replace(')', '.').replace('+', '.')}$"):
        start(server, source, target)
    assert stat(client, source, "items") == "1"


def test_an_alias_gets_the_items_in_all_its_queues() -> None:
    server = MemoryServer(config=loads("[[aliases]]\nname = 'al'\ndestinationQueues = ['work', 'other']"))
    client = server.connect()
    put(client, b"errors", b"1", b"2")
    start(server, b"errors", b"al")
    server.settle()
    assert items(client, b"work") == items(client, b"other") == [b"1", b"2"]


def test_queue_has_one_transfer_and_remembers_last() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client = server.connect()
    put(client, b"errors", b"1")
    create(client, b"work")
    transfers = transfers_of(server)
    assert transfers.of(b"errors") is None
    source = server.manager.queue(b"errors")
    storage.holds_commits = True
    first = transfers.start(source, b"work", ALL)
    with pytest.raises(ClientError, match="items of errors are already moving to work"):
        transfers.start(source, b"work", ALL)
    assert transfers.of(b"errors") is first


def test_the_number_of_remembered_transfers_is_limited() -> None:
    server = MemoryServer()
    client = server.connect()
    create(client, b"work")
    transfers = transfers_of(server)
    names = [b"queue-%d" % number for number in range(MAX_TRANSFERS + 1)]
    for name in names:
        transfers.start(server.manager.queue(name), b"work", ALL)
    assert [name for name in names if transfers.of(name) is None] == names[:1]


def test_a_target_that_keeps_no_item_gets_none() -> None:
    server = MemoryServer(config=loads("[[queues]]\nname = 'work+a'\nmaxItems = 5\n"))
    client = with_errors(server, 100)
    create(client, b"work+a")
    server.reload(loads("[[queues]]\nname = 'work'\nfanoutOnly = true\n[[queues]]\nname = 'work+a'\nmaxItems = 5\n"))
    transfer = start(server, b"errors", b"work")
    server.settle()
    assert (transfer.moved, transfer.is_running) == (5, False)
    assert items(client, b"errors") == numbered(5, 100)


def test_stop_puts_back_items_of_failed_target() -> None:
    _, server, transfer = waiting_for_failed_target()
    assert transfer.is_running
    transfer.stop("it was stopped")
    server.settle()
    assert (transfer.moved, transfer.is_running, transfer.reason) == (0, False, "it was stopped")
    assert items(server.connect(), b"errors") == numbered(0, 10)


def test_it_stops_when_the_server_takes_no_writes() -> None:
    server = MemoryServer()
    client = with_errors(server, 300)
    takes_writes = [True]
    transfers = Transfers(server.manager, server.scheduler, lambda: takes_writes[0])
    transfer = transfers.start(server.manager.queue(b"errors"), b"work", ALL)
    takes_writes[0] = False
    server.settle()
    assert (transfer.is_running, transfer.reason) == (False, "the server takes no writes now")
    assert transfer.moved + int(stat(client, b"errors", "items")) == 300


def test_item_whose_put_is_refused_does_not_move() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client = server.connect()
    create(client, b"work")
    storage.holds_commits = True
    assert client.ask(set_(b"errors", b"refused")) == b""
    transfer = start(server, b"errors", b"work")
    server.settle()
    assert storage.committing == [b"errors"], "the put may still fail"
    storage.end_commits(error=StorageError("disk failed"))
    storage.holds_commits = False
    server.advance(MOVE_RETRY_S)
    assert not transfer.is_running
    assert items(server.connect(), b"work") == []
