"""Syncs of journal queues: when a sync is due, one at a time for each queue, and the rewrite after a failed one."""

from __future__ import annotations

import errno

import pytest
from attrs import evolve
from twisted.logger import LogLevel, capturedLogs

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.storage.folder_resources import SYNCS_AT_ONCE
from kestrel.storage.log.sync_scheduler import RETRY_S
from tests.memcache_text import STORED, set_, value
from tests.storage.backends import journal_only
from tests.storage.conftest import AllowDescriptors
from tests.storage.faulty_server import (
    DELETED,
    NEVER,
    PERIOD_S,
    PERIODIC,
    SYNCED,
    Client,
    Machine,
    Server,
    drain,
    is_server_error,
)

HOURLY = evolve(PERIODIC, sync_journal_ms=3_600_000)


@pytest.fixture
def server(machine: Machine) -> Server:
    """Return a server without pending jobs."""
    return started(machine)


def started(machine: Machine, others: QueueSettings = NEVER) -> Server:
    server = machine.start()
    server.reload(others)
    server.settle()
    return server


def pass_period(server: Server) -> None:
    """Let the due syncs begin. No thread runs."""
    server.pass_time(PERIOD_S)


def sync_period(server: Server) -> None:
    """Let a period pass, and run all jobs."""
    pass_period(server)
    server.settle()


def fail_next_sync(server: Server) -> None:
    server.disk.fail("sync", errno.EIO, times=1)


def run_job(server: Server) -> None:
    server.threads.run_one()
    server.end_tick()


# One sync of a queue at a time.


def test_sync_longer_than_its_period_is_not_repeated_meanwhile(server: Server, client: Client) -> None:
    for _ in range(3):
        assert client.ask(set_(b"periodic", b"a")) == STORED
        pass_period(server)
        assert len(server.threads) == 1


def test_changes_during_a_sync_are_synced_within_the_next_period(server: Server, client: Client) -> None:
    client.ask(set_(b"periodic", b"before"))
    pass_period(server)
    server.disk.before("sync_folder", lambda: client.ask(set_(b"periodic", b"during")))  # after the sync of the file
    server.settle()
    assert drain(server.without_power(), b"periodic") == [b"before"]
    sync_period(server)
    assert drain(server.without_power(), b"periodic") == [b"before", b"during"]


def test_put_after_a_reload_to_0_waits_for_its_own_sync(server: Server, client: Client) -> None:
    client.ask(set_(b"periodic", b"a"))
    pass_period(server)
    server.reload(SYNCED, b"periodic")
    assert client.ask(set_(b"periodic", b"b")) == b""
    assert len(server.threads) == 1
    run_job(server)
    assert (client.received(), len(server.threads)) == (b"", 1)
    server.settle()
    assert client.received() == STORED


def test_put_during_a_sync_that_fails_is_acknowledged_when_safe(server: Server, client: Client) -> None:
    client.ask(set_(b"periodic", b"a"))
    pass_period(server)
    server.reload(SYNCED, b"periodic")
    client.ask(set_(b"periodic", b"b"))
    fail_next_sync(server)
    server.settle()
    assert client.received() == STORED
    assert drain(server.without_power(), b"periodic") == [b"a", b"b"]


@journal_only
def test_queues_waiting_for_a_sync_hold_few_descriptors(server: Server, client: Client) -> None:
    server.reload(SYNCED)
    queues = 3 * SYNCS_AT_ONCE
    for number in range(queues):
        client.ask(set_(b"queue-%d" % number, b"a"))
    assert len(server.disk.open_descriptors) <= queues + SYNCS_AT_ONCE
    server.settle()
    assert client.received() == STORED * queues
    assert len(server.disk.open_descriptors) <= queues


@journal_only
def test_queue_deleted_before_its_sync_begins_does_not_return(
    machine: Machine, allow_descriptors: AllowDescriptors
) -> None:
    allow_descriptors(15)  # syncs may use an eighth of them
    server = started(machine, SYNCED)
    first, waiting, deleting = server.client(), server.client(), server.client()
    first.ask(set_(b"first", b"a"))
    waiting.ask(set_(b"waiting", b"b"))
    deleting.ask(b"delete waiting\r\n")
    server.settle()
    assert (first.received(), waiting.received(), deleting.received()) == (STORED, STORED, DELETED)
    assert list(server.files()) == ["first"]


# Changes of syncJournal.


class TestSyncJournalReload:
    @pytest.mark.parametrize(
        ("old", "new", "is_synced_at_once"),
        [
            pytest.param(NEVER, SYNCED, True, id="from never to 0"),
            pytest.param(NEVER, PERIODIC, False, id="from never to a period"),
            pytest.param(HOURLY, PERIODIC, False, id="from a long to a short period"),
        ],
    )
    def test_earlier_items_are_synced_as_the_new_setting_says(
        self, server: Server, client: Client, old: QueueSettings, new: QueueSettings, is_synced_at_once: bool
    ) -> None:
        server.reload(old, b"work")
        client.talk(set_(b"work", b"a"))
        server.reload(new, b"work")
        server.settle()
        assert drain(server.without_power(), b"work") == ([b"a"] if is_synced_at_once else [])
        sync_period(server)
        assert drain(server.without_power(), b"work") == [b"a"]

    def test_from_never_to_0_loses_nothing_if_the_sync_fails(self, server: Server, client: Client) -> None:
        items = [b"%d" % number for number in range(5)]
        for data in items:
            assert client.talk(set_(b"work", data)) == STORED
        server.reload(SYNCED, b"work")
        fail_next_sync(server)
        assert client.ask(set_(b"work", b"new")) == b""
        while not (reply := client.received()):
            run_job(server)
        assert reply == STORED
        for _ in range(2):
            assert drain(server.without_power(), b"work") == [*items, b"new"]
            server.settle()
        assert drain(server, b"work") == [*items, b"new"]

    def test_from_a_long_period_to_0_does_not_delay_puts(self, server: Server, client: Client) -> None:
        server.reload(HOURLY, b"work")
        client.talk(set_(b"work", b"a"))
        server.reload(SYNCED, b"work")
        assert client.talk(set_(b"work", b"b")) == STORED
        assert drain(server.without_power(), b"work") == [b"a", b"b"]

    def test_from_0_to_never_answers_waiting_puts(self, server: Server, client: Client) -> None:
        assert client.ask(set_(b"synced", b"a")) == b""
        server.reload(NEVER, b"synced")
        server.settle()
        assert client.received() == STORED


# Syncs without a free descriptor, and syncs of replayed files.


@journal_only
def test_sync_without_a_descriptor_is_retried(server: Server, client: Client) -> None:
    client.talk(set_(b"synced", b"a"))
    restarted = server.crashed()
    restarted.disk.fail("open", errno.EMFILE, times=1)  # in the sync of the replayed file
    restarted.settle()
    assert drain(restarted.without_power(), b"synced") == [b"a"]
    assert "sync" not in restarted.disk.calls
    restarted.pass_time(RETRY_S)
    restarted.settle()
    assert "sync" in restarted.disk.calls
    assert list(restarted.files()) == ["synced"]


@journal_only
def test_put_waits_for_a_sync_that_is_retried(machine: Machine, allow_descriptors: AllowDescriptors) -> None:
    allow_descriptors(4)  # one for a journal file, one for a sync
    server = started(machine, SYNCED)
    first, waiting, last = server.client(), server.client(), server.client()
    first.ask(set_(b"first", b"a"))
    waiting.ask(set_(b"waiting", b"b"))
    last.ask(set_(b"last", b"c"))  # closes the file of the queue "waiting"
    server.disk.fail("open", errno.EMFILE, times=1)
    server.settle()
    assert (first.received(), waiting.received(), last.received()) == (STORED, b"", STORED)
    server.pass_time(RETRY_S)
    server.settle()
    assert waiting.received() == STORED
    assert drain(server.without_power(), b"waiting") == [b"b"]


def test_put_is_answered_if_its_queue_is_deleted_and_the_sync_fails(server: Server, client: Client) -> None:
    client.talk(set_(b"synced", b"a"))
    restarted = server.crashed()
    restarted.end_tick()  # begins the sync of the replayed file
    waiting, deleting = restarted.client(), restarted.client()
    assert waiting.ask(set_(b"synced", b"b")) == b""
    assert deleting.ask(b"delete synced\r\n") == b""
    fail_next_sync(restarted)
    restarted.settle()
    assert (waiting.received(), deleting.received()) == (STORED, DELETED)
    assert drain(restarted, b"synced") == []


# The rewrite after a failed sync.


class TestRewrite:
    @pytest.fixture
    def rewriting(self, server: Server, client: Client) -> Server:
        """Return a server with two items whose sync has just failed."""
        client.talk(set_(b"periodic", b"a") + set_(b"periodic", b"b"))
        pass_period(server)
        fail_next_sync(server)
        run_job(server)
        return server

    @journal_only
    def test_replies_wait_until_the_new_file_is_safe(self, rewriting: Server) -> None:
        client = rewriting.client()
        assert client.ask(b"get periodic\r\n") == b""
        pass_period(rewriting)
        replies = []
        while len(rewriting.threads):
            assert not replies or crash_points.PACK_FINISHED in rewriting.disk.calls
            run_job(rewriting)
            if reply := client.received():
                replies.append(reply)
        assert replies == [value(b"periodic", b"a")]
        sync_period(rewriting)
        assert drain(rewriting.without_power(), b"periodic") == [b"b"]

    def test_replies_wait_after_a_put_during_the_failed_sync(self, server: Server, client: Client) -> None:
        client.ask(set_(b"periodic", b"a"))
        pass_period(server)
        assert client.ask(set_(b"periodic", b"b")) == STORED
        fail_next_sync(server)
        server.threads.run_one()
        assert client.ask(b"get periodic\r\n") == b""
        pass_period(server)
        assert client.received() == b""
        server.settle()
        assert client.received() == value(b"periodic", b"a")

    def test_waiting_replies_are_sent_when_the_queue_is_deleted(self, rewriting: Server) -> None:
        client, deleting = rewriting.client(), rewriting.client()
        assert client.ask(b"get periodic\r\n") == b""
        reply = deleting.ask(b"delete periodic\r\n")
        rewriting.settle()
        assert (client.received(), reply + deleting.received()) == (value(b"periodic", b"a"), DELETED)

    def test_put_in_the_tick_in_which_the_queue_fails_is_an_error(self, server: Server, client: Client) -> None:
        client.talk(set_(b"periodic", b"a"))
        pass_period(server)
        fail_next_sync(server)
        server.disk.fail("rename", errno.EIO, times=1)  # the rewrite cannot rotate the file
        later = server.client()
        client.send(set_(b"periodic", b"recorded"))
        server.threads.run_one()
        later.send(set_(b"periodic", b"later"))
        server.settle()
        assert is_server_error(client.received())
        assert is_server_error(later.received())
        assert drain(server, b"periodic") == [b"a"]


@pytest.mark.parametrize("operation", ["sync_folder", "rename", "cut", "erase", "open"])
@pytest.mark.parametrize("after", range(6))
def test_put_refused_during_a_rewrite_is_not_delivered(
    server: Server, client: Client, operation: str, after: int
) -> None:
    server.reload(PERIODIC, b"work")
    client.talk(set_(b"work", b"old"))
    server.reload(SYNCED, b"work")
    assert client.ask(set_(b"work", b"committing")) == b""
    second = server.client()
    assert second.ask(set_(b"work", b"recorded")) == b""
    fail_next_sync(server)
    server.disk.fail(operation, errno.EIO, times=1, after=after)
    server.settle()
    replies = {b"old": STORED, b"committing": client.received(), b"recorded": second.received()}
    server.disk.mend()
    for data in (b"later", b"last"):
        replies[data] = client.talk(set_(b"work", data))
    assert replies[b"last"] == STORED
    assert drain(server, b"work") == [data for data, reply in replies.items() if reply == STORED]


@journal_only
def test_commit_with_changes_from_before_and_after_a_rewrite_is_kept_or_refused_as_a_whole(
    server: Server, client: Client
) -> None:
    server.reload(PERIODIC, b"work")
    client.talk(set_(b"work", b"old"))
    server.reload(SYNCED, b"work")
    puts = {b"committing": client, b"before": server.client(), b"after": server.client()}
    client.ask(set_(b"work", b"committing"))
    puts[b"before"].ask(set_(b"work", b"before"))
    fail_next_sync(server)
    replies = {b"old": STORED, b"committing": b""}
    while not replies[b"committing"]:
        server.threads.run_one()
        replies[b"committing"] = client.received()
    puts[b"after"].send(set_(b"work", b"after"))
    fail_next_sync(server)
    server.settle()
    for data in (b"before", b"after"):
        replies[data] = puts[data].received()
    server.disk.mend()
    for data in (b"later", b"last"):
        replies[data] = client.talk(set_(b"work", data))
    assert replies[b"last"] == STORED
    assert drain(server, b"work") == [data for data, reply in replies.items() if reply == STORED]


@journal_only
@pytest.mark.parametrize("operation", ["sync", "sync_folder", "rename", "cut", "write", "open"])
@pytest.mark.parametrize("after", range(8))
@pytest.mark.parametrize("is_killed", [False, True], ids=["goes on", "is killed"])
def test_commit_that_a_rewrite_waits_for_is_kept_or_refused_as_a_whole(
    server: Server, client: Client, operation: str, after: int, is_killed: bool
) -> None:
    """The sync fails within a tick. A later put of this tick and an earlier one have the same commit."""
    server.reload(PERIODIC, b"work")
    client.talk(set_(b"work", b"old"))
    pass_period(server)
    assert len(server.threads) == 1
    server.reload(SYNCED, b"work")
    fail_next_sync(server)
    puts = {b"earlier": client, b"later": server.client(), b"next tick": server.client()}
    client.send(set_(b"work", b"earlier"))
    server.threads.run_one()
    puts[b"later"].send(set_(b"work", b"later"))
    server.end_tick()
    server.disk.fail(operation, errno.EIO, times=2, after=after)
    server.threads.run_one()
    puts[b"next tick"].ask(set_(b"work", b"next tick"))
    server.settle()
    replies = {b"old": STORED} | {data: putting.received() for data, putting in puts.items()}
    if is_killed and operation != "cut":
        server = server.crashed()
    else:
        server.disk.mend()
    for data in (b"a", b"b", b"c"):
        replies[data] = server.client().talk(set_(b"work", data))
    assert replies[b"c"] == STORED
    assert drain(server, b"work") == [data for data, reply in replies.items() if reply == STORED]


class TestFailedRewriteWithoutWaitingReplies:
    @pytest.fixture
    def failing(self, server: Server, client: Client) -> Server:
        """Return a server whose sync and rewrite have failed. `client` has an open read of the only item.

        The disk works again.
        """
        client.talk(set_(b"periodic", b"a"))
        assert client.talk(b"get periodic/open\r\n") == value(b"periodic/open", b"a")
        server.disk.fail("sync", errno.EIO)
        sync_period(server)
        server.disk.mend()
        return server

    def test_next_commit_fails_and_requeues_open_reads(self, failing: Server, client: Client) -> None:
        assert is_server_error(client.talk(b"get periodic/close\r\n"))
        assert client.talk(set_(b"periodic", b"b")) == STORED
        assert drain(failing.crashed(), b"periodic") == [b"a", b"b"]
        assert drain(failing, b"periodic") == [b"a", b"b"]

    def test_waiter_is_served_after_the_next_commit_only(self, failing: Server, client: Client) -> None:
        waiting = failing.client()
        assert waiting.talk(b"get periodic/t=5000\r\n") == b""
        failing.pass_time(4.9)
        failing.settle()
        assert waiting.received() == b""
        client.talk(b"get periodic/close\r\n")
        assert waiting.received() == value(b"periodic/t=5000", b"a")

    def test_second_put_is_stored(self, failing: Server, client: Client) -> None:
        assert is_server_error(client.talk(set_(b"periodic", b"b")))
        assert client.talk(set_(b"periodic", b"c")) == STORED
        client.hang_up()
        assert drain(failing, b"periodic") == [b"a", b"c"]

    def test_queue_can_be_deleted(self, failing: Server, client: Client) -> None:
        assert client.talk(b"delete periodic\r\n") == DELETED
        assert failing.files() == {}
        assert client.talk(set_(b"periodic", b"new")) == STORED
        assert drain(failing.crashed(), b"periodic") == [b"new"]

    def test_stop_makes_the_items_safe_or_logs_an_error(self, failing: Server) -> None:
        with capturedLogs() as events:
            failing.stop()
        is_logged = any(event["log_level"] >= LogLevel.error for event in events)
        assert is_logged or drain(failing.without_power(), b"periodic") == [b"a"]


# A stop.


class TestStop:
    @pytest.fixture
    def stored(self, server: Server, client: Client) -> Server:
        """Return a server with an unsynced item."""
        client.talk(set_(b"periodic", b"a"))
        return server

    def stop_by_jobs(self, server: Server) -> None:
        """Stop, run one job after the other until the folder is unlocked, and check that no job remains."""
        server.begin_stop()
        while not server.is_stopped:
            server.threads.run_one()
        assert len(server.threads) == 0

    def test_syncs_before_the_period_ends(self, stored: Server) -> None:
        self.stop_by_jobs(stored)
        assert drain(stored.without_power(), b"periodic") == [b"a"]

    def test_waits_for_a_sync(self, stored: Server, client: Client) -> None:
        pass_period(stored)
        client.ask(set_(b"periodic", b"during"))
        stored.begin_stop()
        assert (len(stored.threads), stored.is_stopped) == (1, False)
        stored.threads.run_all()
        assert stored.is_stopped
        assert drain(stored.without_power(), b"periodic") == [b"a", b"during"]

    @pytest.mark.parametrize("jobs", [0, 1, 2])
    def test_waits_for_the_rewrite_after_a_failed_sync(self, stored: Server, jobs: int) -> None:
        pass_period(stored)
        fail_next_sync(stored)
        for _ in range(jobs):
            stored.threads.run_one()
        self.stop_by_jobs(stored)
        assert drain(stored.without_power(), b"periodic") == [b"a"]
