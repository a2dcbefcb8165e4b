"""Reader files of scrolls, compared with a second reader."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kestrel.scroll.reader_file import ReaderState, encode_state, read_state
from kestrel.scroll.records import READER_MAGIC
from tests.fuzz import scroll_seeds
from tests.fuzz.choices import Choices, repairing, with_choices
from tests.fuzz.target import Target
from tests.journal.handwritten import BytesReader
from tests.scroll import independent
from tests.scroll.handwritten import DELETED, done_ranges, errors, read_done, read_head, sealed


def check(data: bytes) -> None:
    """Check that a file has the contents that the second reader finds, also after it is written again."""
    choices = Choices(data)
    part_bytes = scroll_seeds.part_bytes(choices)
    contents = choices.rest()
    state, end = read_state(scroll_seeds.PartsReader(contents, part_bytes))
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


def seeds() -> Mapping[str, bytes]:
    records = read_head(7) + read_done(9, 12, 10) + done_ranges((20, 90), (30, 100), (5, 4)) + errors(_8=2, _13=1)
    return {name: with_choices(each, 0) for name, each in scroll_seeds.recorded("reader").items()} | {
        "all": with_choices(READER_MAGIC + records, 0),
        "parts": with_choices(READER_MAGIC + records + read_head(3) + read_done(8), 1, 20),
        "deleted": with_choices(sealed(records + DELETED), 0),
        "batches": with_choices(sealed(records, read_done(8), read_head(3)), 0),
        "unfinished-batch": with_choices(sealed(records, read_done(8)) + read_head(9), 1, 20),
        "deleted-without-checksum": with_choices(READER_MAGIC + records + DELETED, 0),
    }


TARGET = Target(
    check,
    seeds,
    lambda: scroll_seeds.WORDS,
    repairing(scroll_seeds.part_bytes, partial(scroll_seeds.repaired, magic=READER_MAGIC)),
)
