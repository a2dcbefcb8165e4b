"""Failures of queues that share a journal, as clients of a whole server see them.

A failed file reopens the parent and all its children. Clients must see the same errors as after the failure of a
single queue.
"""

from __future__ import annotations

import errno

import pytest

from kestrel.config.model import QueueSettings
from tests.memcache_text import END, STORED, set_, value
from tests.storage.backends import scroll_only
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

pytestmark = scroll_only

PARENT, LEFT, RIGHT = FAMILY = b"work", b"work+left", b"work+right"


def family(machine: Machine, **settings: object) -> Server:
    """Start a server with a parent and two children, and without pending commits."""
    server = machine.start()
    for name in FAMILY:
        server.reload(settings.get(name.rpartition(b"+")[2].decode(), settings["others"]), name)
    client = server.client()
    for name in FAMILY:
        assert client.talk(b"get %b\r\n" % name) == END
    server.settle()
    return server


def drained(server: Server) -> list[list[bytes]]:
    """Take every item of the parent and its children and return the data of each queue."""
    return [drain(server, name) for name in FAMILY]


def run_one(server: Server) -> None:
    """Run one job of a thread, and end the tick."""
    server.threads.run_one()
    server.end_tick()


def fail_put(server: Server, name: bytes, operation: str = "write", torn_bytes: int = 0) -> None:
    """Put an item to a queue while an operation of the disk fails, and check that the client gets an error."""
    server.disk.fail(operation, errno.EIO, times=1, torn_bytes=torn_bytes)
    assert is_server_error(server.client().talk(set_(name, b"lost")))


def pass_seconds(server: Server, seconds: int) -> None:
    """Let time pass and all threads run, second by second."""
    for _ in range(seconds):
        server.pass_time(1)
        server.settle()


# Failed writes.


class TestWriteFails:
    @pytest.fixture
    def server(self, machine: Machine) -> Server:
        server = family(machine, others=NEVER)
        assert server.client().talk(set_(PARENT, b"first") + set_(PARENT, b"second")) == STORED + STORED
        return server

    @pytest.mark.parametrize("torn_bytes", [0, 3, 40])
    @pytest.mark.parametrize("name", FAMILY)
    def test_failed_put_changes_no_queue_of_the_family(self, server: Server, name: bytes, torn_bytes: int) -> None:
        fail_put(server, name, torn_bytes=torn_bytes)
        for after in (server.crashed(), server):
            assert drained(after) == [[b"first", b"second"]] * 3

    def test_other_changes_of_the_tick_fail_too(self, server: Server) -> None:
        clients = [server.client() for _ in range(3)]
        server.disk.fail("write", errno.EIO, times=1)
        clients[0].send(set_(LEFT, b"lost"))
        clients[1].send(b"get work+right\r\n")
        clients[2].send(b"flush work\r\n")
        server.settle()
        assert all(is_server_error(client.received()) for client in clients)
        for after in (server.crashed(), server):
            assert drained(after) == [[b"first", b"second"]] * 3

    def test_open_read_of_sibling_fails_and_its_item_is_requeued(self, server: Server) -> None:
        holder = server.client()
        assert holder.talk(b"get work+right/open\r\n") == value(RIGHT + b"/open", b"first")
        server.disk.fail("write", errno.EIO, times=1)
        assert is_server_error(server.client().talk(b"get work+left\r\n"))
        assert is_server_error(holder.talk(b"get work+right/close\r\n"))
        assert drained(server) == [[b"first", b"second"]] * 3

    def test_waiter_at_sibling_gets_the_requeued_item(self, server: Server) -> None:
        holder, waiting = server.client(), server.client()
        assert holder.talk(b"get work+right/open\r\n") == value(RIGHT + b"/open", b"first")
        assert server.client().talk(b"get work+right\r\n") == value(RIGHT, b"second")
        assert waiting.talk(b"get work+right/t=5000\r\n") == b""
        fail_put(server, LEFT)
        assert waiting.received() == value(RIGHT + b"/t=5000", b"first")
        assert is_server_error(holder.talk(b"get work+right/close\r\n"))
        assert drain(server, RIGHT) == []

    def test_later_puts_are_accepted_and_survive_restarts(self, server: Server) -> None:
        client = server.client()
        for name in FAMILY:
            server.disk.fail("cut", errno.EIO, times=1)
            fail_put(server, name, torn_bytes=9)
            assert client.talk(set_(name, name)) == STORED
        for after in (server.crashed(), server.restarted()):
            assert drained(after) == [
                [b"first", b"second", PARENT],
                [b"first", b"second", PARENT, LEFT],
                [b"first", b"second", PARENT, RIGHT],
            ]

    def test_child_can_be_recreated_after_a_failure_of_its_sibling(self, server: Server) -> None:
        client = server.client()
        fail_put(server, LEFT)
        assert client.talk(b"delete work+right\r\n") == DELETED
        assert client.talk(set_(PARENT, b"third") + set_(RIGHT, b"anew")) == STORED + STORED
        for after in (server.crashed(), server):
            assert drained(after) == [[b"first", b"second", b"third"]] * 2 + [[b"anew"]]


class TestLargeFamily:
    """A family that is loaded in a thread. It must be reopened without a further request."""

    CHILDREN = [b"work+%d" % number for number in range(20)]

    @pytest.fixture
    def server(self, machine: Machine) -> Server:
        server = machine.start()
        server.reload(SYNCED)
        client = server.client()
        assert all(client.talk(set_(name, name)) == STORED for name in self.CHILDREN)
        return server

    @staticmethod
    def waiter_behind_an_open_read(server: Server) -> Client:
        """Return a client that waits for the only item of a child, which another client has open."""
        holder, waiting = server.client(), server.client()
        assert holder.talk(b"get work+1/open\r\n") == value(b"work+1/open", b"work+1")
        assert waiting.talk(b"get work+1/t=30000\r\n") == b""
        return waiting

    @pytest.mark.parametrize("operation", ["sync", "write"])
    def test_waiter_gets_the_requeued_item_after_a_failure(self, server: Server, operation: str) -> None:
        waiting = self.waiter_behind_an_open_read(server)
        fail_put(server, b"work+0", operation)
        pass_seconds(server, 2)
        assert waiting.received() == value(b"work+1/t=30000", b"work+1")

    @pytest.mark.parametrize("operation", ["open_read", "list"])
    def test_waiter_is_served_after_delayed_reopening(self, server: Server, operation: str) -> None:
        waiting = self.waiter_behind_an_open_read(server)
        server.disk.fail(operation, errno.EIO)
        fail_put(server, b"work+0")
        pass_seconds(server, 5)
        assert waiting.received() == b""
        server.disk.mend()
        pass_seconds(server, 3)
        assert waiting.received() == value(b"work+1/t=30000", b"work+1")

    def test_all_queues_are_reopened_without_a_request(self, server: Server) -> None:
        fail_put(server, b"work+0", "sync")
        pass_seconds(server, 2)
        client = server.client()
        assert [client.talk(b"get %b/peek\r\n" % name) for name in self.CHILDREN] == [
            value(name + b"/peek", name) for name in self.CHILDREN
        ]
        for after in (server.crashed(), server.without_power(), server):
            assert [drain(after, name) for name in self.CHILDREN] == [[name] for name in self.CHILDREN]


# Failed syncs.


class TestSyncFailsWithSyncJournal0:
    @pytest.fixture
    def server(self, machine: Machine) -> Server:
        server = family(machine, others=SYNCED)
        assert server.client().talk(set_(PARENT, b"first")) == STORED
        return server

    def test_all_pending_commits_fail_and_nothing_returns(self, server: Server) -> None:
        clients = [server.client() for _ in range(4)]
        server.disk.fail("sync", errno.EIO, times=1)
        assert clients[0].ask(set_(LEFT, b"lost")) == b""
        assert clients[1].ask(b"get work+right\r\n") == b""
        assert clients[2].ask(set_(PARENT, b"lost too")) == b""
        assert clients[3].ask(set_(LEFT, b"lost as well")) == b""
        server.settle()
        assert all(is_server_error(client.received()) for client in clients)
        for after in (server.crashed(), server.without_power(), server):
            assert drained(after) == [[b"first"]] * 3

    def test_later_puts_to_any_queue_are_durable(self, server: Server) -> None:
        client = server.client()
        for name in FAMILY:
            fail_put(server, name, "sync")
            assert client.talk(set_(name, name)) == STORED
        for after in (server.crashed(), server.without_power(), server.restarted()):
            assert drained(after) == [[b"first", PARENT], [b"first", PARENT, LEFT], [b"first", PARENT, RIGHT]]

    def test_pending_put_survives_deletion_of_a_sibling(self, server: Server) -> None:
        client, deleting = server.client(), server.client()
        assert client.ask(set_(PARENT, b"second")) == b""
        reply = deleting.ask(b"delete work+left\r\n")
        server.settle()
        assert (client.received(), reply + deleting.received()) == (STORED, DELETED)
        for after in (server.crashed(), server.without_power()):
            assert drained(after) == [[b"first", b"second"], [], [b"first", b"second"]]


class TestSyncFailsWithPeriod:
    @pytest.fixture
    def failed(self, machine: Machine) -> Server:
        """Start a family with items whose sync has failed."""
        server = family(machine, others=PERIODIC)
        client = server.client()
        assert client.talk(set_(PARENT, b"a") + set_(LEFT, b"b") + set_(PARENT, b"c")) == 3 * STORED
        assert client.talk(b"get work+right\r\n") == value(RIGHT, b"a")
        server.disk.fail("sync", errno.EIO, times=1)
        server.pass_time(PERIOD_S)
        run_one(server)
        return server

    LEFT_OVER = [[b"a", b"c"], [b"a", b"b", b"c"], [b"c"]]

    def test_earlier_puts_and_gets_survive_during_and_after_repair(self, failed: Server) -> None:
        while len(failed.threads):
            assert drained(failed.crashed()) == self.LEFT_OVER
            run_one(failed)
        for after in (failed.crashed(), failed.without_power(), failed.restarted()):
            assert drained(after) == self.LEFT_OVER

    @pytest.mark.parametrize("steps", range(4))
    def test_child_deleted_during_repair_does_not_return(self, failed: Server, steps: int) -> None:
        for _ in range(min(steps, len(failed.threads))):
            run_one(failed)
        deleting = failed.client()
        reply = deleting.ask(b"delete work+left\r\n")
        while len(failed.threads):
            assert drained(failed.crashed())[1] == [] or DELETED not in reply
            run_one(failed)
            reply += deleting.received()
        assert reply == DELETED
        for after in (failed.crashed(), failed.restarted()):
            assert drained(after) == [self.LEFT_OVER[0], [], self.LEFT_OVER[2]]

    @pytest.mark.parametrize("steps", range(4))
    def test_child_created_during_repair_has_later_items(self, failed: Server, steps: int) -> None:
        for _ in range(min(steps, len(failed.threads))):
            run_one(failed)
        client = failed.client()
        assert client.talk(b"get work+late\r\n") == END
        failed.settle()
        assert client.talk(set_(PARENT, b"d")) == STORED
        for after in (failed.crashed(), failed.restarted()):
            assert drain(after, b"work+late") == [b"d"]
            assert drained(after) == [[*each, b"d"] for each in self.LEFT_OVER]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("settings", [SYNCED, PERIODIC], ids=["synced", "period"])
def test_file_is_never_synced_again_after_a_failed_sync(
    machine: Machine, settings: QueueSettings, number: int, times: int
) -> None:
    server = machine.start()
    server.reload(settings)
    client = server.client()
    server.disk.fail("sync", errno.EIO, times=times, after=number)
    for turn in range(4):
        for name in FAMILY:
            client.talk(set_(name, b"%d" % turn))
            client.talk(b"get %b\r\n" % name)
            server.pass_time(PERIOD_S)
            server.settle()
    server.pass_time(60)
    server.stop()
    assert server.disk.calls.count("sync") > number
    assert server.disk.medium.vain_syncs == 0


# Full disks.


class TestFullDisk:
    def test_failed_get_without_reserve_leaves_siblings_unchanged(self, machine: Machine) -> None:
        server = family(machine, others=NEVER)
        client = server.client()
        server.disk.room = 0
        assert client.talk(set_(PARENT, b"the last")) == STORED
        server.disk.room = 0
        assert is_server_error(client.talk(b"get work+left\r\n"))
        server.disk.room = 1000
        assert drained(server) == [[b"the last"]] * 3
