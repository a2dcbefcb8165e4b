"""Reader files of scrolls, compared with a second reader."""

from __future__ import annotations

from functools import partial

from kestrel.scroll.reader_file import ReaderState, encode_state, read_state
from kestrel.scroll.records import READER_MAGIC
from tests.fuzz import scroll_inputs
from tests.fuzz.choices import Choices, repairing
from tests.fuzz.target import Target
from tests.journal.handwritten import BytesReader
from tests.scroll import independent


def check(data: bytes) -> None:
    """Check that a file has the contents that the second reader finds, also after it is written again."""
    choices = Choices(data)
    part_bytes = scroll_inputs.part_bytes(choices)
    contents = choices.rest()
    state, end = read_state(BytesReader(contents, part_bytes))
    assert end.offset <= len(contents)
    expected = independent.content_of(contents)
    ranges = [(1, expected.head), *expected.done]
    ids = {number + step for pair in ranges for number in pair for step in (-1, 0, 1)} | set(expected.errors)
    for item_id in ids:
        if item_id > 0:
            is_done = any(first <= item_id <= last for first, last in ranges)
            assert (item_id in state.done) == is_done, item_id
            assert state.errors.get(item_id) == (None if is_done else expected.errors.get(item_id))
    assert state.is_deleted == expected.is_deleted
    assert _values(read_state(BytesReader(encode_state(state)))[0]) == _values(state)


def _values(state: ReaderState) -> tuple[object, ...]:
    return state.done.head, state.done.ranges(), state.errors, state.is_deleted


TARGET = Target(
    check,
    lambda: scroll_inputs.WORDS,
    repairing(scroll_inputs.part_bytes, partial(scroll_inputs.repaired, magic=READER_MAGIC)),
)
