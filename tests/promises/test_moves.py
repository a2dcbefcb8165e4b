"""Moves: expired items go to another queue, failed items go to an error queue, and no item is lost."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import pytest
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent

from kestrel.config.load import ConfigError, loads
from kestrel.config.model import Config
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import EPOCH_MS, MemoryClient, MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.config_tables import alias, queue
from tests.journal.handwritten import addx
from tests.memcache_text import END, STORED, is_missing, items, put, set_, stat, value
from tests.promises.watched_disk import WatchedDisk
from tests.session.servers import end_commits

GUIDE: Final = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()

A_WHILE_S: Final = 60
"""Long enough for all retries."""

MS: Final = 0.001


def config_of(settings: str, rest: str = "", *, server: str = "") -> Config:
    """Return a configuration of the queue "work", further tables, and settings of the server."""
    return loads(f"maxOpenTransactions = 100\n{server}\n[[queues]]\nname = 'work'\n{settings}\n{rest}")


def warnings_about(events: Sequence[LogEvent], *names: str) -> list[str]:
    """Return the warnings and errors that name one of these queues."""
    texts = [str(formatEvent(event)) for event in events if event["log_level"] >= LogLevel.warn]
    return [text for text in texts if any(name in text for name in names)]


# Refused puts.


@pytest.mark.parametrize(
    "request_",
    [
        set_(b"work", b"expired", expiry=-1) + b"get work\r\n",
        set_(b"work", b"failed") + b"get work/open\r\nget work/abort\r\n",
    ],
)
def test_item_whose_put_is_refused_does_not_move(request_: bytes) -> None:
    storage = SteppedStorage()
    config = config_of("expireToQueue = 'other'\nmaxRedeliveries = 1\nerrorQueue = 'other'")
    server = MemoryServer(storage, config=config)
    client = server.connect()
    storage.holds_commits = True
    assert client.ask(request_) == b""
    server.advance(A_WHILE_S)
    assert storage.committing == [b"work"]
    storage.end_commits(b"work", error=OSError("disk failed"))
    storage.holds_commits = False
    server.advance(A_WHILE_S)
    assert client.take().startswith(b"SERVER_ERROR ")
    assert [items(server.connect(), name) for name in (b"other", b"work")] == [[], []]


# Crashes at every disk operation.


def contents_after(folder: Path, config: Config, *names: bytes) -> list[list[bytes]]:
    """Return the items of these queues after a start over a copy of the folder."""
    with TemporaryDirectory(dir=folder.parent) as beside:
        copy = shutil.copytree(folder, Path(beside, "queues"))
        server = MemoryServer(config=config, folder=copy)
        client = server.connect()
        found = [items(client, name) for name in names]
        server.stop()
        server.settle()
        return found


def assert_nothing_is_lost(left: list[Path], target: bytes, datas: list[bytes], default: str) -> None:
    """Start a server without moves over each folder, and check that no item is missing, or doubled in a queue."""
    found = []
    for folder in left:
        both = contents_after(folder, config_of("", default), b"work", target)
        here, there = ([data for data in contents if data in datas] for contents in both)
        assert {*here, *there} == {*datas}, f"{folder.name}: {here} and {there}"
        assert len({*here}) == len(here), f"doubled in {folder.name}: {here}"
        assert len({*there}) == len(there), f"doubled in {folder.name}: {there}"
        found.append((here, there))
    assert (found[0], found[-1]) == ((datas, []), ([], datas)), "the copies cover the whole move"


# expireToQueue.


@pytest.mark.parametrize(
    ("found_by", "reply", "count"),
    [
        (set_(b"work", b"new"), STORED, 2),
        (b"get work\r\n", END, 2),
        (b"get work\r\n", END, 2500),
        (b"get work/t=0\r\n", END, 2),
        (b"get work/open\r\n", END, 2),
        (b"get work/peek\r\n", END, 2),
        (b"get work/t=10000\r\n", b"", 2),
        (b"monitor work 10\r\n", b"", 2),
        (b"flush_expired work\r\n", b"2500\r\n", 2500),
        (b"flush_all_expired\r\n", b"2\r\n", 2),
        (b"the timer", b"", 2),
        (b"the timer", b"", 2500),
    ],
)
def test_expired_items_always_move_to_expire_to_queue(
    found_by: bytes, reply: bytes, count: int, tmp_path: Path
) -> None:
    every = "5s" if found_by == b"the timer" else "1h"
    config = config_of("expireToQueue = 'late'", server=f"expirationTimerFrequency = '{every}'")
    server = MemoryServer(config=config, folder=tmp_path / "queues")
    client, other = server.connect(), server.connect()
    datas = [b"%d" % number for number in range(count)]
    put(client, b"work", *datas, expiry=1)
    server.advance(2)
    assert is_missing(other, b"late")
    if found_by == b"the timer":
        server.advance(3)
        for _ in range(10):  # a round stops at the limit of concurrent moves and continues when some have ended
            server.advance(0.1)
    else:
        assert client.ask(found_by) == reply
    assert not is_missing(other, b"late")
    assert items(other, b"late") == datas
    server.restart()
    other = server.connect()
    assert [items(other, name) for name in (b"late", b"work")] == [[], [b"new"] if b"new" in found_by else []]


def test_moved_item_expires_by_max_age_of_target(tmp_path: Path) -> None:
    config = config_of(
        "maxAge = '10s'\nexpireToQueue = 'late'",
        queue("late", "maxAge = '20s'\nexpireToQueue = 'too_late'"),
    )
    server = MemoryServer(config=config, folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", b"aged")
    put(client, b"work", b"expiring", expiry=15)
    server.advance(12)
    assert client.ask(b"flush_expired work\r\n") == b"2\r\n"
    moved_ms = EPOCH_MS + 12_000
    assert (tmp_path / "queues" / "late").read_bytes() == addx(b"aged", moved_ms) + addx(b"expiring", moved_ms)
    server.advance(20)
    assert client.ask(b"get late/peek\r\n") == value(b"late/peek", b"aged"), "this queue allows that age"
    server.advance(MS)
    assert client.ask(b"get late\r\n") == END
    server.advance(1_000_000)
    assert client.ask(b"get too_late\r\n") == value(b"too_late", b"aged"), "without a limit nothing expires"
    assert client.ask(b"get too_late\r\n") == value(b"too_late", b"expiring")
    assert stat(client, b"too_late", "items") == "0"


def test_moved_item_is_put_like_an_item_of_a_client(tmp_path: Path) -> None:
    config = config_of(
        "expireToQueue = 'everywhere'", queue("full", "maxItems = 1") + alias("everywhere", "late", "parent", "full")
    )
    server = MemoryServer(config=config, folder=tmp_path / "queues")
    client = server.connect()
    assert client.ask(b"get parent+child\r\n") == END
    requests = (b"get late/t=60000", b"get parent/t=60000/open", b"get parent+child/t=60000/peek")
    waiters = [server.connect() for _ in requests]
    for waiter, request in zip(waiters, requests, strict=True):
        assert waiter.ask(request + b"\r\n") == b""
    put(client, b"work", b"one", b"two", expiry=1)
    server.advance(2)
    assert client.ask(b"flush_expired work\r\n") == b"2\r\n"
    assert [waiter.take() for waiter in waiters] == [value(request.split()[1], b"one") for request in requests]
    assert [items(client, name) for name in (b"late", b"parent", b"parent+child", b"full")] == [
        [b"two"],
        [b"two"],
        [b"one", b"two"],
        [b"one"],
    ]


def test_expired_item_stays_open_until_target_is_safe() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of("expireToQueue = 'late'"))
    client, looker = server.connect(), server.connect()

    def open_count() -> str:
        return stat(looker, b"work", "open_transactions")

    put(client, b"work", b"item", expiry=1)
    server.advance(2)
    storage.holds_commits = True
    client.send(b"get work\r\n")
    server.settle()
    assert (open_count(), stat(looker, b"work", "items")) == ("1", "0")
    assert storage.committing == [b"work"]
    storage.end_commits(b"work")
    server.advance(A_WHILE_S)
    assert storage.committing == [b"late"]
    assert open_count() == "1", "its own queue is safe, the target is not"
    storage.end_commits(b"late")
    server.settle()
    assert open_count() == "0"
    end_commits(server, storage)
    assert client.take() == END
    assert items(looker, b"late") == [b"item"]


@pytest.mark.parametrize("sync", ["0", "'never'"])
@pytest.mark.parametrize("finder", [b"get work\r\n", b"flush_expired work\r\n", b"get work/close\r\nget work\r\n"])
def test_crash_during_move_loses_nothing(sync: str, finder: bytes, tmp_path: Path) -> None:
    default = f"[default]\nsyncJournal = {sync}\n"
    moving = config_of("maxAge = '5s'\nexpireToQueue = 'late'", default)
    datas = [b"one", b"two", b"three"]
    disk = WatchedDisk(tmp_path / "queues")
    server = MemoryServer(config=moving, folder=tmp_path / "queues", disk=disk)
    client = server.connect()
    put(client, b"work", b"held", *datas)
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"held")
    if b"close" not in finder:
        client.ask(b"get work/close\r\n")
    server.advance(6)
    with disk.watching():
        client.ask(finder)
    assert stat(client, b"late", "items") == "3"
    assert_nothing_is_lost(disk.left_by_processes, b"late", datas, default)
    if sync == "0":
        assert_nothing_is_lost(disk.left_by_machines, b"late", datas, default)

    for folder in disk.left_by_processes:
        again = MemoryServer(config=moving, folder=folder)
        again.step_wall_clock(6000)
        client = again.connect()
        assert client.ask(b"get work\r\n") == END
        assert {*items(client, b"late")} - {b"held"} == {*datas}, "the remaining items are moved after the restart"
        again.stop()
        again.settle()


@pytest.mark.parametrize(
    ("limit", "is_taken"),
    [
        ("maxItems = 1", False),
        ("maxSize = 3", False),
        ("maxItemSize = 3", False),
        ("maxItems = 1\ndiscardOldWhenFull = true", True),
    ],
)
def test_full_target_drops_item_and_logs_it(limit: str, is_taken: bool, tmp_path: Path) -> None:
    config = config_of("expireToQueue = 'late'", queue("late", limit))
    server = MemoryServer(config=config, folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"late", b"old")
    for times in (1, 2):
        put(client, b"work", b"expired", expiry=1)
        server.advance(2)
        with capturedLogs() as events:
            assert client.ask(b"get work\r\n") == END
        assert bool(warnings_about(events, "work", "late")) is not is_taken, "each drop is logged"
        assert stat(client, b"work", "refused_moves") == str(0 if is_taken else times)
    assert items(client, b"late") == ([b"expired"] if is_taken else [b"old"])
    server.advance(A_WHILE_S)
    assert (stat(client, b"work", "items"), stat(client, b"work", "open_transactions")) == ("0", "0")
    server.restart()
    client = server.connect()
    assert [items(client, name) for name in (b"work", b"late")] == [[], []], "the item is lost for good"


@pytest.mark.parametrize(
    ("settings", "rest"),
    [
        ("", ""),
        ("expireToQueue = 'late'", ""),
        ("expireToQueue = 'late'", queue("late", "maxItems = 1")),
        ("expireToQueue = 'late'", queue("late", "maxItemSize = 1")),
        ("expireToQueue = 'late'", queue("late", "fanoutOnly = true")),
        ("expireToQueue = 'late'", alias("late", "a", "b")),
        ("expireToQueue = 'late'\nmaxExpireSweep = 1", ""),
    ],
)
@pytest.mark.parametrize("is_refused_once", [False, True])
def test_every_expired_item_is_counted_once(settings: str, rest: str, is_refused_once: bool) -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of(settings, rest, server="expirationTimerFrequency = '1s'"))
    client = server.connect()
    put(client, b"work", b"one", b"two", b"three", expiry=1)
    storage.refusal = "disk full" if is_refused_once else None
    for _ in range(A_WHILE_S):
        server.advance(1)
    storage.refusal = None
    for _ in range(A_WHILE_S):
        server.advance(1)
    assert stat(client, b"work", "expired_items") == "3"
    assert (stat(client, b"work", "items"), stat(client, b"work", "open_transactions")) == ("0", "0")


def test_item_is_kept_and_moved_later_if_target_failed(tmp_path: Path) -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of("expireToQueue = 'late'"))
    client = server.connect()
    put(client, b"work", b"one", b"two", expiry=1)
    put(client, b"work", b"fresh")
    server.advance(2)
    storage.refusal = "disk full"
    for request in (b"get work/peek\r\n", b"get work\r\n"):
        assert client.ask(request) == value(request.split()[1], b"fresh")
    for _ in range(10):
        server.advance(A_WHILE_S)
        assert client.ask(b"get work\r\nget work/peek\r\nget work/open\r\nget late\r\n") == END * 4
    assert stat(client, b"work", "open_transactions") == "2", "the items are kept"
    storage.refusal = None
    server.advance(A_WHILE_S)
    assert stat(client, b"work", "open_transactions") == "0"
    assert items(client, b"late") == [b"one", b"two"]

    put(client, b"work", b"three", expiry=1)
    server.advance(2)
    storage.holds_commits = True
    client.send(b"get work\r\n")
    server.settle()
    storage.end_commits(b"work")
    server.settle()
    storage.end_commits(b"late", error=OSError("no space left on device"))
    server.settle()
    end_commits(server, storage)
    assert client.take() == END
    assert client.ask(b"get late\r\n") == END, "the target lost it"
    server.advance(A_WHILE_S)
    assert items(client, b"late") == [b"three"]
    assert stat(client, b"work", "open_transactions") == "0"

    for number in range(8):
        disk = FaultyDisk()
        folder = tmp_path / str(number)
        server = MemoryServer(config=config_of("expireToQueue = 'late'"), folder=folder, disk=disk)
        client = server.connect()
        put(client, b"work", b"one", b"two", expiry=1)
        server.advance(2)
        disk.fail("write", errno.EIO, times=2, after=number)
        for _ in range(5):
            assert not client.ask(b"get work\r\n").startswith(b"VALUE")
            server.advance(A_WHILE_S)
        disk.mend()
        client.ask(b"get work\r\n")
        server.advance(A_WHILE_S)
        server.crash()
        client = server.connect()
        assert ({*items(client, b"late")}, items(client, b"work")) == ({b"one", b"two"}, []), "nothing is lost"


# Error queues.


Failing: TypeAlias = Callable[[MemoryServer, MemoryClient], object]


def abort(server: MemoryServer, client: MemoryClient) -> None:
    assert client.ask(b"get work/abort\r\n") == END


def let_time_out(server: MemoryServer, client: MemoryClient) -> None:
    server.advance(5)


def disconnect(server: MemoryServer, client: MemoryClient) -> None:
    client.disconnect()
    server.settle()


def quit_(server: MemoryServer, client: MemoryClient) -> None:
    assert client.ask(b"quit\r\n") == b""


def get_disconnected_by_server(server: MemoryServer, client: MemoryClient) -> None:
    assert client.ask(b"nonsense\r\n").startswith(b"CLIENT_ERROR")
    assert client.is_closed


ABORT_TIMEOUT_DISCONNECT: Final = (abort, let_time_out, disconnect)
TIMEOUT: Final = "openTransactionTimeout = '5s'\n"


def error_queue_after(most: int) -> str:
    return f"{TIMEOUT}maxRedeliveries = {most}\nerrorQueue = 'bad'\n"


def fail(server: MemoryServer, data: bytes, way: Failing = abort, name: bytes = b"work") -> None:
    """Open a read of this item and make it fail in this way."""
    client = server.connect()
    assert client.ask(b"get %b/open\r\n" % name) == value(name + b"/open", data)
    way(server, client)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_item_moves_to_error_queue_after_max_redeliveries_failures(most: int, tmp_path: Path) -> None:
    server = MemoryServer(config=config_of(error_queue_after(most)), folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", b"poison", b"next")
    for _ in range(most - 1):
        fail(server, b"poison")
    assert is_missing(client, b"bad")
    fail(server, b"poison")
    assert client.ask(b"get work/peek\r\n") == value(b"work/peek", b"next")
    assert (stat(client, b"work", "items"), stat(client, b"work", "open_transactions")) == ("1", "0")
    assert items(client, b"bad") == [b"poison"]
    server.restart()
    client = server.connect()
    assert [items(client, name) for name in (b"work", b"bad")] == [[b"next"], []]


@pytest.mark.parametrize(
    "ways",
    [
        *permutations(ABORT_TIMEOUT_DISCONNECT),
        *((way,) * 3 for way in (*ABORT_TIMEOUT_DISCONNECT, quit_, get_disconnected_by_server)),
    ],
)
def test_aborts_timeouts_and_disconnects_count_alike(ways: tuple[Failing, ...]) -> None:
    server = MemoryServer(config=config_of(error_queue_after(3)))
    client = server.connect()
    put(client, b"work", b"poison")
    for way in ways:
        assert is_missing(client, b"bad")
        fail(server, b"poison", way)
    assert [items(client, name) for name in (b"work", b"bad")] == [[], [b"poison"]]


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("again", [MemoryServer.restart, MemoryServer.crash])
def test_stop_and_restart_count_no_failure(again: Callable[[MemoryServer], None], most: int, tmp_path: Path) -> None:
    server = MemoryServer(config=config_of(error_queue_after(most)), folder=tmp_path / "queues")
    put(server.connect(), b"work", b"item")
    for _ in range(4):
        assert server.connect().ask(b"get work/open\r\n") == value(b"work/open", b"item")
        again(server)
    again(server)
    for _ in range(most - 1):
        fail(server, b"item")
    assert is_missing(server.connect(), b"bad")
    assert server.connect().ask(b"get work/peek\r\n") == value(b"work/peek", b"item")
    fail(server, b"item")
    assert items(server.connect(), b"bad") == [b"item"]


def test_disconnected_waiter_counts_no_failure() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of(error_queue_after(2)))
    writer, reader = server.connect(), server.connect()
    for left in range(3):
        waiter = server.connect()
        assert waiter.ask(b"get work/t=4000\r\n") == b""
        storage.holds_commits = True
        writer.send(set_(b"work", b"item"))
        server.settle()
        waiter.disconnect()
        server.settle()
        end_commits(server, storage)
        assert writer.take() == STORED
        assert stat(reader, b"work", "items") == "1", "the item came back"
        if left < 2:
            assert reader.ask(b"get work\r\n") == value(b"work", b"item")
    fail(server, b"item")
    assert is_missing(reader, b"bad"), "this was its first failure"
    fail(server, b"item")
    assert items(reader, b"bad") == [b"item"]


@pytest.mark.parametrize("again", [MemoryServer.restart, MemoryServer.crash])
@pytest.mark.parametrize(
    ("settings", "done"),
    [
        ("", ""),
        ("defaultJournalSize = 500\nminJournalCompactDelay = 'none'\n", "journal_rewrites"),
        ("maxMemorySize = 1000\nmaxJournalSize = 2000\nminJournalCompactDelay = 'none'\n", "journal_rotations"),
    ],
)
def test_failures_are_counted_across_restarts(
    again: Callable[[MemoryServer], None], settings: str, done: str, tmp_path: Path
) -> None:
    server = MemoryServer(config=config_of(error_queue_after(3) + settings), folder=tmp_path / "queues")
    put(server.connect(), b"work", b"poison")
    for _ in range(2):
        holder, other = server.connect(), server.connect()
        assert holder.ask(b"get work/open\r\n") == value(b"work/open", b"poison")
        others = [b"%0100d" % number for number in range(50)]
        put(other, b"work", *others)
        assert items(other, b"work") == others
        assert holder.ask(b"get work/abort\r\n") == END
        assert not done or stat(other, b"work", done) != "0"
        again(server)
        assert is_missing(server.connect(), b"bad")
    fail(server, b"poison")
    assert [items(server.connect(), name) for name in (b"work", b"bad")] == [[], [b"poison"]]


@pytest.mark.parametrize(
    "settings", ["", "errorQueue = 'bad'", "maxRedeliveries = 1", "maxRedeliveries = 1\nerrorQueue = 'none'"]
)
def test_nothing_moves_without_an_error_queue(settings: str) -> None:
    server = MemoryServer(config=config_of(TIMEOUT + settings))
    client = server.connect()
    put(client, b"work", b"item", b"next")
    for _ in range(5):
        for way in ABORT_TIMEOUT_DISCONNECT:
            fail(server, b"item", way)
    assert is_missing(client, b"bad")
    assert items(client, b"work") == [b"item", b"next"]


@pytest.mark.parametrize("sync", ["0", "'never'"])
@pytest.mark.parametrize("way", ABORT_TIMEOUT_DISCONNECT)
def test_item_stays_open_until_safe_in_error_queue(way: Failing, sync: str, tmp_path: Path) -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of(error_queue_after(1)))
    client, looker = server.connect(), server.connect()
    put(client, b"work", b"poison")
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"poison")
    storage.holds_commits = True
    if way is abort:
        client.send(b"get work/abort\r\n")
        server.settle()
    else:
        way(server, client)
    if b"work" in storage.committing:
        storage.end_commits(b"work")
        server.settle()
    assert (stat(looker, b"work", "open_transactions"), stat(looker, b"work", "items")) == ("1", "0")
    storage.end_commits(b"bad")
    server.settle()
    assert stat(looker, b"work", "open_transactions") == "0"
    end_commits(server, storage)
    assert [items(looker, name) for name in (b"work", b"bad")] == [[], [b"poison"]]

    default = f"[default]\nsyncJournal = {sync}\n"
    disk = WatchedDisk(tmp_path / "queues")
    server = MemoryServer(config=config_of(error_queue_after(1), default), folder=tmp_path / "queues", disk=disk)
    client = server.connect()
    put(client, b"work", b"poison")
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"poison")
    with disk.watching():
        if way is abort:  # behind a put, so that its own queue is written before the error queue
            assert client.ask(set_(b"work", b"next") + b"get work/abort\r\n") == STORED + END
        else:
            way(server, client)
    assert_nothing_is_lost(disk.left_by_processes, b"bad", [b"poison"], default)
    if sync == "0":
        assert_nothing_is_lost(disk.left_by_machines, b"bad", [b"poison"], default)


@pytest.mark.parametrize("way", ABORT_TIMEOUT_DISCONNECT)
def test_item_refused_by_error_queue_returns_to_head(way: Failing, tmp_path: Path) -> None:
    server = MemoryServer(
        config=config_of(error_queue_after(2), queue("bad", "maxItems = 1")), folder=tmp_path / "queues"
    )
    client = server.connect()
    put(client, b"bad", b"first")
    put(client, b"work", b"poison", b"next")
    for _ in range(4):
        fail(server, b"poison", way)
        assert (stat(client, b"work", "items"), stat(client, b"work", "open_transactions")) == ("2", "0")
    assert items(client, b"bad") == [b"first"]
    fail(server, b"poison", way)
    assert [items(client, name) for name in (b"work", b"bad")] == [[b"next"], [b"poison"]], (
        "now the error queue has room"
    )


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (queue("work", "errorQueue = 'work'"), queue("work", "errorQueue = 'bad'")),
        (
            queue("work", "errorQueue = 'work'\nmaxRedeliveries = 3"),
            queue("work", "errorQueue = 'bad'\nmaxRedeliveries = 3"),
        ),
        ("[default]\nerrorQueue = 'bad'\n", "[default]\nerrorQueue = 'bad'\n" + queue("bad", "errorQueue = 'none'")),
    ],
)
def test_queue_cannot_be_its_own_error_queue(text: str, mended: str) -> None:
    with pytest.raises(ConfigError, match="errorQueue"):
        loads(text)
    loads(mended)


def test_item_starts_without_failures_in_error_queue(tmp_path: Path) -> None:
    config = config_of(error_queue_after(2), queue("bad", "maxRedeliveries = 2\nerrorQueue = 'worse'"))
    server = MemoryServer(config=config, folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", b"poison", expiry=100)
    fail(server, b"poison")
    server.advance(10)
    fail(server, b"poison")
    assert (tmp_path / "queues" / "bad").read_bytes() == addx(b"poison", EPOCH_MS + 10_000)
    server.advance(1000)
    fail(server, b"poison", name=b"bad", way=disconnect)
    assert is_missing(client, b"worse"), "this was its first failure in this queue"
    fail(server, b"poison", name=b"bad", way=disconnect)
    assert items(client, b"worse") == [b"poison"]


# Examples of the guide.


def guide_config() -> Config:
    """Return the configuration in the guide's chapter on delayed work."""
    (chapter,) = re.findall(r"^## Delayed work\n(.*?)^## ", GUIDE, re.MULTILINE | re.DOTALL)
    (text,) = re.findall(r"^```toml\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL)
    return loads(text)


def test_guide_example_of_delayed_retry_works(tmp_path: Path) -> None:
    server = MemoryServer(config=guide_config(), folder=tmp_path / "queues")
    client = server.connect()
    server.advance(0.25)
    put(client, b"jobs", b"job")
    for _ in range(2):
        fail(server, b"job", disconnect, name=b"jobs")
        fail(server, b"job", disconnect, name=b"jobs")
        assert server.connect().ask(b"get jobs/open\r\n") == value(b"jobs/open", b"job")
        server.advance(5 * 60)
        for _ in range(10 * 60):
            assert client.ask(b"get jobs/peek\r\n") == END
            server.advance(1)
        server.advance(1)
        assert client.ask(b"get jobs/peek\r\n") == value(b"jobs/peek", b"job")
        assert stat(client, b"jobs_later", "items") == "0"
