"""Queue operations: order, bytes, names, clearing, deleting, refusals."""

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
from kestrel.testing.contract.requirements import requires
from kestrel.testing.contract.samples import ADD_MS, DATA, NAMES, huge_item
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
        queue = subject.queue()
        sent = [b"%d" % number for number in range(500)]
        subject.put(queue, *sent)
        subject.commit(queue)
        assert subject.take_all_data(queue) == sent

    @pytest.mark.parametrize("data", DATA.values(), ids=DATA)
    def test_items_keep_arbitrary_bytes(self, subject: StorageUnderTest, data: bytes) -> None:
        queue = subject.queue()
        subject.put(queue, data, b"next")
        subject.commit(queue)
        assert subject.take_all_data(queue) == [data, b"next"]

    def test_item_keeps_its_add_and_expiry_times(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.storage.put((queue,), b"a", 1, 2)
        subject.storage.put((queue,), b"b", ADD_MS, ADD_MS + 60_000)
        times = [(item.add_ms, item.expiry_ms) for item in subject.take_all(queue)]
        assert times == [(1, 2), (ADD_MS, ADD_MS + 60_000)]

    def test_new_item_has_no_errors_and_no_xid(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        item = subject.get(queue)
        assert (item.errors, item.xid) == (0, 0)

    def test_counters_follow_puts_and_takes(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5", b"")
        assert (queue.items, queue.bytes) == (3, 9)
        subject.get(queue)
        assert (queue.items, queue.bytes) == (2, 5)

    def test_memory_counters_do_not_exceed_the_queue(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5")
        subject.peek(queue)
        assert 0 < queue.mem_items <= queue.items
        assert 0 < queue.mem_bytes <= queue.bytes

    # Many queues.

    def test_queues_are_independent(self, subject: StorageUnderTest) -> None:
        queues = {b"q%d" % number: subject.queue(b"q%d" % number) for number in range(100)}
        for name, queue in queues.items():
            subject.put(queue, name + b"-1", name + b"-2")
        subject.commit(*queues.values())
        queues[b"q7"].clear()
        left = {name: subject.take_all_data(queue) for name, queue in queues.items()}
        assert left == {name: [] if name == b"q7" else [name + b"-1", name + b"-2"] for name in queues}

    def test_put_to_many_queues_reaches_each(self, subject: StorageUnderTest) -> None:
        queues = [subject.queue(name) for name in (b"a", b"a+x", b"a+y", b"other")]
        subject.storage.put(queues, b"item", ADD_MS, 0)
        subject.get(queues[0])
        assert [subject.take_all_data(queue) for queue in queues] == [[], [b"item"], [b"item"], [b"item"]]

    def test_put_to_a_child_reaches_only_the_child(self, subject: StorageUnderTest) -> None:
        parent, child, sibling = (subject.queue(name) for name in (b"a", b"a+x", b"a+y"))
        subject.put(child, b"for the child")
        subject.storage.put([parent, child, sibling], b"for all", ADD_MS, 0)
        subject.put(sibling, b"for the sibling")
        subject.commit(parent, child, sibling)
        assert subject.take_all_data(parent) == [b"for all"]
        assert subject.take_all_data(child) == [b"for the child", b"for all"]
        assert subject.take_all_data(sibling) == [b"for all", b"for the sibling"]

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_queue_can_have_any_valid_name(self, subject: StorageUnderTest, name: bytes) -> None:
        queue = subject.queue(name)
        subject.put(queue, name)
        subject.commit(queue)
        assert subject.take_all_data(subject.queue(name)) == [name]

    def test_similar_names_are_different_queues(self, subject: StorageUnderTest) -> None:
        names = [b"a", b"A", b"\xe9", b"\xc3\xa9", b"a+", b"a+b", b"a+B"]
        for name in names:
            subject.put(subject.queue(name), name)
        assert [subject.take_all_data(subject.queue(name)) for name in names] == [[name] for name in names]

    def test_name_has_one_live_queue(self, subject: StorageUnderTest) -> None:
        assert subject.queue(b"a") is subject.queue(b"a")

    # Clearing.

    def test_clear_drops_items_and_keeps_open_reads(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"open", b"again", b"c", b"d")
        first, second = subject.open(queue).xid, subject.open(queue).xid
        queue.clear()
        assert (queue.items, queue.bytes, queue.open_reads, subject.peek(queue)) == (0, 0, 2, None)
        assert queue.confirm([first]) == 1
        queue.put_back([second], False)
        assert subject.take_all_data(queue) == [b"again"]

    def test_clear_drops_put_back_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        queue.put_back([subject.open(queue).xid], False)
        queue.clear()
        assert (queue.items, queue.bytes, subject.peek(queue)) == (0, 0, None)

    def test_cleared_queue_accepts_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"old")
        queue.clear()
        subject.put(queue, b"new")
        subject.commit(queue)
        assert subject.take_all_data(queue) == [b"new"]

    # Deleting.

    def test_deleted_queue_fails_at_once(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        xid = subject.open(queue).xid
        subject.storage.delete(queue)
        assert_dead(subject, queue, xid)

    def test_deleted_name_is_a_new_queue_at_once(self, subject: StorageUnderTest) -> None:
        old = subject.queue()
        subject.put(old, b"old", b"open")
        subject.open(old)
        subject.commit(old)
        subject.storage.delete(old)
        new = subject.queue()
        assert new is not old
        assert (new.items, new.bytes, new.open_reads, new.replayed_items) == (0, 0, 0, 0)
        subject.put(new, b"new")
        subject.commit(new)
        assert subject.take_all_data(new) == [b"new"]

    def test_commit_of_a_deleted_queue_succeeds(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        subject.storage.delete(queue)
        subject.commit(queue)
        assert subject.queue().items == 0

    def test_second_deletion_leaves_the_new_queue_unchanged(self, subject: StorageUnderTest) -> None:
        old = subject.queue()
        subject.storage.delete(old)
        new = subject.queue()
        subject.put(new, b"new")
        subject.commit(new)
        subject.storage.delete(old)
        assert subject.queue() is new
        assert subject.take_all_data(new) == [b"new"]

    def test_deletion_of_one_fanout_queue_leaves_the_others(self, subject: StorageUnderTest) -> None:
        names = [b"a", b"a+x", b"a+y"]
        for deleted in names:
            queues = [subject.queue(name) for name in names]
            subject.storage.put(queues, deleted, ADD_MS, 0)
            subject.commit(*queues)
            subject.storage.delete(subject.queue(deleted))
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
        queue, other = subject.queue(), subject.queue(b"other")
        subject.put(queue, b"a", b"b", b"c")
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
