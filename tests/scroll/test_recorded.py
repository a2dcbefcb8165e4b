"""Files recorded from libkestrel: read as libkestrel read them, and written as it wrote them.

golden/<case>/ holds folders of files. expected.json holds what libkestrel made of them, including its faults.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.fileset import ScrollFileKind, parse_file_name
from kestrel.scroll.reader_file import encode_state, read_state
from kestrel.scroll.records import READER_MAGIC, WRITER_MAGIC, RecordCommand, ScrollFileRecord, decode_put, encode_put
from tests.journal.handwritten import BytesReader
from tests.scroll.handwritten import unsealed

GOLDEN: Final = Path(__file__).with_name("golden")


class RecordedFile(NamedTuple):
    """A recorded file, and what libkestrel found in it: the records, and how the file ended."""

    path: Path
    found: list[dict[str, Any]]
    end: dict[str, Any]

    @property
    def contents(self) -> bytes:
        return self.path.read_bytes()

    @property
    def is_writer(self) -> bool:
        file = parse_file_name(self.path.name.encode())
        assert file is not None
        return file.kind is ScrollFileKind.WRITER


def recorded() -> list[RecordedFile]:
    files = []
    for path in sorted(GOLDEN.glob("*/expected.json")):
        for folder, expected in json.loads(path.read_text()).items():
            if folder.startswith("journal"):
                for name, found in expected["ops"].items():
                    files.append(RecordedFile(path.parent / folder / name, found[:-1], found[-1]))
    return files


FILES: Final = recorded()
EACH: Final = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.path.relative_to(GOLDEN)))


def records_of(file: RecordedFile) -> tuple[list[tuple[int, ScrollFileRecord]], ScrollCursor]:
    cursor = ScrollCursor(BytesReader(file.contents), WRITER_MAGIC if file.is_writer else READER_MAGIC)
    return list(cursor.records()), cursor


def test_recordings_contain_files_of_every_kind() -> None:
    assert len(FILES) == 61
    assert {op["op"] for file in FILES for op in file.found} == {"PUT", "READ_HEAD", "READ_DONE", "UNKNOWN"}


@EACH
def test_every_record_of_libkestrel_is_found_with_its_values(file: RecordedFile) -> None:
    assert [values_of(offset, record) for offset, record in records_of(file)[0]] == file.found


def values_of(offset: int, record: ScrollFileRecord) -> dict[str, Any]:
    """Return a record in the form of expected.json."""
    values: dict[str, Any] = {"offset": offset, "op": record.name}
    if record.command == RecordCommand.PUT:
        item = decode_put(record.raw)
        data = base64.b64encode(item.data).decode()
        times = {"add_time": item.add_ms, "expiry": item.expiry_ms or None}
        return values | {"id": item.id} | times | {"errors": item.errors, "data": data}
    if record.command == RecordCommand.READ_HEAD:
        return values | {"id": record.item_id}
    if record.command == RecordCommand.READ_DONE:
        return values | {"ids": list(record.ids)}
    assert record.targets is None, "libkestrel has no targets"
    return values | {"op": "UNKNOWN", "command": record.command}


@EACH
def test_every_file_ends_where_libkestrel_says(file: RecordedFile) -> None:
    end = records_of(file)[1].end
    if "error" in file.end:
        assert (end.offset, end.is_unfinished) == (file.end["last_valid_position"], True)
    else:
        assert (end.offset, end.problem) == (file.end["end_at"], None)
        assert file.contents[end.offset :].strip(b"\0") == b""


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.is_writer], ids=lambda file: str(file.path.relative_to(GOLDEN))
)
def test_every_item_is_written_with_the_same_bytes(file: RecordedFile) -> None:
    for _, record in records_of(file)[0]:
        if record.command == RecordCommand.PUT:
            item = decode_put(record.raw)
            assert encode_put(item.id, item.data, item.add_ms, item.expiry_ms, item.errors) == record.raw


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if not file.is_writer and "~~" not in file.path.name],
    ids=lambda file: str(file.path.relative_to(GOLDEN)),
)
def test_every_reader_file_is_written_with_the_same_bytes(file: RecordedFile) -> None:
    state, end = read_state(BytesReader(file.contents))
    assert end.problem is None
    assert unsealed(encode_state(state)) == file.contents
