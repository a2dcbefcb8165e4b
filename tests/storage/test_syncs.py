"""The syncs of one queue: one at a time, when the settings say, and what follows one that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.disk.folders import ERASE_FOLDER
from kestrel.errors import QueueFailed
from kestrel.journal.records import encode_item
from kestrel.journal.writer import JournalWriter
from kestrel.storage.folder_resources import SYNCS_AT_ONCE, FolderResources
from kestrel.storage.jobs import Jobs
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.rewriter import JournalRewriter, JournalSyncScheduler
from kestrel.storage.log.sync_scheduler import RETRY_S
from kestrel.storage.log.sync_scheduler import SyncState as JournalSyncState
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.threads import SteppedThreads
from tests.storage.backends import journal_only
from tests.storage.conftest import AllowDescriptors
from tests.storage.serving import (
    NEVER,
    PERIOD_S,
    PERIODIC,
    STORED,
    SYNCED,
    Client,
    Machine,
    Server,
    drain,
    is_server_error,
    put,
    value,
)

DELETED = b"DELETED\r\n"


@pytest.fixture
def server(machine: Machine) -> Server:
    """A server with nothing left to do."""
    server = machine.start()
    server.settle()
    return server


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()


def let_period_pass(server: Server) -> None:
    """Let what is due begin; threads stand still."""
    server.pass_time(PERIOD_S)


def fail_next_sync(server: Server) -> None:
    server.disk.fail("sync", errno.EIO, times=1)


# One sync of a queue at a time.


def test_a_queue_whose_sync_outlasts_its_period_is_not_synced_twice_at_once(server: Server, client: Client) -> None:
    for _ in range(3):
        assert client.ask(put(b"periodic", b"a")) == STORED
        let_period_pass(server)
        assert len(server.threads) == 1


def test_what_was_written_during_a_sync_is_synced_within_the_period_after_it(
    machine: Machine, server: Server, client: Client
) -> None:
    client.ask(put(b"periodic", b"before"))
    let_period_pass(server)
    server.disk.before("sync_folder", lambda: client.ask(put(b"periodic", b"during")))  # the file has been synced then
    server.settle()
    assert drain(machine.fail_power(server), b"periodic") == [b"before"]
    let_period_pass(server)
    server.settle()
    assert drain(machine.fail_power(server), b"periodic") == [b"before", b"during"]


def test_a_put_whose_period_became_none_waits_for_the_sync_that_runs_and_then_for_its_own(
    server: Server, client: Client
) -> None:
    client.ask(put(b"periodic", b"a"))
    let_period_pass(server)
    server.reload(SYNCED, b"periodic")
    assert client.ask(put(b"periodic", b"b")) == b""
    assert len(server.threads) == 1
    server.threads.run_one()
    server.end_tick()
    assert (client.received(), len(server.threads)) == (b"", 1)
    server.settle()
    assert client.received() == STORED


def test_no_put_is_acknowledged_on_a_sync_that_follows_a_failed_one(
    machine: Machine, server: Server, client: Client
) -> None:
    client.ask(put(b"periodic", b"a"))
    let_period_pass(server)
    server.reload(SYNCED, b"periodic")
    client.ask(put(b"periodic", b"b"))
    fail_next_sync(server)
    server.settle()
    assert client.received() == STORED
    assert drain(machine.fail_power(server), b"periodic") == [b"a", b"b"]


@journal_only
def test_descriptors_are_bounded_however_many_queues_wait_for_their_sync(server: Server, client: Client) -> None:
    server.reload(SYNCED)
    queues = 3 * SYNCS_AT_ONCE
    for number in range(queues):
        client.ask(put(b"queue-%d" % number, b"a"))
    assert len(server.disk.open_descriptors) <= queues + SYNCS_AT_ONCE
    server.settle()
    assert client.received() == STORED * queues
    assert len(server.disk.open_descriptors) <= queues


@journal_only
def test_a_queue_that_is_deleted_before_the_turn_of_its_sync_does_not_come_back(
    machine: Machine, allow_descriptors: AllowDescriptors
) -> None:
    allow_descriptors(15)  # an eighth of which may be for syncs at once
    server = machine.start()
    server.reload(SYNCED)
    server.settle()
    first, waiting, deleting = server.client(), server.client(), server.client()
    first.ask(put(b"first", b"a"))
    waiting.ask(put(b"waiting", b"b"))
    deleting.ask(b"delete waiting\r\n")
    server.settle()
    assert (first.received(), waiting.received(), deleting.received()) == (STORED, STORED, DELETED)
    assert list(server.files()) == ["first"]


# Settings that change.


class TestSyncJournalChanges:
    def test_from_never_to_0_what_is_there_is_synced_at_once(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"a"))
        server.reload(SYNCED, b"work")
        server.settle()
        assert drain(machine.fail_power(server), b"work") == [b"a"]

    def test_from_never_to_0_a_sync_that_fails_loses_nothing_that_was_stored(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        stored = [b"%d" % number for number in range(5)]
        for data in stored:
            assert client.talk(put(b"work", data)) == STORED
        server.reload(SYNCED, b"work")
        fail_next_sync(server)
        assert client.talk(put(b"work", b"new")) == STORED
        assert drain(machine.fail_power(server), b"work") == [*stored, b"new"]
        assert drain(server, b"work") == [*stored, b"new"]

    def test_from_never_to_0_a_put_is_not_stored_before_it_is_safe(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"old"))
        server.reload(SYNCED, b"work")
        fail_next_sync(server)
        client.send(put(b"work", b"new"))
        server.end_tick()
        while not (reply := client.received()):
            server.threads.run_one()
            server.end_tick()
        assert reply == STORED
        assert drain(machine.fail_power(server), b"work") == [b"old", b"new"]

    def test_from_never_to_a_period_what_is_there_is_synced_within_it(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"a"))
        server.reload(PERIODIC, b"work")
        server.settle()
        assert drain(machine.fail_power(server), b"work") == []
        let_period_pass(server)
        server.settle()
        assert drain(machine.fail_power(server), b"work") == [b"a"]

    def test_from_a_long_period_to_0_a_put_does_not_wait_for_the_period(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        server.reload(evolve(PERIODIC, sync_journal_ms=3_600_000), b"work")
        client.talk(put(b"work", b"a"))
        server.reload(SYNCED, b"work")
        assert client.talk(put(b"work", b"b")) == STORED
        assert drain(machine.fail_power(server), b"work") == [b"a", b"b"]

    def test_from_a_long_period_to_a_short_one_what_is_there_is_synced_within_the_short_one(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        server.reload(evolve(PERIODIC, sync_journal_ms=3_600_000), b"work")
        client.talk(put(b"work", b"a"))
        server.reload(PERIODIC, b"work")
        let_period_pass(server)
        server.settle()
        assert drain(machine.fail_power(server), b"work") == [b"a"]

    def test_from_0_to_never_a_put_that_waits_is_answered(self, server: Server, client: Client) -> None:
        assert client.ask(put(b"synced", b"a")) == b""
        server.reload(NEVER, b"synced")
        server.settle()
        assert client.received() == STORED


# No descriptor for a sync.


class TestSyncThatFindsNoDescriptor:
    @journal_only
    def test_it_is_tried_again_and_is_no_failed_sync(self, machine: Machine, server: Server, client: Client) -> None:
        client.talk(put(b"synced", b"a"))
        again = machine.crash(server)
        again.disk.fail("open", errno.EMFILE, times=1)  # of the sync of what was loaded
        again.settle()
        assert drain(machine.fail_power(again), b"synced") == [b"a"]  # as it was loaded
        assert "sync" not in again.disk.calls
        again.pass_time(RETRY_S)
        again.settle()
        assert "sync" in again.disk.calls
        assert list(again.files()) == ["synced"]

    @journal_only
    def test_a_put_that_waits_for_it_is_stored_when_it_went_well(
        self, machine: Machine, allow_descriptors: AllowDescriptors
    ) -> None:
        allow_descriptors(4)  # for one journal file, and one sync at once
        server = machine.start()
        server.reload(SYNCED)
        server.settle()
        first, waiting, last = server.client(), server.client(), server.client()
        first.ask(put(b"first", b"a"))
        waiting.ask(put(b"waiting", b"b"))
        last.ask(put(b"last", b"c"))  # closes the file of the queue that waits
        server.disk.fail("open", errno.EMFILE, times=1)
        server.settle()
        assert (first.received(), waiting.received(), last.received()) == (STORED, b"", STORED)
        server.pass_time(RETRY_S)
        server.settle()
        assert waiting.received() == STORED
        assert drain(machine.fail_power(server), b"waiting") == [b"b"]


# What was loaded, and its sync.


def test_a_commit_that_waits_for_the_sync_of_what_was_loaded_is_answered_though_the_queue_is_deleted_and_it_fails(
    machine: Machine, server: Server, client: Client
) -> None:
    client.talk(put(b"synced", b"a"))
    again = machine.crash(server)
    again.end_tick()  # the sync of what was loaded is in a thread
    waiting, deleting = again.client(), again.client()
    assert waiting.ask(put(b"synced", b"b")) == b""
    assert deleting.ask(b"delete synced\r\n") == b""
    fail_next_sync(again)
    again.settle()
    assert (waiting.received(), deleting.received()) == (STORED, DELETED)
    assert drain(again, b"synced") == []


# The contents are rewritten.


class TestWhileTheContentsAreRewritten:
    @pytest.fixture
    def rewriting(self, server: Server, client: Client) -> Server:
        """Two items were stored, and the sync that followed has failed."""
        client.talk(put(b"periodic", b"a") + put(b"periodic", b"b"))
        let_period_pass(server)
        fail_next_sync(server)
        server.threads.run_one()
        server.end_tick()
        return server

    @journal_only
    def test_replies_wait_until_the_new_file_is_safe(self, machine: Machine, rewriting: Server) -> None:
        client = rewriting.client()
        assert client.ask(b"get periodic\r\n") == b""
        let_period_pass(rewriting)
        replies = []
        while len(rewriting.threads):
            assert not replies or crash_points.PACK_FINISHED in rewriting.disk.calls
            rewriting.threads.run_one()
            rewriting.end_tick()
            if reply := client.received():
                replies.append(reply)
        assert replies == [value(b"periodic", b"a")]
        let_period_pass(rewriting)
        rewriting.settle()
        assert drain(machine.fail_power(rewriting), b"periodic") == [b"b"]

    def test_replies_wait_for_it_after_a_put_that_came_during_the_sync_as_well(
        self, server: Server, client: Client
    ) -> None:
        client.ask(put(b"periodic", b"a"))
        let_period_pass(server)
        assert client.ask(put(b"periodic", b"b")) == STORED
        fail_next_sync(server)
        server.threads.run_one()
        assert client.ask(b"get periodic\r\n") == b""
        let_period_pass(server)
        assert client.received() == b""
        server.settle()
        assert client.received() == value(b"periodic", b"a")

    def test_replies_that_wait_leave_as_they_are_when_the_queue_is_deleted(self, rewriting: Server) -> None:
        client, deleting = rewriting.client(), rewriting.client()
        assert client.ask(b"get periodic\r\n") == b""
        told = deleting.ask(b"delete periodic\r\n")
        rewriting.settle()
        assert (client.received(), told + deleting.received()) == (value(b"periodic", b"a"), DELETED)


def test_a_put_recorded_in_the_tick_in_which_its_queue_dies_is_not_acknowledged(server: Server, client: Client) -> None:
    client.talk(put(b"periodic", b"a"))
    let_period_pass(server)
    fail_next_sync(server)
    server.disk.fail("rename", errno.EIO, times=1)  # the rewriting cannot set the file aside
    later = server.client()
    client.send(put(b"periodic", b"recorded"))
    server.threads.run_one()
    later.send(put(b"periodic", b"later"))
    server.settle()
    assert is_server_error(client.received())
    assert is_server_error(later.received())
    assert drain(server, b"periodic") == [b"a"]


class TestRewritingThatFailedWhileNobodyWaited:
    @pytest.fixture
    def doomed(self, server: Server, client: Client) -> Server:
        """Holds an open read of its only item; the sync has failed and so has the rewriting. The disk works again."""
        client.talk(put(b"periodic", b"a"))
        assert client.talk(b"get periodic/open\r\n") == value(b"periodic", b"a")
        server.disk.fail("sync", errno.EIO)
        let_period_pass(server)
        server.settle()
        server.disk.mend()
        return server

    def test_the_next_commit_is_answered_with_an_error(self, doomed: Server, client: Client) -> None:
        assert is_server_error(client.talk(b"get periodic/close\r\n"))

    def test_open_reads_are_their_holders_until_then(self, doomed: Server) -> None:
        waiting = doomed.client()
        assert waiting.talk(b"get periodic/t=5000\r\n") == b""
        doomed.pass_time(4.9)
        doomed.settle()
        assert waiting.received() == b""

    def test_open_reads_are_back_at_the_head_then(self, doomed: Server, client: Client) -> None:
        client.talk(b"get periodic/close\r\n")
        assert drain(doomed, b"periodic") == [b"a"]

    def test_a_waiting_client_is_served_then(self, doomed: Server, client: Client) -> None:
        waiting = doomed.client()
        assert waiting.talk(b"get periodic/t=5000\r\n") == b""
        client.talk(b"get periodic/close\r\n")
        assert waiting.received() == value(b"periodic", b"a")

    def test_the_queue_takes_puts_then(self, machine: Machine, doomed: Server, client: Client) -> None:
        client.talk(b"get periodic/close\r\n")
        assert client.talk(put(b"periodic", b"b")) == STORED
        assert drain(machine.crash(doomed), b"periodic") == [b"a", b"b"]

    def test_clients_that_only_put_are_not_refused_for_ever(self, doomed: Server, client: Client) -> None:
        assert is_server_error(client.talk(put(b"periodic", b"b")))
        assert client.talk(put(b"periodic", b"c")) == STORED
        client.hang_up()
        assert drain(doomed, b"periodic") == [b"a", b"c"]

    def test_it_can_be_deleted(self, machine: Machine, doomed: Server, client: Client) -> None:
        assert client.talk(b"delete periodic\r\n") == DELETED
        assert doomed.files() == {}
        assert client.talk(put(b"periodic", b"new")) == STORED
        assert drain(machine.crash(doomed), b"periodic") == [b"new"]

    def test_a_stop_makes_it_safe_or_says_that_it_is_not(self, machine: Machine, doomed: Server) -> None:
        with capturedLogs() as events:
            doomed.stop()
        is_told = any(event["log_level"] >= LogLevel.error for event in events)
        assert is_told or drain(machine.fail_power(doomed), b"periodic") == [b"a"]


# A stop.


class TestStop:
    def stop_step_by_step(self, server: Server) -> None:
        """Let one thing after the other be done, and nothing be left when the folder is let go."""
        server.begin_stop()
        while not server.is_stopped:
            server.threads.run_one()
        assert len(server.threads) == 0

    def test_during_a_sync_waits_for_it(self, machine: Machine, server: Server, client: Client) -> None:
        client.talk(put(b"periodic", b"a"))
        let_period_pass(server)
        client.ask(put(b"periodic", b"during"))
        server.begin_stop()
        assert (len(server.threads), server.is_stopped) == (1, False)
        server.threads.run_all()
        assert server.is_stopped
        assert drain(machine.fail_power(server), b"periodic") == [b"a", b"during"]

    def test_during_a_sync_that_fails_waits_for_the_rewriting(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"periodic", b"a"))
        let_period_pass(server)
        fail_next_sync(server)
        self.stop_step_by_step(server)
        assert drain(machine.fail_power(server), b"periodic") == [b"a"]

    @pytest.mark.parametrize("steps", [1, 2])
    def test_during_the_rewriting_waits_for_it(
        self, machine: Machine, server: Server, client: Client, steps: int
    ) -> None:
        client.talk(put(b"periodic", b"a"))
        let_period_pass(server)
        fail_next_sync(server)
        for _ in range(steps):
            server.threads.run_one()
        self.stop_step_by_step(server)
        assert drain(machine.fail_power(server), b"periodic") == [b"a"]

    def test_before_a_sync_is_due_does_it(self, machine: Machine, server: Server, client: Client) -> None:
        client.talk(put(b"periodic", b"a"))
        self.stop_step_by_step(server)
        assert drain(machine.fail_power(server), b"periodic") == [b"a"]


# From state to state.


class Bench:
    """The syncs of one queue. What its storage does is done here."""

    def __init__(self, folder: Path, settings: QueueSettings = PERIODIC) -> None:
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.disk = FaultyDisk()
        self.jobs = Jobs(self.clock, self.threads)
        path = str(folder).encode()
        numbers = count(1)
        self.queue = JournalQueue(b"work", settings, JournalWriter(self.disk, path, b"work", lambda: next(numbers)))
        os.makedirs(path + b"/" + ERASE_FOLDER)
        resources = FolderResources(self.disk, path, self.jobs, self.kill)
        self.sync = JournalSyncScheduler(self.queue, resources, JournalRewriter(self.queue, resources), lambda: None)
        self.deaths: list[Exception] = []
        self.outcomes: list[Failure | None] = []
        """Of the commits that are over: None if its replies may say so, else why not."""
        self.is_stopped = False

    def kill(self, queue: JournalQueue, error: Exception) -> QueueFailed:
        self.deaths.append(error)
        queue.failure = str(error)
        return QueueFailed(str(error))

    # What happens to it.

    def write(self) -> None:
        """Commit one record."""
        self.queue.put(encode_item(b"a", 0, 0))
        maybeDeferred(self.sync.when_writable).addCallback(self._commit).addBoth(self.outcomes.append)

    def _commit(self, _: object) -> Deferred[None] | None:
        if records := self.queue.take_pending():  # a rewriting has taken them
            self.queue.writer.append(records)
        return self.sync.written()

    def let_time_pass(self) -> None:
        self.clock.advance(PERIOD_S)

    def fail(self) -> None:
        """What is under way fails, if anything is."""
        self.disk.fail("sync", errno.EIO, times=1)
        if len(self.threads):
            self.threads.run_one()
        self.disk.mend()

    def reload(self) -> None:
        """The settings are looked at again."""
        self.sync.settings_changed()

    def delete(self) -> None:
        self.queue.failure = "the queue was deleted"
        self.queue.is_deleted = True
        self.queue.writer.close()

    def stop(self) -> None:
        def stopped(_: object) -> None:
            self.is_stopped = True

        self.jobs.close().addCallback(stopped)

    def settle(self) -> None:
        """Let everything come to its end."""
        for _ in range(3):
            self.let_time_pass()
            self.threads.run_all()


WAY_TO: dict[JournalSyncState, tuple[Callable[[Bench], None], ...]] = {
    JournalSyncState.IDLE: (),
    JournalSyncState.DUE: (Bench.write,),
    JournalSyncState.SYNCING: (Bench.write, Bench.let_time_pass),
    JournalSyncState.REWRITING: (Bench.write, Bench.let_time_pass, Bench.fail),
    JournalSyncState.FAILING: (Bench.write, Bench.let_time_pass, Bench.fail, Bench.fail),
}

ALIVE = [JournalSyncState.IDLE, JournalSyncState.DUE, JournalSyncState.SYNCING, JournalSyncState.REWRITING]


def bench_in(state: JournalSyncState, folder: Path) -> Bench:
    """A bench that was brought to that state."""
    bench = Bench(folder)
    for step in WAY_TO[state]:
        step(bench)
    assert bench.sync.state is state
    bench.outcomes.clear()
    return bench


@pytest.mark.parametrize(
    ("state", "event", "next_state"),
    [
        (JournalSyncState.IDLE, Bench.write, JournalSyncState.DUE),
        (JournalSyncState.IDLE, Bench.let_time_pass, JournalSyncState.IDLE),
        (JournalSyncState.IDLE, Bench.fail, JournalSyncState.IDLE),
        (JournalSyncState.IDLE, Bench.reload, JournalSyncState.IDLE),
        (JournalSyncState.DUE, Bench.write, JournalSyncState.DUE),
        (JournalSyncState.DUE, Bench.let_time_pass, JournalSyncState.SYNCING),
        (JournalSyncState.DUE, Bench.fail, JournalSyncState.DUE),
        (JournalSyncState.DUE, Bench.reload, JournalSyncState.DUE),
        (JournalSyncState.SYNCING, Bench.write, JournalSyncState.SYNCING),
        (JournalSyncState.SYNCING, Bench.let_time_pass, JournalSyncState.SYNCING),
        (JournalSyncState.SYNCING, Bench.fail, JournalSyncState.REWRITING),
        (JournalSyncState.SYNCING, Bench.reload, JournalSyncState.SYNCING),
        (JournalSyncState.REWRITING, Bench.write, JournalSyncState.REWRITING),
        (JournalSyncState.REWRITING, Bench.let_time_pass, JournalSyncState.REWRITING),
        (JournalSyncState.REWRITING, Bench.fail, JournalSyncState.FAILING),
        (JournalSyncState.REWRITING, Bench.reload, JournalSyncState.REWRITING),
        (JournalSyncState.FAILING, Bench.let_time_pass, JournalSyncState.FAILING),
        (JournalSyncState.FAILING, Bench.fail, JournalSyncState.FAILING),
        (JournalSyncState.FAILING, Bench.reload, JournalSyncState.FAILING),
    ],
)
def test_in_each_state_what_happens_leads_to_the_next(
    tmp_path: Path, state: JournalSyncState, event: Callable[[Bench], None], next_state: JournalSyncState
) -> None:
    bench = bench_in(state, tmp_path)
    event(bench)
    assert (bench.sync.state, bench.deaths) == (next_state, [])
    assert len(bench.threads) == (next_state in (JournalSyncState.SYNCING, JournalSyncState.REWRITING))


@pytest.mark.parametrize("state", ALIVE)
def test_in_each_state_what_is_written_is_synced_in_the_end(tmp_path: Path, state: JournalSyncState) -> None:
    bench = bench_in(state, tmp_path)
    bench.write()
    bench.settle()
    assert (bench.sync.state, bench.outcomes, bench.deaths) == (JournalSyncState.IDLE, [None], [])
    assert bench.queue.writer.synced_size == bench.queue.writer.size
    assert bench.queue.refusal is None


@pytest.mark.parametrize("state", ALIVE)
def test_in_each_state_what_is_written_without_a_period_waits_and_one_thread_works(
    tmp_path: Path, state: JournalSyncState
) -> None:
    bench = bench_in(state, tmp_path)
    bench.queue.settings = SYNCED
    bench.write()
    assert (len(bench.threads), bench.outcomes) == (1, [])
    bench.let_time_pass()
    assert (len(bench.threads), bench.outcomes) == (1, [])
    bench.settle()
    assert (bench.sync.state, bench.outcomes) == (JournalSyncState.IDLE, [None])


def test_a_sync_that_fails_kills_a_queue_of_which_nothing_unsynced_was_promised(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SYNCED)
    bench.write()
    bench.fail()
    assert (len(bench.deaths), len(bench.outcomes)) == (1, 1)
    assert isinstance(bench.outcomes[0], Failure)


def test_a_rewriting_that_fails_while_somebody_waits_kills_the_queue(tmp_path: Path) -> None:
    bench = bench_in(JournalSyncState.REWRITING, tmp_path)
    bench.write()
    bench.fail()
    assert (len(bench.deaths), len(bench.outcomes)) == (1, 1)
    assert isinstance(bench.outcomes[0], Failure)


def test_a_rewriting_that_failed_while_nobody_waited_kills_the_queue_in_its_next_commit(tmp_path: Path) -> None:
    bench = bench_in(JournalSyncState.FAILING, tmp_path)
    assert bench.deaths == []
    bench.write()
    assert (len(bench.deaths), len(bench.outcomes)) == (1, 1)
    assert isinstance(bench.outcomes[0], Failure)


@pytest.mark.parametrize("state", JournalSyncState)
def test_in_each_state_a_queue_that_is_deleted_is_left_alone(tmp_path: Path, state: JournalSyncState) -> None:
    bench = bench_in(state, tmp_path)
    bench.delete()
    files = set(tmp_path.iterdir())
    bench.settle()
    assert (bench.deaths, len(bench.threads), bench.clock.getDelayedCalls()) == ([], 0, [])
    assert set(tmp_path.iterdir()) <= files
    assert bench.disk.open_descriptors == set()


@pytest.mark.parametrize("state", ALIVE)
@pytest.mark.parametrize("end", [Bench.fail, Bench.settle], ids=["what runs fails", "what runs goes well"])
def test_in_each_state_a_commit_that_waits_is_let_go_when_the_queue_is_deleted(
    tmp_path: Path, state: JournalSyncState, end: Callable[[Bench], None]
) -> None:
    bench = bench_in(state, tmp_path)
    bench.queue.settings = SYNCED
    bench.write()
    bench.delete()
    end(bench)
    bench.settle()
    assert bench.outcomes == [None]


@pytest.mark.parametrize("state", JournalSyncState)
def test_in_each_state_a_stop_waits_for_what_runs_and_leaves_nothing_for_later(
    tmp_path: Path, state: JournalSyncState
) -> None:
    bench = bench_in(state, tmp_path)
    bench.stop()
    while not bench.is_stopped:
        bench.threads.run_one()
    bench.let_time_pass()
    assert (len(bench.threads), bench.clock.getDelayedCalls()) == (0, [])
