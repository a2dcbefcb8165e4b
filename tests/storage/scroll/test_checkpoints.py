"""Checkpoints: reader files that have grown are rewritten, and no change made meanwhile is lost."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.scroll.reader_file import encode_state
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.rewriter import LARGEST_BYTES
from kestrel.storage.scroll.storage import CHECKPOINTS_EVERY_S
from kestrel.testing.faults import ProcessDied
from tests.scroll.handwritten import WRITER, errors, put, read_head, reader_file
from tests.scroll.storages import FAMILY, NEVER, PERIODIC, SYNCED, Opener, Scrolls, new_folder

EACH_SETTING = pytest.mark.parametrize("settings", [NEVER, PERIODIC, SYNCED], ids=["never", "period", "synced"])
GROWN_BYTES = 4096
"""A reader file of this size is rewritten."""


def numbers(items: int) -> list[bytes]:
    return [b"%d" % number for number in range(1, items + 1)]


def take_each(scrolls: Scrolls, *queues: ScrollQueue, commits: int) -> None:
    """Take one item of each queue in each commit."""
    for _ in range(commits):
        for queue in queues:
            scrolls.fill(queue).take(False)
        scrolls.commit(*queues)


def grown(start: Opener, settings: QueueSettings = NEVER, commits: int = 500) -> tuple[Scrolls, list[ScrollQueue]]:
    """Start a family of 1000 items, and take this many items of each queue, one in each commit."""
    scrolls, family = start.family(*numbers(1000), settings=settings)
    take_each(scrolls, *family, commits=commits)
    scrolls.pass_time(1)
    scrolls.disk.done.clear()
    return scrolls, family


def grown_queue(start: Opener) -> tuple[Scrolls, ScrollQueue]:
    """Start one queue whose reader file is being rewritten after 500 of its 1000 items were taken."""
    scrolls, queue = start.queue(*[b"old"] * 1000)
    take_each(scrolls, queue, commits=500)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    return scrolls, queue


def heads_after_a_crash(start: Opener, scrolls: Scrolls) -> list[int]:
    return [queue.done.head for queue in start.crashed(scrolls).family()]


# When files are rewritten.


@EACH_SETTING
def test_grown_files_are_rewritten_after_the_interval(start: Opener, settings: QueueSettings) -> None:
    scrolls, _ = grown(start, settings)
    scrolls.pass_time(CHECKPOINTS_EVERY_S - 1.1)
    assert [len(contents) > GROWN_BYTES for contents in scrolls.family_readers()] == [True] * 3
    scrolls.pass_time(0.2)
    assert scrolls.family_readers() == [reader_file(500)] * 3


def test_all_readers_of_a_journal_are_rewritten_in_one_job(start: Opener) -> None:
    scrolls, _ = grown(start)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    assert len(scrolls.threads) == 1
    scrolls.threads.run_one()
    assert (scrolls.family_readers(), len(scrolls.threads)) == ([reader_file(500)] * 3, 0)


def test_files_that_have_not_grown_are_left_alone(start: Opener) -> None:
    scrolls, _ = grown(start, commits=100)
    before = scrolls.family_readers()
    scrolls.checkpoint()
    assert (scrolls.family_readers(), scrolls.disk.writes()) == (before, {})


def test_grown_file_is_rewritten_again_later(start: Opener) -> None:
    scrolls, (_, x, _) = grown(start)
    scrolls.checkpoint()
    take_each(scrolls, x, commits=480)
    assert len(scrolls.reader("x")) > GROWN_BYTES
    scrolls.checkpoint()
    assert scrolls.reader("x") == reader_file(980)


def test_large_new_file_is_not_rewritten_for_one_change(start: Opener) -> None:
    scrolls, queue = start.queue(*numbers(1300))
    xids = [queue.take(True).xid for _ in range(1300)]
    queue.confirm(xids[1::2])
    scrolls.commit(queue)
    scrolls.checkpoint()
    assert len(scrolls.reader()) > GROWN_BYTES
    queue.confirm(xids[:1])
    scrolls.commit(queue)
    scrolls.disk.done.clear()
    scrolls.checkpoint()
    assert scrolls.disk.writes() == {}


def test_stop_rewrites_files_longer_than_necessary(start: Opener) -> None:
    scrolls, _ = grown(start, commits=3)
    scrolls.close()
    assert scrolls.family_readers() == [reader_file(3)] * 3


def test_stop_leaves_minimal_files_alone(start: Opener) -> None:
    scrolls, _ = start.family(b"a")
    scrolls.disk.done.clear()
    scrolls.close()
    assert scrolls.disk.writes() == {}


def test_stop_rewrites_outdated_file_of_the_same_length(start: Opener) -> None:
    scrolls, (_, x, y) = start.family(*numbers(9))
    take_each(scrolls, y, commits=4)
    for _ in range(9):  # 9 ids of 8 bytes are as long as 4 appended heads with their checksums, 18 bytes each
        scrolls.put_and_commit(x, b"for x")
        scrolls.put_and_commit(y, b"for y")
    assert y.file.size == len(y.checkpoint())
    scrolls.close()
    assert scrolls.reader("y") == reader_file(4, *range(10, 28, 2))


@EACH_SETTING
@pytest.mark.parametrize("end", [Scrolls.checkpoint, Scrolls.close], ids=["checkpoint", "stop"])
def test_new_file_is_synced_before_its_rename(
    start: Opener, settings: QueueSettings, end: Callable[[Scrolls], None]
) -> None:
    scrolls, _ = grown(start, settings)
    end(scrolls)
    for part in (":own", "x", "y"):
        name = f"work.read.{part}"
        steps = [operation for operation, file, _ in scrolls.disk.done if file.startswith(name)]
        assert steps == ["write", "sync", "rename"]


@EACH_SETTING
def test_file_is_rewritten_despite_commits_during_each_sync(start: Opener, settings: QueueSettings) -> None:
    commits = 3000
    scrolls, queue = start.queue(*[b"x"] * commits, settings=settings)
    sizes = []
    for number in range(commits):
        assert queue.take(False) is not None
        scrolls.begin_commit(queue)
        scrolls.clock.advance(0.01)
        if number % 3 == 2 and len(scrolls.threads):
            scrolls.threads.run_one()
        sizes.append(len(scrolls.reader()))
    assert max(sizes) < 9 * 100 * (CHECKPOINTS_EVERY_S + 1)
    assert sum(after < before for before, after in pairwise(sizes)) == 2
    assert start.crashed(scrolls).queue().done.head > 2990


def test_large_state_is_written_once_and_not_at_each_commit(start: Opener) -> None:
    odd_items = WRITER + b"".join(put(item_id, b"") for item_id in range(1, 280_000, 2))
    scrolls = start.over({"work.5": odd_items, "work.read.": reader_file(0, *range(2, 280_000, 2))})
    queue = scrolls.queue()
    assert scrolls.fill(queue).take(True).xid
    scrolls.put_and_commit(queue, b"last")
    scrolls.checkpoint()
    assert len(queue.checkpoint()) > LARGEST_BYTES
    scrolls.disk.done.clear()
    for _ in range(5):
        scrolls.take(queue)
        scrolls.checkpoint()
    assert 0 < scrolls.disk.bytes_of("write", "work.read.") < 200


def test_checkpoint_without_further_changes_writes_nothing(start: Opener) -> None:
    scrolls, family = start.family()
    scrolls.put_and_commit(family[1], b"for x")
    scrolls.checkpoint()
    scrolls.disk.done.clear()
    scrolls.checkpoint()
    assert scrolls.disk.writes() == {}


# Changes during a checkpoint.


@EACH_SETTING
def test_commit_waits_for_the_checkpoint_and_is_kept(start: Opener, settings: QueueSettings) -> None:
    scrolls, family = grown(start, settings)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    scrolls.put(family, b"1001")
    for queue in family:
        queue.take(False)
    before = scrolls.files()
    outcomes = scrolls.begin_commit(*family)
    assert (outcomes, scrolls.files() == before) == ([], True)
    scrolls.threads.run_all()
    assert (outcomes, scrolls.family_readers()) == ([None], [reader_file(500) + read_head(501)] * 3)
    assert heads_after_a_crash(start, scrolls) == [501] * 3
    assert start.crashed(scrolls).data()[-1] == b"1001"


@EACH_SETTING
def test_crash_at_any_step_keeps_all_positions(start: Opener, settings: QueueSettings) -> None:
    left_behind = grown(start, settings, commits=900)[0].left_behind()
    has_ended, steps = False, 0
    while not has_ended:
        trial = start(new_folder(left_behind, "trial"), settings=settings, contents=left_behind)
        trial.threads.run_all()
        trial.disk.die_after(steps)
        with suppress(ProcessDied):
            trial.checkpoint()
        has_ended = trial.family_readers() == [reader_file(900)] * 3
        assert heads_after_a_crash(start, trial) == [900] * 3
        start.abandon(trial)
        steps += 1
    assert steps > 12


def test_child_deleted_meanwhile_leaves_no_file(start: Opener) -> None:
    scrolls, (_, x, _) = grown(start)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    scrolls.delete(x)
    assert [name for name in scrolls.files() if "read" in name] == ["work.read.:own", "work.read.y"]
    assert sorted(start.crashed(scrolls).loaded) == [b"work", b"work+y"]


@pytest.mark.parametrize("steps", range(4))
def test_child_recreated_meanwhile_begins_at_the_end(start: Opener, steps: int) -> None:
    scrolls, (_, x, _) = grown(start)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    scrolls.storage.delete(x)
    for _ in range(min(steps, len(scrolls.threads))):
        scrolls.threads.run_one()
    x = scrolls.queue(b"work+x")
    scrolls.put_and_commit(scrolls.family(), b"new")
    scrolls.threads.run_all()
    assert scrolls.reader("x") == reader_file(1000)
    for opened in (scrolls, start.crashed(scrolls)):
        assert opened.show(b"work+x") == [[b"new"]]
    assert x.failure is None


def test_first_child_created_meanwhile_renames_the_parents_file(start: Opener) -> None:
    scrolls, queue = grown_queue(start)
    outcomes = scrolls.begin_commit(queue, scrolls.queue(b"work+x"))
    scrolls.threads.run_all()
    assert set(outcomes) == {None}
    assert sorted(name for name in scrolls.files() if "read" in name) == ["work.read.:own", "work.read.x"]
    assert (scrolls.reader(":own"), scrolls.reader("x")) == (reader_file(500), reader_file(1000))


def test_checkpoint_of_a_failed_journal_replaces_no_newer_file(start: Opener) -> None:
    scrolls, (parent, *_) = grown(start, QueueSettings(max_memory_size_bytes=1))
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    assert len(scrolls.threads) == 1
    path = scrolls.folder / scrolls.writers()[0]
    contents = path.read_bytes()
    offset = contents.index(b"503", 4) - 25
    path.write_bytes(contents[:offset] + b"\xff" * 10 + contents[offset + 10 :])
    parent.take(False)
    failures: list[object] = []
    parent.fill().addErrback(failures.append)
    scrolls.threads.run_newest()
    path.write_bytes(contents)
    assert (len(failures), parent.failure is None) == (1, False)
    x = scrolls.queue(b"work+x")
    for _ in range(10):
        while not x.has_head:
            x.fill()
            scrolls.threads.run_newest()
        x.take(False)
        assert scrolls.begin_commit(x) == []
    scrolls.threads.run_all()
    scrolls.take(x)
    assert start.crashed(scrolls).queue(b"work+x").done.head == 511


# Failed checkpoints.


@EACH_SETTING
@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_folder"])
def test_failed_checkpoint_loses_nothing_and_is_repeated(
    start: Opener, settings: QueueSettings, operation: str
) -> None:
    scrolls, family = grown(start, settings)
    family[1].put_back([scrolls.fill(family[1]).take(True).xid], True)
    scrolls.commit(family[1])
    scrolls.pass_time(1)
    scrolls.disk.fail(operation, errno.EIO, times=1)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    scrolls.put(family, b"1001")
    outcomes = scrolls.begin_commit(*family)
    scrolls.threads.run_all()
    assert outcomes == [None]
    assert heads_after_a_crash(start, scrolls) == [500] * 3
    scrolls.checkpoint()
    assert [contents[:18] for contents in scrolls.family_readers()] == [reader_file(500)] * 3
    assert scrolls.reader("x")[18:].startswith((errors(_501=1), read_head(500) + errors(_501=1)))
    assert max(map(len, scrolls.family_readers())) < 100
    assert not [name for name in scrolls.files() if "~~" in name]
    assert start.crashed(scrolls).data(b"work+x")[-1] == b"1001"


def test_repeated_failures_add_nothing_to_the_file(start: Opener) -> None:
    scrolls, (_, x, _) = grown(start)
    opened = [x.take(True).xid for _ in range(400)]
    x.confirm(opened[1::2])
    scrolls.commit(x)
    before = scrolls.reader("x")
    scrolls.disk.fail("rename", errno.EIO)
    for _ in range(10):
        attempts = scrolls.disk.calls.count("rename")
        scrolls.checkpoint()
        assert scrolls.disk.calls.count("rename") > attempts
        x.confirm([opened.pop()])
        x.confirm([opened.pop(0)])
        scrolls.commit(x)
    assert scrolls.reader("x").startswith(before)
    assert len(scrolls.reader("x")) - len(before) <= 10 * 40
    state = x.state
    scrolls.disk.mend()
    scrolls.checkpoint()
    assert (scrolls.folder / "work.read.x").read_bytes() == encode_state(state)


def test_items_of_siblings_are_marked_after_a_failed_checkpoint(start: Opener) -> None:
    scrolls, (parent, x, _) = start.family(b"open")
    parent.take(True)
    scrolls.put_and_commit(x, b"for x")
    scrolls.disk.fail("rename", errno.EIO, times=1)
    scrolls.checkpoint()
    assert scrolls.reader(":own") == reader_file(0)
    scrolls.checkpoint()
    assert scrolls.reader(":own") == reader_file(0, 2)


def test_failed_rewrite_at_stop_leaves_files_unchanged(start: Opener) -> None:
    scrolls, family = grown(start, commits=3)
    scrolls.put(family[0], b"last")
    before = scrolls.family_readers()
    scrolls.disk.fail("rename", errno.EIO)
    scrolls.close(mends=False)
    assert scrolls.family_readers() == before
    again = start(scrolls.folder)
    assert not [name for name in again.files() if "~~" in name]
    assert [queue.items for queue in again.family()] == [998, 997, 997]


def test_queue_whose_file_cannot_be_created_can_be_created_later(start: Opener) -> None:
    scrolls, _ = start.queue(b"a")
    scrolls.disk.fail("write", errno.EIO, times=1)
    x = scrolls.queue(b"work+x")
    scrolls.put(x, b"lost")
    with pytest.raises(QueueFailed):
        scrolls.commit(x)
    assert x.failure is not None
    scrolls.put_and_commit(scrolls.queue(b"work+x"), b"b")
    for opened in (start.crashed(scrolls), scrolls):
        assert opened.drain(*FAMILY[:2]) == [[b"a"], [b"b"]]


@EACH_SETTING
@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename"])
@pytest.mark.parametrize("is_put_to_parent", [True, False], ids=["with the parent", "alone"])
def test_changes_of_a_queue_without_file_fail_at_the_commit(
    start: Opener, settings: QueueSettings, operation: str, is_put_to_parent: bool
) -> None:
    scrolls, parent = start.queue(b"past", settings=settings)
    scrolls.queue(b"work+first")
    scrolls.threads.run_all()
    scrolls.disk.fail(operation, errno.EIO)
    x = scrolls.queue(b"work+x")
    scrolls.put([parent, x] if is_put_to_parent else x, b"lost")
    x.take(False)
    scrolls.threads.run_all()
    scrolls.disk.mend()
    ((group, outcome),) = [pair for pair in scrolls.storage.commit([x]) if x in pair[0]]
    assert (group, x.failure is None) == ((x,), False)
    with pytest.raises(QueueFailed):
        scrolls.wait(outcome)
    assert "work.read.x" not in scrolls.files()
    for opened in (start.crashed(scrolls), scrolls):
        assert opened.data(b"work+x") == []
