"""`continue_` confirms an open read and puts an item with one record: both happen, or neither."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zope.interface.verify import verifyObject

from kestrel.errors import ItemTooLarge, QueueFailed, StorageRefused
from kestrel.journal.fileset import files_of
from kestrel.storage.interfaces import IContinue, IQueueStorage
from kestrel.testing.contract.backend import DeferredOutcome, StorageUnderTest, new_folder
from kestrel.testing.contract.requirements import ADD_MS, huge_item
from kestrel.testing.contract.suite import StorageContract
from tests.journal.handwritten import addx, continue_, open_
from tests.storage import test_journal, test_memory

SMALL = {
    "max_memory_size_bytes": 64,
    "default_journal_size_bytes": 256,
    "max_journal_size_bytes": 1024,
    "min_journal_compact_delay_ms": None,
}

Start = Callable[..., StorageUnderTest]


@pytest.fixture(params=[test_journal.TestJournal, test_memory.TestMemory], ids=["journal", "memory"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageUnderTest]:
    contract: StorageContract = request.param()
    subject = StorageUnderTest(contract, tmp_path / "queues")
    yield subject
    subject.end()


@pytest.fixture
def start_journal(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a journal storage with these settings for all queues."""
    started: list[StorageUnderTest] = []

    def start(**settings: Any) -> StorageUnderTest:
        started.append(StorageUnderTest(test_journal.TestJournal(), tmp_path / "queues", **settings))
        return started[-1]

    yield start
    for subject in started:
        subject.end()


def opened(subject: StorageUnderTest, *items: bytes) -> tuple[IQueueStorage, int]:
    """Return a queue with these items behind an open read, and the xid of the read."""
    queue = subject.queue()
    subject.put(queue, b"open", *items)
    return queue, subject.open(queue).xid


def continue_read(queue: IQueueStorage, xid: int, data: bytes, add_ms: int = ADD_MS, expiry_ms: int = 0) -> None:
    IContinue(queue).continue_(xid, data, add_ms, expiry_ms)


# All backends with `IContinue`.


def test_read_ends_and_item_is_put_at_the_tail(subject: StorageUnderTest) -> None:
    queue, xid = opened(subject, b"other")
    assert verifyObject(IContinue, queue)
    continue_read(queue, xid, b"next", ADD_MS, ADD_MS + 1)
    assert (queue.items, queue.bytes, queue.open_reads) == (2, 9, 0)
    assert not queue.is_open(xid)
    other, item = subject.take_all(queue)
    assert (other.data, item.data, item.add_ms, item.expiry_ms) == (b"other", b"next", ADD_MS, ADD_MS + 1)


def test_unknown_xid_only_puts_the_item(subject: StorageUnderTest) -> None:
    queue, xid = opened(subject)
    continue_read(queue, xid + 1, b"next")
    assert (subject.take_all_data(queue), queue.open_reads) == ([b"next"], 1)


def test_item_that_is_too_large_changes_nothing(subject: StorageUnderTest) -> None:
    queue, xid = opened(subject)
    with pytest.raises(ItemTooLarge):
        continue_read(queue, xid, huge_item())
    assert (queue.items, queue.open_reads) == (0, 1)


def test_deleted_queue_refuses_continue(subject: StorageUnderTest) -> None:
    queue, xid = opened(subject)
    subject.storage.delete(queue)
    with pytest.raises(QueueFailed):
        continue_read(queue, xid, b"next")


# The journal.


def files_in(subject: StorageUnderTest) -> list[bytes]:
    """Return the contents of the files of "work", in replay order."""
    names = files_of(b"work", [path.name.encode() for path in subject.folder.iterdir()]).in_replay_order()
    return [(subject.folder / name.decode()).read_bytes() for name in names]


def commit(subject: StorageUnderTest, queue: IQueueStorage) -> None:
    """Commit the queue, and run all jobs."""
    subject.commit(queue)
    subject.run_threads()


def test_continue_is_one_record_of_kestrels(start_journal: Start) -> None:
    subject = start_journal()
    queue, xid = opened(subject)
    continue_read(queue, xid, b"next")
    subject.commit(queue)
    assert files_in(subject) == [addx(b"open", ADD_MS) + open_(xid) + continue_(xid, b"next", ADD_MS)]


@pytest.mark.parametrize("add_ms", [7, ADD_MS + 7, -1, 1 << 50])
def test_restart_finds_the_item_for_any_add_time(start_journal: Start, add_ms: int) -> None:
    subject = start_journal()
    queue, xid = opened(subject)
    continue_read(queue, xid, b"next", add_ms)
    subject.put(queue, b"behind")
    head = subject.peek(queue)
    subject = subject.restarted()
    found = subject.take_all(subject.queue())
    assert head is not None
    assert [item.data for item in found] == [b"next", b"behind"]
    assert found[0].add_ms == head.add_ms


def test_continue_on_a_full_disk_changes_nothing(start_journal: Start) -> None:
    subject = start_journal()
    queue, _ = opened(subject)
    commit(subject, queue)
    subject.faulty_disk.room = 0
    subject.put(queue, b"more than the reserve" * 10)
    for _, outcome in subject.storage.commit([queue]):
        DeferredOutcome(outcome)
    subject.run_threads()
    queue = subject.reopened()
    assert subject.storage.refusal is not None
    xid = subject.open(queue).xid
    with pytest.raises(StorageRefused):
        continue_read(queue, xid, b"next")
    assert (queue.items, queue.open_reads) == (0, 1)


def test_queue_that_refuses_puts_refuses_continue(start_journal: Start) -> None:
    subject = start_journal(sync_journal_ms=1)
    queue, xid = opened(subject)
    commit(subject, queue)
    subject.faulty_disk.fail("sync", errno.EIO, times=1)
    subject.put(queue, b"second")
    subject.storage.commit([queue])
    subject.clock.advance(1)
    subject.threads.run_one()
    with pytest.raises(StorageRefused):
        subject.put(queue, b"third")
    with pytest.raises(StorageRefused):
        continue_read(queue, xid, b"next")
    assert (queue.items, queue.open_reads) == (1, 1)


def test_crash_in_the_record_leaves_both_changes_or_neither(start_journal: Start) -> None:
    subject = start_journal()
    queue, xid = opened(subject)
    subject.commit(queue)
    (before,) = files_in(subject)
    continue_read(queue, xid, b"next")
    subject.commit(queue)
    (after,) = files_in(subject)
    for size in range(len(before), len(after) + 1):
        folder = new_folder(subject.folder)
        shutil.copytree(subject.folder, folder)
        (folder / "work").write_bytes(after[:size])
        left = StorageUnderTest(subject.backend, folder)
        assert left.take_all_data(left.queue()) == ([b"next"] if size == len(after) else [b"open"])
        left.close()


def test_unwritten_items_behind_the_window_are_read_from_memory(start_journal: Start) -> None:
    subject = start_journal(max_memory_size_bytes=1)
    queue = subject.queue()
    subject.put(queue, *[b"first %d" % number for number in range(4)])
    for number in range(4):
        item = subject.open(queue)
        assert item.data == b"first %d" % number
        continue_read(queue, item.xid, b"next %d" % number)
        subject.put(queue, b"other %d" % number)
    assert subject.faulty_disk.calls.count("write") == 0
    expected = [b"%b %d" % (kind, number) for number in range(4) for kind in (b"next", b"other")]
    assert subject.take_all_data(queue) == expected


@pytest.mark.parametrize("is_written", [False, True])
def test_first_item_behind_the_window_may_be_a_continue(start_journal: Start, is_written: bool) -> None:
    subject = start_journal(max_memory_size_bytes=1)
    queue, xid = opened(subject)
    subject.put(queue, b"fills the window")
    continue_read(queue, xid, b"next")
    subject.put(queue, b"other")
    if is_written:
        subject.commit(queue)
    assert (queue.mem_items, queue.items) == (1, 3)
    assert subject.take_all_data(queue) == [b"fills the window", b"next", b"other"]
