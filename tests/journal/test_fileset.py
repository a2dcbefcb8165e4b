"""Which file belongs to which queue, and the order of replay."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.journal.fileset import (
    MAX_FILE_NAME_BYTES,
    JournalFileKind,
    QueueFiles,
    current_name,
    group_by_queue,
    parse_file_name,
    rotated_name,
    temporary_name,
)

# file name: (queue, kind, number)
OURS = {
    b"work": (b"work", JournalFileKind.CURRENT, 0),
    b"work.1700000000000": (b"work", JournalFileKind.ROTATED, 1700000000000),
    b"work.900": (b"work", JournalFileKind.ROTATED, 900),
    b"work.0": (b"work", JournalFileKind.ROTATED, 0),
    b"work.1700000000000.pack": (b"work", JournalFileKind.PACK, 1700000000000),
    b"work~~1700000000000": (b"work", JournalFileKind.TEMPORARY, 1700000000000),
    b"work+child": (b"work+child", JournalFileKind.CURRENT, 0),
    b"work+child.1000": (b"work+child", JournalFileKind.ROTATED, 1000),
    b"x+": (b"x+", JournalFileKind.CURRENT, 0),
    b"+x": (b"+x", JournalFileKind.CURRENT, 0),
    b"1000": (b"1000", JournalFileKind.CURRENT, 0),
    b"pack": (b"pack", JournalFileKind.CURRENT, 0),
    "é".encode(): (b"\xe9", JournalFileKind.CURRENT, 0),
    "ÿ\x80.7.pack".encode(): (b"\xff\x80", JournalFileKind.PACK, 7),
    b"-rf*": (b"-rf*", JournalFileKind.CURRENT, 0),
    b"n" * 200: (b"n" * 200, JournalFileKind.CURRENT, 0),
}

FOREIGN = {
    "hidden": b".kestrel",
    "a suffix that is no number": b"work.bak",
    "a number and more": b"work.12x",
    "no number after the dot": b"work.",
    "a sign": b"work.-1",
    "a pack without a number": b"work.pack",
    "more after the pack": b"work.1.pack.old",
    "two packs": b"work.1.pack.pack",
    "two numbers": b"work.1.2",
    "one tilde": b"work~1",
    "a backup": b"work~",
    "a temporary file without a number": b"work~~",
    "a temporary file with no number": b"work~~x",
    "a packed temporary file": b"work~~1.pack",
    "no queue before the number": b".1000",
    "no queue before the tildes": b"~~1000",
    "white space": b"my queue",
    "a line end": b"work\n",
    "a control character": b"work\x01",
    "delete": b"work\x7f",
    "not UTF-8": b"\xe9t\xe9",
    "UTF-8 of no byte": "€".encode(),
    "digits of another script": "work.\N{ARABIC-INDIC DIGIT ONE}".encode(),
    "the plus alone, which no queue is called": b"+",
    "a name that no queue has for its length": b"n" * 201,
}


@pytest.mark.parametrize("file_name", OURS)
def test_journal_file_is_recognized_by_its_name(file_name: bytes) -> None:
    file = parse_file_name(file_name)
    assert file is not None
    assert (file.queue, file.kind, file.number, file.file_name) == (*OURS[file_name], file_name)


@pytest.mark.parametrize("file_name", FOREIGN.values(), ids=FOREIGN)
def test_other_files_are_foreign(file_name: bytes) -> None:
    assert parse_file_name(file_name) is None


def test_file_names_are_those_of_kestrel() -> None:
    assert current_name(b"work") == b"work"
    assert current_name(b"\xe9\x80") == "é\x80".encode()
    assert rotated_name(b"\xe9", 17) == "é.17".encode()
    assert temporary_name(b"work+x", 17) == b"work+x~~17"


def test_longest_name_leaves_room_for_every_suffix() -> None:
    assert MAX_FILE_NAME_BYTES + len(".1700000000000.pack") <= 255


legal_byte = st.sampled_from([byte for byte in range(0x21, 0x100) if byte not in b"/~.\x7f"])
some_queue = st.lists(legal_byte, min_size=1, max_size=100).map(bytes).filter(lambda name: name != b"+")
some_number = st.integers(0, 10**14)


@given(queue=some_queue, number=some_number)
def test_any_queue_is_found_by_its_file_names(queue: bytes, number: int) -> None:
    found = [
        parse_file_name(file_name)
        for file_name in (
            current_name(queue),
            rotated_name(queue, number),
            rotated_name(queue, number) + b".pack",
            temporary_name(queue, number),
        )
    ]
    assert [(file.queue, file.kind, file.number) for file in found if file is not None] == [
        (queue, JournalFileKind.CURRENT, 0),
        (queue, JournalFileKind.ROTATED, number),
        (queue, JournalFileKind.PACK, number),
        (queue, JournalFileKind.TEMPORARY, number),
    ]


@given(first=some_queue, second=some_queue)
def test_two_queues_never_share_a_file(first: bytes, second: bytes) -> None:
    assert (current_name(first) == current_name(second)) == (first == second)


@given(file_name=st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_any_file_name_is_recognized_exactly_or_foreign(file_name: bytes) -> None:
    file = parse_file_name(file_name)
    assert file is None or current_name(file.queue) == file_name[: len(current_name(file.queue))]


# Order.


def test_rotated_files_are_replayed_by_number_and_current_one_last() -> None:
    listing = [b"work.1000", b"work", b"work.900", b"work.1700000000000", b"work.20"]
    files = group_by_queue(listing)[b"work"]
    assert files.in_replay_order() == [b"work.20", b"work.900", b"work.1000", b"work.1700000000000", b"work"]


def test_queue_may_lack_a_current_file() -> None:
    files = group_by_queue([b"work.2", b"work.1"])[b"work"]
    assert (files.has_current, files.in_replay_order()) == (False, [b"work.1", b"work.2"])


def test_packs_and_temporary_files_are_not_replayed() -> None:
    files = group_by_queue([b"work", b"work.1.pack", b"work~~2"])[b"work"]
    assert files.in_replay_order() == [b"work"]
    assert [file.file_name for file in (*files.packs, *files.temporary)] == [b"work.1.pack", b"work~~2"]


def test_listing_is_grouped_by_queue_without_foreign_files() -> None:
    listing = [b"work", b"work2", b"work+x.1000", b"work.bak", b".kestrel", b"work+x"]
    queues = group_by_queue(listing)
    assert {name: files.in_replay_order() for name, files in queues.items()} == {
        b"work": [b"work"],
        b"work2": [b"work2"],
        b"work+x": [b"work+x.1000", b"work+x"],
    }


def test_no_files_have_nothing_to_replay() -> None:
    assert (group_by_queue([]), QueueFiles(b"work").in_replay_order()) == ({}, [])


def test_impossibly_large_number_is_foreign() -> None:
    assert parse_file_name(b"work." + b"9" * 16) is None
    assert parse_file_name(b"work." + b"9" * 15) is not None


# Live files, before cleaning up.


def test_live_files_are_those_that_a_start_replays() -> None:
    names = [b"work", b"work.20", b"work.3", b"work.4.pack", b"work.1.pack", b"work.4", b"work~~9", b"work2"]
    files = group_by_queue(names)[b"work"]
    assert [file.file_name for file in files.live_files()] == [b"work.4.pack", b"work.20", b"work"]


def test_live_files_without_a_pack_are_all_but_temporary_ones() -> None:
    files = group_by_queue([b"work.20", b"work.3", b"work~~9"])[b"work"]
    assert [file.file_name for file in files.live_files()] == files.in_replay_order() == [b"work.3", b"work.20"]
