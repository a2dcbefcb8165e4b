"""The journal backend keeps the storage contract, and outlives its process."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.errors import BadQueueName, BadStorageArgument, FolderInUse, QueueFailed, StorageError
from kestrel.journal.deletion import erase_deleted
from kestrel.storage.interfaces import InThread, IQueueStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.registry import JournalStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.samples import NAMES
from kestrel.testing.contract.suite import OnFaultyDisk, StorageContract
from kestrel.testing.threads import SteppedThreads
from tests.sample import examples
from tests.storage.conftest import AllowDescriptors

NOW_MS = 1_700_003_600_000

ADDX_AT_ADD_MS = b"\x02%c\x00\x00\x00\x00\x68\xe5\xcf\x8b\x01\x00\x00" + bytes(8)
"""An ADDX header as the format document has it: opcode, i32 size, i64 add time, i64 expiry (none)."""


def addx(data: bytes) -> bytes:
    """The record of a put at ADD_MS, byte by byte."""
    return ADDX_AT_ADD_MS % (16 + len(data)) + data


def take_all_data(queue: IQueueStorage) -> list[bytes]:
    """The data of every item of a queue, all of which is in memory, taken for good."""
    return [item.data for item in iter(lambda: queue.take(False), None)]


class TestJournal(OnFaultyDisk, StorageContract):
    factory = JournalStorageFactory()
    max_examples = examples(60)
    has_window = True

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> JournalStorage:
        return JournalStorage(
            str(folder).encode(), clock, in_thread, reserve_bytes=100, now_ms=lambda: NOW_MS, disk=self.disk
        )

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "queues"

    def restarted(self, subject: StorageUnderTest, folder: Path) -> StorageUnderTest:
        """Closed and opened again."""
        subject.close()
        return self.opened(folder)

    def crashed(self, folder: Path) -> StorageUnderTest:
        """Another storage over what the files hold now; the first one is simply dropped."""
        left_behind = folder.with_name("left-behind")
        shutil.copytree(folder, left_behind)
        return self.opened(left_behind)

    @pytest.fixture(autouse=True)
    def _close_what_was_opened(self) -> Iterator[None]:
        self.others: list[StorageUnderTest] = []
        yield
        for subject in self.others:
            subject.close()

    def opened(self, folder: Path) -> StorageUnderTest:
        subject = StorageUnderTest(self, folder)
        self.others.append(subject)
        return subject

    # What is in the files.

    def test_what_is_done_stands_in_the_file_as_kestrels_records(self, subject: StorageUnderTest, folder: Path) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b", b"c")
        queue.take(False)
        first, second = queue.take(True).xid, queue.take(True).xid
        queue.confirm([first])
        queue.put_back([second], True)
        subject.commit(queue)
        assert (folder / "work").read_bytes() == b"".join(
            [
                addx(b"a"),
                addx(b"b"),
                addx(b"c"),
                b"\x01",
                b"\x09" + first.to_bytes(4, "little"),
                b"\x09" + second.to_bytes(4, "little"),
                b"\x06" + first.to_bytes(4, "little"),
                b"\x05" + second.to_bytes(4, "little"),
            ]
        )

    def test_nothing_is_written_before_the_commit(self, subject: StorageUnderTest, folder: Path) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        before = (folder / "work").read_bytes()
        subject.commit(queue)
        assert (before, (folder / "work").read_bytes()) == (b"", addx(b"a"))

    def test_a_batch_is_one_write(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, *[b"a"] * 100)
        queue.take(True)
        self.disk.calls.clear()
        subject.commit(queue)
        assert self.disk.calls.count("write") == 1

    def test_a_clear_is_one_remove_for_each_item(self, subject: StorageUnderTest, folder: Path) -> None:
        queue = subject.queue()
        subject.put(queue, b"open", b"b", b"c")
        queue.take(True)
        subject.commit(queue)
        before = len((folder / "work").read_bytes())
        queue.clear()
        subject.commit(queue)
        assert (folder / "work").read_bytes()[before:] == b"\x01\x01"

    def test_the_file_sizes_are_told(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"four")
        subject.commit(queue)
        assert (queue.disk_bytes, queue.stats["logsize"]) == (25, 25)

    @pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
    def test_a_queue_is_kept_in_a_file_named_as_kestrel_names_it(
        self, subject: StorageUnderTest, folder: Path, name: bytes
    ) -> None:
        queue = subject.queue(name)
        subject.put(queue, b"a")
        subject.commit(queue)
        file_name = b"".join(bytes([byte]) if byte < 128 else chr(byte).encode() for byte in name)
        assert (folder / file_name.decode()).read_bytes() == addx(b"a")

    def test_a_name_too_long_for_a_file_name_is_refused_and_makes_no_file(
        self, subject: StorageUnderTest, folder: Path
    ) -> None:
        before = sorted(folder.iterdir())
        subject.queue(b"\xff" * 115)
        with pytest.raises(BadQueueName):
            subject.queue(b"\xff" * 116)
        assert len(sorted(folder.iterdir())) == len(before) + 1

    # Restarts.

    def test_a_deleted_queues_file_is_erased(self, subject: StorageUnderTest, folder: Path) -> None:
        queue = subject.queue()
        subject.put(queue, b"a secret")
        subject.commit(queue)
        subject.storage.delete(queue)
        subject.threads.run_all()
        left = [path for path in folder.rglob("*") if path.is_file() and b"a secret" in path.read_bytes()]
        assert left == []

    def test_a_file_that_a_crash_kept_from_being_erased_is_erased_at_the_start(
        self, subject: StorageUnderTest, folder: Path
    ) -> None:
        queue = subject.queue()
        subject.put(queue, b"a secret")
        subject.commit(queue)
        subject.storage.delete(queue)
        again = self.crashed(folder)
        again.threads.run_all()
        left_behind = folder.with_name("left-behind")
        left = [path for path in left_behind.rglob("*") if path.is_file() and b"a secret" in path.read_bytes()]
        assert (again.loaded, left) == ({}, [])

    @pytest.mark.parametrize("half", [0.25, 0.5, 0.75])
    def test_a_batch_cut_short_by_a_crash_loses_a_suffix_only(
        self, subject: StorageUnderTest, folder: Path, half: float
    ) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        subject.commit(queue)
        subject.put(queue, b"b", b"c", b"d")
        queue.take(False)
        subject.commit(queue)
        contents = (folder / "work").read_bytes()
        (folder / "work").write_bytes(contents[: len(addx(b"a")) + int(half * 3 * len(addx(b"b")))])
        history = [[b"a"], [b"a", b"b"], [b"a", b"b", b"c"]]
        assert take_all_data(self.crashed(folder).queue()) == history[int(half * 3)]

    def test_open_reads_go_back_in_the_file_too_before_anything_else_is_recorded(
        self, subject: StorageUnderTest, folder: Path
    ) -> None:
        queue = subject.queue()
        subject.put(queue, b"a", b"b")
        first, second = queue.take(True).xid, queue.take(True).xid
        subject.commit(queue)
        before = (folder / "work").read_bytes()
        again = self.crashed(folder)
        again.put(again.queue(), b"c")
        again.commit(again.queue())
        unremove = [b"\x04\0\0\0\0\x05" + xid.to_bytes(4, "little") for xid in (second, first)]
        after = (folder.with_name("left-behind") / "work").read_bytes()
        assert after == before + b"".join(unremove) + addx(b"c")

    def test_open_reads_are_back_in_the_file_when_the_server_stops(
        self, subject: StorageUnderTest, folder: Path
    ) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        xid = queue.take(True).xid
        again = self.restarted(subject, folder)
        again.close()
        record = b"\x09%b\x04\0\0\0\0\x05%b" % (xid.to_bytes(4, "little"), xid.to_bytes(4, "little"))
        assert (folder / "work").read_bytes() == addx(b"a") + record

    def test_close_writes_what_was_not_committed(self, subject: StorageUnderTest, folder: Path) -> None:
        subject.put(subject.queue(), b"a")
        subject.close()
        assert (folder / "work").read_bytes() == addx(b"a")

    # Syncs.

    def test_a_commit_with_sync_journal_0_is_pending_until_it_is_on_the_medium(
        self, subject: StorageUnderTest, folder: Path
    ) -> None:
        queue = subject.queue(sync_journal_ms=0)
        subject.put(queue, b"a")
        ((group, outcome),) = subject.storage.commit([queue])
        fired: list[object] = []
        outcome.addBoth(fired.append)
        assert (list(group), fired, self.on_medium(folder)) == ([queue], [], {})
        subject.threads.run_all()
        assert (fired, self.on_medium(folder)) == ([None], {"work": addx(b"a")})

    def test_a_commit_with_sync_journal_never_pends_on_nothing(self, subject: StorageUnderTest) -> None:
        queue = subject.queue()
        subject.put(queue, b"a")
        assert list(subject.storage.commit([queue])) == []
        subject.clock.advance(3600)
        subject.threads.run_all()
        assert "sync" not in self.disk.calls

    def test_a_commit_with_a_period_is_on_the_medium_when_the_period_is_over(
        self, subject: StorageUnderTest, folder: Path
    ) -> None:
        queue = subject.queue(sync_journal_ms=500)
        subject.put(queue, b"a")
        assert list(subject.storage.commit([queue])) == []
        subject.clock.advance(0.4)
        subject.put(queue, b"b")
        subject.commit(queue)
        assert "sync" not in self.disk.calls
        subject.clock.advance(0.1)
        subject.threads.run_all()
        assert self.on_medium(folder) == {"work": addx(b"a") + addx(b"b")}

    def test_each_period_is_synced_anew(self, subject: StorageUnderTest, folder: Path) -> None:
        queue = subject.queue(sync_journal_ms=500)
        for data in (b"a", b"b", b"c"):
            subject.put(queue, data)
            subject.commit(queue)
            subject.clock.advance(0.5)
            subject.threads.run_all()
        assert self.on_medium(folder) == {"work": addx(b"a") + addx(b"b") + addx(b"c")}

    def test_an_orderly_stop_syncs_the_queues_that_promise_it(self, subject: StorageUnderTest, folder: Path) -> None:
        queue = subject.queue(sync_journal_ms=500)
        subject.put(queue, b"a")
        subject.close()
        assert self.on_medium(folder) == {"work": addx(b"a")}

    def on_medium(self, folder: Path) -> dict[str, bytes]:
        """What a power failure would leave of the queue folder's files now."""
        copy = folder.with_name("medium")
        shutil.rmtree(copy, ignore_errors=True)
        self.disk.medium.copy(str(folder).encode(), str(copy).encode())
        return {path.name: path.read_bytes() for path in copy.iterdir()}

    # Bad queues and bad folders.

    def test_a_queue_with_records_of_releases_before_2_1_is_served(self, folder: Path) -> None:
        folder.mkdir()
        rewritten = b"\x07\x06\x00\x00\x00" + addx(b"open")[1:] + b"\x03" + b"\x04\x09\x00\x00\x00"
        contents = rewritten + addx(b"a") + b"\x03" + addx(b"b")
        (folder / "work").write_bytes(contents)
        subject = self.opened(folder)
        queue = subject.queue()
        assert queue.take(opened=True).xid == 11
        subject.commit(queue)
        put_back = b"\x04\0\0\0\0\x05\x0a\0\0\0" + b"\x04\0\0\0\0\x05\x06\0\0\0"
        assert (folder / "work").read_bytes() == contents + put_back + b"\x09\x0b\x00\x00\x00"
        subject.close()
        assert take_all_data(self.opened(folder).queue()) == [b"open", b"a", b"b"]

    def test_a_queue_that_cannot_be_read_fails_alone_and_is_tried_again_on_use(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "a").write_bytes(addx(b"in a"))
        threads = SteppedThreads()
        storage = self.make(folder, Clock(), threads)
        self.disk.fail("read", errno.EIO, times=2)
        loaded: list[dict[bytes, object]] = []
        storage.start(lambda name: QueueSettings()).addCallback(loaded.append)
        threads.run_all()
        assert isinstance(loaded[0][b"a"], Failure)
        with pytest.raises(QueueFailed):
            storage.queue(b"a", QueueSettings())
        assert take_all_data(storage.queue(b"a", QueueSettings())) == [b"in a"]
        storage.close()
        threads.run_all()

    def test_a_second_owner_of_the_folder_is_refused_at_once(self, subject: StorageUnderTest, folder: Path) -> None:
        second = self.make(folder, Clock(), SteppedThreads())
        with pytest.raises(FolderInUse):
            second.start(lambda name: QueueSettings())

    def test_a_folder_that_cannot_be_one_is_refused_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        storage = self.make(tmp_path / "file", Clock(), SteppedThreads())
        with pytest.raises(StorageError):
            storage.start(lambda name: QueueSettings())

    def test_a_start_that_failed_has_let_the_folder_go(self, folder: Path) -> None:
        storage = self.make(folder, Clock(), SteppedThreads())
        self.disk.fail("list", errno.EIO)
        with pytest.raises(StorageError):
            storage.start(lambda name: QueueSettings())
        assert self.opened(folder).loaded == {}

    def test_foreign_files_are_no_queues_and_are_left_alone(self, folder: Path) -> None:
        folder.mkdir()
        foreign = {"work.bak": b"x", ".hidden": b"\x01", "a~": b"", "work.1.pack.old": b"y", "what ever": b"z"}
        sixteen_digits = "2026010112000000"
        foreign |= {f"work.{sixteen_digits}": b"v", f"work~~{sixteen_digits}": b"w", "+": b"", "a" * 201: b""}
        for name, contents in foreign.items():
            (folder / name).write_bytes(contents)
        (folder / "sub").mkdir()
        subject = self.opened(folder)
        assert subject.loaded == {}
        assert {name: (folder / name).read_bytes() for name in foreign} == foreign

    def test_a_temporary_file_alone_is_erased_and_is_no_queue(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "work~~1700000000000").write_bytes(addx(b"never published"))
        subject = self.opened(folder)
        assert subject.loaded == {}
        assert [path.name for path in folder.iterdir() if path.is_file()] == []

    # Open files.

    def test_the_files_of_idle_queues_are_closed_and_used_again(
        self, folder: Path, allow_descriptors: AllowDescriptors
    ) -> None:
        allow_descriptors(12)  # a quarter of which may be journal files
        subject = self.opened(folder)
        names = [b"q%d" % number for number in range(10)]
        for round_number in range(3):
            for name in names:
                queue = subject.queue(name)
                subject.put(queue, b"%b-%d" % (name, round_number))
                subject.commit(queue)
                assert len(self.disk.open_descriptors) <= 3
        again = self.restarted(subject, folder)
        items = {name: take_all_data(again.queue(name)) for name in names}
        assert items == {name: [b"%b-%d" % (name, number) for number in range(3)] for name in names}

    @pytest.mark.parametrize("sync_journal_ms", [0, 500])
    def test_a_sync_leaves_no_more_files_open_than_allowed(
        self, folder: Path, allow_descriptors: AllowDescriptors, sync_journal_ms: int
    ) -> None:
        allow_descriptors(12)
        subject = self.opened(folder)
        queues = [subject.queue(b"q%d" % number, sync_journal_ms=sync_journal_ms) for number in range(10)]
        for queue in queues:
            subject.put(queue, b"a")
        subject.commit(*queues)
        subject.clock.advance(0.5)
        subject.threads.run_all()
        assert len(self.disk.open_descriptors) <= 3

    def test_a_closed_storage_has_closed_its_files(self, subject: StorageUnderTest) -> None:
        for name in (b"a", b"b"):
            queue = subject.queue(name, sync_journal_ms=0)
            subject.put(queue, b"a")
            subject.commit(queue)
        subject.close()
        assert self.disk.open_descriptors == set()

    # Settings change.

    # Stopping.

    def test_close_waits_for_a_sync_that_runs(self, subject: StorageUnderTest) -> None:
        queue = subject.queue(sync_journal_ms=0)
        subject.put(queue, b"a")
        subject.storage.commit([queue])
        closed: list[object] = []
        ending: Deferred[None] = subject.storage.close()
        ending.addBoth(closed.append)
        assert closed == []
        subject.threads.run_all()
        assert closed == [None]
        subject._is_closed = True


def test_a_deletion_that_a_crash_cut_off_takes_no_file_of_the_new_queue_when_the_clock_has_gone_back(
    tmp_path: Path,
) -> None:
    """The files of a queue have the time as their numbers, and a deletion erases all below its own."""

    def life(folder: Path, now_ms: int) -> tuple[JournalStorage, SteppedThreads, SteppedThreads]:
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
    storage, threads, _ = life(tmp_path / "before", NOW_MS)
    storage.delete(fill(storage, threads))
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    storage, threads, erasing = life(tmp_path / "after", NOW_MS - 3_600_000)
    fill(storage, threads)
    erasing.run_all()
    storage.close()
    threads.run_all()
    storage, _, _ = life(tmp_path / "after", NOW_MS)
    assert storage.queue(b"work", settings).items == 30


def test_its_factory_promises_durability_of_error_counts_and_of_what_was_put_back_too() -> None:
    assert JournalStorageFactory().capabilities == {"durable", "errors_kept", "order_kept"}


def test_it_runs_all_of_the_contract_suite_that_it_has_the_capabilities_for() -> None:
    assert set(TestJournal.left_out.values()) == {
        "needs capability 'ranges'",
        "needs capability 'shared_fanout'",
        "needs the base class OnFaultyDatabase",
    }


def test_its_factory_touches_nothing_yet(tmp_path: Path) -> None:
    JournalStorageFactory().storage(str(tmp_path / "queues"), {}, Clock(), SteppedThreads(), MemoryLimit())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "options"),
    [("", {}), ("/somewhere", {"reserve": "many"}), ("/somewhere", {"colour": "red"})],
    ids=["no folder", "reserve is no size", "unknown option"],
)
def test_its_description_is_refused_with_a_sentence(argument: str, options: dict[str, str]) -> None:
    with pytest.raises(BadStorageArgument, match=r"\w+ \w+"):
        JournalStorageFactory().storage(argument, options, Clock(), SteppedThreads(), MemoryLimit())
