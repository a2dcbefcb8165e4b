"""Durable item ids: repeated reads of a range, releases and holds (`IItemRanges`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from zope.interface.verify import verifyObject

from kestrel.item import Item
from kestrel.storage.interfaces import IItemRanges, IQueueStorage
from kestrel.testing.contract.backend import Backend, DeferredOutcome, StorageUnderTest
from kestrel.testing.contract.requirements import ADD_MS, requires

MANY_BYTES: Final = 1 << 30

ITEMS: Final = [b"%d" % number for number in range(10)]


def begin(subject: StorageUnderTest, *items: bytes) -> IQueueStorage:
    """Return a queue with these items, all committed."""
    queue = subject.stored_queue(*(items or ITEMS))
    return queue


def begin_held(subject: StorageUnderTest) -> IQueueStorage:
    """Return a queue with `ITEMS`, all committed, that a reader holds."""
    queue = begin(subject)
    IItemRanges(queue).hold(b"spark")
    return queue


def read(
    subject: StorageUnderTest, queue: IQueueStorage, first_id: int, end_id: int, max_bytes: int = MANY_BYTES
) -> list[tuple[int, Item]]:
    """Return the items of that range with their ids. With `max_bytes`, return the items of one answer."""
    pairs: list[tuple[int, Item]] = subject.wait(IItemRanges(queue).read_range(first_id, end_id, max_bytes))
    ids = [item_id for item_id, _ in pairs]
    assert ids == sorted(set(ids)), "ids do not rise"
    assert all(first_id <= item_id < end_id for item_id in ids)
    return pairs


def read_all(subject: StorageUnderTest, queue: IQueueStorage) -> list[tuple[int, bytes]]:
    """Return the id and data of each item that is not released."""
    ranges = IItemRanges(queue)
    return data_of(read(subject, queue, ranges.first_id, ranges.next_id))


def data_of(pairs: Sequence[tuple[int, Item]]) -> list[tuple[int, bytes]]:
    """Return the id and data of each item."""
    return [(item_id, item.data) for item_id, item in pairs]


def data_in_range(subject: StorageUnderTest, queue: IQueueStorage) -> list[bytes]:
    """Return the data of each item that is not released."""
    return [data for _, data in read_all(subject, queue)]


def release(subject: StorageUnderTest, queue: IQueueStorage, end_id: int) -> None:
    """Release the items below that id, and commit the queue."""
    IItemRanges(queue).release(end_id)
    subject.commit(queue)


@requires("ranges")
class RangeTests(Backend):
    """The promises of `IItemRanges`."""

    def test_queue_can_be_adapted_to_item_ranges(self, subject: StorageUnderTest) -> None:
        assert verifyObject(IItemRanges, IItemRanges(subject.queue()))

    def test_new_queue_has_an_empty_range(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        ranges = IItemRanges(queue)
        assert ranges.first_id == ranges.next_id
        assert read(subject, queue, ranges.first_id, ranges.first_id + 100) == []

    def test_ids_increase_in_the_order_of_items(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        pairs = read_all(subject, queue)
        assert [data for _, data in pairs] == ITEMS
        ranges = IItemRanges(queue)
        assert pairs[0][0] == ranges.first_id
        assert pairs[-1][0] < ranges.next_id

    def test_range_returns_data_and_times_of_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.storage.put([queue], b"zeros\0\0", 7, 8)
        subject.commit(queue)
        ((_, item),) = read(subject, queue, IItemRanges(queue).first_id, IItemRanges(queue).next_id)
        assert (item.data, item.add_ms, item.expiry_ms) == (b"zeros\0\0", 7, 8)

    def test_part_of_a_range_returns_its_items(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        pairs = read_all(subject, queue)
        for first in range(len(pairs)):
            for end in range(first, len(pairs)):
                assert data_of(read(subject, queue, pairs[first][0], pairs[end][0])) == pairs[first:end]

    def test_range_beyond_the_end_is_empty(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        next_id = IItemRanges(queue).next_id
        assert read(subject, queue, next_id, next_id + 100) == []
        pairs = read_all(subject, queue)
        assert data_of(read(subject, queue, pairs[-2][0], next_id + 100)) == pairs[-2:]

    def test_range_is_limited_by_bytes_but_returns_one_item(self, subject: StorageUnderTest) -> None:
        queue = begin(subject, *[b"x" * 100] * 10)
        first_id, next_id = IItemRanges(queue).first_id, IItemRanges(queue).next_id
        for max_bytes, most in ((0, 1), (1, 1), (100, 1), (250, 2), (1000, 10), (MANY_BYTES, 10)):
            count = len(read(subject, queue, first_id, next_id, max_bytes))
            assert 1 <= count <= most
        assert len(read(subject, queue, first_id, next_id)) == 10

    def test_reading_on_from_the_last_id_returns_each_item_once(self, subject: StorageUnderTest) -> None:
        queue = begin(subject, *[b"%03d" % number * 10 for number in range(50)])
        everything = read_all(subject, queue)
        found: list[tuple[int, bytes]] = []
        next_id = IItemRanges(queue).first_id
        while more := data_of(read(subject, queue, next_id, IItemRanges(queue).next_id, max_bytes=100)):
            found += more
            next_id = more[-1][0] + 1
        assert found == everything
        assert len(found) == 50

    # Repeated reads.

    def test_range_can_be_read_repeatedly(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        before = read_all(subject, queue)
        subject.store(queue, b"more")
        assert read_all(subject, queue)[: len(before)] == before
        assert len(read_all(subject, queue)) == len(before) + 1

    def test_range_includes_expired_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.storage.put([queue], b"expired", 1, 2)
        subject.store(queue, b"not expired")
        subject.clock.advance(10**6)
        assert data_in_range(subject, queue) == [b"expired", b"not expired"]

    def test_takes_and_confirms_do_not_change_a_range(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        before = read_all(subject, queue)
        opened = [subject.open(queue).xid for _ in range(6)]
        subject.commit(queue)
        assert read_all(subject, queue) == before
        queue.confirm([opened[4], opened[2]])
        queue.put_back([opened[3], opened[1]], True)
        subject.commit(queue)
        assert IItemRanges(queue).first_id == before[0][0]
        assert read_all(subject, queue) == before

    def test_taken_head_may_be_released_without_changing_other_ids(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        before = read_all(subject, queue)
        for _ in range(3):
            subject.get(queue)
        subject.commit(queue)
        ranges = IItemRanges(queue)
        assert before[0][0] <= ranges.first_id <= before[3][0]
        assert read_all(subject, queue) == [pair for pair in before if pair[0] >= ranges.first_id]

    def test_range_is_unchanged_after_restarts_and_kills(self, subject: StorageUnderTest, event: str) -> None:
        before = read_all(subject, begin(subject))
        again = subject.after(event)
        assert read_all(again, again.queue()) == before

    # Uncommitted items.

    def test_uncommitted_items_are_not_in_a_range(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        next_id = IItemRanges(queue).next_id
        before = read_all(subject, queue)
        subject.put(queue, b"not safe")
        assert IItemRanges(queue).next_id == next_id
        assert data_of(read(subject, queue, IItemRanges(queue).first_id, next_id + 100)) == before
        subject.commit(queue)
        assert IItemRanges(queue).next_id > next_id
        assert data_in_range(subject, queue) == [*ITEMS, b"not safe"]

    @requires("durable")
    def test_item_is_in_a_range_only_after_its_commit(self, subject: StorageUnderTest) -> None:
        queue = subject.stored_queue(*ITEMS, sync_journal_ms=0)
        first_id, next_id = IItemRanges(queue).first_id, IItemRanges(queue).next_id
        subject.put(queue, b"not safe")
        commits = subject.begin_commit(queue)
        assert commits, "with sync_journal_ms = 0 a commit must stay pending until its records are durable"
        reading = DeferredOutcome(IItemRanges(queue).read_range(first_id, next_id + 100, MANY_BYTES))
        while not all(commit.is_there for commit in commits):
            assert IItemRanges(queue).next_id == next_id
            if reading.is_there:
                assert [item.data for _, item in reading.result()] == ITEMS
            subject.threads.run_one()
        assert IItemRanges(queue).next_id > next_id
        assert data_in_range(subject, queue) == [*ITEMS, b"not safe"]

    # Releases.

    def test_released_items_are_removed_from_the_queue(self, subject: StorageUnderTest, event: str) -> None:
        queue = begin(subject, b"four", b"five5", b"sixsix")
        ids = [item_id for item_id, _ in read_all(subject, queue)]
        release(subject, queue, ids[2])
        again = subject.after(event)
        queue = again.queue()
        assert (queue.items, queue.bytes) == (1, 6)
        assert IItemRanges(queue).first_id == ids[2]
        assert read_all(again, queue) == [(ids[2], b"sixsix")]
        assert again.take_all_data(queue) == [b"sixsix"]

    def test_release_removes_peeked_and_put_back_items(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        ids = [item_id for item_id, _ in read_all(subject, queue)]
        queue.put_back([subject.open(queue).xid], False)
        subject.peek(queue)
        IItemRanges(queue).release(ids[4])
        assert queue.items == 6
        assert subject.take_all_data(queue) == ITEMS[4:]

    def test_release_does_not_count_taken_items_twice(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        ids = [item_id for item_id, _ in read_all(subject, queue)]
        subject.get(queue)
        opened = [subject.open(queue).xid for _ in range(3)]
        queue.confirm([opened[1]])
        queue.put_back([opened[0], opened[2]], False)
        IItemRanges(queue).release(ids[6])
        assert (queue.items, queue.bytes) == (4, 4)
        assert subject.take_all_data(queue) == ITEMS[6:]

    def test_repeated_or_smaller_release_changes_nothing(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        pairs = read_all(subject, queue)
        for place in (5, 5, 2, 0, 5):
            release(subject, queue, pairs[place][0])
            assert read_all(subject, queue) == pairs[5:]
            assert queue.items == 5

    def test_all_items_can_be_released(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        next_id = IItemRanges(queue).next_id
        release(subject, queue, next_id)
        assert (queue.items, queue.bytes, subject.peek(queue)) == (0, 0, None)
        assert (IItemRanges(queue).first_id, IItemRanges(queue).next_id) == (next_id, next_id)
        subject.store(queue, b"new")
        assert read_all(subject, queue) == [(next_id, b"new")]

    @requires("durable")
    def test_uncommitted_release_may_be_lost_whole(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        pairs = read_all(subject, queue)
        IItemRanges(queue).release(pairs[4][0])
        again = subject.killed()
        assert read_all(again, again.queue()) in (pairs, pairs[4:])

    # Holds.

    def test_queue_without_a_hold_has_no_reader(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        assert IItemRanges(queue).reader is None
        IItemRanges(queue).hold(b"spark")
        assert IItemRanges(queue).reader == b"spark"
        IItemRanges(queue).end_hold()
        assert IItemRanges(queue).reader is None

    def test_hold_begins_at_the_head(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        for _ in range(3):
            subject.get(queue)
        subject.commit(queue)
        IItemRanges(queue).hold(b"spark")
        assert data_in_range(subject, queue) == ITEMS[3:]

    def test_held_items_stay_after_takes_and_expiry(self, subject: StorageUnderTest) -> None:
        queue = begin_held(subject)
        before = read_all(subject, queue)
        subject.get(queue)
        queue.confirm([subject.open(queue).xid])
        opened = subject.open(queue).xid
        subject.commit(queue)
        assert read_all(subject, queue) == before
        queue.clear()
        queue.put_back([opened], True)
        subject.commit(queue)
        assert (queue.items, read_all(subject, queue)) == (1, before)
        subject.store(queue, b"more")
        assert subject.take_all_data(queue) == [ITEMS[2], b"more"]
        subject.commit(queue)
        assert (queue.items, read_all(subject, queue)[: len(before)]) == (0, before)

    def test_released_items_are_no_longer_held(self, subject: StorageUnderTest, event: str) -> None:
        queue = begin_held(subject)
        before = read_all(subject, queue)
        subject.take_all_data(queue)
        release(subject, queue, before[4][0])
        subject = subject.after(event)
        queue = subject.queue()
        ranges = IItemRanges(queue)
        assert (ranges.reader, ranges.first_id) == (b"spark", before[4][0])
        assert (queue.items, read_all(subject, queue)) == (0, before[4:])
        ranges.release(ranges.next_id)
        subject.commit(queue)
        assert (ranges.first_id, read_all(subject, queue)) == (ranges.next_id, [])

    def test_end_of_a_hold_drops_only_taken_items(self, subject: StorageUnderTest, event: str) -> None:
        queue = begin_held(subject)
        before = read_all(subject, queue)
        for _ in range(4):
            subject.get(queue)
        IItemRanges(queue).end_hold()
        subject.commit(queue)
        again = subject.after(event)
        ranges = IItemRanges(again.queue())
        assert (ranges.reader, ranges.first_id) == (None, before[4][0])
        assert again.take_all_data() == ITEMS[4:]

    @requires("durable")
    def test_uncommitted_hold_may_be_lost(self, subject: StorageUnderTest) -> None:
        begin_held(subject)
        again = subject.killed()
        assert IItemRanges(again.queue()).reader in (None, b"spark")

    def test_recreated_queue_has_no_hold(self, subject: StorageUnderTest) -> None:
        queue = begin_held(subject)
        subject.commit(queue)
        subject.storage.delete(queue)
        subject.commit(queue)
        assert IItemRanges(subject.queue()).reader is None

    def test_hold_of_a_child_does_not_affect_siblings(self, subject: StorageUnderTest) -> None:
        queues = [subject.queue(name) for name in (b"fan", b"fan+a", b"fan+b")]
        IItemRanges(queues[1]).hold(b"spark")
        for data in ITEMS:
            subject.storage.put(queues, data, ADD_MS, 0)
        subject.commit(*queues)
        for queue in queues:
            subject.take_all_data(queue)
        subject.commit(*queues)
        assert [IItemRanges(queue).reader for queue in queues] == [None, b"spark", None]
        assert [data_in_range(subject, queue) for queue in queues] == [[], ITEMS, []]

    def test_range_is_limited_by_item_count(self, subject: StorageUnderTest) -> None:
        queue = begin(subject)
        ranges = IItemRanges(queue)
        ranges.hold(b"spark")
        begin_id, found = ranges.first_id, []
        while (end_id := ranges.end_of(begin_id, 3)) > begin_id:
            pairs = data_of(read(subject, queue, begin_id, end_id))
            assert len(pairs) <= 3
            found += pairs
            begin_id = end_id
        assert found == read_all(subject, queue)
        assert ranges.end_of(ranges.next_id, 3) == ranges.next_id

    @requires("durable")
    def test_range_finds_items_directly_after_a_restart(self, subject: StorageUnderTest) -> None:
        queue = begin_held(subject)
        subject.commit(queue)
        seen = IItemRanges(queue).next_id
        subject = subject.killed()
        queue = subject.queue()
        ranges = IItemRanges(queue)
        assert (ranges.end_of(seen, 3), ranges.next_id >= seen) == (seen, True)
        subject.store(queue, b"new", b"newer")
        assert [data for _, data in data_of(read(subject, queue, seen, ranges.end_of(seen, 1)))] == [b"new"]
        assert [data for _, data in data_of(read(subject, queue, seen, ranges.end_of(seen, 3)))] == [b"new", b"newer"]

    # Ids are never reused.

    @requires("durable")
    def test_ids_continue_after_restarts_and_kills(self, subject: StorageUnderTest) -> None:
        given: list[int] = []
        for turn in range(6):
            queue = begin(subject, b"%d" % turn)
            next_id = IItemRanges(queue).next_id
            given.append(read_all(subject, queue)[-1][0])
            release(subject, queue, next_id)
            subject = subject.restarted() if turn % 2 else subject.killed()
            assert IItemRanges(subject.queue()).next_id >= next_id
        assert given == sorted(set(given))

    # Fanout.

    def test_each_child_has_its_own_range(self, subject: StorageUnderTest) -> None:
        names = [b"fan", b"fan+a", b"fan+b"]
        queues = [subject.queue(name) for name in names]
        for data in ITEMS:
            subject.storage.put(queues, data, ADD_MS, 0)
        subject.commit(*queues)
        before = [read_all(subject, queue) for queue in queues]
        assert [[data for _, data in pairs] for pairs in before] == [ITEMS] * 3
        IItemRanges(queues[1]).release(before[1][7][0])
        subject.commit(*queues)
        assert [read_all(subject, queue) for queue in queues] == [before[0], before[1][7:], before[2]]
        assert [queue.items for queue in queues] == [10, 3, 10]

    def test_item_for_one_child_is_not_in_ranges_of_others(self, subject: StorageUnderTest) -> None:
        parent, child, sibling = (subject.queue(name) for name in (b"fan", b"fan+a", b"fan+b"))
        subject.storage.put([parent, child, sibling], b"first", ADD_MS, 0)
        subject.put(child, b"for the child")
        subject.put(parent, b"for the parent")
        subject.storage.put([parent, child, sibling], b"last", ADD_MS, 0)
        subject.commit(parent, child, sibling)
        found = [data_in_range(subject, queue) for queue in (parent, child, sibling)]
        assert found == [
            [b"first", b"for the parent", b"last"],
            [b"first", b"for the child", b"last"],
            [b"first", b"last"],
        ]
