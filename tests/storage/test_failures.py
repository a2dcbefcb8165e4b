"""What failure means: each row of the table in docs/storage.md, as clients of a whole server see it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from kestrel.config.model import QueueSettings
from tests.storage.backends import journal_only
from tests.storage.serving import (
    END,
    PERIOD_S,
    RESERVE_BYTES,
    STORED,
    Client,
    Machine,
    Server,
    drain,
    is_server_error,
    put,
    value,
)

DISK_FULL = b"SERVER_ERROR disk full\r\n"


@pytest.fixture
def server(machine: Machine) -> Server:
    return machine.start()


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()


def fill_disk(server: Server) -> None:
    """Fill the disk up, so that the reserve is given up and puts are refused. The queue "work" is there before."""
    server.client().talk(b"get work/peek\r\n")
    server.disk.room = 0
    assert server.client().talk(put(b"work", b"the last")) == STORED
    assert server.storage.refusal is not None


def file_ids(server: Server) -> set[int]:
    """The files of the queue folder, by what they keep when they are renamed."""
    return {path.stat().st_ino for path in server.folder.iterdir() if path.is_file()}


# A put while refusal is set.


class TestPutWhileTheStorageTakesNone:
    def test_it_answers_server_error_at_once_and_stays_open(self, server: Server, client: Client) -> None:
        fill_disk(server)
        assert client.ask(put(b"work", b"refused")) == DISK_FULL
        assert not client.was_hung_up_on

    def test_it_changes_neither_memory_nor_disk(self, server: Server, client: Client) -> None:
        fill_disk(server)
        files = server.files()
        client.talk(put(b"work", b"refused"))
        assert server.files() == files
        assert drain(server, b"work") == [b"the last"]

    def test_gets_go_on(self, server: Server, client: Client) -> None:
        client.talk(put(b"work", b"first"))
        fill_disk(server)
        assert client.talk(b"get work\r\nget work/open\r\nget work/close\r\n") == (
            value(b"work", b"first") + value(b"work", b"the last") + END
        )

    def test_puts_are_taken_again_when_there_is_room(self, server: Server, client: Client) -> None:
        fill_disk(server)
        server.disk.room = 10 * RESERVE_BYTES
        for _ in range(3):
            server.pass_time(1)
            server.settle()
        assert client.talk(put(b"work", b"again")) == STORED
        assert drain(server, b"work") == [b"the last", b"again"]

    def test_a_server_that_starts_without_room_for_its_reserve_refuses_puts(self, machine: Machine) -> None:
        server = machine.start(room=RESERVE_BYTES - 1)
        server.settle()
        assert server.client().talk(put(b"work", b"a")) == DISK_FULL

    def test_a_queue_in_memory_takes_puts_nevertheless(self, server: Server, client: Client) -> None:
        fill_disk(server)
        assert client.talk(put(b"memory", b"a")) == STORED


# The disk is full in a commit.


class TestFullDiskInACommit:
    def test_the_replies_are_the_usual_ones(self, server: Server, client: Client) -> None:
        client.talk(put(b"work", b"first"))
        server.disk.room = 30
        other = server.client()
        client.send(put(b"work", b"the batch that finds it full") + b"get work\r\n")
        other.send(put(b"work", b"another"))
        server.end_tick()
        assert (client.received(), other.received()) == (STORED + value(b"work", b"first"), STORED)

    def test_no_torn_record_stays_in_the_file(self, machine: Machine, server: Server, client: Client) -> None:
        client.talk(put(b"work", b"first"))
        server.disk.room = 30
        client.talk(put(b"work", b"the batch that finds it full"))
        client.talk(b"get work\r\n")
        assert drain(machine.crash(server), b"work") == [b"the batch that finds it full"]

    def test_puts_are_refused_from_then_on_and_removes_are_kept(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"first"))
        fill_disk(server)
        assert client.talk(put(b"other", b"a")) == DISK_FULL
        assert client.talk(b"get work\r\n") == value(b"work", b"first")
        assert drain(machine.crash(server), b"work") == [b"the last"]

    def test_the_reserve_is_made_again_when_there_is_room(self, server: Server, client: Client) -> None:
        fill_disk(server)
        server.disk.room = 10 * RESERVE_BYTES
        for _ in range(3):
            server.pass_time(1)
            server.settle()
        fill_disk(server)
        assert drain(server, b"work") == [b"the last", b"the last"]

    def test_puts_stay_refused_until_there_is_room_for_the_whole_reserve(
        self, server: Server, client: Client
    ) -> None:
        fill_disk(server)
        server.disk.room = RESERVE_BYTES // 2
        for _ in range(100):
            server.pass_time(1)
            server.settle()
        assert client.talk(put(b"work", b"refused")) == DISK_FULL

    def test_another_queue_that_finds_it_full_in_the_same_tick_is_served_from_the_reserve_too(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(b"get a\r\nget b\r\n")
        server.disk.room = 0
        assert client.talk(put(b"a", b"in a") + put(b"b", b"in b")) == STORED + STORED
        crashed = machine.crash(server)
        assert (drain(crashed, b"a"), drain(crashed, b"b")) == ([b"in a"], [b"in b"])

    def test_a_synced_queue_answers_after_its_sync(self, machine: Machine, server: Server, client: Client) -> None:
        client.talk(b"get synced\r\n")
        server.disk.room = 0
        assert client.ask(put(b"synced", b"a")) == b""
        server.settle()
        assert client.received() == STORED
        assert drain(machine.fail_power(server), b"synced") == [b"a"]


class TestFullDiskAndTheReserveIsGone:
    @pytest.fixture
    def full(self, server: Server, client: Client) -> Server:
        """Two items in the queue, nothing left on the disk."""
        client.talk(put(b"work", b"first"))
        fill_disk(server)
        server.disk.room = 0
        return server

    def test_that_batch_answers_server_error(self, full: Server, client: Client) -> None:
        other = full.client()
        client.send(b"get work\r\n")
        other.send(b"get work\r\n")
        full.end_tick()
        assert is_server_error(client.received())
        assert is_server_error(other.received())

    def test_it_is_cut_to_the_last_record_and_its_items_are_there_again(
        self, full: Server, client: Client, machine: Machine
    ) -> None:
        before = full.files()
        full.disk.fail("write", errno.ENOSPC, times=1, torn_bytes=1)
        assert is_server_error(client.talk(b"get work\r\n"))
        assert full.files() == before
        full.disk.room = 100
        assert drain(full, b"work") == [b"first", b"the last"]

    def test_puts_stay_refused(self, full: Server, client: Client) -> None:
        client.talk(b"get work\r\n")
        assert client.talk(put(b"work", b"refused")) == DISK_FULL
        assert is_server_error(client.talk(put(b"other", b"refused")))

    def test_a_batch_larger_than_the_reserve_is_lost_whole(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"first"))
        server.disk.room = 100
        assert is_server_error(client.talk(put(b"work", b"x" * 5 * RESERVE_BYTES)))
        assert drain(server, b"work") == [b"first"]

    def test_another_queue_goes_on_when_there_is_room_for_its_removes(
        self, full: Server, client: Client
    ) -> None:
        full.disk.room = 100
        client.talk(b"get other\r\n")
        full.disk.fail("write", errno.ENOSPC, times=1)
        assert is_server_error(client.talk(b"get work\r\n"))
        assert client.talk(b"get work\r\n") == value(b"work", b"first")


# A write fails.


class TestWriteFails:
    @pytest.mark.parametrize("torn_bytes", [0, 1, 30])
    def test_that_batch_answers_server_error_and_is_lost_whole(
        self, machine: Machine, server: Server, client: Client, torn_bytes: int
    ) -> None:
        client.talk(put(b"work", b"first"))
        other = server.client()
        server.disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
        client.send(put(b"work", b"lost"))
        other.send(put(b"work", b"lost too"))
        server.end_tick()
        assert is_server_error(client.received())
        assert is_server_error(other.received())
        assert drain(machine.crash(server), b"work") == [b"first"]
        assert drain(server, b"work") == [b"first"]

    def test_the_file_is_cut_to_its_last_record(self, server: Server, client: Client) -> None:
        client.talk(put(b"work", b"first"))
        before = server.files()
        server.disk.fail("write", errno.EIO, times=1, torn_bytes=10)
        client.talk(put(b"work", b"lost"))
        assert server.files() == before

    def test_gets_and_confirms_of_that_batch_answer_server_error_and_their_items_stay(
        self, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"first") + put(b"work", b"second") + b"get work/open\r\n")
        other = server.client()
        server.disk.fail("write", errno.EIO, times=1)
        client.send(b"get work/close\r\n")
        other.send(b"get work\r\n")
        server.end_tick()
        assert is_server_error(client.received())
        assert is_server_error(other.received())
        assert drain(server, b"work") == [b"first", b"second"]

    def test_the_connection_stays_open_and_the_queue_is_used_again(self, server: Server, client: Client) -> None:
        server.disk.fail("write", errno.EIO, times=1)
        assert is_server_error(client.talk(put(b"work", b"lost")))
        assert client.talk(put(b"work", b"again")) == STORED
        assert drain(server, b"work") == [b"again"]

    def test_another_queue_of_the_tick_is_not_touched_by_it(self, server: Server, client: Client) -> None:
        server.disk.fail("write", errno.EIO, times=1)
        reply = client.talk(put(b"work", b"lost") + put(b"other", b"kept"))
        first, _, second = reply.partition(b"\r\n")
        assert is_server_error(first + b"\r\n")
        assert second == STORED
        assert drain(server, b"other") == [b"kept"]

    def test_when_even_the_cut_fails_a_new_file_is_begun_and_every_record_of_it_counts(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"first"))
        before = file_ids(server)
        server.disk.fail("write", errno.EIO, times=1, torn_bytes=10)
        server.disk.fail("cut", errno.EIO, times=1)
        assert is_server_error(client.talk(put(b"work", b"lost")))
        assert client.talk(put(b"work", b"again")) == STORED
        assert file_ids(server) - before
        assert drain(machine.crash(server), b"work") == [b"first", b"again"]
        assert drain(server, b"work") == [b"first", b"again"]

    def test_when_even_the_cut_fails_whole_records_of_the_lost_batch_do_not_come_back(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"first"))
        server.disk.fail("write", errno.EIO, times=1, torn_bytes=30)
        server.disk.fail("cut", errno.EIO, times=1)
        reply = client.talk(put(b"work", b"lost") + put(b"work", b"lost too"))
        assert reply.count(b"SERVER_ERROR") == 2
        assert drain(machine.crash(server), b"work") == [b"first"]
        assert drain(server, b"work") == [b"first"]

    def test_a_disk_that_fails_for_good_says_so_each_time_and_loses_nothing(
        self, server: Server, client: Client
    ) -> None:
        client.talk(put(b"work", b"first"))
        for operation in ("write", "cut", "rename", "open"):
            server.disk.fail(operation, errno.EIO, torn_bytes=10)
        for _ in range(3):
            assert is_server_error(client.talk(put(b"work", b"lost")))
            assert is_server_error(client.talk(b"get work\r\n"))
        server.disk.mend()
        assert drain(server, b"work") == [b"first"]

    def test_what_was_stored_before_is_on_the_medium_within_its_period_all_the_same(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"periodic", b"stored"))
        server.disk.fail("write", errno.EIO, times=1)
        assert is_server_error(client.talk(put(b"periodic", b"lost")))
        server.pass_time(PERIOD_S)
        server.settle()
        assert drain(machine.fail_power(server), b"periodic") == [b"stored"]

    def test_a_waiting_client_gets_the_item_that_came_back(self, server: Server, client: Client) -> None:
        waiting = server.client()
        client.talk(put(b"work", b"first"))
        server.disk.fail("write", errno.EIO, times=1)
        client.send(b"get work\r\n")
        waiting.send(b"get work/t=1000\r\n")
        server.settle()
        assert is_server_error(client.received())
        assert waiting.received() == value(b"work", b"first")

    def test_deleting_a_queue_after_it_failed_leaves_no_file_of_it(self, server: Server, client: Client) -> None:
        server.disk.fail("write", errno.EIO, times=1, torn_bytes=10)
        server.disk.fail("cut", errno.EIO, times=1)
        client.talk(put(b"work", b"lost"))
        assert client.talk(b"delete work\r\n") == b"DELETED\r\n"
        assert server.files() == {}


# A sync fails, syncJournal 0.


class TestSyncFailsWithSyncJournal0:
    def test_a_reply_waits_for_the_sync(self, server: Server, client: Client) -> None:
        assert client.ask(put(b"synced", b"a")) == b""
        server.settle()
        assert client.received() == STORED

    @pytest.mark.parametrize(
        "request_",
        [put(b"synced", b"lost"), b"get synced\r\n", b"get synced/close\r\n"],
        ids=["put", "get", "confirm"],
    )
    def test_put_get_and_confirm_of_that_batch_answer_server_error_and_change_nothing(
        self, machine: Machine, server: Server, client: Client, request_: bytes
    ) -> None:
        client.talk(put(b"synced", b"first") + put(b"synced", b"second"))
        if b"close" in request_:
            client.talk(b"get synced/open\r\n")
        server.disk.fail("sync", errno.EIO, times=1)
        assert is_server_error(client.talk(request_))
        assert not client.was_hung_up_on
        assert drain(machine.crash(server), b"synced") == [b"first", b"second"]
        assert drain(machine.fail_power(server), b"synced") == [b"first", b"second"]
        assert drain(server, b"synced") == [b"first", b"second"]

    @pytest.mark.parametrize(
        "request_",
        [put(b"synced", b"lost"), b"get synced\r\n", b"get synced/close\r\n"],
        ids=["put", "get", "confirm"],
    )
    def test_what_was_answered_with_an_error_did_not_happen_though_no_sync_works_any_more(
        self, machine: Machine, server: Server, client: Client, request_: bytes
    ) -> None:
        client.talk(put(b"synced", b"first") + put(b"synced", b"second"))
        if b"close" in request_:
            client.talk(b"get synced/open\r\n")
        server.disk.fail("sync", errno.EIO)
        assert is_server_error(client.talk(request_))
        assert drain(machine.crash(server), b"synced") == [b"first", b"second"]
        assert drain(machine.fail_power(server), b"synced") == [b"first", b"second"]

    @journal_only  # which alone records an open read
    def test_an_open_of_that_batch_answers_server_error_and_changes_nothing(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"synced", b"first") + put(b"synced", b"second"))
        server.disk.fail("sync", errno.EIO, times=1)
        assert is_server_error(client.talk(b"get synced/open\r\n"))
        assert not client.was_hung_up_on
        assert drain(machine.crash(server), b"synced") == [b"first", b"second"]
        assert drain(machine.fail_power(server), b"synced") == [b"first", b"second"]
        assert drain(server, b"synced") == [b"first", b"second"]

    def test_a_flush_of_that_batch_answers_server_error_and_the_items_stay(
        self, server: Server, client: Client
    ) -> None:
        client.talk(put(b"synced", b"first"))
        server.disk.fail("sync", errno.EIO, times=1)
        assert is_server_error(client.talk(b"flush synced\r\n"))
        assert drain(server, b"synced") == [b"first"]

    def test_replies_of_a_later_tick_fail_with_it(self, machine: Machine, server: Server, client: Client) -> None:
        other = server.client()
        server.disk.fail("sync", errno.EIO, times=1)
        assert client.ask(put(b"synced", b"tick 1")) == b""
        assert other.ask(put(b"synced", b"tick 2")) == b""
        server.settle()
        assert is_server_error(client.received())
        assert is_server_error(other.received())
        assert drain(machine.crash(server), b"synced") == []
        assert drain(server, b"synced") == []

    def test_an_item_of_the_lost_batch_is_given_to_nobody(self, server: Server, client: Client) -> None:
        other = server.client()
        server.disk.fail("sync", errno.EIO, times=1)
        client.ask(put(b"synced", b"never safe"))
        assert other.ask(b"get synced\r\n") == b""
        server.settle()
        assert is_server_error(other.received())

    def test_an_item_of_the_lost_batch_is_shown_to_nobody(self, server: Server, client: Client) -> None:
        other = server.client()
        server.disk.fail("sync", errno.EIO, times=1)
        client.ask(put(b"synced", b"never safe"))
        assert other.ask(b"get synced/peek\r\n") == b""
        server.settle()
        assert is_server_error(other.received())

    def test_what_was_answered_with_an_error_does_not_come_back_from_the_page_cache(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"synced", b"first"))
        server.disk.fail("sync", errno.EIO, times=1)
        client.talk(put(b"synced", b"lost"))
        assert client.talk(put(b"synced", b"after")) == STORED
        for after in (machine.crash(server), machine.fail_power(server), machine.restart(server)):
            assert drain(after, b"synced") == [b"first", b"after"]

    @journal_only
    def test_the_file_is_cut_to_its_last_sync_and_a_new_one_is_begun(self, server: Server, client: Client) -> None:
        client.talk(put(b"synced", b"first"))
        before = server.files()["synced"]
        server.disk.fail("sync", errno.EIO, times=1)
        client.talk(put(b"synced", b"lost"))
        files = server.files()
        assert files.pop("synced") == b""
        assert list(files.values()) == [before]

    def test_what_is_stored_afterwards_is_on_the_medium(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        server.disk.fail("sync", errno.EIO, times=1)
        client.talk(put(b"synced", b"lost"))
        assert client.talk(put(b"synced", b"after")) == STORED
        assert drain(machine.fail_power(server), b"synced") == [b"after"]

    def test_when_even_the_cut_fails_the_file_is_not_synced_again(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"synced", b"first"))
        server.disk.fail("sync", errno.EIO, times=1)
        server.disk.fail("cut", errno.EIO, times=1)
        assert is_server_error(client.talk(put(b"synced", b"lost")))
        reply = client.talk(put(b"synced", b"after"))
        left = [b"first", b"after"] if reply == STORED else [b"first"]
        assert drain(machine.fail_power(server), b"synced") == left

    def test_when_even_the_cut_fails_what_was_answered_with_an_error_does_not_come_back(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"synced", b"first"))
        server.disk.fail("sync", errno.EIO, times=1)
        server.disk.fail("cut", errno.EIO, times=1)
        assert is_server_error(client.talk(put(b"synced", b"lost")))
        assert drain(server, b"synced") == [b"first"]

    def test_a_folder_that_cannot_be_synced_fails_the_batch_as_a_file_does(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        server.disk.fail("sync_folder", errno.EIO, times=1)
        assert is_server_error(client.talk(put(b"synced", b"lost")))
        assert client.talk(put(b"synced", b"after")) == STORED
        assert drain(machine.fail_power(server), b"synced")[-1] == b"after"
        assert drain(machine.crash(server), b"synced") == [b"after"]

    def test_each_failure_stands_for_itself(self, machine: Machine, server: Server, client: Client) -> None:
        for number in range(5):
            assert client.talk(put(b"synced", b"stored %d" % number)) == STORED
            server.disk.fail("sync", errno.EIO, times=1)
            assert is_server_error(client.talk(put(b"synced", b"lost")))
        stored = [b"stored %d" % number for number in range(5)]
        assert drain(machine.crash(server), b"synced") == stored
        assert drain(machine.fail_power(server), b"synced") == stored

    def test_a_queue_deleted_while_its_sync_runs_does_not_come_back(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        other = server.client()
        server.disk.fail("sync", errno.EIO, times=1)
        client.ask(put(b"synced", b"old"))
        other.send(b"delete synced\r\n" + put(b"synced", b"new"))
        server.settle()
        server.disk.mend()
        assert drain(machine.crash(server), b"synced") == drain(server, b"synced")
        assert b"old" not in drain(machine.crash(server), b"synced")

    def test_deleting_a_queue_after_it_failed_leaves_no_file_of_it(self, server: Server, client: Client) -> None:
        server.disk.fail("sync", errno.EIO, times=1)
        client.talk(put(b"synced", b"lost"))
        assert client.talk(b"delete synced\r\n") == b"DELETED\r\n"
        assert server.files() == {}

    def test_a_deletion_is_answered_when_it_would_survive_a_power_failure(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"synced", b"a"))
        assert client.ask(b"delete synced\r\n") == b""
        assert drain(machine.fail_power(server), b"synced") == [b"a"]
        server.settle()
        assert client.received() == b"DELETED\r\n"
        assert drain(machine.fail_power(server), b"synced") == []

    def test_a_deletion_that_cannot_be_synced_says_so(self, server: Server, client: Client) -> None:
        client.talk(put(b"synced", b"a"))
        server.disk.fail("sync_folder", errno.EIO, times=1)
        assert is_server_error(client.talk(b"delete synced\r\n"))
        assert client.talk(put(b"synced", b"new")) == STORED
        assert drain(server, b"synced") == [b"new"]

    def test_a_stored_item_survives_a_power_failure(self, machine: Machine, server: Server, client: Client) -> None:
        client.talk(put(b"synced", b"a") + put(b"synced", b"b") + b"get synced\r\n")
        assert drain(machine.fail_power(server), b"synced") == [b"b"]

    def test_no_reply_leaves_before_what_it_says_would_survive_a_power_failure(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.send(put(b"synced", b"a"))
        assert next_reply(server, client) == STORED
        assert drain(machine.fail_power(server), b"synced") == [b"a"]


def next_reply(server: Server, client: Client) -> bytes:
    """Let threads work, one job after the other, until the client hears something."""
    server.end_tick()
    while not (reply := client.received()):
        server.threads.run_one()
        server.end_tick()
    return reply


class TestSyncJournal0AfterACrash:
    """What the last process wrote may be unsynced, and its sync may fail while clients are served already."""

    @pytest.fixture
    def again(self, machine: Machine, server: Server, client: Client) -> Server:
        """The next process, whose first sync will fail."""
        client.talk(put(b"synced", b"a") + put(b"synced", b"b"))
        again = machine.crash(server)
        again.disk.fail("sync", errno.EIO, times=1)
        return again

    def test_a_put_is_not_stored_on_a_sync_that_follows_a_failed_one(self, machine: Machine, again: Server) -> None:
        client = again.client()
        client.send(put(b"synced", b"c"))
        reply = next_reply(again, client)
        left = drain(machine.fail_power(again), b"synced")
        assert (b"c" in left) == (reply == STORED)

    @pytest.mark.parametrize("steps", range(6))
    def test_a_get_is_answered_when_its_remove_is_on_the_medium(
        self, machine: Machine, again: Server, steps: int
    ) -> None:
        again.end_tick()
        run_steps(again, steps)
        client = again.client()
        client.send(b"get synced\r\n")
        if next_reply(again, client) == value(b"synced", b"a"):
            assert drain(machine.fail_power(again), b"synced") == [b"b"]
        else:
            assert drain(machine.fail_power(again), b"synced") == [b"a", b"b"]

    def test_nothing_is_lost(self, machine: Machine, again: Server) -> None:
        again.settle()
        assert drain(machine.fail_power(again), b"synced") == [b"a", b"b"]
        assert drain(again, b"synced") == [b"a", b"b"]


# A sync fails, a period.


class TestSyncFailsWithAPeriod:
    @pytest.fixture
    def failed(self, server: Server, client: Client) -> Server:
        """Three items were stored and one of them opened, and the sync that followed has failed."""
        for data in (b"a", b"b", b"c"):
            assert client.talk(put(b"periodic", data)) == STORED
        assert client.talk(b"get periodic/open\r\n") == value(b"periodic", b"a")
        server.disk.fail("sync", errno.EIO, times=1)
        server.pass_time(PERIOD_S)
        server.threads.run_one()
        server.end_tick()
        return server

    def test_replies_do_not_wait_for_the_sync(self, server: Server, client: Client) -> None:
        assert client.ask(put(b"periodic", b"a")) == STORED
        assert "sync" not in server.disk.calls

    def test_what_a_crash_left_unsynced_is_synced_within_the_period_of_the_next_run(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"periodic", b"a"))
        again = machine.crash(server)
        again.pass_time(PERIOD_S)
        again.settle()
        assert "sync" in again.disk.calls

    def test_puts_are_refused_while_the_contents_are_rewritten(self, failed: Server) -> None:
        assert is_server_error(failed.client().ask(put(b"periodic", b"d")))

    def test_puts_to_other_queues_are_taken_meanwhile(self, failed: Server) -> None:
        assert failed.client().ask(put(b"work", b"d")) == STORED

    def test_puts_are_taken_again_when_the_new_files_are_safe(self, machine: Machine, failed: Server) -> None:
        failed.settle()
        assert failed.client().talk(put(b"periodic", b"d")) == STORED
        assert drain(machine.crash(failed), b"periodic") == [b"a", b"b", b"c", b"d"]
        assert drain(failed, b"periodic") == [b"b", b"c", b"d"]

    def test_earlier_stores_stand(self, machine: Machine, failed: Server) -> None:
        failed.settle()
        assert drain(machine.crash(failed), b"periodic") == [b"a", b"b", b"c"]
        assert drain(machine.fail_power(failed), b"periodic") == [b"a", b"b", b"c"]
        assert drain(machine.restart(failed), b"periodic") == [b"a", b"b", b"c"]

    def test_what_was_looked_at_or_put_back_is_in_the_new_files_too(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        client.talk(put(b"periodic", b"put back") + put(b"periodic", b"b"))
        client.talk(b"get periodic/open\r\nget periodic/abort\r\nget periodic/peek\r\n")
        server.disk.fail("sync", errno.EIO, times=1)
        server.pass_time(PERIOD_S)
        server.settle()
        assert drain(machine.fail_power(server), b"periodic") == [b"put back", b"b"]

    def test_earlier_stores_stand_at_every_step_of_the_rewriting(self, machine: Machine, failed: Server) -> None:
        while len(failed.threads):
            assert drain(machine.crash(failed), b"periodic") == [b"a", b"b", b"c"]
            failed.threads.run_one()
            failed.end_tick()
        assert drain(machine.crash(failed), b"periodic") == [b"a", b"b", b"c"]

    def test_gets_and_closes_meanwhile_are_answered_and_last(
        self, machine: Machine, failed: Server, client: Client
    ) -> None:
        other = failed.client()
        other.send(b"get periodic\r\n")
        client.send(b"get periodic/close\r\n")
        failed.settle()
        assert (other.received(), client.received()) == (value(b"periodic", b"b"), END)
        assert drain(machine.crash(failed), b"periodic") == [b"c"]
        assert drain(machine.restart(failed), b"periodic") == [b"c"]

    def test_an_open_read_stays_its_holders(self, machine: Machine, failed: Server, client: Client) -> None:
        failed.settle()
        assert client.talk(b"get periodic/close\r\n") == END
        assert drain(machine.crash(failed), b"periodic") == [b"b", b"c"]

    def test_no_file_is_synced_again_after_its_sync_failed(self, machine: Machine, failed: Server) -> None:
        failed.settle()
        client = failed.client()
        assert client.talk(put(b"periodic", b"d")) == STORED
        for _ in range(2):
            failed.pass_time(PERIOD_S)
            failed.settle()
        assert drain(machine.fail_power(failed), b"periodic") == [b"a", b"b", b"c", b"d"]

    @pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_folder"])
    def test_when_the_rewriting_fails_the_queue_is_dead_and_replayed(
        self, machine: Machine, failed: Server, operation: str
    ) -> None:
        failed.disk.fail(operation, errno.EIO, times=1)
        other = failed.client()
        other.send(b"get periodic\r\n")
        failed.settle()
        assert is_server_error(other.received())
        assert drain(machine.crash(failed), b"periodic") == [b"a", b"b", b"c"]
        assert failed.client().talk(put(b"periodic", b"d")) == STORED
        assert drain(failed, b"periodic") == [b"a", b"b", b"c", b"d"]

    def test_when_the_rewriting_fails_the_holder_of_an_open_read_is_told(
        self, failed: Server, client: Client
    ) -> None:
        failed.disk.fail("write", errno.EIO, times=1)
        failed.settle()
        assert is_server_error(client.talk(b"get periodic/close\r\n"))
        assert drain(failed, b"periodic") == [b"a", b"b", b"c"]

    @pytest.mark.parametrize("steps", range(5))
    def test_a_queue_deleted_meanwhile_does_not_come_back(
        self, machine: Machine, failed: Server, steps: int
    ) -> None:
        run_steps(failed, steps)
        assert failed.client().ask(b"delete periodic\r\n") == b"DELETED\r\n"
        assert drain(machine.crash(failed), b"periodic") == []
        failed.settle()
        assert drain(machine.crash(failed), b"periodic") == []
        assert [name for name in failed.files() if name.startswith("periodic")] == []

    @pytest.mark.parametrize("steps", range(5))
    def test_of_a_queue_deleted_and_made_again_meanwhile_nothing_old_comes_back(
        self, machine: Machine, failed: Server, steps: int
    ) -> None:
        run_steps(failed, steps)
        other = failed.client()
        replies = other.ask(b"delete periodic\r\n" + put(b"periodic", b"new"))
        while len(failed.threads):
            left = drain(machine.crash(failed), b"periodic")
            assert left == [b"new"] or (left == [] and STORED not in replies)
            failed.threads.run_one()
            failed.end_tick()
            replies += other.received()
        assert replies == b"DELETED\r\n" + STORED
        assert drain(machine.crash(failed), b"periodic") == [b"new"]
        assert drain(machine.restart(failed), b"periodic") == [b"new"]

    @pytest.mark.parametrize("operation", ["rename", "sync_folder"])
    def test_a_queue_deleted_in_the_midst_of_the_publishing_does_not_come_back(
        self, machine: Machine, failed: Server, operation: str
    ) -> None:
        check_deletion_before(operation, machine, failed)

    @journal_only
    def test_a_queue_deleted_before_the_old_files_are_erased_does_not_come_back(
        self, machine: Machine, failed: Server
    ) -> None:
        check_deletion_before("erase", machine, failed)

    def test_a_queue_whose_new_file_is_published_in_the_midst_of_its_deletion_does_not_come_back(
        self, machine: Machine, failed: Server
    ) -> None:
        run_steps(failed, 1)
        deleting = failed.client()
        failed.disk.before("rename", failed.threads.run_one)  # after the deletion's look at the folder
        assert deleting.talk(b"delete periodic\r\n" + put(b"periodic", b"new")) == b"DELETED\r\n" + STORED
        assert drain(machine.crash(failed), b"periodic") == [b"new"]

    def test_a_flush_meanwhile_lasts(self, machine: Machine, failed: Server) -> None:
        other = failed.client()
        other.send(b"flush periodic\r\n")
        failed.settle()
        assert other.received() == END
        assert drain(machine.crash(failed), b"periodic") == [b"a"]  # the open read's

    def test_a_stop_meanwhile_loses_nothing(self, machine: Machine, failed: Server) -> None:
        assert drain(machine.restart(failed), b"periodic") == [b"a", b"b", b"c"]


def check_deletion_before(operation: str, machine: Machine, failed: Server) -> None:
    """Delete the queue, and make it again, right before the next operation of that kind."""
    deleting = failed.client()
    failed.disk.before(operation, lambda: deleting.send(b"delete periodic\r\n" + put(b"periodic", b"new")))
    failed.settle()
    assert deleting.received() == b"DELETED\r\n" + STORED
    assert drain(machine.crash(failed), b"periodic") == [b"new"]


def run_steps(server: Server, steps: int) -> None:
    """Let that many jobs of the threads be done."""
    for _ in range(min(steps, len(server.threads))):
        server.threads.run_one()
        server.end_tick()


# The holder of an open read on a queue that died.


def die_of_a_write(server: Server) -> None:
    server.disk.fail("write", errno.EIO, times=1)


def die_of_a_sync(server: Server) -> None:
    server.disk.fail("sync", errno.EIO, times=1)


@pytest.mark.parametrize("die", [die_of_a_write, die_of_a_sync])
class TestHolderOfAnOpenReadOnAQueueThatDied:
    @pytest.fixture
    def holder(self, server: Server, die: Callable[[Server], None]) -> Client:
        """Holds the first of two items, and then the queue dies of somebody else's put."""
        holder = server.client()
        holder.talk(put(b"synced", b"held") + put(b"synced", b"next") + b"get synced/open\r\n")
        die(server)
        assert is_server_error(server.client().talk(put(b"synced", b"lost")))
        return holder

    @pytest.mark.parametrize(
        "request_", [b"get synced/close\r\n", b"get synced/close/open\r\n", b"confirm synced 1\r\n"]
    )
    def test_its_close_answers_server_error_and_never_end(self, holder: Client, request_: bytes) -> None:
        assert is_server_error(holder.talk(request_))

    def test_its_item_is_delivered_again(self, server: Server, holder: Client) -> None:
        holder.talk(b"get synced/close\r\n")
        assert drain(server, b"synced") == [b"held", b"next"]

    def test_its_item_is_delivered_again_and_once_when_it_is_gone(self, server: Server, holder: Client) -> None:
        holder.hang_up()
        assert drain(server, b"synced") == [b"held", b"next"]

    def test_its_late_close_does_not_end_another_clients_read(self, server: Server, holder: Client) -> None:
        other = server.client()
        assert other.talk(b"get synced/open\r\n") == value(b"synced", b"held")
        holder.talk(b"get synced/close\r\n")
        other.hang_up()
        assert drain(server, b"synced") == [b"held", b"next"]

    def test_it_may_open_again_after_it_was_told(self, holder: Client) -> None:
        holder.talk(b"get synced/close\r\n")
        assert holder.talk(b"get synced/open\r\n") == value(b"synced", b"held")
        assert holder.talk(b"get synced/close\r\n") == END


def lose_the_batch_of_this_tick(server: Server) -> None:
    """Somebody puts an item, and the sync that follows will fail: with it, whatever is done in the same tick."""
    server.disk.fail("sync", errno.EIO, times=1)
    server.client().send(put(b"synced", b"lost"))


def test_an_open_that_was_answered_with_an_error_is_no_open_read_of_that_client(
    server: Server, client: Client
) -> None:
    for data in (b"a", b"b", b"c"):
        client.talk(put(b"synced", data))
    lose_the_batch_of_this_tick(server)
    assert is_server_error(client.talk(b"get synced/open\r\n"))
    assert client.talk(b"get synced/open\r\n") == value(b"synced", b"a")
    assert client.talk(b"get synced/close\r\n") == b"END\r\n"
    assert client.talk(b"get synced/open\r\n") == value(b"synced", b"b")
    assert client.talk(b"get synced/abort\r\n") == b"END\r\n"
    assert drain(server, b"synced") == [b"b", b"c"]


def test_a_monitored_item_that_was_answered_with_an_error_is_no_open_read_of_that_client(
    server: Server, client: Client
) -> None:
    client.talk(put(b"synced", b"a") + put(b"synced", b"b"))
    lose_the_batch_of_this_tick(server)
    assert is_server_error(client.talk(b"monitor synced 1 1\r\n").partition(b"END")[0])
    assert client.talk(b"get synced/open\r\n") == value(b"synced", b"a")
    assert client.talk(b"get synced/close\r\n") == b"END\r\n"
    assert drain(server, b"synced") == [b"b"]


def test_a_close_pipelined_behind_an_open_that_fails_is_an_error_too(server: Server, client: Client) -> None:
    client.talk(put(b"synced", b"a"))
    server.disk.fail("sync", errno.EIO, times=1)
    reply = client.talk(b"get synced/open\r\nget synced/close\r\n")
    assert reply.count(b"SERVER_ERROR") == 2
    assert drain(server, b"synced") == [b"a"]


def test_a_queue_is_deleted_though_somebody_has_cleaned_up_the_private_folder(
    machine: Machine, server: Server, client: Client
) -> None:
    client.talk(put(b"work", b"old"))
    for path in (server.folder / ".kestrel").iterdir():
        if path.is_dir():
            path.rmdir()
    assert client.talk(b"delete work\r\n") == b"DELETED\r\n"
    assert client.talk(put(b"work", b"new")) == STORED
    assert drain(machine.crash(server), b"work") == [b"new"]


def test_a_queue_whose_files_cannot_be_removed_is_not_deleted_however_often_that_is_asked_for(
    server: Server, client: Client
) -> None:
    client.talk(put(b"work", b"a"))
    for operation in ("rename", "write", "erase"):
        server.disk.fail(operation, errno.EIO)
    for _ in range(3):
        assert is_server_error(client.talk(b"delete work\r\n"))
    server.disk.mend()
    assert client.talk(b"delete work\r\n") == b"DELETED\r\n"
    assert server.files() == {}


# A client that leaves.


class TestClientThatLeaves:
    def test_a_plain_get_is_gone_once_its_commit_began(self, machine: Machine, server: Server, client: Client) -> None:
        client.talk(put(b"synced", b"a") + put(b"synced", b"b"))
        leaving = server.client()
        leaving.ask(b"get synced\r\n")
        leaving.hang_up()
        server.settle()
        assert drain(machine.crash(server), b"synced") == [b"b"]
        assert drain(server, b"synced") == [b"b"]

    def test_an_open_read_goes_back_when_its_commit_began(self, server: Server, client: Client) -> None:
        client.talk(put(b"synced", b"a") + put(b"synced", b"b"))
        leaving = server.client()
        leaving.ask(b"get synced/open\r\n")
        leaving.hang_up()
        server.settle()
        assert drain(server, b"synced") == [b"a", b"b"]

    def test_a_get_that_waited_gives_its_item_back_when_nobody_reads_it(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        waiting = server.client()
        waiting.ask(b"get synced/t=1000\r\n")
        client.ask(put(b"synced", b"a"))
        waiting.hang_up()
        server.settle()
        assert client.received() == STORED
        assert drain(machine.crash(server), b"synced") == [b"a"]
        assert drain(server, b"synced") == [b"a"]

    def test_a_get_that_waited_and_was_answered_is_finished(
        self, machine: Machine, server: Server, client: Client
    ) -> None:
        waiting = server.client()
        waiting.ask(b"get synced/t=1000\r\n")
        client.talk(put(b"synced", b"a"))
        assert waiting.received() == value(b"synced", b"a")
        waiting.hang_up()
        server.settle()
        assert drain(machine.crash(server), b"synced") == []

    def test_a_put_whose_client_left_is_stored_all_the_same(self, server: Server, client: Client) -> None:
        client.ask(put(b"synced", b"a"))
        client.hang_up()
        server.settle()
        assert drain(server, b"synced") == [b"a"]

    def test_one_who_half_closes_gets_the_replies_that_are_held_and_is_hung_up_on(
        self, server: Server, client: Client
    ) -> None:
        client.send(put(b"synced", b"a") + b"get synced\r\n" + put(b"work", b"b"))
        client.half_close()
        server.end_tick()
        assert (client.received(), client.was_hung_up_on) == (b"", False)
        server.settle()
        assert client.received() == STORED + value(b"synced", b"a") + STORED
        assert client.was_hung_up_on

    def test_one_who_half_closes_is_told_of_a_batch_that_is_lost(self, server: Server, client: Client) -> None:
        server.disk.fail("sync", errno.EIO, times=1)
        client.ask(put(b"synced", b"a"))
        client.half_close()
        server.settle()
        assert is_server_error(client.received())
        assert client.was_hung_up_on

    def test_one_who_half_closes_while_waiting_has_hung_up(self, server: Server, client: Client) -> None:
        waiting = server.client()
        waiting.ask(b"get work/t=1000\r\n")
        waiting.half_close()
        server.settle()
        assert waiting.was_hung_up_on
        client.talk(put(b"work", b"a"))
        assert drain(server, b"work") == [b"a"]


# Order.


class TestOrderBetweenASyncedAndAnUnsyncedQueue:
    def test_replies_of_one_connection_keep_their_order(self, server: Server, client: Client) -> None:
        assert client.ask(put(b"work", b"1") + put(b"synced", b"2") + b"get work\r\n") == STORED
        server.settle()
        assert client.received() == STORED + value(b"work", b"1")

    def test_another_connection_on_the_unsynced_queue_does_not_wait(self, server: Server, client: Client) -> None:
        other = server.client()
        client.send(put(b"synced", b"1"))
        other.send(put(b"work", b"2"))
        server.end_tick()
        assert (client.received(), other.received()) == (b"", STORED)

    def test_an_error_takes_its_place_in_the_order(self, server: Server, client: Client) -> None:
        server.disk.fail("sync", errno.EIO, times=1)
        reply = client.talk(put(b"work", b"1") + put(b"synced", b"2") + b"get work\r\n")
        first, second, rest = reply.split(b"\r\n", 2)
        assert (first, rest) == (b"STORED", value(b"work", b"1"))
        assert is_server_error(second + b"\r\n")

    def test_two_ticks_of_one_queue_are_answered_in_order(self, server: Server, client: Client) -> None:
        other = server.client()
        client.ask(put(b"synced", b"1"))
        other.ask(put(b"synced", b"2"))
        server.threads.run_one()
        server.end_tick()
        assert (client.received(), other.received()) == (STORED, b"")
        server.settle()
        assert other.received() == STORED


# The wall clock.


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000], ids=["an hour on", "an hour back"])
class TestWallClockSteps:
    def test_a_waiting_client_waits_as_long_as_it_said(self, server: Server, client: Client, step_ms: int) -> None:
        client.ask(b"get work/t=1000\r\n")
        server.wall_offset_ms += step_ms
        server.pass_time(0.9)
        assert client.received() == b""
        server.pass_time(0.1)
        assert client.received() == END

    def test_a_waiting_client_is_served_at_once(self, server: Server, client: Client, step_ms: int) -> None:
        waiting = server.client()
        waiting.ask(b"get work/t=1000\r\n")
        server.wall_offset_ms += step_ms
        client.ask(put(b"work", b"a"))
        assert waiting.received() == value(b"work", b"a")

    def test_a_held_reply_leaves_with_its_sync(self, server: Server, client: Client, step_ms: int) -> None:
        client.ask(put(b"synced", b"a"))
        server.wall_offset_ms += step_ms
        server.settle()
        assert client.received() == STORED

    def test_a_period_lasts_as_long_as_it_says(
        self, machine: Machine, server: Server, client: Client, step_ms: int
    ) -> None:
        client.ask(put(b"periodic", b"a"))
        server.wall_offset_ms += step_ms
        server.pass_time(PERIOD_S - 0.1)
        server.settle()
        assert drain(machine.fail_power(server), b"periodic") == []
        server.pass_time(0.1)
        server.settle()
        assert drain(machine.fail_power(server), b"periodic") == [b"a"]

    def test_the_reserve_is_tried_again_as_soon(self, server: Server, client: Client, step_ms: int) -> None:
        fill_disk(server)
        server.wall_offset_ms += step_ms
        server.disk.room = 10 * RESERVE_BYTES
        server.pass_time(1)
        server.settle()
        assert client.talk(put(b"work", b"again")) == STORED

    def test_files_set_aside_are_replayed_in_the_order_in_which_they_were_written(
        self, machine: Machine, server: Server, client: Client, step_ms: int
    ) -> None:
        for number in range(4):
            client.talk(put(b"synced", b"%d" % number))
            server.disk.fail("sync", errno.EIO, times=1)
            client.talk(put(b"synced", b"lost"))
            server.wall_offset_ms += step_ms
        again = machine.restart(server)
        again.wall_offset_ms = -step_ms
        client = again.client()
        client.talk(put(b"synced", b"4"))
        again.disk.fail("sync", errno.EIO, times=1)
        client.talk(put(b"synced", b"lost"))
        client.talk(put(b"synced", b"5"))
        assert drain(machine.crash(again), b"synced") == [b"0", b"1", b"2", b"3", b"4", b"5"]


class TestADiskThatIsFullOfABacklog:
    """Nothing can be put; to take items costs a little room, and the room of what was taken must come back in time."""

    @pytest.mark.parametrize("size", [30, 100, 300])
    @pytest.mark.parametrize("opens", [False, True])
    def test_is_drained_and_takes_puts_again(self, machine: Machine, size: int, opens: bool) -> None:
        server = machine.start(room=100_000)
        server.reload(
            QueueSettings(
                max_memory_size_bytes=10 * size + 100, max_journal_size_bytes=50_000, min_journal_compact_delay_ms=None
            )
        )
        client = server.client()
        count = 0
        while client.talk(put(b"work", b"%06d" % count + bytes(size))) == STORED:
            count += 1
        for number in range(count):
            if opens:
                assert client.talk(b"get work/open\r\n") == value(b"work", b"%06d" % number + bytes(size))
                assert client.talk(b"get work/close\r\n") == END
            else:
                assert client.talk(b"get work\r\n") == value(b"work", b"%06d" % number + bytes(size))
        for _ in range(3):
            server.pass_time(60)
            server.settle()
        assert client.talk(put(b"work", b"again")) == STORED


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_what_was_stored_is_on_the_medium_in_the_end_though_the_rewriting_failed_too(
    machine: Machine, times: int
) -> None:
    server = machine.start()
    client = server.client()
    stored = []
    for number in range(8):
        if number == 1:
            server.disk.fail("sync", errno.EIO, times=times)
        item = b"%d" % number
        if client.talk(put(b"periodic", item)) == STORED:
            stored.append(item)
        server.pass_time(PERIOD_S)
        server.settle()
    server.pass_time(5)
    server.settle()
    assert stored[:2] == [b"0", b"1"]
    for after in (machine.fail_power(server), server):
        assert drain(after, b"periodic") == stored
