"""docs/journal_format.md: its table of opcodes, and its example, which a server writes."""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import pytest

from kestrel.disk.reader import DamagedRecord, UnfinishedRecord
from kestrel.journal import opcodes
from kestrel.journal.fileset import parse_file_name
from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import decode_record
from kestrel.testing.server import EPOCH_MS, MemoryServer
from tests.docs.hexdump import dumps_in
from tests.docs.markdown import table, tables

PAGE: Final = (Path(__file__).parents[2] / "docs" / "journal_format.md").read_text()
PLAIN: Final = PAGE.replace("`", "")

HEADERS: Final = {
    Opcode.ADD: opcodes.ADD_HEADER,
    Opcode.REMOVE: Struct("<B"),
    Opcode.ADDX: opcodes.ADDX_HEADER,
    Opcode.REMOVE_TENTATIVE: Struct("<B"),
    Opcode.SAVE_XID: opcodes.XID_RECORD,
    Opcode.UNREMOVE: opcodes.XID_RECORD,
    Opcode.CONFIRM_REMOVE: opcodes.XID_RECORD,
    Opcode.ADD_XID: opcodes.XID_ITEM_HEADER,
    Opcode.CONTINUE: opcodes.XID_ITEM_HEADER,
    Opcode.REMOVE_TENTATIVE_XID: opcodes.XID_RECORD,
}

ITEM: Final = b"some data"


class Row(NamedTuple):
    """A row of the table of opcodes."""

    number: int
    name: str
    fields: list[str]
    written_by: str

    @property
    def header(self) -> Struct:
        """The opcode and the fields before the data."""
        codes = {"i32": "i", "i64": "q"}
        return Struct("<B" + "".join(codes[field.split()[0]] for field in self.fields if field != "data"))


def opcode_rows() -> list[Row]:
    return [
        Row(int(number), name, [field for field in fields.split(", ") if field], written_by)
        for number, name, fields, _, written_by in table(PLAIN, "number", "name", "fields", "meaning", "written by")
    ]


ROWS: Final = {row.name: row for row in opcode_rows()}
READ: Final = [ROWS[opcode.name] for opcode in Opcode]


def record_of(row: Row) -> bytes:
    """Return a record with the fields of the table."""
    counted = 4 if row.name == "ADD" else 16
    values = {"size": counted + len(ITEM), "xid": 7, "expiry": 2_000_000_000, "add": EPOCH_MS}
    packed = row.header.pack(row.number, *(values[field.split()[1]] for field in row.fields if field != "data"))
    return packed + ITEM if "data" in row.fields else packed


# The table of opcodes.


def test_table_lists_every_opcode() -> None:
    listed = [(row.number, row.name) for row in opcode_rows() if row.name != "STATE_DUMP"]
    assert listed == [(opcode.value, opcode.name) for opcode in Opcode]


@pytest.mark.parametrize("opcode", Opcode, ids=lambda opcode: opcode.name)
def test_fields_make_the_header(opcode: Opcode) -> None:
    header = ROWS[opcode.name].header
    assert (header.format, header.size) == (HEADERS[opcode].format, HEADERS[opcode].size)


@pytest.mark.parametrize("row", READ, ids=lambda row: row.name)
def test_record_built_from_the_table_is_read(row: Row) -> None:
    written = record_of(row)
    record = decode_record(written + b"what follows", 0)
    assert (record.opcode, record.size) == (row.number, len(written))
    assert record.data == (ITEM if "data" in row.fields else b"")
    if "i32 xid" in row.fields:
        assert record.xid == 7
    if "i64 add time in ms" in row.fields:
        assert (record.add_ms, record.expiry_ms) == (EPOCH_MS, 2_000_000_000)


def test_state_dump_from_table_is_read_completely() -> None:
    row = ROWS["STATE_DUMP"]
    assert row.fields == ["i32 xid", "i32 count"]
    assert row.header.format == opcodes.STATE_DUMP_RECORD.format
    for count in (0, 1, 15, 16, 40):
        written = row.header.pack(row.number, 7, count) + record_of(ROWS["ADD_XID"]) * count
        record = decode_record(written, 0)
        assert (record.name, record.xid, record.restates) == ("STATE_DUMP", 7, count)
        assert record.size == len(written)


def test_records_of_opcode_8_are_told_apart_as_documented() -> None:
    rows = table(PLAIN, "the second field", "what stands behind it")
    assert [row[:2] for row in rows] == [
        ["negative", "anything"],
        ["0 to 15", "exactly so many ADD_XID, and the end of the file"],
        ["0 to 15", "the file ends before so many ADD_XID do"],
        ["0 to 15", "anything else"],
        ["16 or more", "exactly so many ADD_XID, and the end of the file"],
        ["16 or more", "else, an add time from 0 to 2^44 - 1"],
        ["16 or more", "anything else"],
    ]
    readings = [row[2] for row in rows]
    add_xid, header = record_of(ROWS["ADD_XID"]), ROWS["STATE_DUMP"].header
    continued = record_of(ROWS["CONTINUE"])
    late = continued[:9] + (1 << 44).to_bytes(8, "little") + continued[17:]
    contents = [
        header.pack(8, 7, -1) + add_xid,
        header.pack(8, 7, 2) + add_xid * 2,
        (header.pack(8, 7, 2) + add_xid * 2)[:-1],
        header.pack(8, 7, 2) + add_xid * 3,
        header.pack(8, 7, 20) + add_xid * 20,
        continued,
        late,
    ]
    assert readings == [reading(each) for each in contents]


def reading(contents: bytes) -> str:
    """Return what the bytes are, in the words of the page."""
    try:
        return f"a {decode_record(contents, 0).name}"
    except UnfinishedRecord:
        return "unfinished"
    except DamagedRecord:
        return "damage"


def test_written_opcodes_are_the_same_in_both_tables() -> None:
    numbers = {int(number) for number in re.findall(r"\b\d\b", dict(table(PLAIN, "", ""))["writes"])}
    assert numbers == {row.number for row in opcode_rows() if "this server" in row.written_by}


# Names.


def test_example_of_a_name_is_correct() -> None:
    assert r"the name `caf\xE9` is the file `caf\xC3\xA9`" in PAGE
    file = parse_file_name(b"caf\xc3\xa9")
    assert file is not None and file.queue == b"caf\xe9"


# The example.


def test_each_dump_is_explained_byte_for_byte() -> None:
    explained = [rows for head, *rows in tables(PLAIN) if head == ["offset", "bytes", "record", "fields"]]
    assert len(dumps_in(PAGE)) == len(explained) == 2
    for (start, data), rows in zip(dumps_in(PAGE), explained, strict=True):
        offset = 0
        for shown_offset, size, name, fields in rows:
            record = decode_record(data, offset)
            assert (int(shown_offset), int(size), name) == (start + offset, record.size, record.opcode.name)
            if record.opcode is Opcode.ADDX:
                told = f"size {len(record.data) + 16}, add time {record.add_ms}, expiry {record.expiry_ms}"
                assert fields == f"{told}, data {record.data.decode()}"
            else:
                has_xid = record.opcode is not Opcode.REMOVE
                assert fields.partition(", ")[0] == (f"xid {record.xid}" if has_xid else "")
            offset += record.size
        assert offset == len(data)


def test_server_writes_the_example_and_recovers_from_it(tmp_path: Path) -> None:
    (_, before), (_, after) = dumps_in(PAGE)
    server = MemoryServer(folder=tmp_path / "queues")
    holder = server.connect()
    holder.ask(b"set work 0 0 5\r\nhello\r\nset work 0 3600 3\r\nbye\r\n")
    assert holder.ask(b"get work/open\r\n") == b"VALUE work/open 0 5\r\nhello\r\nEND\r\n"
    assert server.connect().ask(b"get work\r\n") == b"VALUE work 0 3\r\nbye\r\nEND\r\n"
    assert (tmp_path / "queues" / "work").read_bytes() == before
    server.crash()
    assert server.connect().ask(b"get work\r\n") == b"VALUE work 0 5\r\nhello\r\nEND\r\n"
    assert server.folder is not None
    assert (server.folder / "work").read_bytes() == before + after + b"\x01"
