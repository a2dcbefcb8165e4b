"""Replay and the other readers of journal files, held against a second reader that was written from the format."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

from kestrel.journal.item_reader import read_items
from kestrel.journal.record_cursor import JournalRecordCursor
from kestrel.journal.records import decode_item
from tests.fuzz import journals
from tests.fuzz.fed import Fed, cut, fed, mending
from tests.fuzz.target import Target
from tests.journal import reference
from tests.journal.handwritten import BytesReader
from tests.journal.restarts import NOW_MS, check_against_the_reference, seen

MOST_FILES = 3
MOST_ITEMS = 10
"""Of one reading forward."""


def check(data: bytes) -> None:
    choices = Fed(data)
    part_bytes, sizes = choose(choices)
    files = cut(choices.rest(), sizes)
    with (
        patch("kestrel.journal.replay.PART_BYTES", part_bytes),
        patch("kestrel.journal.record_cursor.PART_BYTES", part_bytes),
    ):
        check_against_the_reference(*files)
        for contents in files:
            _check_scan(contents)
    for contents in files:
        _check_forward(contents, part_bytes)


def choose(choices: Fed) -> tuple[int, list[int]]:
    """How much of a file is read at once, and how long the files are but for the last."""
    return journals.part_bytes(choices), choices.numbers(MOST_FILES - 1)


def _check_scan(contents: bytes) -> None:
    """The records are those of the second reader, and the end is where it is for that."""
    reading = reference.read(contents)
    scan = JournalRecordCursor(BytesReader(contents))
    said = [(record.offset, record.opcode) for record in reading.records]
    assert [(offset, record.opcode) for offset, record in scan] == said
    assert (scan.end.offset, scan.end.is_closed) == (reading.end, reading.is_closed)
    assert (scan.end.problem is None) == (reading.problem == "")
    assert scan.end.is_unfinished == (reading.problem == "unfinished")


def _check_forward(contents: bytes, room_bytes: int) -> None:
    """What is good of a file gives its items again, in portions of any size."""
    reading = reference.read(contents)
    said = [record.item for record in reading.records if record.item is not None]
    reader, offset, skip = BytesReader(contents), 0, 0
    items = []
    while offset < reading.end:
        found = read_items(reader, 0, offset, reading.end, skip, MOST_ITEMS, room_bytes, NOW_MS)
        assert (found.offset, found.skip) != (offset, skip) or found.records
        items += [seen(decode_item(record)) for record in found.records]
        offset, skip = found.offset, found.skip
    assert items == [(data, NOW_MS if add_ms is None else add_ms, expiry_ms) for data, add_ms, expiry_ms in said]


def seeds() -> Mapping[str, bytes]:
    contents = journals.seeds()
    return {name: fed(each, 0, 0) for name, each in contents.items()} | {
        "parts": fed(contents["old"] + contents["reads"], 7, 0),
        "files": fed(contents["old"] + contents["reads"] + contents["dump"], 40, 2, 60, 70),
    }


TARGET = Target(check, seeds, lambda: journals.WORDS, mending(choose, journals.mended), most_bytes=1024)
