"""docs/scroll_format.md: its tables of names, records and ends, its numbers, and its example."""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import pytest

from kestrel.disk.folders import LARGEST_NUMBER
from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.fileset import (
    ScrollFileKind,
    archived_name,
    parse_file_name,
    reader_name,
    temporary_name,
    writer_name,
)
from kestrel.scroll.name_encoding import (
    DEFAULT_READER,
    NAMES_FOLDER,
    OWN_READER,
    STEM_AND_READER_BYTES,
    STEM_BYTES,
    encode_part,
    location_of,
    reader_part,
    stem_of,
)
from kestrel.scroll.reader_file import MAX_RUN_IDS, ReaderState, encode_changes, encode_state, read_state
from kestrel.scroll.records import (
    DELETED_RECORD,
    LARGEST_ID,
    MAX_DATA_BYTES,
    MAX_IDS_PER_RECORD,
    PUT_BYTES,
    PUT_EXPIRING_BYTES,
    READER_MAGIC,
    WRITER_MAGIC,
    RecordCommand,
    ScrollFileRecord,
    Targets,
    decode_put,
    decode_record,
    encode_done_ranges,
    encode_errors,
    encode_put,
    encode_read_done,
    encode_read_head,
    encode_targets,
)
from kestrel.testing.server import EPOCH_MS
from tests.docs.hexdump import dumps_in
from tests.docs.markdown import table, tables
from tests.journal.handwritten import BytesReader
from tests.scroll.handwritten import unsealed
from tests.scroll.independent import queues_in

PAGE: Final = (Path(__file__).parents[2] / "docs" / "scroll_format.md").read_text()
PLAIN: Final = PAGE.replace("`", "")
PROSE: Final = " ".join(PAGE.split())


# The records.


class Row(NamedTuple):
    """A row of the table of records."""

    number: int
    name: str
    file: str
    words: int
    fields: list[str]
    data: list[str]
    whose: str

    @property
    def header(self) -> Struct:
        """The command byte and the fields of the header."""
        return Struct("<B" + codes_of(self.fields))


def codes_of(fields: list[str]) -> str:
    return "".join({"i32": "i", "i64": "q", "u8": "B"}[field.split()[0]] for field in fields)


def words_of(cell: str) -> list[str]:
    return [word for word in cell.split(", ") if word]


ROWS: Final = [
    Row(int(number), name, file, int(words), words_of(fields), words_of(data), whose)
    for number, name, file, words, fields, data, _, whose in table(
        PLAIN, "number", "name", "in", "words", "fields of the header", "data", "meaning", "whose"
    )
]
ROW: Final = {row.name: row for row in ROWS if (row.name, row.words) != ("PUT", 8)}
EXPIRING: Final = next(row for row in ROWS if (row.name, row.words) == ("PUT", 8))

ITEM: Final = b"some data"


def written_after(row: Row, data: bytes, **values: int) -> bytes:
    """Return a record with the fields of the table, and these values by the first word of a field."""
    values["size"] = len(data)
    numbers = [values[field.split()[1]] for field in row.fields]
    return row.header.pack(row.number << 4 | row.words, *numbers) + data


def test_table_lists_every_command() -> None:
    assert [(row.number, row.name) for row in ROWS if row != EXPIRING] == [
        (each.value, each.name) for each in RecordCommand
    ]


def test_fields_fill_the_words_of_the_header() -> None:
    assert [row.header.size for row in ROWS] == [1 + 4 * row.words for row in ROWS]
    assert (ROW["PUT"].header.size, EXPIRING.header.size) == (PUT_BYTES, PUT_EXPIRING_BYTES)
    assert f"A `PUT` is {PUT_BYTES} bytes and the item, or {PUT_EXPIRING_BYTES} bytes and the item" in PROSE


def test_first_field_of_records_with_data_is_their_size() -> None:
    assert [row.number >= 8 for row in ROWS] == [row.fields[0] == "i32 size" for row in ROWS]


def test_item_is_encoded_as_in_the_table() -> None:
    values = {"errors": 3, "id": 7, "add": EPOCH_MS, "expiry": EPOCH_MS + 1}
    assert ROW["PUT"].data == EXPIRING.data == ["the item"]
    assert written_after(ROW["PUT"], ITEM, **values) == encode_put(7, ITEM, EPOCH_MS, 0, 3)
    assert written_after(EXPIRING, ITEM, **values) == encode_put(7, ITEM, EPOCH_MS, EPOCH_MS + 1, 3)


def repeated(row: Row, *entries: tuple[int, ...]) -> bytes:
    """Return the data of several entries with the fields of the table."""
    *fields, again = row.data
    assert again == "repeated"
    return b"".join(Struct("<" + codes_of(fields)).pack(*entry) for entry in entries)


def test_records_of_reader_files_are_encoded_as_in_the_table() -> None:
    done, ranges, errors = ROW["READ_DONE"], ROW["DONE_RANGES"], ROW["ERRORS"]
    assert written_after(ROW["READ_HEAD"], b"", id=7) == encode_read_head(7)
    assert written_after(done, repeated(done, (7,), (9,))) == encode_read_done([7, 9])
    assert written_after(ranges, repeated(ranges, (7, 9), (11, 12))) == encode_done_ranges([(7, 9), (11, 12)])
    assert written_after(errors, repeated(errors, (7, 1), (9, 2))) == encode_errors({7: 1, 9: 2})
    assert written_after(ROW["DELETED"], b"") == DELETED_RECORD
    assert ROW["DELETED"].data == []


def test_targets_are_encoded_as_in_the_tables() -> None:
    assert ROW["TARGETS"].data == ["u8 kind", "then u8 length and name", "repeated"]
    names = b"\x04:own\x01x"
    readers = frozenset([b"x", OWN_READER])
    kinds = {int(kind): says for kind, says in table(PLAIN, "kind", "the item is for")}
    assert kinds == {0: "the readers that are named, and no other", 1: "all readers but those that are named"}
    for kind in kinds:
        targets = Targets(readers, kind == 1)
        assert written_after(ROW["TARGETS"], bytes([kind]) + names) == encode_targets(targets)
        assert targets.has(b"x") == targets.has(OWN_READER) == (kind == 0) != targets.has(b"y")


def test_authors_of_commands_are_the_same_in_both_tables() -> None:
    theirs, _, ours = dict(table(PLAIN, "", ""))["writes"].partition("libkestrel's")
    for text, whose in ((theirs, "libkestrel's"), (ours, "ours")):
        assert set(map(int, re.findall(r"\d+", text))) == {row.number for row in ROWS if row.whose == whose}


def test_magic_bytes_are_those_of_the_code() -> None:
    begins = {file: bytes.fromhex(says) for file, says in table(PLAIN, "file", "begins with")}
    assert begins == {"writer file": WRITER_MAGIC, "reader file": READER_MAGIC}


@pytest.mark.parametrize(
    "says",
    [
        f"an i32 from 0 to {MAX_DATA_BYTES}",
        f"The first one is 1, and the largest {LARGEST_ID}.",
        f"At most {MAX_IDS_PER_RECORD} ids, ranges or counts are written in one record",
        f"A range is written where more than {MAX_RUN_IDS} ids in a row are done beyond the head.",
        f"a journal's name would take more than {STEM_BYTES} bytes",
        f"a child's would take more than {STEM_AND_READER_BYTES} together with its journal's",
        f"A number has 1 to {len(str(LARGEST_NUMBER))} digits.",
        f"The file `{NAMES_FOLDER.decode()}/` with these digits",
    ],
)
def test_limits_are_those_of_the_code(says: str) -> None:
    assert says in PROSE


# Where a file ends.


def end_of(contents: bytes, magic: bytes = WRITER_MAGIC) -> str:
    """Return how a file ends, in the words of the page."""
    cursor = ScrollCursor(BytesReader(contents), magic)
    list(cursor.records())
    if cursor.end.problem is None:
        return "the end"
    where = "" if cursor.end.offset else " at 0"
    return ("an unfinished record" if cursor.end.is_unfinished else "damage") + where


def test_ends_of_files_are_classified_as_documented() -> None:
    put = encode_put(1, ITEM, EPOCH_MS, 0)
    size = put.index(ITEM) - PUT_BYTES + 1
    large = LARGEST_ID + 1
    contents = [
        [put, b""],
        [put + bytes(100), bytes(1)],
        [put + bytes(100) + b"\1", bytes(1) + put],
        [put + put[:10], put[:-1], put[:1]],
        [b"\xe0" + bytes(9), b"\x85" + put[1:], b"\x01" + bytes(20)],
        [
            put[:size] + (MAX_DATA_BYTES + 1).to_bytes(4, "little") + put[size + 4 :],
            put[:size] + b"\xff\xff\xff\xff" + put[size + 4 :],
            b"\x91\x04\0\0\0" + bytes(4),
            b"\xb1\x08\0\0\0" + bytes(8),
            b"\xa1\x08\0\0\0" + bytes(8),
        ],
        [
            encode_put(large, ITEM, EPOCH_MS, 0),
            encode_read_head(large),
            encode_read_done([large]),
            encode_done_ranges([(1, large)]),
        ],
    ]
    rows = [re.sub(r"\*\*", "", says) for _, says in table(PLAIN, "what stands where a record should", "what it is")]
    for says, those in zip(rows[:7], contents, strict=True):
        for each in those:
            got = end_of(WRITER_MAGIC + each)
            assert got == says.partition(":")[0]
            assert end_of(READER_MAGIC + each, READER_MAGIC) == got
    for says, those in zip(rows[7:], ([WRITER_MAGIC[:3], b""], [b"\x27\x27", READER_MAGIC + put]), strict=True):
        assert {end_of(each) for each in those} == {says}


# Names.


def test_names_of_files_are_those_of_the_code() -> None:
    stem, number = stem_of(b"work"), EPOCH_MS
    child = reader_name(stem, reader_part(stem, b"x"))
    named = [
        writer_name(stem, number),
        reader_name(stem, DEFAULT_READER),
        reader_name(stem, OWN_READER),
        child,
        temporary_name(child, number),
    ]
    rows = table(PLAIN, "name", "what it is")
    assert [name.encode() for name, _ in rows] == named
    beginnings = {
        ScrollFileKind.WRITER: "a writer file",
        ScrollFileKind.READER: "the reader file",
        ScrollFileKind.TEMPORARY: "temporary",
    }
    for name, says in rows:
        file = parse_file_name(name.encode())
        assert file is not None and says.startswith(beginnings[file.kind])
    assert f"as `{archived_name(named[0]).decode()}`" in PROSE


def test_bytes_of_names_are_encoded_as_documented() -> None:
    (first, itself), (rest, other) = table(PLAIN, "byte", "is written as")
    assert (itself, rest) == ("itself", "any other")
    assert other == ": and two hexadecimal digits, the letters small"
    alike = b""
    for words in first.split(", "):
        begin, _, end = words.partition(" to ")
        alike += bytes(range(ord(begin), ord(end or begin) + 1))
    for byte in range(256):
        spelled = bytes([byte]) if byte in alike else b":%02x" % byte
        assert encode_part(bytes([byte]), 180) == spelled


def test_examples_of_names_are_correct() -> None:
    rows = table(PLAIN, "name of a queue", "journal", "child", "files begin with")
    assert len(rows) == 6
    for row in rows:
        queue, journal, child, begin = (cell.encode().replace(rb"\xE9", b"\xe9") for cell in row)
        assert location_of(queue) == (journal, child or None)
        assert stem_of(journal) + b"." == begin


# The example.


def fields_of(record: ScrollFileRecord) -> str:
    """Return the fields of a record in the words of the page."""
    if record.command == RecordCommand.READ_HEAD:
        return f"id {record.item_id}"
    size = f"size {record.data_size}"
    if record.command == RecordCommand.PUT:
        item = decode_put(record.raw)
        expiry = f"expiry {item.expiry_ms}" if item.expiry_ms else "no expiry"
        return f"{size}, errors 0, id {item.id}, add time {item.add_ms}, {expiry}, data {item.data.decode()}"
    if record.command == RecordCommand.TARGETS:
        assert record.targets == Targets(frozenset([b"x"]), False)
        return f"{size}, for x alone"
    if record.command == RecordCommand.ERRORS:
        return f"{size}, " + ", ".join(f"id {item_id} has {count}" for item_id, count in record.errors.items())
    return ", ".join([size, *(f"id {item_id}" for item_id in record.ids)])


def test_each_dump_is_explained_byte_for_byte() -> None:
    explained = [rows for head, *rows in tables(PLAIN) if head == ["offset", "bytes", "record", "fields"]]
    assert len(dumps_in(PAGE)) == len(explained) == 4
    for (start, data), rows in zip(dumps_in(PAGE), explained, strict=True):
        offset = 0 if start else len(WRITER_MAGIC)
        for row in rows:
            record = decode_record(data, offset)
            assert record is not None
            assert row == [str(start + offset), str(record.size), record.name, fields_of(record)]
            offset += record.size
        assert offset == len(data)


def test_example_is_what_the_code_writes() -> None:
    writer, own, appended, child = (data for _, data in dumps_in(PAGE))
    hour_ms = 3_600_000
    puts = [encode_put(1, b"hello", EPOCH_MS, 0), encode_put(2, b"bye", EPOCH_MS, EPOCH_MS + hour_ms)]
    puts += [encode_targets(Targets(frozenset([b"x"]), False)), encode_put(3, b"psst", EPOCH_MS + 1000, 0)]
    assert writer == WRITER_MAGIC + b"".join(puts)
    assert f"is then {len(writer)} bytes long" in PROSE

    taken = DoneSet()
    taken.add(2)
    assert own == unsealed(encode_state(ReaderState(taken)))
    taken.add(1)
    assert appended == encode_changes(taken.head, [], {})
    assert child == unsealed(encode_state(ReaderState(DoneSet(2), {3: 1})))


def test_example_has_the_documented_items(tmp_path: Path) -> None:
    assert (
        PROSE.count("So `work` is empty, since `psst` is not for it, and `work+x` holds `psst`, with one error.") == 1
    )
    writer, own, appended, child = (data for _, data in dumps_in(PAGE))
    for name, contents in (("1700000000000", writer), ("read.:own", own + appended), ("read.x", child)):
        (tmp_path / f"work.{name}").write_bytes(contents)
    found = {name: [(item.data, item.errors) for item in queue.items] for name, queue in queues_in(tmp_path).items()}
    assert found == {b"work": [], b"work+x": [(b"psst", 1)]}
    assert read_state(BytesReader(own))[0].done.head == 0
    assert read_state(BytesReader(own + appended))[0].done.head == 2
