"""Durability: contents after an orderly stop and after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.errors import StorageError
from kestrel.testing.contract.backend import Backend, DeferredOutcome, StorageUnderTest
from kestrel.testing.contract.requirements import requires
from kestrel.testing.contract.samples import ADD_MS, DATA, NAMES
from kestrel.testing.threads import SteppedThreads


@requires("durable")
class RestartTests(Backend):
    """Storages that are stopped or killed, and started again."""

    # Owners.

    def test_second_storage_is_refused_and_the_first_continues(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        threads = SteppedThreads()
        second = self.make(subject.folder, Clock(), threads)
        with pytest.raises(StorageError):
            starting = DeferredOutcome(second.start(lambda name: QueueSettings()))
            while threads:
                threads.run_one()
            starting.result()
        subject.commit(queue)
        assert subject.take_all_data(queue) == [b"a"]

    def test_closed_storage_releases_its_folder(self, subject: StorageUnderTest) -> None:
        assert subject.restarted().loaded == {}

    # Restarts.

    def test_restart_keeps_items_unchanged(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.storage.put([queue], bytes(range(256)), 1, 2)
        subject.put(queue, b"", b"last")
        again = subject.restarted()
        items = again.take_all(again.queue())
        assert [(item.data, item.add_ms, item.expiry_ms) for item in items] == [
            (bytes(range(256)), 1, 2),
            (b"", ADD_MS, 0),
            (b"last", ADD_MS, 0),
        ]

    @pytest.mark.parametrize("data", DATA.values(), ids=DATA)
    def test_restart_keeps_arbitrary_bytes(self, subject: StorageUnderTest, data: bytes) -> None:
        queue = subject.queue()
        subject.put(queue, data, b"next")
        subject.commit(queue)
        again = subject.restarted()
        assert again.take_all_data(again.queue()) == [data, b"next"]

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_restart_keeps_queues_of_any_valid_name(self, subject: StorageUnderTest, name: bytes) -> None:
        subject.put(subject.queue(name), name)
        again = subject.restarted()
        assert list(again.loaded) == [name]
        assert again.take_all_data(again.queue(name)) == [name]

    def test_similar_names_are_different_queues_after_a_restart(self, subject: StorageUnderTest) -> None:
        names = [b"a", b"A", b"\xe9", b"\xc3\xa9", b"a+", b"a+b", b"a+B", b"a%2B", b"+b"]
        for name in names:
            subject.put(subject.queue(name), name)
        again = subject.restarted()
        assert sorted(again.loaded) == sorted(names)
        assert [again.take_all_data(again.queue(name)) for name in names] == [[name] for name in names]

    def test_restart_keeps_many_queues_apart(self, subject: StorageUnderTest) -> None:
        names = [b"q%d" % number for number in range(50)]
        for turn in range(3):
            for name in names:
                subject.put(subject.queue(name), b"%b-%d" % (name, turn))
        again = subject.restarted()
        left = {name: again.take_all_data(again.queue(name)) for name in names}
        assert left == {name: [b"%b-%d" % (name, turn) for turn in range(3)] for name in names}

    def test_queues_of_a_start_are_the_live_ones(self, subject: StorageUnderTest) -> None:
        subject.put(subject.queue(b"a"), b"1")
        again = subject.restarted()
        assert again.loaded[b"a"] is again.queue(b"a")

    def test_restart_reports_the_number_of_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5", b"")
        subject.get(queue)
        subject.open(queue)
        again = subject.restarted().queue()
        assert (again.replayed_items, again.items, again.bytes, again.open_reads) == (2, 2, 5, 0)

    def test_restart_keeps_empty_queues(self, subject: StorageUnderTest) -> None:
        subject.queue(b"parent+child")
        assert list(subject.restarted().loaded) == [b"parent+child"]

    def test_restart_keeps_an_item_in_each_of_many_queues(self, subject: StorageUnderTest) -> None:
        names = [b"a", b"a+x", b"a+y", b"other"]
        subject.storage.put([subject.queue(name) for name in names], b"item", ADD_MS, 0)
        subject.get(subject.queue(b"a+x"))
        again = subject.restarted()
        left = [again.take_all_data(again.queue(name)) for name in names]
        assert left == [[b"item"], [], [b"item"], [b"item"]]

    def test_restart_keeps_a_put_to_one_child_only_there(self, subject: StorageUnderTest) -> None:
        names = [b"a", b"a+x", b"a+y"]
        for name in names:
            subject.put(subject.queue(name), name)
        again = subject.restarted()
        assert [again.take_all_data(again.queue(name)) for name in names] == [[name] for name in names]

    def test_restart_does_not_restore_removed_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"taken", b"confirmed", b"cleared")
        subject.get(queue)
        queue.confirm([subject.open(queue).xid])
        queue.clear()
        subject.put(queue, b"new")
        again = subject.restarted()
        assert again.take_all_data(again.queue()) == [b"new"]

    def test_restart_does_not_restore_items_confirmed_out_of_order(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, *[b"%d" % number for number in range(6)])
        xids = [subject.open(queue).xid for _ in range(5)]
        queue.confirm([xids[3], xids[1]])
        subject.commit(queue)
        again = subject.restarted()
        assert again.take_all_data(again.queue()) == [b"0", b"2", b"4", b"5"]

    def test_xid_is_not_open_after_a_restart(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        xid = subject.open(queue).xid
        again = subject.restarted().queue()
        assert (again.is_open(xid), again.confirm([xid]), again.items) == (False, 0, 1)

    def test_restart_puts_open_reads_back_in_order(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, *[b"%d" % number for number in range(6)])
        xids = [subject.open(queue).xid for _ in range(4)]
        queue.confirm([xids[1]])
        again = subject.restarted()
        assert again.take_all_data(again.queue()) == [b"0", b"2", b"3", b"4", b"5"]

    @requires("order_kept")
    def test_restart_keeps_the_order_of_put_back_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c", b"d")
        a, b, c = (subject.open(queue).xid for _ in range(3))
        queue.put_back([c, a, b], False)
        again = subject.restarted().restarted()
        assert again.take_all_data(again.queue()) == [b"c", b"a", b"b", b"d"]

    @requires("errors_kept")
    def test_restart_keeps_error_counts(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"failed twice", b"never failed", b"open")
        for _ in range(2):
            queue.put_back([subject.open(queue).xid], True)
        first, second = subject.open(queue), subject.open(queue)
        subject.open(queue)
        queue.put_back([first.xid, second.xid], False)
        for _ in range(2):
            subject = subject.restarted()
            errors = {item.data: item.errors for item in subject.look_through(subject.queue())}
            assert errors == {b"failed twice": 2, b"never failed": 0, b"open": 0}

    def test_queue_works_over_many_restarts(self, subject: StorageUnderTest) -> None:
        expected: list[bytes] = []
        for turn in range(10):
            queue = subject.queue()
            items = [b"%d-%d" % (turn, number) for number in range(5)]
            subject.put(queue, *items)
            expected += items
            assert [subject.get(queue).data for _ in range(3)] == expected[:3]
            del expected[:3]
            subject.commit(queue)
            subject = subject.restarted()
        assert subject.take_all_data(subject.queue()) == expected

    # Deleting.

    def test_restart_does_not_restore_a_deleted_queue(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        subject.commit(queue)
        subject.storage.delete(queue)
        assert subject.restarted().loaded == {}

    def test_restart_restores_only_the_new_queue_of_a_deleted_name(self, subject: StorageUnderTest) -> None:
        old = subject.queue()
        subject.put(old, b"old", b"open")
        subject.open(old)
        subject.commit(old)
        subject.storage.delete(old)
        subject.put(subject.queue(), b"new")
        again = subject.restarted()
        assert again.take_all_data(again.queue()) == [b"new"]

    def test_restart_keeps_the_new_queue_after_a_second_deletion(self, subject: StorageUnderTest) -> None:
        old = subject.queue()
        subject.put(old, b"old")
        subject.commit(old)
        subject.storage.delete(old)
        new = subject.queue()
        subject.put(new, b"new")
        subject.commit(old, new)
        subject.storage.delete(old)
        subject.commit(old)
        again = subject.killed()
        assert again.take_all_data(again.queue()) == [b"new"]

    def test_kill_after_a_committed_deletion_restores_nothing(self, subject: StorageUnderTest) -> None:
        old = subject.queue()
        subject.put(old, b"old")
        subject.commit(old)
        subject.storage.delete(old)
        subject.commit(old)
        again = subject.killed()
        assert again.take_all_data(again.queue()) == []

    def test_restart_keeps_children_of_a_deleted_parent(self, subject: StorageUnderTest) -> None:
        names = [b"a", b"a+x", b"a+y"]
        subject.storage.put([subject.queue(name) for name in names], b"item", ADD_MS, 0)
        subject.commit(*(subject.queue(name) for name in names))
        subject.storage.delete(subject.queue(b"a"))
        again = subject.restarted()
        assert sorted(again.loaded) == [b"a+x", b"a+y"]
        assert [again.take_all_data(again.queue(name)) for name in names] == [[], [b"item"], [b"item"]]

    # Kills.

    def test_kill_after_a_commit_loses_nothing(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c", b"d")
        subject.get(queue)
        queue.confirm([subject.open(queue).xid])
        subject.open(queue)
        subject.commit(queue)
        again = subject.killed()
        assert again.take_all_data(again.queue()) == [b"c", b"d"]

    def test_kill_loses_only_the_end_of_uncommitted_changes(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        subject.commit(queue)
        history = [[b"a", b"b"]]
        for data in (b"c", b"d", b"e"):
            subject.put(queue, data)
            history.append([*history[-1], data])
            again = subject.killed()
            assert again.take_all_data(again.queue()) in history

    def test_second_kill_finds_the_same_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c")
        subject.open(queue)
        subject.commit(queue)
        first = subject.killed()
        second = first.killed()
        assert first.take_all_data(first.queue()) == second.take_all_data(second.queue()) == [b"a", b"b", b"c"]

    def test_unused_folder_is_an_empty_storage(self, tmp_path: Path) -> None:
        subject = StorageUnderTest(self, tmp_path / "new")
        assert subject.loaded == {}
        subject.end()
