"""A queue inside a program: what is taken, waited for, finished, safe, lost, and moved; and who owns the folder."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.logger import LogLevel, capturedLogs

from kestrel.config.model import QueueSettings
from kestrel.errors import (
    BadQueueName,
    FolderInUse,
    QueueFailed,
    StorageError,
    StorageRefused,
    TooFewOpenReads,
)
from kestrel.item import Item
from kestrel.library import XIDS, FolderQueue, PersistentQueue, QueueFolder
from kestrel.testing.contract.samples import huge_item
from tests.journal.reference import EIGHT, read
from tests.programs import START_MS, OpenedFolders, arrivals

SYNCED = QueueSettings(sync_journal_ms=0)


class Program(OpenedFolders):
    """A program with the queue "work" and the folders that it asks for."""

    def queue(self, settings: QueueSettings | None = None, where: str = "queues", **options: Any) -> PersistentQueue:
        """A queue in that folder, set up."""
        options = {"settings": settings, **self.options, **options}
        queue = PersistentQueue(b"work", self.path / where, self.reactor, **options)
        self.reactor.result(queue.setup())
        self._opened.append(queue)
        return queue

    def folder(self, where: str = "queues", /, **options: Any) -> QueueFolder:
        """A folder, open."""
        folder = QueueFolder(self.path / where, self.reactor, **{**self.options, **options})
        self.reactor.result(folder.open())
        self._opened.append(folder)
        return folder

    def restart(self, queue: PersistentQueue, settings: QueueSettings | None = None) -> PersistentQueue:
        """Stop in order, and begin again over the same folder."""
        self.reactor.result(queue.close())
        return self.queue(settings)

    def journal(self) -> bytes:
        """What is in the current file of the queue "work"."""
        return (self.path / "queues" / "work").read_bytes()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.stop()


def opened(queue: FolderQueue) -> Item:
    """The head of a queue, as an open read."""
    item = queue.remove(opened=True)
    assert item is not None
    return item


def all_of(queue: FolderQueue) -> list[bytes]:
    """What is at hand, head first; it is taken."""
    return [item.data for item in iter(queue.remove, None)]


def add(queue: FolderQueue, *items: bytes) -> None:
    for data in items:
        assert queue.add(data)


def on_disk_alone(program: Program) -> PersistentQueue:
    """A queue with the items 1 to 9, of which none is in memory."""
    queue = program.queue()
    add(queue, *(b"%d" % number for number in range(10)))
    queue = program.restart(queue, QueueSettings(max_memory_size_bytes=1))
    assert queue.remove() is not None
    return queue


def drained(program: Program, queue: FolderQueue) -> list[bytes]:
    """Every item, waited for one by one."""
    found = []
    while (item := program.reactor.result(queue.wait_remove(0))) is not None:
        found.append(item.data)
    return found


# Items in, items out.


def test_items_come_out_in_the_order_in_which_they_went_in(program: Program) -> None:
    queue = program.queue()
    add(queue, b"one", b"two", b"three")
    assert queue.items == 3
    assert all_of(queue) == [b"one", b"two", b"three"]
    assert queue.items == 0


def test_a_look_leaves_the_head(program: Program) -> None:
    queue = program.queue()
    assert queue.peek() is None
    add(queue, b"one")
    looks = [queue.peek(), queue.peek()]
    assert [look.data if look else None for look in looks] == [b"one", b"one"]
    assert all_of(queue) == [b"one"]


def test_an_item_carries_when_it_was_added_and_when_it_expires(program: Program) -> None:
    queue = program.queue()
    program.reactor.pass_time(1.5)
    queue.add(b"one", START_MS + 2000)
    item = queue.peek()
    assert item is not None
    assert (item.add_ms, item.expiry_ms, item.errors, item.xid) == (START_MS + 1500, START_MS + 2000, 0, 0)


@pytest.mark.parametrize(
    "settings", [QueueSettings(max_items=1), QueueSettings(max_size_bytes=3), QueueSettings(max_item_size_bytes=4)]
)
def test_what_a_limit_refuses_is_not_added_and_that_is_no_error(program: Program, settings: QueueSettings) -> None:
    queue = program.queue(settings)
    add(queue, b"one")
    assert not queue.add(b"three")
    assert all_of(queue) == [b"one"]


def test_the_oldest_are_discarded_for_the_newest_where_the_settings_say_so(program: Program) -> None:
    queue = program.queue(QueueSettings(max_items=2, discard_old_when_full=True))
    add(queue, b"one", b"two", b"three")
    assert all_of(queue) == [b"two", b"three"]


def test_items_expire_by_their_own_expiry_and_by_max_age(program: Program) -> None:
    queue = program.queue(QueueSettings(max_age_ms=5000))
    queue.add(b"own", START_MS + 1000)
    add(queue, b"by age")
    program.reactor.pass_time(2)
    head = queue.peek()
    assert head is not None and head.data == b"by age"
    program.reactor.pass_time(4)
    assert queue.remove() is None


def test_what_has_expired_leaves_by_itself_where_the_program_asks_for_it(program: Program) -> None:
    used, timed = program.queue(where="used"), program.queue(expire_every_s=1)
    for queue in (used, timed):
        queue.add(b"short", START_MS + 1000)
    program.reactor.pass_time(2.5)
    assert (used.items, timed.items) == (1, 0)


def test_an_item_that_no_journal_can_hold_is_an_error(program: Program) -> None:
    queue = program.queue()
    with pytest.raises(StorageError, match="at most"):
        queue.add(huge_item())
    assert queue.items == 0


# Waiting.


def test_who_waits_is_given_what_is_added_first_come_first_served(program: Program) -> None:
    queue = program.queue()
    waiting = [arrivals(queue.wait_remove()) for _ in range(3)]
    add(queue, b"one", b"two")
    program.reactor.settle()
    assert waiting == [[b"one"], [b"two"], []]
    assert queue.items == 0


def test_nothing_is_taken_past_those_who_wait(program: Program) -> None:
    queue = on_disk_alone(program)
    first = arrivals(queue.wait_remove(0))
    program.reactor.end_turn()
    assert (first, queue.remove(), queue.peek()) == ([], None, None)
    program.reactor.settle()
    assert first == [b"1"]


def test_an_item_that_is_there_arrives_at_once(program: Program) -> None:
    queue = program.queue()
    add(queue, b"one")
    assert arrivals(queue.wait_peek()) == [b"one"]
    assert arrivals(queue.wait_remove(5)) == [b"one"]
    assert queue.items == 0


def test_who_has_waited_to_the_deadline_is_told_that_there_is_none(program: Program) -> None:
    queue = program.queue()
    waiting = arrivals(queue.wait_remove(deadline_s=2.5))
    program.reactor.pass_time(2.49)
    assert waiting == []
    program.reactor.pass_time(0.01)
    assert waiting == [None]
    add(queue, b"later")
    program.reactor.settle()
    assert (waiting, queue.items) == ([None], 1)


@pytest.mark.parametrize("deadline_s", [0, -1])
def test_without_time_to_wait_an_empty_queue_is_told_at_once(program: Program, deadline_s: float) -> None:
    queue = program.queue()
    assert arrivals(queue.wait_remove(deadline_s)) == [None]
    assert arrivals(queue.wait_peek(deadline_s)) == [None]


def test_without_a_deadline_one_waits_for_ever(program: Program) -> None:
    queue = program.queue()
    waiting = arrivals(queue.wait_remove())
    program.reactor.pass_time(1e6)
    assert waiting == []
    add(queue, b"at last")
    assert waiting == [b"at last"]


def test_who_waits_to_look_leaves_the_item(program: Program) -> None:
    queue = program.queue()
    waiting = [arrivals(queue.wait_peek()), arrivals(queue.wait_remove())]
    add(queue, b"one")
    assert waiting == [[b"one"], [b"one"]]
    assert queue.items == 0


def test_who_is_cancelled_leaves_the_line_and_no_item_goes_with_it(program: Program) -> None:
    queue = program.queue()
    first, second = queue.wait_remove(), queue.wait_remove(10, opened=True)
    told = [arrivals(first), arrivals(second)]
    first.cancel()
    add(queue, b"one")
    assert isinstance(told[0][0], CancelledError)
    assert told[1] == [b"one"]
    assert (queue.items, queue.open_reads) == (0, 1)


def test_who_is_cancelled_while_the_disk_is_read_takes_nothing(program: Program) -> None:
    queue = on_disk_alone(program)
    waiting = queue.wait_remove()
    told = arrivals(waiting)
    waiting.cancel()
    program.reactor.settle()
    assert isinstance(told[0], CancelledError)
    assert drained(program, queue) == [b"%d" % number for number in range(1, 10)]


def test_who_is_given_up_by_a_timeout_of_the_programs_own_takes_nothing(program: Program) -> None:
    queue = program.queue()
    told = arrivals(queue.wait_remove().addTimeout(1, program.reactor))
    program.reactor.pass_time(1)
    add(queue, b"one")
    assert isinstance(told[0], TimeoutError)
    assert all_of(queue) == [b"one"]


# The head on the disk alone.


def test_remove_and_peek_do_not_wait_for_the_disk(program: Program) -> None:
    queue = on_disk_alone(program)
    assert queue.items == 9
    assert (queue.peek(), queue.remove(), queue.remove(opened=True)) == (None, None, None)


def test_waiting_without_a_deadline_of_its_own_waits_for_the_disk_alone(program: Program) -> None:
    queue = on_disk_alone(program)
    looked = arrivals(queue.wait_peek(0))
    assert looked == []
    program.reactor.settle()
    assert looked == [b"1"]
    assert drained(program, queue) == [b"%d" % number for number in range(1, 10)]


def test_a_deadline_that_comes_while_the_disk_is_read_is_no_reason_to_call_the_queue_empty(program: Program) -> None:
    queue = on_disk_alone(program)
    waiting = arrivals(queue.wait_remove(1))
    program.reactor.advance(2)
    assert waiting == []
    program.reactor.settle()
    assert waiting == [b"1"]


def test_a_head_that_cannot_be_read_is_an_error_and_not_an_empty_queue(program: Program) -> None:
    queue = on_disk_alone(program)
    program.disk.fail("read", errno.EIO)
    with pytest.raises(QueueFailed):
        program.reactor.result(queue.wait_remove(0))
    program.disk.mend()
    assert drained(program, queue) == [b"%d" % number for number in range(1, 10)]


def test_who_takes_item_after_item_lets_the_reactor_go_on_in_between(program: Program) -> None:
    queue = program.queue()
    add(queue, *[b"item"] * 1000)
    taken_at_turns: list[int] = []
    taken = 0

    async def consume() -> None:
        nonlocal taken
        while await queue.wait_remove(0) is not None:
            taken += 1
            program.reactor.rightNow += 0.0001  # it works on it

    def other_work() -> None:
        taken_at_turns.append(taken)
        if taken < 1000:
            program.reactor.callFromThread(other_work)

    program.reactor.callFromThread(other_work)
    Deferred.fromCoroutine(consume())
    program.reactor.settle()
    assert taken == 1000
    assert max(after - before for before, after in pairwise(taken_at_turns)) <= 21


def test_ten_thousand_gets_in_a_chain_of_callbacks_end(program: Program) -> None:
    queue = program.queue()
    items = [b"%d" % number for number in range(10_000)]
    add(queue, *items)
    taken: list[bytes] = []

    def got(item: Item | None) -> None:
        if item is not None:
            taken.append(item.data)
            queue.wait_remove(0).addCallback(got)

    queue.wait_remove(0).addCallback(got)
    program.reactor.settle()
    assert taken == items


def test_who_must_wait_for_the_next_turn_keeps_the_place_in_line(program: Program) -> None:
    queue = program.queue()
    assert arrivals(queue.wait_remove(0)) == [None]
    program.reactor.rightNow += 1  # the turn is used up
    waiting = [queue.wait_remove(10) for _ in range(3)]
    told = [arrivals(each) for each in waiting]
    waiting[1].cancel()
    program.reactor.settle()
    told.append(arrivals(queue.wait_remove(10)))
    add(queue, b"one", b"two", b"three")
    assert [told[0], told[2], told[3]] == [[b"one"], [b"two"], [b"three"]]
    assert isinstance(told[1][0], CancelledError)


def test_a_deadline_that_comes_before_it_is_a_waiters_turn_is_no_reason_to_call_the_queue_empty(
    program: Program,
) -> None:
    queue = program.queue()
    add(queue, b"one")
    queue.wait_peek(0)
    program.reactor.rightNow += 1  # the turn is used up
    waiting = arrivals(queue.wait_remove(0.001))
    program.reactor.rightNow += 1
    program.reactor.settle()
    assert waiting == [b"one"]


def test_a_queue_that_fails_before_it_is_a_waiters_turn_is_opened_anew_for_it(program: Program) -> None:
    queue = program.queue()
    add(queue, b"safe")
    program.reactor.settle()
    program.disk.fail("write", errno.EIO, times=1)
    queue.wait_peek(0)
    add(queue, b"lost")
    program.reactor.rightNow += 1  # the turn is used up
    waiting = [arrivals(queue.wait_remove(0)) for _ in range(2)]
    program.reactor.settle()
    assert waiting == [[b"safe"], [None]]
    (error,) = arrivals(queue.safe())
    assert isinstance(error, QueueFailed)


# Open reads.


def test_an_open_read_that_is_confirmed_is_gone_for_good(program: Program) -> None:
    queue = program.queue()
    add(queue, b"one", b"two")
    item = opened(queue)
    assert (item.data, queue.items, queue.open_reads) == (b"one", 1, 1)
    assert queue.confirm_remove(item.xid)
    assert (queue.items, queue.open_reads) == (1, 0)
    assert all_of(program.restart(queue)) == [b"two"]


def test_an_open_read_that_is_put_back_is_the_head_again_and_has_failed_once_more(program: Program) -> None:
    queue = program.queue()
    add(queue, b"one", b"two")
    waiting = [opened(queue).xid, opened(queue).xid]
    told = arrivals(queue.wait_remove(opened=True))
    assert queue.unremove(waiting[0])
    assert told == [b"one"]
    assert queue.unremove(waiting[1])
    item = opened(queue)
    assert (item.data, item.errors) == (b"two", 1)


@pytest.mark.parametrize("end", [FolderQueue.confirm_remove, FolderQueue.unremove])
def test_what_is_not_open_cannot_be_ended_and_that_is_no_error(
    program: Program, end: Callable[[FolderQueue, int], bool]
) -> None:
    queue = program.queue()
    add(queue, b"one")
    item = opened(queue)
    assert end(queue, item.xid)
    assert not end(queue, item.xid)
    assert not end(queue, 4711)
    assert not end(queue, XIDS + item.xid)


@pytest.mark.parametrize("waits", [True, False])
def test_an_open_read_times_out_and_who_comes_too_late_ends_nobody_elses(program: Program, waits: bool) -> None:
    queue = program.queue(QueueSettings(open_transaction_timeout_ms=2000))
    waiting = queue.wait_remove(opened=True) if waits else None
    add(queue, b"one")
    slow = opened(queue) if waiting is None else program.reactor.result(waiting)
    other = arrivals(queue.wait_remove(opened=True))
    program.reactor.pass_time(1.9)
    assert other == []
    program.reactor.pass_time(0.1)
    assert other == [b"one"]
    assert (queue.confirm_remove(slow.xid), queue.unremove(slow.xid)) == (False, False)
    assert queue.open_reads == 1


def test_an_item_that_failed_too_often_moves_to_the_error_queue(program: Program) -> None:
    queue = program.queue(QueueSettings(max_redeliveries=2, error_queue=b"bad"))
    add(queue, b"one")
    for _ in range(2):
        queue.unremove(opened(queue).xid)
    program.reactor.settle()
    assert (queue.items, queue.open_reads) == (0, 0)
    assert all_of(queue.folder.queue(b"bad")) == [b"one"]


def test_an_item_in_hand_stays_as_it_is_whoever_has_it_next(program: Program) -> None:
    queue = program.queue()
    add(queue, b"one")
    looked_at, first = queue.peek(), opened(queue)
    queue.unremove(first.xid)
    second = opened(queue)
    assert looked_at is not None
    assert (looked_at.xid, first.xid, second.xid) == (0, 1, 2)
    assert (looked_at.errors, first.errors, second.errors) == (0, 0, 1)


# Confirm and add in one.


def test_a_read_is_finished_and_an_item_added_in_one_record(program: Program) -> None:
    queue = program.queue()
    add(queue, b"first", b"other")
    item = opened(queue)
    assert queue.continue_(item.xid, b"next", START_MS + 5000)
    program.reactor.settle()
    last = read(program.journal()).records[-1]
    assert (last.opcode, last.xid, last.item) == (EIGHT, item.xid, (b"next", START_MS, START_MS + 5000))
    assert (queue.items, queue.open_reads) == (2, 0)
    assert all_of(program.restart(queue)) == [b"other", b"next"]


def test_where_a_limit_refuses_the_next_item_the_read_stays_open(program: Program) -> None:
    queue = program.queue(QueueSettings(max_items=2, max_item_size_bytes=10))
    add(queue, b"first")
    item = opened(queue)
    assert not queue.continue_(item.xid, b"much too large")
    add(queue, b"one", b"two")
    assert not queue.continue_(item.xid, b"next")
    assert (queue.items, queue.open_reads) == (2, 1)
    assert queue.remove() is not None
    assert queue.continue_(item.xid, b"next")
    assert all_of(queue) == [b"two", b"next"]


def test_of_a_read_that_is_not_open_any_more_nothing_is_added(program: Program) -> None:
    queue = program.queue(QueueSettings(open_transaction_timeout_ms=1000))
    add(queue, b"first")
    item = opened(queue)
    program.reactor.pass_time(1)
    with pytest.raises(TooFewOpenReads):
        queue.continue_(item.xid, b"next")
    assert all_of(queue) == [b"first"]


def test_who_waits_is_given_the_next_item(program: Program) -> None:
    queue = program.queue()
    add(queue, b"first")
    item = opened(queue)
    told = arrivals(queue.wait_remove())
    assert queue.continue_(item.xid, b"next")
    assert told == [b"next"]


def test_the_next_item_reaches_the_children_and_the_read_is_finished_when_it_is_safe(program: Program) -> None:
    folder = program.folder(settings_for=lambda name: SYNCED)
    parent, child = folder.queue(b"work"), folder.queue(b"work+audit")
    add(parent, b"first")
    program.reactor.settle()
    item = opened(parent)
    assert parent.continue_(item.xid, b"next")
    safe = arrivals(parent.safe())
    program.reactor.end_turn()
    assert (parent.open_reads, safe) == (1, [])
    program.reactor.settle()
    assert (parent.open_reads, safe) == (0, [None])
    assert (all_of(parent), all_of(child)) == ([b"next"], [b"first", b"next"])


def test_the_next_item_of_a_parent_with_a_limit_leaves_the_read_open(program: Program) -> None:
    folder = program.folder(settings_for=lambda name: QueueSettings(max_items=1))
    parent, _ = folder.queue(b"work"), folder.queue(b"work+audit")
    add(parent, b"first")
    item = opened(parent)
    add(parent, b"second")
    assert not parent.continue_(item.xid, b"next")
    assert parent.confirm_remove(item.xid)
    with pytest.raises(TooFewOpenReads):
        parent.continue_(item.xid, b"next")
    assert all_of(parent) == [b"second"]


# Safe, or lost.


def test_what_is_safe_already_is_said_at_once(program: Program) -> None:
    queue = program.queue(SYNCED)
    assert arrivals(queue.safe()) == [None]
    add(queue, b"one")
    program.reactor.settle()
    assert arrivals(queue.safe()) == [None]


def test_all_that_changes_a_queue_has_to_become_safe(program: Program) -> None:
    queue = program.queue(SYNCED)
    add(queue, b"one", b"two", b"three")
    program.reactor.settle()
    deeds: list[Callable[[], object]] = [
        lambda: queue.add(b"four"),
        lambda: queue.remove(),
        lambda: arrivals(queue.wait_remove()),
        lambda: queue.remove(opened=True),
        lambda: queue.unremove(1),
        lambda: queue.remove(opened=True),
        lambda: queue.continue_(2, b"five"),
        lambda: queue.remove(opened=True),
        lambda: queue.confirm_remove(3),
    ]
    for deed in deeds:
        deed()
        safe = arrivals(queue.safe())
        program.reactor.end_turn()
        assert safe == []
        program.reactor.settle()
        assert safe == [None]
    assert all_of(queue) == [b"five"]


def test_what_was_lost_is_told_once_to_each_who_asks_and_the_queue_is_what_it_was_before(program: Program) -> None:
    queue = program.queue(SYNCED)
    add(queue, b"safe")
    program.reactor.settle()
    program.disk.fail("sync", errno.EIO, times=1)
    add(queue, b"lost")
    asked = [arrivals(queue.safe()), arrivals(queue.safe())]
    program.reactor.settle()
    assert [type(error) for (error,) in asked] == [QueueFailed, QueueFailed]
    assert arrivals(queue.safe()) == [None]
    assert all_of(queue) == [b"safe"]


def test_what_was_lost_before_anybody_asked_is_told_by_the_next_who_does(program: Program) -> None:
    queue = program.queue(SYNCED)
    program.disk.fail("sync", errno.EIO, times=1)
    add(queue, b"lost")
    program.reactor.settle()
    add(queue, b"safe")
    (error,) = arrivals_after_settling(program, queue.safe())
    assert isinstance(error, QueueFailed)
    assert arrivals(queue.safe()) == [None]


def arrivals_after_settling(program: Program, deferred: Deferred[Any]) -> list[Any]:
    """What it fires with when all is settled."""
    told = arrivals(deferred)
    program.reactor.settle()
    return told


def test_who_stops_waiting_for_safety_stops_nothing(program: Program) -> None:
    queue = program.queue(SYNCED)
    add(queue, b"one")
    waiting = queue.safe()
    told = arrivals(waiting)
    waiting.cancel()
    assert arrivals_after_settling(program, queue.safe()) == [None]
    assert isinstance(told[0], CancelledError)


def test_a_read_whose_storage_failed_ends_nothing_that_was_opened_since(program: Program) -> None:
    queue = program.queue(SYNCED)
    add(queue, b"one", b"two")
    program.reactor.settle()
    program.disk.fail("sync", errno.EIO, times=1)
    before = opened(queue)
    assert isinstance(arrivals_after_settling(program, queue.safe())[0], QueueFailed)
    again = opened(queue)
    assert (before.data, again.data) == (b"one", b"one")
    for end in (queue.confirm_remove, queue.unremove, lambda xid: queue.continue_(xid, b"next")):
        with pytest.raises(QueueFailed, match="back in the queue"):
            end(before.xid)
    assert (queue.items, queue.open_reads) == (1, 1)
    assert queue.confirm_remove(again.xid)
    assert arrivals_after_settling(program, queue.safe()) == [None]
    assert all_of(queue) == [b"two"]


def test_on_a_full_disk_nothing_is_added_and_the_rest_goes_on(program: Program) -> None:
    queue = program.queue()
    add(queue, b"one", b"two")
    program.reactor.settle()
    program.disk.room = 0
    add(queue, b"the write that finds the disk full")
    item = opened(queue)
    with pytest.raises(QueueFailed):
        program.reactor.result(queue.safe())
    with pytest.raises(StorageRefused):
        queue.add(b"three")
    item = opened(queue)
    with pytest.raises(StorageRefused):
        queue.continue_(item.xid, b"next")
    assert (queue.items, queue.open_reads) == (1, 1)
    program.disk.room = None
    program.reactor.pass_time(60)
    assert queue.continue_(item.xid, b"next")
    assert all_of(queue) == [b"two", b"next"]


# The folder: whose it is, from when, until when.


def test_nothing_can_be_done_before_the_folder_is_open(program: Program) -> None:
    queue = PersistentQueue(b"work", program.path, program.reactor)
    folder = QueueFolder(program.path, program.reactor)
    assert (queue.is_closed, folder.is_closed) == (False, False)
    for deed in (lambda: queue.add(b"one"), queue.remove, queue.peek, lambda: queue.items, lambda: folder.queue(b"a")):
        with pytest.raises(StorageError, match="not open yet"):
            deed()
    (error,) = arrivals(queue.wait_remove())
    assert isinstance(error, StorageError)
    assert not (program.path / ".kestrel").exists()


def test_a_name_that_no_queue_can_have_is_refused_before_the_folder_is_touched(program: Program) -> None:
    with pytest.raises(BadQueueName):
        PersistentQueue(b"a/b", program.path, program.reactor)
    folder = program.folder()
    with pytest.raises(BadQueueName):
        folder.queue(b"a.b")


def test_a_name_that_is_too_long_for_a_file_is_refused_and_the_folder_is_let_go(program: Program) -> None:
    long = PersistentQueue(b"\xff" * 200, program.path / "queues", program.reactor, reserve_bytes=1)
    with pytest.raises(BadQueueName):
        program.reactor.result(long.setup())
    assert program.queue().add(b"one")


def test_a_folder_stays_where_it_was_when_it_was_named(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.path)
    queue = PersistentQueue(b"work", "queues", program.reactor, reserve_bytes=1)
    (program.path / "elsewhere").mkdir()
    monkeypatch.chdir(program.path / "elsewhere")
    program.reactor.result(queue.setup())
    add(queue, b"one")
    program.reactor.result(queue.close())
    assert all_of(program.queue()) == [b"one"]


def test_a_folder_is_opened_once(program: Program) -> None:
    queue = program.queue()
    with pytest.raises(StorageError, match="once"):
        program.reactor.result(queue.setup())
    assert queue.add(b"one")
    program.reactor.result(queue.close())
    with pytest.raises(StorageError, match="once"):
        program.reactor.result(queue.setup())


def test_a_folder_that_cannot_be_used_is_an_error(program: Program) -> None:
    (program.path / "file").write_bytes(b"")
    queue = PersistentQueue(b"work", program.path / "file", program.reactor)
    with pytest.raises(StorageError, match="cannot be used"):
        program.reactor.result(queue.setup())


def test_a_journal_that_cannot_be_read_is_an_error_and_the_folder_is_let_go(program: Program) -> None:
    add(program.queue(), b"one")
    program.stop()
    program.disk.fail("read", errno.EIO)
    queue = PersistentQueue(b"work", program.path / "queues", program.reactor, reserve_bytes=1, disk=program.disk)
    with pytest.raises(QueueFailed):
        program.reactor.result(queue.setup())
    assert queue.is_closed
    program.disk.mend()
    assert all_of(program.queue()) == [b"one"]


def test_who_stops_waiting_for_the_folder_has_it_all_the_same_and_can_let_it_go(program: Program) -> None:
    queue = PersistentQueue(b"work", program.path, program.reactor, reserve_bytes=1)
    setup = queue.setup()
    told = arrivals(setup)
    setup.cancel()
    assert isinstance(told[0], CancelledError)
    assert arrivals_after_settling(program, queue.close()) == [None]
    assert program.queue(where=".").add(b"one")


def test_a_close_while_the_folder_is_being_opened_comes_after_it(program: Program) -> None:
    queue = PersistentQueue(b"work", program.path, program.reactor, reserve_bytes=1)
    told = [arrivals(queue.setup()), arrivals(queue.close())]
    program.reactor.settle()
    assert (told[1], queue.is_closed) == ([None], True)
    assert program.queue(where=".").add(b"one")


def test_what_was_never_opened_can_be_closed(program: Program) -> None:
    queue = PersistentQueue(b"work", program.path, program.reactor)
    assert arrivals(queue.close()) == [None]
    assert queue.is_closed


def test_a_close_makes_safe_what_was_done_and_lets_the_folder_go(program: Program) -> None:
    queue = program.queue(SYNCED)
    add(queue, b"one")
    program.reactor.end_turn()
    add(queue, b"two")  # while the sync of the first is under way
    told = [arrivals(queue.safe()), arrivals(queue.close()), arrivals(queue.close())]
    assert queue.is_closed
    for deed in (lambda: queue.add(b"three"), queue.remove, lambda: queue.confirm_remove(1)):
        with pytest.raises(StorageError, match="closed"):
            deed()
    assert told == [[], [], []]
    program.reactor.settle()
    assert told == [[None], [None], [None]]
    assert arrivals(queue.safe()) == [None]
    assert all_of(program.queue()) == [b"one", b"two"]


def test_a_close_answers_who_waits_as_an_empty_queue_does(program: Program) -> None:
    queue = program.queue()
    queue.peek()
    waiting = [arrivals(queue.wait_remove()), arrivals(queue.wait_peek(100))]
    program.reactor.rightNow += 1
    waiting.append(arrivals(queue.wait_remove(50)))  # it stands in no line yet
    program.reactor.result(queue.close())
    assert waiting == [[None], [None], [None]]


def test_a_close_that_loses_something_says_so_and_lets_the_folder_go_all_the_same(program: Program) -> None:
    queue = program.queue(SYNCED)
    program.disk.fail("sync", errno.EIO, times=1)
    add(queue, b"lost")
    with pytest.raises(QueueFailed):
        program.reactor.result(queue.close())
    assert all_of(program.queue()) == []


def test_a_program_that_dies_finds_what_was_written_and_its_open_reads_in_the_queue(program: Program) -> None:
    queue = program.queue()
    add(queue, b"one", b"two")
    opened(queue)
    program.reactor.settle()
    (program.path / "copy").mkdir()
    (program.path / "copy" / "work").write_bytes(program.journal())
    assert all_of(program.queue(where="copy")) == [b"one", b"two"]


# Several queues of one folder, and of several.


def test_queues_of_one_folder_have_settings_and_items_of_their_own(program: Program) -> None:
    settings = {b"small": QueueSettings(max_items=1)}
    folder = program.folder(settings_for=lambda name: settings.get(name, QueueSettings()))
    small, large = folder.queue(b"small"), folder.queue(b"large")
    assert folder.queue(b"small") is small
    assert program.queue(where="other").folder.queue(b"work").add(b"to the queue that was set up")
    add(small, b"one")
    add(large, b"two", b"three")
    assert not small.add(b"four")
    program.reactor.result(folder.close())
    assert folder.is_closed
    with pytest.raises(StorageError, match="closed"):
        folder.queue(b"small")
    again = program.folder()
    assert [all_of(again.queue(name)) for name in (b"small", b"large")] == [[b"one"], [b"two", b"three"]]


def test_one_journal_that_cannot_be_read_keeps_no_other_queue_from_the_program(program: Program) -> None:
    folder = program.folder()
    add(folder.queue(b"a"), b"one")
    add(folder.queue(b"b"), b"two")
    program.reactor.result(folder.close())
    program.disk.fail("read", errno.EIO, times=1)
    with capturedLogs() as logged:
        again = program.folder()
    assert [event["log_level"] for event in logged].count(LogLevel.error) == 1
    assert [all_of(again.queue(name)) for name in (b"a", b"b")] == [[b"one"], [b"two"]]


def test_a_child_gets_what_is_added_to_its_parent(program: Program) -> None:
    folder = program.folder()
    parent, child = folder.queue(b"work"), folder.queue(b"work+audit")
    add(parent, b"one")
    assert (all_of(parent), all_of(child)) == ([b"one"], [b"one"])


def test_expired_items_move_to_a_queue_of_the_same_folder(program: Program) -> None:
    settings = {b"work": QueueSettings(expire_to_queue=b"late", max_age_ms=1000)}
    folder = program.folder(settings_for=lambda name: settings.get(name, QueueSettings()))
    work = folder.queue(b"work")
    add(work, b"one")
    waiting = arrivals(folder.queue(b"late").wait_remove())
    program.reactor.pass_time(2)
    assert work.remove() is None
    program.reactor.settle()
    assert (waiting, work.open_reads) == ([b"one"], 0)


MOVES = QueueSettings(expire_to_queue=b"late", max_age_ms=1000)


def test_expired_items_move_to_the_queue_that_lookup_finds(program: Program) -> None:
    elsewhere = program.queue(where="elsewhere")
    asked: list[bytes] = []

    def lookup(name: bytes) -> FolderQueue:
        asked.append(name)
        return elsewhere

    queue = program.queue(MOVES, lookup=lookup)
    add(queue, b"one")
    program.reactor.pass_time(2)
    assert queue.remove() is None
    program.reactor.settle()
    assert (asked, queue.open_reads) == ([b"late"], 0)
    assert all_of(elsewhere) == [b"one"]


@pytest.mark.parametrize("how", ["there is none", "it is closed"])
def test_an_item_whose_queue_is_not_found_is_kept_and_moves_when_it_is(program: Program, how: str) -> None:
    closed = program.queue(where="closed")
    program.reactor.result(closed.close())
    found: dict[bytes, FolderQueue] = {} if how == "there is none" else {b"late": closed}
    queue = program.queue(evolve(MOVES, sync_journal_ms=0), lookup=found.get)
    add(queue, b"one")
    program.reactor.pass_time(2)
    with capturedLogs() as logged:
        assert queue.remove() is None
        program.reactor.settle()
    assert [event["target"] for event in logged if event["log_level"] is LogLevel.error] == [b"late"]
    assert (queue.items, queue.open_reads) == (0, 1)
    found[b"late"] = program.queue(where="elsewhere")
    program.reactor.pass_time(1)
    assert (queue.open_reads, all_of(found[b"late"])) == (0, [b"one"])


def test_an_item_whose_queue_is_never_found_outlives_the_program(program: Program) -> None:
    queue = program.queue(MOVES, lookup=lambda name: None)
    add(queue, b"one")
    program.reactor.pass_time(2)
    assert queue.remove() is None
    assert all_of(program.restart(queue)) == [b"one"]


def test_a_move_that_is_under_way_at_the_close_is_finished(program: Program) -> None:
    elsewhere = program.queue(SYNCED, where="elsewhere")
    queue = program.queue(MOVES, lookup=lambda name: elsewhere)
    add(queue, b"one")
    program.reactor.pass_time(2)
    assert queue.remove() is None
    program.reactor.result(queue.close())
    assert (all_of(elsewhere), all_of(program.queue())) == ([b"one"], [])


def test_a_folder_of_somebody_else_is_refused_as_in_use(program: Program) -> None:
    program.folder()
    with pytest.raises(FolderInUse):
        program.reactor.result(QueueFolder(program.path / "queues", program.reactor, reserve_bytes=1).open())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (QueueSettings(error_queue="failed"), "error_queue (errorQueue) must be bytes or None, not 'failed'"),  # type: ignore[arg-type]
        (QueueSettings(max_age_ms="1d"), "max_age_ms (maxAge) must be int or None, not '1d'"),  # type: ignore[arg-type]
        (QueueSettings(max_items=True), "max_items (maxItems) must be int or None, not True"),
        (QueueSettings(error_queue=b"work"), "the items of queue b'work' would move to itself"),
    ],
)
def test_settings_that_no_file_could_give_are_refused_in_a_sentence(settings: QueueSettings, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(says)):
        PersistentQueue(b"work", "/nonexistent", None, settings=settings)


def test_a_name_that_is_not_bytes_is_refused_in_a_sentence() -> None:
    with pytest.raises(TypeError, match="a queue's name must be bytes, such as b'work', not 'work'"):
        PersistentQueue("work", "/nonexistent", None)  # type: ignore[arg-type]
