"""Items that move to other queues, with targets that fail, are slow or refuse, and during a stop."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from twisted.logger import LogEvent, capturedLogs, formatEvent

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.errors import StorageError
from kestrel.queues.moves import MAX_CONCURRENT_MOVES, MOVE_RETRY_S
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedStorage
from tests.config_tables import alias, queue
from tests.memcache_text import END, NOT_STORED, STORED, items, put, set_, stat, value
from tests.promises.slow_server import SlowServer

DISK_FAILED: Final = b"SERVER_ERROR disk failed\r\n"


def config_of(*tables: str, server: str = "") -> Config:
    """Return a configuration with these settings of the server, and tables of queues and aliases."""
    return loads("\n".join(["maxOpenTransactions = 10", server, *tables]))


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def counts(server: MemoryServer, name: bytes) -> tuple[int, int]:
    """Return the number of items in a queue and of open reads. Moving items are open reads."""
    found = server.manager.known(name)
    assert found is not None
    return found.store.items, found.store.open_reads


class FailedQueue:
    """A queue whose storage has failed and cannot be reopened until `mend`."""

    def __init__(self, server: MemoryServer, storage: SteppedStorage, name: bytes) -> None:
        self._storage = storage
        server.manager.queue(name).store.failure = "disk failed"
        storage.reopen_refusal = "disk failed"

    def mend(self) -> None:
        self._storage.reopen_refusal = None


# A failing target.


def test_waiter_gets_error_when_target_fails_at_limit_of_moves() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of(queue("work", "expireToQueue = 'late'")))
    client, waiter = server.connect(), server.connect()
    put(client, b"work", *numbered(0, MAX_CONCURRENT_MOVES + 500), expiry=1)
    server.advance(2)
    storage.holds_commits = True
    assert waiter.ask(b"get work/t=60000\r\n") == b""
    assert counts(server, b"work") == (500, MAX_CONCURRENT_MOVES)
    storage.end_commits(b"work")
    server.settle()
    storage.end_commits(b"late", error=StorageError("disk failed"))
    assert waiter.take() == DISK_FAILED
    assert client.ask(b"get work\r\n") == DISK_FAILED, "later gets fail too"
    storage.holds_commits = False
    while storage.committing:
        storage.end_commits()
        server.settle()
    server.advance(MOVE_RETRY_S)
    assert client.ask(b"get work\r\n") == END
    assert items(client, b"late") == numbered(0, MAX_CONCURRENT_MOVES + 500), "nothing is lost, and the order is kept"


def move_failures(events: Sequence[LogEvent]) -> list[str]:
    """Return the log lines about items that cannot be moved."""
    return [text for event in events if "cannot be moved" in (text := str(formatEvent(event)))]


def test_failing_target_is_logged_once_until_it_recovers() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of(queue("work", "expireToQueue = 'late'")))
    client = server.connect()
    for time in range(2):
        with capturedLogs() as events:
            late = FailedQueue(server, storage, b"late")
            for _ in range(20):
                put(client, b"work", b"one", b"two", expiry=-1)
                assert client.ask(b"get work\r\n") == END
                server.advance(MOVE_RETRY_S)
            late.mend()
            server.advance(MOVE_RETRY_S)
        (line,) = move_failures(events)
        assert line == "Items of queue work cannot be moved to late yet: disk failed"
        assert items(client, b"late") == [b"one", b"two"] * 20, f"the {time + 1}. time"


def test_limits_apply_while_items_wait_for_failing_target() -> None:
    storage = SteppedStorage()
    config = config_of(queue("work", "maxItems = 1500\nexpireToQueue = 'late'"))
    server = MemoryServer(storage, config=config)
    client = server.connect()
    put(client, b"work", *numbered(0, 1500), expiry=1)
    FailedQueue(server, storage, b"late")
    server.advance(2)
    replies = client.ask(set_(b"work", b"new") * 1200)
    assert replies == STORED * MAX_CONCURRENT_MOVES + NOT_STORED * 200, "there was room for each item that left"
    assert counts(server, b"work") == (1500, MAX_CONCURRENT_MOVES)


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_failing_target_does_not_block_items_for_another(is_reloaded: bool) -> None:
    failing = "maxRedeliveries = 1\nerrorQueue = 'bad'\n"
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of(queue("work", failing + "expireToQueue = 'late'")))
    client = server.connect()
    late = FailedQueue(server, storage, b"late")
    put(client, b"work", b"expired", expiry=1)
    put(client, b"work", b"poison")
    server.advance(2)
    assert client.ask(b"get work/open\r\n") == value(b"work/open", b"poison")
    if is_reloaded:
        server.reload(config_of(queue("work", failing)))
    assert client.ask(b"get work/abort\r\n") == END
    assert items(client, b"bad") == [b"poison"]
    assert counts(server, b"work") == (0, 1), "the expired item still waits"
    late.mend()
    server.advance(MOVE_RETRY_S)
    assert items(client, b"late") == [b"expired"]


# A target that refuses.


@pytest.mark.parametrize(
    ("target", "tables", "kept"),
    [
        ("both", [queue("full", "maxItems = 1"), alias("both", "kept", "full")], b"kept"),
        ("both", [queue("full", "maxItems = 1"), alias("both", "full", "kept")], b"kept"),
        ("full", [queue("full", "maxItems = 1"), queue("full+kept", "maxItems = 'none'")], b"full+kept"),
    ],
)
def test_partly_refused_item_is_stored_once_by_the_others(target: str, tables: list[str], kept: bytes) -> None:
    failing = queue("work", f"maxRedeliveries = 1\nerrorQueue = '{target}'")
    server = MemoryServer(config=config_of(failing, *tables))
    client = server.connect()
    put(client, b"full", b"first")
    assert client.ask(b"get %b\r\n" % kept) == END
    put(client, b"work", b"poison", b"next")
    assert client.ask(b"get work/open\r\nget work/abort\r\n") == value(b"work/open", b"poison") + END
    assert counts(server, b"work") == (1, 0)
    assert [items(client, name) for name in (kept, b"full", b"work")] == [[b"poison"], [b"first"], [b"next"]]
    assert stat(client, b"work", "refused_moves") == "0"


# Long chains.


@pytest.mark.parametrize(("refused", "logged"), [(1, "1 item"), (2, "2 items")])
def test_refused_items_are_logged_with_name_of_queue(refused: int, logged: str) -> None:
    server = MemoryServer(config=config_of(queue("größe", "expireToQueue = 'late'"), queue("late", "maxItems = 1")))
    name = "größe".encode()
    client = server.connect()
    put(client, b"late", b"x")
    put(client, name, *numbered(0, refused), expiry=1)
    server.advance(2)
    with capturedLogs() as events:
        assert client.ask(b"get %b\r\n" % name) == END
        server.settle()
    lines = [text for event in events if "refused" in (text := str(formatEvent(event)))]
    assert lines == [f"The target queue refused {logged} of queue größe"]


def test_chain_of_targets_may_be_longer_than_stack_depth() -> None:
    length = 250
    chain = [queue(f"q{number}", f"expireToQueue = 'q{number + 1}'") for number in range(length)]
    server = MemoryServer(config=config_of(*chain))
    client = server.connect()
    for number in range(length):
        put(client, b"q%d" % number, b"%d" % number, expiry=1)
    server.advance(2)
    assert client.ask(b"get q0\r\n") == END
    found = {each.name: each.store.open_reads for each in server.manager.all_queues()}
    assert found == {b"q%d" % number: 0 for number in range(length + 1)}
    assert [items(client, b"q%d" % number) for number in range(1, length + 1)] == [[b"%d" % n] for n in range(length)]


# Stopping.


SLOW_TARGET: Final = config_of(
    queue("work", "maxAge = '10s'\nexpireToQueue = 'late'"),
    queue("late", "syncJournal = 0"),
    server="expirationTimerFrequency = '1s'",
)


@pytest.mark.parametrize("is_target_safe", [True, False])
def test_stop_waits_for_moving_items_which_end_in_one_queue(is_target_safe: bool, tmp_path: Path) -> None:
    server = SlowServer(tmp_path / "queues", SLOW_TARGET)
    client = server.connect()
    assert server.ask(client, b"".join(set_(b"work", data) for data in numbered(0, 3))) == STORED * 3
    server.advance(11)
    assert counts(server, b"work") == (0, 3), "the target is not synced yet"
    if not is_target_safe:
        server.disk.fail("sync", errno.EIO, times=1)
    client.disconnect()
    stopped: list[None] = []
    server.stop().addCallback(stopped.append)
    server.settle()
    assert stopped == [], "the result of the moves is not known yet"
    server.end_threads()
    assert stopped == [None]
    client = MemoryServer(config=config_of(), folder=tmp_path / "queues").connect()
    found = [items(client, name) for name in (b"work", b"late")]
    assert found == ([[], numbered(0, 3)] if is_target_safe else [numbered(0, 3), []])


def test_stop_does_not_wait_for_failing_target() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=config_of(queue("work", "expireToQueue = 'late'")))
    client = server.connect()
    put(client, b"work", *numbered(0, 3), expiry=1)
    FailedQueue(server, storage, b"late")
    server.advance(2)
    assert client.ask(b"get work\r\n") == END
    assert counts(server, b"work") == (0, 3)
    stopped: list[None] = []
    server.stop().addCallback(stopped.append)
    server.settle()
    assert stopped == [None]
    assert server.clock.getDelayedCalls() == []


def test_item_is_put_again_only_where_it_was_lost() -> None:
    storage = SteppedStorage()
    server = MemoryServer(storage, config=loads("[[queues]]\nname = 'work'\nexpireToQueue = 'parent'"))
    client = server.connect()
    assert client.ask(b"get parent+a\r\nget parent+b\r\n" + set_(b"work", b"x", expiry=1)) == END + END + STORED
    storage.holds_commits = True
    server.step_wall_clock(2000)
    client.send(b"get work\r\n")
    server.settle()
    for _ in range(5):
        if b"parent+b" in storage.committing:
            storage.end_commits(b"parent+b", error=StorageError("cannot be written"))
        if storage.committing:
            storage.end_commits()
        server.advance(1)
    storage.holds_commits = False
    while storage.committing:
        storage.end_commits()
        server.settle()
    server.advance(2)
    assert [items(server.connect(), name) for name in (b"parent", b"parent+a", b"parent+b")] == [[b"x"]] * 3


def test_discarding_queue_stays_bounded_while_expired_items_cannot_move() -> None:
    storage = SteppedStorage()
    settings = "maxItems = 50\ndiscardOldWhenFull = true\nexpireToQueue = 'late'"
    server = MemoryServer(storage, config=loads(f"[[queues]]\nname = 'work'\n{settings}"))
    client = server.connect()
    server.manager.queue(b"late").store.failure = "disk failed"
    storage.reopen_refusal = "disk failed"
    for _ in range(60):
        assert client.ask(set_(b"work", b"x", expiry=1) * 50) == STORED * 50
        server.advance(2)
    work = server.manager.queue(b"work")
    assert work.store.open_reads == MAX_CONCURRENT_MOVES
    assert work.store.items <= 50
    assert work.counters.discarded > 0
