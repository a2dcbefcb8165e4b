"""Queue operations: order, bytes, names, clearing, deleting, refusals, and open reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from kestrel.errors import BadStorageArgument, ItemTooLarge, QueueFailed, StorageRefused
from kestrel.storage.interfaces import CAPABILITIES, IQueueStorage, IStorage, IStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.contract.backend import Backend, StorageUnderTest
from kestrel.testing.contract.requirements import ADD_MS, DATA, NAMES, huge_item, requires
from kestrel.testing.threads import SteppedThreads


class QueueOperationTests(Backend):
    """Operations without a restart."""

    # Interfaces.

    def test_factory_provides_its_interface(self) -> None:
        assert verifyObject(IStorageFactory, self.factory)
        assert self.factory.name
        assert self.factory.help
        assert self.capabilities <= CAPABILITIES.keys()

    def test_unknown_option_is_refused_with_a_reason(self, tmp_path: Path) -> None:
        folder = str(tmp_path / "queues")
        with pytest.raises(BadStorageArgument, match=r"\w+ \w+"):
            self.factory.storage(folder, {"no-such-option": "1"}, Clock(), SteppedThreads(), MemoryLimit())
        assert list(tmp_path.iterdir()) == []

    def test_storage_and_queues_provide_their_interfaces(self, subject: StorageUnderTest) -> None:
        assert verifyObject(IStorage, subject.storage)
        assert verifyObject(IQueueStorage, subject.queue())

    def test_new_storage_has_no_queues_and_no_refusal(self, subject: StorageUnderTest) -> None:
        assert subject.loaded == {}
        assert subject.storage.refusal is None

    def test_new_queue_is_empty_and_has_no_failure(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        counts = (queue.items, queue.bytes, queue.mem_items, queue.mem_bytes, queue.open_reads, queue.replayed_items)
        assert counts == (0, 0, 0, 0, 0, 0)
        assert queue.failure is None
        assert {"logsize", "journal_rewrites", "journal_rotations"} <= set(queue.stats)

    # Order and contents.

    def test_items_are_taken_in_the_order_of_their_puts(self, subject: StorageUnderTest) -> None:
        sent = [b"%d" % number for number in range(500)]
        queue = subject.stored_queue(*sent)
        assert subject.take_all_data(queue) == sent

    @pytest.mark.parametrize("data", DATA.values(), ids=DATA)
    def test_items_keep_arbitrary_bytes(self, subject: StorageUnderTest, event: str, data: bytes) -> None:
        subject.commit(subject.queue_with(data, b"next"))
        assert subject.after(event).take_all_data() == [data, b"next"]

    def test_items_keep_their_add_and_expiry_times(self, subject: StorageUnderTest, event: str) -> None:
        queue = subject.queue()
        subject.storage.put((queue,), bytes(range(256)), 1, 2)
        subject.storage.put((queue,), b"", ADD_MS, ADD_MS + 60_000)
        subject.store(queue, b"last")
        again = subject.after(event)
        assert [(item.data, item.add_ms, item.expiry_ms) for item in again.take_all(again.queue())] == [
            (bytes(range(256)), 1, 2),
            (b"", ADD_MS, ADD_MS + 60_000),
            (b"last", ADD_MS, 0),
        ]

    def test_new_item_has_no_errors_and_no_xid(self, subject: StorageUnderTest) -> None:
        item = subject.get(subject.queue_with(b"a"))
        assert (item.errors, item.xid) == (0, 0)

    def test_counters_follow_puts_and_takes(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"four", b"five5", b"")
        assert (queue.items, queue.bytes) == (3, 9)
        subject.get(queue)
        assert (queue.items, queue.bytes) == (2, 5)

    def test_memory_counters_do_not_exceed_the_queue(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"four", b"five5")
        subject.peek(queue)
        assert 0 < queue.mem_items <= queue.items
        assert 0 < queue.mem_bytes <= queue.bytes

    # Many queues.

    def test_queues_are_independent(self, subject: StorageUnderTest, event: str) -> None:
        queues = {b"q%d" % number: subject.queue(b"q%d" % number) for number in range(100)}
        for turn in range(3):
            for name, queue in queues.items():
                subject.put(queue, b"%b-%d" % (name, turn))
        queues[b"q7"].clear()
        subject.commit(*queues.values())
        again = subject.after(event)
        left = {name: again.take_all_data(again.queue(name)) for name in queues}
        assert left == {
            name: [] if name == b"q7" else [b"%b-%d" % (name, turn) for turn in range(3)] for name in queues
        }

    def test_put_to_many_queues_reaches_each(self, subject: StorageUnderTest, event: str) -> None:
        names = [b"a", b"a+x", b"a+y", b"other"]
        queues = [subject.queue(name) for name in names]
        subject.storage.put(queues, b"item", ADD_MS, 0)
        subject.get(queues[1])
        subject.commit(*queues)
        again = subject.after(event)
        left = [again.take_all_data(again.queue(name)) for name in names]
        assert left == [[b"item"], [], [b"item"], [b"item"]]

    def test_put_to_a_child_reaches_only_the_child(self, subject: StorageUnderTest, event: str) -> None:
        names = [b"a", b"a+x", b"a+y"]
        queues = parent, child, sibling = [subject.queue(name) for name in names]
        subject.put(child, b"for the child")
        subject.storage.put(queues, b"for all", ADD_MS, 0)
        subject.put(sibling, b"for the sibling")
        subject.put(parent, b"for the parent")
        subject.commit(*queues)
        again = subject.after(event)
        assert [again.take_all_data(again.queue(name)) for name in names] == [
            [b"for all", b"for the parent"],
            [b"for the child", b"for all"],
            [b"for all", b"for the sibling"],
        ]

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_queue_can_have_any_valid_name(self, subject: StorageUnderTest, event: str, name: bytes) -> None:
        subject.commit(subject.queue_with(name, name=name))
        again = subject.after(event)
        assert event == "nothing" or list(again.loaded) == [name]
        assert again.take_all_data(again.queue(name)) == [name]

    def test_similar_names_are_different_queues(self, subject: StorageUnderTest, event: str) -> None:
        names = [b"a", b"A", b"\xe9", b"\xc3\xa9", b"a+", b"a+b", b"a+B", b"a%2B", b"+b"]
        subject.commit(*(subject.queue_with(name, name=name) for name in names))
        again = subject.after(event)
        assert event == "nothing" or sorted(again.loaded) == sorted(names)
        assert [again.take_all_data(again.queue(name)) for name in names] == [[name] for name in names]

    def test_name_has_one_live_queue(self, subject: StorageUnderTest) -> None:
        assert subject.queue(b"a") is subject.queue(b"a")

    # Clearing.

    def test_clear_drops_items_and_keeps_open_reads(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"open", b"again", b"c", b"d")
        first, second = subject.open(queue).xid, subject.open(queue).xid
        queue.clear()
        assert (queue.items, queue.bytes, queue.open_reads, subject.peek(queue)) == (0, 0, 2, None)
        assert queue.confirm([first]) == 1
        queue.put_back([second], False)
        assert subject.take_all_data(queue) == [b"again"]

    def test_clear_drops_put_back_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b")
        queue.put_back([subject.open(queue).xid], False)
        queue.clear()
        assert (queue.items, queue.bytes, subject.peek(queue)) == (0, 0, None)

    def test_removed_items_stay_removed_and_the_queue_accepts_items(
        self, subject: StorageUnderTest, event: str
    ) -> None:
        queue = subject.queue_with(b"taken", b"confirmed", b"cleared")
        subject.get(queue)
        queue.confirm([subject.open(queue).xid])
        queue.clear()
        subject.store(queue, b"new")
        assert subject.after(event).take_all_data() == [b"new"]

    # Deleting.

    def test_deleted_queue_fails_at_once(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b")
        xid = subject.open(queue).xid
        subject.storage.delete(queue)
        assert_dead(subject, queue, xid)

    def test_deleted_name_is_a_new_queue_at_once(self, subject: StorageUnderTest, event: str) -> None:
        old = subject.queue_with(b"old", b"open")
        subject.open(old)
        subject.commit(old)
        subject.storage.delete(old)
        new = subject.queue()
        assert new is not old
        assert (new.items, new.bytes, new.open_reads, new.replayed_items) == (0, 0, 0, 0)
        subject.put(new, b"new")
        subject.commit(old, new)
        assert subject.after(event).take_all_data() == [b"new"]

    def test_committed_deletion_is_not_undone(self, subject: StorageUnderTest, event: str) -> None:
        queue = subject.stored_queue(b"a")
        subject.storage.delete(queue)
        subject.commit(queue)
        again = subject.after(event)
        assert event != "restart" or again.loaded == {}
        assert again.take_all_data() == []

    def test_commit_of_a_deleted_queue_succeeds(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a")
        subject.storage.delete(queue)
        subject.commit(queue)
        assert subject.queue().items == 0

    def test_second_deletion_leaves_the_new_queue_unchanged(self, subject: StorageUnderTest, event: str) -> None:
        old = subject.stored_queue(b"old")
        subject.storage.delete(old)
        new = subject.queue_with(b"new")
        subject.commit(old, new)
        subject.storage.delete(old)
        subject.commit(old)
        assert subject.queue() is new
        assert subject.after(event).take_all_data() == [b"new"]

    def test_deletion_of_one_fanout_queue_leaves_the_others(self, subject: StorageUnderTest, event: str) -> None:
        names = [b"a", b"a+x", b"a+y"]
        for deleted in names:
            queues = [subject.queue(name) for name in names]
            subject.store_in_all(queues, deleted)
            subject.storage.delete(subject.queue(deleted))
            subject.commit(*queues)
            subject = subject.after(event)
            assert event != "restart" or sorted(subject.loaded) == [name for name in names if name != deleted]
            left = {name: subject.take_all_data(subject.queue(name)) for name in names}
            assert left == {name: [] if name == deleted else [deleted] for name in names}

    # Refusals.

    def test_put_to_a_failed_queue_among_others_reaches_none(self, subject: StorageUnderTest) -> None:
        live, dead = subject.queue(b"live"), subject.queue(b"dead")
        subject.storage.delete(dead)
        with pytest.raises(QueueFailed):
            subject.storage.put([live, dead], b"item", ADD_MS, 0)
        assert (live.items, subject.peek(live)) == (0, None)

    def test_too_large_item_is_refused_without_any_change(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        with pytest.raises(ItemTooLarge):
            subject.storage.put([queue], huge_item(), ADD_MS, 0)
        assert (queue.items, subject.peek(queue)) == (0, None)

    @requires("refuse_puts")
    def test_refused_put_changes_nothing(self, subject: StorageUnderTest) -> None:
        queue, other = subject.queue_with(b"a", b"b", b"c"), subject.queue(b"other")
        xid = subject.open(queue).xid
        subject.commit(queue, other)
        assert self.refuse_puts is not None
        self.refuse_puts(subject)
        assert subject.storage.refusal
        with pytest.raises(StorageRefused):
            subject.storage.put([other, queue], b"d", ADD_MS, 0)
        assert (other.items, queue.items, queue.open_reads) == (0, 2, 1)
        assert queue.confirm([xid]) == 1
        assert subject.take_all_data(queue) == [b"b", b"c"]
        subject.commit(queue, other)
        assert queue.failure is None


class ReadTests(Backend):
    """The promises of `take`, `confirm` and `put_back`, without a restart."""

    def test_peek_returns_the_head_without_removing_it(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b")
        seen = [subject.peek(queue), subject.peek(queue)]
        assert [item and (item.data, item.xid) for item in seen] == [(b"a", 0), (b"a", 0)]
        assert queue.items == 2
        assert subject.take_all_data(queue) == [b"a", b"b"]

    def test_peek_take_and_fill_of_an_empty_queue_find_nothing(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        assert (queue.peek(), queue.take(False), queue.take(True), queue.fill()) == (None, None, None, None)
        assert (queue.items, queue.open_reads) == (0, 0)

    def test_open_read_has_an_xid_until_it_is_confirmed(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a")
        item = subject.open(queue)
        assert item.xid > 0
        assert queue.is_open(item.xid)
        assert queue.confirm([item.xid]) == 1
        assert not queue.is_open(item.xid)

    def test_open_reads_are_not_counted_as_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"four", b"five5")
        subject.open(queue)
        assert (queue.items, queue.bytes, queue.open_reads) == (1, 5, 1)

    def test_xids_are_unique(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        given = []
        for _ in range(50):
            subject.put(queue, b"a", b"b")
            first, second = subject.open(queue), subject.open(queue)
            given += [first.xid, second.xid]
            queue.confirm([second.xid])
            queue.put_back([first.xid], False)
            subject.commit(queue)
        assert len(set(given)) == len(given)

    def test_xid_of_another_queue_is_ignored(self, subject: StorageUnderTest) -> None:
        queue, other = subject.queue(b"a"), subject.queue(b"a+child")
        subject.put(queue, b"a")
        xid = subject.open(queue).xid
        assert not other.is_open(xid)
        assert other.confirm([xid]) == 0
        other.put_back([xid], True)
        assert (other.items, queue.open_reads) == (0, 1)

    def test_confirm_counts_only_open_reads(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b")
        first, second = subject.open(queue).xid, subject.open(queue).xid
        assert queue.confirm([first, first, second + 1000, -1, 0]) == 1
        assert queue.confirm([first]) == 0
        assert queue.is_open(second)

    def test_confirmed_item_is_not_delivered_again(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a")
        xid = subject.open(queue).xid
        queue.confirm([xid])
        queue.put_back([xid], False)
        assert (queue.items, subject.peek(queue)) == (0, None)

    def test_first_xid_put_back_becomes_the_head(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b", b"c", b"d")
        a, b, c = (subject.open(queue).xid for _ in range(3))
        queue.put_back([c, a, b], False)
        assert subject.take_all_data(queue) == [b"c", b"a", b"b", b"d"]

    def test_later_put_back_precedes_earlier_one(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b", b"c")
        a, b = (subject.open(queue).xid for _ in range(2))
        queue.put_back([a], False)
        subject.commit(queue)
        queue.put_back([b], False)
        assert subject.take_all_data(queue) == [b"b", b"a", b"c"]

    def test_put_back_item_precedes_a_peeked_head(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b")
        xid = subject.open(queue).xid
        subject.peek(queue)
        queue.put_back([xid], False)
        assert subject.take_all_data(queue) == [b"a", b"b"]

    def test_put_back_item_is_counted_and_no_longer_open(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"four")
        xid = subject.open(queue).xid
        queue.put_back([xid], False)
        assert (queue.items, queue.bytes, queue.open_reads) == (1, 4, 0)
        assert not queue.is_open(xid)

    def test_put_back_of_an_unknown_xid_changes_nothing(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b")
        xid = subject.open(queue).xid
        queue.put_back([xid + 1000, xid, xid], False)
        assert subject.take_all_data(queue) == [b"a", b"b"]

    def test_put_back_item_is_unchanged(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.storage.put([queue], b"a\0", 7, 8)
        queue.put_back([subject.open(queue).xid], False)
        item = subject.get(queue)
        assert (item.data, item.add_ms, item.expiry_ms, item.errors, item.xid) == (b"a\0", 7, 8, 0, 0)

    @requires("errors_kept")
    def test_failed_put_back_adds_one_error(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a")
        for failed in (True, False, True):
            queue.put_back([subject.open(queue).xid], failed)
            subject.commit(queue)
        assert subject.get(queue).errors == 2


def assert_dead(subject: StorageUnderTest, queue: IQueueStorage, xid: int = 1) -> None:
    """Check that every operation on a failed queue raises QueueFailed."""
    assert queue.failure
    calls: list[Callable[[], object]] = [
        queue.peek,
        lambda: queue.take(False),
        lambda: queue.take(True),
        lambda: queue.confirm([xid]),
        lambda: queue.put_back([xid], False),
        queue.clear,
        queue.fill,
        lambda: subject.put(queue, b"too late"),
    ]
    for call in calls:
        with pytest.raises(QueueFailed):
            call()
