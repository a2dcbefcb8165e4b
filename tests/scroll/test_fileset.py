"""Which file belongs to which journal."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.scroll.fileset import (
    ScrollFile,
    ScrollFileKind,
    archived_name,
    group_by_stem,
    parse_file_name,
    reader_name,
    temporary_name,
    writer_name,
)

STEM = b"[A-Za-z0-9:_-]"

# file name: (stem, kind, number, part)
OURS = {
    b"work.1700000000000": (b"work", ScrollFileKind.WRITER, 1700000000000, b""),
    b"work.0": (b"work", ScrollFileKind.WRITER, 0, b""),
    b"work.007": (b"work", ScrollFileKind.WRITER, 7, b""),
    b"work.999999999999999": (b"work", ScrollFileKind.WRITER, 999999999999999, b""),
    b"work.read.": (b"work", ScrollFileKind.READER, 0, b""),
    b"work.read.x": (b"work", ScrollFileKind.READER, 0, b"x"),
    b"work.read.:own": (b"work", ScrollFileKind.READER, 0, b":own"),
    b"work.read.12": (b"work", ScrollFileKind.READER, 0, b"12"),
    b"work.read.read": (b"work", ScrollFileKind.READER, 0, b"read"),
    b"read.read.": (b"read", ScrollFileKind.READER, 0, b""),
    b"read.5": (b"read", ScrollFileKind.WRITER, 5, b""),
    b"5.5": (b"5", ScrollFileKind.WRITER, 5, b""),
    b"caf:e9.5": (b"caf:e9", ScrollFileKind.WRITER, 5, b""),
    b"::0123.5": (b"::0123", ScrollFileKind.WRITER, 5, b""),
    b"a:b.5": (b"a:b", ScrollFileKind.WRITER, 5, b""),
    b"work.5~~1700000000000": (b"work", ScrollFileKind.TEMPORARY, 1700000000000, b""),
    b"work.read.~~5": (b"work", ScrollFileKind.TEMPORARY, 5, b""),
    b"work.read.x~~5": (b"work", ScrollFileKind.TEMPORARY, 5, b"x"),
}

FOREIGN = {
    "a journal of Kestrel's": b"work",
    "a pack of Kestrel's": b"work.5.pack",
    "a temporary file of Kestrel's": b"work~~5",
    "a name as Kestrel spells it": b"work+x.5",
    "a byte above 127": "é.5".encode(),
    "hidden": b".kestrel",
    "no name": b".5",
    "no reader and no number": b"work.",
    "read without its second dot": b"work.read",
    "a reader with a dot": b"work.read.a.b",
    "a number that is too long": b"work.1234567890123456",
    "a temporary number that is too long": b"work.5~~1234567890123456",
    "a sign": b"work.-5",
    "digits of another alphabet": "work.٣".encode(),
    "one tilde": b"work.5~6",
    "twice temporary": b"work.5~~6~~7",
    "temporary without a number": b"work.5~~",
    "an archived file": archived_name(b"work.5"),
    "a line end": b"work.5\n",
    "something before it": b" work.5",
}


@pytest.mark.parametrize("file_name", OURS)
def test_file_belongs_to_its_journal(file_name: bytes) -> None:
    assert parse_file_name(file_name) == ScrollFile(*OURS[file_name], file_name)


@pytest.mark.parametrize("case", FOREIGN)
def test_other_files_are_foreign(case: str) -> None:
    assert parse_file_name(FOREIGN[case]) is None


@given(
    st.from_regex(STEM + b"+", fullmatch=True),
    st.from_regex(STEM + b"*", fullmatch=True),
    st.integers(0, 10**15 - 1),
    st.integers(0, 10**15 - 1),
)
def test_generated_names_are_understood(stem: bytes, part: bytes, number: int, other: int) -> None:
    writer, reader = writer_name(stem, number), reader_name(stem, part)
    assert parse_file_name(writer) == (stem, ScrollFileKind.WRITER, number, b"", writer)
    assert parse_file_name(reader) == (stem, ScrollFileKind.READER, 0, part, reader)
    for file_name, its_part in ((writer, b""), (reader, part)):
        temporary = temporary_name(file_name, other)
        assert parse_file_name(temporary) == (stem, ScrollFileKind.TEMPORARY, other, its_part, temporary)


@given(st.binary(max_size=40))
def test_any_name_is_understood_or_foreign(file_name: bytes) -> None:
    file = parse_file_name(file_name)
    assert file is None or file_name.startswith(file.stem + b".")


def test_listing_is_grouped_by_journal_with_writer_files_in_order() -> None:
    journals = group_by_stem(
        [*OURS, b"work.10", b"work.9", b"work.7", b"work.07", b"other.3", b"lonely.read.x", *FOREIGN.values()]
    )
    assert journals.keys() == {b"work", b"other", b"lonely", b"read", b"5", b"caf:e9", b"::0123", b"a:b"}
    work = journals[b"work"]
    assert work.stem == b"work"
    numbered = [b"work.0", b"work.007", b"work.07", b"work.7", b"work.9", b"work.10"]
    assert [file.file_name for file in work.writers] == [*numbered, b"work.1700000000000", b"work.999999999999999"]
    assert work.numbers() == [0, 7, 7, 7, 9, 10, 1700000000000, 999999999999999]
    parts = (b"", b"x", b":own", b"12", b"read")
    assert work.readers == {part: b"work.read." + part for part in parts}
    assert {file.file_name for file in work.temporary} == {
        b"work.5~~1700000000000",
        b"work.read.~~5",
        b"work.read.x~~5",
    }
    lonely = journals[b"lonely"]
    assert (lonely.writers, lonely.readers, lonely.temporary) == ([], {b"x": b"lonely.read.x"}, [])
