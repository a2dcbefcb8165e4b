"""How many writer files a scroll has: when another one is begun, and what becomes of those that nobody needs."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import StorageError
from kestrel.storage.scroll.maintenance import LARGE_LAST_FILE_BYTES
from kestrel.storage.scroll.queue import ScrollQueue
from tests.scroll.handwritten import WRITER, put
from tests.scroll.storages import Opener, Scrolls

SMALL = QueueSettings(default_journal_size_bytes=500)
SMALL_SYNCED = QueueSettings(default_journal_size_bytes=500, sync_journal_ms=0)
SMALL_PERIODIC = QueueSettings(default_journal_size_bytes=500, sync_journal_ms=500)
ITEM = bytes(75)
"""Four of them fill a small file: 4 bytes and 100 for each are 404, and a fifth has no room."""
FAMILY = (b"work", b"work+x", b"work+y")


def put_each(scrolls: Scrolls, queues: list[ScrollQueue], items: int) -> None:
    """Put so many items, a second and a commit apart."""
    for _ in range(items):
        scrolls.put_and_commit(queues, ITEM)
        scrolls.now_ms += 1000


def take(scrolls: Scrolls, queue: ScrollQueue, items: int) -> None:
    """Take so many items for good."""
    for _ in range(items):
        assert scrolls.fill(queue).take(False) is not None
    scrolls.commit(queue)
    scrolls.threads.run_all()


# When another file is begun.


def test_a_file_is_begun_when_the_next_item_has_no_room_in_the_last_one(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    put_each(scrolls, [scrolls.queue()], 9)
    assert {name: len(contents) for name, contents in scrolls.files().items() if "read" not in name} == {
        "work.1700000000000": 404,
        "work.1700000004000": 404,
        "work.1700000008000": 104,
    }


def test_a_file_may_be_exactly_as_large_as_it_may_be(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(default_journal_size_bytes=404))
    put_each(scrolls, [scrolls.queue()], 5)
    assert [len(scrolls.files()[name]) for name in scrolls.writers()] == [404, 104]


def test_a_batch_that_is_larger_than_a_file_goes_into_several(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    queue = scrolls.queue()
    scrolls.disk.done.clear()
    scrolls.put_and_commit(queue, *[ITEM] * 10)
    assert [len(scrolls.files()[name]) for name in scrolls.writers()] == [404, 404, 204]
    assert scrolls.disk.writes() == dict.fromkeys(scrolls.writers(), 1)
    again = start.crashed(scrolls)
    assert [item.id for item in again.take_all(again.queue())] == list(range(1, 11))


def test_an_item_that_is_larger_than_a_file_has_one_of_its_own(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", bytes(5000), b"b", bytes(6000), bytes(7000))
    sizes = [len(scrolls.files()[name]) for name in scrolls.writers()]
    assert sizes == [4 + 26, 4 + 5025, 4 + 26, 4 + 6025, 4 + 7025]
    again = start.crashed(scrolls)
    assert [len(item.data) for item in again.take_all(again.queue())] == [1, 5000, 1, 6000, 7000]


def test_what_says_for_whom_an_item_is_stands_in_the_same_file(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    family = [scrolls.queue(name) for name in FAMILY]
    for number in range(40):
        scrolls.put(family[: 1 + number % 3], ITEM)
    scrolls.commit(*family)
    assert all(not contents.endswith(b"\xc1") for contents in scrolls.files().values())
    expected = [[number for number in range(1, 41) if (number - 1) % 3 >= index] for index in range(3)]
    for opened in (scrolls, start.crashed(scrolls)):
        found = [[item.id for item in opened.look_through(opened.queue(name))] for name in FAMILY]
        assert found == expected


def test_of_the_sizes_of_a_family_the_least_counts(start: Opener) -> None:
    scrolls = start()
    family = [scrolls.queue(), scrolls.queue(b"work+x", SMALL)]
    put_each(scrolls, family, 5)
    assert len(scrolls.writers()) == 2


def test_a_new_size_counts_from_the_next_item_on(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    put_each(scrolls, [queue], 8)
    assert scrolls.queue(settings=SMALL) is queue
    put_each(scrolls, [queue], 1)
    assert [len(scrolls.files()[name]) for name in scrolls.writers()] == [804, 104]


def test_files_follow_each_other_though_the_clock_is_set_back(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    queue = scrolls.queue()
    for _ in range(12):
        scrolls.put_and_commit(queue, ITEM)
        scrolls.now_ms -= 1000
    assert scrolls.writers() == ["work.1700000000000", "work.1700000000001", "work.1700000000002"]
    again = start.crashed(scrolls)
    again.now_ms = 5
    again.put_and_commit(again.queue(), *[ITEM] * 5)
    assert again.writers()[:3] == scrolls.writers()
    assert len(again.writers()) == 5
    assert [item.id for item in again.take_all(again.queue())] == list(range(1, 18))


def test_behind_a_file_that_is_zeros_at_its_end_another_one_is_begun(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + put(1, b"a") + bytes(1000))
    scrolls = start(folder)
    scrolls.put_and_commit(scrolls.queue(), b"b")
    assert scrolls.files()[scrolls.writers()[0]] == WRITER + put(2, b"b")
    assert scrolls.files()["work.5"] == WRITER + put(1, b"a") + bytes(1000)


# Files that nobody needs.


def test_a_file_goes_when_all_its_items_are_done(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 12)
    names = scrolls.writers()
    take(scrolls, queue, 3)
    assert scrolls.writers() == names
    take(scrolls, queue, 1)
    assert scrolls.writers() == names[1:]
    take(scrolls, queue, 4)
    assert scrolls.writers() == names[2:]


def test_several_files_may_go_at_once(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 20)
    names = scrolls.writers()
    take(scrolls, queue, 17)
    assert scrolls.writers() == names[4:]


def test_a_file_stays_while_one_reader_needs_it(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, family, 12)
    names = scrolls.writers()
    take(scrolls, family[0], 12)
    take(scrolls, family[1], 9)
    assert scrolls.writers() == names
    take(scrolls, family[2], 5)
    assert scrolls.writers() == names[1:]


def test_a_file_stays_while_an_item_in_it_is_an_open_read(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 12)
    xid = queue.take(True).xid
    take(scrolls, queue, 11)
    assert len(scrolls.writers()) == 3
    queue.confirm([xid])
    scrolls.commit(queue)
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 1


def test_a_file_with_nothing_but_items_for_others_is_no_longer_needed_than_by_them(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, [family[1]], 12)
    assert len(scrolls.writers()) == 3
    take(scrolls, family[1], 12)
    scrolls.checkpoint()
    for queue in family:
        scrolls.commit(queue)
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 1


def test_files_go_with_the_reader_that_needed_them(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, family, 12)
    take(scrolls, family[0], 12)
    take(scrolls, family[1], 12)
    scrolls.storage.delete(family[2])
    scrolls.commit(family[2])
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 1


def test_files_that_a_crash_kept_from_being_erased_go_at_the_start(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 12)
    for _ in range(10):
        queue.take(False)
    scrolls.commit(queue)
    assert len(scrolls.writers()) == 3
    again = start.crashed(scrolls)
    again.threads.run_all()
    assert (len(again.writers()), len(again.take_all(again.queue()))) == (1, 2)


def test_the_last_file_stays_while_it_is_small_and_goes_when_it_is_large(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    sizes = []
    for number in range(1, 41):
        scrolls.put_and_commit(queue, bytes(64 * 1024))
        take(scrolls, queue, 1)
        sizes.append(sum(len(scrolls.files()[name]) for name in scrolls.writers()))
        assert queue.stats["journal_bytes"] == sizes[-1], number
    assert max(sizes) < LARGE_LAST_FILE_BYTES
    assert sizes.count(0) == 40 * 65561 // LARGE_LAST_FILE_BYTES
    scrolls.put_and_commit(queue, b"next")
    again = start.crashed(scrolls)
    assert [(item.id, item.data) for item in again.take_all(again.queue())] == [(41, b"next")]


def test_with_sync_journal_0_a_file_goes_when_the_head_behind_it_is_on_the_medium(start: Opener) -> None:
    scrolls = start(settings=SMALL_SYNCED)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 12)
    names = scrolls.writers()
    for _ in range(10):
        queue.take(False)
    outcomes = scrolls.begin_commit(queue)
    while len(scrolls.threads):
        if set(names) - set(scrolls.writers()):
            assert outcomes == [None]
        again = start.power_failed(scrolls)
        left = [item.id for item in again.take_all(again.queue())]
        assert left in (list(range(1, 13)), [11, 12])
        scrolls.threads.run_one()
    assert scrolls.writers() == names[2:]


@pytest.mark.parametrize("settings", [SMALL_PERIODIC, SMALL_SYNCED], ids=["period", "synced"])
def test_whatever_file_went_a_power_failure_leaves_what_was_not_taken(start: Opener, settings: QueueSettings) -> None:
    scrolls = start(settings=settings)
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, family, 20)
    scrolls.clock.advance(1)
    scrolls.threads.run_all()
    for number in range(1, 13):
        for queue in family:
            take(scrolls, queue, 1)
        scrolls.clock.advance(1)
        scrolls.threads.run_all()
        again = start.power_failed(scrolls)
        for name in FAMILY:
            assert [item.id for item in again.take_all(again.queue(name))] == list(range(number + 1, 21))


@pytest.mark.parametrize(
    "settings", [QueueSettings(), SMALL_PERIODIC, SMALL_SYNCED], ids=["never", "period", "synced"]
)
def test_when_the_last_file_is_gone_no_power_failure_lets_an_id_be_given_twice(
    start: Opener, settings: QueueSettings
) -> None:
    scrolls = start(settings=settings)
    family = [scrolls.queue(name) for name in FAMILY]
    scrolls.put_and_commit(family, bytes(LARGE_LAST_FILE_BYTES), b"small")
    scrolls.put_and_commit(family, bytes(LARGE_LAST_FILE_BYTES))
    scrolls.clock.advance(1)
    scrolls.threads.run_all()
    for queue in family:
        queue.clear()
    scrolls.begin_commit(*family)
    while scrolls.writers():
        scrolls.threads.run_one()
    for names_as_now in (False, True):
        again = start.power_failed(scrolls, names_as_now=names_as_now)
        found = [again.queue(name) for name in FAMILY]
        assert [(queue.journal.next_id, queue.items) for queue in found] == [(4, 0)] * 3


@pytest.mark.parametrize("settings", [SMALL_PERIODIC, SMALL_SYNCED], ids=["period", "synced"])
@pytest.mark.parametrize("names_as_now", [False, True], ids=["names as synced", "names as now"])
def test_whenever_the_power_fails_while_files_go_no_id_is_given_twice(
    start: Opener, settings: QueueSettings, names_as_now: bool
) -> None:
    scrolls = start(settings=settings)
    queue = scrolls.queue()
    for number in range(1, 4):
        scrolls.put_and_commit(queue, bytes(LARGE_LAST_FILE_BYTES))
        scrolls.clock.advance(1)
        scrolls.threads.run_all()
        assert scrolls.fill(queue).take(False) is not None
        scrolls.begin_commit(queue)
        scrolls.clock.advance(1)
        while len(scrolls.threads):
            again = start.power_failed(scrolls, names_as_now=names_as_now)
            assert again.queue().journal.next_id == number + 1
            scrolls.threads.run_one()


@pytest.mark.parametrize("settings", [SMALL, SMALL_PERIODIC, SMALL_SYNCED], ids=["never", "period", "synced"])
def test_files_stay_until_it_is_on_the_medium_that_the_reader_who_needed_them_is_deleted(
    start: Opener, settings: QueueSettings
) -> None:
    scrolls = start(settings=settings)
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, family, 12)
    take(scrolls, family[0], 12)
    take(scrolls, family[1], 12)
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


def test_files_go_in_the_end_though_a_deletion_could_not_be_synced_at_first(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, family, 12)
    take(scrolls, family[0], 12)
    take(scrolls, family[1], 12)
    scrolls.disk.fail("sync_folder", errno.EIO, times=1)
    scrolls.storage.delete(family[2])
    scrolls.commit(family[2])
    scrolls.threads.run_all()
    scrolls.disk.mend()
    scrolls.checkpoint()
    scrolls.checkpoint()
    assert len(scrolls.writers()) == 1


def test_nothing_goes_while_a_reader_cannot_be_read(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, family, 12)
    scrolls.close()
    again = start(scrolls.folder, settings=SMALL, arrange=lambda disk: disk.cannot_read("work.read.y"))
    take(again, again.queue(), 12)
    take(again, again.queue(b"work+x"), 12)
    again.checkpoint()
    assert len(again.writers()) == 3
    again.disk.mend()
    assert len(again.take_all(again.queue(b"work+y"))) == 12
    again.commit(again.queue(b"work+y"))
    again.threads.run_all()
    assert len(again.writers()) == 1


def test_a_file_that_cannot_be_erased_hinders_nobody_and_goes_at_the_next_start(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 12)
    scrolls.disk.fail("erase", errno.EIO)
    take(scrolls, queue, 10)
    assert len(scrolls.writers()) == 3
    assert queue.stats["journal_files"] == 3
    put_each(scrolls, [queue], 1)
    again = start.again(scrolls)
    again.threads.run_all()
    assert len(again.writers()) == 2
    assert [item.id for item in again.take_all(again.queue())] == [11, 12, 13]


def test_of_a_journal_that_nobody_needs_a_stop_that_compacts_leaves_no_writer_file(start: Opener) -> None:
    scrolls = start(settings=SMALL)
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, family, 3)
    for queue in family:
        take(scrolls, queue, 3)
    scrolls.close(compacts=True)
    assert scrolls.writers() == []


@pytest.mark.parametrize("left", ["an item", "an open read", "an unreadable reader"])
def test_of_a_journal_that_somebody_needs_a_stop_that_compacts_leaves_all(start: Opener, left: str) -> None:
    scrolls = start()
    family = [scrolls.queue(name) for name in FAMILY]
    put_each(scrolls, family, 3)
    take(scrolls, family[0], 3)
    take(scrolls, family[1], 3)
    if left == "an open read":
        take(scrolls, family[2], 2)
        family[2].take(True)
    if left == "an unreadable reader":
        scrolls.close()
        scrolls = start(scrolls.folder, arrange=lambda disk: disk.cannot_read("work.read.y"))
    before = {name: contents for name, contents in scrolls.files().items() if "read" not in name}
    scrolls.close(compacts=True)
    assert {name: contents for name, contents in scrolls.files().items() if "read" not in name} == before


# The archive.


def archived(archive: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in archive.iterdir()} if archive.exists() else {}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "archive"


def two_files_done(start: Opener, archive: Path) -> tuple[Scrolls, dict[str, bytes]]:
    """A storage that is about to put two files aside, and what they are to be there."""
    scrolls = start(settings=SMALL, archive=archive)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 12)
    expected = {f"archive~{name}": scrolls.files()[name] for name in scrolls.writers()[:2]}
    for _ in range(10):
        queue.take(False)
    scrolls.commit(queue)
    return scrolls, expected


def test_with_an_archive_files_that_nobody_needs_are_moved_there(start: Opener, archive: Path) -> None:
    scrolls, expected = two_files_done(start, archive)
    scrolls.threads.run_all()
    assert (archived(archive), len(scrolls.writers())) == (expected, 1)


def test_an_archive_on_another_file_system_gets_copies(start: Opener, archive: Path) -> None:
    scrolls, expected = two_files_done(start, archive)
    for number in range(1, 3):
        scrolls.disk.fail("rename", errno.EXDEV, times=1)
        scrolls.threads.run_one()
        assert (len(archived(archive)), len(scrolls.writers())) == (number, 3 - number)
    assert archived(archive) == expected


def test_a_copy_in_the_archive_is_on_the_medium_before_the_file_is_erased(start: Opener, archive: Path) -> None:
    scrolls, expected = two_files_done(start, archive)
    scrolls.disk.fail("rename", errno.EXDEV, times=1)
    scrolls.threads.run_one()
    medium = archive.with_name("medium")
    scrolls.disk.medium.copy(str(archive).encode(), str(medium).encode())
    name = min(expected)
    assert archived(medium) == {name: expected[name]}


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "open_read", "read", "erase"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_file_that_cannot_be_archived_stays_and_is_archived_at_the_next_start(
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
    assert archived(archive) == expected
    assert [item.id for item in again.take_all(again.queue())] == [11, 12]


def test_a_file_in_the_place_of_the_archive_is_found_at_the_start(start: Opener, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"the archive folder .*/file cannot be used"):
        start(archive=tmp_path / "file")


def test_an_archive_that_cannot_be_written_is_tried_again_with_the_next_checkpoint(
    start: Opener, archive: Path
) -> None:
    scrolls = start(archive=archive, settings=SMALL)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 12)
    scrolls.disk.fail("rename", errno.EACCES)
    take(scrolls, queue, 10)
    scrolls.threads.run_all()
    assert (archived(archive), len(scrolls.writers())) == ({}, 3)
    scrolls.disk.mend()
    scrolls.clock.advance(10)
    scrolls.threads.run_all()
    assert (len(archived(archive)), len(scrolls.writers())) == (2, 1)


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOSPC])
def test_what_the_archive_did_not_take_does_not_come_back_when_its_queue_is_deleted(
    start: Opener, archive: Path, error: int
) -> None:
    scrolls = start(archive=archive, settings=SMALL)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 12)
    scrolls.disk.fail("rename", error)
    take(scrolls, queue, 12)
    scrolls.threads.run_all()
    scrolls.storage.delete(queue)
    scrolls.commit(queue)
    scrolls.threads.run_all()
    scrolls.disk.mend()
    new = scrolls.queue()
    scrolls.put(new, b"fresh")
    scrolls.commit(new)
    assert scrolls.writers() != []
    again = start.again(scrolls)
    assert [item.data for item in again.take_all(b"work")] == [b"fresh"]


def test_a_stop_that_compacts_archives_the_last_file(start: Opener, archive: Path) -> None:
    scrolls = start(archive=archive)
    queue = scrolls.queue()
    put_each(scrolls, [queue], 2)
    (name,) = scrolls.writers()
    contents = scrolls.files()[name]
    take(scrolls, queue, 2)
    scrolls.close(compacts=True)
    assert (archived(archive), scrolls.writers()) == ({f"archive~{name}": contents}, [])


def test_what_lies_in_the_archive_is_nobodys(start: Opener, archive: Path) -> None:
    scrolls, expected = two_files_done(start, archive)
    scrolls.threads.run_all()
    scrolls.close()
    assert start(archive).loaded == {}
    assert expected.items() <= {path.name: path.read_bytes() for path in archive.iterdir() if path.is_file()}.items()
