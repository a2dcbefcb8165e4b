"""A process may end while what its files hold is in the system's memory alone, because a sync of them has failed.

The next process reads them there as if all were well, and its syncs of them succeed and mean nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count

import pytest

from kestrel.disk.folders import FAILED_SYNCS_FOLDER
from kestrel.testing.faults import FaultyDisk, ProcessDied
from tests.storage.serving import END, PERIOD_S, STORED, Client, Machine, Server, drain, put, value

QUEUES = [b"synced", b"periodic"]


def no_sync_of_it_works(disk: FaultyDisk) -> None:
    disk.fail("sync", errno.EIO)


def be_safe(server: Server) -> None:
    """Let everything be synced that is to be."""
    for _ in range(3):
        server.pass_time(PERIOD_S)
        server.settle()


def fill(client: Client, queue: bytes) -> None:
    """Two items that are stored, of which one is taken."""
    assert client.talk(put(queue, b"taken")) == STORED
    assert client.talk(put(queue, b"before")) == STORED
    assert client.talk(b"get %b\r\n" % queue) == value(queue, b"taken")


def spoil(server: Server, queue: bytes) -> list[bytes]:
    """Something is written, and no sync of it works. Returns what was stored and not taken."""
    fill(server.client(), queue)
    be_safe(server)
    no_sync_of_it_works(server.disk)
    is_stored = server.client().talk(put(queue, b"in vain")) == STORED
    be_safe(server)
    return [b"before", b"in vain"] if is_stored else [b"before"]


def notes(server: Server) -> list[str]:
    folder = server.folder / FAILED_SYNCS_FOLDER.decode()
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def kill(machine: Machine, server: Server) -> Server:
    return machine.kill(server)


def stop(machine: Machine, server: Server) -> Server:
    return machine.restart(server)


@pytest.mark.parametrize("end", [kill, stop])
@pytest.mark.parametrize("queue", QUEUES)
def test_what_is_stored_after_a_start_outlives_a_power_failure_though_a_sync_had_failed_before_it(
    machine: Machine, queue: bytes, end: Callable[[Machine, Server], Server]
) -> None:
    server = machine.start()
    stored = spoil(server, queue)
    server = end(machine, server)
    be_safe(server)
    assert server.client().talk(put(queue, b"after")) == STORED
    be_safe(server)
    assert drain(machine.fail_power(server), queue) == [*stored, b"after"]


@pytest.mark.parametrize("queue", QUEUES)
def test_what_is_taken_after_a_start_does_not_come_back_though_a_sync_had_failed_before_it(
    machine: Machine, queue: bytes
) -> None:
    server = machine.start()
    spoil(server, queue)
    server = machine.kill(server)
    be_safe(server)
    assert server.client().talk(b"get %b\r\n" % queue) == value(queue, b"before")
    be_safe(server)
    assert b"before" not in drain(machine.fail_power(server), queue)


@pytest.mark.parametrize("queue", QUEUES)
def test_a_start_while_still_no_sync_works_loses_nothing(machine: Machine, queue: bytes) -> None:
    server = machine.start()
    stored = spoil(server, queue)
    server = machine.kill(server, arrange=no_sync_of_it_works)
    be_safe(server)
    if server.client().talk(put(queue, b"in vain again")) == STORED:
        stored.append(b"in vain again")
    be_safe(server)
    server = machine.kill(server)
    be_safe(server)
    assert server.client().talk(put(queue, b"after")) == STORED
    be_safe(server)
    assert drain(machine.fail_power(server), queue) == [*stored, b"after"]


@pytest.mark.parametrize("queue", QUEUES)
def test_a_queue_that_is_mended_is_not_mended_at_the_next_start(machine: Machine, queue: bytes) -> None:
    server = machine.start()
    fill(server.client(), queue)
    be_safe(server)
    server.disk.fail("sync", errno.EIO, times=1)
    server.client().talk(put(queue, b"in vain"))
    be_safe(server)
    assert server.client().talk(put(queue, b"after")) == STORED
    be_safe(server)
    assert notes(server) == []


def test_a_queue_that_is_deleted_leaves_no_note(machine: Machine) -> None:
    server = machine.start()
    spoil(server, b"periodic")
    assert notes(server) == ["periodic"]
    server = machine.kill(server, arrange=no_sync_of_it_works)
    client = server.client()
    client.talk(b"delete periodic\r\n")
    server.disk.mend()
    be_safe(server)
    client.talk(b"delete periodic\r\n")
    be_safe(server)
    assert (client.talk(b"get periodic\r\n"), notes(server)) == (END, [])


def test_a_note_that_cannot_be_written_stops_nobody(machine: Machine) -> None:
    server = machine.start()
    fill(server.client(), b"synced")
    folder = server.folder / FAILED_SYNCS_FOLDER.decode()
    folder.write_bytes(b"somebody has put a file here")
    server.disk.fail("sync", errno.EIO, times=1)
    assert server.client().talk(put(b"synced", b"in vain")).startswith(b"SERVER_ERROR")
    assert server.client().talk(put(b"synced", b"after")) == STORED
    assert drain(machine.fail_power(server), b"synced") == [b"before", b"after"]


def test_a_start_that_ends_at_any_operation_loses_nothing(machine: Machine) -> None:
    spoilt, queue = machine.start(), b"synced"
    stored = spoil(spoilt, queue)
    for calls in count():
        try:
            dead = machine.kill(spoilt, arrange=lambda disk: disk.die_after(calls))  # noqa: B023
        except ProcessDied:
            continue  # before it came to any queue
        is_through = not dead.start_failures
        server = machine.kill(dead)
        dead.disk.die_after(1_000_000)
        be_safe(server)
        assert server.client().talk(put(queue, b"after")) == STORED
        be_safe(server)
        assert drain(machine.fail_power(server), queue) == [*stored, b"after"]
        if is_through:
            break
    assert calls > 10


@pytest.mark.parametrize("operation", ["open_append", "open_read", "write", "read", "sync", "sync_folder", "rename"])
@pytest.mark.parametrize("queue", QUEUES)
def test_a_start_that_an_operation_fails_loses_nothing(machine: Machine, queue: bytes, operation: str) -> None:
    spoilt = machine.start()
    stored = spoil(spoilt, queue)
    for after in range(6):
        server = machine.kill(spoilt, arrange=lambda disk: disk.fail(operation, errno.EIO, times=1, after=after))  # noqa: B023
        be_safe(server)
        server.disk.mend()
        be_safe(server)
        client = server.client()
        replies = [client.talk(put(queue, b"after")) for _ in range(2)]
        assert replies[-1] == STORED
        be_safe(server)
        assert drain(machine.fail_power(server), queue) == [*stored, *[b"after"] * replies.count(STORED)]
