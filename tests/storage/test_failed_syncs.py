"""A process may end after a failed sync, when the data of its files is only in the memory of the system.

The next process reads these files without an error. Its syncs of them succeed and do not make them durable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from kestrel.disk.folders import FAILED_SYNCS_FOLDER
from kestrel.testing.faults import FaultyDisk, ProcessDied
from tests.memcache_text import END, STORED, set_, value
from tests.storage.faulty_server import PERIOD_S, Machine, Server, drain

QUEUES = [b"synced", b"periodic"]


def fail_all_syncs(disk: FaultyDisk) -> None:
    disk.fail("sync", errno.EIO)


def sync(server: Server) -> Server:
    """Let all pending syncs happen, and return the server."""
    for _ in range(3):
        server.pass_time(PERIOD_S)
        server.settle()
    return server


def put_safely(server: Server, queue: bytes, data: bytes) -> None:
    """Put an item and sync it."""
    assert server.client().talk(set_(queue, data)) == STORED
    sync(server)


def fill(server: Server, queue: bytes) -> None:
    """Put two items and take the first."""
    client = server.client()
    for data in (b"taken", b"before"):
        assert client.talk(set_(queue, data)) == STORED
    assert client.talk(b"get %b\r\n" % queue) == value(queue, b"taken")
    sync(server)


def fail_syncs(server: Server, queue: bytes) -> list[bytes]:
    """Fill the queue, and put another item while all syncs fail. Returns the acknowledged items."""
    fill(server, queue)
    fail_all_syncs(server.disk)
    is_stored = server.client().talk(set_(queue, b"in vain")) == STORED
    sync(server)
    return [b"before", b"in vain"] if is_stored else [b"before"]


def notes(server: Server) -> list[str]:
    """Return the names of the queues whose failed sync is recorded on disk."""
    folder = server.folder / FAILED_SYNCS_FOLDER.decode()
    return [path.name for path in folder.iterdir()] if folder.exists() else []


@pytest.mark.parametrize("end", [Server.killed, Server.restarted])
@pytest.mark.parametrize("queue", QUEUES)
def test_put_after_a_start_survives_power_failure(
    server: Server, queue: bytes, end: Callable[[Server], Server]
) -> None:
    stored = fail_syncs(server, queue)
    server = sync(end(server))
    put_safely(server, queue, b"after")
    assert drain(server.without_power(), queue) == [*stored, b"after"]


@pytest.mark.parametrize("queue", QUEUES)
def test_get_after_a_start_survives_power_failure(server: Server, queue: bytes) -> None:
    fail_syncs(server, queue)
    server = sync(server.killed())
    assert server.client().talk(b"get %b\r\n" % queue) == value(queue, b"before")
    sync(server)
    assert b"before" not in drain(server.without_power(), queue)


@pytest.mark.parametrize("queue", QUEUES)
def test_start_whose_syncs_fail_too_loses_nothing(server: Server, queue: bytes) -> None:
    stored = fail_syncs(server, queue)
    server = sync(server.killed(arrange=fail_all_syncs))
    if server.client().talk(set_(queue, b"in vain again")) == STORED:
        stored.append(b"in vain again")
    server = sync(sync(server).killed())
    put_safely(server, queue, b"after")
    assert drain(server.without_power(), queue) == [*stored, b"after"]


@pytest.mark.parametrize("queue", QUEUES)
def test_repaired_queue_leaves_no_note(server: Server, queue: bytes) -> None:
    fill(server, queue)
    server.disk.fail("sync", errno.EIO, times=1)
    server.client().talk(set_(queue, b"in vain"))
    sync(server)
    put_safely(server, queue, b"after")
    assert notes(server) == []


def test_deleted_queue_leaves_no_note(server: Server) -> None:
    fail_syncs(server, b"periodic")
    assert notes(server) == ["periodic"]
    server = server.killed(arrange=fail_all_syncs)
    client = server.client()
    client.talk(b"delete periodic\r\n")
    server.disk.mend()
    sync(server)
    client.talk(b"delete periodic\r\n")
    sync(server)
    assert (client.talk(b"get periodic\r\n"), notes(server)) == (END, [])


def test_unwritable_note_does_not_stop_the_queue(server: Server) -> None:
    fill(server, b"synced")
    folder = server.folder / FAILED_SYNCS_FOLDER.decode()
    folder.write_bytes(b"a file in place of the folder")
    server.disk.fail("sync", errno.EIO, times=1)
    assert server.client().talk(set_(b"synced", b"in vain")).startswith(b"SERVER_ERROR")
    assert server.client().talk(set_(b"synced", b"after")) == STORED
    assert drain(server.without_power(), b"synced") == [b"before", b"after"]


def test_start_that_dies_at_any_operation_loses_nothing(server: Server) -> None:
    first, queue = server, b"synced"
    stored = fail_syncs(first, queue)
    for calls in count():
        try:
            dead = first.killed(arrange=partial(FaultyDisk.die_after, calls=calls))
        except ProcessDied:
            continue  # before the first queue
        is_complete = not dead.start_failures
        server = dead.killed()
        dead.disk.die_after(1_000_000)
        put_safely(sync(server), queue, b"after")
        assert drain(server.without_power(), queue) == [*stored, b"after"]
        if is_complete:
            break
    assert calls > 10


@pytest.mark.parametrize("operation", ["open_append", "open_read", "write", "read", "sync", "sync_folder", "rename"])
@pytest.mark.parametrize("queue", QUEUES)
def test_failing_operation_in_a_start_loses_nothing(machine: Machine, queue: bytes, operation: str) -> None:
    first = machine.start()
    stored = fail_syncs(first, queue)
    for after in range(6):
        fail = partial(FaultyDisk.fail, operation=operation, error=errno.EIO, times=1, after=after)
        server = sync(first.killed(arrange=fail))
        server.disk.mend()
        sync(server)
        client = server.client()
        replies = [client.talk(set_(queue, b"after")) for _ in range(2)]
        assert replies[-1] == STORED
        sync(server)
        assert drain(server.without_power(), queue) == [*stored, *[b"after"] * replies.count(STORED)]
