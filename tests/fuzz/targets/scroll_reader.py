"""Reader files of scrolls, held against a second reader."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kestrel.scroll.reader_file import ReaderState, encode_state, read_state
from kestrel.scroll.records import READER_MAGIC
from tests.fuzz import scrolls
from tests.fuzz.fed import Fed, fed, mending
from tests.fuzz.target import Target
from tests.journal.handwritten import BytesReader
from tests.scroll import independent
from tests.scroll.handwritten import DELETED, done_ranges, errors, read_done, read_head, sealed


def check(data: bytes) -> None:
    """What a file says is what the second reader finds in it; and it is read as it is written again."""
    choices = Fed(data)
    part_bytes = scrolls.part_bytes(choices)
    contents = choices.rest()
    state, end = read_state(scrolls.PartsReader(contents, part_bytes))
    assert end.offset <= len(contents)
    said = independent.content_of(contents)
    ranges = [(1, said.head), *said.done]
    asked = {number + step for pair in ranges for number in pair for step in (-1, 0, 1)} | set(said.errors)
    for item_id in asked:
        if item_id > 0:
            is_done = any(first <= item_id <= last for first, last in ranges)
            assert (item_id in state.done) == is_done, item_id
            assert state.errors.get(item_id) == (None if is_done else said.errors.get(item_id))
    assert state.is_deleted == said.is_deleted
    assert _told(read_state(BytesReader(encode_state(state)))[0]) == _told(state)


def _told(state: ReaderState) -> tuple[object, ...]:
    return state.done.head, state.done.ranges(), state.errors, state.is_deleted


def seeds() -> Mapping[str, bytes]:
    said = read_head(7) + read_done(9, 12, 10) + done_ranges((20, 90), (30, 100), (5, 4)) + errors(_8=2, _13=1)
    return {name: fed(each, 0) for name, each in scrolls.recorded("reader").items()} | {
        "all": fed(READER_MAGIC + said, 0),
        "parts": fed(READER_MAGIC + said + read_head(3) + read_done(8), 1, 20),
        "deleted": fed(sealed(said + DELETED), 0),
        "batches": fed(sealed(said, read_done(8), read_head(3)), 0),
        "unfinished-batch": fed(sealed(said, read_done(8)) + read_head(9), 1, 20),
        "deleted-without-checksum": fed(READER_MAGIC + said + DELETED, 0),
    }


TARGET = Target(
    check, seeds, lambda: scrolls.WORDS, mending(scrolls.part_bytes, partial(scrolls.mended, magic=READER_MAGIC))
)
