"""The scroll backend keeps its queues in libkestrel's files, written record by record as they document it."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from kestrel.config.model import QueueSettings
from kestrel.errors import BadStorageArgument, FolderInUse, ItemTooLarge, QueueFailed, StorageError
from kestrel.scroll.reader_file import DELETED_STATE
from kestrel.scroll.records import MAX_DATA_BYTES
from kestrel.storage.interfaces import IStorageFactory
from kestrel.storage.registry import ScrollStorageFactory
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.threads import SteppedThreads
from tests.scroll.independent import queues_in
from tests.scroll.made import DELETED, READER, WRITER, T, errors, put, read_done, read_head, targets
from tests.scroll.storages import PERIODIC, SYNCED, Opener, Scrolls
from tests.storage.conftest import AllowDescriptors

FIRST = "work.1700000000000"
NEW_READER = READER + read_head(0) + read_done()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path)
    yield opener
    opener.stop_all()


# What is in the files.


def test_what_is_put_stands_in_the_writer_file_as_libkestrels_records(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put(queue, b"a", b"")
    scrolls.put(queue, bytes(range(256)), add_ms=1, expiry_ms=2)
    scrolls.commit(queue)
    expected = WRITER + put(1, b"a") + put(2, b"") + put(3, bytes(range(256)), add_ms=1, expiry_ms=2)
    assert scrolls.files() == {FIRST: expected, "work.read.": NEW_READER}


def test_nothing_is_written_before_the_commit(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b", b"c")
    before = scrolls.files()
    scrolls.put(queue, b"d")
    queue.take(False)
    queue.confirm([queue.take(True).xid])
    queue.put_back([queue.take(True).xid], True)
    assert scrolls.files() == before
    queue.clear()
    assert scrolls.files() == before
    scrolls.commit(queue)
    assert scrolls.files() != before


def test_what_is_taken_for_good_moves_the_head(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b", b"c")
    for taken in (1, 2, 3):
        queue.take(False)
        scrolls.commit(queue)
        assert scrolls.reader() == NEW_READER + b"".join(read_head(head) for head in range(1, taken + 1))


def test_what_a_batch_takes_moves_the_head_once(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"a"] * 100)
    scrolls.take_all(queue)
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + read_head(100)


def test_an_open_read_is_not_written(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    before = scrolls.files()
    xid = queue.take(True).xid
    scrolls.commit(queue)
    queue.put_back([xid], False)
    scrolls.commit(queue)
    assert scrolls.files() == before


def test_what_is_confirmed_out_of_order_is_written_as_done(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"%d" % number for number in range(1, 9)])
    xids = [queue.take(True).xid for _ in range(8)]
    for confirmed, expected in [
        ([2], read_done(2)),
        ([7, 5], read_done(5, 7)),
        ([1], read_head(2)),
        ([3, 8], read_head(3) + read_done(8)),
        ([6, 4], read_done(6) + read_head(8)),
    ]:
        before = scrolls.reader()
        assert queue.confirm([xids[number - 1] for number in confirmed]) == len(confirmed)
        scrolls.commit(queue)
        assert scrolls.reader() == before + expected


def test_an_item_that_failed_has_its_errors_in_the_reader_file(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    xids = [queue.take(True).xid, queue.take(True).xid]
    queue.put_back([xids[1]], True)
    scrolls.commit(queue)
    queue.put_back([queue.take(True).xid], True)
    queue.put_back([xids[0]], True)
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + errors(_2=1) + errors(_2=2, _1=1)


def test_an_item_that_fails_and_is_taken_in_one_batch_is_written_as_both(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a")
    queue.put_back([queue.take(True).xid], True)
    queue.take(False)
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + errors(_1=1) + read_head(1)


def test_what_a_batch_does_is_written_in_the_order_in_which_it_was_done(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"%d" % number for number in range(1, 8)])
    xids = [queue.take(True).xid for _ in range(6)]
    queue.confirm([xids[2], xids[4]])
    queue.put_back([xids[1]], True)
    queue.confirm([xids[0]])
    queue.confirm([xids[5]])
    queue.take(False)
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + read_done(3, 5) + errors(_2=1) + read_head(1) + read_done(6) + read_head(3)


def test_a_clear_moves_the_head_as_far_as_open_reads_allow(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b", b"c", b"d")
    queue.take(False)
    queue.take(True)
    queue.clear()
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + read_head(1) + read_done(3, 4)


def test_a_clear_of_thousands_is_a_few_bytes(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"a"] * 10_000)
    queue.clear()
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + read_head(10_000)


def test_what_is_put_and_taken_in_one_batch_is_written_as_both(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put(queue, b"a")
    queue.take(False)
    scrolls.commit(queue)
    assert scrolls.files() == {FIRST: WRITER + put(1, b"a"), "work.read.": NEW_READER + read_head(1)}


def test_a_batch_is_one_write_to_the_writer_file_and_one_to_each_reader_file_that_changed(start: Opener) -> None:
    scrolls = start()
    family = [scrolls.queue(name) for name in (b"work", b"work+x", b"work+y")]
    scrolls.put_and_commit(family, *[b"a"] * 20)
    scrolls.disk.done.clear()
    scrolls.put(family, *[b"b"] * 100)
    scrolls.put(family[1], *[b"for x"] * 100)
    for queue in family[:2]:
        queue.confirm([queue.take(True).xid, queue.take(True).xid][1:])
        queue.take(False)
    scrolls.commit(*family)
    assert scrolls.disk.writes() == {FIRST: 1, "work.read.:own": 1, "work.read.x": 1}


def test_a_commit_of_nothing_writes_nothing(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a")
    scrolls.disk.done.clear()
    scrolls.commit(queue)
    assert scrolls.disk.done == []


def test_the_file_sizes_are_told(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"four")
    assert (queue.stats["logsize"], queue.stats["journal_bytes"], queue.disk_bytes) == (33, 33, 33 + 36)
    queue.take(False)
    scrolls.commit(queue)
    assert (queue.stats["logsize"], queue.disk_bytes) == (33, 54)


def test_an_item_of_the_largest_size_is_taken_and_a_larger_one_is_refused(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, bytes(MAX_DATA_BYTES))
    with pytest.raises(ItemTooLarge):
        scrolls.put(queue, bytes(MAX_DATA_BYTES + 1))
    again = start.again(scrolls)
    assert [len(item.data) for item in again.take_all(again.queue())] == [MAX_DATA_BYTES]


# A parent and its children.


def test_with_the_first_child_the_reader_file_of_the_parent_gets_a_name_of_its_own(start: Opener) -> None:
    scrolls = start()
    parent = scrolls.queue()
    scrolls.put_and_commit(parent, b"a", b"b")
    parent.take(False)
    scrolls.commit(parent)
    before = scrolls.reader()
    scrolls.commit(scrolls.queue(b"work+x"))
    files = scrolls.files()
    assert sorted(files) == [FIRST, "work.read.:own", "work.read.x"]
    assert files["work.read.:own"] == before


def test_what_is_recorded_in_the_parent_goes_on_in_its_file_under_the_new_name(start: Opener) -> None:
    scrolls = start()
    parent = scrolls.queue()
    scrolls.put_and_commit(parent, b"a", b"b")
    parent.take(False)
    scrolls.commit(scrolls.queue(b"work+x"), parent)
    assert scrolls.reader(":own") == NEW_READER + read_head(1)


def test_a_child_begins_behind_the_last_item_that_there_is(start: Opener) -> None:
    scrolls = start()
    parent = scrolls.queue()
    scrolls.put_and_commit(parent, b"before")
    scrolls.put(parent, b"in the same batch")
    child = scrolls.queue(b"work+x")
    scrolls.put([parent, child], b"after")
    scrolls.commit(parent, child)
    assert scrolls.reader("x") == READER + read_head(2) + read_done()
    again = start.crashed(scrolls)
    assert again.data(again.queue(b"work+x")) == [b"after"]
    assert again.data(again.queue()) == [b"before", b"in the same batch", b"after"]


def test_a_child_of_a_parent_that_is_not_there_is_the_only_reader(start: Opener) -> None:
    scrolls = start()
    child = scrolls.queue(b"work+x")
    scrolls.put_and_commit(child, b"a")
    assert scrolls.files() == {FIRST: WRITER + put(1, b"a"), "work.read.x": NEW_READER}
    parent = scrolls.queue()
    scrolls.put_and_commit([parent, child], b"b")
    assert scrolls.reader(":own") == READER + read_head(1) + read_done()
    again = start.crashed(scrolls)
    assert (again.data(again.queue()), again.data(again.queue(b"work+x"))) == ([b"b"], [b"a", b"b"])


def test_a_put_to_a_parent_and_a_hundred_children_writes_what_a_put_to_one_queue_writes(start: Opener) -> None:
    scrolls = start()
    one = scrolls.queue(b"alone")
    family = [scrolls.queue(name) for name in (b"work", *(b"work+%d" % number for number in range(100)))]
    scrolls.put_and_commit(one, b"first")
    scrolls.put_and_commit(family, b"first")
    written = []
    for queues in ([one], family):
        scrolls.disk.done.clear()
        scrolls.put_and_commit(queues, *[b"an item"] * 10)
        written.append(scrolls.disk.bytes_of("write"))
    assert written == [10 * (25 + 7)] * 2


def family_of(scrolls: Scrolls) -> list[ScrollQueue]:
    """The queue `work` with its children `work+x` and `work+y`."""
    return [scrolls.queue(name) for name in (b"work", b"work+x", b"work+y")]


@pytest.mark.parametrize(
    ("given", "record"),
    [
        ([1], targets(0, b"x")),
        ([0], targets(0, b":own")),
        ([0, 1], targets(1, b"y")),
        ([1, 2], targets(1, b":own")),
    ],
    ids=["a child alone", "the parent alone", "all but a child", "all but the parent"],
)
def test_a_put_to_some_is_one_item_behind_a_record_of_whom_it_is_for(
    start: Opener, given: list[int], record: bytes
) -> None:
    scrolls = start()
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"for all")
    before = scrolls.files()
    scrolls.disk.done.clear()
    scrolls.put_and_commit([family[index] for index in given], b"for some")
    assert scrolls.disk.writes() == {FIRST: 1}
    assert scrolls.files() == before | {FIRST: before[FIRST] + record + put(2, b"for some")}
    scrolls.put_and_commit(family, b"for all again")
    for opened in (scrolls, start.crashed(scrolls)):
        for index, queue in enumerate(family_of(opened)):
            expected = [b"for all", *[b"for some"] * (index in given), b"for all again"]
            assert (queue.items, queue.bytes) == (len(expected), sum(map(len, expected)))
            assert [item.data for item in opened.look_through(queue)] == expected


def test_where_there_is_one_reader_no_record_says_for_whom_an_item_is(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(b"work+x"), b"a")
    assert scrolls.files()[FIRST] == WRITER + put(1, b"a")


@pytest.mark.parametrize("ends", ["in a crash", "in order"])
def test_what_was_put_to_a_sibling_never_comes(start: Opener, ends: str) -> None:
    scrolls = start()
    parent, x, y = family_of(scrolls)
    for number in range(20):
        scrolls.put_and_commit(x, b"x%d" % number)
        scrolls.put_and_commit([parent, x, y], b"all %d" % number)
        scrolls.put_and_commit(y, b"y%d" % number)
    assert (parent.items, x.items, y.items) == (20, 40, 40)
    for _ in range(2):
        scrolls = start.crashed(scrolls) if ends == "in a crash" else start.again(scrolls)
        parent, x, y = family_of(scrolls)
        assert [item.data for item in scrolls.look_through(parent)] == [b"all %d" % number for number in range(20)]
        assert [item.data[:1] for item in scrolls.look_through(x)] == [b"x", b"a"] * 20
        assert [item.data[:1] for item in scrolls.look_through(y)] == [b"a", b"y"] * 20


def test_after_a_checkpoint_the_files_of_siblings_say_that_they_are_done_with_it(start: Opener) -> None:
    scrolls = start()
    parent, x, y = family_of(scrolls)
    scrolls.put_and_commit([parent, x, y], b"for all")
    scrolls.put_and_commit(x, b"for x")
    scrolls.put_and_commit([parent, x], b"for two")
    assert [scrolls.reader(part) for part in (":own", "x", "y")] == [NEW_READER] * 3
    scrolls.checkpoint()
    assert scrolls.reader(":own") == READER + read_head(0) + read_done(2)
    assert scrolls.reader("x") == NEW_READER
    assert scrolls.reader("y") == READER + read_head(0) + read_done(2, 3)


def test_at_the_stop_the_files_of_siblings_say_that_they_are_done_with_it(start: Opener) -> None:
    scrolls = start()
    _, x, _ = family_of(scrolls)
    scrolls.put_and_commit(x, b"for x")
    scrolls.close()
    assert scrolls.reader("y") == scrolls.reader(":own") == READER + read_head(1) + read_done()
    assert scrolls.reader("x") == NEW_READER


def test_an_error_count_is_that_of_one_reader(start: Opener) -> None:
    scrolls = start()
    parent, x, y = family_of(scrolls)
    scrolls.put_and_commit([parent, x, y], b"a")
    x.put_back([x.take(True).xid], True)
    scrolls.commit(x)
    assert (parent.peek().errors, x.peek().errors) == (0, 1)
    again = start.crashed(scrolls)
    assert [again.fill(queue).peek().errors for queue in family_of(again)] == [0, 1, 0]


def test_a_deleted_child_leaves_no_file_and_its_siblings_as_they_were(start: Opener) -> None:
    scrolls = start()
    parent, x, y = family_of(scrolls)
    scrolls.put_and_commit([parent, x, y], b"a")
    scrolls.storage.delete(x)
    scrolls.commit(x)
    assert sorted(scrolls.files()) == [FIRST, "work.read.:own", "work.read.y"]
    again = start.crashed(scrolls)
    assert sorted(again.loaded) == [b"work", b"work+y"]
    assert (again.data(again.queue()), again.data(again.queue(b"work+y"))) == ([b"a"], [b"a"])


def test_a_child_that_is_made_again_begins_behind_the_last_item(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(family_of(scrolls), b"a")
    scrolls.storage.delete(scrolls.queue(b"work+x"))
    scrolls.put_and_commit(family_of(scrolls), b"b")
    for opened in (scrolls, start.crashed(scrolls)):
        assert [opened.data(queue) for queue in family_of(opened)] == [[b"a", b"b"], [b"b"], [b"a", b"b"]]


def test_a_parent_goes_and_its_children_stay(start: Opener) -> None:
    scrolls = start()
    parent, _, _ = family_of(scrolls)
    scrolls.put_and_commit(family_of(scrolls), b"a")
    scrolls.storage.delete(parent)
    scrolls.commit(parent)
    again = start.crashed(scrolls)
    assert sorted(again.loaded) == [b"work+x", b"work+y"]
    assert again.data(again.queue(b"work+x")) == [b"a"]
    assert again.data(again.queue()) == []


# Deleting the last one.


def test_deletion_on_a_full_disk_overwrites_the_reader_file(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a secret")
    (scrolls.folder / ".kestrel" / "reserve").unlink()
    scrolls.disk.room = 0
    scrolls.storage.delete(queue)
    assert (scrolls.folder / "work.read.").read_bytes() == DELETED_STATE
    assert (scrolls.folder / FIRST).exists()
    assert start.crashed(scrolls).loaded == {}


def test_a_deleted_queue_says_so_in_its_file_until_all_its_files_are_erased(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a secret")
    scrolls.storage.delete(queue)
    assert scrolls.files() == {FIRST: WRITER + put(1, b"a secret"), "work.read.": NEW_READER + DELETED}
    assert start.crashed(scrolls).loaded == {}
    scrolls.threads.run_all()
    assert scrolls.files() == {}


@pytest.mark.parametrize("items", [0, 3])
def test_a_queue_that_is_made_again_at_once_has_what_is_put_from_then_on(start: Opener, items: int) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"old"] * items)
    scrolls.storage.delete(queue)
    queue = scrolls.queue()
    assert queue.items == 0
    scrolls.put_and_commit(queue, b"new")
    again = start.crashed(scrolls)
    assert again.data(again.queue()) == [b"new"]


def test_ids_go_on_while_the_files_of_a_deleted_queue_are_being_erased(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b", b"c")
    scrolls.storage.delete(queue)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"new")
    (name,) = scrolls.writers()
    assert scrolls.files()[name] == WRITER + put(4, b"new")
    again = start.crashed(scrolls)
    assert [(item.id, item.data) for item in again.take_all(again.queue())] == [(4, b"new")]


def test_a_queue_that_is_deleted_and_made_again_in_a_row_is_never_what_it_was_before(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"old")
    scrolls.storage.delete(queue)
    queue = scrolls.queue()
    scrolls.put(queue, b"newer")
    outcomes = scrolls.begin_commit(queue)
    while not outcomes and len(scrolls.threads):
        scrolls.threads.run_newest()
    scrolls.storage.delete(queue)
    while len(scrolls.threads):
        assert start.crashed(scrolls).loaded == {}
        scrolls.threads.run_one()
    assert scrolls.files() == {}


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]], ids=str)
def test_a_family_that_is_deleted_is_gone_and_may_be_made_again(start: Opener, order: list[int]) -> None:
    scrolls = start()
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    for index in order:
        scrolls.storage.delete(family[index])
    assert start.crashed(scrolls).loaded == {}
    scrolls.put_and_commit(family_of(scrolls), b"b")
    for opened in (scrolls, start.crashed(scrolls)):
        assert [opened.data(queue) for queue in family_of(opened)] == [[b"b"]] * 3


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]], ids=str)
@pytest.mark.parametrize("name", [b"work", b"work+x"])
def test_one_that_is_made_again_alone_is_there_for_whoever_reads_the_folder(
    start: Opener, order: list[int], name: bytes
) -> None:
    scrolls = start()
    family = family_of(scrolls)
    scrolls.put_and_commit(family, b"a")
    for index in order:
        scrolls.storage.delete(family[index])
    scrolls.put_and_commit(scrolls.queue(name), b"b")
    for folder in (scrolls.left_behind(), scrolls.folder):
        assert {name: [item.data for item in queue.items] for name, queue in queues_in(folder).items()} == {
            name: [b"b"]
        }
        scrolls.threads.run_all()


def test_what_is_left_of_an_earlier_deletion_hides_no_queue_that_is_made_later(start: Opener) -> None:
    scrolls = start()
    family = family_of(scrolls)[:2]
    scrolls.storage.delete(scrolls.queue(b"work+y"))
    scrolls.put_and_commit(family, b"a")
    scrolls.storage.delete(family[1])
    scrolls.storage.delete(family[0])
    scrolls.commit(scrolls.queue(b"work+x"))
    scrolls.storage.delete(scrolls.queue(b"work+x"))
    scrolls.threads.run_all()
    scrolls.put_and_commit(scrolls.queue(), b"b")
    assert {name: [item.data for item in queue.items] for name, queue in queues_in(scrolls.folder).items()} == {
        b"work": [b"b"]
    }


# Restarts.


def test_a_restart_brings_the_items_as_they_were(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put(queue, bytes(range(256)), add_ms=1, expiry_ms=2)
    scrolls.put(queue, b"", b"last")
    queue.put_back([queue.take(True).xid], True)
    again = start.again(scrolls)
    items = again.take_all(again.queue())
    assert [(item.data, item.add_ms, item.expiry_ms, item.errors, item.xid) for item in items] == [
        (bytes(range(256)), 1, 2, 1, 0),
        (b"", T, 0, 0, 0),
        (b"last", T, 0, 0, 0),
    ]


def test_error_counts_survive_every_restart_and_go_on(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(), b"a", b"b")
    for errors_by_then in range(1, 5):
        queue = scrolls.fill(scrolls.queue())
        queue.put_back([queue.take(True).xid], True)
        scrolls.commit(queue)
        scrolls = start.crashed(scrolls) if errors_by_then % 2 else start.again(scrolls)
        assert scrolls.fill(scrolls.queue()).peek().errors == errors_by_then
    assert [item.errors for item in scrolls.take_all(scrolls.queue())] == [4, 0]


def test_the_errors_of_an_open_read_survive_a_clear_and_a_restart(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    queue.put_back([queue.take(True).xid], True)
    queue.take(True)
    queue.clear()
    scrolls.commit(queue)
    for opened in (start.crashed(scrolls), start.again(scrolls)):
        assert [(item.data, item.errors) for item in opened.take_all(opened.queue())] == [(b"a", 1)]


def test_open_reads_are_back_in_their_places(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"%d" % number for number in range(6)])
    xids = [queue.take(True).xid for _ in range(4)]
    queue.confirm([xids[1]])
    scrolls.commit(queue)
    again = start.crashed(scrolls)
    assert (again.queue().open_reads, again.queue().items, again.queue().replayed_items) == (0, 5, 5)
    assert again.data(again.queue()) == [b"0", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("head", [0, 1, 3])
def test_what_was_done_out_of_order_does_not_come_after_a_restart(start: Opener, head: int) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"%d" % number for number in range(1, 18)])
    xids = [queue.take(True).xid for _ in range(10)]
    queue.confirm([*xids[:head], *xids[head + 1 :]])
    scrolls.commit(queue)
    again = start.crashed(scrolls)
    queue = again.queue()
    assert queue.items == 8
    assert again.data(queue) == [b"%d" % (head + 1), *[b"%d" % number for number in range(11, 18)]]
    assert (queue.items, queue.bytes) == (0, 0)


def test_ids_go_on_after_a_restart(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(), b"a", b"b")
    for expected in (3, 4):
        scrolls = start.again(scrolls)
        scrolls.put_and_commit(scrolls.queue(), b"c")
        assert scrolls.files()[FIRST].endswith(put(expected, b"c"))


def test_ids_go_on_though_no_writer_file_was_left(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    scrolls.take_all(queue)
    scrolls.close(compacts=True)
    assert scrolls.files() == {"work.read.": READER + read_head(2) + read_done()}
    again = start(scrolls.folder)
    again.put_and_commit(again.queue(), b"c")
    (name,) = again.writers()
    assert again.files()[name] == WRITER + put(3, b"c")
    assert again.data(again.queue()) == [b"c"]


def test_close_writes_what_was_not_committed(start: Opener) -> None:
    scrolls = start()
    scrolls.put(scrolls.queue(), b"a")
    scrolls.close()
    assert scrolls.files()[FIRST] == WRITER + put(1, b"a")


def test_what_is_written_after_a_restart_stands_behind_what_was_there(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    queue.take(False)
    again = start.again(scrolls)
    again.put(again.queue(), b"c")
    again.fill(again.queue()).take(False)
    again.commit(again.queue())
    assert again.files() == {
        FIRST: WRITER + put(1, b"a") + put(2, b"b") + put(3, b"c"),
        "work.read.": READER + read_head(1) + read_done() + read_head(2),
    }


@pytest.mark.parametrize("torn_bytes", range(1, 18))
def test_a_reader_file_whose_making_failed_in_the_middle_is_made_anew(start: Opener, torn_bytes: int) -> None:
    scrolls = start()
    scrolls.disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
    with pytest.raises(QueueFailed):
        scrolls.queue()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    queue.take(False)
    scrolls.commit(queue)
    again = start.crashed(scrolls)
    assert again.data(again.queue()) == [b"b"]


def test_a_stop_goes_well_though_an_item_waits_in_a_journal_of_which_no_reader_can_be_read(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit([scrolls.queue(), scrolls.queue(b"work+x")], b"a")
    scrolls.close()
    again = start(scrolls.folder, arrange=lambda disk: disk.cannot_read("work.read.x"))
    queue = again.queue()
    again.put(queue, b"b")
    again.storage.delete(queue)
    again.commit(queue)
    again.close()
    last = start(scrolls.folder)
    assert list(last.loaded) == [b"work+x"]
    assert last.data(last.queue(b"work+x")) == [b"a"]


# Names.

NAMES = {
    b"work": "work.read.",
    b"A-Z_0-9": "A-Z_0-9.read.",
    b"caf\xe9": "caf:e9.read.",
    b"a b.c:d/e": "a:20b:2ec:3ad:2fe.read.",
    b"work+x": "work.read.x",
    b"work+x+y": "work.read.x:2by",
    b"work+:own": "work.read.:3aown",
    b"work+a.b": "work.read.a:2eb",
    b"+x": ":2bx.read.",
    b"x+": "x:2b.read.",
    b"+": ":2b.read.",
    b"a++": "a.read.:2b",
    bytes(range(0x80, 0xB0)): "".join(f":{byte:02x}" for byte in range(0x80, 0xB0)) + ".read.",
    b"n" * 200: "::" + hashlib.blake2b(b"n" * 200, digest_size=16).hexdigest() + ".read.",
    b"work+" + b"\xff" * 150: "work.read.::" + hashlib.blake2b(b"\xff" * 150, digest_size=16).hexdigest(),
    bytes(range(1, 201)): "".join(f":{byte:02x}" for byte in range(1, 43))
    + ".read.::"
    + hashlib.blake2b(bytes(range(44, 201)), digest_size=16).hexdigest(),
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_a_queue_is_kept_in_files_named_as_documented_and_comes_back(start: Opener, name: bytes) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(name), b"data", bytes(range(256)))
    assert [file for file in scrolls.files() if ".read." in file] == [NAMES[name]]
    again = start.crashed(scrolls)
    assert list(again.loaded) == [name]
    assert again.data(again.queue(name)) == [b"data", bytes(range(256))]


def test_all_of_these_live_in_one_folder(start: Opener) -> None:
    scrolls = start()
    for name in NAMES:
        scrolls.put_and_commit(scrolls.queue(name), name)
    again = start.again(scrolls)
    assert {name: again.data(again.queue(name)) for name in again.loaded} == {name: [name] for name in NAMES}


def test_the_true_name_behind_a_hash_is_kept_for_a_power_failure_too(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    name = b"n" * 200
    scrolls.put_and_commit(scrolls.queue(name), b"a")
    names = scrolls.folder / ".kestrel" / "names"
    (file,) = names.iterdir()
    assert (file.name, file.read_bytes()) == (hashlib.blake2b(name, digest_size=16).hexdigest(), name)
    medium = scrolls.folder.with_name("names-on-the-medium")
    scrolls.disk.medium.copy(str(names).encode(), str(medium).encode())
    assert (medium / file.name).read_bytes() == name


def test_no_file_has_a_name_of_more_than_243_bytes(start: Opener) -> None:
    scrolls = start()
    longest = 0
    for size in (*range(55, 65), *range(170, 200)):
        for name in (b"n" * size, b"\xff" * size, b"work+" + b"n" * size, b"w" * 170 + b"+" + b"\xff" * 29):
            scrolls.queue(name)
            longest = max(longest, *map(len, scrolls.files()))
    assert longest + len("~~1700000000000") <= 243


FOREIGN = {
    "work": b"no scroll",
    "work.bak": b"x",
    "work.read": b"x",
    "work.2026010112000000": b"sixteen digits",
    "work.1x": b"x",
    "work.1.read.": b"x",
    ".1": b"x",
    "caf\xe9.1": b"x",
    "archive~work.1700000000000": WRITER + put(1, b"a"),
    "work.read.x.y": READER,
    "work.pack": b"x",
}
MISSPELT = {
    "a:b.123": WRITER + put(1, b"a") + b"\x86\0",
    "a:B7.12": WRITER,
    "a:41.12": WRITER + put(1, b"a"),
    "a:b.read.": b"",
    "a:b.read.~~5": b"x",
    "::00112233445566778899aabbccddeeff.7": WRITER + put(1, b"a") + b"\x86",
    "::00112233445566778899aabbccddeeff.read.x": b"junk",
}


@pytest.mark.parametrize("files", [FOREIGN, MISSPELT], ids=["of other forms", "spelled otherwise"])
def test_files_with_names_of_other_kinds_are_no_queues_and_are_left_alone(
    start: Opener, tmp_path: Path, files: dict[str, bytes]
) -> None:
    folder = tmp_path / "queues"
    (folder / "work.5").mkdir(parents=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    scrolls = start(folder)
    assert scrolls.loaded == {}
    assert scrolls.files() == files
    scrolls.put_and_commit(scrolls.queue(), b"a")
    scrolls.checkpoint()
    scrolls.close()
    assert {name: contents for name, contents in scrolls.files().items() if name in files} == files


def test_a_reader_file_spelled_otherwise_is_left_alone_and_what_it_may_need_stays(
    start: Opener, tmp_path: Path
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    files = {"work.1": WRITER + put(1, b"a"), "work.2": WRITER + put(2, b"b"), "work.read.a:B": NEW_READER}
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    scrolls = start(folder)
    assert scrolls.loaded == {}
    scrolls.put_and_commit(scrolls.queue(), b"c")
    assert scrolls.data(scrolls.queue()) == [b"c"]
    scrolls.commit(scrolls.queue())
    scrolls.checkpoint()
    scrolls.close()
    left = scrolls.files()
    assert {name: left[name] for name in ("work.1", "work.read.a:B")} == {
        name: files[name] for name in ("work.1", "work.read.a:B")
    }
    assert left["work.2"].startswith(files["work.2"])


@pytest.mark.parametrize("names", [("work.0", "work.5"), ("work.1", "work.01"), ("work.000", "work.0")], ids=str)
def test_a_writer_file_may_have_any_number(start: Opener, tmp_path: Path, names: tuple[str, str]) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / names[0]).write_bytes(WRITER + b"".join(put(item_id, b"%d" % item_id) for item_id in (1, 2)))
    (folder / names[1]).write_bytes(WRITER + b"".join(put(item_id, b"%d" % item_id) for item_id in range(3, 9)))
    scrolls = start(folder)
    assert scrolls.queue().items == 8
    assert scrolls.data(scrolls.queue()) == [b"%d" % item_id for item_id in range(1, 9)]


# Folders.


def test_a_second_owner_of_the_folder_is_refused_at_once(start: Opener) -> None:
    scrolls = start()
    with pytest.raises(FolderInUse):
        Scrolls(scrolls.folder)


def test_a_closed_storage_has_let_its_folder_go(start: Opener) -> None:
    scrolls = start()
    assert start.again(scrolls).loaded == {}


def test_a_folder_that_cannot_be_one_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        Scrolls(tmp_path / "file")


def test_a_start_that_failed_has_let_the_folder_go(start: Opener, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Scrolls(tmp_path / "queues", arrange=lambda disk: disk.fail("list", errno.EIO))
    assert start(tmp_path / "queues").loaded == {}


# Descriptors and memory.


def test_the_files_of_idle_queues_are_closed_and_used_again(
    start: Opener, allow_descriptors: AllowDescriptors
) -> None:
    allow_descriptors(12)  # a quarter of which may be journal files
    scrolls = start()
    names = [b"q%d" % number for number in range(6)] + [b"q0+x", b"q0+y"]
    for round_number in range(3):
        for name in names:
            queue = scrolls.queue(name)
            scrolls.put(queue, b"%b-%d" % (name, round_number), b"taken")
            queue.take(False)
            scrolls.commit(queue)
            assert len(scrolls.disk.open_descriptors) <= 3
    again = start.again(scrolls)
    for name in names:
        left = [item for number in range(3) for item in (b"%b-%d" % (name, number), b"taken")]
        assert again.data(again.queue(name)) == left[3:]


@pytest.mark.parametrize("settings", [SYNCED, PERIODIC], ids=["synced", "periodic"])
def test_a_sync_leaves_no_more_files_open_than_allowed(
    start: Opener, allow_descriptors: AllowDescriptors, settings: QueueSettings
) -> None:
    allow_descriptors(12)  # a quarter of which may be journal files
    scrolls = start(settings=settings)
    queues = [scrolls.queue(b"q%d" % number) for number in range(10)]
    for queue in queues:
        scrolls.put(queue, b"a")
    scrolls.commit(*queues)
    scrolls.clock.advance(0.5)
    scrolls.threads.run_all()
    assert len(scrolls.disk.open_descriptors) <= 3


def test_a_closed_storage_has_closed_its_files(start: Opener) -> None:
    scrolls = start(settings=SYNCED)
    for name in (b"a", b"a+x", b"b"):
        scrolls.put(scrolls.queue(name), b"a", b"b")
        scrolls.queue(name).take(False)
        scrolls.commit(scrolls.queue(name))
    scrolls.checkpoint()
    scrolls.close()
    assert scrolls.disk.open_descriptors == set()


def test_a_deleted_queue_has_closed_its_files(start: Opener) -> None:
    scrolls = start()
    for name in (b"a", b"a+x"):
        scrolls.put_and_commit(scrolls.queue(name), b"a")
    for name in (b"a+x", b"a"):
        scrolls.storage.delete(scrolls.queue(name))
    scrolls.threads.run_all()
    assert scrolls.disk.open_descriptors == set()


@pytest.mark.parametrize("end", ["delete", "close", "clear"])
def test_memory_that_is_not_used_any_more_is_not_counted(start: Opener, end: str) -> None:
    scrolls = start(memory=MemoryLimit(1 << 30))
    family = family_of(scrolls)
    scrolls.put_and_commit(family, *[bytes(1000)] * 10)
    assert scrolls.memory.used_bytes >= 30_000
    if end == "close":
        scrolls.close()
    for queue in family:
        if end == "delete":
            scrolls.storage.delete(queue)
        elif end == "clear":
            queue.clear()
            scrolls.commit(queue)
    assert scrolls.memory.used_bytes == 0


# Its factory.


def test_its_factory_is_a_storage_factory_that_promises_what_it_keeps() -> None:
    factory = ScrollStorageFactory()
    assert verifyObject(IStorageFactory, factory)
    assert factory.capabilities == {"durable", "errors_kept", "ranges", "shared_fanout"}


def test_its_factory_touches_nothing_yet(tmp_path: Path) -> None:
    options = {"archive": str(tmp_path / "archive")}
    ScrollStorageFactory().storage(str(tmp_path / "queues"), options, Clock(), SteppedThreads(), MemoryLimit())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("", {}),
        ("/somewhere", {"reserve": "many"}),
        ("/somewhere", {"colour": "red"}),
        ("/somewhere", {"archive": ""}),
    ],
    ids=["no folder", "reserve is no size", "unknown option", "no archive"],
)
def test_its_description_is_refused_with_a_sentence(argument: str, options: dict[str, str]) -> None:
    with pytest.raises(BadStorageArgument, match=r"\w+ \w+"):
        ScrollStorageFactory().storage(argument, options, Clock(), SteppedThreads(), MemoryLimit())
