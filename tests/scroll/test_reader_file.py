"""Reader files: whole ones, and the records appended to them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from kestrel.disk.repair import ReadEnd
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.reader_file import MAX_RUN_IDS, ReaderState, encode_changes, encode_state, read_state
from kestrel.scroll.reader_file import sealed as seal
from tests.journal.handwritten import BytesReader
from tests.scroll.handwritten import (
    DELETED,
    READER,
    WRITER,
    done_ranges,
    errors,
    put,
    read_done,
    read_head,
    sealed,
    targets,
    unsealed,
    with_data,
)

RANGES = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 100)).map(lambda pair: (pair[0], sum(pair))))
ERRORS = st.dictionaries(st.integers(1, 500), st.integers(0, 9))


def read(contents: bytes) -> tuple[ReaderState, ReadEnd]:
    return read_state(BytesReader(contents))


def content_of(contents: bytes) -> tuple[int, list[tuple[int, int]], dict[int, int]]:
    """Return head, ranges and errors of a complete file."""
    state, end = read(contents)
    assert (end.offset, end.problem, end.is_unfinished) == (len(contents), None, False)
    return state.done.head, state.done.ranges(), state.errors


def state_of(
    head: int, ranges: list[tuple[int, int]], errors: dict[int, int] | None = None, is_deleted: bool = False
) -> ReaderState:
    done = DoneSet(head)
    for first, last in ranges:
        done.add(first, last)
    return ReaderState(done, errors, is_deleted)


# Whole files.


def test_short_state_is_written_as_libkestrel_writes_it() -> None:
    assert unsealed(encode_state(ReaderState())) == READER + read_head(0) + read_done()
    assert unsealed(encode_state(state_of(7, [(9, 9), (11, 13)]))) == READER + read_head(7) + read_done(9, 11, 12, 13)


def test_long_runs_are_ranges_and_short_ones_are_ids() -> None:
    short, long = (10, 9 + MAX_RUN_IDS), (1000, 1000 + MAX_RUN_IDS)
    contents = unsealed(encode_state(state_of(7, [short, long])))
    assert contents == READER + read_head(7) + read_done(*range(10, 10 + MAX_RUN_IDS)) + done_ranges(long)
    assert MAX_RUN_IDS == 64


def test_errors_of_done_items_are_not_written() -> None:
    contents = unsealed(encode_state(state_of(7, [(9, 9)], {3: 1, 8: 2, 9: 3, 10: 0})))
    assert contents == READER + read_head(7) + read_done(9) + errors(_8=2, _10=0)


def test_deleted_reader_is_marked() -> None:
    contents = encode_state(state_of(7, [], is_deleted=True))
    assert contents == sealed(read_head(7) + read_done() + DELETED)
    assert read(contents)[0].is_deleted
    assert not read(READER + read_head(7))[0].is_deleted


@given(st.integers(0, 300), RANGES, ERRORS, st.booleans())
def test_written_state_is_read_back(
    head: int, ranges: list[tuple[int, int]], counts: dict[int, int], is_deleted: bool
) -> None:
    state = state_of(head, ranges, counts, is_deleted)
    contents = encode_state(state)
    left = {item_id: count for item_id, count in counts.items() if item_id not in state.done}
    assert content_of(contents) == (state.done.head, state.done.ranges(), left)
    assert read(contents)[0].is_deleted == is_deleted
    assert encode_state(read(contents)[0]) == contents


# Appended records.


def test_commit_appends_only_what_has_changed() -> None:
    assert encode_changes(None, [], {}) == b""
    assert encode_changes(9, [], {}) == read_head(9)
    assert encode_changes(0, [], {}) == read_head(0)
    assert encode_changes(None, [(12, 12), (10, 10)], {}) == read_done(10, 12)
    assert encode_changes(None, [(10, 99)], {}) == done_ranges((10, 99))
    assert encode_changes(None, [], {10: 1}) == errors(_10=1)
    assert encode_changes(9, [(11, 12), (100, 164)], {13: 2}) == (
        read_head(9) + read_done(11, 12) + done_ranges((100, 164)) + errors(_13=2)
    )


@given(RANGES, st.lists(st.tuples(RANGES, ERRORS), max_size=5))
@example([], [([(5, 5)], {}), ([(1, 4)], {5: 1, 6: 1})])
def test_appended_records_add_up(
    ranges: list[tuple[int, int]], commits: list[tuple[list[tuple[int, int]], dict[int, int]]]
) -> None:
    state = state_of(0, ranges)
    contents = encode_state(state)
    counts: dict[int, int] = {}
    for done, changed in commits:
        head = state.done.head
        for first, last in done:
            state.done.add(first, last)
        beyond = [(first, last) for first, last in done if last > state.done.head]
        changes = encode_changes(state.done.head if state.done.head != head else None, beyond, changed)
        contents += seal(changes) if changes else b""
        counts.update(changed)
    left = {item_id: count for item_id, count in counts.items() if item_id not in state.done}
    assert content_of(contents) == (state.done.head, state.done.ranges(), left)


def test_each_record_of_a_commit_is_valid_without_the_next() -> None:
    before = unsealed(encode_state(state_of(3, [(6, 6)])))
    commit = encode_changes(7, [(9, 9), (20, 120)], {8: 1})
    states = set()
    for size in range(len(commit) + 1):
        state, end = read(before + commit[:size])
        assert end.is_unfinished == (end.offset != len(before) + size)
        states.add((state.done.head, tuple(state.done.ranges()), tuple(state.errors.items())))
    assert states == {
        (3, ((6, 6),), ()),
        (7, (), ()),
        (7, ((9, 9),), ()),
        (7, ((9, 9), (20, 120)), ()),
        (7, ((9, 9), (20, 120)), ((8, 1),)),
    }


# Reading.


def test_last_head_counts_and_done_ids_add_up() -> None:
    assert content_of(sealed(read_head(3) + read_done(5) + read_head(7) + read_done(9))) == (7, [(9, 9)], {})
    assert content_of(sealed(read_done(5, 9) + read_head(7))) == (7, [(9, 9)], {})
    assert content_of(sealed(read_head(7) + read_done(9) + read_head(3))) == (3, [(9, 9)], {})
    assert content_of(sealed(read_done(1, 2, 5) + read_head(0))) == (2, [(5, 5)], {})
    assert content_of(sealed(read_head(3) + read_done(4, 5))) == (5, [], {})


def test_last_error_count_of_an_item_counts_unless_negative() -> None:
    assert content_of(sealed(errors(_5=1, _6=1) + errors(_5=2, _7=-1))) == (0, [], {5: 2, 6: 1})


def test_impossible_ids_are_harmless() -> None:
    assert content_of(sealed(read_head(-5) + read_done(-9, 0))) == (0, [], {})
    assert content_of(sealed(done_ranges((9, 5), (-9, 3), (7, 8))))[:2] == (3, [(7, 8)])


def test_other_records_are_skipped() -> None:
    contents = (
        READER + read_head(7) + put(9, b"data") + with_data(14, b"?") + b"\x32????????" + targets(0) + put(1, b"")
    )
    assert content_of(contents + read_done(9)) == (7, [(9, 9)], {})


@pytest.mark.parametrize("contents", [WRITER + read_head(7), b"\0\0", bytes(30), b"no reader file"])
def test_other_file_is_damaged_and_empty(contents: bytes) -> None:
    state, end = read(contents)
    assert (state.done.head, len(state.done), state.errors, state.is_deleted) == (0, 0, {}, False)
    assert (end.offset, end.is_unfinished, end.problem is None) == (0, False, False)


def test_records_before_damage_are_kept() -> None:
    state, end = read(READER + read_head(7) + read_done(9) + with_data(9, b"half") + read_head(99))
    assert (state.done.head, state.done.ranges()) == (7, [(9, 9)])
    assert (end.offset, end.is_unfinished, end.problem) == (26, False, "impossible size 4")


def test_zeros_are_an_unfinished_end() -> None:
    state, end = read(READER + read_head(7) + bytes(20) + read_head(9))
    assert (state.done.head, end.offset, end.is_unfinished) == (7, 13, True)


# Damage.

BATCHES = (
    read_head(3) + read_done(6, 9),
    read_head(4),
    read_done(8) + errors(_7=2),
    read_head(6) + done_ranges((20, 99)),
)
SEALED = sealed(*BATCHES)
ENDS = [len(sealed(*BATCHES[:count])) for count in range(len(BATCHES) + 1)]


def check_adds_nothing(contents: bytes, good: int) -> None:
    """Check that damage at the byte `good` is found, and that the file says no more than it did before that byte."""
    state, end = read(contents)
    assert end.problem is not None
    before = next((count for count in reversed(range(len(ENDS))) if ENDS[count] <= good), 0)
    expected = read(sealed(*BATCHES[:before]))[0]
    assert (state.done.head, state.done.ranges(), state.errors, state.is_deleted) == (
        expected.done.head,
        expected.done.ranges(),
        expected.errors,
        False,
    )


@pytest.mark.parametrize("position", range(len(SEALED)))
def test_checksums_detect_any_changed_byte(position: int) -> None:
    good = SEALED[position]
    for byte in {0, 2, 0xD1, 0xF1, 0xFF, *(good ^ 1 << bit for bit in range(8))} - {good}:
        check_adds_nothing(SEALED[:position] + bytes([byte]) + SEALED[position + 1 :], position)


def test_zeros_from_any_byte_are_detected() -> None:
    for position in range(len(SEALED) - 1):
        for end in (position + 2, position + 16, len(SEALED)):
            zeroed = (SEALED[:position] + bytes(end - position) + SEALED[end:])[: len(SEALED)]
            if zeroed != SEALED:
                first = next(index for index in range(len(SEALED)) if zeroed[index] != SEALED[index])
                check_adds_nothing(zeroed, first)


def test_cut_is_detected_unless_it_leaves_whole_commits() -> None:
    for size in range(len(SEALED)):
        if size in ENDS[1:]:
            assert read(SEALED[:size])[1].problem is None
        else:
            check_adds_nothing(SEALED[:size], size)


@pytest.mark.parametrize(
    "contents",
    [
        READER + read_head(7) + read_done() + DELETED,
        READER + read_head(7) + read_head(6),
        READER + read_head(-1),
        READER + read_done(9) + read_head(7),
    ],
)
def test_other_records_without_checksums_are_damage(contents: bytes) -> None:
    state, end = read(contents)
    assert (state.done.last, state.is_deleted, end.offset, end.is_unfinished) == (0, False, 0, False)
    assert end.problem
