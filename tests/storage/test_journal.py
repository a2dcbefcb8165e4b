"""The journal backend keeps the storage contract, and its files are Kestrel's."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.errors import BadQueueName, QueueFailed
from kestrel.journal.fileset import erase_deleted
from kestrel.storage.interfaces import InThread, IQueueStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.registry import JournalStorageFactory
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.requirements import ADD_MS, NAMES
from kestrel.testing.contract.suite import StorageContract
from kestrel.testing.threads import SteppedThreads
from tests.journal.handwritten import REMOVE, REMOVE_TENTATIVE, add_xid, addx, confirm, open_, save_xid, unremove
from tests.journal.restarts import NOW_MS
from tests.sample import examples
from tests.storage.folder_tests import FolderTests


def put_records(*items: bytes) -> bytes:
    """Return the records of items that `StorageUnderTest.put` puts."""
    return b"".join(addx(data, ADD_MS) for data in items)


def committed(subject: StorageUnderTest, *items: bytes, name: bytes = b"work", **settings: Any) -> IQueueStorage:
    """Put items to a queue, commit it, and return it."""
    queue = subject.queue(name, **settings)
    subject.put(queue, *items)
    subject.commit(queue)
    return queue


class TestJournal(FolderTests, StorageContract):
    factory = JournalStorageFactory()
    max_examples = examples(60)
    has_window = True

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> JournalStorage:
        return JournalStorage(
            os.fsencode(folder), clock, in_thread, reserve_bytes=100, now_ms=lambda: NOW_MS, disk=self.disk
        )

    # The contents of the files.

    def test_changes_are_written_as_kestrels_records(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c")
        queue.take(False)
        first, second = queue.take(True).xid, queue.take(True).xid
        queue.confirm([first])
        queue.put_back([second], True)
        subject.commit(queue)
        changes = [REMOVE, open_(first), open_(second), confirm(first), unremove(second)]
        assert (subject.folder / "work").read_bytes() == put_records(b"a", b"b", b"c") + b"".join(changes)

    def test_nothing_is_written_before_the_commit(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        before = (subject.folder / "work").read_bytes()
        subject.commit(queue)
        assert (before, (subject.folder / "work").read_bytes()) == (b"", put_records(b"a"))

    def test_batch_is_one_write(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, *[b"a"] * 100)
        queue.take(True)
        self.disk.calls.clear()
        subject.commit(queue)
        assert self.disk.calls.count("write") == 1

    def test_clear_writes_a_remove_for_each_item(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"open", b"b", b"c")
        queue.take(True)
        subject.commit(queue)
        before = (subject.folder / "work").read_bytes()
        queue.clear()
        subject.commit(queue)
        assert (subject.folder / "work").read_bytes() == before + REMOVE * 2

    def test_stats_show_the_file_size(self, subject: StorageUnderTest) -> None:
        queue = committed(subject, b"four")
        assert (queue.disk_bytes, queue.stats["logsize"]) == (25, 25)

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_file_of_a_queue_is_named_as_in_kestrel(self, subject: StorageUnderTest, name: bytes) -> None:
        committed(subject, b"a", name=name)
        file_name = b"".join(bytes([byte]) if byte < 128 else chr(byte).encode() for byte in name)
        assert (subject.folder / file_name.decode()).read_bytes() == put_records(b"a")

    def test_name_too_long_for_a_file_is_refused(self, subject: StorageUnderTest) -> None:
        before = len(list(subject.folder.iterdir()))
        subject.queue(b"\xff" * 115)
        with pytest.raises(BadQueueName):
            subject.queue(b"\xff" * 116)
        assert len(list(subject.folder.iterdir())) == before + 1

    # Deletion and restarts.

    @pytest.mark.parametrize("is_killed", [False, True])
    def test_files_of_a_deleted_queue_are_erased(self, subject: StorageUnderTest, is_killed: bool) -> None:
        subject.storage.delete(committed(subject, b"a secret"))
        if is_killed:
            subject = subject.killed()
            assert subject.loaded == {}
        subject.threads.run_all()
        paths = [path for path in subject.folder.rglob("*") if path.is_file()]
        assert [path for path in paths if b"a secret" in path.read_bytes()] == []

    def test_start_after_a_crash_records_that_open_reads_go_back(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        first, second = queue.take(True).xid, queue.take(True).xid
        subject.commit(queue)
        before = (subject.folder / "work").read_bytes()
        again = subject.killed()
        committed(again, b"c")
        put_back = b"".join(save_xid(0) + unremove(xid) for xid in (second, first))
        assert (again.folder / "work").read_bytes() == before + put_back + put_records(b"c")

    def test_stop_records_that_open_reads_go_back(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        xid = queue.take(True).xid
        subject.restarted().close()
        records = put_records(b"a") + open_(xid) + save_xid(0) + unremove(xid)
        assert (subject.folder / "work").read_bytes() == records

    def test_commit_without_sync_journal_never_syncs(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        assert list(subject.storage.commit([queue])) == []
        subject.clock.advance(3600)
        subject.threads.run_all()
        assert "sync" not in self.disk.calls

    # Unusual files and folders.

    def test_records_of_releases_before_2_1_are_read(self, subject: StorageUnderTest) -> None:
        subject.close()
        contents = add_xid(6, b"open", ADD_MS) + REMOVE_TENTATIVE + save_xid(9)
        contents += put_records(b"a") + REMOVE_TENTATIVE + put_records(b"b")
        (subject.folder / "work").write_bytes(contents)
        subject = subject.restarted()
        queue = subject.queue()
        assert queue.take(opened=True).xid == 11
        subject.commit(queue)
        put_back = save_xid(0) + unremove(10) + save_xid(0) + unremove(6)
        assert (subject.folder / "work").read_bytes() == contents + put_back + open_(11)
        again = subject.restarted()
        assert again.take_all_data(again.queue()) == [b"open", b"a", b"b"]

    def test_unreadable_queue_is_read_again_on_use(self, tmp_path: Path) -> None:
        folder = tmp_path / "queues"
        folder.mkdir()
        (folder / "a").write_bytes(put_records(b"in a"))
        threads = SteppedThreads()
        storage = self.make(folder, Clock(), threads)
        self.disk.fail("read", errno.EIO, times=2)
        loaded: list[dict[bytes, object]] = []
        storage.start(lambda name: QueueSettings()).addCallback(loaded.append)
        threads.run_all()
        assert isinstance(loaded[0][b"a"], Failure)
        with pytest.raises(QueueFailed):
            storage.queue(b"a", QueueSettings())
        item = storage.queue(b"a", QueueSettings()).take(False)
        assert item is not None and item.data == b"in a"
        storage.close()
        threads.run_all()

    def test_foreign_files_are_ignored_and_kept(self, subject: StorageUnderTest) -> None:
        subject.close()
        foreign = {"work.bak": b"x", ".hidden": b"\x01", "a~": b"", "work.1.pack.old": b"y", "what ever": b"z"}
        sixteen_digits = "2026010112000000"
        foreign |= {f"work.{sixteen_digits}": b"v", f"work~~{sixteen_digits}": b"w", "+": b"", "a" * 201: b""}
        for name, contents in foreign.items():
            (subject.folder / name).write_bytes(contents)
        (subject.folder / "sub").mkdir()
        assert subject.restarted().loaded == {}
        assert {name: (subject.folder / name).read_bytes() for name in foreign} == foreign

    def test_temporary_file_is_erased_and_is_no_queue(self, subject: StorageUnderTest) -> None:
        subject.close()
        (subject.folder / "work~~1700000000000").write_bytes(put_records(b"never published"))
        assert subject.restarted().loaded == {}
        assert [path.name for path in subject.folder.iterdir() if path.is_file()] == []


def test_resumed_deletion_spares_the_new_queue_after_a_clock_step(tmp_path: Path) -> None:
    """The files of a queue are numbered by time, and a deletion erases all files below its own number."""

    def started(folder: Path, now_ms: int) -> tuple[JournalStorage, SteppedThreads, SteppedThreads]:
        threads, erasing = SteppedThreads(), SteppedThreads()

        def in_thread(function: Callable[..., Any], *arguments: object) -> Deferred[Any]:
            return (erasing if function is erase_deleted else threads)(function, *arguments)

        storage = JournalStorage(bytes(folder), Clock(), in_thread, reserve_bytes=1, now_ms=lambda: now_ms)
        storage.start(lambda name: settings)
        threads.run_all()
        return storage, threads, erasing

    def fill(storage: JournalStorage, threads: SteppedThreads) -> IQueueStorage:
        queue = storage.queue(b"work", settings)
        for number in range(30):
            storage.put([queue], b"%02d" % number * 50, 1, 0)
            storage.commit([queue])
        threads.run_all()
        return queue

    settings = QueueSettings(default_journal_size_bytes=1000, max_memory_size_bytes=1000)
    storage, threads, _ = started(tmp_path / "before", NOW_MS)
    storage.delete(fill(storage, threads))
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    storage, threads, erasing = started(tmp_path / "after", NOW_MS - 3_600_000)
    fill(storage, threads)
    erasing.run_all()
    storage.close()
    threads.run_all()
    storage, _, _ = started(tmp_path / "after", NOW_MS)
    assert storage.queue(b"work", settings).items == 30


def test_contract_leaves_out_only_missing_capabilities() -> None:
    assert set(TestJournal.left_out.values()) == {
        "needs capability 'ranges'",
        "needs capability 'shared_fanout'",
        "needs the base class OnFaultyDatabase",
    }
