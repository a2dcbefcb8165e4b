"""Effects of disk failures and lost connections on the clients of a whole server: the rows of docs/storage.md."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from kestrel.config.model import QueueSettings
from tests.memcache_text import END, STORED, set_, value
from tests.storage.backends import journal_only
from tests.storage.faulty_server import (
    DELETED,
    PERIOD_S,
    RESERVE_BYTES,
    Client,
    Machine,
    Server,
    drain,
    is_server_error,
)

DISK_FULL = b"SERVER_ERROR disk full\r\n"


def fill_disk(server: Server) -> None:
    """Fill the disk with a put to the queue "work", so that the server uses its reserve and refuses puts."""
    server.client().talk(b"get work/peek\r\n")
    server.disk.room = 0
    assert server.client().talk(set_(b"work", b"the last")) == STORED
    assert server.storage.refusal is not None


def free_disk(server: Server, room: int = 10 * RESERVE_BYTES, seconds: int = 3) -> None:
    """Free that many bytes of the disk, and let the server try to recreate its reserve."""
    server.disk.room = room
    for _ in range(seconds):
        server.pass_time(1)
        server.settle()


def pass_period(server: Server) -> None:
    server.pass_time(PERIOD_S)
    server.settle()


def run_jobs(server: Server, jobs: int) -> None:
    """Run at most that many jobs of the threads."""
    for _ in range(min(jobs, len(server.threads))):
        server.threads.run_one()
        server.end_tick()


def next_reply(server: Server, client: Client) -> bytes:
    """Run jobs until the client receives something."""
    server.end_tick()
    while not (reply := client.received()):
        run_jobs(server, 1)
    return reply


def file_ids(server: Server) -> set[int]:
    """Return the inodes of the files in the queue folder."""
    return {path.stat().st_ino for path in server.folder.iterdir() if path.is_file()}


def check_items(server: Server, queue: bytes, items: Sequence[bytes]) -> None:
    """Check the items of a queue after a kill, after a power failure, and in the server, whose queue this drains."""
    for each in (server.crashed(), server.without_power(), server):
        assert drain(each, queue) == items


def check_killed(server: Server, queue: bytes, items: Sequence[bytes]) -> None:
    """Check the items of a queue after a kill and in the server, whose queue this drains."""
    for each in (server.crashed(), server):
        assert drain(each, queue) == items


# A full disk.


class TestFullDisk:
    def test_put_is_refused_and_changes_nothing(self, server: Server, client: Client) -> None:
        fill_disk(server)
        files = server.files()
        assert client.ask(set_(b"work", b"refused")) == DISK_FULL
        assert not client.was_hung_up_on
        assert server.files() == files
        assert drain(server, b"work") == [b"the last"]

    def test_puts_are_stored_again_when_there_is_room(self, server: Server, client: Client) -> None:
        fill_disk(server)
        free_disk(server)
        assert client.talk(set_(b"work", b"again")) == STORED
        fill_disk(server)
        assert drain(server, b"work") == [b"the last", b"again", b"the last"]

    def test_puts_are_refused_without_room_for_the_whole_reserve(self, server: Server, client: Client) -> None:
        fill_disk(server)
        free_disk(server, room=RESERVE_BYTES // 2, seconds=100)
        assert client.talk(set_(b"work", b"refused")) == DISK_FULL

    def test_server_started_without_room_for_its_reserve_refuses_puts(self, machine: Machine) -> None:
        server = machine.start(room=RESERVE_BYTES - 1)
        server.settle()
        assert server.client().talk(set_(b"work", b"a")) == DISK_FULL

    def test_queue_in_memory_still_stores_puts(self, server: Server, client: Client) -> None:
        fill_disk(server)
        assert client.talk(set_(b"memory", b"a")) == STORED

    def test_batch_that_fills_the_disk_is_written_to_the_reserve(self, server: Server, client: Client) -> None:
        client.talk(set_(b"work", b"first"))
        server.disk.room = 30
        other = server.client()
        client.send(set_(b"work", b"the batch that finds it full") + b"get work\r\n")
        other.send(set_(b"work", b"another"))
        server.end_tick()
        assert (client.received(), other.received()) == (STORED + value(b"work", b"first"), STORED)
        check_killed(server, b"work", [b"the batch that finds it full", b"another"])

    def test_two_queues_of_a_tick_share_the_reserve(self, server: Server, client: Client) -> None:
        client.talk(b"get a\r\nget b\r\n")
        server.disk.room = 0
        assert client.talk(set_(b"a", b"in a") + set_(b"b", b"in b")) == STORED + STORED
        check_killed(server, b"a", [b"in a"])
        check_killed(server, b"b", [b"in b"])

    def test_synced_queue_answers_after_its_sync(self, server: Server, client: Client) -> None:
        client.talk(b"get synced\r\n")
        server.disk.room = 0
        assert client.ask(set_(b"synced", b"a")) == b""
        server.settle()
        assert client.received() == STORED
        assert drain(server.without_power(), b"synced") == [b"a"]

    def test_batch_larger_than_the_reserve_is_lost_entirely(self, server: Server, client: Client) -> None:
        client.talk(set_(b"work", b"first"))
        server.disk.room = 100
        assert is_server_error(client.talk(set_(b"work", b"x" * 5 * RESERVE_BYTES)))
        assert drain(server, b"work") == [b"first"]

    @pytest.mark.parametrize("size", [30, 100, 300])
    @pytest.mark.parametrize("opens", [False, True])
    def test_backlog_can_be_drained_and_frees_room_for_puts(self, machine: Machine, size: int, opens: bool) -> None:
        server = machine.start(room=100_000)
        server.reload(
            QueueSettings(
                max_memory_size_bytes=10 * size + 100, max_journal_size_bytes=50_000, min_journal_compact_delay_ms=None
            )
        )
        client = server.client()
        count = 0
        while client.talk(set_(b"work", b"%06d" % count + bytes(size))) == STORED:
            count += 1
        key = b"work/open" if opens else b"work"
        for number in range(count):
            assert client.talk(b"get %b\r\n" % key) == value(key, b"%06d" % number + bytes(size))
            if opens:
                assert client.talk(b"get work/close\r\n") == END
        for _ in range(3):
            server.pass_time(60)
            server.settle()
        assert client.talk(set_(b"work", b"again")) == STORED


class TestUsedUpReserve:
    @pytest.fixture
    def full(self, server: Server, client: Client) -> Server:
        """Return a server with two items in its queue, no reserve, and no room."""
        client.talk(set_(b"work", b"first"))
        fill_disk(server)
        server.disk.room = 0
        return server

    def test_all_requests_of_the_batch_fail(self, full: Server, client: Client) -> None:
        other = full.client()
        client.send(b"get work\r\n")
        other.send(b"get work\r\n")
        full.end_tick()
        assert is_server_error(client.received())
        assert is_server_error(other.received())
        assert client.talk(set_(b"work", b"refused")) == DISK_FULL
        assert is_server_error(client.talk(set_(b"other", b"refused")))

    def test_torn_record_is_cut_and_its_items_are_requeued(self, full: Server, client: Client) -> None:
        before = full.files()
        full.disk.fail("write", errno.ENOSPC, times=1, torn_bytes=1)
        assert is_server_error(client.talk(b"get work\r\n"))
        assert full.files() == before
        full.disk.room = 100
        assert drain(full, b"work") == [b"first", b"the last"]

    def test_queue_works_again_with_room_for_its_removes(self, full: Server, client: Client) -> None:
        full.disk.room = 100
        client.talk(b"get other\r\n")
        full.disk.fail("write", errno.ENOSPC, times=1)
        assert is_server_error(client.talk(b"get work\r\n"))
        assert client.talk(b"get work\r\n") == value(b"work", b"first")


# A write that fails.


class TestWriteFails:
    @pytest.mark.parametrize("torn_bytes", [0, 1, 10, 30])
    def test_batch_is_lost_entirely_and_the_queue_stays_usable(
        self, server: Server, client: Client, torn_bytes: int
    ) -> None:
        client.talk(set_(b"work", b"first"))
        before = server.files()
        other = server.client()
        server.disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
        client.send(set_(b"work", b"lost"))
        other.send(set_(b"work", b"lost too"))
        server.end_tick()
        assert is_server_error(client.received())
        assert is_server_error(other.received())
        assert server.files() == before
        assert client.talk(set_(b"work", b"again")) == STORED
        check_killed(server, b"work", [b"first", b"again"])

    @pytest.mark.parametrize("torn_bytes", [10, 30], ids=["part of a record", "whole record"])
    def test_failed_cut_starts_a_new_file_without_the_lost_batch(
        self, server: Server, client: Client, torn_bytes: int
    ) -> None:
        client.talk(set_(b"work", b"first"))
        before = file_ids(server)
        server.disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
        server.disk.fail("cut", errno.EIO, times=1)
        reply = client.talk(set_(b"work", b"lost") + set_(b"work", b"lost too"))
        assert reply.count(b"SERVER_ERROR") == 2
        assert drain(server.crashed(), b"work") == [b"first"]
        assert client.talk(set_(b"work", b"again")) == STORED
        assert file_ids(server) - before
        check_killed(server, b"work", [b"first", b"again"])

    def test_disk_that_keeps_failing_fails_each_request_and_loses_nothing(self, server: Server, client: Client) -> None:
        client.talk(set_(b"work", b"first"))
        for operation in ("write", "cut", "rename", "open"):
            server.disk.fail(operation, errno.EIO, torn_bytes=10)
        for _ in range(3):
            assert is_server_error(client.talk(set_(b"work", b"lost")))
            assert is_server_error(client.talk(b"get work\r\n"))
        server.disk.mend()
        assert drain(server, b"work") == [b"first"]

    def test_earlier_items_are_synced_within_their_period(self, server: Server, client: Client) -> None:
        client.talk(set_(b"periodic", b"stored"))
        server.disk.fail("write", errno.EIO, times=1)
        assert is_server_error(client.talk(set_(b"periodic", b"lost")))
        pass_period(server)
        assert drain(server.without_power(), b"periodic") == [b"stored"]


# A sync that fails, with syncJournal 0.


class TestSyncFails:
    """A failed sync of a queue with syncJournal 0."""

    def test_put_is_acknowledged_only_after_its_sync(self, server: Server, client: Client) -> None:
        assert client.ask(set_(b"synced", b"a")) == b""
        assert next_reply(server, client) == STORED
        assert drain(server.without_power(), b"synced") == [b"a"]
        client.talk(set_(b"synced", b"b") + b"get synced\r\n")
        assert drain(server.without_power(), b"synced") == [b"b"]

    @pytest.mark.parametrize("times", [1, None], ids=["fails once", "keeps failing"])
    @pytest.mark.parametrize(
        "request_",
        [set_(b"synced", b"lost"), b"get synced\r\n", b"get synced/close\r\n", b"flush synced\r\n"],
        ids=["put", "get", "confirm", "flush"],
    )
    def test_failed_request_changes_nothing(
        self, server: Server, client: Client, request_: bytes, times: int | None
    ) -> None:
        self.check_failed_request(server, client, request_, times)

    @journal_only  # the scroll does not record open reads
    def test_failed_open_changes_nothing(self, server: Server, client: Client) -> None:
        self.check_failed_request(server, client, b"get synced/open\r\n", times=1)

    def check_failed_request(self, server: Server, client: Client, request_: bytes, times: int | None) -> None:
        client.talk(set_(b"synced", b"first") + set_(b"synced", b"second"))
        if b"close" in request_:
            client.talk(b"get synced/open\r\n")
        server.disk.fail("sync", errno.EIO, times=times)
        assert is_server_error(client.talk(request_))
        assert not client.was_hung_up_on
        assert drain(server.crashed(), b"synced") == [b"first", b"second"]
        assert drain(server.without_power(), b"synced") == [b"first", b"second"]
        if times is not None:
            assert drain(server, b"synced") == [b"first", b"second"]

    def test_failed_puts_never_return_from_the_page_cache(self, server: Server, client: Client) -> None:
        stored = [b"stored %d" % number for number in range(5)]
        for data in stored:
            assert client.talk(set_(b"synced", data)) == STORED
            server.disk.fail("sync", errno.EIO, times=1)
            assert is_server_error(client.talk(set_(b"synced", b"lost")))
        assert client.talk(set_(b"synced", b"after")) == STORED
        for after in (server.crashed(), server.without_power(), server.restarted()):
            assert drain(after, b"synced") == [*stored, b"after"]

    @journal_only
    def test_file_is_cut_to_its_last_sync_and_replaced(self, server: Server, client: Client) -> None:
        client.talk(set_(b"synced", b"first"))
        before = server.files()["synced"]
        server.disk.fail("sync", errno.EIO, times=1)
        client.talk(set_(b"synced", b"lost"))
        files = server.files()
        assert files.pop("synced") == b""
        assert list(files.values()) == [before]

    def test_file_that_cannot_be_cut_is_not_synced_again(self, server: Server, client: Client) -> None:
        client.talk(set_(b"synced", b"first"))
        server.disk.fail("sync", errno.EIO, times=1)
        server.disk.fail("cut", errno.EIO, times=1)
        assert is_server_error(client.talk(set_(b"synced", b"lost")))
        reply = client.talk(set_(b"synced", b"after"))
        left = [b"first", b"after"] if reply == STORED else [b"first"]
        assert drain(server.without_power(), b"synced") == left
        assert drain(server, b"synced") == left

    def test_failed_sync_of_the_folder_fails_the_batch(self, server: Server, client: Client) -> None:
        server.disk.fail("sync_folder", errno.EIO, times=1)
        assert is_server_error(client.talk(set_(b"synced", b"lost")))
        assert client.talk(set_(b"synced", b"after")) == STORED
        assert drain(server.without_power(), b"synced")[-1] == b"after"
        assert drain(server.crashed(), b"synced") == [b"after"]

    def test_queue_deleted_during_its_sync_does_not_return(self, server: Server, client: Client) -> None:
        other = server.client()
        server.disk.fail("sync", errno.EIO, times=1)
        client.ask(set_(b"synced", b"old"))
        other.send(b"delete synced\r\n" + set_(b"synced", b"new"))
        server.settle()
        assert client.received() == STORED, "the queue ended with its deletion, not with the failed sync"
        server.disk.mend()
        assert drain(server.crashed(), b"synced") == drain(server, b"synced")
        assert b"old" not in drain(server.crashed(), b"synced")

    def test_deletion_is_answered_when_it_survives_a_power_failure(self, server: Server, client: Client) -> None:
        client.talk(set_(b"synced", b"a"))
        assert client.ask(b"delete synced\r\n") == b""
        assert drain(server.without_power(), b"synced") == [b"a"]
        server.settle()
        assert client.received() == DELETED
        assert drain(server.without_power(), b"synced") == []

    def test_deletion_that_cannot_be_synced_fails(self, server: Server, client: Client) -> None:
        client.talk(set_(b"synced", b"a"))
        server.disk.fail("sync_folder", errno.EIO, times=1)
        assert is_server_error(client.talk(b"delete synced\r\n"))
        assert client.talk(set_(b"synced", b"new")) == STORED
        assert drain(server, b"synced") == [b"new"]


class TestSyncFailsAfterARestart:
    """The last process was killed before its sync. The next one serves clients before the sync of the old files."""

    @pytest.fixture
    def restarted(self, server: Server, client: Client) -> Server:
        """Return a server with two items, whose first sync will fail."""
        client.talk(set_(b"synced", b"a") + set_(b"synced", b"b"))
        restarted = server.crashed()
        restarted.disk.fail("sync", errno.EIO, times=1)
        return restarted

    def test_put_is_acknowledged_only_by_a_valid_sync(self, restarted: Server) -> None:
        client = restarted.client()
        client.send(set_(b"synced", b"c"))
        reply = next_reply(restarted, client)
        left = drain(restarted.without_power(), b"synced")
        assert (b"c" in left) == (reply == STORED)

    @pytest.mark.parametrize("jobs", range(6))
    def test_get_is_answered_when_its_remove_is_synced(self, restarted: Server, jobs: int) -> None:
        restarted.end_tick()
        run_jobs(restarted, jobs)
        client = restarted.client()
        client.send(b"get synced\r\n")
        is_taken = next_reply(restarted, client) == value(b"synced", b"a")
        assert drain(restarted.without_power(), b"synced") == ([b"b"] if is_taken else [b"a", b"b"])

    def test_no_item_is_lost(self, restarted: Server) -> None:
        restarted.settle()
        check_items(restarted, b"synced", [b"a", b"b"])


# A sync that fails, with a syncJournal period.


class TestPeriodicSyncFails:
    @pytest.fixture
    def failed(self, server: Server, client: Client) -> Server:
        """Return a server with three items, one of them open, whose periodic sync has just failed."""
        for data in (b"a", b"b", b"c"):
            assert client.talk(set_(b"periodic", data)) == STORED
        assert client.talk(b"get periodic/open\r\n") == value(b"periodic/open", b"a")
        server.disk.fail("sync", errno.EIO, times=1)
        server.pass_time(PERIOD_S)
        run_jobs(server, 1)
        return server

    def test_replies_do_not_wait_for_the_sync(self, server: Server, client: Client) -> None:
        assert client.ask(set_(b"periodic", b"a")) == STORED
        assert "sync" not in server.disk.calls

    def test_unsynced_items_of_a_killed_server_are_synced_by_the_next(self, server: Server, client: Client) -> None:
        client.talk(set_(b"periodic", b"a"))
        restarted = server.crashed()
        pass_period(restarted)
        assert "sync" in restarted.disk.calls

    def test_puts_are_refused_until_the_rewrite_is_safe(self, failed: Server) -> None:
        client = failed.client()
        assert is_server_error(client.ask(set_(b"periodic", b"refused")))
        assert client.ask(set_(b"work", b"d")) == STORED
        failed.settle()
        assert client.talk(set_(b"periodic", b"d")) == STORED
        assert drain(failed.crashed(), b"periodic") == [b"a", b"b", b"c", b"d"]
        assert drain(failed, b"periodic") == [b"b", b"c", b"d"]

    def test_items_survive_at_each_step_of_the_rewrite(self, failed: Server) -> None:
        while len(failed.threads):
            assert drain(failed.crashed(), b"periodic") == [b"a", b"b", b"c"]
            run_jobs(failed, 1)
        for after in (failed.crashed(), failed.without_power(), failed.restarted()):
            assert drain(after, b"periodic") == [b"a", b"b", b"c"]

    def test_peeked_and_aborted_items_are_rewritten_too(self, server: Server, client: Client) -> None:
        client.talk(set_(b"periodic", b"aborted") + set_(b"periodic", b"b"))
        client.talk(b"get periodic/open\r\nget periodic/abort\r\nget periodic/peek\r\n")
        server.disk.fail("sync", errno.EIO, times=1)
        pass_period(server)
        assert drain(server.without_power(), b"periodic") == [b"aborted", b"b"]

    def test_gets_and_confirms_during_the_rewrite_last(self, failed: Server, client: Client) -> None:
        other = failed.client()
        other.send(b"get periodic\r\n")
        client.send(b"get periodic/close\r\n")
        failed.settle()
        assert (other.received(), client.received()) == (value(b"periodic", b"b"), END)
        assert drain(failed.crashed(), b"periodic") == [b"c"]
        assert drain(failed.restarted(), b"periodic") == [b"c"]

    def test_flush_during_the_rewrite_lasts(self, failed: Server) -> None:
        other = failed.client()
        other.send(b"flush periodic\r\n")
        failed.settle()
        assert other.received() == END
        assert drain(failed.crashed(), b"periodic") == [b"a"]  # the open read

    def test_open_read_can_be_confirmed_after_the_rewrite(self, failed: Server, client: Client) -> None:
        failed.settle()
        assert client.talk(b"get periodic/close\r\n") == END
        assert drain(failed.crashed(), b"periodic") == [b"b", b"c"]

    def test_file_is_not_synced_again_after_its_sync_failed(self, failed: Server) -> None:
        failed.settle()
        assert failed.client().talk(set_(b"periodic", b"d")) == STORED
        for _ in range(2):
            pass_period(failed)
        assert drain(failed.without_power(), b"periodic") == [b"a", b"b", b"c", b"d"]

    @pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_folder"])
    def test_failed_rewrite_fails_the_queue_which_is_replayed(self, failed: Server, operation: str) -> None:
        failed.disk.fail(operation, errno.EIO, times=1)
        other = failed.client()
        other.send(b"get periodic\r\n")
        failed.settle()
        assert is_server_error(other.received())
        assert drain(failed.crashed(), b"periodic") == [b"a", b"b", b"c"]
        assert failed.client().talk(set_(b"periodic", b"d")) == STORED
        assert drain(failed, b"periodic") == [b"a", b"b", b"c", b"d"]

    @pytest.mark.parametrize("jobs", range(5))
    def test_queue_deleted_during_the_rewrite_does_not_return(self, failed: Server, jobs: int) -> None:
        run_jobs(failed, jobs)
        assert failed.client().ask(b"delete periodic\r\n") == DELETED
        assert drain(failed.crashed(), b"periodic") == []
        failed.settle()
        assert [name for name in failed.files() if name.startswith("periodic")] == []

    @pytest.mark.parametrize("jobs", range(5))
    def test_queue_recreated_during_the_rewrite_has_no_old_items(self, failed: Server, jobs: int) -> None:
        run_jobs(failed, jobs)
        other = failed.client()
        replies = other.ask(b"delete periodic\r\n" + set_(b"periodic", b"new"))
        while len(failed.threads):
            left = drain(failed.crashed(), b"periodic")
            assert left == [b"new"] or (left == [] and STORED not in replies)
            run_jobs(failed, 1)
            replies += other.received()
        assert replies == DELETED + STORED
        assert drain(failed.crashed(), b"periodic") == [b"new"]
        assert drain(failed.restarted(), b"periodic") == [b"new"]

    @pytest.mark.parametrize("operation", ["rename", "sync_folder"])
    def test_queue_recreated_before_an_operation_of_the_rewrite_has_no_old_items(
        self, failed: Server, operation: str
    ) -> None:
        self.check_recreated_before(operation, failed)

    @journal_only
    def test_queue_recreated_before_old_files_are_erased_has_no_old_items(self, failed: Server) -> None:
        self.check_recreated_before("erase", failed)

    def check_recreated_before(self, operation: str, failed: Server) -> None:
        """Delete the queue and put to it again just before the next operation of that kind."""
        deleting = failed.client()
        failed.disk.before(operation, lambda: deleting.send(b"delete periodic\r\n" + set_(b"periodic", b"new")))
        failed.settle()
        assert deleting.received() == DELETED + STORED
        assert drain(failed.crashed(), b"periodic") == [b"new"]

    def test_file_published_during_a_deletion_is_deleted_too(self, failed: Server) -> None:
        run_jobs(failed, 1)
        deleting = failed.client()
        failed.disk.before("rename", failed.threads.run_one)  # after the deletion has listed the folder
        assert deleting.talk(b"delete periodic\r\n" + set_(b"periodic", b"new")) == DELETED + STORED
        assert drain(failed.crashed(), b"periodic") == [b"new"]

    @pytest.mark.parametrize("times", [1, 2, 3, 4])
    def test_acknowledged_items_are_synced_after_repeated_failures(self, machine: Machine, times: int) -> None:
        server = machine.start()
        client = server.client()
        stored = []
        for number in range(8):
            if number == 1:
                server.disk.fail("sync", errno.EIO, times=times)
            item = b"%d" % number
            if client.talk(set_(b"periodic", item)) == STORED:
                stored.append(item)
            pass_period(server)
        server.pass_time(5)
        server.settle()
        assert stored[:2] == [b"0", b"1"]
        for after in (server.without_power(), server):
            assert drain(after, b"periodic") == stored


# Open reads of a queue that failed.


@pytest.mark.parametrize("operation", ["write", "sync"])
class TestOpenReadOfAFailedQueue:
    @pytest.fixture
    def holder(self, server: Server, operation: str) -> Client:
        """Return a client with an open read of the first of two items. A put of another client failed the queue."""
        holder = server.client()
        holder.talk(set_(b"synced", b"held") + set_(b"synced", b"next") + b"get synced/open\r\n")
        server.disk.fail(operation, errno.EIO, times=1)
        assert is_server_error(server.client().talk(set_(b"synced", b"lost")))
        return holder

    @pytest.mark.parametrize(
        "request_", [b"get synced/close\r\n", b"get synced/close/open\r\n", b"confirm synced 1\r\n"]
    )
    def test_close_answers_server_error_and_the_item_is_redelivered(
        self, server: Server, holder: Client, request_: bytes
    ) -> None:
        assert is_server_error(holder.talk(request_))
        assert drain(server, b"synced") == [b"held", b"next"]


@pytest.mark.parametrize("request_", [b"get synced/open\r\n", b"monitor synced 1 1\r\n"], ids=["open", "monitor"])
def test_open_that_failed_leaves_no_open_read(server: Server, client: Client, request_: bytes) -> None:
    client.talk(set_(b"synced", b"a") + set_(b"synced", b"b") + set_(b"synced", b"c"))
    server.disk.fail("sync", errno.EIO, times=1)
    server.client().send(set_(b"synced", b"lost"))  # its failed sync also fails the next request of the tick
    assert is_server_error(client.talk(request_).partition(b"END")[0])
    assert client.talk(b"get synced/open\r\n") == value(b"synced/open", b"a")
    assert client.talk(b"get synced/close\r\n") == END
    assert client.talk(b"get synced/open\r\n") == value(b"synced/open", b"b")
    assert client.talk(b"get synced/abort\r\n") == END
    assert drain(server, b"synced") == [b"b", b"c"]


def test_close_pipelined_after_a_failed_open_fails_too(server: Server, client: Client) -> None:
    client.talk(set_(b"synced", b"a"))
    server.disk.fail("sync", errno.EIO, times=1)
    reply = client.talk(b"get synced/open\r\nget synced/close\r\n")
    assert reply.count(b"SERVER_ERROR") == 2
    assert drain(server, b"synced") == [b"a"]


# Deletions.


@pytest.mark.parametrize(("queue", "operations"), [(b"work", ["write", "cut"]), (b"synced", ["sync"])])
def test_deleting_a_failed_queue_leaves_no_file(
    server: Server, client: Client, queue: bytes, operations: list[str]
) -> None:
    for operation in operations:
        server.disk.fail(operation, errno.EIO, times=1, torn_bytes=10)
    assert is_server_error(client.talk(set_(queue, b"lost")))
    assert client.talk(b"delete %b\r\n" % queue) == DELETED
    assert server.files() == {}


def test_queue_is_deleted_without_the_private_folders(server: Server, client: Client) -> None:
    client.talk(set_(b"work", b"old"))
    for path in (server.folder / ".kestrel").iterdir():
        if path.is_dir():
            path.rmdir()
    assert client.talk(b"delete work\r\n") == DELETED
    assert client.talk(set_(b"work", b"new")) == STORED
    assert drain(server.crashed(), b"work") == [b"new"]


def test_deletion_fails_as_long_as_files_cannot_be_removed(server: Server, client: Client) -> None:
    client.talk(set_(b"work", b"a"))
    for operation in ("rename", "write", "erase"):
        server.disk.fail(operation, errno.EIO)
    for _ in range(3):
        assert is_server_error(client.talk(b"delete work\r\n"))
    server.disk.mend()
    assert client.talk(b"delete work\r\n") == DELETED
    assert server.files() == {}


# Clients that disconnect.


class TestDisconnect:
    @pytest.mark.parametrize(
        ("request_", "left"),
        [(b"get synced\r\n", [b"b"]), (b"get synced/open\r\n", [b"a", b"b"])],
        ids=["get", "open read"],
    )
    def test_commit_that_began_removes_taken_items_only(
        self, server: Server, client: Client, request_: bytes, left: list[bytes]
    ) -> None:
        client.talk(set_(b"synced", b"a") + set_(b"synced", b"b"))
        leaving = server.client()
        leaving.ask(request_)
        leaving.hang_up()
        server.settle()
        check_killed(server, b"synced", left)

    def test_unanswered_put_is_stored(self, server: Server, client: Client) -> None:
        client.ask(set_(b"synced", b"a"))
        client.hang_up()
        server.settle()
        assert drain(server, b"synced") == [b"a"]

    def test_half_closed_client_gets_the_error_of_a_lost_batch(self, server: Server, client: Client) -> None:
        server.disk.fail("sync", errno.EIO, times=1)
        client.ask(set_(b"synced", b"a"))
        client.half_close()
        server.settle()
        assert is_server_error(client.received())
        assert client.was_hung_up_on


# Steps of the wall clock.


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000], ids=["an hour forward", "an hour back"])
class TestWallClockStep:
    def test_sync_period_keeps_its_length(self, server: Server, client: Client, step_ms: int) -> None:
        client.ask(set_(b"periodic", b"a"))
        server.wall_offset_ms += step_ms
        server.pass_time(PERIOD_S - 0.1)
        server.settle()
        assert drain(server.without_power(), b"periodic") == []
        server.pass_time(0.1)
        server.settle()
        assert drain(server.without_power(), b"periodic") == [b"a"]

    def test_reserve_is_recreated_after_a_second(self, server: Server, client: Client, step_ms: int) -> None:
        fill_disk(server)
        server.wall_offset_ms += step_ms
        free_disk(server, seconds=1)
        assert client.talk(set_(b"work", b"again")) == STORED

    def test_rotated_files_are_replayed_in_the_order_of_their_writes(
        self, server: Server, client: Client, step_ms: int
    ) -> None:
        for number in range(4):
            client.talk(set_(b"synced", b"%d" % number))
            server.disk.fail("sync", errno.EIO, times=1)
            client.talk(set_(b"synced", b"lost"))
            server.wall_offset_ms += step_ms
        restarted = server.restarted()
        restarted.wall_offset_ms = -step_ms
        client = restarted.client()
        client.talk(set_(b"synced", b"4"))
        restarted.disk.fail("sync", errno.EIO, times=1)
        client.talk(set_(b"synced", b"lost"))
        client.talk(set_(b"synced", b"5"))
        assert drain(restarted.crashed(), b"synced") == [b"0", b"1", b"2", b"3", b"4", b"5"]
