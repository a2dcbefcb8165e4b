"""Commits of queues that share a journal: what is durable and reported, and failed writes and syncs."""

from __future__ import annotations

import errno

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.storage.scroll import storage as scroll_storage
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.total_memory import MemoryLimit
from tests.scroll.storages import FAMILY, NEVER, PERIOD_S, PERIODIC, SYNCED, Opener, Scrolls

SMALL_FILES = QueueSettings(sync_journal_ms=0, default_journal_size_bytes=40)


def failed(outcomes: list[object]) -> list[bool]:
    return [outcome is not None for outcome in outcomes]


def fail_commit(scrolls: Scrolls, *queues: ScrollQueue, syncs: int = 1, after: int = 0) -> None:
    """Commit the queues together. That many syncs fail after `after` successful ones."""
    outcomes = scrolls.begin_commit(*queues)
    scrolls.disk.fail("sync", errno.EIO, times=syncs, after=after)
    scrolls.threads.run_all()
    assert failed(outcomes) == [True]


def two_of_a_family(start: Opener) -> tuple[Scrolls, ScrollQueue, ScrollQueue]:
    """Start a synced family that has an item, and return its parent and its first child."""
    scrolls, (parent, child, _) = start.family(b"a", settings=SYNCED)
    return scrolls, parent, child


# Reported results.


def test_queues_that_share_an_item_report_the_same_result(start: Opener) -> None:
    scrolls, parent, child = two_of_a_family(start)
    scrolls.put(child, b"b")
    first = scrolls.begin_commit(child)
    scrolls.put([parent, child], b"both")
    of_parent = scrolls.begin_commit(parent)  # the commit of the child waits for its first one
    scrolls.threads.run_one()
    assert (first, of_parent) == ([None], [])
    scrolls.put(parent, b"lost")
    of_child = scrolls.begin_commit(child)
    scrolls.threads.run_one()
    assert of_parent == [None], "the item is safe"
    scrolls.disk.fail("sync", errno.EIO, times=1)
    later = scrolls.begin_commit(parent)
    scrolls.threads.run_all()
    assert (of_child, failed(later)) == ([None], [True])
    assert scrolls.drain(*FAMILY[:2]) == [[b"a", b"both"], [b"a", b"b", b"both"]]


def test_commit_without_changes_does_not_wait_for_siblings(start: Opener) -> None:
    scrolls, parent, child = two_of_a_family(start)
    scrolls.put(parent, b"b")
    outcomes = scrolls.begin_commit(parent)
    assert scrolls.storage.commit([child]) == []
    scrolls.threads.run_all()
    assert outcomes == [None]


# Settings.


def test_queues_reopened_with_a_sibling_keep_their_settings(start: Opener) -> None:
    scrolls = start()
    parent, child = scrolls.queue(b"work", NEVER), scrolls.queue(b"work+x", SYNCED)
    scrolls.put_and_commit([parent, child], b"a")
    scrolls.fail_put(parent)
    parent = scrolls.queue(b"work", NEVER)
    scrolls.put(parent, b"b")
    assert len(scrolls.storage.commit([parent])) == 1  # it waits for the sync that the child requires


def test_deleted_child_requires_no_sync(start: Opener) -> None:
    scrolls = start()
    parent, child = scrolls.queue(b"work", NEVER), scrolls.queue(b"work+x", SYNCED)
    scrolls.put_and_commit([parent, child], b"a")
    scrolls.delete(child)
    scrolls.put(parent, b"b")
    assert list(scrolls.storage.commit([parent])) == []


# Failed writes.


@pytest.mark.parametrize("change", ["put", "take"])
@pytest.mark.parametrize("settings", [NEVER, SYNCED], ids=["never", "synced"])
@pytest.mark.parametrize("cut_fails", [False, True])
def test_failed_change_is_undone_even_if_completely_written(
    start: Opener, settings: QueueSettings, cut_fails: bool, change: str
) -> None:
    scrolls, queue = start.queue(b"a", settings=settings)
    scrolls.disk.fail("write", errno.EIO, times=1, torn_bytes=100)
    if cut_fails:
        scrolls.disk.fail("cut", errno.EIO, times=1)
    scrolls.put(queue, b"lost") if change == "put" else queue.take(False)
    assert failed(scrolls.begin_commit(queue)) == [True]
    for opened in (start.crashed(scrolls), scrolls):
        assert opened.data() == [b"a"]


def family_with_pending_checkpoint(start: Opener) -> tuple[Scrolls, list[ScrollQueue]]:
    """Start a family in which a checkpoint must mark an item of `work+x` as done in the other reader files."""
    scrolls, family = start.family(b"a")
    scrolls.put_and_commit(family[1], b"for x")
    return scrolls, family


def test_commits_behind_a_failed_one_are_not_written(start: Opener) -> None:
    scrolls, family = family_with_pending_checkpoint(start)
    scrolls.clock.advance(10)
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
        assert opened.drain(*FAMILY) == [[b"a"], [b"a", b"for x"], [b"a"]]


def test_take_undone_by_a_failure_is_in_no_checkpoint(start: Opener) -> None:
    scrolls, family = family_with_pending_checkpoint(start)
    scrolls.fill(family[0]).take(False)
    scrolls.checkpoint()
    scrolls.fail_put(family[0])
    for opened in (start.crashed(scrolls), scrolls):
        assert opened.data() == [b"a"]


def test_scroll_that_is_being_reloaded_is_loaded_once(start: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scroll_storage, "RELOAD_INLINE_READERS", 0)
    scrolls, queue = start.queue(b"a")
    scrolls.fail_put(queue)
    for _ in range(2):
        with pytest.raises(QueueFailed, match="is being loaded again"):
            scrolls.queue()
    scrolls.threads.run_one()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"b")
    scrolls.threads.run_all()
    assert scrolls.queue() is queue
    assert scrolls.data() == [b"a", b"b"]


def test_put_refused_by_one_queue_is_in_none(start: Opener) -> None:
    scrolls = start()
    working, failing = scrolls.queue(b"working"), scrolls.queue(b"failing", PERIODIC)
    scrolls.put_and_commit(failing, b"a")
    scrolls.disk.fail("sync", errno.EIO, times=1)
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_one()
    with pytest.raises(StorageRefused):
        scrolls.storage.put([working, failing], b"refused", 0, 0)
    assert (working.items, failing.items) == (0, 1)


def test_full_memory_bounds_unwritten_items(start: Opener) -> None:
    scrolls, queue = start.queue(memory=MemoryLimit(1))
    with pytest.raises(StorageRefused, match="memory is full"):
        for _ in range(100):
            scrolls.put(queue, bytes(64 * 1024))
    scrolls.commit(queue)
    scrolls.put(queue, b"accepted again")


# Failed syncs with syncJournal = 0.


def test_only_items_synced_before_the_failure_stay(start: Opener) -> None:
    scrolls, family = start.family(settings=SYNCED)
    scrolls.put(family[1], b"stored")
    stored = scrolls.begin_commit(family[1])
    scrolls.put(family[2], b"lost")
    lost = scrolls.begin_commit(family[2])
    scrolls.disk.before("sync_folder", lambda: scrolls.disk.fail("sync", errno.EIO, times=1))
    scrolls.threads.run_all()
    assert (stored, failed(lost)) == ([None], [True])
    scrolls.queue()
    for opened in (start.power_failed(scrolls), start.crashed(scrolls), scrolls):
        assert opened.drain(*FAMILY) == [[], [b"stored"], []]


def test_partly_synced_batch_is_undone_completely(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b", settings=SYNCED)
    queue.take(False)
    scrolls.put(queue, b"lost")
    fail_commit(scrolls, queue, after=1)
    assert start.power_failed(scrolls).data() == [b"a", b"b"]
    scrolls.queue()
    for opened in (start.power_failed(scrolls), start.crashed(scrolls), scrolls):
        assert opened.data() == [b"a", b"b"]


def test_synced_take_beside_a_failed_one_is_undone(start: Opener) -> None:
    scrolls, family = start.family(b"a", settings=SYNCED)
    for queue in family:
        queue.take(False)
    # The last of three syncs fails, and so does the sync of the first file that is cut in response.
    fail_commit(scrolls, *family, syncs=2, after=2)
    assert [queue.items for queue in scrolls.family()] == [1, 1, 1]
    assert start.power_failed(scrolls).drain(*FAMILY) == [[b"a"]] * 3


def test_take_after_a_failed_sync_is_durable(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b", b"c", settings=SYNCED)
    queue.take(False)
    fail_commit(scrolls, queue)
    scrolls.take(scrolls.queue())
    assert start.power_failed(scrolls).data() == [b"b", b"c"]


def test_commit_waits_while_no_file_can_be_opened(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b", settings=SYNCED)
    queue.take(False)
    outcomes = scrolls.begin_commit(queue)
    scrolls.disk.fail("open_read", errno.EMFILE, times=1)
    scrolls.threads.run_all()
    assert outcomes == []
    scrolls.pass_time(1)
    assert outcomes == [None]
    assert start.power_failed(scrolls).data() == [b"b"]


def test_files_are_kept_for_a_take_whose_sync_fails(start: Opener) -> None:
    scrolls, family = start.family(b"0123456789", children=1, settings=SMALL_FILES)
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
    assert scrolls.data(b"work+x") == [b"1234567890", b"2345678901"]


# Failed syncs with a period.


@pytest.mark.parametrize("is_during_sync", [False, True], ids=["before a sync", "during a sync"])
def test_reported_takes_survive_failure_of_next_sync(start: Opener, is_during_sync: bool) -> None:
    scrolls, queue = start.queue(b"a", b"b", b"c", settings=PERIODIC)
    if is_during_sync:
        scrolls.take(queue)
        scrolls.clock.advance(PERIOD_S)
        assert len(scrolls.threads) == 1
    else:
        scrolls.pass_period()
    queue.take(False)
    assert scrolls.begin_commit(queue) == []
    scrolls.threads.run_all()
    scrolls.disk.fail("sync", errno.EIO, times=1)
    scrolls.pass_period()
    queue.take(False)
    assert scrolls.begin_commit(queue) == []
    assert queue.failure is None
    assert start.power_failed(scrolls).data() == ([b"c"] if is_during_sync else [b"b", b"c"])


@pytest.mark.parametrize("syncs_before", [0, 1])
def test_changes_after_a_failed_repair_are_synced_within_the_period(start: Opener, syncs_before: int) -> None:
    scrolls, queue = start.queue(b"a", b"b", b"c", settings=PERIODIC)
    scrolls.take(queue)
    scrolls.disk.fail("sync", errno.EIO, times=2, after=syncs_before)
    scrolls.pass_period()
    queue.take(False)
    assert failed(scrolls.begin_commit(queue)) == [True]
    queue = scrolls.fill(scrolls.queue())
    assert queue.take(False).data == b"b"
    scrolls.put_and_commit(queue, b"d")
    scrolls.pass_period()
    items = start.power_failed(scrolls).data()
    assert (b"a" in items, b"b" in items, items[-1:]) == (False, False, [b"d"])


def test_failed_sync_after_an_erased_file_rewrites_the_others(start: Opener) -> None:
    settings = QueueSettings(sync_journal_ms=500, default_journal_size_bytes=40)
    scrolls, queue = start.queue(*[b"%010d" % number for number in range(4)], settings=settings)
    scrolls.take(queue, 2)
    scrolls.threads.run_all()
    assert len(scrolls.writers()) == 2
    scrolls.disk.fail("sync", errno.EIO, times=1)
    scrolls.pass_period()
    queue.take(False)
    assert scrolls.begin_commit(queue) == []
    assert start.power_failed(scrolls).data()[-1:] == [b"0000000003"]


# Which files are synced.


def test_takes_are_durable_when_a_sync_setting_is_added(start: Opener) -> None:
    scrolls, (parent, child) = start.family(b"a", b"b", children=1, settings=SYNCED)
    scrolls.put_and_commit(child, b"for x")
    for settings in (NEVER, SYNCED):
        for name in FAMILY[:2]:
            scrolls.queue(name, settings)
        scrolls.checkpoint()
    scrolls.take(parent)
    assert start.power_failed(scrolls).data() == [b"b"]


@pytest.mark.parametrize("settings", [SYNCED, PERIODIC], ids=["synced", "period"])
def test_all_files_are_synced_soon_after_a_crash(start: Opener, settings: QueueSettings) -> None:
    scrolls, _ = start.family(b"a")
    again = start.crashed(scrolls, settings=settings)
    again.pass_period()
    assert {name for operation, name, _ in again.disk.done if operation == "sync"} >= set(again.files())


def test_all_files_are_rewritten_if_first_sync_fails(start: Opener) -> None:
    scrolls, _ = start.family(b"a")
    again = start.crashed(scrolls, settings=SYNCED, arrange=lambda disk: disk.fail("sync", errno.EIO, times=1))
    again.pass_time(1)
    assert {name for operation, name, _ in again.disk.done if operation == "rename"} == set(again.files())
    assert [queue.failure for queue in again.loaded.values()] == [None] * 3
    assert start.power_failed(again).drain(*FAMILY) == [[b"a"]] * 3
