"""Journal files: replay and other readers are compared with a second reader, written from the format document."""

from __future__ import annotations

from kestrel.journal.cursor import JournalCursor
from kestrel.journal.item_reader import read_items
from kestrel.journal.records import decode_item
from tests.fuzz import journal_inputs
from tests.fuzz.choices import Choices, repairing, split_at
from tests.fuzz.target import Target
from tests.journal import reference
from tests.journal.handwritten import BytesReader
from tests.journal.restarts import NOW_MS, check_against_the_reference, seen

MAX_FILES = 3
MAX_ITEMS = 10
"""Maximum number of items of one read."""


def check(data: bytes) -> None:
    choices = Choices(data)
    part_bytes, sizes = choose(choices)
    files = split_at(choices.rest(), sizes)
    check_against_the_reference(*files, part_bytes=part_bytes)
    for contents in files:
        _check_cursor(contents, part_bytes)
        _check_item_reader(contents, part_bytes)


def choose(choices: Choices) -> tuple[int, list[int]]:
    """Return how many bytes of a file are read at once, and the sizes of all files but the last."""
    return journal_inputs.part_bytes(choices), choices.numbers(MAX_FILES - 1)


def _check_cursor(contents: bytes, part_bytes: int) -> None:
    """Check that the cursor finds the records and the end that the second reader finds."""
    reading = reference.read(contents)
    cursor = JournalCursor(BytesReader(contents, part_bytes))
    expected = [(record.offset, record.opcode) for record in reading.records]
    assert [(offset, record.opcode) for offset, record in cursor.records()] == expected
    assert (cursor.end.offset, cursor.end.is_closed) == (reading.end, reading.is_closed)
    assert (cursor.end.problem is None) == (reading.problem == "")
    assert cursor.end.is_unfinished == (reading.problem == "unfinished")


def _check_item_reader(contents: bytes, room_bytes: int) -> None:
    """Check that the item reader finds the same items, in portions of any size."""
    reading = reference.read(contents)
    expected = [record.item for record in reading.records if record.item is not None]
    reader, offset, skip = BytesReader(contents), 0, 0
    items = []
    while offset < reading.end:
        found = read_items(reader, 0, offset, reading.end, skip, MAX_ITEMS, room_bytes, NOW_MS)
        assert (found.offset, found.skip) != (offset, skip) or found.records
        items += [seen(decode_item(record)) for record in found.records]
        offset, skip = found.offset, found.skip
    assert items == [(data, NOW_MS if add_ms is None else add_ms, expiry_ms) for data, add_ms, expiry_ms in expected]


TARGET = Target(check, lambda: journal_inputs.WORDS, repairing(choose, journal_inputs.repaired), max_bytes=1024)
