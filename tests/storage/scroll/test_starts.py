"""A start reads little where it has hints, and finds the same with any hint and with none."""

from __future__ import annotations

import errno
import json
import random
import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from kestrel.errors import QueueFailed
from kestrel.storage.interfaces import IItemRanges
from kestrel.storage.scroll.queue import ScrollQueue
from tests.scroll.handwritten import READER, WRITER, done_ranges, errors, put, read_done, read_head, sealed, targets
from tests.scroll.storages import Opener, Scrolls

HINT: Final = Path(".kestrel") / "hints" / "work"


def large(folder: Path, items: int = 200_000) -> None:
    """A folder with so many items in ten files, and three readers that are far apart in them."""
    folder.mkdir()
    each = items // 10
    for number in range(10):
        first = 1 + number * each
        records = [put(item_id, b"item %d" % item_id) for item_id in range(first, first + each)]
        (folder / f"work.{1000 + number}").write_bytes(WRITER + b"".join(records))
    (folder / "work.read.:own").write_bytes(READER + read_head(0) + read_done())
    (folder / "work.read.x").write_bytes(READER + read_head(items * 3 // 5 + 1234) + read_done(items * 3 // 5 + 2000))
    (folder / "work.read.y").write_bytes(READER + read_head(items - 5) + read_done())


def writer_bytes(scrolls: Scrolls) -> int:
    return sum(len(contents) for name, contents in scrolls.files().items() if "read" not in name)


def ran(start: Opener, folder: Path) -> Path:
    """What a process leaves that ran over the folder until it had written hints, and was not stopped in order."""
    scrolls = start(folder)
    scrolls.checkpoint()
    assert (folder / HINT).exists()
    return scrolls.left_behind()


def counts(scrolls: Scrolls) -> dict[bytes, tuple[int, int]]:
    return {name: (queue.items, queue.bytes) for name, queue in sorted(scrolls.loaded.items())}


# How much is read.


def test_a_start_with_a_hint_reads_less_than_a_mebibyte_of_200_000_items(start: Opener, tmp_path: Path) -> None:
    large(tmp_path / "queues")
    scrolls = start(ran(start, tmp_path / "queues"))
    assert writer_bytes(scrolls) > 7_000_000
    assert {name: queue.items for name, queue in scrolls.loaded.items()} == {
        b"work": 200_000,
        b"work+x": 80_000 - 1235,
        b"work+y": 5,
    }
    assert scrolls.disk.bytes_of("read") < 1 << 20


def test_so_does_a_start_after_an_orderly_stop(start: Opener, tmp_path: Path) -> None:
    large(tmp_path / "queues")
    start(tmp_path / "queues").close()
    assert start(tmp_path / "queues").disk.bytes_of("read") < 1 << 20


def test_a_start_without_a_hint_reads_the_files_once_and_finds_the_same(start: Opener, tmp_path: Path) -> None:
    large(tmp_path / "queues")
    folder = ran(start, tmp_path / "queues")
    with_hint = counts(start(folder))
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / HINT).unlink()
    scrolls = start(bare)
    assert counts(scrolls) == with_hint
    assert writer_bytes(scrolls) <= scrolls.disk.bytes_of("read") < writer_bytes(scrolls) + 4 * (1 << 20)


def test_what_was_put_since_the_hint_is_read_and_no_more(start: Opener, tmp_path: Path) -> None:
    large(tmp_path / "queues")
    folder = ran(start, tmp_path / "queues")
    records = b"".join(put(item_id, b"item %d" % item_id) for item_id in range(200_001, 205_001))
    with (folder / "work.1009").open("ab") as file:
        file.write(records)
    (folder / "work.1010").write_bytes(WRITER + put(205_001, b"last"))
    scrolls = start(folder)
    assert scrolls.queue(b"work+y").items == 5006
    assert scrolls.disk.bytes_of("read") < (1 << 20) + len(records)


def test_a_small_journal_has_no_hint(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(), *[bytes(10)] * 2000)
    scrolls.checkpoint()
    scrolls.close()
    assert not (scrolls.folder / HINT).exists()


def test_a_hint_is_written_again_only_when_there_is_much_more_to_say(start: Opener, tmp_path: Path) -> None:
    large(tmp_path / "queues", 20_000)
    scrolls = start(tmp_path / "queues")
    scrolls.checkpoint()
    scrolls.put_and_commit(scrolls.queue(), *[bytes(10)] * 9000)
    scrolls.disk.done.clear()
    scrolls.checkpoint()
    assert scrolls.disk.writes() == {}
    scrolls.put_and_commit(scrolls.queue(), *[bytes(10)] * 2000)
    scrolls.disk.done.clear()
    scrolls.checkpoint()
    assert [operation for operation, name, _ in scrolls.disk.done if name == "work"] == ["rename"]


def test_a_hint_that_cannot_be_written_hinders_nobody(start: Opener, tmp_path: Path) -> None:
    large(tmp_path / "queues", 20_000)
    scrolls = start(tmp_path / "queues")
    scrolls.disk.fail("write", errno.EIO)
    scrolls.checkpoint()
    scrolls.disk.mend()
    assert scrolls.queue().failure is None
    assert [path.name for path in (scrolls.folder / HINT).parent.iterdir()] == []


def test_the_hint_of_a_deleted_queue_goes_with_it(start: Opener, tmp_path: Path) -> None:
    large(tmp_path / "queues", 20_000)
    scrolls = start(ran(start, tmp_path / "queues"))
    for name in list(scrolls.loaded):
        scrolls.storage.delete(scrolls.queue(name))
    scrolls.threads.run_all()
    assert not (scrolls.folder / HINT).exists()
    assert scrolls.files() == {}


# Any hint, the same result.


def mixed(folder: Path) -> None:
    """Items of different sizes for some readers and for all, in four files; some ids come twice, some are missing."""
    folder.mkdir()
    rng = random.Random(11)
    item_id = 0
    for number in range(1, 5):
        records = [WRITER]
        if number == 4:
            records += [put(each, b"again") for each in range(item_id - 4, item_id + 1)]
        for _ in range(1500):
            item_id += rng.choice((1, 1, 1, 2))
            whom = rng.choice((b"", b"", b"", targets(0, b"x"), targets(1, b"x"), targets(0, b"x", b":own")))
            records += [whom, put(item_id, b"%d " % item_id + bytes(rng.randrange(100)))]
        (folder / f"work.{number}").write_bytes(b"".join(records))
    (folder / "work.read.:own").write_bytes(READER + read_head(0) + read_done(3, 5) + done_ranges((1000, 3000)))
    (folder / "work.read.x").write_bytes(READER + read_head(3300) + read_done(*range(3302, 4200, 2)) + errors(_4300=3))
    (folder / "work.read.y").write_bytes(READER + read_head(item_id - 100) + read_done())


def state_of(start: Opener, folder: Path) -> dict[bytes, object]:
    """What each queue of a folder says of itself, and holds."""
    scrolls = start(folder)
    found: dict[bytes, object] = {}
    for name, queue in sorted(scrolls.loaded.items()):
        assert isinstance(queue, ScrollQueue)
        said = queue.items, queue.bytes
        items = scrolls.look_through(queue)
        assert (len(items), sum(len(item.data) for item in items)) == said
        found[name] = said, [(item.id, item.data, item.errors) for item in items]
    for queue in scrolls.loaded.values():
        ranges = IItemRanges(queue)
        middle = (ranges.first_id + ranges.next_id) // 2
        ranges.release(middle)
        left = [item.id for item in scrolls.look_through(queue)]
        assert left == [item_id for item_id, _, _ in found[queue.name][1] if item_id >= middle]
        assert queue.items == len(left)
    scrolls.close()
    return found


def decoded(folder: Path) -> Any:
    return json.loads((folder / HINT).read_bytes().partition(b" ")[2])


def write_hint(folder: Path, contents: Any) -> None:
    """Another hint, whole and with the right checksum."""
    text = json.dumps(contents).encode()
    (folder / HINT).write_bytes(b"%08x %b" % (zlib.crc32(text), text))


def changed(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Let the hint say something else of a file in which a reader is."""

    def arrange(folder: Path) -> None:
        contents = decoded(folder)
        change(next(entry for entry in contents[1] if entry[8]))
        write_hint(folder, contents)

    return arrange


def keep(folder: Path) -> None:
    """As it is."""


def cut_hint(folder: Path) -> None:
    contents = (folder / HINT).read_bytes()
    (folder / HINT).write_bytes(contents[: len(contents) // 2])


def hint_is_a_folder(folder: Path) -> None:
    (folder / HINT).unlink()
    (folder / HINT).mkdir()


def of_one_file(folder: Path) -> None:
    contents = decoded(folder)
    write_hint(folder, [1, contents[1][1:2]])


def of_files_that_are_not_there(folder: Path) -> None:
    contents = decoded(folder)
    more = json.loads(json.dumps(contents[1][0]).replace("work.1", "work.99"))
    write_hint(folder, [1, [*contents[1], more]])


def set_field(index: int, value: object) -> Callable[[Path], None]:
    return changed(lambda entry: entry.__setitem__(index, value))


def set_mark(index: int, value: object) -> Callable[[Path], None]:
    return changed(lambda entry: entry[8][0].__setitem__(index, value))


def shift_mark(offset: int) -> Callable[[Path], None]:
    return changed(lambda entry: entry[8][0].__setitem__(1, entry[8][0][1] + offset))


HINTS: Final[dict[str, Callable[[Path], None]]] = {
    "right": keep,
    "none": lambda folder: (folder / HINT).unlink(),
    "empty": lambda folder: (folder / HINT).write_bytes(b""),
    "garbage": lambda folder: (folder / HINT).write_bytes(bytes(range(256)) * 9),
    "cut": cut_hint,
    "a folder": hint_is_a_folder,
    "of one file alone": of_one_file,
    "of files that are not there": of_files_that_are_not_there,
    "of the next version": lambda folder: write_hint(folder, [2, decoded(folder)[1]]),
    "no list": lambda folder: write_hint(folder, {"version": 1}),
    "a wrong last id": set_field(3, 123_456),
    "a last place in front of the file": set_field(4, -5),
    "a last place behind the file": set_field(4, 1 << 40),
    "a last place within a record": changed(lambda entry: entry.__setitem__(4, entry[4] + 3)),
    "a size behind the file": changed(lambda entry: entry.__setitem__(5, entry[5] + 1)),
    "a size before its end": changed(lambda entry: entry.__setitem__(5, entry[5] - 1)),
    "a size of nothing": set_field(5, 0),
    "a mark in front of the file": set_mark(1, -5),
    "a mark behind the file": set_mark(1, 1 << 40),
    "a mark at the end of the file": changed(lambda entry: entry[8][0].__setitem__(1, entry[5])),
    "a mark within a record": shift_mark(7),
    "a mark at another item": set_mark(0, 3000),
    "a name that is a number": set_field(0, 5),
    "a number that is a name": set_field(1, "five"),
    "ids that are names": set_field(2, "five"),
    "a last id that is nothing": set_field(3, None),
    "places that are fractions": set_field(4, 0.5),
    "a size that is a list": set_field(5, []),
    "counts that are names": changed(lambda entry: entry[7].__setitem__(0, "five")),
    "counts of readers that are a list": changed(lambda entry: entry[7].__setitem__(2, [])),
    "counts of readers that are nothing": changed(lambda entry: entry[7].__setitem__(2, {"x": None})),
    "marks that are numbers": set_field(8, [1, 2]),
    "a mark that is a name": set_mark(1, "five"),
}


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixed folder with a hint. Not to be changed."""
    folder = tmp_path_factory.mktemp("mixed")
    mixed(folder / "queues")
    opener = Opener(folder)
    left_behind = ran(opener, folder / "queues")
    opener.stop_all()
    return left_behind


@pytest.fixture(scope="module")
def expected(left_behind: Path) -> dict[bytes, object]:
    """What each queue of it is to a start without a hint."""
    bare = shutil.copytree(left_behind, left_behind.with_name("bare"))
    (bare / HINT).unlink()
    return state_of(Opener(left_behind), bare)


@pytest.mark.parametrize("arrange", HINTS.values(), ids=HINTS)
def test_whatever_the_hint_each_queue_is_what_it_was(
    start: Opener,
    tmp_path: Path,
    left_behind: Path,
    expected: dict[bytes, object],
    arrange: Callable[[Path], None],
) -> None:
    folder = shutil.copytree(left_behind, tmp_path / "queues")
    arrange(folder)
    assert sorted(expected) == [b"work", b"work+x", b"work+y"]
    assert state_of(start, folder) == expected


def cut_last_file(folder: Path) -> None:
    contents = (folder / "work.4").read_bytes()
    (folder / "work.4").write_bytes(contents[: len(contents) // 2])


def tear_last_file(folder: Path) -> None:
    with (folder / "work.4").open("ab") as file:
        file.write(put(1 << 20, b"torn")[:-1])


def fill_up_with_zeros(folder: Path) -> None:
    with (folder / "work.4").open("ab") as file:
        file.write(bytes(5000))


def append(folder: Path) -> None:
    with (folder / "work.4").open("ab") as file:
        file.write(targets(0, b"x") + put(1 << 20, b"for x") + put((1 << 20) + 1, b"for all"))


FOLDERS: Final[dict[str, Callable[[Path], None]]] = {
    "a file more": lambda folder: (folder / "work.9").write_bytes(WRITER + put(1 << 20, b"more")),
    "items more": append,
    "the first file gone": lambda folder: (folder / "work.1").unlink(),
    "a file in the middle gone": lambda folder: (folder / "work.2").unlink(),
    "the last file gone": lambda folder: (folder / "work.4").unlink(),
    "the last file cut": cut_last_file,
    "the last file torn": tear_last_file,
    "zeros behind the last file": fill_up_with_zeros,
    "a file under another name": lambda folder: (folder / "work.3").rename(folder / "work.7"),
    "a reader back at the beginning": lambda folder: (folder / "work.read.y").write_bytes(READER + read_head(0)),
    "a reader gone": lambda folder: (folder / "work.read.y").unlink(),
    "a reader in a place without a mark": lambda folder: (folder / "work.read.y").write_bytes(READER + read_head(5000)),
}


@pytest.mark.parametrize("change", FOLDERS.values(), ids=FOLDERS)
def test_whatever_became_of_the_files_a_hint_from_before_does_no_harm(
    start: Opener, tmp_path: Path, left_behind: Path, change: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(left_behind, tmp_path / "queues")
    change(folder)
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / HINT).unlink()
    assert state_of(start, folder) == state_of(start, bare)


def test_a_hint_that_is_wrong_is_erased(start: Opener, tmp_path: Path, left_behind: Path) -> None:
    folder = shutil.copytree(left_behind, tmp_path / "queues")
    cut_last_file(folder)
    start(folder)
    assert not (folder / HINT).exists()


def test_damage_that_a_hint_has_passed_over_is_repaired_when_it_is_found(
    start: Opener, tmp_path: Path, left_behind: Path
) -> None:
    folder = shutil.copytree(left_behind, tmp_path / "queues")
    contents = (folder / "work.1").read_bytes()
    middle = contents.index(b"900 ") - 25
    (folder / "work.1").write_bytes(contents[:middle] + b"\xff" * 9 + contents[middle + 9 :])
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / HINT).unlink()
    left = [item.id for item in start(bare).take_all(b"work")]
    scrolls = start(folder)
    with pytest.raises(QueueFailed):
        scrolls.take_all(b"work")
    with suppress(QueueFailed):  # what is large takes its time
        scrolls.queue()
    scrolls.threads.run_all()
    assert [item.id for item in scrolls.take_all(b"work")] == left


# Readers.


def test_a_missing_reader_file_begins_at_the_earliest_item_that_is_there(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + put(41, b"a") + put(42, b"b"))
    scrolls = start(folder)
    assert scrolls.queue().done.head == 40
    assert [item.id for item in scrolls.take_all(scrolls.queue())] == [41, 42]


def test_a_queue_whose_reader_file_is_damaged_at_its_beginning_has_all_items_and_goes_on(
    start: Opener, tmp_path: Path
) -> None:
    for number, contents in enumerate((b"", READER[:2], b"junk that is no reader file", WRITER)):
        folder = tmp_path / f"queues-{number}"
        folder.mkdir()
        (folder / "work.5").write_bytes(WRITER + put(1, b"a") + put(2, b"b"))
        (folder / "work.read.").write_bytes(contents)
        scrolls = start(folder)
        scrolls.fill(scrolls.queue()).take(False)
        scrolls.commit(scrolls.queue())
        again = start.crashed(scrolls)
        assert again.data(again.queue()) == [b"b"]


def test_one_reader_that_cannot_be_read_fails_alone_and_is_tried_again_on_use(start: Opener) -> None:
    scrolls = start()
    family = [scrolls.queue(name) for name in (b"work", b"work+x")]
    scrolls.put_and_commit(family, b"a")
    scrolls.close()
    again = start(scrolls.folder, arrange=lambda disk: disk.cannot_read("work.read.x"))
    assert "cannot be loaded" in str(again.loaded[b"work+x"].value)
    assert again.data(again.queue()) == [b"a"]
    again.disk.mend()
    assert again.data(again.queue(b"work+x")) == [b"a"]


def test_an_id_is_never_given_twice_though_the_reader_that_knows_it_cannot_be_read_at_the_start(
    start: Opener, tmp_path: Path
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "work.5").write_bytes(WRITER + put(1, b"a"))
    (folder / "work.read.:own").write_bytes(READER + read_head(0) + read_done())
    (folder / "work.read.x").write_bytes(sealed(read_head(9) + read_done()))
    scrolls = start(folder, arrange=lambda disk: disk.cannot_read("work.read.x"))
    scrolls.put_and_commit(scrolls.queue(), b"b")
    scrolls.disk.mend()
    family = [scrolls.queue(), scrolls.queue(b"work+x")]
    scrolls.put_and_commit(family, b"c")
    for opened in (scrolls, start.crashed(scrolls)):
        assert [item.data for item in opened.look_through(opened.queue(b"work+x"))] == [b"c"]
        assert [item.data for item in opened.look_through(opened.queue())] == [b"a", b"b", b"c"]


def test_a_journal_that_cannot_be_read_fails_alone_and_is_tried_again_on_use(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.5").write_bytes(WRITER + put(1, name.encode()))
    scrolls = start(folder, arrange=lambda disk: disk.cannot_read("a.5"))
    assert "cannot be loaded" in str(scrolls.loaded[b"a"].value)
    assert scrolls.data(scrolls.queue(b"b")) == [b"b"]
    scrolls.disk.mend()
    assert scrolls.data(scrolls.queue(b"a")) == [b"a"]


def test_temporary_files_are_erased_and_are_no_queues(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    for name in ("work.read.~~5", "work.read.x~~17", "work.5~~6", "other.read.~~7"):
        (folder / name).write_bytes(READER + read_head(9))
    scrolls = start(folder)
    assert (scrolls.loaded, scrolls.files()) == ({}, {})


def test_a_hint_that_was_being_written_when_the_process_died_is_erased(start: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    hints = folder / ".kestrel" / "hints"
    hints.mkdir(parents=True)
    (folder / "work.5").write_bytes(WRITER + put(1, b"a"))
    for name in ("work~~5", "gone~~17"):
        (hints / name).write_bytes(b"half a hint")
    scrolls = start(folder)
    scrolls.threads.run_all()
    assert (list(hints.iterdir()), scrolls.data(scrolls.queue())) == ([], [b"a"])
