"""Tests of a storage that keeps its queues in a folder: the start, and the open files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.errors import StorageError
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.suite import OnFaultyDisk
from kestrel.testing.threads import SteppedThreads
from tests.storage.conftest import AllowDescriptors

DESCRIPTORS = 12
"""The limit of the process. A quarter of it is for journal files."""
OPEN_FILES = 3


class FolderTests(OnFaultyDisk):
    """Tests to add to the contract suite of a backend."""

    def start(self, folder: Path) -> None:
        self.make(folder, Clock(), SteppedThreads()).start(lambda name: QueueSettings())

    def test_file_in_place_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError):
            self.start(tmp_path / "file")

    def test_failed_start_releases_the_folder(self, subject: StorageUnderTest) -> None:
        subject.close()
        self.disk.fail("list", errno.EIO, times=1)
        with pytest.raises(StorageError):
            self.start(subject.folder)
        assert subject.restarted().loaded == {}

    def test_files_of_idle_queues_are_closed_and_reopened(
        self, subject: StorageUnderTest, allow_descriptors: AllowDescriptors
    ) -> None:
        allow_descriptors(DESCRIPTORS)
        subject = subject.restarted()
        names = [b"q%d" % number for number in range(6)] + [b"q0+x", b"q0+y"]
        for turn in range(3):
            for name in names:
                queue = subject.queue(name)
                subject.put(queue, b"%b-%d" % (name, turn), b"taken")
                subject.get(queue)
                subject.commit(queue)
                assert len(self.disk.open_descriptors) <= OPEN_FILES
        again = subject.restarted()
        for name in names:
            items = [item for turn in range(3) for item in (b"%b-%d" % (name, turn), b"taken")]
            assert again.take_all_data(again.queue(name)) == items[3:]

    @pytest.mark.parametrize("sync_journal_ms", [0, 500])
    def test_syncs_keep_no_more_files_open_than_allowed(
        self, subject: StorageUnderTest, allow_descriptors: AllowDescriptors, sync_journal_ms: int
    ) -> None:
        allow_descriptors(DESCRIPTORS)
        subject = subject.restarted()
        queues = [subject.queue(b"q%d" % number, sync_journal_ms=sync_journal_ms) for number in range(10)]
        for queue in queues:
            subject.put(queue, b"a")
        subject.commit(*queues)
        subject.clock.advance(0.5)
        subject.threads.run_all()
        assert len(self.disk.open_descriptors) <= OPEN_FILES

    @pytest.mark.parametrize("is_deleted", [True, False], ids=["deletion", "close"])
    def test_deletion_and_close_leave_no_open_files(self, subject: StorageUnderTest, is_deleted: bool) -> None:
        queues = [subject.queue(name, sync_journal_ms=0) for name in (b"a", b"a+x", b"b")]
        for queue in queues:
            subject.put(queue, b"a", b"b")
            subject.get(queue)
        subject.commit(*queues)
        if is_deleted:
            for queue in reversed(queues):
                subject.storage.delete(queue)
            subject.commit(*queues)
            subject.threads.run_all()
        else:
            subject.close()
        assert self.disk.open_descriptors == set()
