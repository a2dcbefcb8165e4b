"""Replay: what each record does to a queue, and what remains of a truncated or damaged journal."""

from __future__ import annotations

import base64
import errno
import json
import shutil
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from twisted.python.failure import Failure

from kestrel.disk.reader import PART_BYTES
from kestrel.errors import QueueFailed
from kestrel.journal.replay import replay
from kestrel.testing.faults import FaultyDisk, ProcessDied
from tests.journal import reference
from tests.journal.handwritten import (
    REMOVE,
    REMOVE_TENTATIVE,
    BytesReader,
    add,
    add_xid,
    addx,
    confirm,
    continue_,
    i32,
    open_,
    save_xid,
    state_dump,
    unremove,
)
from tests.journal.restarts import (
    NOW_MS,
    Journal,
    ReplayedWindow,
    check_against_the_reference,
    check_recovery,
    files_of,
    replayed,
    restarted_items,
    seen,
    set_aside,
)
from tests.sample import EVERY_PLACE, examples, step_between

GOLDEN = Path(__file__).with_name("golden")


# Cut after each byte.

TRUNCATIONS = json.loads((GOLDEN / "08_truncations" / "expected.json").read_bytes())
WHOLE = (GOLDEN / "08_truncations" / "journal" / "work").read_bytes()
RECORDS = reference.read(WHOLE).records
STARTS = [record.offset for record in RECORDS]


def test_journal_has_every_record_of_2_1_to_2_4() -> None:
    assert {record.opcode for record in RECORDS} == {0, 1, 2, 5, 6, 8, 9}
    assert base64.b64decode(TRUNCATIONS["base_b64"]) == WHOLE
    assert len(TRUNCATIONS["cuts"]) == len(WHOLE) + 1


@pytest.mark.parametrize("cut", TRUNCATIONS["cuts"], ids=lambda cut: str(cut["n"]))
def test_truncated_journal_is_recovered_as_by_kestrel_except_error_counts(tmp_path: Path, cut: dict) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "work").write_bytes(WHOLE[: cut["n"]])
    items = [data for data, _, _ in restarted_items(tmp_path / "a")]
    assert items == [base64.b64decode(data) for data in cut["items"]]
    Journal(tmp_path / "b").close()
    left = base64.b64decode(cut["file_b64_after"])
    good = max(start for start in [*STARTS, len(WHOLE)] if start <= cut["n"])
    assert files_of(tmp_path / "b") == {"work": reference.with_error_counts(left[:good], left[good:])}


OLD = [
    add(b"earliest", 1_800_000_000),
    save_xid(10),
    add_xid(5, b"open5", NOW_MS),
    REMOVE_TENTATIVE,
    add_xid(6, b"open6", NOW_MS, NOW_MS),
    REMOVE_TENTATIVE,
    addx(b"plain", NOW_MS),
    unremove(6),
    REMOVE,
    REMOVE_TENTATIVE,
    confirm(5),
    continue_(11, b"again", NOW_MS),
    add(b""),
    REMOVE_TENTATIVE,
    add_xid(7, b"open7", NOW_MS),
    state_dump(12, add_xid(12, b"again", NOW_MS), add_xid(7, b"open7", NOW_MS)),
]
"""A journal of releases before 2.1, and one that ends with a STATE_DUMP."""

JOURNALS = {"2.1 to 2.4": WHOLE, "before 2.1": b"".join(OLD)}
each_journal = pytest.mark.parametrize("whole", JOURNALS.values(), ids=JOURNALS)


def test_journal_of_old_releases_has_their_records() -> None:
    reading = reference.read(JOURNALS["before 2.1"])
    assert [record.offset for record in reading.records] == [len(b"".join(OLD[:index])) for index in range(len(OLD))]
    assert {record.opcode for record in reading.records} == set(range(9))
    assert reading.is_closed


@each_journal
def test_truncated_journal_keeps_records_and_quarantines_the_rest(tmp_path: Path, whole: bytes) -> None:
    others = {"other": addx(b"other"), "work.bak": b"foreign", "work2": addx(b"2")}
    reading = reference.read(whole)
    for size in range(len(whole)):
        folder = tmp_path / str(size)
        folder.mkdir()
        for name, contents in {**others, "work": whole[:size]}.items():
            (folder / name).write_bytes(contents)
        journal = Journal(folder)
        good = max(record.offset for record in reading.records if record.offset <= size)
        files = files_of(folder)
        assert files.pop("work") == whole[:good]
        assert files == others
        assert set_aside(folder) == ([whole[good:size]] if good < size else [])
        assert journal.items() == reference.items_after(whole[:good], now_ms=NOW_MS)
        assert journal.errors() == reference.replayed(whole[:good], now_ms=NOW_MS).errors_after_a_restart()
        journal.close()


@each_journal
def test_files_after_a_truncated_rotated_file_keep_their_items(tmp_path: Path, whole: bytes) -> None:
    later = {"work.2000": addx(b"in 2000") + REMOVE, "work": addx(b"current")}
    for size in range(0, len(whole) + 1, 7):
        folder = tmp_path / str(size)
        folder.mkdir()
        for name, contents in {**later, "work.1000": whole[:size]}.items():
            (folder / name).write_bytes(contents)
        journal = Journal(folder)
        files = files_of(folder)
        is_damaged = bool(reference.read(whole[:size]).problem)
        kept = {**later, "work.2000": addx(b"in 2000")} if is_damaged else later
        assert {name: files[name] for name in later} == kept
        in_order = [whole[:size], kept["work.2000"], kept["work"]]
        assert journal.items() == reference.items_after(*in_order, now_ms=NOW_MS)
        journal.close()


# Each byte damaged.


@each_journal
@pytest.mark.parametrize("bit", range(8))
def test_records_before_a_wrong_bit_are_recovered(tmp_path: Path, whole: bytes, bit: int) -> None:
    """In each byte of the first record of each kind, in the first byte of each record, and in every fifth byte."""
    records = reference.read(whole).records
    starts = [record.offset for record in records]
    ends = [*starts[1:], len(whole)]
    kinds = {record.opcode: range(record.offset, end) for record, end in zip(records[::-1], ends[::-1], strict=True)}
    sample = sorted({*range(bit % 5, len(whole), step_between(5)), *starts}.union(*kinds.values()))
    for offset in range(len(whole)) if EVERY_PLACE else sample:
        flipped = bytearray(whole)
        flipped[offset] ^= 1 << bit
        assert reference.read(bytes(flipped)).end >= max(start for start in starts if start <= offset)
        check_recovery(tmp_path / str(offset), bytes(flipped))


# Records compared with the reference reader.


@given(contents=st.binary(max_size=200))
def test_any_bytes_replay_as_the_format_says(contents: bytes) -> None:
    check_against_the_reference(contents)


some_xid = st.one_of(st.integers(1, 5), st.sampled_from([0, -1, 2**31 - 1, 2**31 - 2, -(2**31)]))
some_data = st.binary(max_size=6)
some_ms = st.sampled_from([0, 1, 7, NOW_MS, NOW_MS | 0xFF, 2**44 - 1])
some_restated = st.lists(st.builds(add_xid, some_xid, some_data, some_ms, some_ms), max_size=18)
some_state_dump = st.builds(lambda xid, restated: state_dump(xid, *restated), some_xid, some_restated)
some_record = st.one_of(
    st.builds(add, some_data, st.sampled_from([0, 1, 1_700_000_000])),
    st.just(REMOVE),
    st.builds(addx, some_data, some_ms, some_ms),
    st.just(REMOVE_TENTATIVE),
    st.builds(save_xid, some_xid),
    st.builds(unremove, some_xid),
    st.builds(confirm, some_xid),
    st.builds(add_xid, some_xid, some_data, some_ms, some_ms),
    st.builds(continue_, some_xid, some_data, some_ms, some_ms),
    st.builds(open_, some_xid),
)
some_contents = st.builds(
    lambda records, end: b"".join(records) + end,
    st.lists(some_record, max_size=40),
    st.one_of(st.just(b""), st.just(b""), some_state_dump),
)


@settings(max_examples=examples(400))
@given(files=st.lists(some_contents, min_size=1, max_size=3))
def test_any_records_in_any_files_replay_as_the_format_says(files: list[bytes]) -> None:
    for contents in files:
        assert reference.read(contents).problem == ""
    check_against_the_reference(*files)


@settings(max_examples=examples(400))
@given(contents=some_contents, behind=some_contents, junk=st.binary(max_size=40), data=st.data())
def test_any_records_mixed_with_bytes_replay_as_the_format_says(
    contents: bytes, behind: bytes, junk: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(contents)))
    check_against_the_reference(contents[:at] + junk + contents[at:], behind)
    check_against_the_reference(contents + behind)
    check_against_the_reference(contents[:at], behind)


@settings(max_examples=examples(400))
@given(dump=some_state_dump, data=st.data())
def test_wrong_or_truncated_state_dump_replays_as_the_format_says(dump: bytes, data: st.DataObject) -> None:
    count = data.draw(st.one_of(st.integers(-2, 20), st.sampled_from([-(2**31), 2**31 - 1])))
    changed = dump[:5] + i32(count) + dump[9:]
    check_against_the_reference(addx(b"a") + changed)
    check_against_the_reference(addx(b"a") + changed[: data.draw(st.integers(0, len(dump)))])
    check_against_the_reference(addx(b"a") + changed + data.draw(some_record))


# Single records.


def items_of(*records: bytes) -> list[bytes]:
    """Return the data of the items after these records, without open reads."""
    window, _ = replayed(b"".join(records))
    return [item.data for item in iter(lambda: window.take(False), None)]


def test_empty_file_is_an_empty_queue() -> None:
    window, end = replayed(b"")
    assert (window.items, end.offset, end.records, end.problem) == (0, 0, 0, None)


def test_remove_from_empty_queue_is_ignored() -> None:
    assert items_of(REMOVE, open_(1), addx(b"a")) == [b"a"]


@pytest.mark.parametrize("record", [unremove(5), confirm(5), save_xid(5)])
def test_record_about_read_that_is_not_open_is_ignored(record: bytes) -> None:
    assert items_of(addx(b"a"), addx(b"b"), open_(1), record) == [b"b"]


def test_continue_adds_its_item_even_if_read_is_not_open() -> None:
    assert items_of(addx(b"a"), continue_(5, b"b")) == [b"a", b"b"]


def test_continue_confirms_and_adds() -> None:
    assert items_of(addx(b"a"), open_(1), continue_(1, b"b"), unremove(1)) == [b"b"]


def test_unremoved_item_returns_to_the_head() -> None:
    assert items_of(addx(b"a"), addx(b"b"), addx(b"c"), open_(1), open_(2), unremove(1)) == [b"a", b"c"]


def test_second_opening_with_an_xid_ends_the_first() -> None:
    assert items_of(addx(b"a"), addx(b"b"), open_(1), open_(1), unremove(1), unremove(1)) == [b"b"]


def test_item_without_add_time_gets_time_of_replay() -> None:
    window, _ = replayed(add(b"a", 7))
    assert seen(window.take(False)) == (b"a", NOW_MS, 7000)


# Error counts.


def errors_of(*files: bytes, part_bytes: int = PART_BYTES) -> list[int]:
    """Return the error counts of the items after these files, open reads first."""
    window = ReplayedWindow()
    for contents in files:
        assert replay(BytesReader(contents, part_bytes), window, NOW_MS).problem is None
    window.put_back(window.open_xids(), False)
    errors = [item.errors for item in iter(lambda: window.take(False), None)]
    assert errors == reference.replayed(*files, now_ms=NOW_MS).errors_after_a_restart()
    return errors


TWO = addx(b"a") + addx(b"b")


def test_item_never_opened_has_no_errors() -> None:
    assert errors_of(TWO) == [0, 0]


def test_unremove_counts_one_error() -> None:
    again = open_(1) + unremove(1)
    assert [errors_of(TWO + again * times) for times in range(4)] == [[0, 0], [1, 0], [2, 0], [3, 0]]


def test_unremove_directly_after_save_xid_uses_its_error_count() -> None:
    for errors in (0, 1, 7, 2**31 - 1):
        assert errors_of(TWO + open_(1) + save_xid(errors) + unremove(1)) == [errors, 0]
    assert errors_of(TWO + (open_(1) + unremove(1)) * 3 + open_(1) + save_xid(1) + unremove(1)) == [1, 0]


def test_error_count_continues_up_to_its_maximum() -> None:
    again = open_(1) + unremove(1)
    assert errors_of(TWO + open_(1) + save_xid(5) + unremove(1) + again * 2) == [7, 0]
    assert errors_of(TWO + open_(1) + save_xid(2**31 - 2) + unremove(1) + again * 3) == [2**31 - 1, 0]


def test_errors_belong_to_the_item_whatever_its_xid() -> None:
    assert errors_of(TWO + open_(1) + open_(2) + unremove(1) + save_xid(4) + unremove(2)) == [4, 1]
    assert errors_of(TWO + open_(1) + unremove(1) + open_(9) + open_(1) + unremove(9) + unremove(1)) == [1, 2]


def test_open_read_keeps_its_errors() -> None:
    assert errors_of(TWO + open_(1) + unremove(1) + open_(1)) == [1, 0]


@pytest.mark.parametrize("between", [addx(b"c"), REMOVE, confirm(8), open_(8), continue_(8, b"c"), unremove(8)])
def test_save_xid_before_other_record_is_no_error_count(between: bytes) -> None:
    assert errors_of(TWO + open_(1) + open_(2) + save_xid(5) + between + unremove(2))[:2] == [0, 1]


def test_last_of_many_save_xids_counts() -> None:
    assert errors_of(TWO + open_(1) + save_xid(5) + save_xid(3) + unremove(1)) == [3, 0]


def test_error_count_applies_to_one_unremove() -> None:
    assert errors_of(TWO + open_(1) + open_(2) + save_xid(5) + unremove(2) + unremove(1)) == [1, 5]


def test_negative_save_xid_is_no_error_count() -> None:
    assert errors_of(TWO + open_(1) + save_xid(-1) + unremove(1)) == [1, 0]


def test_error_counts_do_not_cross_files() -> None:
    assert errors_of(TWO + open_(1) + save_xid(5), unremove(1)) == [1, 0]
    assert errors_of(TWO + open_(1), save_xid(5) + unremove(1)) == [5, 0]


def test_error_count_of_read_that_is_not_open_is_ignored() -> None:
    assert errors_of(TWO + open_(1) + save_xid(5) + unremove(7) + unremove(1)) == [1, 0]


def test_data_that_looks_like_an_error_count_is_data() -> None:
    assert errors_of(addx(b"a") + open_(1) + addx(save_xid(5)) + unremove(1)) == [1, 0]


@pytest.mark.parametrize("part_bytes", range(1, 60))
def test_error_count_is_valid_across_part_borders(part_bytes: int) -> None:
    contents = TWO + open_(1) + open_(2) + save_xid(5) + unremove(2) + unremove(1) + open_(3) + save_xid(6) + REMOVE
    assert errors_of(contents, part_bytes=part_bytes) == [1]
    assert errors_of(contents + unremove(3), part_bytes=part_bytes) == [2]
    assert errors_of(contents + save_xid(6) + unremove(3), part_bytes=part_bytes) == [6]


def test_final_save_xid_of_old_file_is_no_error_count() -> None:
    rewritten = add_xid(5, b"a") + REMOVE_TENTATIVE + add_xid(6, b"b") + REMOVE_TENTATIVE + save_xid(123)
    assert errors_of(rewritten + unremove(5)) == [0, 1]
    assert errors_of(rewritten + save_xid(0) + unremove(5) + save_xid(2) + unremove(6)) == [2, 0]


def test_open_read_of_old_releases_returns_with_its_errors() -> None:
    assert errors_of(TWO + REMOVE_TENTATIVE + save_xid(0) + unremove(1)) == [0, 0]


def test_save_xid_with_error_count_still_sets_last_xid() -> None:
    window, _ = replayed(TWO + open_(8) + save_xid(3) + unremove(8))
    assert (window.last_xid, window.next_xid()) == (3, 4)


def test_open_xid_is_not_reused_after_an_error_count() -> None:
    window, _ = replayed(TWO + addx(b"c") + open_(1) + open_(2) + open_(3) + save_xid(0) + unremove(1))
    assert window.open_xids() == [2, 3]
    assert [window.take(True).xid, window.next_xid()] == [1, 4]


# Releases before 2.1.


def opened_by(*records: bytes) -> dict[int, bytes]:
    """Return the open reads after these records, by xid."""
    queue = reference.Queue(NOW_MS)
    queue.do(reference.read(b"".join(records)).records)
    window, end = replayed(b"".join(records))
    assert end.problem is None
    xids = window.open_xids()
    window.put_back(xids, False)
    opened = {xid: item.data for xid in xids if (item := window.take(False)) is not None}
    assert opened == {xid: data for xid, (data, _, _) in queue.opened.items()}
    return opened


A, B, C = addx(b"a"), addx(b"b"), addx(b"c")


def test_item_is_opened_with_the_xid_of_its_add_xid() -> None:
    assert opened_by(add_xid(5, b"a"), REMOVE_TENTATIVE) == {5: b"a"}


def test_item_without_announced_xid_gets_next_free_one() -> None:
    assert opened_by(A, B, REMOVE_TENTATIVE, REMOVE_TENTATIVE) == {1: b"a", 2: b"b"}


def test_open_xid_is_not_free() -> None:
    assert opened_by(A, B, C, open_(1), open_(2), save_xid(0), REMOVE_TENTATIVE) == {1: b"a", 2: b"b", 3: b"c"}


def test_xids_continue_after_a_saved_xid() -> None:
    assert opened_by(save_xid(41), A, REMOVE_TENTATIVE) == {42: b"a"}


def test_xids_continue_after_an_explicit_xid() -> None:
    assert opened_by(A, B, open_(9), confirm(9), REMOVE_TENTATIVE) == {10: b"b"}


@pytest.mark.parametrize("last", [2**31 - 1, -1, -(2**31)])
def test_xids_wrap_around_to_1(last: int) -> None:
    assert opened_by(A, B, open_(1), save_xid(last), REMOVE_TENTATIVE) == {1: b"a", 2: b"b"}


def test_announced_xid_is_not_the_last_used() -> None:
    rewritten = [add_xid(6, b"a"), REMOVE_TENTATIVE, add_xid(5, b"b"), REMOVE_TENTATIVE]
    opened = {5: b"b", 6: b"a", 11: b"c"}
    assert opened_by(save_xid(10), *rewritten, C, REMOVE_TENTATIVE) == opened
    assert opened_by(*rewritten, save_xid(10), C, REMOVE_TENTATIVE) == opened


def test_announced_xid_applies_only_to_remove_tentative() -> None:
    assert opened_by(add_xid(5, b"a"), open_(7)) == {7: b"a"}
    assert opened_by(add_xid(5, b"a"), REMOVE, B, REMOVE_TENTATIVE) == {1: b"b"}


def test_returned_item_loses_its_announced_xid() -> None:
    rewritten = [save_xid(10), add_xid(5, b"a"), REMOVE_TENTATIVE]
    assert opened_by(*rewritten, unremove(5), REMOVE_TENTATIVE) == {11: b"a"}
    assert opened_by(add_xid(5, b"a"), open_(7), unremove(7), REMOVE_TENTATIVE) == {8: b"a"}


def test_second_opening_with_announced_xid_ends_the_first() -> None:
    twice = [add_xid(5, b"a"), REMOVE_TENTATIVE, add_xid(5, b"b"), REMOVE_TENTATIVE]
    assert opened_by(*twice) == {5: b"b"}
    assert items_of(*twice, C, unremove(5), unremove(5)) == [b"b", b"c"]


def test_announced_xid_is_not_reserved_before_its_opening() -> None:
    assert opened_by(A, add_xid(1, b"b"), REMOVE_TENTATIVE, REMOVE_TENTATIVE) == {1: b"b"}


def test_remove_tentative_on_empty_queue_is_ignored() -> None:
    assert opened_by(REMOVE_TENTATIVE, A, REMOVE_TENTATIVE) == {1: b"a"}


def test_add_xid_that_is_never_opened_is_an_item() -> None:
    window, _ = replayed(A + add_xid(5, b"b", 3, 4) + C)
    assert [seen(item) for item in iter(lambda: window.take(False), None)] == [(b"a", 1, 0), (b"b", 3, 4), (b"c", 1, 0)]


def test_read_opened_after_replay_has_its_own_xid() -> None:
    window, _ = replayed(save_xid(10) + add_xid(5, b"a") + add_xid(6, b"b"))
    assert [item.xid for item in iter(lambda: window.take(True), None)] == [11, 12]


# STATE_DUMP.


def test_state_dump_restates_open_reads_and_adds_nothing() -> None:
    dump = state_dump(2, add_xid(1, b"a"), add_xid(9, b"unknown"))
    assert opened_by(A, B, REMOVE_TENTATIVE, dump) == {1: b"a"}
    assert items_of(A, B, REMOVE_TENTATIVE, dump) == [b"b"]


def test_state_dump_sets_the_last_xid() -> None:
    window, _ = replayed(A + B + open_(3) + state_dump(7))
    assert (window.last_xid, window.next_xid(), window.open_xids()) == (7, 8, [3])


@pytest.mark.parametrize("restated", [0, 1, 15, 16, 100])
def test_state_dump_ends_its_file(restated: int) -> None:
    dump = state_dump(7, *[add_xid(1, b"a")] * restated)
    _, end = replayed(A + dump)
    assert (end.offset, end.records, end.problem, end.is_closed) == (len(A + dump), 2, None, True)


@pytest.mark.parametrize("contents", [b"", A, open_(1), add_xid(1, b"a"), continue_(1, b"a"), continue_(1, b"a") + A])
def test_no_other_record_ends_its_file(contents: bytes) -> None:
    assert not replayed(contents)[1].is_closed


@pytest.mark.parametrize("behind", [REMOVE, A, save_xid(1), b"\xee"])
def test_state_dump_with_trailing_data_loses_no_item(behind: bytes) -> None:
    _, end = replayed(A + state_dump(7, add_xid(1, b"a")) + behind)
    assert (end.offset, end.is_unfinished, end.is_closed) == (len(A), False, False)
    assert items_of(A, state_dump(7), behind) == [b"a"]


def test_truncated_state_dump_is_unfinished() -> None:
    dump = state_dump(7, add_xid(1, b"a"), add_xid(2, b"b"))
    for size in range(1, len(dump)):
        _, end = replayed(A + dump[:size])
        assert (end.offset, end.is_unfinished, end.is_closed) == (len(A), True, False)


def test_replay_continues_after_rotated_file_that_state_dump_ends(tmp_path: Path) -> None:
    (tmp_path / "work.1000").write_bytes(A + B + REMOVE_TENTATIVE + state_dump(4, add_xid(1, b"a")))
    (tmp_path / "work.2000").write_bytes(confirm(1) + C + REMOVE_TENTATIVE + state_dump(5, add_xid(5, b"b")))
    (tmp_path / "work").write_bytes(addx(b"d") + unremove(5) + REMOVE)
    files = files_of(tmp_path)
    assert restarted_items(tmp_path) == [(b"c", 1, 0), (b"d", 1, 0)]
    assert {name: files_of(tmp_path)[name] for name in ("work.1000", "work.2000")} == {
        name: files[name] for name in ("work.1000", "work.2000")
    }


CLOSED = {
    "of nothing": A + state_dump(3),
    "alone": state_dump(3),
    "of an open read": A + B + REMOVE_TENTATIVE + state_dump(3, add_xid(1, b"a")),
    "of 16": A + state_dump(3, *[add_xid(1, b"a")] * 16),
}


@pytest.mark.parametrize("contents", CLOSED.values(), ids=CLOSED)
@pytest.mark.parametrize("older", [{}, {"work.1000": addx(b"older")}], ids=["alone", "with a rotated file"])
def test_puts_after_closed_current_file_are_found_again(
    tmp_path: Path, contents: bytes, older: dict[str, bytes]
) -> None:
    for name, held in {**older, "work": contents}.items():
        (tmp_path / name).write_bytes(held)
    items = reference.items_after(*older.values(), contents, now_ms=NOW_MS)
    for data in (b"first", b"second", b"third"):
        journal = Journal(tmp_path)
        journal.put(data)
        items.append((data, 1, 0))
        assert journal.items() == items
        journal.close()
        assert set_aside(tmp_path) == []
    assert restarted_items(tmp_path) == items
    # A file that left nothing in the queue gets no replacement.
    assert files_of(tmp_path).get(f"work.{NOW_MS}", contents) == contents


def test_closed_current_file_is_retired_once(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(CLOSED["of nothing"])
    for _ in range(3):
        Journal(tmp_path).close()
        assert [name for name in files_of(tmp_path) if name != "work"] == [f"work.{NOW_MS}"]
    assert restarted_items(tmp_path) == [(b"a", 1, 0)]


def test_closed_file_that_cannot_be_retired_fails_only_its_queue(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(CLOSED["of nothing"])
    (tmp_path / "other").write_bytes(B)
    disk = FaultyDisk()
    disk.fail("rename", errno.EROFS)
    journal = Journal(tmp_path, disk)
    assert isinstance(journal.loaded[b"work"], Failure)
    assert journal.items(b"other") == [(b"b", 1, 0)]
    descriptors = set(disk.open_descriptors)
    with pytest.raises(QueueFailed):
        journal.items(b"work")
    assert disk.open_descriptors == descriptors
    disk.mend()
    assert journal.items(b"work") == [(b"a", 1, 0)]
    journal.close()
    assert restarted_items(tmp_path) == [(b"a", 1, 0)]


@pytest.mark.parametrize("calls", range(16))
def test_crash_while_closed_file_is_retired_loses_and_doubles_nothing(tmp_path: Path, calls: int) -> None:
    folder, left, on_the_medium = tmp_path / "queues", tmp_path / "left", tmp_path / "on the medium"
    folder.mkdir()
    (folder / "work").write_bytes(CLOSED["of an open read"])
    disk = FaultyDisk()
    disk.list_files(str(folder).encode())
    disk.die_after(calls)
    kept = [(b"a", 1, 0), (b"b", 1, 0)]
    try:
        journal = Journal(folder, disk)
        journal.put(b"c")
        kept.append((b"c", 1, 0))
        journal.close()
    except ProcessDied:
        pass
    else:
        assert calls > 5
    shutil.copytree(folder, left)
    assert restarted_items(left) == kept
    disk.medium.copy(str(folder).encode(), str(on_the_medium).encode())
    assert restarted_items(on_the_medium)[:2] == kept[:2]
