"""Hints: what a valid hint says of a journal's files, and that an invalid one says nothing."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.scroll import writer_file, writer_index
from kestrel.scroll.hints import FileHint, decode_hint, encode_hint, hint_path
from kestrel.scroll.writer_file import Counts, WriterFile, WriterMark, WriterTally
from kestrel.scroll.writer_index import index_writer_file
from tests.journal.handwritten import BytesReader
from tests.scroll.handwritten import WRITER, put, targets

CONTENTS = {
    b"work.1": WRITER + b"".join(put(item_id, bytes(100)) for item_id in range(1, 101)),
    b"work.2": WRITER + b"".join(targets(item_id % 2, b"x") + put(item_id, bytes(100)) for item_id in range(101, 201)),
}


@pytest.fixture(autouse=True)
def many_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (writer_index, writer_file):
        monkeypatch.setattr(module, "MARK_BYTES", 1000)


def hint_of(files: list[WriterFile], heads: Sequence[int] = ()) -> bytes:
    """Return a hint of these files for readers with these heads."""
    next_ids = sorted({head + 1 for head in heads})
    return encode_hint([FileHint.of(file, next_ids) for file in files if file.first_id])


def indexed_files() -> list[WriterFile]:
    files = []
    for number, (name, contents) in enumerate(CONTENTS.items(), 1):
        file = WriterFile(name, number)
        index_writer_file(BytesReader(contents), file)
        files.append(file)
    return files


def tally_of(tally: WriterTally) -> tuple[object, ...]:
    return tally.items, tally.bytes, tally.extra


def known_of(file: WriterFile) -> tuple[object, ...]:
    """Return all that is known of a file except its marks."""
    places = file.first_id, file.last_id, file.last_offset, file.size
    return file.file_name, file.number, places, file.is_closed, tally_of(file.tally)


def marks_of(file: WriterFile) -> list[tuple[object, ...]]:
    return [(mark.item_id, mark.offset, tally_of(mark.before)) for mark in file.marks]


def hint(*entries: Any, version: int = 1) -> bytes:
    return whole(json.dumps([version, list(entries)]).encode())


def whole(text: bytes) -> bytes:
    return b"%08x %b" % (zlib.crc32(text), text)


def entry(data: bytes) -> Any:
    return json.loads(data.partition(b" ")[2])[1][0]


# Valid hints.


def test_hint_restores_what_is_known_of_each_file() -> None:
    files = indexed_files()
    files[0].is_closed = True
    again = decode_hint(hint_of(files))
    assert list(again) == [b"work.1", b"work.2"]
    assert [known_of(file) for file in again.values()] == [known_of(file) for file in files]
    assert (again[b"work.1"].is_closed, again[b"work.2"].is_closed) == (True, False)


def test_hint_restores_marks_where_readers_begin() -> None:
    files = indexed_files()
    again = decode_hint(hint_of(files, [55, 150, 151]))
    for file, heads in zip(files, ([55], [150, 151]), strict=True):
        wanted = {file.before(head + 1).item_id for head in heads}
        assert marks_of(again[file.file_name]) == [mark for mark in marks_of(file) if mark[0] in wanted]


def test_reader_at_either_end_of_a_file_needs_no_mark() -> None:
    files = indexed_files()
    again = decode_hint(hint_of(files, [0, 100, 200, 5000]))
    assert [file.marks for file in again.values()] == [[], []]


def test_readers_at_one_place_share_its_mark() -> None:
    again = decode_hint(hint_of(indexed_files(), [55, 55, 56]))
    assert len(again[b"work.1"].marks) == 1


def test_hint_grows_with_readers_and_not_with_items() -> None:
    few, many = indexed_files(), indexed_files()
    for item_id in range(201, 10_000):
        many[1].mark(item_id, item_id * 1000)
        many[1].add_item(item_id, item_id * 1000, 100, None)
    assert len(hint_of(many, [55])) < len(hint_of(few, [55])) + 20


def test_hint_keeps_state_of_its_start_while_file_grows() -> None:
    file = WriterFile(b"work.1", 1)
    index_writer_file(BytesReader(WRITER + put(1, b"abc")), file)
    before = known_of(copy.deepcopy(file))
    started = [FileHint.of(file, [2])]
    file.add_item(2, file.size, 4, None)
    file.size += 29
    assert known_of(decode_hint(encode_hint(started))[b"work.1"]) == before


@pytest.mark.parametrize("files", [[], [WriterFile(b"work.3", 3)]], ids=["no files", "a file without items"])
def test_hint_without_items_is_empty(files: list[WriterFile]) -> None:
    assert decode_hint(hint_of(files, [0])) == {}


def test_reader_names_with_colons_are_kept() -> None:
    file = WriterFile(b":2bx.1", 1)
    file.first_id = file.last_id = 1
    file.tally.extra = {b":own": Counts(1, 2), b"caf:e9": Counts(-1, -2), b"::" + b"0" * 32: Counts(3, 4)}
    again = decode_hint(hint_of([file]))[b":2bx.1"]
    assert again.tally.extra == file.tally.extra


def test_largest_numbers_are_kept() -> None:
    file = WriterFile(b"work.999999999999999", 999_999_999_999_999)
    file.first_id, file.last_id = (1 << 62) - 2, (1 << 62) - 1
    file.last_offset, file.size = 1 << 50, 1 << 51
    file.add_mark(WriterMark(file.last_id, 1 << 50, WriterTally(1, 1 << 49)))
    again = decode_hint(hint_of([file], [(1 << 62) - 2]))[file.file_name]
    assert (known_of(again), marks_of(again)) == (known_of(file), marks_of(file))


def test_hint_is_stored_in_hints_folder_under_journal_name() -> None:
    assert hint_path(b"/queues", b"caf:e9") == b"/queues/.kestrel/hints/caf:e9"


# Invalid hints.


@pytest.mark.parametrize(
    "contents", [b"", b" ", b"\0" * 100, b"00000000 ", b"00000000 []", b"no hint at all", b"\xff" * 99]
)
def test_garbage_is_ignored(contents: bytes) -> None:
    assert decode_hint(contents) == {}


def test_truncated_extended_or_changed_hint_is_ignored() -> None:
    data = hint_of(indexed_files(), [55])
    damaged = [data[:size] for size in range(len(data))] + [data + b" "]
    damaged += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    assert [each for each in damaged if decode_hint(each)] == []


def test_hint_of_another_version_is_ignored() -> None:
    known = entry(hint_of(indexed_files()))
    assert list(decode_hint(hint(known))) == [b"work.1"]
    assert decode_hint(hint(known, version=2)) == {}


@pytest.mark.parametrize(
    "text",
    [b"", b"7", b"null", b"{}", b"[]", b"[1]", b"[1,2]", b"[1,[1]]", b"[1,[[]]]", b"[1,[],[]]", b"\xff", b"[" * 9999],
    ids=lambda text: text[:20].decode("latin-1"),
)
def test_checksummed_data_that_is_no_hint_is_ignored(text: bytes) -> None:
    assert decode_hint(whole(text)) == {}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path to each value within a value."""
    yield path
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths(inner, (*path, index))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*path, name))


@given(st.data())
def test_wrong_values_in_a_hint_cause_no_error(data: st.DataObject) -> None:
    known = entry(hint_of(indexed_files()[1:], [150]))
    *path, last = data.draw(st.sampled_from([each for each in paths(known) if each]))
    changed = copy.deepcopy(known)
    inner = changed
    for step in path:
        inner = inner[step]
    inner[last] = data.draw(ANYTHING)
    decoded = decode_hint(hint(changed))
    assert decoded == {} or len(decoded) == 1
