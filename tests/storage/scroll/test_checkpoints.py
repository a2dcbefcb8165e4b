"""Reader files are written anew when they have grown, and nothing is lost of what happens meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.scroll.reader_file import encode_state
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.rewriter import LARGEST_BYTES
from kestrel.storage.scroll.storage import CHECKPOINTS_EVERY_S
from kestrel.testing.faults import ProcessDied
from tests.scroll.made import READER, WRITER, errors, put, read_done, read_head
from tests.scroll.storages import NEVER, PERIODIC, SYNCED, Opener, Scrolls, new_folder

FAMILY = (b"work", b"work+x", b"work+y")
EACH_SETTING = pytest.mark.parametrize("settings", [NEVER, PERIODIC, SYNCED], ids=["never", "period", "synced"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path)
    yield opener
    opener.stop_all()


def family_of(scrolls: Scrolls) -> list[ScrollQueue]:
    return [scrolls.queue(name) for name in FAMILY]


def grown(start: Opener, settings: QueueSettings = NEVER, commits: int = 500) -> Scrolls:
    """A family of 1000 items each, of which so many were taken one commit after the other."""
    scrolls = start(settings=settings)
    family = family_of(scrolls)
    scrolls.put_and_commit(family, *[b"%d" % number for number in range(1, 1001)])
    for _ in range(commits):
        for queue in family:
            scrolls.fill(queue).take(False)
        scrolls.commit(*family)
    scrolls.clock.advance(1)
    scrolls.threads.run_all()
    scrolls.disk.done.clear()
    return scrolls


def at(head: int) -> bytes:
    """A reader file that says so, and nothing else."""
    return READER + read_head(head) + read_done()


def parts(scrolls: Scrolls) -> list[bytes]:
    return [scrolls.reader(part) for part in (":own", "x", "y")]


def heads_after_a_crash(start: Opener, scrolls: Scrolls) -> list[int]:
    again = start.crashed(scrolls)
    return [again.queue(name).done.head for name in FAMILY]


# When.


@EACH_SETTING
def test_files_that_have_grown_are_written_anew_in_time(start: Opener, settings: QueueSettings) -> None:
    scrolls = grown(start, settings)
    assert [len(part) > 4096 for part in parts(scrolls)] == [True] * 3
    scrolls.clock.advance(CHECKPOINTS_EVERY_S - 1.1)
    scrolls.threads.run_all()
    assert [len(part) > 4096 for part in parts(scrolls)] == [True] * 3
    scrolls.clock.advance(0.2)
    scrolls.threads.run_all()
    assert parts(scrolls) == [at(500)] * 3


def test_all_readers_of_a_journal_are_written_in_one_job(start: Opener) -> None:
    scrolls = grown(start)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    assert len(scrolls.threads) == 1
    scrolls.threads.run_one()
    assert (parts(scrolls), len(scrolls.threads)) == ([at(500)] * 3, 0)


def test_files_that_have_not_grown_are_left_as_they_are(start: Opener) -> None:
    scrolls = grown(start, commits=100)
    before = parts(scrolls)
    scrolls.checkpoint()
    assert (parts(scrolls), scrolls.disk.writes()) == (before, {})


def test_it_goes_on_as_long_as_the_storage_runs(start: Opener) -> None:
    scrolls = grown(start)
    scrolls.checkpoint()
    x = scrolls.queue(b"work+x")
    for _ in range(480):
        x.take(False)
        scrolls.commit(x)
    assert len(scrolls.reader("x")) > 4096
    scrolls.checkpoint()
    assert scrolls.reader("x") == at(980)


def test_at_the_stop_each_is_written_that_is_longer_than_it_need_be(start: Opener) -> None:
    scrolls = grown(start, commits=3)
    scrolls.close()
    assert parts(scrolls) == [at(3)] * 3


def test_at_the_stop_a_file_that_is_as_it_should_be_is_not_written(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(family_of(scrolls), b"a")
    scrolls.disk.done.clear()
    scrolls.close()
    assert scrolls.disk.writes() == {}


def test_at_the_stop_a_file_of_the_right_length_that_says_less_is_written(start: Opener) -> None:
    scrolls = start()
    family = family_of(scrolls)
    scrolls.put_and_commit(family, *[b"%d" % number for number in range(1, 10)])
    for _ in range(4):
        family[2].take(False)
        scrolls.commit(family[2])
    for _ in range(9):  # 9 ids of 8 bytes are as long as 4 appended heads with their checksums, 18 bytes each
        scrolls.put_and_commit(family[1], b"for x")
        scrolls.put_and_commit(family[2], b"for y")
    assert family[2].file.size == len(family[2].checkpoint())
    scrolls.close()
    assert scrolls.reader("y") == READER + read_head(4) + read_done(*range(10, 28, 2))


@EACH_SETTING
@pytest.mark.parametrize("when", ["in time", "at the stop"])
def test_a_new_file_is_on_the_medium_before_it_gets_its_name(
    start: Opener, settings: QueueSettings, when: str
) -> None:
    scrolls = grown(start, settings)
    if when == "in time":
        scrolls.checkpoint()
    else:
        scrolls.close()
    for part in (":own", "x", "y"):
        name = f"work.read.{part}"
        steps = [operation for operation, file, _ in scrolls.disk.done if file.startswith(name)]
        assert steps == ["write", "sync", "rename"]


def under_load(start: Opener, settings: QueueSettings, commits: int = 3000) -> tuple[Scrolls, list[int]]:
    """A queue of which an item is taken every 10 ms, a commit each, and no job of a thread ends without some of them
    meanwhile; and how large its reader file was after each."""
    scrolls = start(settings=settings)
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"x"] * commits)
    sizes = []
    for number in range(commits):
        assert queue.take(False) is not None
        scrolls.begin_commit(queue)
        scrolls.clock.advance(0.01)
        if number % 3 == 2 and len(scrolls.threads):
            scrolls.threads.run_one()
        sizes.append(len(scrolls.reader()))
    return scrolls, sizes


@EACH_SETTING
def test_a_file_is_written_anew_in_time_though_there_is_a_commit_during_each_sync(
    start: Opener, settings: QueueSettings
) -> None:
    scrolls, sizes = under_load(start, settings)
    assert max(sizes) < 9 * 100 * (CHECKPOINTS_EVERY_S + 1)
    assert sum(after < before for before, after in pairwise(sizes)) == 2
    assert start.crashed(scrolls).queue().done.head > 2990


def test_a_reader_that_has_much_to_say_says_it_once_and_not_at_each_commit(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + b"".join(put(item_id, b"") for item_id in range(1, 280_000, 2)))
    (folder / "work.read.").write_bytes(READER + read_head(0) + read_done(*range(2, 280_000, 2)))
    scrolls = start(folder)
    queue = scrolls.queue()
    assert scrolls.fill(queue).take(True).xid
    scrolls.put_and_commit(queue, b"last")
    scrolls.checkpoint()
    assert len(queue.checkpoint()) > LARGEST_BYTES
    scrolls.disk.done.clear()
    for _ in range(5):
        assert scrolls.fill(queue).take(False) is not None
        scrolls.commit(queue)
        scrolls.checkpoint()
    assert 0 < scrolls.disk.bytes_of("write", "work.read.") < 200


# What happens meanwhile.


@EACH_SETTING
def test_a_commit_waits_for_it_and_is_not_lost(start: Opener, settings: QueueSettings) -> None:
    scrolls = grown(start, settings)
    family = family_of(scrolls)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    scrolls.put(family, b"1001")
    for queue in family:
        queue.take(False)
    before = scrolls.files()
    outcomes = scrolls.begin_commit(*family)
    assert (outcomes, scrolls.files() == before) == ([], True)
    scrolls.threads.run_all()
    assert (outcomes, parts(scrolls)) == ([None], [at(500) + read_head(501)] * 3)
    assert heads_after_a_crash(start, scrolls) == [501] * 3
    assert [item.data for item in start.crashed(scrolls).take_all_of(b"work")][-1] == b"1001"


@EACH_SETTING
def test_wherever_a_crash_falls_each_reader_is_where_it_was(start: Opener, settings: QueueSettings) -> None:
    left_behind = grown(start, settings, commits=900).left_behind()
    has_ended, steps = False, 0
    while not has_ended:
        trial = start(new_folder(left_behind, "trial"), settings=settings, contents=left_behind)
        trial.threads.run_all()
        trial.disk.die_after(steps)
        with suppress(ProcessDied):
            trial.checkpoint()
        has_ended = parts(trial) == [at(900)] * 3
        assert heads_after_a_crash(start, trial) == [900] * 3
        start.abandon(trial)
        steps += 1
    assert steps > 12


def test_a_child_that_is_deleted_meanwhile_leaves_no_file(start: Opener) -> None:
    scrolls = grown(start)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    x = scrolls.queue(b"work+x")
    scrolls.storage.delete(x)
    scrolls.commit(x)
    scrolls.threads.run_all()
    assert [name for name in scrolls.files() if "read" in name] == ["work.read.:own", "work.read.y"]
    assert sorted(start.crashed(scrolls).loaded) == [b"work", b"work+y"]


@pytest.mark.parametrize("steps", range(4))
def test_a_child_that_is_made_again_meanwhile_begins_at_the_end(start: Opener, steps: int) -> None:
    scrolls = grown(start)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    scrolls.storage.delete(scrolls.queue(b"work+x"))
    for _ in range(min(steps, len(scrolls.threads))):
        scrolls.threads.run_one()
    x = scrolls.queue(b"work+x")
    scrolls.put_and_commit(family_of(scrolls), b"new")
    scrolls.threads.run_all()
    assert scrolls.reader("x") == at(1000)
    for opened in (scrolls, start.crashed(scrolls)):
        assert [item.data for item in opened.look_through(opened.queue(b"work+x"))] == [b"new"]
    assert x.failure is None


@pytest.mark.parametrize("steps", range(4))
def test_a_queue_that_is_deleted_and_made_again_meanwhile_is_new(start: Opener, steps: int) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"old"] * 1000)
    for _ in range(500):
        queue.take(False)
        scrolls.commit(queue)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    scrolls.storage.delete(queue)
    for _ in range(min(steps, len(scrolls.threads))):
        scrolls.threads.run_one()
    scrolls.put_and_commit(scrolls.queue(), b"new")
    scrolls.threads.run_all()
    for opened in (start.crashed(scrolls), start.again(scrolls)):
        assert opened.data(opened.queue()) == [b"new"]


def test_a_first_child_that_is_made_meanwhile_gives_the_parent_its_new_name(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, *[b"a"] * 1000)
    for _ in range(500):
        queue.take(False)
        scrolls.commit(queue)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    child = scrolls.queue(b"work+x")
    outcomes = scrolls.begin_commit(queue, child)
    scrolls.threads.run_all()
    assert set(outcomes) == {None}
    assert sorted(name for name in scrolls.files() if "read" in name) == ["work.read.:own", "work.read.x"]
    assert (scrolls.reader(":own"), scrolls.reader("x")) == (at(500), at(1000))


def test_what_a_dead_journal_was_writing_does_not_take_the_place_of_what_is_written_since(start: Opener) -> None:
    small = QueueSettings(max_memory_size_bytes=1)
    scrolls = grown(start, small)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    assert len(scrolls.threads) == 1
    parent = scrolls.queue()
    path = scrolls.folder / scrolls.writers()[0]
    contents = path.read_bytes()
    place = contents.index(b"503", 4) - 25
    path.write_bytes(contents[:place] + b"\xff" * 10 + contents[place + 10 :])
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
    scrolls.fill(x).take(False)
    scrolls.commit(x)
    assert start.crashed(scrolls).queue(b"work+x").done.head == 511


# When it fails.


@EACH_SETTING
@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_folder"])
def test_when_it_fails_nothing_is_lost_and_it_is_tried_again(
    start: Opener, settings: QueueSettings, operation: str
) -> None:
    scrolls = grown(start, settings)
    family = family_of(scrolls)
    family[1].put_back([scrolls.fill(family[1]).take(True).xid], True)
    scrolls.commit(family[1])
    scrolls.clock.advance(1)
    scrolls.threads.run_all()
    scrolls.disk.fail(operation, errno.EIO, times=1)
    scrolls.clock.advance(CHECKPOINTS_EVERY_S)
    scrolls.put(family, b"1001")
    outcomes = scrolls.begin_commit(*family)
    scrolls.threads.run_all()
    assert outcomes == [None]
    assert heads_after_a_crash(start, scrolls) == [500] * 3
    scrolls.checkpoint()
    assert [contents[:18] for contents in parts(scrolls)] == [at(500)] * 3
    assert scrolls.reader("x")[18:].startswith((errors(_501=1), read_head(500) + errors(_501=1)))
    assert max(map(len, parts(scrolls))) < 100
    assert not [name for name in scrolls.files() if "~~" in name]
    assert [item.data for item in start.crashed(scrolls).take_all_of(b"work+x")][-1] == b"1001"


def test_however_often_it_fails_the_file_grows_by_what_was_recorded_alone(start: Opener) -> None:
    scrolls = grown(start)
    x = scrolls.queue(b"work+x")
    opened = [x.take(True).xid for _ in range(400)]
    x.confirm(opened[1::2])
    scrolls.commit(x)
    before = scrolls.reader("x")
    scrolls.disk.fail("rename", errno.EIO)
    for _ in range(10):
        tried = scrolls.disk.calls.count("rename")
        scrolls.checkpoint()
        assert scrolls.disk.calls.count("rename") > tried
        x.confirm([opened.pop()])
        x.confirm([opened.pop(0)])
        scrolls.commit(x)
    assert scrolls.reader("x").startswith(before)
    assert len(scrolls.reader("x")) - len(before) <= 10 * 40
    state = x.state
    scrolls.disk.mend()
    scrolls.checkpoint()
    assert (scrolls.folder / "work.read.x").read_bytes() == encode_state(state)


def test_when_it_fails_at_the_stop_the_files_are_as_they_were(start: Opener) -> None:
    scrolls = grown(start, commits=3)
    scrolls.put(scrolls.queue(), b"last")
    before = parts(scrolls)
    scrolls.disk.fail("rename", errno.EIO)
    scrolls.close(mends=False)
    assert parts(scrolls) == before
    again = start(scrolls.folder)
    assert not [name for name in again.files() if "~~" in name]
    assert [queue.items for queue in family_of(again)] == [998, 997, 997]


def test_a_queue_whose_reader_file_cannot_be_made_is_refused_and_may_be_made_later(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(), b"a")
    scrolls.disk.fail("write", errno.EIO, times=1)
    x = scrolls.queue(b"work+x")
    scrolls.put(x, b"lost")
    with pytest.raises(QueueFailed):
        scrolls.commit(x)
    assert x.failure is not None
    scrolls.put_and_commit(scrolls.queue(b"work+x"), b"b")
    for opened in (scrolls, start.crashed(scrolls)):
        assert [item.data for item in opened.look_through(opened.queue(b"work+x"))] == [b"b"]
        assert [item.data for item in opened.look_through(opened.queue())] == [b"a"]


@EACH_SETTING
@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename"])
@pytest.mark.parametrize("is_put_to_parent", [True, False], ids=["with the parent", "alone"])
def test_what_was_recorded_on_a_queue_whose_making_failed_before_the_commit_fails_there(
    start: Opener, settings: QueueSettings, operation: str, is_put_to_parent: bool
) -> None:
    scrolls = start(settings=settings)
    parent = scrolls.queue()
    scrolls.put_and_commit(parent, b"past")
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
        assert opened.data(opened.queue(b"work+x")) == []
