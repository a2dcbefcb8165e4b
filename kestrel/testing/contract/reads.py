"""Peeking, open reads, and how open reads end."""

from __future__ import annotations

from kestrel.testing.contract.backend import Backend, StorageUnderTest
from kestrel.testing.contract.requirements import requires


class ReadTests(Backend):
    """The promises of `take`, `confirm` and `put_back`, without a restart."""

    def test_peek_returns_the_head_without_removing_it(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        seen = [subject.peek(queue), subject.peek(queue)]
        assert [item and (item.data, item.xid) for item in seen] == [(b"a", 0), (b"a", 0)]
        assert queue.items == 2
        assert subject.take_all_data(queue) == [b"a", b"b"]

    def test_peek_take_and_fill_of_an_empty_queue_find_nothing(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        assert (queue.peek(), queue.take(False), queue.take(True), queue.fill()) == (None, None, None, None)
        assert (queue.items, queue.open_reads) == (0, 0)

    def test_open_read_has_an_xid_until_it_is_confirmed(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        item = subject.open(queue)
        assert item.xid > 0
        assert queue.is_open(item.xid)
        assert queue.confirm([item.xid]) == 1
        assert not queue.is_open(item.xid)

    def test_open_reads_are_not_counted_as_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four", b"five5")
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
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        first, second = subject.open(queue).xid, subject.open(queue).xid
        assert queue.confirm([first, first, second + 1000, -1, 0]) == 1
        assert queue.confirm([first]) == 0
        assert queue.is_open(second)

    def test_confirmed_item_is_not_delivered_again(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        xid = subject.open(queue).xid
        queue.confirm([xid])
        queue.put_back([xid], False)
        assert (queue.items, subject.peek(queue)) == (0, None)

    def test_first_xid_put_back_becomes_the_head(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c", b"d")
        a, b, c = (subject.open(queue).xid for _ in range(3))
        queue.put_back([c, a, b], False)
        assert subject.take_all_data(queue) == [b"c", b"a", b"b", b"d"]

    def test_later_put_back_precedes_earlier_one(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c")
        a, b = (subject.open(queue).xid for _ in range(2))
        queue.put_back([a], False)
        subject.commit(queue)
        queue.put_back([b], False)
        assert subject.take_all_data(queue) == [b"b", b"a", b"c"]

    def test_put_back_item_precedes_a_peeked_head(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        xid = subject.open(queue).xid
        subject.peek(queue)
        queue.put_back([xid], False)
        assert subject.take_all_data(queue) == [b"a", b"b"]

    def test_put_back_item_is_counted_and_no_longer_open(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four")
        xid = subject.open(queue).xid
        queue.put_back([xid], False)
        assert (queue.items, queue.bytes, queue.open_reads) == (1, 4, 0)
        assert not queue.is_open(xid)

    def test_put_back_of_an_unknown_xid_changes_nothing(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
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
        queue = subject.queue()
        subject.put(queue, b"a")
        for failed in (True, False, True):
            queue.put_back([subject.open(queue).xid], failed)
            subject.commit(queue)
        assert subject.get(queue).errors == 2
