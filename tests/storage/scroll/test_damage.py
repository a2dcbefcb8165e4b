"""Damage in one file of a scroll loses no item of another file, and none that was not confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scroll.handwritten import DELETED, READER, WRITER, put, read_done, read_head, sealed
from tests.scroll.storages import Opener, Scrolls

ITEMS = range(1, 31)


def folder_of(path: Path, **files: bytes) -> Path:
    """A folder with these files of `work`; `_5` is a writer file, `read` the reader file."""
    path.mkdir(parents=True)
    for name, contents in files.items():
        (path / ("work.read." if name == "read" else "work." + name[1:])).write_bytes(contents)
    return path


def writer(*ids: int) -> bytes:
    return WRITER + b"".join(put(item_id, b"%d" % item_id) for item_id in ids)


def damaged(scrolls: Scrolls) -> list[bytes]:
    """The copies that were kept."""
    folder = scrolls.folder / ".kestrel" / "damaged"
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.exists() else []


def flipped(contents: bytes, bit: int) -> bytes:
    position = bit // 8
    return contents[:position] + bytes([contents[position] ^ 1 << bit % 8]) + contents[position + 1 :]


# Reader files.


def test_a_flipped_bit_in_a_reader_file_loses_no_item(start: Opener, tmp_path: Path) -> None:
    contents = sealed(read_head(1) + read_done(3), read_head(3) + read_done(5))
    for bit in range(8 * len(contents)):
        damage = flipped(contents, bit)
        folder = folder_of(tmp_path / str(bit), _5=writer(*range(1, 8)), read=damage)
        scrolls = start(folder)
        assert {b"4", b"6", b"7"} <= {item.data for item in scrolls.look_through(scrolls.queue())}, bit
        (copy,) = damaged(scrolls)
        assert damage.endswith(copy)
        scrolls.close()


@pytest.mark.parametrize(
    "contents",
    [
        READER + read_head(2 | 0x40) + read_done(),
        READER + read_head(2) + read_done(4 | 0x400),
        READER + read_head(2) + DELETED,
        READER + read_head(2) + read_head(1),
    ],
    ids=["head beyond the last item", "done id beyond the last item", "deleted", "head moves backwards"],
)
def test_an_impossible_reader_file_without_checksums_says_nothing(
    start: Opener, tmp_path: Path, contents: bytes
) -> None:
    scrolls = start(folder_of(tmp_path / "queues", _5=writer(*range(1, 7)), read=contents))
    assert damaged(scrolls) == [contents]
    assert [item.id for item in scrolls.take_all(scrolls.queue())] == [1, 2, 3, 4, 5, 6]


def test_a_damaged_reader_file_gives_no_id_twice(start: Opener, tmp_path: Path) -> None:
    scrolls = start(folder_of(tmp_path / "queues", read=flipped(sealed(read_head(1000) + read_done()), 8 * 15)))
    scrolls.put_and_commit(scrolls.queue(), b"next")
    (item,) = scrolls.take_all(scrolls.queue())
    assert item.id > 1000


# Writer files.


def check_files(start: Opener, path: Path, lost: int, **files: bytes) -> None:
    """All of the items are delivered but that one."""
    scrolls = start(folder_of(path, **files))
    found = [int(item.data) for item in scrolls.take_all(scrolls.queue())]
    assert found == [item_id for item_id in ITEMS if item_id != lost]
    scrolls.close()


@pytest.mark.parametrize("bit", [*range(8), 32, 60])
@pytest.mark.parametrize("number", ["5", "6", "7"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_flipped_bit_in_an_id_hides_no_other_file(
    start: Opener, tmp_path: Path, number: str, place: str, bit: int
) -> None:
    files = {"_5": writer(*range(1, 11)), "_6": writer(*range(11, 21)), "_7": writer(*range(21, 31))}
    contents = files["_" + number]
    item = 4 if place == "first" else contents.rindex(b"\x86")
    files["_" + number] = flipped(contents, 8 * (item + 9) + bit)
    damaged_from = 10 * (int(number) - 5)
    intact = set(ITEMS) - set(range(damaged_from + 1, damaged_from + 11))
    scrolls = start(folder_of(tmp_path / "queues", **files))
    found = {int(item.data) for item in scrolls.take_all(scrolls.queue())}
    assert intact <= found
    if place == "last":
        assert found >= set(ITEMS) - {damaged_from + 10}


def test_files_whose_numbers_are_out_of_order_are_read_by_their_ids(start: Opener, tmp_path: Path) -> None:
    check_files(start, tmp_path / "a", 0, _9=writer(*range(1, 11)), _5=writer(*range(11, 31)))


# The files of long names.

LONG = "Übergröße" * 12


def names_in(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / ".kestrel" / "names").iterdir())]


def test_a_deleted_queue_leaves_no_file_of_its_name(start: Opener) -> None:
    scrolls = start()
    for number in range(20):
        for name in (f"{LONG}{number}".encode(), f"{LONG}+{LONG}{number}".encode()):
            queue = scrolls.queue(name)
            scrolls.put_and_commit(queue, b"a")
            scrolls.storage.delete(queue)
            scrolls.commit(queue)
            scrolls.threads.run_all()
    assert names_in(scrolls.folder) == []
    assert scrolls.files() == {}


def test_a_name_that_another_queue_uses_is_kept(start: Opener) -> None:
    scrolls = start()
    first, second = (scrolls.queue(parent + b"+" + LONG.encode()) for parent in (b"a", b"b"))
    scrolls.put_and_commit(first, b"1")
    scrolls.put_and_commit(second, b"2")
    scrolls.storage.delete(first)
    scrolls.commit(first)
    scrolls.threads.run_all()
    assert names_in(scrolls.folder) == [LONG.encode()]
    again = start.again(scrolls)
    assert again.data(again.queue(b"b+" + LONG.encode())) == [b"2"]


def test_a_queue_that_is_made_again_meanwhile_keeps_its_name(start: Opener) -> None:
    scrolls = start()
    queue = scrolls.queue(LONG.encode())
    scrolls.put_and_commit(queue, b"1")
    scrolls.storage.delete(queue)
    scrolls.put_and_commit(scrolls.queue(LONG.encode()), b"2")
    scrolls.threads.run_all()
    again = start.crashed(scrolls)
    assert again.data(again.queue(LONG.encode())) == [b"2"]


def test_a_start_erases_the_names_of_queues_that_are_gone(start: Opener) -> None:
    scrolls = start()
    scrolls.put_and_commit(scrolls.queue(LONG.encode()), b"1")
    folder = scrolls.left_behind()
    (folder / ".kestrel" / "names" / ("0" * 32)).write_bytes(b"gone")
    again = start(folder)
    assert names_in(folder) == [LONG.encode()]
    assert again.data(again.queue(LONG.encode())) == [b"1"]
