"""A queue dies in a commit and nowhere else, so that no reply about it is wrong: neither given nor taken back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.journal.fileset import group_by_queue
from tests.storage.backends import journal_only
from tests.storage.conftest import AllowDescriptors
from tests.storage.serving import (
    STORED,
    Client,
    Machine,
    Server,
    drain,
    is_server_error,
    put,
)

SMALL = QueueSettings(
    max_memory_size_bytes=100,
    max_journal_size_bytes=300,
    default_journal_size_bytes=300,
    min_journal_compact_delay_ms=None,
)


def item(number: int) -> bytes:
    return b"%02d" % number + b"x" * 60


def upkeep_of(server: Server):
    return server.storage._maintenance[server.manager.known(b"work").store]


def test_a_sync_that_fails_with_nothing_to_sync_costs_no_put(machine: Machine) -> None:
    server = machine.start()
    client, other = server.client(), server.client()
    client.talk(put(b"periodic", b"a"))
    client.talk(b"get periodic\r\n")
    server.pass_time(1)
    server.settle()
    client.ask(b"flush periodic\r\n")  # of an empty queue: it records nothing
    client.received()
    server.pass_time(1)
    server.disk.fail("sync", errno.EIO, times=1)
    client.send(put(b"periodic", b"precious"))
    server.threads.run_all()
    other.send(b"get other\r\nget periodic/peek\r\n")
    server.settle()
    assert client.received() == STORED
    assert drain(server, b"periodic") == [b"precious"]


@journal_only
def test_an_item_is_not_given_twice_when_the_sync_for_a_pack_and_its_mending_fail(machine: Machine) -> None:
    server = machine.start()
    server.reload(SMALL)
    client, other = server.client(), server.client()
    for number in range(12):
        client.talk(put(b"work", item(number)))
    server.settle()
    while True:
        client.ask(b"get work\r\n")
        if upkeep_of(server).rewriter.is_running:
            break
        server.settle()
    server.disk.fail("sync", errno.EIO, after=1, times=2)  # the pack is synced, then the queue's sync fails
    client.send(b"get work\r\n")
    server.threads.run_all()
    other.send(b"get work\r\n")
    server.settle()
    replies = [client.received(), other.received()]
    server.disk.mend()
    given = [reply.split(b"\r\n")[1] for reply in replies if reply.startswith(b"VALUE")]
    left = drain(server, b"work")
    assert given + left == sorted({*given, *left})
    assert len(given) + len(left) >= 9


class TestAfterARestartWithSyncJournal0:
    """What was loaded may be unsynced, so that a failed sync has it written anew."""

    @pytest.fixture
    def server(self, machine: Machine) -> Server:
        server = machine.start()
        server.client().talk(put(b"synced", b"old"))
        return machine.restart(server)

    @pytest.mark.parametrize("operation", ["sync", "sync_folder"])
    def test_a_put_that_was_answered_with_an_error_does_not_come_back(self, server: Server, operation: str) -> None:
        client = server.client()
        server.disk.fail(operation, errno.EIO, times=2)
        assert is_server_error(client.talk(put(b"synced", b"new")))
        server.disk.mend()
        assert drain(server, b"synced") == [b"old"]

    @journal_only
    def test_a_put_whose_new_file_is_safe_is_acknowledged_and_there(self, machine: Machine, server: Server) -> None:
        client = server.client()
        server.disk.fail("sync", errno.EIO, times=1)
        server.disk.before(
            crash_points.PACK_PUBLISHED_FOR_GOOD, lambda: server.disk.fail("rename", errno.EIO, times=1)
        )
        assert client.talk(put(b"synced", b"new")) == STORED
        server.disk.mend()
        assert drain(machine.fail_power(server), b"synced") == [b"old", b"new"]
        client.talk(put(b"synced", b"finds that it died"))
        assert drain(server, b"synced")[:2] == [b"old", b"new"]


@journal_only
def test_a_queue_read_behind_is_read_again_after_its_files_were_left_half_replaced(machine: Machine) -> None:
    server = machine.start()
    client = server.client()
    for number in range(30):
        client.talk(put(b"work", item(number)))
    server.stop()
    machine._others = QueueSettings(
        max_memory_size_bytes=100, max_journal_size_bytes=0, min_journal_compact_delay_ms=None
    )
    server = machine.start(server.folder)
    server.settle()
    client = server.client()
    queue = server.manager.known(b"work").store
    for _ in range(30):
        client.ask(b"get work\r\n")
        while len(server.threads) and not upkeep_of(server).rewriter.is_publishing:
            server.threads.run_one()
        client.received()
        if upkeep_of(server).rewriter.is_publishing and queue.behind_offset < queue.history.current_start:
            break
    while queue.mem_items:
        client.ask(b"get work\r\n")
    server.disk.fail("sync_folder", errno.EIO, after=1, times=1)
    server.settle()
    replies = []
    for _ in range(3):
        replies.append(client.talk(b"get work\r\n"))
        server.pass_time(60)
    assert not is_server_error(replies[-1])


@journal_only
def test_rotations_after_syncs_leave_no_more_files_open_than_there_may_be(
    machine: Machine, allow_descriptors: AllowDescriptors
) -> None:
    allow_descriptors(20)  # a quarter of which may be journal files
    server = machine.start()
    server.reload(QueueSettings(sync_journal_ms=0, max_memory_size_bytes=10))
    clients: list[Client] = []
    for number in range(40):
        client = server.client()
        client.send(put(b"q%d" % number, b"x" * 20))
        clients.append(client)
    server.settle()
    assert [client.received() for client in clients] == [STORED] * 40
    assert len(server.disk.open_descriptors) <= 5


def test_a_file_with_an_absurd_number_does_not_hide_the_files_of_others(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "other.999999999999999999").write_bytes(b"")
    server = machine.start(folder)
    server.reload(QueueSettings(max_memory_size_bytes=10))
    assert server.client().talk(put(b"work", b"x" * 20)) == STORED
    server = machine.restart(server)
    assert drain(server, b"work") == [b"x" * 20]


def test_files_of_one_number_are_replayed_in_one_order_however_they_are_listed() -> None:
    names = [b"work.7", b"work.007", b"work"]
    orders = [group_by_queue(listed)[b"work"].in_replay_order() for listed in (names, names[::-1])]
    assert orders[0] == orders[1]


def test_the_folder_listing_of_a_queue_with_many_files_is_sorted_in_no_time() -> None:
    names = [b"work.%d" % number for number in range(20_000)]
    files = group_by_queue(names)[b"work"]
    assert files.in_replay_order() == [os.fsencode(f"work.{number}") for number in range(20_000)]


@journal_only
def test_a_queue_that_cannot_be_written_at_the_start_keeps_no_other_from_being_served(machine: Machine) -> None:
    server = machine.start()
    client = server.client()
    client.talk(put(b"other", b"served"))
    for number in range(9):
        client.talk(put(b"work", item(number)))
    client.talk(b"get work/open\r\n")
    folder = server.folder
    machine._others = SMALL
    crashed = machine.crash(server)
    assert drain(crashed, b"other") == [b"served"]
    again = machine.start_with_faults(folder, lambda disk: disk.fail("write", errno.EIO, times=1))
    again.storage.reload_inline_bytes = 100
    assert again.start_failures == []
    assert drain(again, b"other") == [b"served"]
    assert drain(again, b"work") == [item(number) for number in range(9)]
