"""A queue inside a program: items, waiters, open reads, durability, failures, moves, and its folder."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import LogLevel, capturedLogs

from kestrel.config.model import QueueSettings
from kestrel.errors import BadQueueName, QueueFailed, StorageError, StorageRefused, TooFewOpenReads
from kestrel.item import Item
from kestrel.library import XIDS, FolderQueue, PersistentQueue, QueueFolder
from kestrel.testing.contract.requirements import huge_item
from tests.journal.reference import EIGHT, read
from tests.programs import START_MS, OpenedFolders, arrivals

SYNCED = QueueSettings(sync_journal_ms=0)


class Program(OpenedFolders):
    """A program with the queue "work" and folders."""

    def queue(self, settings: QueueSettings | None = None, where: str = "queues", **options: Any) -> PersistentQueue:
        """Return a queue, set up, in a folder of its own."""
        options = {"settings": settings, **self.options, **options}
        queue = PersistentQueue(b"work", self.path / where, self.reactor, **options)
        self.reactor.result(queue.setup())
        self._opened.append(queue)
        return queue

    def folder(self, where: str = "queues", /, **options: Any) -> QueueFolder:
        """Return a folder, open."""
        folder = QueueFolder(self.path / where, self.reactor, **{**self.options, **options})
        self.reactor.result(folder.open())
        self._opened.append(folder)
        return folder

    def restart(self, queue: PersistentQueue, settings: QueueSettings | None = None) -> PersistentQueue:
        """Close a queue, and open it again."""
        self.reactor.result(queue.close())
        return self.queue(settings)

    def journal(self) -> bytes:
        """Return the contents of the current file of the queue "work"."""
        return (self.path / "queues" / "work").read_bytes()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.stop()


@pytest.fixture
def queue(program: Program) -> PersistentQueue:
    return program.queue()


def opened(queue: FolderQueue) -> Item:
    """Return the head of a queue as an open read."""
    item = queue.remove(opened=True)
    assert item is not None
    return item


def all_of(queue: FolderQueue) -> list[bytes]:
    """Take the items that are in memory, head first."""
    return [item.data for item in iter(queue.remove, None)]


def add(queue: FolderQueue, *items: bytes) -> None:
    for data in items:
        assert queue.add(data)


def on_disk_alone(program: Program) -> PersistentQueue:
    """Return a queue with the items 1 to 9, none of which is in memory."""
    queue = program.queue()
    add(queue, *(b"%d" % number for number in range(10)))
    queue = program.restart(queue, QueueSettings(max_memory_size_bytes=1))
    assert queue.remove() is not None
    return queue


def drained(program: Program, queue: FolderQueue) -> list[bytes]:
    """Take all items one by one, and wait for each."""
    found = []
    while (item := program.reactor.result(queue.wait_remove(0))) is not None:
        found.append(item.data)
    return found


# Items in, items out.


def test_peek_leaves_the_head(queue: PersistentQueue) -> None:
    assert queue.peek() is None
    add(queue, b"one")
    assert [item.data for item in (queue.peek(), queue.peek()) if item is not None] == [b"one", b"one"]
    assert all_of(queue) == [b"one"]


def test_item_has_its_add_time_and_expiry(program: Program, queue: PersistentQueue) -> None:
    program.reactor.pass_time(1.5)
    queue.add(b"one", START_MS + 2000)
    item = queue.peek()
    assert item is not None
    assert (item.add_ms, item.expiry_ms, item.errors, item.xid) == (START_MS + 1500, START_MS + 2000, 0, 0)


@pytest.mark.parametrize(
    "settings", [QueueSettings(max_items=1), QueueSettings(max_size_bytes=3), QueueSettings(max_item_size_bytes=4)]
)
def test_add_is_refused_at_each_limit(program: Program, settings: QueueSettings) -> None:
    queue = program.queue(settings)
    add(queue, b"one")
    assert not queue.add(b"three")
    assert all_of(queue) == [b"one"]


def test_expired_items_are_discarded_periodically_if_configured(program: Program) -> None:
    used, timed = program.queue(where="used"), program.queue(expire_every_s=1)
    for queue in (used, timed):
        queue.add(b"short", START_MS + 1000)
    program.reactor.pass_time(2.5)
    assert (used.items, timed.items) == (1, 0)


def test_item_too_large_for_a_journal_is_an_error(queue: PersistentQueue) -> None:
    with pytest.raises(StorageError, match="at most"):
        queue.add(huge_item())
    assert queue.items == 0


# Waiting.


def test_waiters_are_served_in_order(program: Program, queue: PersistentQueue) -> None:
    waiting = [arrivals(queue.wait_remove()) for _ in range(3)]
    program.reactor.pass_time(1e6)
    add(queue, b"one", b"two")
    program.reactor.settle()
    assert waiting == [[b"one"], [b"two"], []]
    assert queue.items == 0


def test_remove_does_not_overtake_waiters(program: Program) -> None:
    queue = on_disk_alone(program)
    first = arrivals(queue.wait_remove(0))
    program.reactor.end_turn()
    assert (first, queue.remove(), queue.peek()) == ([], None, None)
    program.reactor.settle()
    assert first == [b"1"]


def test_available_item_arrives_at_once(queue: PersistentQueue) -> None:
    add(queue, b"one")
    assert arrivals(queue.wait_peek()) == [b"one"]
    assert arrivals(queue.wait_remove(5)) == [b"one"]
    assert queue.items == 0


def test_waiter_gets_none_at_its_deadline(program: Program, queue: PersistentQueue) -> None:
    waiting = arrivals(queue.wait_remove(deadline_s=2.5))
    program.reactor.pass_time(2.49)
    assert waiting == []
    program.reactor.pass_time(0.01)
    assert waiting == [None]
    add(queue, b"later")
    program.reactor.settle()
    assert (waiting, queue.items) == ([None], 1)


@pytest.mark.parametrize("deadline_s", [0, -1])
def test_wait_without_time_returns_none_at_once(queue: PersistentQueue, deadline_s: float) -> None:
    assert arrivals(queue.wait_remove(deadline_s)) == [None]
    assert arrivals(queue.wait_peek(deadline_s)) == [None]


def test_waiting_peek_leaves_the_item(queue: PersistentQueue) -> None:
    waiting = [arrivals(queue.wait_peek()), arrivals(queue.wait_remove())]
    add(queue, b"one")
    assert waiting == [[b"one"], [b"one"]]
    assert queue.items == 0


def test_cancelled_waiter_takes_no_item(queue: PersistentQueue) -> None:
    first, second = queue.wait_remove(), queue.wait_remove(10, opened=True)
    told = [arrivals(first), arrivals(second)]
    first.cancel()
    add(queue, b"one")
    assert isinstance(told[0][0], CancelledError)
    assert told[1] == [b"one"]
    assert (queue.items, queue.open_reads) == (0, 1)


def test_waiter_cancelled_during_a_read_takes_no_item(program: Program) -> None:
    queue = on_disk_alone(program)
    waiting = queue.wait_remove()
    told = arrivals(waiting)
    waiting.cancel()
    program.reactor.settle()
    assert isinstance(told[0], CancelledError)
    assert drained(program, queue) == [b"%d" % number for number in range(1, 10)]


# The head is only on disk.


def test_remove_and_peek_do_not_wait_for_the_disk(program: Program) -> None:
    queue = on_disk_alone(program)
    assert queue.items == 9
    assert (queue.peek(), queue.remove(), queue.remove(opened=True)) == (None, None, None)


def test_wait_with_deadline_zero_waits_only_for_the_disk(program: Program) -> None:
    queue = on_disk_alone(program)
    looked = arrivals(queue.wait_peek(0))
    assert looked == []
    program.reactor.settle()
    assert looked == [b"1"]
    assert drained(program, queue) == [b"%d" % number for number in range(1, 10)]


def test_deadline_during_a_read_does_not_lose_the_item(program: Program) -> None:
    queue = on_disk_alone(program)
    waiting = arrivals(queue.wait_remove(1))
    program.reactor.advance(2)
    assert waiting == []
    program.reactor.settle()
    assert waiting == [b"1"]


def test_unreadable_head_is_an_error(program: Program) -> None:
    queue = on_disk_alone(program)
    program.disk.fail("read", errno.EIO)
    with pytest.raises(QueueFailed):
        program.reactor.result(queue.wait_remove(0))
    program.disk.mend()
    assert drained(program, queue) == [b"%d" % number for number in range(1, 10)]


def test_consumer_yields_to_the_reactor(program: Program, queue: PersistentQueue) -> None:
    add(queue, *[b"item"] * 1000)
    taken_at_turns: list[int] = []
    taken = 0

    async def consume() -> None:
        nonlocal taken
        while await queue.wait_remove(0) is not None:
            taken += 1
            program.reactor.rightNow += 0.0001  # the work on an item

    def other_work() -> None:
        taken_at_turns.append(taken)
        if taken < 1000:
            program.reactor.callFromThread(other_work)

    program.reactor.callFromThread(other_work)
    Deferred.fromCoroutine(consume())
    program.reactor.settle()
    assert taken == 1000
    assert max(after - before for before, after in pairwise(taken_at_turns)) <= 21


def test_ten_thousand_gets_in_a_callback_chain_end(program: Program, queue: PersistentQueue) -> None:
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


def test_waiters_for_the_next_turn_keep_their_order(program: Program, queue: PersistentQueue) -> None:
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


def test_deadline_before_the_next_turn_does_not_lose_the_item(program: Program, queue: PersistentQueue) -> None:
    add(queue, b"one")
    queue.wait_peek(0)
    program.reactor.rightNow += 1  # the turn is used up
    waiting = arrivals(queue.wait_remove(0.001))
    program.reactor.rightNow += 1
    program.reactor.settle()
    assert waiting == [b"one"]


def test_queue_that_fails_before_the_next_turn_is_opened_again(program: Program, queue: PersistentQueue) -> None:
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


def test_confirmed_read_is_removed(program: Program, queue: PersistentQueue) -> None:
    add(queue, b"one", b"two")
    item = opened(queue)
    assert (item.data, queue.items, queue.open_reads) == (b"one", 1, 1)
    assert queue.confirm_remove(item.xid)
    assert (queue.items, queue.open_reads) == (1, 0)
    assert all_of(program.restart(queue)) == [b"two"]


def test_unremoved_item_is_the_head_again_with_one_more_error(queue: PersistentQueue) -> None:
    add(queue, b"one", b"two")
    waiting = [opened(queue).xid, opened(queue).xid]
    told = arrivals(queue.wait_remove(opened=True))
    assert queue.unremove(waiting[0])
    assert told == [b"one"]
    assert queue.unremove(waiting[1])
    item = opened(queue)
    assert (item.data, item.errors) == (b"two", 1)


@pytest.mark.parametrize("end", [FolderQueue.confirm_remove, FolderQueue.unremove])
def test_read_that_is_not_open_cannot_be_ended(queue: PersistentQueue, end: Callable[[FolderQueue, int], bool]) -> None:
    add(queue, b"one")
    item = opened(queue)
    assert end(queue, item.xid)
    assert not end(queue, item.xid)
    assert not end(queue, 4711)
    assert not end(queue, XIDS + item.xid)


@pytest.mark.parametrize("waits", [True, False])
def test_open_read_times_out_and_cannot_be_ended_later(program: Program, waits: bool) -> None:
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


def test_returned_items_do_not_change(queue: PersistentQueue) -> None:
    add(queue, b"one")
    looked_at, first = queue.peek(), opened(queue)
    queue.unremove(first.xid)
    second = opened(queue)
    assert looked_at is not None
    assert (looked_at.xid, first.xid, second.xid) == (0, 1, 2)
    assert (looked_at.errors, first.errors, second.errors) == (0, 0, 1)


# Confirm and add in one.


def test_continue_confirms_and_adds_in_one_record(program: Program, queue: PersistentQueue) -> None:
    add(queue, b"first", b"other")
    item = opened(queue)
    assert queue.continue_(item.xid, b"next", START_MS + 5000)
    program.reactor.settle()
    last = read(program.journal()).records[-1]
    assert (last.opcode, last.xid, last.item) == (EIGHT, item.xid, (b"next", START_MS, START_MS + 5000))
    assert (queue.items, queue.open_reads) == (2, 0)
    assert all_of(program.restart(queue)) == [b"other", b"next"]


def test_refused_continue_leaves_the_read_open(program: Program) -> None:
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


def test_continue_of_a_read_that_timed_out_adds_nothing(program: Program) -> None:
    queue = program.queue(QueueSettings(open_transaction_timeout_ms=1000))
    add(queue, b"first")
    item = opened(queue)
    program.reactor.pass_time(1)
    with pytest.raises(TooFewOpenReads):
        queue.continue_(item.xid, b"next")
    assert all_of(queue) == [b"first"]


def test_continue_adds_to_children_and_confirms_when_safe(program: Program) -> None:
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


# Safe, or lost.


def test_safe_fires_at_once_without_pending_changes(program: Program) -> None:
    queue = program.queue(SYNCED)
    assert arrivals(queue.safe()) == [None]
    add(queue, b"one")
    program.reactor.settle()
    assert arrivals(queue.safe()) == [None]


def test_every_change_must_become_safe(program: Program) -> None:
    queue = program.queue(SYNCED)
    add(queue, b"one", b"two", b"three")
    program.reactor.settle()
    actions: list[Callable[[], object]] = [
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
    for action in actions:
        action()
        safe = arrivals(queue.safe())
        program.reactor.end_turn()
        assert safe == []
        program.reactor.settle()
        assert safe == [None]
    assert all_of(queue) == [b"five"]


def test_failed_sync_fails_each_safe_once_and_restores_the_queue(program: Program) -> None:
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


def test_failure_is_reported_by_the_next_safe(program: Program) -> None:
    queue = program.queue(SYNCED)
    program.disk.fail("sync", errno.EIO, times=1)
    add(queue, b"lost")
    program.reactor.settle()
    add(queue, b"safe")
    (error,) = arrivals_after_settling(program, queue.safe())
    assert isinstance(error, QueueFailed)
    assert arrivals(queue.safe()) == [None]


def arrivals_after_settling(program: Program, deferred: Deferred[Any]) -> list[Any]:
    """Settle, and return the result of a Deferred as `arrivals` does."""
    told = arrivals(deferred)
    program.reactor.settle()
    return told


def test_cancelled_safe_cancels_nothing_else(program: Program) -> None:
    queue = program.queue(SYNCED)
    add(queue, b"one")
    waiting = queue.safe()
    told = arrivals(waiting)
    waiting.cancel()
    assert arrivals_after_settling(program, queue.safe()) == [None]
    assert isinstance(told[0], CancelledError)


def test_read_of_a_failed_queue_cannot_be_ended(program: Program) -> None:
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


def test_full_disk_refuses_only_additions(program: Program, queue: PersistentQueue) -> None:
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


# Opening and closing the folder.


def test_nothing_works_before_the_folder_is_open(program: Program) -> None:
    queue = PersistentQueue(b"work", program.path, program.reactor)
    folder = QueueFolder(program.path, program.reactor)
    assert (queue.is_closed, folder.is_closed) == (False, False)
    for action in (
        lambda: queue.add(b"one"),
        queue.remove,
        queue.peek,
        lambda: queue.items,
        lambda: folder.queue(b"a"),
    ):
        with pytest.raises(StorageError, match="not open yet"):
            action()
    (error,) = arrivals(queue.wait_remove())
    assert isinstance(error, StorageError)
    assert not (program.path / ".kestrel").exists()


def test_invalid_queue_name_is_rejected(program: Program) -> None:
    with pytest.raises(BadQueueName):
        PersistentQueue(b"a/b", program.path, program.reactor)
    folder = program.folder()
    with pytest.raises(BadQueueName):
        folder.queue(b"a.b")


def test_too_long_name_is_rejected_and_folder_released(program: Program) -> None:
    long = PersistentQueue(b"\xff" * 200, program.path / "queues", program.reactor, reserve_bytes=1)
    with pytest.raises(BadQueueName):
        program.reactor.result(long.setup())
    assert program.queue().add(b"one")


def test_relative_path_is_resolved_by_the_constructor(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.path)
    queue = PersistentQueue(b"work", "queues", program.reactor, reserve_bytes=1)
    (program.path / "elsewhere").mkdir()
    monkeypatch.chdir(program.path / "elsewhere")
    program.reactor.result(queue.setup())
    add(queue, b"one")
    program.reactor.result(queue.close())
    assert all_of(program.queue()) == [b"one"]


def test_folder_can_be_opened_only_once(program: Program, queue: PersistentQueue) -> None:
    with pytest.raises(StorageError, match="once"):
        program.reactor.result(queue.setup())
    assert queue.add(b"one")
    program.reactor.result(queue.close())
    with pytest.raises(StorageError, match="once"):
        program.reactor.result(queue.setup())


def test_unusable_folder_is_an_error(program: Program) -> None:
    (program.path / "file").write_bytes(b"")
    queue = PersistentQueue(b"work", program.path / "file", program.reactor)
    with pytest.raises(StorageError, match="cannot be used"):
        program.reactor.result(queue.setup())


def test_unreadable_journal_is_an_error_and_the_folder_is_released(program: Program) -> None:
    add(program.queue(), b"one")
    program.stop()
    program.disk.fail("read", errno.EIO)
    queue = PersistentQueue(b"work", program.path / "queues", program.reactor, reserve_bytes=1, disk=program.disk)
    with pytest.raises(QueueFailed):
        program.reactor.result(queue.setup())
    assert queue.is_closed
    program.disk.mend()
    assert all_of(program.queue()) == [b"one"]


def test_cancelled_setup_completes_and_can_be_closed(program: Program) -> None:
    queue = PersistentQueue(b"work", program.path, program.reactor, reserve_bytes=1)
    setup = queue.setup()
    told = arrivals(setup)
    setup.cancel()
    assert isinstance(told[0], CancelledError)
    assert arrivals_after_settling(program, queue.close()) == [None]
    assert program.queue(where=".").add(b"one")


def test_close_during_setup_follows_it(program: Program) -> None:
    queue = PersistentQueue(b"work", program.path, program.reactor, reserve_bytes=1)
    told = [arrivals(queue.setup()), arrivals(queue.close())]
    program.reactor.settle()
    assert (told[1], queue.is_closed) == ([None], True)
    assert program.queue(where=".").add(b"one")


def test_unopened_queue_can_be_closed(program: Program) -> None:
    queue = PersistentQueue(b"work", program.path, program.reactor)
    assert arrivals(queue.close()) == [None]
    assert queue.is_closed


def test_close_makes_changes_safe_and_releases_the_folder(program: Program) -> None:
    queue = program.queue(SYNCED)
    add(queue, b"one")
    program.reactor.end_turn()
    add(queue, b"two")  # while the sync of the first is under way
    told = [arrivals(queue.safe()), arrivals(queue.close()), arrivals(queue.close())]
    assert queue.is_closed
    for action in (lambda: queue.add(b"three"), queue.remove, lambda: queue.confirm_remove(1)):
        with pytest.raises(StorageError, match="closed"):
            action()
    assert told == [[], [], []]
    program.reactor.settle()
    assert told == [[None], [None], [None]]
    assert arrivals(queue.safe()) == [None]
    assert all_of(program.queue()) == [b"one", b"two"]


def test_close_gives_waiters_none(program: Program, queue: PersistentQueue) -> None:
    queue.peek()
    waiting = [arrivals(queue.wait_remove()), arrivals(queue.wait_peek(100))]
    program.reactor.rightNow += 1
    waiting.append(arrivals(queue.wait_remove(50)))  # it waits for the next turn
    program.reactor.result(queue.close())
    assert waiting == [[None], [None], [None]]


def test_close_reports_a_loss_and_releases_the_folder(program: Program) -> None:
    queue = program.queue(SYNCED)
    program.disk.fail("sync", errno.EIO, times=1)
    add(queue, b"lost")
    with pytest.raises(QueueFailed):
        program.reactor.result(queue.close())
    assert all_of(program.queue()) == []


# Several queues and folders.


def test_queues_of_a_folder_have_separate_settings_and_items(program: Program) -> None:
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


MOVES = QueueSettings(expire_to_queue=b"late", max_age_ms=1000)


def expire_an_item(program: Program, queue: FolderQueue) -> None:
    """Add an item, and start its move after its maximum age."""
    add(queue, b"one")
    program.reactor.pass_time(2)
    assert queue.remove() is None


def test_expired_items_move_to_a_queue_of_the_same_folder(program: Program) -> None:
    folder = program.folder(settings_for=lambda name: MOVES if name == b"work" else QueueSettings())
    work = folder.queue(b"work")
    waiting = arrivals(folder.queue(b"late").wait_remove())
    expire_an_item(program, work)
    program.reactor.settle()
    assert (waiting, work.open_reads) == ([b"one"], 0)


def test_expired_items_move_to_the_queue_that_lookup_finds(program: Program) -> None:
    elsewhere = program.queue(where="elsewhere")
    asked: list[bytes] = []

    def lookup(name: bytes) -> FolderQueue:
        asked.append(name)
        return elsewhere

    queue = program.queue(MOVES, lookup=lookup)
    expire_an_item(program, queue)
    program.reactor.settle()
    assert (asked, queue.open_reads) == ([b"late"], 0)
    assert all_of(elsewhere) == [b"one"]


@pytest.mark.parametrize("how", ["there is none", "it is closed"])
def test_move_to_an_unknown_queue_waits_until_it_is_found(program: Program, how: str) -> None:
    closed = program.queue(where="closed")
    program.reactor.result(closed.close())
    found: dict[bytes, FolderQueue] = {} if how == "there is none" else {b"late": closed}
    queue = program.queue(evolve(MOVES, sync_journal_ms=0), lookup=found.get)
    add(queue, b"one")
    program.reactor.pass_time(2)
    with capturedLogs() as logged:
        assert queue.remove() is None
        program.reactor.settle()
    assert [event["target"] for event in logged if event["log_level"] is LogLevel.error] == ["late"]
    assert (queue.items, queue.open_reads) == (0, 1)
    found[b"late"] = program.queue(where="elsewhere")
    program.reactor.pass_time(1)
    assert (queue.open_reads, all_of(found[b"late"])) == (0, [b"one"])


def test_close_finishes_a_move(program: Program) -> None:
    elsewhere = program.queue(SYNCED, where="elsewhere")
    queue = program.queue(MOVES, lookup=lambda name: elsewhere)
    expire_an_item(program, queue)
    program.reactor.end_turn()
    program.reactor.result(queue.close())
    assert (all_of(elsewhere), all_of(program.queue())) == ([b"one"], [])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (QueueSettings(error_queue="failed"), "error_queue (errorQueue) must be bytes or None, not 'failed'"),  # type: ignore[arg-type]
        (QueueSettings(max_age_ms="1d"), "max_age_ms (maxAge) must be int or None, not '1d'"),  # type: ignore[arg-type]
        (QueueSettings(max_items=True), "max_items (maxItems) must be int or None, not True"),
        (QueueSettings(error_queue=b"work"), "the items of queue b'work' would move to itself"),
    ],
)
def test_invalid_settings_are_rejected(settings: QueueSettings, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(says)):
        PersistentQueue(b"work", "/nonexistent", None, settings=settings)


def test_queue_name_must_be_bytes() -> None:
    with pytest.raises(TypeError, match="a queue's name must be bytes, such as b'work', not 'work'"):
        PersistentQueue("work", "/nonexistent", None)  # type: ignore[arg-type]
