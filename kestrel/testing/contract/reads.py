"""Peeking, open reads, and how open reads end."""

from __future__ import annotations

from kestrel.testing.contract.backend import Backend, StorageUnderTest
from kestrel.testing.contract.requirements import requires


class ReadTests(Backend):
    """The promises of `take`, `confirm` and `put_back`, without a restart."""

    def test_peek_shows_the_head_and_leaves_it(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        seen = [subject.peek(queue), subject.peek(queue)]
        assert [item and (item.data, item.xid) for item in seen] == [(b"a", 0), (b"a", 0)]
        assert queue.items == 2
        assert subject.take_all_data(queue) == [b"a", b"b"]

    def test_an_empty_queue_has_no_head_to_look_at_take_or_fill_in(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        assert (queue.peek(), queue.take(False), queue.take(True), queue.fill()) == (None, None, None, None)
        assert (queue.items, queue.open_reads) == (0, 0)

    def test_an_open_read_carries_an_xid_and_is_open_until_it_is_confirmed(self, subject: StorageUnderTest) -> None:
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

    def test_no_xid_is_given_twice(self, subject: StorageUnderTest) -> None:
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

    def test_xids_of_one_queue_say_nothing_to_another(self, subject: StorageUnderTest) -> None:
        queue, other = subject.queue(b"a"), subject.queue(b"a+child")
        subject.put(queue, b"a")
        xid = subject.open(queue).xid
        assert not other.is_open(xid)
        assert other.confirm([xid]) == 0
        other.put_back([xid], True)
        assert (other.items, queue.open_reads) == (0, 1)

    def test_confirm_counts_those_that_were_open_and_ignores_others(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        first, second = subject.open(queue).xid, subject.open(queue).xid
        assert queue.confirm([first, first, second + 1000, -1, 0]) == 1
        assert queue.confirm([first]) == 0
        assert queue.is_open(second)

    def test_a_confirmed_item_never_comes_back(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        xid = subject.open(queue).xid
        queue.confirm([xid])
        queue.put_back([xid], False)
        assert (queue.items, subject.peek(queue)) == (0, None)

    def test_the_first_of_those_put_back_is_the_next_one_taken(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c", b"d")
        a, b, c = (subject.open(queue).xid for _ in range(3))
        queue.put_back([c, a, b], False)
        assert subject.take_all_data(queue) == [b"c", b"a", b"b", b"d"]

    def test_what_is_put_back_later_stands_before_what_was_put_back_earlier(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c")
        a, b = (subject.open(queue).xid for _ in range(2))
        queue.put_back([a], False)
        subject.commit(queue)
        queue.put_back([b], False)
        assert subject.take_all_data(queue) == [b"b", b"a", b"c"]

    def test_what_is_put_back_stands_before_what_was_looked_at(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        xid = subject.open(queue).xid
        subject.peek(queue)
        queue.put_back([xid], False)
        assert subject.take_all_data(queue) == [b"a", b"b"]

    def test_what_is_put_back_counts_again_and_is_open_no_longer(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four")
        xid = subject.open(queue).xid
        queue.put_back([xid], False)
        assert (queue.items, queue.bytes, queue.open_reads) == (1, 4, 0)
        assert not queue.is_open(xid)

    def test_putting_back_what_is_not_open_changes_nothing(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        xid = subject.open(queue).xid
        queue.put_back([xid + 1000, xid, xid], False)
        assert subject.take_all_data(queue) == [b"a", b"b"]

    def test_an_item_that_comes_back_is_as_it_was_put(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.storage.put([queue], b"a\0", 7, 8)
        queue.put_back([subject.open(queue).xid], False)
        item = subject.get(queue)
        assert (item.data, item.add_ms, item.expiry_ms, item.errors, item.xid) == (b"a\0", 7, 8, 0, 0)

    @requires("errors_kept")
    def test_an_item_that_comes_back_failed_has_one_error_more(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        for failed in (True, False, True):
            queue.put_back([subject.open(queue).xid], failed)
            subject.commit(queue)
        assert subject.get(queue).errors == 2
