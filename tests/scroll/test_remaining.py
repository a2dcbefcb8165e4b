"""How many items a reader still has, counted with the help of marks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kestrel.scroll import writer_file, writer_index
from kestrel.scroll.remaining import count_remaining
from kestrel.scroll.writer_file import NO_ITEMS, Counts, WriterFile, WriterMark
from kestrel.scroll.writer_index import HintMismatch, index_writer_file
from tests.journal.handwritten import BytesReader
from tests.scroll.handwritten import ALL_BUT_X, WRITER, X_ALONE, put

Range = tuple[int, int]


class Folder:
    """Indexed writer files, and the names of those opened since."""

    def __init__(self, *contents: bytes) -> None:
        self._contents = {b"work.%d" % number: each for number, each in enumerate(contents, 1)}
        self.opened: list[bytes] = []
        self.files = []
        last_id = 0
        for number, (name, each) in enumerate(self._contents.items(), 1):
            file = WriterFile(name, number)
            index_writer_file(BytesReader(each), file, last_id)
            self.files.append(file)
            last_id = file.last_id

    def contents_of(self, name: bytes) -> bytes:
        return self._contents[name]

    def open(self, name: bytes) -> BytesReader:
        self.opened.append(name)
        return BytesReader(self._contents[name])

    def left(self, after_id: int = 0, done: Sequence[Range] = (), target_reader: bytes = b"y") -> Counts:
        return count_remaining(target_reader, after_id, done, self.files, self.open)


def items(*ids: int) -> bytes:
    """Return a file of items of ten bytes each."""
    return WRITER + b"".join(put(item_id, bytes(10)) for item_id in ids)


THREE_FILES = items(*range(1, 11)), items(*range(11, 21)), items(*range(21, 31))


def test_nothing_remains_without_files() -> None:
    assert Folder().left() == NO_ITEMS


# name: (head, ranges done beyond it, remaining items, opened files)
REMAINING = {
    "a new reader has everything": (0, [], 30, []),
    "the last item is done": (30, [], 0, []),
    "a head beyond the last item": (99, [], 0, []),
    "a head within a file": (14, [], 16, [b"work.2"]),
    "a head before the second file": (10, [], 20, []),
    "a head before the last file": (20, [], 10, []),
    "a file is done": (0, [(11, 20)], 20, []),
    "one item is done": (0, [(2, 2)], 29, [b"work.1"]),
    "ranges are done in all files": (3, [(5, 6), (9, 12), (30, 30)], 20, [b"work.1", b"work.2", b"work.3"]),
    "a range is done across files": (0, [(9, 22)], 16, [b"work.1", b"work.3"]),
}


@pytest.mark.parametrize(("head", "done", "remaining", "opened"), REMAINING.values(), ids=REMAINING)
def test_remaining_items_are_counted_with_few_opened_files(
    head: int, done: list[Range], remaining: int, opened: list[bytes]
) -> None:
    folder = Folder(*THREE_FILES)
    assert (folder.left(head, done), folder.opened) == (Counts(remaining, 10 * remaining), opened)


def test_ids_in_no_file_do_not_count() -> None:
    folder = Folder(items(1, 5, 9), items(20, 25))
    assert folder.left(2, [(6, 8), (10, 19), (21, 24), (30, 40)]) == Counts(4, 40)
    assert folder.left(2, [(3, 7), (21, 99)]) == Counts(2, 20)


def test_each_reader_has_only_its_items() -> None:
    folder = Folder(
        WRITER + put(1, b"a") + X_ALONE + put(2, b"bb") + ALL_BUT_X + put(3, b"ccc"),
        WRITER + X_ALONE + put(4, b"dddd") + put(5, b"eeeee"),
    )
    assert (folder.left(target_reader=b"x"), folder.left(target_reader=b"y")) == (Counts(4, 12), Counts(3, 9))
    assert (folder.left(1, target_reader=b"x"), folder.left(1, target_reader=b"y")) == (Counts(3, 11), Counts(2, 8))
    assert folder.left(0, [(2, 3)], b"x") == Counts(3, 10)
    assert folder.left(0, [(2, 3)], b"y") == Counts(2, 6)
    assert folder.left(3, [(4, 4)], b"y") == Counts(1, 5)


def test_ids_of_an_earlier_file_do_not_count_again() -> None:
    folder = Folder(items(1, 2, 3), items(2, 3, 4, 5))
    assert (folder.left(), folder.left(2), folder.left(4)) == (Counts(5, 50), Counts(3, 30), Counts(1, 10))
    assert folder.left(0, [(2, 4)]) == Counts(2, 20)


@pytest.mark.parametrize("ranges", [1, 7, 8, 9, 60])
@pytest.mark.parametrize("target_reader", [b"x", b"y"])
def test_few_and_many_ranges_are_counted_alike(
    ranges: int, target_reader: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (writer_index, writer_file):
        monkeypatch.setattr(module, "MARK_BYTES", 500)
    rng = random.Random(ranges)
    contents, given, item_id = [], {}, 0
    for _ in range(4):
        records = [WRITER]
        for _ in range(400):
            item_id += rng.choice((1, 1, 3))
            item_targets, size = rng.choice((b"", b"", X_ALONE, ALL_BUT_X)), rng.randrange(20)
            records += [item_targets, put(item_id, bytes(size))]
            if item_targets != (X_ALONE if target_reader == b"y" else ALL_BUT_X):
                given[item_id] = size
        contents.append(b"".join(records))
    folder = Folder(*contents)
    for _ in range(25):
        ends = sorted(rng.sample(range(1, item_id), 2 * ranges))
        done = list(zip(ends[::2], ends[1::2], strict=True))
        head = rng.choice((0, ends[0] - 1, rng.randrange(ends[0])))
        left = {
            each: size
            for each, size in given.items()
            if each > head and not any(first <= each <= last for first, last in done)
        }
        assert folder.left(head, done, target_reader) == Counts(len(left), sum(left.values()))


def test_wrong_mark_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (writer_index, writer_file):
        monkeypatch.setattr(module, "MARK_BYTES", 100)
    folder = Folder(items(*range(1, 101)))
    marks = folder.files[0].marks
    marks[:] = [WriterMark(mark.item_id, mark.offset + 35, mark.before) for mark in marks]
    with pytest.raises(HintMismatch):
        folder.left(50)


def test_file_that_cannot_be_opened_is_an_error() -> None:
    def cannot_open(name: bytes) -> BytesReader:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        count_remaining(b"y", 5, (), Folder(*THREE_FILES).files, cannot_open)


def test_file_without_marks_is_read_once_despite_many_holes() -> None:
    folder = Folder(items(*range(1, 20_001)))
    folder.files[0].marks.clear()
    reader = BytesReader(folder.contents_of(b"work.1"))
    done = [(first, first + 98) for first in range(1, 20_000, 100)]
    assert count_remaining(b"y", 0, done, folder.files, lambda _: reader) == Counts(200, 2000)
    assert reader.read_bytes < 1.2 * reader.size
