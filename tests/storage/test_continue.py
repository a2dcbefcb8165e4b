"""Confirm and add in one record: both or neither, and the item is one like any other, wherever it is read from."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from kestrel.config.model import QueueSettings
from kestrel.errors import ItemTooLarge, QueueFailed, StorageRefused
from kestrel.journal.fileset import files_of
from kestrel.storage.interfaces import IContinue, IQueueStorage
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.samples import ADD_MS, huge_item
from kestrel.testing.contract.suite import StorageContract
from kestrel.testing.faults import FaultyDisk, KillableDisk
from tests.journal.handwritten import addx, continue_, open_
from tests.journal.reference import EIGHT, items_after, read
from tests.storage import test_journal, test_memory
from tests.storage.storage_harness import RunningStorage
from tests.storage.test_journal import NOW_MS

TINY = QueueSettings(
    max_memory_size_bytes=64,
    default_journal_size_bytes=256,
    max_journal_size_bytes=1024,
    min_journal_compact_delay_ms=None,
)


# What every backend that has it promises.


@pytest.fixture(params=[test_journal.TestJournal, test_memory.TestMemory], ids=["journal", "memory"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageUnderTest]:
    contract: StorageContract = request.param()
    subject = StorageUnderTest(contract, tmp_path / "queues")
    yield subject
    subject.close()


def opened(subject: StorageUnderTest, *items: bytes) -> tuple[IQueueStorage, int]:
    """A queue with these items behind one that is open, and its xid."""
    queue = subject.queue()
    subject.put(queue, b"open", *items)
    item = queue.take(True)
    assert item is not None
    return queue, item.xid


def test_the_read_is_ended_and_the_item_stands_at_the_tail(subject: StorageUnderTest) -> None:
    queue, xid = opened(subject, b"other")
    assert verifyObject(IContinue, queue)
    IContinue(queue).continue_(xid, b"next", ADD_MS, ADD_MS + 1)
    assert (queue.items, queue.bytes, queue.open_reads) == (2, 9, 0)
    assert not queue.is_open(xid)
    other, item = queue.take(False), queue.take(False)
    assert other is not None and item is not None
    assert (other.data, item.data, item.add_ms, item.expiry_ms) == (b"other", b"next", ADD_MS, ADD_MS + 1)


def test_of_a_number_that_is_no_open_read_only_the_item_is_added(subject: StorageUnderTest) -> None:
    queue, xid = opened(subject)
    IContinue(queue).continue_(xid + 1, b"next", ADD_MS, 0)
    assert (subject.take_all_data(queue), queue.open_reads) == ([b"next"], 1)


def test_an_item_that_is_too_large_changes_nothing(subject: StorageUnderTest) -> None:
    queue, xid = opened(subject)
    with pytest.raises(ItemTooLarge):
        IContinue(queue).continue_(xid, huge_item(), ADD_MS, 0)
    assert (queue.items, queue.open_reads) == (0, 1)


def test_a_queue_that_was_deleted_takes_nothing(subject: StorageUnderTest) -> None:
    queue, xid = opened(subject)
    subject.storage.delete(queue)
    with pytest.raises(QueueFailed):
        IContinue(queue).continue_(xid, b"next", ADD_MS, 0)


# What the journal makes of it.


class Journals:
    """Storages over one folder, one after the other, with the queue "work"."""

    def __init__(self, folder: Path, settings: QueueSettings) -> None:
        self.folder = folder
        self.settings = settings
        self.disk: FaultyDisk = KillableDisk()
        self._start()

    def _start(self) -> None:
        self.clock = Clock()
        self.running = RunningStorage(
            self.folder, lambda name: self.settings, clock=self.clock, disk=self.disk, now_ms=NOW_MS
        ).start()
        self.queue = self.running.storage.queue(b"work", self.settings)

    def put(self, data: bytes) -> None:
        self.running.storage.put([self.queue], data, ADD_MS, 0)

    def open(self) -> int:
        """The xid of the head, which is waited for."""
        item = self.running.head(self.queue, lambda: self.queue.take(True))
        assert item is not None
        self.last_data = item.data
        return item.xid

    def continue_(self, xid: int, data: bytes) -> None:
        IContinue(self.queue).continue_(xid, data, ADD_MS, 0)

    def commit(self) -> None:
        """Commit, and let everything happen that it leads to."""
        for _, outcome in self.running.storage.commit([self.queue]):
            outcome.addErrback(lambda failure: None)
        self.running.run_all()

    def restart(self) -> None:
        """Stop, and start over what is there."""
        self.running.close()
        self._start()

    def drained(self) -> list[bytes]:
        """Every item, taken."""
        return [item.data for item in self.running.drain(self.queue)]

    def files(self) -> list[bytes]:
        """The queue's files, in replay order."""
        names = files_of(b"work", [path.name.encode() for path in self.folder.iterdir()]).in_replay_order()
        return [(self.folder / name.decode()).read_bytes() for name in names]


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[Journals]:
    journals = Journals(tmp_path / "queues", QueueSettings())
    yield journals
    journals.running.close()


def test_it_is_one_record_of_kestrels(journals: Journals) -> None:
    journals.put(b"first")
    journals.continue_(journals.open(), b"next")
    journals.commit()
    assert journals.files() == [addx(b"first", ADD_MS) + open_(1) + continue_(1, b"next", ADD_MS)]


@pytest.mark.parametrize("add_ms", [7, ADD_MS + 7, -1, 1 << 50])
def test_whatever_the_clock_shows_a_restart_finds_the_item_and_what_follows(journals: Journals, add_ms: int) -> None:
    journals.put(b"first")
    xid = journals.open()
    IContinue(journals.queue).continue_(xid, b"next", add_ms, 0)
    journals.put(b"behind")
    head = journals.queue.peek()
    journals.commit()
    journals.restart()
    again = journals.queue.peek()
    assert head is not None and again is not None
    assert (again.data, again.add_ms) == (b"next", head.add_ms)
    assert journals.drained() == [b"next", b"behind"]


def test_on_a_full_disk_it_changes_nothing(journals: Journals) -> None:
    journals.put(b"first")
    xid = journals.open()
    journals.commit()
    journals.disk.room = 5
    journals.put(b"finds the disk full")
    journals.commit()
    journals.queue = journals.running.storage.queue(b"work", journals.settings)
    assert journals.running.storage.refusal is not None
    xid = journals.open()
    with pytest.raises(StorageRefused):
        journals.continue_(xid, b"next")
    assert (journals.queue.items, journals.queue.open_reads) == (0, 1)


def test_a_queue_that_takes_no_put_takes_this_neither(journals: Journals) -> None:
    journals.settings = QueueSettings(sync_journal_ms=1)
    journals.queue = journals.running.storage.queue(b"work", journals.settings)
    journals.put(b"first")
    xid = journals.open()
    journals.commit()
    journals.disk.fail("sync", errno.EIO, times=1)
    journals.put(b"second")
    journals.running.storage.commit([journals.queue])
    journals.clock.advance(1)
    journals.running.threads.run_one()
    with pytest.raises(StorageRefused):
        journals.put(b"third")
    with pytest.raises(StorageRefused):
        journals.continue_(xid, b"next")
    assert (journals.queue.items, journals.queue.open_reads) == (1, 1)
    journals.running.run_all()


def test_of_a_write_that_was_cut_short_at_any_byte_both_have_happened_or_neither(
    journals: Journals, tmp_path: Path
) -> None:
    journals.put(b"first")
    xid = journals.open()
    journals.commit()
    (before,) = journals.files()
    journals.continue_(xid, b"next")
    journals.commit()
    (after,) = journals.files()
    for size in range(len(before), len(after) + 1):
        folder = tmp_path / f"cut at {size}"
        shutil.copytree(journals.folder, folder)
        (folder / "work").write_bytes(after[:size])
        left = Journals(folder, QueueSettings())
        assert left.drained() == ([b"next"] if size == len(after) else [b"first"])
        left.running.close()


@pytest.mark.parametrize("commits_every", [1, 7, 100])
def test_a_queue_beyond_its_memory_goes_on_with_its_items_in_order_over_rotations_packs_and_restarts(
    tmp_path: Path, commits_every: int
) -> None:
    journals = Journals(tmp_path / "queues", TINY)
    waiting = [b"step 0 of %d" % number for number in range(50)]
    for data in waiting:
        journals.put(data)
    journals.commit()
    packs = continued = 0
    for turn in range(3000):
        xid = journals.open()
        assert journals.last_data == waiting.pop(0)
        words = journals.last_data.split()
        words[1] = b"%d" % (int(words[1]) + 1)
        waiting.append(b" ".join(words))
        journals.continue_(xid, waiting[-1])
        if turn % commits_every == 0:
            journals.commit()
            continued += count_of_continues(journals.files())
        if turn % 500 == 499:
            packs += journals.queue.stats["journal_packs"] + journals.queue.stats["journal_rewrites"]
            assert journals.queue.mem_items < journals.queue.items
            journals.commit()
            found = items_after(*journals.files(), now_ms=NOW_MS)
            assert [data for data, _, _ in found] == waiting
            journals.restart()
    assert packs > 10
    assert continued > 0
    assert journals.drained() == waiting
    journals.running.close()


def count_of_continues(files: list[bytes]) -> int:
    """How many items stand in these files as they were continued with."""
    return sum(record.opcode == EIGHT for contents in files for record in read(contents).records)


def test_what_is_behind_the_window_and_not_written_yet_is_read_from_memory(tmp_path: Path) -> None:
    journals = Journals(tmp_path / "queues", QueueSettings(max_memory_size_bytes=1))
    for number in range(4):
        journals.put(b"first %d" % number)
    for number in range(4):
        item = journals.running.head(journals.queue, lambda: journals.queue.take(True))
        assert item is not None and item.data == b"first %d" % number
        journals.continue_(item.xid, b"next %d" % number)
        journals.put(b"other %d" % number)
    assert journals.disk.calls.count("write") == 0
    expected = [b"%b %d" % (kind, number) for number in range(4) for kind in (b"next", b"other")]
    assert journals.drained() == expected
    journals.running.close()


@pytest.mark.parametrize("is_written", [False, True])
def test_the_first_item_behind_the_window_may_be_one(tmp_path: Path, is_written: bool) -> None:
    journals = Journals(tmp_path / "queues", QueueSettings(max_memory_size_bytes=1))
    journals.put(b"first")
    xid = journals.open()
    journals.put(b"fills the window")
    journals.continue_(xid, b"next")
    journals.put(b"other")
    if is_written:
        journals.commit()
    assert (journals.queue.mem_items, journals.queue.items) == (1, 3)
    assert journals.drained() == [b"fills the window", b"next", b"other"]
    journals.running.close()
