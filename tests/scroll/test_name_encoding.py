"""How queue names are encoded in file names, and which journal a queue is in."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk.files import Disk
from kestrel.disk.folders import LARGEST_NUMBER
from kestrel.scroll.fileset import archived_name, parse_file_name, reader_name, temporary_name, writer_name
from kestrel.scroll.name_encoding import (
    DEFAULT_READER,
    OWN_READER,
    EscapedNames,
    PlainNames,
    QueueLocation,
    decode_part,
    encode_part,
    location_of,
    queue_name_of,
    reader_part,
    stem_of,
)
from kestrel.testing.faults import FaultyDisk

LONG = b"\xff" * 200
LONG_HASH = b"8760031d8484644c2b4168f7ff380251"

PLACES = {
    b"work": QueueLocation(b"work", None),
    b"work+x": QueueLocation(b"work", b"x"),
    b"work+x+y": QueueLocation(b"work", b"x+y"),
    b"work++": QueueLocation(b"work", b"+"),
    b"+x": QueueLocation(b"+x", None),
    b"+x+y": QueueLocation(b"+x+y", None),
    b"x+": QueueLocation(b"x+", None),
}

PARTS = {
    b"work": b"work",
    b"Az09_-": b"Az09_-",
    b"a:b": b"a:3ab",
    b"caf\xe9": b"caf:e9",
    b"\x00\xff*": b":00:ff:2a",
    b"": b"",
    b"::": b":3a:3a",
}

NO_PART = {
    "a hash": b"::" + LONG_HASH,
    "large letters in the digits": b":2B",
    "a byte that is itself": b":61",
    "a colon before something else": b"a:b",
    "a colon at the end": b"a:",
    "one digit": b":2",
    "a byte that stands for none": b"a.b",
    "a byte above 127": b"\xe9",
    "our own reader": OWN_READER,
    "a line end": b"work\n",
}


@pytest.mark.parametrize("queue", PLACES)
def test_child_is_in_the_journal_of_its_parent(queue: bytes) -> None:
    assert location_of(queue) == PLACES[queue]
    assert queue_name_of(PLACES[queue]) == queue


@given(st.lists(st.sampled_from([b"a", b"+", b"\xff"]), min_size=1).map(b"".join))
def test_each_journal_and_reader_belong_to_one_queue(queue: bytes) -> None:
    place = location_of(queue)
    assert place.journal and place.child != b""
    assert queue_name_of(place) == queue


@pytest.mark.parametrize("name", PARTS)
def test_name_is_encoded_in_letters_digits_and_colons(name: bytes) -> None:
    assert encode_part(name, 180) == PARTS[name]
    assert decode_part(PARTS[name]) == name


@pytest.mark.parametrize("case", NO_PART)
def test_other_encodings_are_no_names(case: str) -> None:
    assert decode_part(NO_PART[case]) is None


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_two_names_never_have_one_encoding(one: bytes, other: bytes) -> None:
    assert decode_part(encode_part(one, 180)) == one
    assert (encode_part(one, 40) == encode_part(other, 40)) is (one == other)


def test_too_long_name_is_hashed() -> None:
    assert encode_part(b"n" * 180, 180) == b"n" * 180
    assert encode_part(b"\xff" * 60, 180) == b":ff" * 60
    assert encode_part(LONG, 180) == stem_of(LONG) == b"::" + LONG_HASH
    assert stem_of(b"n" * 181).startswith(b"::")
    assert len(reader_part(b"n" * 180, b"c" * 41)) == 34
    assert reader_part(b"n" * 180, b"c" * 40) == b"c" * 40
    assert reader_part(b"work", b"c" * 200) == b"c" * 200


@given(st.binary(min_size=1, max_size=200), st.binary(min_size=1, max_size=200))
def test_every_file_name_fits_and_is_recognized(journal: bytes, child: bytes) -> None:
    stem = stem_of(journal)
    files = [writer_name(stem, LARGEST_NUMBER)]
    files += [reader_name(stem, part) for part in (reader_part(stem, child), OWN_READER, DEFAULT_READER)]
    for file_name in files:
        temporary = temporary_name(file_name, LARGEST_NUMBER)
        assert len(temporary) <= 243 and len(archived_name(file_name)) <= 255
        for name in (file_name, temporary):
            file = parse_file_name(name)
            assert file is not None and file.stem == stem


# Stored names of hashed ones.


def true_names(folder: Path, disk: Disk | None = None) -> EscapedNames:
    return EscapedNames(disk or Disk(), os.fsencode(folder))


def test_hashed_name_is_known_once_stored(tmp_path: Path) -> None:
    assert true_names(tmp_path).name_of(stem_of(LONG)) is None
    true_names(tmp_path).remember(stem_of(LONG), LONG)
    assert true_names(tmp_path).name_of(stem_of(LONG)) == LONG
    assert (tmp_path / ".kestrel" / "names" / LONG_HASH.decode()).read_bytes() == LONG


def test_other_names_need_no_file(tmp_path: Path) -> None:
    names = true_names(tmp_path)
    for part, name in ((b"caf:e9", b"caf\xe9"), (b"work", b"work")):
        names.remember(part, name)
        assert names.name_of(part) == name
    assert [names.name_of(part) for part in (b"a:b", b"::", b"::zz", b"::../../etc/passwd")] == [None] * 4
    assert list(tmp_path.iterdir()) == []


def test_stored_name_is_not_written_again(tmp_path: Path) -> None:
    true_names(tmp_path).remember(stem_of(LONG), LONG)
    disk = FaultyDisk()
    disk.fail("open", errno.ENOSPC)
    true_names(tmp_path, disk).remember(stem_of(LONG), LONG)
    assert disk.calls == ["open_read", "read"]


@pytest.mark.parametrize("damage", [b"", LONG[:-1], LONG + b"\xff", b"another name"])
def test_damaged_name_is_unknown_and_can_be_rewritten(tmp_path: Path, damage: bytes) -> None:
    names = true_names(tmp_path)
    names.remember(stem_of(LONG), LONG)
    (tmp_path / ".kestrel" / "names" / LONG_HASH.decode()).write_bytes(damage)
    assert names.name_of(stem_of(LONG)) is None
    names.remember(stem_of(LONG), LONG)
    assert names.name_of(stem_of(LONG)) == LONG


def test_stored_name_survives_power_failure(tmp_path: Path) -> None:
    disk = FaultyDisk()
    folder, left = tmp_path / "folder", tmp_path / "left"
    folder.mkdir()
    disk.medium.know(os.fsencode(folder))
    true_names(folder, disk).remember(stem_of(LONG), LONG)
    disk.medium.copy(os.fsencode(folder / ".kestrel" / "names"), os.fsencode(left / ".kestrel" / "names"))
    assert true_names(left).name_of(stem_of(LONG)) == LONG
    assert disk.calls.count("sync_folder") == 3, "the two parent folders may be new"


@pytest.mark.parametrize("operation", ["sync_folder", "open", "write", "sync", "rename"])
def test_name_that_cannot_be_written_is_an_error_and_unknown(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        true_names(tmp_path, disk).remember(stem_of(LONG), LONG)
    assert true_names(tmp_path).name_of(stem_of(LONG)) is None
    assert disk.open_descriptors == set()


@pytest.mark.parametrize("name", [b"work", b"a:b", b"::x", b":own"])
def test_names_of_libkestrel_are_unchanged(name: bytes) -> None:
    names = PlainNames()
    names.remember(name, name)
    assert (names.stem_of(name), names.reader_of(name, name), names.name_of(name)) == (name, name, name)
    assert not names.is_own(name)


def test_only_unnamed_reader_of_libkestrel_belongs_to_the_queue() -> None:
    names = PlainNames()
    assert names.is_own(DEFAULT_READER)
    assert names.reader_of(b"work", None) == OWN_READER
