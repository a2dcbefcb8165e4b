"""Writer files: when a new one is started, and what happens to those that no reader needs."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import StorageError
from kestrel.storage.scroll.maintenance import LARGE_LAST_FILE_BYTES
from kestrel.storage.scroll.queue import ScrollQueue
from tests.scroll.handwritten import writer_file
from tests.scroll.storages import FAMILY, NEVER, Opener, Scrolls

SMALL = QueueSettings(default_journal_size_bytes=500)
SMALL_SYNCED = QueueSettings(default_journal_size_bytes=500, sync_journal_ms=0)
SMALL_PERIODIC = QueueSettings(default_journal_size_bytes=500, sync_journal_ms=500)
SYNCED_OR_PERIODIC = pytest.mark.parametrize("settings", [SMALL_PERIODIC, SMALL_SYNCED], ids=["period", "synced"])
ITEM = bytes(75)
"""Four of them fill a small file: 4 bytes and 100 for each are 404, and a fifth does not fit."""


def put_each(scrolls: Scrolls, queues: list[ScrollQueue], items: int) -> None:
    """Put this many items to all queues, each in a commit of its own and a second after the previous one."""
    for _ in range(items):
        scrolls.put_and_commit(queues, ITEM)
        scrolls.now_ms += 1000


def small_files(
    start: Opener, items: int, settings: QueueSettings = SMALL, **how: object
) -> tuple[Scrolls, ScrollQueue]:
    """Start a queue with this many items, four in each file."""
    scrolls, queue = start.queue(settings=settings, **how)
    put_each(scrolls, [queue], items)
    return scrolls, queue


def small_family(
    start: Opener, items: int = 12, settings: QueueSettings = SMALL, taken: int = 0
) -> tuple[Scrolls, list[ScrollQueue]]:
    """Start a family with this many items, of which the first two readers have taken some."""
    scrolls, family = start.family(settings=settings)
    put_each(scrolls, family, items)
    for queue in family[:2]:
        take(scrolls, queue, taken)
    return scrolls, family


def take(scrolls: Scrolls, queue: ScrollQueue, items: int) -> None:
    """Take this many items, and let the files be erased that are no longer needed."""
    scrolls.take(queue, items)
    scrolls.threads.run_all()


def sizes(scrolls: Scrolls) -> list[int]:
    """Return the sizes of the writer files, oldest first."""
    return [len(scrolls.files()[name]) for name in scrolls.writers()]


def ids(scrolls: Scrolls, name: bytes = b"work") -> list[int]:
    """Take every item of a queue and return the ids."""
    return [item.id for item in scrolls.take_all(name)]


# When a file is started.


def test_item_without_room_starts_a_file_named_after_its_time(start: Opener) -> None:
    scrolls, queue = small_files(start, 9)
    assert scrolls.writers() == ["work.1700000000000", "work.1700000004000", "work.1700000008000"]
    assert sizes(scrolls) == [404, 404, 104]
    assert queue.stats["journal_rotations"] == 2


def test_file_may_have_exactly_its_maximum_size(start: Opener) -> None:
    scrolls, _ = small_files(start, 5, QueueSettings(default_journal_size_bytes=404))
    assert sizes(scrolls) == [404, 104]


def test_large_batch_is_split_into_several_files(start: Opener) -> None:
    scrolls, queue = start.queue(settings=SMALL)
    scrolls.disk.done.clear()
    scrolls.put_and_commit(queue, *[ITEM] * 10)
    assert sizes(scrolls) == [404, 404, 204]
    assert scrolls.disk.writes() == dict.fromkeys(scrolls.writers(), 1)
    assert ids(start.crashed(scrolls)) == list(range(1, 11))


def test_item_larger_than_a_file_has_its_own(start: Opener) -> None:
    scrolls, _ = start.queue(b"a", bytes(5000), b"b", bytes(6000), bytes(7000), settings=SMALL)
    assert sizes(scrolls) == [4 + 26, 4 + 5025, 4 + 26, 4 + 6025, 4 + 7025]
    assert [len(data) for data in start.crashed(scrolls).data()] == [1, 5000, 1, 6000, 7000]


def test_targets_are_in_the_file_of_their_item(start: Opener) -> None:
    scrolls, family = start.family(settings=SMALL)
    for number in range(40):
        scrolls.put(family[: 1 + number % 3], ITEM)
    scrolls.commit(*family)
    assert all(not contents.endswith(b"\xc1") for contents in scrolls.files().values())
    expected = [[number for number in range(1, 41) if (number - 1) % 3 >= index] for index in range(3)]
    for opened in (start.crashed(scrolls), scrolls):
        assert [ids(opened, name) for name in FAMILY] == expected


def test_smallest_size_of_a_family_applies(start: Opener) -> None:
    scrolls = start()
    put_each(scrolls, [scrolls.queue(), scrolls.queue(b"work+x", SMALL)], 5)
    assert len(scrolls.writers()) == 2


def test_new_size_applies_from_the_next_item_on(start: Opener) -> None:
    scrolls, queue = small_files(start, 8, NEVER)
    assert scrolls.queue(settings=SMALL) is queue
    put_each(scrolls, [queue], 1)
    assert sizes(scrolls) == [804, 104]


def test_file_numbers_rise_although_the_clock_is_set_back(start: Opener) -> None:
    scrolls, queue = start.queue(settings=SMALL)
    for _ in range(12):
        scrolls.put_and_commit(queue, ITEM)
        scrolls.now_ms -= 1000
    assert scrolls.writers() == ["work.1700000000000", "work.1700000000001", "work.1700000000002"]
    again = start.crashed(scrolls)
    again.now_ms = 5
    again.put_and_commit(again.queue(), *[ITEM] * 5)
    assert again.writers()[:3] == scrolls.writers()
    assert len(again.writers()) == 5
    assert ids(again) == list(range(1, 18))


def test_file_that_ends_with_zeros_is_not_continued(start: Opener) -> None:
    old = writer_file(b"a") + bytes(1000)
    scrolls = start.over({"work.5": old})
    scrolls.put_and_commit(scrolls.queue(), b"b")
    assert [scrolls.files()[name] for name in scrolls.writers()] == [writer_file(b"b", first_id=2), old]


# Unneeded files.


def test_files_are_erased_when_all_their_items_are_done(start: Opener) -> None:
    scrolls, queue = small_files(start, 28)
    names = scrolls.writers()
    for items, erased in ((3, 0), (1, 1), (4, 2), (13, 5)):
        take(scrolls, queue, items)
        assert scrolls.writers() == names[erased:]


def test_file_stays_while_one_of_its_items_is_open(start: Opener) -> None:
    scrolls, queue = small_files(start, 12)
    xid = queue.take(True).xid
    take(scrolls, queue, 11)
    assert len(scrolls.writers()) == 3
    queue.confirm([xid])
    scrolls.commit(queue)
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 1


def test_file_with_items_of_one_reader_depends_on_that_reader(start: Opener) -> None:
    scrolls, family = start.family(settings=SMALL)
    put_each(scrolls, [family[1]], 12)
    assert len(scrolls.writers()) == 3
    take(scrolls, family[1], 12)
    scrolls.checkpoint()
    for queue in family:
        scrolls.commit(queue)
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 1


def test_checkpoint_erases_synced_files_with_items_of_siblings(start: Opener) -> None:
    settings = QueueSettings(sync_journal_ms=0, default_journal_size_bytes=40)
    scrolls, (_, x) = start.family(children=1, settings=settings)
    scrolls.put_and_commit(x, *[b"0123456789"] * 4)
    take(scrolls, x, 4)
    assert len(scrolls.writers()) == 4
    scrolls.checkpoint()
    assert len(scrolls.writers()) == 1


def test_files_are_erased_with_the_reader_that_needed_them(start: Opener) -> None:
    scrolls, family = small_family(start, taken=12)
    scrolls.delete(family[2])
    assert len(scrolls.writers()) == 1


def test_start_erases_files_that_a_crash_left(start: Opener) -> None:
    scrolls, queue = small_files(start, 12)
    scrolls.take(queue, 10)
    assert len(scrolls.writers()) == 3
    again = start.crashed(scrolls)
    again.threads.run_all()
    assert (len(again.writers()), ids(again)) == (1, [11, 12])


def test_last_file_is_erased_only_when_large(start: Opener) -> None:
    scrolls, queue = start.queue()
    total_bytes = []
    for number in range(1, 41):
        scrolls.put_and_commit(queue, bytes(64 * 1024))
        take(scrolls, queue, 1)
        total_bytes.append(sum(sizes(scrolls)))
        assert queue.stats["journal_bytes"] == total_bytes[-1], number
    assert max(total_bytes) < LARGE_LAST_FILE_BYTES
    assert total_bytes.count(0) == 40 * 65561 // LARGE_LAST_FILE_BYTES
    scrolls.put_and_commit(queue, b"next")
    assert [(item.id, item.data) for item in start.crashed(scrolls).take_all()] == [(41, b"next")]


@pytest.mark.parametrize("settings", [NEVER, SMALL_PERIODIC, SMALL_SYNCED], ids=["never", "period", "synced"])
def test_power_failure_after_erasing_last_file_repeats_no_id(start: Opener, settings: QueueSettings) -> None:
    scrolls, family = start.family(bytes(LARGE_LAST_FILE_BYTES), b"small", settings=settings)
    scrolls.put_and_commit(family, bytes(LARGE_LAST_FILE_BYTES))
    scrolls.pass_time(1)
    for queue in family:
        queue.clear()
    scrolls.begin_commit(*family)
    while scrolls.writers():
        scrolls.threads.run_one()
    for names_as_now in (False, True):
        again = start.power_failed(scrolls, names_as_now=names_as_now)
        assert [(queue.journal.next_id, queue.items) for queue in again.family()] == [(4, 0)] * 3


@SYNCED_OR_PERIODIC
@pytest.mark.parametrize("names_as_now", [False, True], ids=["names as synced", "names as now"])
def test_power_failure_while_files_are_erased_repeats_no_id(
    start: Opener, settings: QueueSettings, names_as_now: bool
) -> None:
    scrolls, queue = start.queue(settings=settings)
    for number in range(1, 4):
        scrolls.put_and_commit(queue, bytes(LARGE_LAST_FILE_BYTES))
        scrolls.pass_time(1)
        assert scrolls.fill(queue).take(False) is not None
        scrolls.begin_commit(queue)
        scrolls.clock.advance(1)
        while len(scrolls.threads):
            again = start.power_failed(scrolls, names_as_now=names_as_now)
            assert again.queue().journal.next_id == number + 1
            scrolls.threads.run_one()


@pytest.mark.parametrize("settings", [SMALL, SMALL_PERIODIC, SMALL_SYNCED], ids=["never", "period", "synced"])
def test_files_stay_until_deletion_of_their_reader_is_durable(start: Opener, settings: QueueSettings) -> None:
    scrolls, family = small_family(start, settings=settings, taken=12)
    names = scrolls.writers()
    scrolls.storage.delete(family[2])
    assert len(scrolls.threads) == 1
    scrolls.put(family[0], ITEM)
    scrolls.begin_commit(family[0])
    while len(scrolls.threads) > 1:
        scrolls.threads.run_newest()
    assert set(names) <= set(scrolls.writers())
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 1


def test_files_are_erased_later_if_sync_of_deletion_fails(start: Opener) -> None:
    scrolls, family = small_family(start, taken=12)
    scrolls.disk.fail("sync_folder", errno.EIO, times=1)
    scrolls.delete(family[2])
    scrolls.disk.mend()
    scrolls.checkpoint()
    scrolls.checkpoint()
    assert len(scrolls.writers()) == 1


def test_no_file_is_erased_while_a_reader_is_unreadable(start: Opener) -> None:
    scrolls, _ = small_family(start)
    scrolls.close()
    again = start(scrolls.folder, settings=SMALL, arrange=lambda disk: disk.cannot_read("work.read.y"))
    for name in FAMILY[:2]:
        take(again, again.queue(name), 12)
    again.checkpoint()
    assert len(again.writers()) == 3
    again.disk.mend()
    take(again, again.queue(b"work+y"), 12)
    assert len(again.writers()) == 1


def test_next_start_erases_file_that_could_not_be_erased(start: Opener) -> None:
    scrolls, queue = small_files(start, 12)
    scrolls.disk.fail("erase", errno.EIO)
    take(scrolls, queue, 10)
    assert len(scrolls.writers()) == 3
    assert queue.stats["journal_files"] == 3
    put_each(scrolls, [queue], 1)
    again = start.again(scrolls)
    again.threads.run_all()
    assert (len(again.writers()), ids(again)) == (2, [11, 12, 13])


def test_compacting_stop_erases_all_unneeded_writer_files(start: Opener) -> None:
    scrolls, family = small_family(start, 3, taken=3)
    take(scrolls, family[2], 3)
    scrolls.close(compacts=True)
    assert scrolls.writers() == []


@pytest.mark.parametrize("left", ["an item", "an open read", "an unreadable reader"])
def test_compacting_stop_keeps_needed_writer_files(start: Opener, left: str) -> None:
    scrolls, family = small_family(start, 3, NEVER, taken=3)
    if left == "an open read":
        take(scrolls, family[2], 2)
        family[2].take(True)
    if left == "an unreadable reader":
        scrolls.close()
        scrolls = start(scrolls.folder, arrange=lambda disk: disk.cannot_read("work.read.y"))
    before = {name: scrolls.files()[name] for name in scrolls.writers()}
    assert before
    scrolls.close(compacts=True)
    assert {name: scrolls.files()[name] for name in scrolls.writers()} == before


# The archive.


def archived(archive: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in archive.iterdir() if path.is_file()} if archive.exists() else {}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "archive"


def two_files_done(start: Opener, archive: Path) -> tuple[Scrolls, dict[str, bytes]]:
    """Start a storage that is about to archive two files, and return it with the expected archive."""
    scrolls, queue = small_files(start, 12, archive=archive)
    expected = {f"archive~{name}": scrolls.files()[name] for name in scrolls.writers()[:2]}
    scrolls.take(queue, 10)
    return scrolls, expected


def test_archive_on_another_file_system_gets_copies(start: Opener, archive: Path) -> None:
    scrolls, expected = two_files_done(start, archive)
    for number in range(1, 3):
        scrolls.disk.fail("rename", errno.EXDEV, times=1)
        scrolls.threads.run_one()
        assert (len(archived(archive)), len(scrolls.writers())) == (number, 3 - number)
    assert archived(archive) == expected


def test_archived_copy_is_durable_before_the_file_is_erased(start: Opener, archive: Path) -> None:
    scrolls, expected = two_files_done(start, archive)
    scrolls.disk.fail("rename", errno.EXDEV, times=1)
    scrolls.threads.run_one()
    medium = archive.with_name("medium")
    scrolls.disk.medium.copy(str(archive).encode(), str(medium).encode())
    name = min(expected)
    assert archived(medium) == {name: expected[name]}


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "open_read", "read", "erase"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_next_start_archives_file_that_could_not_be_archived(
    start: Opener, archive: Path, operation: str, error: int
) -> None:
    scrolls, expected = two_files_done(start, archive)
    files = scrolls.files()
    scrolls.disk.fail("rename", errno.EXDEV, times=1)
    if operation == "rename":
        scrolls.disk.fail("rename", error)
    else:
        scrolls.disk.fail(operation, error, torn_bytes=50)
    scrolls.threads.run_one()
    assert scrolls.files() == files
    again = start.again(scrolls, archive=archive)
    again.threads.run_all()
    assert (archived(archive), ids(again)) == (expected, [11, 12])


def test_start_refuses_a_file_as_archive_folder(start: Opener, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"the archive folder .*/file cannot be used"):
        start(archive=tmp_path / "file")


def test_checkpoint_archives_files_that_could_not_be_archived(start: Opener, archive: Path) -> None:
    scrolls, queue = small_files(start, 12, archive=archive)
    scrolls.disk.fail("rename", errno.EACCES)
    take(scrolls, queue, 10)
    assert (archived(archive), len(scrolls.writers())) == ({}, 3)
    scrolls.disk.mend()
    scrolls.checkpoint()
    assert (len(archived(archive)), len(scrolls.writers())) == (2, 1)


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOSPC])
def test_unarchived_items_of_a_deleted_queue_do_not_return(start: Opener, archive: Path, error: int) -> None:
    scrolls, queue = small_files(start, 12, archive=archive)
    scrolls.disk.fail("rename", error)
    take(scrolls, queue, 12)
    scrolls.delete(queue)
    scrolls.disk.mend()
    scrolls.put_and_commit(scrolls.queue(), b"fresh")
    assert scrolls.writers() != []
    assert start.again(scrolls).data() == [b"fresh"]


def test_compacting_stop_archives_the_last_file(start: Opener, archive: Path) -> None:
    scrolls, queue = small_files(start, 2, NEVER, archive=archive)
    (name,) = scrolls.writers()
    contents = scrolls.files()[name]
    take(scrolls, queue, 2)
    scrolls.close(compacts=True)
    assert (archived(archive), scrolls.writers()) == ({f"archive~{name}": contents}, [])
