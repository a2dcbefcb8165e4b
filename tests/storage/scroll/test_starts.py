"""Starts of a scroll storage: hints save reading and never change the result, and damaged readers are loaded."""

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
from kestrel.scroll.hints import FileHint, encode_hint
from kestrel.scroll.writer_file import WriterFile
from kestrel.scroll.writer_index import index_writer_file
from kestrel.storage.interfaces import IItemRanges
from tests.journal.handwritten import BytesReader
from tests.scroll.handwritten import (
    READER,
    WRITER,
    done_ranges,
    errors,
    put,
    read_done,
    read_head,
    reader_file,
    sealed,
    targets,
    writer_file,
)
from tests.scroll.storages import FAMILY, SYNCED, Opener, Scrolls

HINT: Final = Path(".kestrel") / "hints" / "work"


def numbered(first_id: int, last_id: int) -> bytes:
    """Return a writer file of numbered items."""
    return writer_file(*[b"item %d" % item_id for item_id in range(first_id, last_id + 1)], first_id=first_id)


def large(start: Opener, items: int = 200_000) -> Scrolls:
    """Start over this many items in ten files, and three readers that are far apart in them."""
    each = items // 10
    files = {f"work.{1000 + number}": numbered(1 + number * each, (number + 1) * each) for number in range(10)}
    head = items * 3 // 5 + 1234
    readers = {":own": reader_file(0), "x": reader_file(head, head + 766), "y": reader_file(items - 5)}
    return start.over(files | {f"work.read.{name}": contents for name, contents in readers.items()})


def with_hint(scrolls: Scrolls) -> Path:
    """Return the folder that a crash leaves after the storage has written its hint."""
    scrolls.checkpoint()
    assert (scrolls.folder / HINT).exists()
    return scrolls.left_behind()


def without_hint(folder: Path) -> Path:
    """Return a copy of a folder without its hint."""
    bare = folder.with_name(folder.name + "-bare")
    shutil.copytree(folder, bare)
    (bare / HINT).unlink()
    return bare


def counts(scrolls: Scrolls) -> list[tuple[int, int]]:
    return [(scrolls.loaded[name].items, scrolls.loaded[name].bytes) for name in FAMILY]


# Bytes read.


def test_hint_saves_reading_most_of_the_items(start: Opener) -> None:
    folder = with_hint(large(start))
    scrolls = start(folder)
    hinted = counts(scrolls)
    assert [items for items, _ in hinted] == [200_000, 80_000 - 1235, 5]
    assert scrolls.disk.bytes_of("read") < 1 << 20
    bare = start(without_hint(folder))
    writer_bytes = sum(len(bare.files()[name]) for name in bare.writers())
    assert counts(bare) == hinted
    assert 7_000_000 < writer_bytes <= bare.disk.bytes_of("read") < writer_bytes + 4 * (1 << 20)


def test_stop_leaves_a_hint(start: Opener) -> None:
    scrolls = start.again(large(start))
    assert scrolls.disk.bytes_of("read") < 1 << 20


def test_start_reads_only_items_put_since_the_hint(start: Opener) -> None:
    folder = with_hint(large(start))
    records = numbered(200_001, 205_000)[len(WRITER) :]
    with (folder / "work.1009").open("ab") as file:
        file.write(records)
    scrolls = start.over({"work.1010": writer_file(b"last", first_id=205_001)}, folder)
    assert scrolls.queue(b"work+y").items == 5006
    assert scrolls.disk.bytes_of("read") < (1 << 20) + len(records)


# When hints are written.


def test_small_journal_has_no_hint(start: Opener) -> None:
    scrolls, _ = start.queue(*[bytes(10)] * 2000)
    scrolls.checkpoint()
    scrolls.close()
    assert not (scrolls.folder / HINT).exists()


def test_hint_is_rewritten_only_after_many_changes(start: Opener) -> None:
    scrolls = large(start, 20_000)
    scrolls.checkpoint()
    for items, expected in ((9000, []), (2000, ["rename"])):
        scrolls.put_and_commit(scrolls.queue(), *[bytes(10)] * items)
        scrolls.disk.done.clear()
        scrolls.checkpoint()
        assert [operation for operation, name, _ in scrolls.disk.done if name == "work"] == expected
        assert expected or scrolls.disk.writes() == {}


def test_failed_write_of_a_hint_fails_no_queue(start: Opener) -> None:
    scrolls = large(start, 20_000)
    scrolls.disk.fail("write", errno.EIO)
    scrolls.checkpoint()
    scrolls.disk.mend()
    assert scrolls.queue().failure is None
    assert list((scrolls.folder / HINT).parent.iterdir()) == []


def test_deleted_queue_leaves_no_hint(start: Opener) -> None:
    scrolls = start(with_hint(large(start, 20_000)))
    for queue in scrolls.family():
        scrolls.storage.delete(queue)
    scrolls.threads.run_all()
    assert not (scrolls.folder / HINT).exists()
    assert scrolls.files() == {}


def test_hint_is_not_used_after_a_failed_write(start: Opener) -> None:
    scrolls, family = start.family(*[bytes(30)] * 10_000, settings=SYNCED)
    scrolls.put(family, b"for all, lost.", b"last")
    outcomes = scrolls.begin_commit(*family[:2])
    scrolls.clock.advance(10)
    scrolls.threads.run_newest()
    assert (scrolls.folder / HINT).exists()
    scrolls.fail_put(family[2], b"fails")
    scrolls.threads.run_all()
    assert len(outcomes) == 1 and outcomes != [None]
    family = scrolls.family()
    scrolls.put(family[1], b"only x")  # with its targets as long as the lost item
    scrolls.put(family, b"last")
    scrolls.commit(*family)
    assert counts(start.crashed(scrolls)) == [(10_001, 300_004), (10_002, 300_010), (10_001, 300_004)]


def test_item_counted_only_by_a_hint_is_reported_once(start: Opener) -> None:
    contents = writer_file(b"a", b"b")
    file = WriterFile(b"work.5", 5)
    index_writer_file(BytesReader(contents), file)
    file.tally.items += 1
    hint = encode_hint([FileHint.of(file, [1])])
    scrolls = start.over({"work.5": contents, "work.read.": reader_file(0), str(HINT): hint})
    queue = scrolls.queue()
    assert queue.items == 3
    scrolls.take(queue, 2)
    with pytest.raises(QueueFailed):
        scrolls.fill(queue)
    assert (scrolls.queue().items, scrolls.data()) == (0, [])


# Any hint gives the same result.


def mixed_files() -> dict[str, bytes]:
    """Return files of items of different sizes for some or all readers, with repeated and missing ids."""
    files = {}
    rng = random.Random(11)
    item_id = 0
    for number in range(1, 5):
        records = [WRITER]
        if number == 4:
            records += [put(each, b"again") for each in range(item_id - 4, item_id + 1)]
        for _ in range(1500):
            item_id += rng.choice((1, 1, 1, 2))
            item_targets = rng.choice((b"", b"", b"", targets(0, b"x"), targets(1, b"x"), targets(0, b"x", b":own")))
            records += [item_targets, put(item_id, b"%d " % item_id + bytes(rng.randrange(100)))]
        files[f"work.{number}"] = b"".join(records)
    files["work.read.:own"] = reader_file(0, 3, 5) + done_ranges((1000, 3000))
    files["work.read.x"] = reader_file(3300, *range(3302, 4200, 2)) + errors(_4300=3)
    files["work.read.y"] = reader_file(item_id - 100)
    return files


def state_of(start: Opener, folder: Path) -> dict[bytes, object]:
    """Return the counts and the items of each queue of a folder, and check that they match, also after a release."""
    scrolls = start(folder)
    found: dict[bytes, object] = {}
    for name, queue in sorted(scrolls.loaded.items()):
        counted = queue.items, queue.bytes
        items = [(item.id, item.data, item.errors) for item in scrolls.look_through(queue)]
        assert (len(items), sum(len(data) for _, data, _ in items)) == counted
        ranges = IItemRanges(queue)
        middle = (ranges.first_id + ranges.next_id) // 2
        ranges.release(middle)
        left = [item.id for item in scrolls.look_through(queue)]
        assert left == [item_id for item_id, _, _ in items if item_id >= middle]
        assert queue.items == len(left)
        found[name] = counted, items
    scrolls.close()
    return found


def decoded(folder: Path) -> Any:
    return json.loads((folder / HINT).read_bytes().partition(b" ")[2])


def write_hint(folder: Path, contents: Any) -> None:
    """Write another hint with a matching checksum."""
    text = json.dumps(contents).encode()
    (folder / HINT).write_bytes(b"%08x %b" % (zlib.crc32(text), text))


Change = Callable[[Path], object]
"""A change of a folder or of its hint."""


def changed(change: Callable[[Any], object]) -> Change:
    """Change the entry of a file in which a reader is."""

    def arrange(folder: Path) -> None:
        contents = decoded(folder)
        change(next(entry for entry in contents[1] if entry[8]))
        write_hint(folder, contents)

    return arrange


def cut_in_half(path: Path) -> None:
    contents = path.read_bytes()
    path.write_bytes(contents[: len(contents) // 2])


def replace_hint_by_folder(folder: Path) -> None:
    (folder / HINT).unlink()
    (folder / HINT).mkdir()


def add_missing_file(folder: Path) -> None:
    contents = decoded(folder)
    more = json.loads(json.dumps(contents[1][0]).replace("work.1", "work.99"))
    write_hint(folder, [1, [*contents[1], more]])


def set_field(index: int, value: object) -> Change:
    return changed(lambda entry: entry.__setitem__(index, value))


def set_mark(index: int, value: object) -> Change:
    return changed(lambda entry: entry[8][0].__setitem__(index, value))


HINTS: Final[dict[str, Change]] = {
    "right": lambda folder: None,
    "none": lambda folder: (folder / HINT).unlink(),
    "garbage": lambda folder: (folder / HINT).write_bytes(bytes(range(256)) * 9),
    "a folder": replace_hint_by_folder,
    "of only one file": lambda folder: write_hint(folder, [1, decoded(folder)[1][1:2]]),
    "of a missing file": add_missing_file,
    "a wrong last id": set_field(3, 123_456),
    "a negative last offset": set_field(4, -5),
    "a last offset behind the file": set_field(4, 1 << 40),
    "a last offset within a record": changed(lambda entry: entry.__setitem__(4, entry[4] + 3)),
    "a size behind the file": changed(lambda entry: entry.__setitem__(5, entry[5] + 1)),
    "a size too small": changed(lambda entry: entry.__setitem__(5, entry[5] - 1)),
    "a size of 0": set_field(5, 0),
    "a mark before the file": set_mark(1, -5),
    "a mark behind the file": set_mark(1, 1 << 40),
    "a mark at the end of the file": changed(lambda entry: entry[8][0].__setitem__(1, entry[5])),
    "a mark within a record": changed(lambda entry: entry[8][0].__setitem__(1, entry[8][0][1] + 7)),
    "a mark at another item": set_mark(0, 3000),
    "a number that is a name": set_field(1, "five"),
    "ids that are names": set_field(2, "five"),
    "a last id of null": set_field(3, None),
    "a fraction as offset": set_field(4, 0.5),
    "a size that is a list": set_field(5, []),
    "counts that are names": changed(lambda entry: entry[7].__setitem__(0, "five")),
    "a mark that is a name": set_mark(1, "five"),
}


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a mixed folder with a hint, which tests must not change."""
    opener = Opener(tmp_path_factory.mktemp("mixed"))
    left_behind = with_hint(opener.over(mixed_files()))
    opener.stop_all()
    return left_behind


@pytest.fixture(scope="module")
def expected(left_behind: Path) -> dict[bytes, object]:
    """Return the state of each queue after a start without a hint."""
    return state_of(Opener(left_behind), without_hint(left_behind))


@pytest.fixture
def folder(tmp_path: Path, left_behind: Path) -> Path:
    """Return a copy of the mixed folder with its hint."""
    return Path(shutil.copytree(left_behind, tmp_path / "queues"))


@pytest.mark.parametrize("change", HINTS.values(), ids=HINTS)
def test_any_hint_gives_the_same_queues(
    start: Opener, folder: Path, expected: dict[bytes, object], change: Change
) -> None:
    change(folder)
    assert tuple(expected) == FAMILY
    assert state_of(start, folder) == expected


def append_to_last_file(data: bytes) -> Change:
    def append(folder: Path) -> None:
        with (folder / "work.4").open("ab") as file:
            file.write(data)

    return append


FOLDERS: Final[dict[str, Change]] = {
    "an added file": lambda folder: (folder / "work.9").write_bytes(writer_file(b"more", first_id=1 << 20)),
    "added items": append_to_last_file(targets(0, b"x") + put(1 << 20, b"for x") + put((1 << 20) + 1, b"for all")),
    "the first file missing": lambda folder: (folder / "work.1").unlink(),
    "a middle file missing": lambda folder: (folder / "work.2").unlink(),
    "the last file missing": lambda folder: (folder / "work.4").unlink(),
    "the last file cut in half": lambda folder: cut_in_half(folder / "work.4"),
    "the last file torn": append_to_last_file(put(1 << 20, b"torn")[:-1]),
    "zeros behind the last file": append_to_last_file(bytes(5000)),
    "a renamed file": lambda folder: (folder / "work.3").rename(folder / "work.7"),
    "a reader reset to the beginning": lambda folder: (folder / "work.read.y").write_bytes(READER + read_head(0)),
    "a reader missing": lambda folder: (folder / "work.read.y").unlink(),
    "a reader far from any mark": lambda folder: (folder / "work.read.y").write_bytes(READER + read_head(5000)),
}


@pytest.mark.parametrize("change", FOLDERS.values(), ids=FOLDERS)
def test_outdated_hint_gives_the_same_queues(start: Opener, folder: Path, change: Change) -> None:
    change(folder)
    bare = without_hint(folder)  # before the start, which changes the folder
    assert state_of(start, folder) == state_of(start, bare)


def test_wrong_hint_is_erased(start: Opener, folder: Path) -> None:
    cut_in_half(folder / "work.4")
    start(folder)
    assert not (folder / HINT).exists()


def test_damage_skipped_by_a_hint_is_repaired_when_found(start: Opener, folder: Path) -> None:
    contents = (folder / "work.1").read_bytes()
    middle = contents.index(b"900 ") - 25
    (folder / "work.1").write_bytes(contents[:middle] + b"\xff" * 9 + contents[middle + 9 :])
    left = start(without_hint(folder)).data()
    scrolls = start(folder)
    with pytest.raises(QueueFailed):
        scrolls.take_all()
    with suppress(QueueFailed):  # a large journal is loaded in a thread
        scrolls.queue()
    scrolls.threads.run_all()
    assert scrolls.data() == left


# Readers.


def test_missing_reader_file_begins_at_the_earliest_item(start: Opener) -> None:
    scrolls = start.over({"work.5": writer_file(b"a", b"b", first_id=41)})
    assert scrolls.queue().done.head == 40
    assert [item.id for item in scrolls.take_all()] == [41, 42]


@pytest.mark.parametrize("contents", [b"", READER[:2], b"junk that is no reader file", WRITER])
def test_damaged_start_of_reader_file_delivers_all_items(start: Opener, contents: bytes) -> None:
    scrolls = start.over({"work.5": writer_file(b"a", b"b"), "work.read.": contents})
    scrolls.take(scrolls.queue())
    assert start.crashed(scrolls).data() == [b"b"]


@pytest.mark.parametrize(
    ("unreadable", "failed", "working"),
    [("work.read.x", b"work+x", b"work"), ("other.5", b"other", b"work")],
    ids=["a reader file", "a writer file"],
)
def test_unreadable_file_fails_one_queue_until_it_is_readable(
    start: Opener, unreadable: str, failed: bytes, working: bytes
) -> None:
    files = {"work.5": writer_file(b"a"), "other.5": writer_file(b"a")}
    files |= {"work.read.:own": reader_file(0), "work.read.x": reader_file(0)}
    scrolls = start.over(files, arrange=lambda disk: disk.cannot_read(unreadable))
    assert "cannot be loaded" in str(scrolls.loaded[failed].value)
    assert scrolls.data(working) == [b"a"]
    scrolls.disk.mend()
    assert scrolls.data(failed) == [b"a"]


def test_no_id_is_repeated_although_a_reader_is_unreadable(start: Opener) -> None:
    files = {
        "work.5": writer_file(b"a"),
        "work.read.:own": reader_file(0),
        "work.read.x": sealed(read_head(9) + read_done()),
    }
    scrolls = start.over(files, arrange=lambda disk: disk.cannot_read("work.read.x"))
    scrolls.put_and_commit(scrolls.queue(), b"b")
    scrolls.disk.mend()
    scrolls.put_and_commit(scrolls.family(children=1), b"c")
    for opened in (start.crashed(scrolls), scrolls):
        assert opened.drain(*FAMILY[:2]) == [[b"a", b"b", b"c"], [b"c"]]


def test_temporary_files_are_erased(start: Opener) -> None:
    names = ("work.read.~~5", "work.read.x~~17", "work.5~~6", "other.read.~~7")
    scrolls = start.over({name: READER + read_head(9) for name in names})
    assert (scrolls.loaded, scrolls.files()) == ({}, {})


def test_unfinished_hints_are_erased(start: Opener) -> None:
    hints = {f".kestrel/hints/{name}": b"half a hint" for name in ("work~~5", "gone~~17")}
    scrolls = start.over({"work.5": writer_file(b"a"), **hints})
    scrolls.threads.run_all()
    assert (list((scrolls.folder / HINT).parent.iterdir()), scrolls.data()) == ([], [b"a"])
