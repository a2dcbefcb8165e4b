"""Writer files of scrolls: the cursor, the index and the item reader are compared with a second reader."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast
from unittest.mock import patch

from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.item_reader import read_items
from kestrel.scroll.records import WRITER_MAGIC, RecordCommand, decode_put
from kestrel.scroll.writer_file import Counts, WriterFile
from kestrel.scroll.writer_index import check_index, count_in_ranges, count_up_to, index_writer_file
from tests.fuzz import scroll_inputs
from tests.fuzz.choices import Choices, repairing
from tests.fuzz.target import Target
from tests.journal.handwritten import BytesReader
from tests.scroll import independent
from tests.scroll.independent import Put

READERS = (b":own", b"x", b"a")


PART_SIZES = (
    "writer_index.MARK_BYTES",
    "item_reader.PART_BYTES",
    "writer_file.MARK_BYTES",
)


class Contents:
    """A path of a file with these bytes."""

    def __init__(self, contents: bytes) -> None:
        self._contents = contents

    def read_bytes(self) -> bytes:
        """Return the bytes."""
        return self._contents


def check(data: bytes) -> None:
    choices = Choices(data)
    part_bytes, room_bytes = choose(choices)
    contents = choices.rest()
    reader = BytesReader(contents)
    with ExitStack() as patches:
        for constant in PART_SIZES:
            patches.enter_context(patch(f"kestrel.scroll.{constant}", part_bytes))
        _check_cursor(contents, part_bytes)
        _check_index(reader, _items_of(contents), room_bytes)


def choose(choices: Choices) -> tuple[int, int]:
    """Return how many bytes of a file are read at once, and the room for items."""
    return scroll_inputs.part_bytes(choices), choices.number(64)


def _check_cursor(contents: bytes, part_bytes: int) -> None:
    """Check that the cursor finds the records that the second reader finds."""
    cursor = ScrollCursor(BytesReader(contents, part_bytes), WRITER_MAGIC)
    found = [(record.command, record.data) for _, record in cursor.records()]
    expected = [(command, data) for command, _, _, data in independent.records_of(contents, "27 64 26 03")]
    if "not higher" in (cursor.end.problem or ""):
        expected = expected[: len(found)]
    assert [command for command, _ in found] == [command for command, _ in expected]
    assert [data for command, data in found if command >= 8] == [data for command, data in expected if command >= 8]
    assert cursor.end.offset <= len(contents)
    assert not cursor.end.is_unfinished or cursor.end.problem


def _items_of(contents: bytes) -> list[Put]:
    """Return the items while their ids rise. A file is damaged from the first id that does not."""
    found: list[Put] = []
    for each in independent.puts_in(cast(Path, Contents(contents))):
        if found and each.item.id <= found[-1].item.id:
            break
        found.append(each)
    return found


def _check_index(reader: BytesReader, puts: list[Put], room_bytes: int) -> None:
    file = WriterFile(b"work.1", 1)
    end = index_writer_file(reader, file)
    assert file.size == end.offset <= reader.size
    counted = [each for each in puts if each.item.id > 0]
    if counted:
        assert (file.first_id, file.last_id) == (counted[0].item.id, counted[-1].item.id)
        _check_known(reader, file)
    else:
        assert file.last_id == 0
    for target_reader in (*READERS, *sorted(file.tally.extra)[:3]):
        mine = [each for each in counted if _is_for(each, target_reader)]
        assert file.tally.of(target_reader) == _counts(mine)
        _check_reading(reader, file, target_reader, mine, room_bytes)
        if counted:
            _check_counts(reader, file, target_reader, counted)


def _check_known(reader: BytesReader, file: WriterFile) -> None:
    """Check that an index is found again if the file ends with an item; otherwise it may be discarded."""
    *_, (_, last) = ScrollCursor(reader, WRITER_MAGIC, 0, file.size).records()
    if last.command == RecordCommand.PUT:
        check_index(reader, file)


def _is_for(put: Put, target_reader: bytes) -> bool:
    return put.targets is None or (target_reader in put.targets[1]) is not (put.targets[0] == 1)


def _counts(puts: list[Put]) -> Counts:
    return Counts(len(puts), sum(len(each.item.data) for each in puts))


def _check_reading(
    reader: BytesReader, file: WriterFile, target_reader: bytes, mine: list[Put], room_bytes: int
) -> None:
    """Check that a reader gets all of its items, in portions of any size."""
    items = []
    offset, next_id = len(WRITER_MAGIC), 1
    while True:
        found = read_items(reader, offset, file.size, next_id, target_reader, 3, room_bytes)
        items += [decode_put(record) for record in found.records]
        if not found.records:
            break
        offset, next_id = found.offset, found.next_id
    assert [(item.id, item.data, item.add_ms, item.expiry_ms, item.errors) for item in items] == [
        tuple(each.item) for each in mine
    ]


def _check_counts(reader: BytesReader, file: WriterFile, target_reader: bytes, puts: list[Put]) -> None:
    """Check the counts up to some items, and in some ranges."""
    for index in {0, len(puts) // 2, len(puts) - 1}:
        item_id = puts[index].item.id
        assert count_up_to(reader, file, target_reader, item_id) == _counts(
            [each for each in puts[: index + 1] if _is_for(each, target_reader)]
        )
        last = puts[min(index + 2, len(puts) - 1)].item.id
        assert count_in_ranges(reader, file, target_reader, [(item_id, last)]) == _counts(
            [each for each in puts[index : index + 3] if _is_for(each, target_reader)]
        )


TARGET = Target(
    check, lambda: scroll_inputs.WORDS, repairing(choose, partial(scroll_inputs.repaired, magic=WRITER_MAGIC))
)
