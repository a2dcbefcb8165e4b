"""Delayed items: put now, visible later, and not lost by restarts, crashes, failures and limits."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

import pytest
from twisted.logger import capturedLogs, formatEvent

from kestrel.client.thrift import ThriftCalls
from kestrel.commands import MAX_DELAY_MS
from kestrel.config.load import ConfigError, loads
from kestrel.config.model import Config
from kestrel.names import DELAYED_QUEUE
from kestrel.queues.delayed_items import MIN_TIMES
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage
from tests.config_tables import alias, queue
from tests.memcache_text import END, NOT_STORED, STORED, is_missing, items, put, set_, stat, stats, value
from tests.promises.watched_disk import WatchedDisk

MS: Final = 0.001
A_MINUTE_S: Final = 60
A_DAY_S: Final = 86_400

STORAGES: Final = pytest.mark.parametrize("storage", [JournalStorage, ScrollStorage])


def config_of(*tables: str, server: str = "") -> Config:
    return loads("\n".join(["maxOpenTransactions = 100", server, *tables]))


def put_later(client: MemoryClient, queue: bytes, delay_ms: int, *datas: bytes, expiry: int = 0) -> None:
    """Put items with a delay, which the server must store."""
    put(client, b"%b/delay=%d" % (queue, delay_ms), *datas, expiry=expiry)


# Time.


def test_item_becomes_visible_after_its_delay() -> None:
    server = MemoryServer()
    client, waiter = server.connect(), server.connect()
    put_later(client, b"work", 5000, b"later")
    put(client, b"work", b"now")
    assert (stat(client, b"work", "items"), stat(client, b"work", "delayed_items")) == ("1", "1")
    assert items(client, b"work") == [b"now"]
    assert waiter.ask(b"get work/t=60000\r\n") == b""
    server.advance(5 - MS)
    assert waiter.take() == b""
    server.advance(MS)
    assert waiter.take() == value(b"work/t=60000", b"later")
    assert stat(client, b"work", "delayed_items") == "0"


def test_items_become_visible_in_the_order_of_their_due_times() -> None:
    server = MemoryServer()
    client = server.connect()
    delays_s = [7, 3, 5, 3, 1, 9]
    for number, delay_s in enumerate(delays_s):
        put_later(client, b"work", delay_s * 1000, b"%d" % number)
    server.advance(10)
    assert items(client, b"work") == [b"4", b"1", b"3", b"2", b"0", b"5"]


def test_age_of_a_delayed_item_counts_from_its_due_time() -> None:
    server = MemoryServer(config=config_of(queue("work", "maxAge = '10s'")))
    client = server.connect()
    put_later(client, b"work", 60_000, b"item")
    server.advance(A_MINUTE_S)
    server.advance(9)
    assert stat(client, b"work", "oldest_age_msec") == "9000"
    assert items(client, b"work") == [b"item"]


def test_expiry_of_a_delayed_item_counts_from_its_put() -> None:
    server = MemoryServer()
    client = server.connect()
    put_later(client, b"work", 10_000, b"in time", expiry=15)
    put_later(client, b"work", 20_000, b"too late", expiry=15)
    server.advance(12)
    assert client.ask(b"get work/peek\r\n") == value(b"work/peek", b"in time")
    server.advance(20)
    assert items(client, b"work") == []
    assert stat(client, b"work", "expired_items") == "2"


def test_delay_follows_the_wall_clock() -> None:
    server = MemoryServer()
    client = server.connect()
    put_later(client, b"work", A_DAY_S * 1000, b"tomorrow")
    server.step_wall_clock(A_DAY_S * 1000)
    server.advance(A_MINUTE_S)
    assert items(client, b"work") == [b"tomorrow"]


def test_short_delay_survives_forward_clock_change() -> None:
    server = MemoryServer()
    client = server.connect()
    put_later(client, b"work", A_DAY_S * 1000, b"tomorrow")
    server.step_wall_clock(3600 * 1000)
    put_later(client, b"work", 1000, b"soon")
    server.advance(1)
    assert items(client, b"work") == [b"soon"]


def test_many_items_due_at_once_become_visible_in_order() -> None:
    server = MemoryServer()
    client = server.connect()
    datas = [b"%d" % number for number in range(3000)]
    put_later(client, b"work", 1000, *datas)
    server.advance(1)
    assert items(client, b"work") == datas


# Requests.


@pytest.mark.parametrize(
    ("protocol", "request_", "reply"),
    [
        ("memcache", set_(b"work/delay=5000", b"item"), STORED),
        ("memcache", b"set work/delay=5000 0 0 4 noreply\r\nitem\r\n", b""),
        ("text", b"put work delay=5000:\nitem\n\n", b"+1\n"),
        ("text", b"put work 0 delay=5000:\nitem\n\n", b"+1\n"),
    ],
)
def test_protocols_accept_a_delay(protocol: str, request_: bytes, reply: bytes) -> None:
    server = MemoryServer()
    client, other = server.connect(protocol), server.connect()
    assert client.ask(request_) == reply
    assert items(other, b"work") == []
    server.advance(5)
    assert items(other, b"work") == [b"item"]


@pytest.mark.parametrize("delay", [b"", b"x", b"-1", b"1.5", b"%d" % (MAX_DELAY_MS + 1), b"9" * 40])
def test_invalid_delay_is_refused_and_the_item_is_not_stored(delay: bytes) -> None:
    server = MemoryServer()
    client, text = server.connect(), server.connect("text")
    reason = b"delay= takes milliseconds from 0 to %d" % MAX_DELAY_MS
    assert client.ask(set_(b"work/delay=" + delay, b"item")) == b"CLIENT_ERROR " + reason + b"\r\n"
    assert text.ask(b"put work delay=" + delay + b":\nitem\n\n").startswith(b"-")
    assert client.ask(b"version\r\n") == b"VERSION 1.2.3\r\n", "the connection is still in step"
    assert is_missing(client, b"work")


def test_delay_of_zero_is_a_put() -> None:
    server = MemoryServer()
    client, text = server.connect(), server.connect("text")
    put_later(client, b"work", 0, b"one")
    assert text.ask(b"put work delay=0:\ntwo\n\n") == b"+1\n"
    assert items(client, b"work") == [b"one", b"two"]


def test_longest_delay_is_accepted(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client = server.connect()
    put_later(client, b"work", MAX_DELAY_MS, b"item")
    server.restart()
    client = server.connect()
    assert stats(client)["delayed_items"] == "1"


@pytest.mark.parametrize("name", [b"no.good", b"+", DELAYED_QUEUE])
def test_delayed_put_to_an_invalid_name_is_refused(name: bytes) -> None:
    server = MemoryServer()
    client = server.connect()
    assert client.ask(set_(name + b"/delay=5000", b"item")).startswith(b"CLIENT_ERROR ")
    assert stats(client)["delayed_items"] == "0"


def test_hidden_queue_cannot_be_used_by_clients(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client = server.connect()
    put_later(client, b"work", 5000, b"item")
    reserved = b"CLIENT_ERROR this queue name is reserved for delayed items\r\n"
    assert client.ask(set_(DELAYED_QUEUE, b"forged")) == reserved
    assert client.ask(b"get %b\r\n" % DELAYED_QUEUE) == reserved
    client.ask(b"delete %b\r\n" % DELAYED_QUEUE)
    client.ask(b"flush %b\r\n" % DELAYED_QUEUE)
    assert is_missing(client, DELAYED_QUEUE)
    assert not any(DELAYED_QUEUE.decode() in name for name in stats(client))
    server.advance(5)
    assert items(client, b"work") == [b"item"]


def test_client_that_may_not_put_may_not_put_later() -> None:
    server = MemoryServer(config=config_of(queue("work", "whiteListClientIdForEnqueue = ['someone']")))
    client = server.connect()
    assert b"this client may not put to work" in client.ask(set_(b"work/delay=1", b"item"))
    assert stats(server.connect())["delayed_items"] == "0"


# Targets.


def test_item_goes_to_all_queues_of_its_target(tmp_path: Path) -> None:
    config = config_of(queue("parent", "fanoutOnly = true"), alias("all", "work", "parent"))
    server = MemoryServer(config=config, folder=tmp_path / "queues")
    client = server.connect()
    assert client.ask(b"get parent+child\r\n") == END
    put_later(client, b"all", 5000, b"item")
    assert stats(client)["delayed_items"] == "1"
    server.restart()
    client = server.connect()
    server.advance(5)
    assert [items(client, name) for name in (b"work", b"parent+child", b"parent")] == [[b"item"], [b"item"], []]


def test_parent_without_children_drops_a_delayed_item_like_any_other() -> None:
    server = MemoryServer(config=config_of(queue("parent", "fanoutOnly = true")))
    client = server.connect()
    put_later(client, b"parent", 1000, b"item")
    for _ in range(5):
        server.advance(1)
    assert stats(client)["delayed_items"] == "0"
    assert stat(client, b"parent", "total_items") == "1"


@pytest.mark.parametrize(
    "table",
    [
        alias(DELAYED_QUEUE.decode(), "work"),
        alias("all", DELAYED_QUEUE.decode()),
        queue("work", f"expireToQueue = '{DELAYED_QUEUE.decode()}'"),
        queue("work", f"errorQueue = '{DELAYED_QUEUE.decode()}'"),
    ],
)
def test_configuration_cannot_send_items_to_the_hidden_queue(table: str) -> None:
    with pytest.raises(ConfigError, match="is reserved for delayed items"):
        config_of(table)


def test_items_that_a_full_target_refuses_wait_for_room() -> None:
    server = MemoryServer(config=config_of(queue("work", "maxItems = 2"), queue("other", "")))
    client = server.connect()
    put(client, b"work", b"old")
    datas = [b"%d" % number for number in range(100)]
    put_later(client, b"work", 1000, *datas)
    put_later(client, b"other", 2000, b"not delayed by work")
    server.advance(2)
    assert items(client, b"other") == [b"not delayed by work"]
    assert (stat(client, b"work", "items"), stat(client, b"work", "delayed_items")) == ("2", "99")
    found = []
    for _ in range(200):
        found += items(client, b"work")
        server.advance(1)
    assert sorted(found) == sorted([b"old", *datas])


def test_full_target_is_tried_with_one_item_at_a_time() -> None:
    server = MemoryServer(config=config_of(queue("work", "maxItems = 1")))
    client = server.connect()
    put(client, b"work", b"old")
    put_later(client, b"work", 1000, *(b"%d" % number for number in range(1000)))
    server.advance(2)
    hidden = server.manager.delayed.queue
    assert hidden is not None
    before = hidden.moves.refused
    for _ in range(10):
        server.advance(1)
    assert hidden.moves.refused - before <= 10


def test_item_that_is_too_large_is_refused_at_once() -> None:
    config = config_of(queue("work", "maxItemSize = 4"), alias("all", "other", "work"))
    server = MemoryServer(config=config)
    client = server.connect()
    for name in (b"work", b"all"):
        assert client.ask(set_(name + b"/delay=1000", b"large")) == NOT_STORED
        put_later(client, name, 1000, b"tiny")


def test_max_items_of_the_hidden_queue_limits_delayed_items() -> None:
    server = MemoryServer(config=config_of(queue(DELAYED_QUEUE.decode(), "maxItems = 2")))
    client = server.connect()
    put_later(client, b"a", 1000, b"one")
    put_later(client, b"b", 1000, b"two")
    assert client.ask(set_(b"c/delay=1000", b"three")) == NOT_STORED
    server.reload(config_of(queue(DELAYED_QUEUE.decode(), "maxItems = 3")))
    put_later(client, b"c", 1000, b"three")


def test_delayed_put_is_refused_while_max_total_memory_is_reached() -> None:
    server = MemoryServer(config=config_of(server="maxTotalMemory = '1MB'"))
    client = server.connect()
    server.manager.memory_limit.used_bytes = 1 << 20
    assert client.ask(set_(b"work/delay=1000", b"item")).startswith(b"SERVER_ERROR delayed items are kept in memory")
    assert stats(client)["delayed_items"] == "0"


def test_settings_that_end_items_do_not_apply_to_delayed_items() -> None:
    default = "[default]\nmaxAge = '1s'\nopenTransactionTimeout = '1s'\nexpireToQueue = 'late'\nmaxItems = 1\n"
    tables = (
        queue(DELAYED_QUEUE.decode(), "maxItems = 10"),
        queue("late", "expireToQueue = 'none'"),
        queue("work", "maxAge = '1h'"),
    )
    config = config_of(default, *tables)
    server = MemoryServer(config=config)
    client = server.connect()
    put_later(client, b"work", 60_000, b"item")
    for _ in range(61):
        server.advance(1)
    assert is_missing(client, b"late")
    assert items(client, b"work") == [b"item"]


# Flush and delete.


@pytest.mark.parametrize("request_", [b"flush work\r\n", b"delete work\r\n", b"flush_all\r\n"])
@pytest.mark.parametrize("count", [1, 2000])
def test_flush_and_delete_drop_delayed_items(request_: bytes, count: int, tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client = server.connect()
    put_later(client, b"work", 5000, *(b"%d" % number for number in range(count)))
    put_later(client, b"other", 5000, b"other")
    assert client.ask(request_) in (b"END\r\n", b"DELETED\r\n", b"Flushed all queues.\r\n")
    kept = 0 if b"all" in request_ else 1
    assert stats(client)["delayed_items"] == str(kept)
    server.crash()
    client = server.connect()
    server.advance(5)
    assert items(client, b"work") == []
    assert items(client, b"other") == [b"other"] * kept


@pytest.mark.parametrize("request_", [b"flush work\r\n", b"delete work\r\n"])
def test_delayed_items_of_a_missing_queue_are_dropped(request_: bytes, tmp_path: Path) -> None:
    config = config_of(queue("work", "keepJournal = false"))
    server = MemoryServer(config=config, folder=tmp_path / "queues")
    put_later(server.connect(), b"work", 5000, b"item")
    server.restart()
    client = server.connect()
    assert is_missing(client, b"work")
    client.ask(request_)
    assert stats(client)["delayed_items"] == "0"


def test_dropped_items_leave_no_times_in_memory() -> None:
    server = MemoryServer()
    client = server.connect()
    for _ in range(MIN_TIMES + 50):
        put_later(client, b"work", MAX_DELAY_MS, b"item")
        client.ask(b"flush work\r\n")
    assert len(server.manager.delayed._due) <= MIN_TIMES + 2


def test_flush_reply_waits_for_dropped_delayed_items() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client = server.connect()
    put_later(client, b"work", 5000, b"item")
    storage.holds_commits = True
    assert client.ask(b"flush work\r\n") == b""
    storage.end_commits(b"work")
    assert client.take() == b""
    storage.end_commits(DELAYED_QUEUE)
    assert client.take() == END


@pytest.mark.parametrize("request_", [b"flush work\r\n", b"delete work\r\n", b"flush_all\r\n"])
def test_items_that_are_not_read_yet_are_dropped_too(request_: bytes) -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client, other = server.connect(), server.connect()
    put_later(client, b"work", 1000, b"one")
    hidden = server.manager.delayed.queue
    assert hidden is not None and isinstance(hidden.store, SteppedQueue)
    hidden.store.page_out()
    put_later(client, b"work", 1000, b"two", b"three")
    assert client.ask(request_) == b""
    put_later(other, b"work", 1000, b"after it")
    hidden.store.end_fill()
    assert client.take() in (b"END\r\n", b"DELETED\r\n", b"Flushed all queues.\r\n")
    server.advance(1)
    assert items(client, b"work") == [b"after it"]


def test_flush_fails_while_the_delayed_items_cannot_be_read(tmp_path: Path) -> None:
    disk = FaultyDisk()
    server = MemoryServer(folder=tmp_path / "queues", disk=disk)
    client = server.connect()
    put_later(client, b"work", 5000, b"item")
    disk.fail("open_read", errno.EMFILE)
    server.restart()
    disk.mend()
    client = server.connect()
    assert client.ask(b"flush work\r\n").startswith(b"SERVER_ERROR the delayed items were not dropped")
    server.advance(1)
    assert client.ask(b"flush work\r\n") == END
    server.advance(5)
    assert items(client, b"work") == []


# Restarts, crashes and failures.


@STORAGES
@pytest.mark.parametrize("is_crash", [False, True])
def test_restart_keeps_delayed_items_and_their_due_times(
    storage: type[JournalStorage] | type[ScrollStorage], is_crash: bool, tmp_path: Path
) -> None:
    server = MemoryServer(folder=tmp_path / "queues", make_storage=storage)
    client = server.connect()
    put_later(client, b"work", 60_000, b"last")
    put_later(client, b"work", 30_000, b"first", expiry=3600)
    server.advance(10)
    for _ in range(2):
        server.crash() if is_crash else server.restart()
    client = server.connect()
    assert (stat(client, b"work", "delayed_items"), stats(client)["delayed_items"]) == ("2", "2")
    server.advance(20 - MS)
    assert items(client, b"work") == []
    server.advance(MS)
    assert items(client, b"work") == [b"first"]
    server.advance(30)
    assert items(client, b"work") == [b"last"]
    server.restart()
    client = server.connect()
    server.advance(A_DAY_S)
    assert items(client, b"work") == [], "each item becomes visible once"


def test_items_due_during_downtime_are_visible_after_start(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    datas = [b"%d" % number for number in range(500)]
    put_later(server.connect(), b"work", 5000, *datas)
    server.step_wall_clock(A_DAY_S * 1000)
    server.restart()
    server.settle()
    assert items(server.connect(), b"work") == datas


def visible_after_start(folder: Path, config: Config | None = None) -> list[bytes]:
    """Return the items of the queue "work" five seconds after a start over the folder."""
    server = MemoryServer(config=config, folder=folder)
    server.advance(5)
    found = items(server.connect(), b"work")
    server.stop()
    server.settle()
    return found


def test_crash_at_any_disk_operation_loses_no_delayed_item(tmp_path: Path) -> None:
    config = config_of("[default]\nsyncJournal = 0\n")
    disk = WatchedDisk(tmp_path / "queues")
    server = MemoryServer(config=config, folder=tmp_path / "queues", disk=disk)
    client = server.connect()
    put_later(client, b"work", 5000, b"one", b"two")
    with disk.watching():
        server.advance(5)
    assert len(disk.left_by_processes) > 3
    for folder in [*disk.left_by_processes, *disk.left_by_machines]:
        found = visible_after_start(folder, config)
        assert {*found} == {b"one", b"two"}, folder.name
        assert len(found) <= 4, "an item that was moving may be doubled"


def test_crash_during_a_delayed_put_keeps_all_or_nothing(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path / "queues")
    server = MemoryServer(folder=tmp_path / "queues", disk=disk)
    client = server.connect()
    put_later(client, b"work", 5000, b"first")
    with disk.watching():
        put_later(client, b"work", 5000, b"second")
    for folder in disk.left_by_processes:
        assert visible_after_start(folder) in ([b"first"], [b"first", b"second"])


def test_reopened_storage_has_all_delayed_items() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client = server.connect()
    put_later(client, b"work", 5000, b"kept")
    storage.holds_commits = True
    client.send(set_(b"work/delay=5000", b"lost"))
    server.settle()
    storage.holds_commits = False
    storage.end_commits(DELAYED_QUEUE, error=OSError("disk failed"))
    assert client.take().startswith(b"SERVER_ERROR ")
    server.advance(1)
    client = server.connect()
    assert stat(client, b"work", "delayed_items") == "1"
    server.advance(5)
    assert items(client, b"work") == [b"kept"]
    assert stat(client, b"work", "delayed_items") == "0"


def test_item_whose_put_is_refused_never_becomes_visible() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client, waiter = server.connect(), server.connect()
    put_later(client, b"work", 1, b"kept")
    storage.holds_commits = True
    client.send(set_(b"work/delay=1", b"refused"))
    assert waiter.ask(b"get work/t=60000\r\n") == b""
    server.advance(5)
    assert waiter.take() == b"", "the put may still fail"
    storage.holds_commits = False
    storage.end_commits(DELAYED_QUEUE, error=OSError("disk failed"))
    assert client.take().startswith(b"SERVER_ERROR ")
    server.advance(5)
    assert waiter.take() == value(b"work/t=60000", b"kept")
    server.advance(5)
    assert items(server.connect(), b"work") == []


def test_items_wait_while_their_storage_has_failed() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client = server.connect()
    put_later(client, b"work", 4700, b"once")
    storage.holds_commits = True
    client.send(set_(b"work/delay=5000", b"lost"))
    server.settle()
    storage.reopen_refusal = "disk failed"
    storage.end_commits(DELAYED_QUEUE, error=OSError("disk failed"))
    storage.holds_commits = False
    for _ in range(60):
        server.advance(0.1)
    storage.reopen_refusal = None
    server.advance(1)
    assert items(server.connect(), b"work") == [b"once"]


def test_target_that_cannot_be_written_gets_the_item_later() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage)
    client = server.connect()
    put_later(client, b"work", 1000, b"item")
    storage.refusal = "disk full"
    server.advance(10)
    assert items(client, b"work") == []
    storage.refusal = None
    server.advance(1)
    assert items(client, b"work") == [b"item"]


def test_item_without_a_due_time_stays_in_the_hidden_queue(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    put_later(server.connect(), b"work", 1000, b"item")
    hidden = server.manager.delayed.queue
    assert hidden is not None
    hidden.storage.put((hidden.store,), b"no header", 0, 0)
    hidden.touch()
    with capturedLogs() as events:
        server.restart()
    assert any("has no due time" in str(formatEvent(event)) for event in events)
    client = server.connect()
    server.advance(1)
    assert items(client, b"work") == [b"item"]
    assert stats(client)["delayed_items"] == "1"


# Thrift.


@pytest.mark.parametrize(("delay_ms", "is_accepted"), [(5000, True), (-1, False), (MAX_DELAY_MS + 1, False)])
def test_thrift_put_has_a_delay(delay_ms: int, is_accepted: bool) -> None:
    server = MemoryServer()
    client, other = server.connect("thrift"), server.connect()
    reply = client.ask(ThriftCalls().put(b"work", [b"one", b"two"], 0, delay_ms).request)
    assert (b"delay_msec must be 1 to 315360000000" in reply) is not is_accepted
    assert items(other, b"work") == []
    server.advance(5)
    assert items(other, b"work") == ([b"one", b"two"] if is_accepted else [])
