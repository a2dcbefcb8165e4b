"""Promises of the scroll backend that a small change would break unseen: names, syncs, siblings, counts."""

from __future__ import annotations

import errno
import gc
import weakref
from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.scroll.hints import FileHint, encode_hint
from kestrel.scroll.writer_file import WriterFile
from kestrel.scroll.writer_index import index_writer_file
from kestrel.storage.interfaces import IItemRanges
from kestrel.storage.scroll import storage as scroll_storage
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.total_memory import ITEM_BYTES, MemoryLimit
from tests.journal.handwritten import BytesReader
from tests.scroll.handwritten import READER, WRITER, errors, put, read_done, read_head, sealed, with_data
from tests.scroll.storages import NEVER, PERIOD_S, PERIODIC, SYNCED, Opener, Scrolls, WatchedDisk

FAMILY = (b"work", b"work+x", b"work+y")
OWN_MEMORY = QueueSettings(max_memory_size_bytes=1)


def family_of(scrolls: Scrolls) -> list[ScrollQueue]:
    return [scrolls.queue(name) for name in FAMILY]


def left(scrolls: Scrolls, *names: bytes) -> list[list[bytes]]:
    """What these queues hold; none for one that is not there."""
    return [scrolls.data(scrolls.queue(name)) if name in scrolls.loaded else [] for name in names]


def failed(outcomes: list[object]) -> list[bool]:
    return [outcome is not None for outcome in outcomes]


# What is told.


def test_of_an_item_for_several_queues_all_are_told_the_same_though_they_are_committed_apart(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    parent, child, _ = family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    scrolls.put(child, b"b")
    childs_first = scrolls.begin_commit(child)
    scrolls.put([parent, child], b"both")
    parents = scrolls.begin_commit(parent)  # the child's waits until its first has ended
    scrolls.threads.run_one()
    assert (childs_first, parents) == ([None], [])
    scrolls.put(parent, b"lost")
    childs = scrolls.begin_commit(child)
    scrolls.threads.run_one()
    assert parents == [None], "the item is safe"
    scrolls.disk.fail("sync", errno.EIO, times=1)
    later = scrolls.begin_commit(parent)
    scrolls.threads.run_all()
    assert (childs, failed(later)) == ([None], [True])
    assert scrolls.data(scrolls.queue(b"work+x")) == [b"a", b"b", b"both"]
    assert scrolls.data(scrolls.queue(b"work")) == [b"a", b"both"]


def test_a_commit_of_what_is_safe_already_is_not_pending_though_others_are(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    parent, child, _ = family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    scrolls.put(parent, b"b")
    outcomes = scrolls.begin_commit(parent)
    assert scrolls.storage.commit([child]) == []
    scrolls.threads.run_all()
    assert outcomes == [None]


def test_a_sync_that_began_before_a_take_does_not_make_it_safe(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    parent, child, _ = family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    scrolls.put(parent, b"b")
    puts = scrolls.begin_commit(parent)
    assert child.take(False) is not None
    takes = scrolls.begin_commit(child)
    scrolls.threads.run_one()
    assert (puts, takes) == ([None], [])
    scrolls.threads.run_all()
    assert takes == [None]


# Settings.


def test_queues_that_are_opened_anew_with_another_keep_their_settings(start: Opener) -> None:
    scrolls = start()
    parent, child = scrolls.queue(b"work", NEVER), scrolls.queue(b"work+x", SYNCED)
    scrolls.put_and_commit([parent, child], b"a")
    scrolls.disk.fail("write", errno.EIO, times=1)
    scrolls.put(parent, b"lost")
    assert failed(scrolls.begin_commit(parent)) == [True]
    parent = scrolls.queue(b"work", NEVER)
    scrolls.put(parent, b"b")
    assert len(scrolls.storage.commit([parent])) == 1  # it waits for the sync that the child wants


def test_of_two_settings_the_strictest_holds_for_all(start: Opener) -> None:
    scrolls = start()
    parent, child = scrolls.queue(b"work", PERIODIC), scrolls.queue(b"work+x", SYNCED)
    scrolls.put([parent, child], b"a")
    outcomes = scrolls.begin_commit(parent)
    assert outcomes == []
    scrolls.threads.run_all()
    assert outcomes == [None]
    assert left(start.power_failed(scrolls), b"work") == [[b"a"]]


def test_a_child_that_is_deleted_makes_nobody_wait_for_a_sync_any_more(start: Opener) -> None:
    scrolls = start()
    parent, child = scrolls.queue(b"work", NEVER), scrolls.queue(b"work+x", SYNCED)
    scrolls.put_and_commit([parent, child], b"a")
    scrolls.storage.delete(child)
    scrolls.commit(child)
    scrolls.threads.run_all()
    scrolls.put(parent, b"b")
    assert list(scrolls.storage.commit([parent])) == []


def test_writer_files_after_the_first_are_counted_as_rotations(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(default_journal_size_bytes=40))
    queue = scrolls.queue()
    counted = []
    for _ in range(3):
        scrolls.put_and_commit(queue, b"0123456789")
        counted.append(queue.stats["journal_rotations"])
    assert counted == [0, 1, 2]


# New queues and their names.


def test_beside_a_child_that_cannot_be_read_a_parent_has_the_name_of_one_with_children(
    start: Opener, tmp_path: Path
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + put(1, b"a"))
    (folder / "work.read.x").write_bytes(READER + read_head(0) + read_done())
    scrolls = start(folder, arrange=lambda disk: disk.cannot_read("work.read.x"))
    scrolls.queue()
    scrolls.threads.run_all()
    assert sorted(name for name in scrolls.files() if "read" in name) == ["work.read.:own", "work.read.x"]


def test_a_queue_can_be_made_while_the_disk_is_full(start: Opener) -> None:
    scrolls = start()
    scrolls.disk.room = 0
    new = scrolls.queue(b"new")
    assert (new.items, scrolls.storage.refusal) == (0, None)
    scrolls.disk.room = 1000
    scrolls.put_and_commit(new, b"a")
    assert left(start.crashed(scrolls), b"new") == [[b"a"]]


def test_what_a_new_child_gets_is_safe_though_the_folder_was_synced_while_its_file_was_made(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    parent = scrolls.queue()
    scrolls.put_and_commit(parent, b"a")
    child = scrolls.queue(b"work+x")
    scrolls.put(parent, b"b")
    outcomes = scrolls.begin_commit(parent)
    scrolls.threads.run_newest()
    assert (outcomes, len(scrolls.threads)) == ([None], 1)
    scrolls.threads.run_all()
    scrolls.put_and_commit(child, b"c")
    assert left(start.power_failed(scrolls), b"work+x")[0][-1:] == [b"c"]


def test_a_child_is_there_for_good_when_it_was_asked_for_and_answered(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    scrolls.put_and_commit(scrolls.queue(), b"a")
    scrolls.commit(scrolls.queue(b"work+x"))
    assert left(start.power_failed(scrolls), b"work+x") == [[]]
    assert b"work+x" in start.power_failed(scrolls).loaded


def test_the_reader_file_of_a_new_child_is_synced_before_it_gets_its_name(start: Opener) -> None:
    scrolls = start()
    parent = scrolls.queue()
    scrolls.put_and_commit(parent, b"before")
    scrolls.disk.done.clear()
    scrolls.queue(b"work+x")
    scrolls.threads.run_all()
    done = [(operation, name.partition("~~")[0]) for operation, name, _ in scrolls.disk.done]
    assert done.index(("sync", "work.read.x")) < done.index(("rename", "work.read.x"))


def test_what_is_taken_from_a_reader_that_could_be_read_late_is_safe(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + put(1, b"a") + put(2, b"b"))
    (folder / "work.read.:own").write_bytes(READER + read_head(0) + read_done())
    (folder / "work.read.x").write_bytes(READER + read_head(0) + read_done() + bytes(9))
    scrolls = start(folder, settings=SYNCED, arrange=lambda disk: disk.cannot_read("work.read.x"))
    scrolls.put_and_commit(scrolls.queue(), b"c")
    scrolls.disk.mend()
    child = scrolls.fill(scrolls.queue(b"work+x"))
    child.take(False)
    scrolls.commit(child)
    assert left(start.power_failed(scrolls), b"work+x") == [[b"b"]]


def test_a_reader_that_can_be_read_late_is_not_served_while_items_are_not_written(
    start: Opener, tmp_path: Path
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + put(1, b"a"))
    (folder / "work.read.:own").write_bytes(READER + read_head(0) + read_done())
    (folder / "work.read.x").write_bytes(sealed(read_head(9 << 32) + read_done()))
    scrolls = start(folder, arrange=lambda disk: disk.cannot_read("work.read.x"))
    parent = scrolls.queue()
    scrolls.put(parent, b"b")
    scrolls.disk.mend()
    with pytest.raises(QueueFailed):
        scrolls.queue(b"work+x")
    scrolls.commit(parent)
    family = [parent, scrolls.queue(b"work+x")]
    scrolls.put_and_commit(family, b"c")
    for opened in (start.crashed(scrolls), scrolls):
        assert [opened.data(opened.queue(name)) for name in FAMILY[:2]] == [[b"a", b"b", b"c"], [b"c"]]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_parent_that_has_two_reader_files_is_where_the_one_of_parents_says(
    start: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reversed: bool
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + put(1, b"a") + put(2, b"b") + put(3, b"c"))
    (folder / "work.read.").write_bytes(READER + read_head(2) + read_done())
    (folder / "work.read.:own").write_bytes(READER + read_head(1) + read_done())
    in_order = lambda disk, path: sorted(Disk.list_files(disk, path), reverse=is_reversed)  # noqa: E731
    monkeypatch.setattr(WatchedDisk, "list_files", in_order)
    scrolls = start(folder)
    assert scrolls.data(scrolls.queue()) == [b"b", b"c"]


# Deletions.


def test_what_a_crash_left_of_a_deleted_queue_is_erased_at_the_next_start(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a")
    scrolls.storage.delete(queue)
    scrolls.begin_commit(queue)
    again = start.crashed(scrolls)
    assert (again.loaded, again.files()) == ({}, {})


def test_a_child_that_a_power_failure_brings_back_has_nothing_that_came_after_it(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    parent, child = scrolls.queue(), scrolls.queue(b"work+x")
    scrolls.put_and_commit([parent, child], b"before")
    scrolls.storage.delete(child)
    scrolls.put(parent, b"after")
    outcomes = scrolls.begin_commit(parent)
    scrolls.threads.run_newest()
    assert outcomes == [None]
    assert left(start.power_failed(scrolls), *FAMILY[:2]) == [[b"before", b"after"], [b"before"]]


def test_a_queue_that_died_is_deleted_for_good_before_anybody_is_told(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    scrolls.disk.fail("write", errno.EIO, times=1)
    scrolls.put(family[2], b"lost")
    assert failed(scrolls.begin_commit(family[2])) == [True]
    scrolls.storage.delete(family[1])
    outcomes = scrolls.begin_commit(family[1])
    assert outcomes == []
    scrolls.threads.run_all()
    assert outcomes == [None]
    assert left(start.power_failed(scrolls), *FAMILY) == [[b"a"], [], [b"a"]]


def test_a_queue_that_was_deleted_twice_stays_deleted_whichever_thread_is_first(start: Opener) -> None:
    scrolls = start()
    for data in (b"a", b"b"):
        queue = scrolls.queue()
        scrolls.put(queue, data)
        outcomes = scrolls.begin_commit(queue)
        while data == b"b" and not outcomes:
            scrolls.threads.run_newest()
        scrolls.storage.delete(queue)
        scrolls.begin_commit(queue)
    while len(scrolls.threads):
        assert b"work" not in start.crashed(scrolls).loaded
        scrolls.threads.run_newest()
    assert (start.crashed(scrolls).loaded, scrolls.files()) == ({}, {})


def test_the_mark_of_a_deletion_goes_when_what_it_hides_is_gone_for_good(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a")
    scrolls.storage.delete(queue)
    scrolls.disk.calls.clear()
    scrolls.threads.run_all()
    assert scrolls.files() == {}
    changes = [call for call in scrolls.disk.calls if call in ("erase", "sync_folder")]
    assert changes == ["sync_folder", "erase", "erase", "sync_folder", "erase"]


def test_the_mark_of_a_deletion_goes_when_the_file_of_another_reader_is_there_for_good(start: Opener) -> None:
    scrolls = start()
    parent = scrolls.queue()
    scrolls.put_and_commit(parent, b"a")
    scrolls.queue(b"work+x")
    scrolls.storage.delete(parent)
    scrolls.threads.run_newest()
    scrolls.disk.calls.clear()
    scrolls.threads.run_all()
    changes = [call for call in scrolls.disk.calls if call in ("rename", "sync_folder", "erase")]
    assert changes == ["rename", "sync_folder", "erase"]
    assert [name for name in scrolls.files() if "read" in name] == ["work.read.x"]


def test_of_a_deleted_queue_nothing_stays_in_memory_and_no_timer_runs(start: Opener) -> None:
    scrolls = start(settings=PERIODIC)
    timers = len(scrolls.clock.getDelayedCalls())
    for names in (FAMILY[:1], FAMILY):
        queues = [scrolls.queue(name) for name in names]
        scrolls.put_and_commit(queues, b"a")
        forgotten = [weakref.ref(queue) for queue in queues]
        for queue in queues:
            scrolls.storage.delete(queue)
        scrolls.commit(*queues)
        del queue, queues
        assert len(scrolls.clock.getDelayedCalls()) == timers
        scrolls.threads.run_all()
        gc.collect()
        assert [reference() for reference in forgotten] == [None] * len(names)


def test_of_a_deleted_child_nothing_stays_in_memory(start: Opener) -> None:
    scrolls = start()
    parent, child = scrolls.queue(), scrolls.queue(b"work+x")
    scrolls.put_and_commit([parent, child], b"a")
    forgotten = weakref.ref(child)
    scrolls.storage.delete(child)
    scrolls.commit(child)
    scrolls.threads.run_all()
    del child
    gc.collect()
    assert forgotten() is None


# Writes that fail.


@pytest.mark.parametrize("settings", [NEVER, SYNCED], ids=["never", "synced"])
@pytest.mark.parametrize("cut_fails", [False, True])
def test_a_put_that_failed_when_all_of_it_was_written_does_not_come_back(
    start: Opener, settings: QueueSettings, cut_fails: bool
) -> None:
    scrolls = start(settings=settings)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a")
    scrolls.disk.fail("write", errno.EIO, times=1, torn_bytes=100)
    if cut_fails:
        scrolls.disk.fail("cut", errno.EIO, times=1)
    scrolls.put(queue, b"lost")
    assert failed(scrolls.begin_commit(queue)) == [True]
    for opened in (start.crashed(scrolls), scrolls):
        assert [item.data for item in opened.look_through(opened.queue())] == [b"a"]


@pytest.mark.parametrize("settings", [NEVER, SYNCED], ids=["never", "synced"])
@pytest.mark.parametrize("cut_fails", [False, True])
def test_a_get_that_failed_when_all_of_it_was_written_takes_nothing(
    start: Opener, settings: QueueSettings, cut_fails: bool
) -> None:
    scrolls = start(settings=settings)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a")
    scrolls.disk.fail("write", errno.EIO, times=1, torn_bytes=100)
    if cut_fails:
        scrolls.disk.fail("cut", errno.EIO, times=1)
    queue.take(False)
    assert failed(scrolls.begin_commit(queue)) == [True]
    for opened in (start.crashed(scrolls), scrolls):
        assert [item.data for item in opened.look_through(opened.queue())] == [b"a"]


def test_of_commits_that_waited_for_a_checkpoint_none_is_written_behind_one_that_failed(start: Opener) -> None:
    scrolls = start()
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    scrolls.put_and_commit(family[1], b"for x")
    scrolls.clock.advance(10)  # what is for x is to be said in the files of the others
    assert len(scrolls.threads) == 1
    scrolls.put(family, b"lost")
    outcomes = scrolls.begin_commit(family[0])
    scrolls.put(family[2], b"lost too")
    family[2].take(False)
    later = scrolls.begin_commit(family[2])
    scrolls.disk.before("rename", lambda: scrolls.disk.fail("write", errno.EIO, times=1))
    scrolls.threads.run_all()
    assert (failed(outcomes), failed(later)) == ([True], [True])
    for opened in (start.crashed(scrolls), scrolls):
        assert [opened.data(opened.queue(name)) for name in FAMILY] == [[b"a"], [b"a", b"for x"], [b"a"]]


def test_a_checkpoint_keeps_no_get_whose_commit_fails_later(start: Opener) -> None:
    scrolls = start()
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    scrolls.put_and_commit(family[1], b"for x")
    scrolls.fill(family[0]).take(False)
    scrolls.checkpoint()
    scrolls.put(family[0], b"lost")
    scrolls.disk.fail("write", errno.EIO, times=1)
    assert failed(scrolls.begin_commit(family[0])) == [True]
    for opened in (start.crashed(scrolls), scrolls):
        assert opened.data(opened.queue()) == [b"a"]


def test_uses_that_come_while_a_scroll_is_loaded_again_do_not_load_it_twice(
    start: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scroll_storage, "RELOAD_INLINE_READERS", 0)
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a")
    scrolls.disk.fail("write", errno.EIO, times=1)
    scrolls.put(queue, b"lost")
    scrolls.begin_commit(queue)
    for _ in range(2):
        with pytest.raises(QueueFailed, match="is being loaded again"):
            scrolls.queue()
    scrolls.threads.run_one()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"b")
    scrolls.threads.run_all()
    assert scrolls.queue() is queue
    assert scrolls.data(queue) == [b"a", b"b"]


def test_a_put_to_many_that_one_of_them_refuses_is_in_none(start: Opener) -> None:
    scrolls = start()
    fine, failing = scrolls.queue(b"fine"), scrolls.queue(b"failing", PERIODIC)
    scrolls.put_and_commit(failing, b"a")
    scrolls.disk.fail("sync", errno.EIO, times=1)
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_one()
    with pytest.raises(StorageRefused):
        scrolls.storage.put([fine, failing], b"refused", 0, 0)
    assert (fine.items, failing.items) == (0, 1)


def test_while_memory_is_full_no_more_than_a_little_waits_to_be_written(start: Opener) -> None:
    memory = MemoryLimit(1)
    scrolls = start(memory=memory)
    queue = scrolls.queue()
    with pytest.raises(StorageRefused, match="memory is full"):
        for _ in range(100):
            scrolls.put(queue, bytes(64 * 1024))
    scrolls.commit(queue)
    scrolls.put(queue, b"taken again")


# Syncs, and those that fail.


def test_what_was_told_before_a_sync_failed_stays_and_nothing_else(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    family = family_of(scrolls)
    scrolls.put(family[1], b"told")
    told = scrolls.begin_commit(family[1])
    scrolls.put(family[2], b"lost")
    lost = scrolls.begin_commit(family[2])
    scrolls.disk.before("sync_folder", lambda: scrolls.disk.fail("sync", errno.EIO, times=1))
    scrolls.threads.run_all()
    assert (told, failed(lost)) == ([None], [True])
    scrolls.queue()
    for opened in (start.power_failed(scrolls), start.crashed(scrolls), scrolls):
        assert [opened.data(opened.queue(name)) for name in FAMILY] == [[], [b"told"], []]


def test_of_a_batch_of_which_a_part_was_synced_nothing_comes_back(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    queue.take(False)
    scrolls.put(queue, b"lost")
    outcomes = scrolls.begin_commit(queue)
    scrolls.disk.fail("sync", errno.EIO, times=1, after=1)
    scrolls.threads.run_all()
    assert failed(outcomes) == [True]
    assert left(start.power_failed(scrolls), b"work") == [[b"a", b"b"]]
    scrolls.queue()
    for opened in (start.power_failed(scrolls), start.crashed(scrolls), scrolls):
        assert [item.data for item in opened.look_through(opened.queue())] == [b"a", b"b"]


def test_a_get_that_was_synced_beside_one_that_was_not_took_nothing(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    for queue in family:
        queue.take(False)
    outcomes = scrolls.begin_commit(*family)
    # The last of three syncs fails, and so does the first file's that is to be cut for it.
    scrolls.disk.fail("sync", errno.EIO, times=2, after=2)
    scrolls.threads.run_all()
    assert failed(outcomes) == [True]
    assert [queue.items for queue in family_of(scrolls)] == [1, 1, 1]
    assert left(start.power_failed(scrolls), *FAMILY) == [[b"a"]] * 3


def test_what_is_taken_after_a_sync_failed_is_on_the_medium(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b", b"c")
    queue.take(False)
    scrolls.disk.fail("sync", errno.EIO, times=1)
    outcomes = scrolls.begin_commit(queue)
    scrolls.threads.run_all()
    assert failed(outcomes) == [True]
    queue = scrolls.fill(scrolls.queue())
    queue.take(False)
    scrolls.commit(queue)
    assert left(start.power_failed(scrolls), b"work") == [[b"b", b"c"]]


def test_gets_that_were_told_stand_when_the_sync_of_a_period_fails(start: Opener) -> None:
    scrolls = start(settings=PERIODIC)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b", b"c")
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()
    queue.take(False)
    scrolls.commit(queue)
    scrolls.disk.fail("sync", errno.EIO, times=1)
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()
    queue.take(False)
    assert scrolls.begin_commit(queue) == []
    assert queue.failure is None
    assert left(start.power_failed(scrolls), b"work") == [[b"b", b"c"]]


def test_gets_that_were_told_during_a_sync_stand_when_the_next_one_fails(start: Opener) -> None:
    scrolls = start(settings=PERIODIC)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b", b"c")
    queue.take(False)
    scrolls.commit(queue)
    scrolls.clock.advance(PERIOD_S)
    assert len(scrolls.threads) == 1
    queue.take(False)
    assert scrolls.begin_commit(queue) == []
    scrolls.threads.run_all()
    scrolls.disk.fail("sync", errno.EIO, times=1)
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()
    queue.take(False)
    assert scrolls.begin_commit(queue) == []
    assert left(start.power_failed(scrolls), b"work") == [[b"c"]]


@pytest.mark.parametrize("syncs_before", [0, 1])
def test_what_follows_a_sync_that_failed_and_its_mending_too_is_on_the_medium_within_the_period(
    start: Opener, syncs_before: int
) -> None:
    scrolls = start(settings=PERIODIC)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b", b"c")
    queue.take(False)
    scrolls.commit(queue)
    scrolls.disk.fail("sync", errno.EIO, times=2, after=syncs_before)
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()
    queue.take(False)
    assert failed(scrolls.begin_commit(queue)) == [True]
    queue = scrolls.fill(scrolls.queue())
    assert queue.take(False).data == b"b"
    scrolls.put_and_commit(queue, b"d")
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()
    again = start.power_failed(scrolls)
    items = [item.data for item in again.take_all(again.queue())]
    assert (b"a" in items, b"b" in items, items[-1:]) == (False, False, [b"d"])


def test_what_is_taken_after_a_checkpoint_that_nobody_wanted_synced_is_safe_when_somebody_does(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    parent, child = scrolls.queue(), scrolls.queue(b"work+x")
    scrolls.put_and_commit([parent, child], b"a", b"b")
    scrolls.put_and_commit(child, b"for x")
    for settings in (NEVER, SYNCED):
        for name in FAMILY[:2]:
            scrolls.queue(name, settings)
        scrolls.checkpoint()
    parent.take(False)
    scrolls.commit(parent)
    assert left(start.power_failed(scrolls), b"work") == [[b"b"]]


def test_what_is_taken_while_files_are_being_synced_is_on_the_medium_within_another_period(start: Opener) -> None:
    scrolls = start(settings=PERIODIC)
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a", b"b", b"c")
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()

    def take_one_each() -> None:
        for queue in family:
            queue.take(False)
        assert scrolls.begin_commit(*family) == []

    take_one_each()
    scrolls.clock.advance(PERIOD_S)
    scrolls.disk.before("sync", lambda: scrolls.disk.before("sync", take_one_each))
    scrolls.threads.run_all()
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()
    assert left(start.power_failed(scrolls), *FAMILY) == [[b"c"]] * 3


def test_a_file_that_is_begun_during_a_sync_is_found_after_a_power_failure(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(sync_journal_ms=0, default_journal_size_bytes=40))
    parent, child = scrolls.queue(), scrolls.queue(b"work+x")
    scrolls.put_and_commit([parent, child], b"0123456789")
    parent.take(False)
    taken = scrolls.begin_commit(parent)
    scrolls.put(child, b"9876543210")
    stored = scrolls.begin_commit(child)
    scrolls.threads.run_all()
    assert (taken, stored) == ([None], [None])
    assert left(start.power_failed(scrolls), b"work+x") == [[b"0123456789", b"9876543210"]]


def test_a_get_is_told_when_it_is_safe_though_its_reader_file_gets_another_name_meanwhile(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    parent = scrolls.queue()
    scrolls.put_and_commit(parent, b"a", b"b")
    parent.take(False)
    outcomes = scrolls.begin_commit(parent)
    scrolls.queue(b"work+x")
    while not outcomes:
        scrolls.threads.run_one()
    assert outcomes == [None]
    assert left(start.power_failed(scrolls), b"work") == [[b"b"]]


def test_a_commit_for_whose_sync_no_file_could_be_opened_waits_for_one_that_goes_well(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    queue.take(False)
    outcomes = scrolls.begin_commit(queue)
    scrolls.disk.fail("open_read", errno.EMFILE, times=1)
    scrolls.threads.run_all()
    assert outcomes == []
    scrolls.clock.advance(1)
    scrolls.threads.run_all()
    assert outcomes == [None]
    assert left(start.power_failed(scrolls), b"work") == [[b"b"]]


def synced_files(scrolls: Scrolls) -> set[str]:
    return {name for operation, name, _ in scrolls.disk.done if operation == "sync"}


def test_when_a_sync_fails_after_a_file_has_gone_the_others_are_written_anew_all_the_same(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(sync_journal_ms=500, default_journal_size_bytes=40))
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"%010d" % number for number in range(4)])
    for _ in range(2):
        queue.take(False)
    scrolls.commit(queue)
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 2
    scrolls.disk.fail("sync", errno.EIO, times=1)
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()
    queue.take(False)
    assert scrolls.begin_commit(queue) == []
    assert left(start.power_failed(scrolls), b"work")[0][-1:] == [b"0000000003"]


def test_with_sync_journal_0_no_file_goes_for_a_get_whose_sync_fails(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(sync_journal_ms=0, default_journal_size_bytes=40))
    family = [scrolls.queue(), scrolls.queue(b"work+x")]
    scrolls.put_and_commit(family, b"0123456789")
    for queue in family:
        queue.take(False)
    scrolls.commit(*family)
    scrolls.put(family, b"1234567890", b"2345678901")
    family[0].take(False)
    stored = scrolls.begin_commit(family[0])
    family[1].take(False)
    taken = scrolls.begin_commit(family[1])
    scrolls.disk.before("sync_folder", lambda: scrolls.disk.fail("sync", errno.EIO, times=1))
    scrolls.threads.run_all()
    assert (stored, failed(taken)) == ([None], [True])
    assert scrolls.data(scrolls.queue(b"work+x")) == [b"1234567890", b"2345678901"]


@pytest.mark.parametrize("settings", [SYNCED, PERIODIC], ids=["synced", "period"])
def test_after_a_crash_all_files_are_synced_within_the_period(start: Opener, settings: QueueSettings) -> None:
    scrolls = start()
    scrolls.put_and_commit(family_of(scrolls), b"a")
    again = start.crashed(scrolls, settings=settings)
    again.clock.advance(PERIOD_S)
    again.threads.run_all()
    assert synced_files(again) >= set(again.files())


def test_when_the_first_sync_after_a_start_fails_all_that_was_there_is_written_anew(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(family_of(scrolls), b"a")
    again = start.crashed(scrolls, settings=SYNCED, arrange=lambda disk: disk.fail("sync", errno.EIO, times=1))
    again.clock.advance(1)
    again.threads.run_all()
    written = {name for operation, name, _ in again.disk.done if operation == "rename"}
    assert written == set(again.files())
    assert [queue.failure for queue in again.loaded.values()] == [None] * 3
    assert left(start.power_failed(again), *FAMILY) == [[b"a"]] * 3


# What is read, and counted.


def test_a_hint_of_what_was_given_up_is_not_believed_of_what_took_its_place(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    family = family_of(scrolls)
    scrolls.put_and_commit(family, *[bytes(30)] * 10_000)
    scrolls.put(family, b"for all, lost.", b"last")
    outcomes = scrolls.begin_commit(*family[:2])
    scrolls.clock.advance(10)
    scrolls.threads.run_newest()
    assert (scrolls.folder / ".kestrel" / "hints" / "work").exists()
    scrolls.disk.fail("write", errno.EIO, times=1)
    scrolls.put(family[2], b"fails")
    assert failed(scrolls.begin_commit(family[2])) == [True]
    scrolls.threads.run_all()
    assert failed(outcomes) == [True]
    family = family_of(scrolls)
    scrolls.put(family[1], b"only x")  # as long as what is lost, with what says for whom it is
    scrolls.put(family, b"last")
    scrolls.commit(*family)
    loaded = start.crashed(scrolls).loaded
    assert [loaded[name].items for name in FAMILY] == [10_001, 10_002, 10_001]
    assert [loaded[name].bytes for name in FAMILY] == [300_004, 300_010, 300_004]


def test_items_that_a_hint_counted_and_no_file_has_are_told_once_and_counted_anew(
    start: Opener, tmp_path: Path
) -> None:
    folder = tmp_path / "queues"
    (folder / ".kestrel" / "hints").mkdir(parents=True)
    contents = WRITER + put(1, b"a") + put(2, b"b")
    (folder / "work.5").write_bytes(contents)
    (folder / "work.read.").write_bytes(READER + read_head(0) + read_done())
    file = WriterFile(b"work.5", 5)
    index_writer_file(BytesReader(contents), file)
    file.tally.items += 1
    (folder / ".kestrel" / "hints" / "work").write_bytes(encode_hint([FileHint.of(file, [1])]))
    scrolls = start(folder)
    queue = scrolls.queue()
    assert queue.items == 3
    for data in (b"a", b"b"):
        assert scrolls.fill(queue).take(False).data == data
    scrolls.commit(queue)
    with pytest.raises(QueueFailed):
        scrolls.fill(queue)
    assert (scrolls.queue().items, scrolls.data(scrolls.queue())) == (0, [])


def test_an_item_that_has_become_something_else_is_told_once_and_not_looked_for_for_ever(
    start: Opener, tmp_path: Path
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + put(1, b"a") + put(2, b"b"))
    scrolls = start(folder)
    unknown = with_data(15, bytes(len(put(2, b"b")) - 5))
    (folder / "work.5").write_bytes(WRITER + put(1, b"a") + unknown)
    queue = scrolls.queue()
    assert scrolls.fill(queue).take(False).data == b"a"
    scrolls.commit(queue)
    filling = queue.fill()
    with pytest.raises(QueueFailed):
        scrolls.wait(filling)
    assert (scrolls.queue().items, scrolls.data(scrolls.queue())) == (0, [])


def test_items_that_are_not_safe_cannot_be_read_by_their_ids(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a")
    scrolls.put(queue, b"b")
    outcomes = scrolls.begin_commit(queue)
    reading = IItemRanges(queue).read_range(1, 100, 1000)
    read: list[list[tuple[int, object]]] = []
    reading.addCallback(read.append)
    scrolls.threads.run_newest()
    assert outcomes == []
    assert [item_id for item_id, _ in read[0]] == [1]


def test_items_are_safe_when_all_files_were_written_anew_for_them(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(), b"a")
    again = start.crashed(scrolls, settings=SYNCED, arrange=lambda disk: disk.fail("sync", errno.EIO, times=1))
    queue = again.queue()
    again.put(queue, b"b")
    outcomes = again.begin_commit(queue)
    assert IItemRanges(queue).next_id == 2
    again.clock.advance(1)
    again.threads.run_all()
    assert (outcomes, IItemRanges(queue).next_id) == ([None], 3)


def test_items_that_were_written_during_the_sync_of_a_sibling_are_not_safe_when_it_ends(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    parent, child = scrolls.queue(), scrolls.queue(b"work+x")
    scrolls.put([parent, child], b"a")
    scrolls.begin_commit(parent)
    scrolls.put(child, b"b")
    scrolls.begin_commit(child)
    scrolls.threads.run_one()
    assert IItemRanges(child).next_id == 2
    scrolls.threads.run_all()
    assert IItemRanges(child).next_id == 3


def test_an_item_for_another_alone_is_no_first_id(start: Opener) -> None:
    scrolls = start()
    parent, child = scrolls.queue(), scrolls.queue(b"work+x")
    scrolls.put_and_commit(child, b"for x")
    assert (IItemRanges(parent).first_id, IItemRanges(child).first_id) == (2, 1)


def test_a_release_counts_nothing_that_is_for_another_and_not_written_yet(start: Opener) -> None:
    scrolls = start(settings=OWN_MEMORY)
    parent, child = scrolls.queue(), scrolls.queue(b"work+x")
    scrolls.put_and_commit([parent, child], b"a", b"b", b"c")
    scrolls.put(parent, b"for the parent")
    IItemRanges(child).release(3)
    assert (child.items, child.bytes) == (1, 1)
    scrolls.commit(parent)
    assert scrolls.data(child) == [b"c"]


def test_an_item_that_is_not_written_yet_is_found_behind_what_was_done_before(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + b"".join(put(item_id, b"%d" % item_id) for item_id in range(1, 6)))
    (folder / "work.read.").write_bytes(READER + read_head(0) + read_done(2, 3, 4, 5))
    scrolls = start(folder)
    queue = scrolls.queue()
    scrolls.put(queue, b"6")
    assert scrolls.data(queue) == [b"1", b"6"]


def test_an_error_count_of_what_is_done_is_not_taken_into_memory_by_a_start(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + b"".join(put(item_id, b"a") for item_id in range(1, 6)))
    said = read_head(1) + read_done(3) + errors(_1=1, _2=2, _3=3, _4=4)
    (folder / "work.read.").write_bytes(READER + said)
    assert start(folder).queue().state.errors == {2: 2, 4: 4}


def test_the_head_passes_what_is_for_others_when_it_was_read_over(start: Opener) -> None:
    scrolls = start()
    family = [scrolls.queue(), scrolls.queue(b"work+x")]
    for data in (b"a", b"b"):
        scrolls.put_and_commit(family, data)
        scrolls.put_and_commit(family[0], b"for the parent")
    again = start.crashed(scrolls)
    child = again.queue(b"work+x")
    assert again.data(child) == [b"a", b"b"]
    assert (child.done.head, len(child.done)) == (4, 0)


def test_with_sync_journal_0_files_with_items_for_others_go_with_the_checkpoint_that_says_so(start: Opener) -> None:
    scrolls = start(settings=QueueSettings(sync_journal_ms=0, default_journal_size_bytes=40))
    family = family_of(scrolls)[:2]
    scrolls.put_and_commit(family[1], *[b"0123456789"] * 4)
    assert len(scrolls.data(family[1])) == 4
    scrolls.commit(family[1])
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 4
    scrolls.checkpoint()
    assert len(scrolls.writers()) == 1


def test_an_item_that_is_done_with_has_no_error_count_in_memory(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    for _ in range(2):
        queue.put_back([queue.take(True).xid], True)
        queue.take(False)
    scrolls.commit(queue)
    assert queue.state.errors == {}


def test_what_a_checkpoint_that_failed_was_to_say_is_said_by_the_next(start: Opener) -> None:
    scrolls = start()
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"open")
    family[0].take(True)
    scrolls.put_and_commit(family[1], b"for x")
    scrolls.disk.fail("rename", errno.EIO, times=1)
    scrolls.checkpoint()
    assert scrolls.reader(":own") == READER + read_head(0) + read_done()
    scrolls.checkpoint()
    assert scrolls.reader(":own") == READER + read_head(0) + read_done(2)


def test_a_checkpoint_that_said_what_is_for_others_is_not_made_again(start: Opener) -> None:
    scrolls = start()
    family = family_of(scrolls)
    scrolls.put_and_commit(family[1], b"for x")
    scrolls.checkpoint()
    scrolls.disk.done.clear()
    scrolls.checkpoint()
    assert scrolls.disk.writes() == {}


def test_damage_that_is_found_before_anybody_asks_is_told_to_who_asks(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[bytes(50_000)] * 20)
    path = scrolls.folder / scrolls.writers()[0]
    contents = path.read_bytes()
    in_memory = queue.mem_items
    place = len(WRITER) + in_memory * 50_025
    path.write_bytes(contents[:place] + b"\xff" * 10 + contents[place + 10 :])
    for _ in range(in_memory - 1):
        queue.take(False)
        scrolls.commit(queue)
        scrolls.threads.run_all()
    assert queue.failure is None
    queue.take(False)
    scrolls.commit(queue)
    with pytest.raises(QueueFailed):
        scrolls.fill(queue)


def test_open_reads_and_what_was_read_forward_take_memory(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(), b"abc", b"defgh")
    again = start.crashed(scrolls, memory=MemoryLimit())
    assert again.memory.used_bytes == 0
    queue = again.fill(again.queue())
    assert again.memory.used_bytes == 8 + 2 * ITEM_BYTES
    xid = queue.take(True).xid
    again.commit(queue)
    assert again.memory.used_bytes == 8 + 2 * ITEM_BYTES
    queue.confirm([xid])
    again.commit(queue)
    assert again.memory.used_bytes == 5 + ITEM_BYTES


def test_a_reader_file_that_is_long_though_it_is_new_is_not_made_again_for_little(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"%d" % number for number in range(1300)])
    xids = [queue.take(True).xid for _ in range(1300)]
    queue.confirm(xids[1::2])
    scrolls.commit(queue)
    scrolls.checkpoint()
    assert len(scrolls.reader()) > 4096
    queue.confirm(xids[:1])
    scrolls.commit(queue)
    scrolls.disk.done.clear()
    scrolls.checkpoint()
    assert scrolls.disk.writes() == {}
