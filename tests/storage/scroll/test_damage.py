"""Damage in one file of a scroll loses no unconfirmed item of another file, and long names are kept in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sample import is_tried
from tests.scroll.handwritten import DELETED, READER, read_done, read_head, reader_file, sealed, writer_file
from tests.scroll.storages import Opener, Scrolls

# Damaged files.


def numbered(first: int, last: int) -> bytes:
    return writer_file(*[b"%d" % item_id for item_id in range(first, last + 1)], first_id=first)


def quarantined(scrolls: Scrolls) -> list[bytes]:
    """Return the quarantined copies of damaged files."""
    folder = scrolls.folder / ".kestrel" / "damaged"
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.exists() else []


def flipped(contents: bytes, bit: int) -> bytes:
    offset = bit // 8
    return contents[:offset] + bytes([contents[offset] ^ 1 << bit % 8]) + contents[offset + 1 :]


def test_flipped_bit_in_reader_file_loses_no_item(start: Opener, tmp_path: Path) -> None:
    contents = sealed(read_head(1) + read_done(3), read_head(3) + read_done(5))
    for bit in filter(is_tried, range(8 * len(contents))):
        damaged = flipped(contents, bit)
        scrolls = start.over({"work.5": numbered(1, 7), "work.read.": damaged}, tmp_path / str(bit))
        assert {b"4", b"6", b"7"} <= set(scrolls.show(b"work")[0]), bit
        (copy,) = quarantined(scrolls)
        assert damaged.endswith(copy)
        scrolls.close()


@pytest.mark.parametrize(
    "contents",
    [
        reader_file(2 | 0x40),
        reader_file(2, 4 | 0x400),
        READER + read_head(2) + DELETED,
        READER + read_head(2) + read_head(1),
    ],
    ids=["head beyond the last item", "done id beyond the last item", "deleted", "head moves backwards"],
)
def test_impossible_reader_file_without_checksums_is_ignored(start: Opener, contents: bytes) -> None:
    scrolls = start.over({"work.5": numbered(1, 6), "work.read.": contents})
    assert quarantined(scrolls) == [contents]
    assert [item.id for item in scrolls.take_all()] == [1, 2, 3, 4, 5, 6]


def test_damaged_reader_file_causes_no_repeated_id(start: Opener) -> None:
    scrolls = start.over({"work.read.": flipped(sealed(read_head(1000) + read_done()), 8 * 15)})
    scrolls.put_and_commit(scrolls.queue(), b"next")
    (item,) = scrolls.take_all()
    assert item.id > 1000


@pytest.mark.parametrize("bit", [*range(8), 32, 60])
@pytest.mark.parametrize("number", [5, 6, 7])
@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
def test_flipped_bit_in_an_id_hides_no_other_file(start: Opener, number: int, is_last: bool, bit: int) -> None:
    files = {"work.5": numbered(1, 10), "work.6": numbered(11, 20), "work.7": numbered(21, 30)}
    contents = files[f"work.{number}"]
    item = contents.rindex(b"\x86") if is_last else 4
    scrolls = start.over(files | {f"work.{number}": flipped(contents, 8 * (item + 9) + bit)})
    found = set(map(int, scrolls.data()))
    first = 10 * (number - 5) + 1
    damaged = {first + 9} if is_last else set(range(first, first + 10))
    assert found >= set(range(1, 31)) - damaged


def test_files_with_unordered_numbers_are_read_by_id(start: Opener) -> None:
    scrolls = start.over({"work.9": numbered(1, 10), "work.5": numbered(11, 30)})
    assert list(map(int, scrolls.data())) == list(range(1, 31))


# The files of long names.

LONG = ("Übergröße" * 12).encode()


def stored_names(scrolls: Scrolls) -> list[bytes]:
    return [path.read_bytes() for path in sorted((scrolls.folder / ".kestrel" / "names").iterdir())]


def test_deleted_queue_leaves_no_stored_name(start: Opener) -> None:
    scrolls = start()
    for number in range(20):
        for name in (b"%b%d" % (LONG, number), b"%b+%b%d" % (LONG, LONG, number)):
            queue = scrolls.queue(name)
            scrolls.put_and_commit(queue, b"a")
            scrolls.delete(queue)
    assert stored_names(scrolls) == []
    assert scrolls.files() == {}


def test_stored_name_used_by_another_queue_is_kept(start: Opener) -> None:
    scrolls, first = start.queue(b"1", name=b"a+" + LONG)
    scrolls.put_and_commit(scrolls.queue(b"b+" + LONG), b"2")
    scrolls.delete(first)
    assert stored_names(scrolls) == [LONG]
    assert start.again(scrolls).data(b"b+" + LONG) == [b"2"]


def test_queue_recreated_during_its_deletion_keeps_its_name(start: Opener) -> None:
    scrolls, queue = start.queue(b"1", name=LONG)
    scrolls.storage.delete(queue)
    scrolls.put_and_commit(scrolls.queue(LONG), b"2")
    scrolls.threads.run_all()
    assert start.crashed(scrolls).data(LONG) == [b"2"]


def test_start_erases_unused_stored_names(start: Opener) -> None:
    scrolls, _ = start.queue(b"1", name=LONG)
    again = start.over({".kestrel/names/" + "0" * 32: b"gone"}, scrolls.left_behind())
    assert stored_names(again) == [LONG]
    assert again.data(LONG) == [b"1"]
