"""A queue can fail only in a commit, so that every reply about it is right. A queue that failed is opened again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from attrs import evolve

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.journal.fileset import group_by_queue
from kestrel.storage.journal.rewriter import JournalRewriter
from tests.memcache_text import STORED, set_
from tests.storage.backends import journal_only
from tests.storage.conftest import AllowDescriptors
from tests.storage.faulty_server import PERIOD_S, Machine, Server, drain, is_server_error

SMALL = QueueSettings(
    max_memory_size_bytes=100,
    max_journal_size_bytes=300,
    default_journal_size_bytes=300,
    min_journal_compact_delay_ms=None,
)

ITEMS = [b"%02d" % number + b"x" * 60 for number in range(30)]
GET = b"get work\r\n"


def put_items(server: Server, count: int) -> None:
    client = server.client()
    for data in ITEMS[:count]:
        client.talk(set_(b"work", data))


def rewriter_of(server: Server) -> JournalRewriter:
    return server.storage._maintenance[server.manager.known(b"work").store].rewriter


def test_failed_sync_without_unsynced_data_costs_no_put(server: Server) -> None:
    client, other = server.client(), server.client()
    client.talk(set_(b"periodic", b"a"))
    client.talk(b"get periodic\r\n")
    server.pass_time(1)
    server.settle()
    client.ask(b"flush periodic\r\n")  # writes nothing, because the queue is empty
    client.received()
    server.pass_time(1)
    server.disk.fail("sync", errno.EIO, times=1)
    client.send(set_(b"periodic", b"precious"))
    server.threads.run_all()
    other.send(b"get other\r\nget periodic/peek\r\n")
    server.settle()
    assert client.received() == STORED
    assert drain(server, b"periodic") == [b"precious"]


@journal_only
def test_failed_syncs_during_a_pack_deliver_no_item_twice(server: Server) -> None:
    server.reload(SMALL)
    put_items(server, 12)
    client, other = server.client(), server.client()
    client.ask(GET)
    while not rewriter_of(server).is_running:
        server.settle()
        client.ask(GET)
    server.disk.fail("sync", errno.EIO, after=1, times=2)  # the pack is synced, then the queue's sync fails
    client.send(GET)
    server.threads.run_all()
    other.send(GET)
    server.settle()
    replies = [client.received(), other.received()]
    server.disk.mend()
    taken = [reply.split(b"\r\n")[1] for reply in replies if reply.startswith(b"VALUE")]
    left = drain(server, b"work")
    assert taken + left == sorted({*taken, *left})
    assert len(taken) + len(left) >= 9


class TestRestartWithSyncJournal0:
    """Loaded data may be unsynced, so a failed sync makes the server write it again."""

    @pytest.fixture
    def server(self, machine: Machine) -> Server:
        server = machine.start()
        server.client().talk(set_(b"synced", b"old"))
        return server.restarted()

    @pytest.mark.parametrize("operation", ["sync", "sync_folder"])
    def test_put_that_failed_does_not_come_back(self, server: Server, operation: str) -> None:
        client = server.client()
        server.disk.fail(operation, errno.EIO, times=2)
        assert is_server_error(client.talk(set_(b"synced", b"new")))
        server.disk.mend()
        assert drain(server, b"synced") == [b"old"]

    @journal_only
    def test_put_in_a_safe_new_file_is_acknowledged(self, server: Server) -> None:
        client = server.client()
        server.disk.fail("sync", errno.EIO, times=1)
        server.disk.before(crash_points.PACK_PUBLISHED_FOR_GOOD, lambda: server.disk.fail("rename", errno.EIO, times=1))
        assert client.talk(set_(b"synced", b"new")) == STORED
        server.disk.mend()
        assert drain(server.without_power(), b"synced") == [b"old", b"new"]
        client.talk(set_(b"synced", b"finds the failed queue"))
        assert drain(server, b"synced")[:2] == [b"old", b"new"]


@journal_only
def test_half_replaced_files_are_read_again(server: Server) -> None:
    put_items(server, 30)
    server.machine.others = evolve(SMALL, max_journal_size_bytes=0)
    server = server.restarted()
    server.settle()
    client = server.client()
    queue, rewriter = server.manager.known(b"work").store, rewriter_of(server)
    for _ in range(30):
        client.ask(GET)
        while len(server.threads) and not rewriter.is_publishing:
            server.threads.run_one()
        client.received()
        if rewriter.is_publishing and queue.behind_offset < queue.history.current_start:
            break
    while queue.mem_items:
        client.ask(GET)
    server.disk.fail("sync_folder", errno.EIO, after=1, times=1)
    server.settle()
    replies = []
    for _ in range(3):
        replies.append(client.talk(GET))
        server.pass_time(60)
    assert not is_server_error(replies[-1])


@journal_only
def test_rotations_keep_no_more_files_open_than_allowed(machine: Machine, allow_descriptors: AllowDescriptors) -> None:
    allow_descriptors(20)  # a quarter may be journal files
    server = machine.start()
    server.reload(QueueSettings(sync_journal_ms=0, max_memory_size_bytes=10))
    clients = [server.client() for _ in range(40)]
    for number, client in enumerate(clients):
        client.send(set_(b"q%d" % number, b"x" * 20))
    server.settle()
    assert [client.received() for client in clients] == [STORED] * 40
    assert len(server.disk.open_descriptors) <= 5


def test_huge_file_number_hides_no_file_of_another_queue(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "other.999999999999999999").write_bytes(b"")
    server = machine.start(folder)
    server.reload(QueueSettings(max_memory_size_bytes=10))
    assert server.client().talk(set_(b"work", b"x" * 20)) == STORED
    server = server.restarted()
    assert drain(server, b"work") == [b"x" * 20]


def test_replay_order_does_not_depend_on_the_listing() -> None:
    names = [b"work.7", b"work.007", b"work"]
    orders = [group_by_queue(listed)[b"work"].in_replay_order() for listed in (names, names[::-1])]
    assert orders[0] == orders[1]


@journal_only
def test_queue_that_cannot_be_written_does_not_block_others(server: Server) -> None:
    client = server.client()
    client.talk(set_(b"other", b"served"))
    put_items(server, 9)
    client.talk(b"get work/open\r\n")
    server.machine.others = SMALL
    crashed = server.crashed()
    assert drain(crashed, b"other") == [b"served"]
    again = server.crashed(lambda disk: disk.fail("write", errno.EIO, times=1))
    again.storage.reload_inline_bytes = 100
    assert again.start_failures == []
    assert drain(again, b"other") == [b"served"]
    assert drain(again, b"work") == ITEMS[:9]


# A queue fails while a sync is running.


@pytest.mark.parametrize("sync_fails", [True, False], ids=["the sync fails", "the sync succeeds"])
def test_put_that_waits_for_a_sync_when_its_queue_fails_is_refused_or_durable(
    machine: Machine, sync_fails: bool
) -> None:
    server = machine.start()
    waiting, later = server.client(), server.client()
    assert waiting.ask(set_(b"synced", b"waiting")) == b""
    if sync_fails:
        server.disk.fail("sync", errno.EIO, times=1)
    server.disk.fail("write", errno.EIO, times=1)
    later.talk(set_(b"synced", b"refused"))
    kept = [b"waiting"] if waiting.received() == STORED else []
    assert drain(server.without_power(), b"synced") == kept
    assert drain(server, b"synced") == kept


def test_put_after_a_queue_fails_during_a_sync_survives_power_failure(machine: Machine) -> None:
    """The old sync fails after the queue is loaded again. Another sync of the same file proves nothing."""
    server = machine.start()
    waiting, client = server.client(), server.client()
    assert waiting.ask(set_(b"synced", b"waiting")) == b""
    server.disk.fail("sync", errno.EIO, times=1)
    server.disk.fail("write", errno.EIO, times=1)
    client.ask(set_(b"synced", b"refused"))
    kept = []
    for data in (b"first", b"second", b"third"):
        putting = server.client()
        if STORED in (putting.ask(set_(b"synced", data)), putting.talk(b"")):
            kept.append(data)
    assert kept[-1:] == [b"third"]
    if waiting.received() == STORED:
        kept.insert(0, b"waiting")
    assert drain(server.without_power(), b"synced") == kept


def test_unsynced_items_of_a_queue_that_fails_during_a_sync_become_durable(machine: Machine) -> None:
    server = machine.start()
    client = server.client()
    assert client.ask(set_(b"periodic", b"acknowledged")) == STORED
    server.pass_time(PERIOD_S)
    assert len(server.threads) == 1
    server.disk.fail("sync", errno.EIO, times=1)
    server.disk.fail("write", errno.EIO, times=1)
    assert is_server_error(client.ask(set_(b"periodic", b"refused")))
    client.ask(b"get periodic/peek\r\n")
    server.settle()
    for _ in range(3):
        client.talk(b"get periodic/peek\r\n")
        server.pass_time(PERIOD_S)
        server.settle()
    assert drain(server.without_power(), b"periodic") == [b"acknowledged"]
