"""Readers of one journal: a parent and its children, their creation and their deletion."""

from __future__ import annotations

import gc
import weakref

import pytest

from kestrel.disk.files import Disk
from kestrel.errors import QueueFailed
from kestrel.scroll.reader_file import DELETED_STATE
from tests.scroll.handwritten import DELETED, put, read_done, read_head, reader_file, sealed, targets, writer_file
from tests.scroll.independent import queues_in
from tests.scroll.storages import FAMILY, PERIOD_S, PERIODIC, SYNCED, Opener, Scrolls, WatchedDisk

FIRST = "work.1700000000000"
NEW_READER = reader_file(0)


def reader_names(scrolls: Scrolls) -> list[str]:
    return [name for name in scrolls.files() if "read" in name]


# Files of a parent and its children.


def test_first_child_renames_the_reader_file_of_the_parent(start: Opener) -> None:
    scrolls, parent = start.queue(b"a", b"b", b"c")
    scrolls.take(parent)
    parent.take(False)
    scrolls.commit(scrolls.queue(b"work+x"), parent)
    assert list(scrolls.files()) == [FIRST, "work.read.:own", "work.read.x"]
    assert scrolls.reader(":own") == NEW_READER + read_head(1) + read_head(2)


def test_new_child_begins_behind_the_last_item(start: Opener) -> None:
    scrolls, parent = start.queue(b"before")
    scrolls.put(parent, b"in the same batch")
    child = scrolls.queue(b"work+x")
    scrolls.put([parent, child], b"after")
    scrolls.commit(parent, child)
    assert scrolls.reader("x") == reader_file(2)
    assert start.crashed(scrolls).drain(*FAMILY[:2]) == [[b"before", b"in the same batch", b"after"], [b"after"]]


def test_child_without_parent_is_the_only_reader(start: Opener) -> None:
    scrolls, child = start.queue(b"a", name=b"work+x")
    assert scrolls.files() == {FIRST: writer_file(b"a"), "work.read.x": NEW_READER}
    scrolls.put_and_commit([scrolls.queue(), child], b"b")
    assert scrolls.reader(":own") == reader_file(1)
    assert start.crashed(scrolls).drain(*FAMILY[:2]) == [[b"b"], [b"a", b"b"]]


@pytest.mark.parametrize(
    ("receivers", "record"),
    [
        ([1], targets(0, b"x")),
        ([0], targets(0, b":own")),
        ([0, 1], targets(1, b"y")),
        ([1, 2], targets(1, b":own")),
    ],
    ids=["only a child", "only the parent", "all but a child", "all but the parent"],
)
def test_put_to_some_readers_writes_targets_before_the_item(start: Opener, receivers: list[int], record: bytes) -> None:
    scrolls, family = start.family(b"for all")
    before = scrolls.files()
    scrolls.disk.done.clear()
    scrolls.put_and_commit([family[index] for index in receivers], b"for some")
    assert scrolls.disk.writes() == {FIRST: 1}
    assert scrolls.files() == before | {FIRST: before[FIRST] + record + put(2, b"for some")}
    scrolls.put_and_commit(family, b"for all again")
    for opened in (scrolls, start.crashed(scrolls)):
        for index, queue in enumerate(opened.family()):
            expected = [b"for all", *[b"for some"] * (index in receivers), b"for all again"]
            assert (queue.items, queue.bytes) == (len(expected), sum(map(len, expected)))
            assert opened.show(queue.name) == [expected]


def test_checkpoint_marks_items_of_siblings_as_done(start: Opener) -> None:
    scrolls, (parent, x, _) = start.family(b"for all")
    scrolls.put_and_commit(x, b"for x")
    scrolls.put_and_commit([parent, x], b"for two")
    assert scrolls.family_readers() == [NEW_READER] * 3
    scrolls.checkpoint()
    assert scrolls.family_readers() == [reader_file(0, 2), NEW_READER, reader_file(0, 2, 3)]


def test_stop_marks_items_of_siblings_as_done(start: Opener) -> None:
    scrolls, (_, x, _) = start.family()
    scrolls.put_and_commit(x, b"for x")
    scrolls.close()
    assert scrolls.family_readers() == [reader_file(1), NEW_READER, reader_file(1)]


def test_error_count_belongs_to_one_reader(start: Opener) -> None:
    scrolls, (parent, x, _) = start.family(b"a")
    x.put_back([x.take(True).xid], True)
    scrolls.commit(x)
    assert (parent.peek().errors, x.peek().errors) == (0, 1)
    again = start.crashed(scrolls)
    assert [again.fill(queue).peek().errors for queue in again.family()] == [0, 1, 0]


# New readers.


def test_parent_has_its_own_file_beside_an_unreadable_child(start: Opener) -> None:
    files = {"work.5": writer_file(b"a"), "work.read.x": NEW_READER}
    scrolls = start.over(files, arrange=lambda disk: disk.cannot_read("work.read.x"))
    scrolls.queue()
    scrolls.threads.run_all()
    assert reader_names(scrolls) == ["work.read.:own", "work.read.x"]


def test_queue_is_created_while_the_disk_is_full(start: Opener) -> None:
    scrolls = start()
    scrolls.disk.room = 0
    new = scrolls.queue(b"new")
    assert (new.items, scrolls.storage.refusal) == (0, None)
    scrolls.disk.room = 1000
    scrolls.put_and_commit(new, b"a")
    assert start.crashed(scrolls).data(b"new") == [b"a"]


def test_new_child_is_durable_after_folder_sync_during_its_creation(start: Opener) -> None:
    scrolls, parent = start.queue(b"a", settings=PERIODIC)
    scrolls.put(parent, b"b")
    assert scrolls.begin_commit(parent) == []
    child = scrolls.queue(b"work+x")
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_newest()  # the sync
    assert len(scrolls.threads) == 1
    scrolls.threads.run_all()
    scrolls.put(child, b"c")
    scrolls.begin_commit(child)
    scrolls.clock.advance(PERIOD_S)
    scrolls.threads.run_all()
    assert start.power_failed(scrolls).data(b"work+x")[-1:] == [b"c"]


def test_new_reader_file_is_synced_before_its_rename(start: Opener) -> None:
    scrolls, _ = start.queue(b"before")
    scrolls.disk.done.clear()
    scrolls.queue(b"work+x")
    scrolls.threads.run_all()
    done = [(operation, name.partition("~~")[0]) for operation, name, _ in scrolls.disk.done]
    assert done.index(("sync", "work.read.x")) < done.index(("rename", "work.read.x"))


def test_takes_of_a_reader_loaded_later_are_durable(start: Opener) -> None:
    files = {"work.5": writer_file(b"a", b"b"), "work.read.:own": NEW_READER, "work.read.x": NEW_READER + bytes(9)}
    scrolls = start.over(files, settings=SYNCED, arrange=lambda disk: disk.cannot_read("work.read.x"))
    scrolls.put_and_commit(scrolls.queue(), b"c")
    scrolls.disk.mend()
    scrolls.take(scrolls.queue(b"work+x"))
    assert start.power_failed(scrolls).data(b"work+x") == [b"b"]


def test_unreadable_reader_is_not_loaded_before_pending_items_are_written(start: Opener) -> None:
    files = {
        "work.5": writer_file(b"a"),
        "work.read.:own": NEW_READER,
        "work.read.x": sealed(read_head(9 << 32) + read_done()),
    }
    scrolls = start.over(files, arrange=lambda disk: disk.cannot_read("work.read.x"))
    parent = scrolls.queue()
    scrolls.put(parent, b"b")
    scrolls.disk.mend()
    with pytest.raises(QueueFailed):
        scrolls.queue(b"work+x")
    scrolls.commit(parent)
    scrolls.put_and_commit([parent, scrolls.queue(b"work+x")], b"c")
    for opened in (start.crashed(scrolls), scrolls):
        assert opened.drain(*FAMILY[:2]) == [[b"a", b"b", b"c"], [b"c"]]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_own_reader_file_takes_precedence_over_the_default_one(
    start: Opener, monkeypatch: pytest.MonkeyPatch, is_reversed: bool
) -> None:
    in_order = lambda disk, path: sorted(Disk.list_files(disk, path), reverse=is_reversed)  # noqa: E731
    monkeypatch.setattr(WatchedDisk, "list_files", in_order)
    scrolls = start.over(
        {"work.5": writer_file(b"a", b"b", b"c"), "work.read.": reader_file(2), "work.read.:own": reader_file(1)}
    )
    assert scrolls.data() == [b"b", b"c"]


# Deleted children and parents.


def test_child_restored_by_power_failure_has_no_later_items(start: Opener) -> None:
    scrolls, (parent, child) = start.family(b"before", children=1, settings=SYNCED)
    scrolls.storage.delete(child)
    scrolls.put(parent, b"after")
    outcomes = scrolls.begin_commit(parent)
    scrolls.threads.run_newest()
    assert outcomes == [None]
    assert start.power_failed(scrolls).drain(*FAMILY[:2]) == [[b"before", b"after"], [b"before"]]


def test_deletion_of_a_failed_queue_is_durable_when_reported(start: Opener) -> None:
    scrolls, family = start.family(b"a", settings=SYNCED)
    scrolls.fail_put(family[2])
    scrolls.storage.delete(family[1])
    outcomes = scrolls.begin_commit(family[1])
    assert outcomes == []
    scrolls.threads.run_all()
    assert outcomes == [None]
    assert start.power_failed(scrolls).drain(*FAMILY) == [[b"a"], [], [b"a"]]


# The deletion of all readers.


def test_deletion_on_a_full_disk_overwrites_the_reader_file(start: Opener) -> None:
    scrolls, queue = start.queue(b"a secret")
    (scrolls.folder / ".kestrel" / "reserve").unlink()
    scrolls.disk.room = 0
    scrolls.storage.delete(queue)
    assert (scrolls.folder / "work.read.").read_bytes() == DELETED_STATE
    assert (scrolls.folder / FIRST).exists()
    assert start.crashed(scrolls).loaded == {}


def test_deleted_queue_is_marked_until_its_files_are_erased(start: Opener) -> None:
    scrolls, queue = start.queue(b"a secret")
    scrolls.storage.delete(queue)
    assert scrolls.files() == {FIRST: writer_file(b"a secret"), "work.read.": NEW_READER + DELETED}
    assert start.crashed(scrolls).loaded == {}
    scrolls.threads.run_all()
    assert scrolls.files() == {}


def test_start_erases_files_of_an_interrupted_deletion(start: Opener) -> None:
    scrolls, queue = start.queue(b"a")
    scrolls.storage.delete(queue)
    scrolls.begin_commit(queue)
    again = start.crashed(scrolls)
    assert (again.loaded, again.files()) == ({}, {})


@pytest.mark.parametrize("items", [0, 3])
def test_recreated_queue_has_only_new_items_with_new_ids(start: Opener, items: int) -> None:
    scrolls, queue = start.queue(*[b"old"] * items)
    scrolls.storage.delete(queue)
    queue = scrolls.queue()
    assert queue.items == 0
    scrolls.put_and_commit(queue, b"new")
    if items:
        (name,) = scrolls.writers()
        assert scrolls.files()[name] == writer_file(b"new", first_id=items + 1)
    assert [(item.id, item.data) for item in start.crashed(scrolls).take_all()] == [(items + 1, b"new")]


@pytest.mark.parametrize("finishes_creation", [False, True])
@pytest.mark.parametrize("runs_newest_first", [False, True])
def test_queue_deleted_twice_stays_deleted(start: Opener, finishes_creation: bool, runs_newest_first: bool) -> None:
    scrolls, queue = start.queue(b"old")
    scrolls.storage.delete(queue)
    if finishes_creation:
        scrolls.begin_commit(queue)
    queue = scrolls.queue()
    scrolls.put(queue, b"newer")
    outcomes = scrolls.begin_commit(queue)
    while not outcomes and len(scrolls.threads):
        scrolls.threads.run_newest()
    scrolls.storage.delete(queue)
    if finishes_creation:
        scrolls.begin_commit(queue)
    while len(scrolls.threads):
        assert start.crashed(scrolls).loaded == {}
        scrolls.threads.run_newest() if runs_newest_first else scrolls.threads.run_one()
    assert (start.crashed(scrolls).loaded, scrolls.files()) == ({}, {})


def found_independently(scrolls: Scrolls) -> dict[bytes, list[bytes]]:
    return {name: [item.data for item in queue.items] for name, queue in queues_in(scrolls.folder).items()}


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]], ids=str)
@pytest.mark.parametrize("recreated", [FAMILY, FAMILY[:1], FAMILY[1:2]], ids=["all", "the parent", "a child"])
def test_deleted_family_can_be_recreated(start: Opener, order: list[int], recreated: tuple[bytes, ...]) -> None:
    scrolls, family = start.family(b"a")
    for index in order:
        scrolls.storage.delete(family[index])
    assert start.crashed(scrolls).loaded == {}
    scrolls.put_and_commit([scrolls.queue(name) for name in recreated], b"b")
    for opened in (start.crashed(scrolls), scrolls):
        assert found_independently(opened) == {name: [b"b"] for name in recreated}
        opened.threads.run_all()
        assert opened.drain(*recreated) == [[b"b"]] * len(recreated)


def test_remains_of_earlier_deletions_hide_no_new_queue(start: Opener) -> None:
    scrolls, (parent, x, y) = start.family()
    scrolls.storage.delete(y)
    scrolls.put_and_commit([parent, x], b"a")
    scrolls.storage.delete(x)
    scrolls.storage.delete(parent)
    scrolls.commit(scrolls.queue(b"work+x"))
    scrolls.storage.delete(scrolls.queue(b"work+x"))
    scrolls.threads.run_all()
    scrolls.put_and_commit(scrolls.queue(), b"b")
    assert found_independently(scrolls) == {b"work": [b"b"]}


def test_deletion_mark_is_erased_after_the_files_it_hides(start: Opener) -> None:
    scrolls, queue = start.queue(b"a")
    scrolls.storage.delete(queue)
    scrolls.disk.calls.clear()
    scrolls.threads.run_all()
    assert scrolls.files() == {}
    changes = [call for call in scrolls.disk.calls if call in ("erase", "sync_folder")]
    assert changes == ["sync_folder", "erase", "erase", "sync_folder", "erase"]


def test_deletion_mark_is_erased_after_another_reader_is_durable(start: Opener) -> None:
    scrolls, parent = start.queue(b"a")
    scrolls.queue(b"work+x")
    scrolls.storage.delete(parent)
    scrolls.threads.run_newest()
    scrolls.disk.calls.clear()
    scrolls.threads.run_all()
    changes = [call for call in scrolls.disk.calls if call in ("rename", "sync_folder", "erase")]
    assert changes == ["rename", "sync_folder", "erase"]
    assert reader_names(scrolls) == ["work.read.x"]


@pytest.mark.parametrize("deleted", [[0], [1], [0, 1, 2]], ids=["the parent", "a child", "all"])
def test_deleted_queue_leaves_no_memory_and_no_timer(start: Opener, deleted: list[int]) -> None:
    scrolls, queues = start.family(b"a", children=max(deleted), settings=PERIODIC)
    deleted_queues = [queues[index] for index in deleted]
    references = [weakref.ref(queue) for queue in deleted_queues]
    for queue in deleted_queues:
        scrolls.storage.delete(queue)
    scrolls.commit(*deleted_queues)
    if len(deleted) == len(queues):
        assert len(scrolls.clock.getDelayedCalls()) == len(start(start.folder / "empty").clock.getDelayedCalls())
    del queue, queues, deleted_queues
    scrolls.threads.run_all()
    gc.collect()
    assert [reference() for reference in references] == [None] * len(deleted)
