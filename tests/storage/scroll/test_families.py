"""What failure means to the queues that share a journal, as clients of a whole server see it.

When one of its files fails, the parent and all its children are opened anew, and nobody hears more, or less, of that
than of a queue that fails alone.
"""

from __future__ import annotations

import errno

import pytest

from kestrel.config.model import QueueSettings
from tests.storage.backends import scroll_only
from tests.storage.serving import (
    END,
    NEVER,
    PERIOD_S,
    PERIODIC,
    STORED,
    SYNCED,
    Machine,
    Server,
    drain,
    is_server_error,
    put,
    value,
)

pytestmark = scroll_only

DELETED = b"DELETED\r\n"
PARENT, LEFT, RIGHT = FAMILY = b"work", b"work+left", b"work+right"


def family(machine: Machine, **settings: object) -> Server:
    """A server with a parent and two children; no commit of theirs is under way."""
    server = machine.start()
    for name in FAMILY:
        server.reload(settings.get(name.rpartition(b"+")[2].decode(), settings["others"]), name)
    client = server.client()
    for name in FAMILY:
        assert client.talk(b"get %b\r\n" % name) == END
    server.settle()
    return server


def drained(server: Server) -> list[list[bytes]]:
    """What clients get from the parent and from its children."""
    return [drain(server, name) for name in FAMILY]


# A write fails.


class TestWriteFails:
    @pytest.fixture
    def server(self, machine: Machine) -> Server:
        server = family(machine, others=NEVER)
        assert server.client().talk(put(PARENT, b"first") + put(PARENT, b"second")) == STORED + STORED
        return server

    @pytest.mark.parametrize("torn_bytes", [0, 3, 40])
    @pytest.mark.parametrize("name", FAMILY)
    def test_a_put_that_fails_is_in_none_of_them_and_costs_none_of_them_anything(
        self, machine: Machine, server: Server, name: bytes, torn_bytes: int
    ) -> None:
        server.disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
        assert is_server_error(server.client().talk(put(name, b"lost")))
        for after in (machine.crash(server), server):
            assert drained(after) == [[b"first", b"second"]] * 3

    def test_what_the_others_did_in_that_tick_is_an_error_too_and_did_not_happen(
        self, machine: Machine, server: Server
    ) -> None:
        clients = [server.client() for _ in range(3)]
        server.disk.fail("write", errno.EIO, times=1)
        clients[0].send(put(LEFT, b"lost"))
        clients[1].send(b"get work+right\r\n")
        clients[2].send(b"flush work\r\n")
        server.settle()
        assert all(is_server_error(client.received()) for client in clients)
        for after in (machine.crash(server), server):
            assert drained(after) == [[b"first", b"second"]] * 3

    def test_the_holder_of_an_open_read_of_another_is_told_and_the_item_comes_again(self, server: Server) -> None:
        holder = server.client()
        assert holder.talk(b"get work+right/open\r\n") == value(RIGHT, b"first")
        server.disk.fail("write", errno.EIO, times=1)
        assert is_server_error(server.client().talk(b"get work+left\r\n"))
        assert is_server_error(holder.talk(b"get work+right/close\r\n"))
        assert drained(server) == [[b"first", b"second"]] * 3

    def test_a_late_close_does_not_end_another_clients_read(self, server: Server) -> None:
        holder, other = server.client(), server.client()
        holder.talk(b"get work+right/open\r\n")
        server.disk.fail("write", errno.EIO, times=1)
        server.client().talk(put(LEFT, b"lost"))
        assert other.talk(b"get work+right/open\r\n") == value(RIGHT, b"first")
        holder.talk(b"get work+right/close\r\n")
        other.hang_up()
        assert drain(server, RIGHT) == [b"first", b"second"]

    def test_who_waits_at_another_is_served(self, server: Server) -> None:
        drain(server, RIGHT)
        waiting = server.client()
        assert waiting.talk(b"get work+right/t=5000\r\n") == b""
        server.disk.fail("write", errno.EIO, times=1)
        assert is_server_error(server.client().talk(put(LEFT, b"lost")))
        assert waiting.received() == b""
        assert server.client().talk(put(PARENT, b"third")) == STORED
        assert waiting.received() == value(RIGHT, b"third")
        assert drain(server, RIGHT) == []

    def test_who_waits_at_another_gets_the_item_that_came_back(self, server: Server) -> None:
        holder, waiting = server.client(), server.client()
        assert holder.talk(b"get work+right/open\r\n") == value(RIGHT, b"first")
        assert server.client().talk(b"get work+right\r\n") == value(RIGHT, b"second")
        assert waiting.talk(b"get work+right/t=5000\r\n") == b""
        server.disk.fail("write", errno.EIO, times=1)
        assert is_server_error(server.client().talk(put(LEFT, b"lost")))
        assert waiting.received() == value(RIGHT, b"first")
        assert is_server_error(holder.talk(b"get work+right/close\r\n"))
        assert drain(server, RIGHT) == []

    def test_each_takes_puts_again_and_the_next_start_has_all_of_it(self, machine: Machine, server: Server) -> None:
        client = server.client()
        for name in FAMILY:
            server.disk.fail("write", errno.EIO, times=1, torn_bytes=9)
            server.disk.fail("cut", errno.EIO, times=1)
            assert is_server_error(client.talk(put(name, b"lost")))
            assert client.talk(put(name, name)) == STORED
        for after in (machine.crash(server), machine.restart(server)):
            assert drained(after) == [
                [b"first", b"second", PARENT],
                [b"first", b"second", PARENT, LEFT],
                [b"first", b"second", PARENT, RIGHT],
            ]

    def test_a_child_can_be_deleted_and_made_again_after_it_died_with_its_brother(
        self, machine: Machine, server: Server
    ) -> None:
        client = server.client()
        server.disk.fail("write", errno.EIO, times=1)
        assert is_server_error(client.talk(put(LEFT, b"lost")))
        assert client.talk(b"delete work+right\r\n") == DELETED
        assert client.talk(put(PARENT, b"third") + put(RIGHT, b"anew")) == STORED + STORED
        for after in (machine.crash(server), server):
            assert drained(after) == [[b"first", b"second", b"third"]] * 2 + [[b"anew"]]


class TestALargeFamily:
    """One that is loaded in a thread: what waits for it must not wait for a request."""

    CHILDREN = [b"work+%d" % number for number in range(20)]

    @pytest.fixture
    def server(self, machine: Machine) -> Server:
        server = machine.start()
        server.reload(SYNCED)
        client = server.client()
        assert all(client.talk(put(name, name)) == STORED for name in self.CHILDREN)
        return server

    @pytest.mark.parametrize("operation", ["sync", "write"])
    def test_who_waits_gets_the_item_that_came_back_when_the_family_has_failed(
        self, server: Server, operation: str
    ) -> None:
        holder, waiting = server.client(), server.client()
        assert holder.talk(b"get work+1/open\r\n") == value(b"work+1", b"work+1")
        assert waiting.talk(b"get work+1/t=30000\r\n") == b""
        server.disk.fail(operation, errno.EIO, times=1)
        assert is_server_error(server.client().talk(put(b"work+0", b"lost")))
        server.pass_time(2)
        server.settle()
        assert waiting.received() == value(b"work+1", b"work+1")

    @pytest.mark.parametrize("operation", ["open_read", "list"])
    def test_who_waits_is_served_though_the_family_cannot_be_opened_again_for_a_while(
        self, server: Server, operation: str
    ) -> None:
        holder, waiting = server.client(), server.client()
        assert holder.talk(b"get work+1/open\r\n") == value(b"work+1", b"work+1")
        assert waiting.talk(b"get work+1/t=30000\r\n") == b""
        server.disk.fail("write", errno.EIO, times=1)
        server.disk.fail(operation, errno.EIO)
        assert is_server_error(server.client().talk(put(b"work+0", b"lost")))
        for _ in range(5):
            server.pass_time(1)
            server.settle()
        assert waiting.received() == b""
        server.disk.mend()
        for _ in range(3):
            server.pass_time(1)
            server.settle()
        assert waiting.received() == value(b"work+1", b"work+1")

    def test_all_of_them_are_served_again_without_anybody_asking(self, machine: Machine, server: Server) -> None:
        server.disk.fail("sync", errno.EIO, times=1)
        assert is_server_error(server.client().talk(put(b"work+0", b"lost")))
        server.pass_time(2)
        server.settle()
        client = server.client()
        assert [client.talk(b"get %b/peek\r\n" % name) for name in self.CHILDREN] == [
            value(name, name) for name in self.CHILDREN
        ]
        for after in (machine.crash(server), machine.fail_power(server), server):
            assert [drain(after, name) for name in self.CHILDREN] == [[name] for name in self.CHILDREN]


# A sync fails.


class TestSyncFailsWithSyncJournal0:
    @pytest.fixture
    def server(self, machine: Machine) -> Server:
        server = family(machine, others=SYNCED)
        assert server.client().talk(put(PARENT, b"first")) == STORED
        return server

    def test_whoever_of_them_waits_is_answered_with_an_error_and_nothing_of_it_comes_back(
        self, machine: Machine, server: Server
    ) -> None:
        clients = [server.client() for _ in range(4)]
        server.disk.fail("sync", errno.EIO, times=1)
        assert clients[0].ask(put(LEFT, b"lost")) == b""
        assert clients[1].ask(b"get work+right\r\n") == b""
        assert clients[2].ask(put(PARENT, b"lost too")) == b""
        assert clients[3].ask(put(LEFT, b"lost as well")) == b""
        server.settle()
        assert all(is_server_error(client.received()) for client in clients)
        for after in (machine.crash(server), machine.fail_power(server), server):
            assert drained(after) == [[b"first"]] * 3

    def test_nothing_of_it_comes_back_though_no_sync_works_any_more(self, machine: Machine, server: Server) -> None:
        clients = [server.client() for _ in range(4)]
        assert clients[0].talk(b"get work+right/open\r\n") == value(RIGHT, b"first")
        server.disk.fail("sync", errno.EIO)
        assert clients[0].ask(b"get work+right/close\r\n") == b""
        assert clients[1].ask(b"get work+left\r\n") == b""
        assert clients[2].ask(put(PARENT, b"lost")) == b""
        assert clients[3].ask(put(LEFT, b"lost too")) == b""
        server.settle()
        assert all(is_server_error(client.received()) for client in clients)
        for after in (machine.crash(server), machine.fail_power(server)):
            assert drained(after) == [[b"first"]] * 3
        server.disk.mend()
        assert drained(server) == [[b"first"]] * 3

    def test_what_is_stored_in_any_of_them_afterwards_is_on_the_medium(self, machine: Machine, server: Server) -> None:
        client = server.client()
        for name in FAMILY:
            server.disk.fail("sync", errno.EIO, times=1)
            assert is_server_error(client.talk(put(name, b"lost")))
            assert client.talk(put(name, name)) == STORED
        for after in (machine.crash(server), machine.fail_power(server), machine.restart(server)):
            assert drained(after) == [[b"first", PARENT], [b"first", PARENT, LEFT], [b"first", PARENT, RIGHT]]

    def test_a_put_that_waits_is_safe_though_another_is_deleted_meanwhile(
        self, machine: Machine, server: Server
    ) -> None:
        client, deleting = server.client(), server.client()
        assert client.ask(put(PARENT, b"second")) == b""
        told = deleting.ask(b"delete work+left\r\n")
        server.settle()
        assert (client.received(), told + deleting.received()) == (STORED, DELETED)
        for after in (machine.crash(server), machine.fail_power(server)):
            assert drained(after) == [[b"first", b"second"], [], [b"first", b"second"]]

    def test_no_reply_of_any_of_them_leaves_before_what_it_says_would_survive_a_power_failure(
        self, machine: Machine, server: Server
    ) -> None:
        clients = [server.client() for _ in range(3)]
        clients[0].send(put(PARENT, b"second"))
        server.end_tick()
        clients[1].send(b"get work+left\r\n")
        server.end_tick()
        clients[2].send(put(RIGHT, b"third"))
        server.end_tick()
        told: set[int] = set()
        while len(server.threads):
            server.threads.run_one()
            server.end_tick()
            told |= {number for number, client in enumerate(clients) if client.received()}
            parent, left, right = drained(machine.fail_power(server))
            assert parent == [b"first", b"second"] or (0 not in told and parent == [b"first"])
            assert left[:1] != [b"first"] or 1 not in told
            assert b"third" in right or 2 not in told
        assert told == {0, 1, 2}

    def test_one_that_is_synced_among_others_that_are_not_is_as_safe_as_alone(self, machine: Machine) -> None:
        server = family(machine, others=NEVER, left=SYNCED)
        client = server.client()
        assert client.talk(put(PARENT, b"to all")) == STORED
        assert client.talk(put(LEFT, b"to one")) == STORED
        assert client.talk(b"get work+left\r\n") == value(LEFT, b"to all")
        assert drain(machine.fail_power(server), LEFT) == [b"to one"]


class TestSyncFailsWithAPeriod:
    @pytest.fixture
    def failed(self, machine: Machine) -> Server:
        """Each of them has items, and the sync that followed has failed."""
        server = family(machine, others=PERIODIC)
        client = server.client()
        assert client.talk(put(PARENT, b"a") + put(LEFT, b"b") + put(PARENT, b"c")) == 3 * STORED
        assert client.talk(b"get work+right\r\n") == value(RIGHT, b"a")
        server.disk.fail("sync", errno.EIO, times=1)
        server.pass_time(PERIOD_S)
        server.threads.run_one()
        server.end_tick()
        return server

    LEFT_OVER = [[b"a", b"c"], [b"a", b"b", b"c"], [b"c"]]

    @pytest.mark.parametrize("name", FAMILY)
    def test_puts_to_any_of_them_are_refused_meanwhile_and_taken_afterwards(self, failed: Server, name: bytes) -> None:
        client = failed.client()
        assert is_server_error(client.ask(put(name, b"refused")))
        assert client.ask(put(b"other", b"taken")) == STORED
        failed.settle()
        assert client.talk(put(name, b"taken")) == STORED

    def test_earlier_stores_and_gets_stand(self, machine: Machine, failed: Server) -> None:
        failed.settle()
        for after in (machine.crash(failed), machine.fail_power(failed), machine.restart(failed)):
            assert drained(after) == self.LEFT_OVER

    def test_earlier_stores_and_gets_stand_at_every_step_of_the_rewriting(
        self, machine: Machine, failed: Server
    ) -> None:
        while len(failed.threads):
            assert drained(machine.crash(failed)) == self.LEFT_OVER
            failed.threads.run_one()
            failed.end_tick()
        assert drained(machine.crash(failed)) == self.LEFT_OVER

    @pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_folder"])
    def test_when_the_rewriting_fails_they_are_all_replayed(
        self, machine: Machine, failed: Server, operation: str
    ) -> None:
        failed.disk.fail(operation, errno.EIO, times=1)
        other = failed.client()
        other.send(b"get work\r\n")
        failed.settle()
        assert is_server_error(other.received())
        for after in (machine.crash(failed), failed):
            assert drained(after) == self.LEFT_OVER

    @pytest.mark.parametrize("steps", range(4))
    def test_a_child_that_is_deleted_meanwhile_does_not_come_back(
        self, machine: Machine, failed: Server, steps: int
    ) -> None:
        for _ in range(min(steps, len(failed.threads))):
            failed.threads.run_one()
            failed.end_tick()
        deleting = failed.client()
        told = deleting.ask(b"delete work+left\r\n")
        while len(failed.threads):
            assert drained(machine.crash(failed))[1] == [] or DELETED not in told
            failed.threads.run_one()
            failed.end_tick()
            told += deleting.received()
        assert told == DELETED
        for after in (machine.crash(failed), machine.restart(failed)):
            assert drained(after) == [self.LEFT_OVER[0], [], self.LEFT_OVER[2]]

    @pytest.mark.parametrize("steps", range(4))
    def test_a_child_that_is_made_meanwhile_has_what_is_put_from_then_on(
        self, machine: Machine, failed: Server, steps: int
    ) -> None:
        for _ in range(min(steps, len(failed.threads))):
            failed.threads.run_one()
            failed.end_tick()
        client = failed.client()
        assert client.talk(b"get work+late\r\n") == END
        failed.settle()
        assert client.talk(put(PARENT, b"d")) == STORED
        for after in (machine.crash(failed), machine.restart(failed)):
            assert drain(after, b"work+late") == [b"d"]
            assert drained(after) == [[*each, b"d"] for each in self.LEFT_OVER]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("settings", [SYNCED, PERIODIC], ids=["synced", "period"])
def test_no_file_is_synced_again_of_which_a_sync_has_failed(
    machine: Machine, settings: QueueSettings, number: int, times: int
) -> None:
    server = machine.start()
    server.reload(settings)
    client = server.client()
    server.disk.fail("sync", errno.EIO, times=times, after=number)
    for turn in range(4):
        for name in FAMILY:
            client.talk(put(name, b"%d" % turn))
            client.talk(b"get %b\r\n" % name)
            server.pass_time(PERIOD_S)
            server.settle()
    server.pass_time(60)
    server.stop()
    assert server.disk.calls.count("sync") > number
    assert server.disk.medium.vain_syncs == 0


# A disk that is full.


class TestFullDisk:
    def test_a_put_to_all_that_finds_it_full_is_stored_in_all_and_the_next_is_refused_by_all(
        self, machine: Machine
    ) -> None:
        server = family(machine, others=NEVER)
        client = server.client()
        server.disk.room = 0
        assert client.talk(put(PARENT, b"the last")) == STORED
        assert all(is_server_error(client.talk(put(name, b"refused"))) for name in FAMILY)
        assert drained(machine.crash(server)) == [[b"the last"]] * 3
        assert drained(server) == [[b"the last"]] * 3

    def test_when_the_reserve_is_gone_a_get_of_one_costs_the_others_nothing(self, machine: Machine) -> None:
        server = family(machine, others=NEVER)
        client = server.client()
        server.disk.room = 0
        assert client.talk(put(PARENT, b"the last")) == STORED
        server.disk.room = 0
        assert is_server_error(client.talk(b"get work+left\r\n"))
        server.disk.room = 1000
        assert drained(server) == [[b"the last"]] * 3
