"""Replay: the recorded journals of the original, and what is left of a journal that is cut or damaged."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.journal.records import UnsupportedRecord
from kestrel.journal.replay import replay
from kestrel.storage.window import Window
from tests.journal import reference
from tests.journal.made import (
    NOW_MS,
    REMOVE,
    REMOVE_TENTATIVE,
    Journal,
    add,
    add_xid,
    addx,
    confirm,
    continue_,
    files_of,
    open_,
    restarted_items,
    save_xid,
    set_aside,
    unremove,
)

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json") if path.parent.name != "08_truncations")


# What the original recovers from its own journals.


def expected(case: str) -> dict[str, dict]:
    return json.loads((GOLDEN / case / "expected.json").read_bytes())["queues"]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(case: str, tmp_path: Path) -> Path:
    """A copy of the recorded journal."""
    return Path(shutil.copytree(GOLDEN / case / "journal", tmp_path / "journal"))


def test_there_are_recorded_journals() -> None:
    assert len(CASES) == 10


def test_the_items_of_a_recorded_journal_come_in_order_with_their_times(case: str, folder: Path) -> None:
    for name, queue in expected(case).items():
        items = [
            (base64.b64decode(item["data"]), item["add_time"], item["expiry"] or 0) for item in queue["items"]
        ]
        assert restarted_items(folder, name.encode()) == items


def test_the_items_of_a_recorded_journal_that_a_client_gets_are_those_not_expired(case: str, folder: Path) -> None:
    for name, queue in expected(case).items():
        gets = [
            data
            for data, _, expiry_ms in restarted_items(folder, name.encode())
            if not 0 < expiry_ms < queue["now"]
        ]
        assert gets == [base64.b64decode(data) for data in queue["gets_at_now"]]


def test_the_files_of_a_recorded_journal_are_as_the_original_leaves_them(case: str, folder: Path) -> None:
    Journal(folder).close()
    for queue in expected(case).values():
        left = {file["name"]: base64.b64decode(file["b64"]) for file in queue["files_after_replay"]}
        assert files_of(folder) == left


def test_a_recorded_journal_is_whole(case: str, folder: Path) -> None:
    Journal(folder).close()
    assert set_aside(folder) == []


# Cut after each byte.

TRUNCATIONS = json.loads((GOLDEN / "08_truncations" / "expected.json").read_bytes())
WHOLE = (GOLDEN / "08_truncations" / "journal" / "work").read_bytes()
RECORDS = reference.read(WHOLE).records
STARTS = [record.offset for record in RECORDS]


def test_the_journal_that_is_cut_has_every_record_that_is_written_or_read() -> None:
    assert {record.opcode for record in RECORDS} == {0, 1, 2, 5, 6, 8, 9}
    assert base64.b64decode(TRUNCATIONS["base_b64"]) == WHOLE
    assert len(TRUNCATIONS["cuts"]) == len(WHOLE) + 1


@pytest.mark.parametrize("cut", TRUNCATIONS["cuts"], ids=lambda cut: str(cut["n"]))
def test_a_journal_cut_after_any_byte_is_recovered_as_the_original_does(tmp_path: Path, cut: dict) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "work").write_bytes(WHOLE[: cut["n"]])
    items = [data for data, _, _ in restarted_items(tmp_path / "a")]
    assert items == [base64.b64decode(data) for data in cut["items"]]
    Journal(tmp_path / "b").close()
    assert files_of(tmp_path / "b") == {"work": base64.b64decode(cut["file_b64_after"])}


@pytest.mark.parametrize("size", range(len(WHOLE) + 1))
def test_a_journal_cut_after_any_byte_keeps_the_records_before_and_sets_the_rest_aside(
    tmp_path: Path, size: int
) -> None:
    others = {"other": addx(b"other"), "work.bak": b"foreign", "work2": addx(b"2")}
    for name, contents in {**others, "work": WHOLE[:size]}.items():
        (tmp_path / name).write_bytes(contents)
    journal = Journal(tmp_path)
    good = max((start for start in [*STARTS, len(WHOLE)] if start <= size), default=0)
    files = files_of(tmp_path)
    assert files.pop("work") == WHOLE[:good]
    assert files == others
    assert set_aside(tmp_path) == ([WHOLE[good:size]] if good < size else [])
    assert journal.items() == reference.items_after(WHOLE[:good], now_ms=NOW_MS)
    journal.close()


@pytest.mark.parametrize("size", range(0, len(WHOLE), 7))
def test_a_rotated_file_cut_after_any_byte_leaves_the_later_files_alone(tmp_path: Path, size: int) -> None:
    later = {"work.2000": addx(b"in 2000") + REMOVE, "work": addx(b"current")}
    for name, contents in {**later, "work.1000": WHOLE[:size]}.items():
        (tmp_path / name).write_bytes(contents)
    journal = Journal(tmp_path)
    files = files_of(tmp_path)
    assert {name: files[name] for name in later} == later
    in_order = [WHOLE[:size], later["work.2000"], later["work"]]
    assert journal.items() == reference.items_after(*in_order, now_ms=NOW_MS)
    journal.close()


# Each byte damaged.


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"opcode-{record.opcode}-at-{record.offset}")
def test_whichever_bit_of_a_record_is_wrong_the_records_before_it_are_recovered(
    tmp_path: Path, record: reference.Record
) -> None:
    end = next((start for start in STARTS if start > record.offset), len(WHOLE))
    for offset in range(record.offset, end):
        for bit in range(8):
            flipped = bytearray(WHOLE)
            flipped[offset] ^= 1 << bit
            check_recovery(tmp_path / f"{offset}-{bit}", bytes(flipped), offset)


def check_recovery(folder: Path, contents: bytes, good_bytes: int) -> None:
    """A server starts over these contents; it loses no byte of them and none of the records in the good bytes."""
    folder.mkdir()
    (folder / "work").write_bytes(contents)
    reading = reference.read(contents)
    assert reading.end >= max(start for start in STARTS if start <= good_bytes)
    journal = Journal(folder)
    loaded = journal.loaded[b"work"]
    if isinstance(loaded, Failure):
        assert loaded.check(QueueFailed)
        assert reading.problem in ("refused", "no continue")
        assert (files_of(folder)["work"], set_aside(folder)) == (contents, [])
    else:
        assert reading.problem != "refused"
        kept = files_of(folder)["work"]
        assert kept + b"".join(set_aside(folder)) == contents
        if reading.problem == "damaged" and reading.end == 0:
            assert (kept, set_aside(folder)) == (b"", [contents])
        else:
            assert len(kept) == reading.end
        assert journal.items() == reference.items_after(contents, now_ms=NOW_MS)
    journal.close()


# What records do, against a second reader.


def replayed(contents: bytes) -> tuple[Window, object]:
    """What a file makes of an empty queue, and how its replay ended."""
    window = Window()
    try:
        return window, replay(contents, window, NOW_MS)
    except UnsupportedRecord as refusal:
        return window, refusal


def check_against_the_reference(contents: bytes) -> None:
    window, end = replayed(contents)
    reading = reference.read(contents)
    queue = reference.Queue(NOW_MS)
    queue.do(reading.records)
    if isinstance(end, UnsupportedRecord):
        assert reading.problem in ("refused", "no continue")
    else:
        assert (end.offset, end.records) == (reading.end, len(reading.records))
        assert (end.problem is None) == (reading.problem == "")
        assert end.is_unfinished == (reading.problem == "unfinished")
        assert reading.problem != "refused"
    assert (window.items, window.open_reads) == (len(queue.items), len(queue.opened))
    assert window.bytes == sum(len(data) for data, _, _ in queue.items)
    window.put_back(window.open_xids(), False)
    items = list(iter(lambda: window.take(False), None))
    assert [seen(item) for item in items] == queue.after_a_restart()


def seen(item: Item) -> tuple[bytes, int, int]:
    return item.data, item.add_ms, item.expiry_ms


@given(contents=st.binary(max_size=200))
def test_any_bytes_replay_or_stop_as_the_format_says(contents: bytes) -> None:
    check_against_the_reference(contents)


some_xid = st.integers(0, 4)
some_data = st.binary(max_size=6)
some_ms = st.sampled_from([0, 1, NOW_MS])
some_record = st.one_of(
    st.builds(add, some_data, st.sampled_from([0, 1, 1_700_000_000])),
    st.just(REMOVE),
    st.builds(addx, some_data, some_ms, some_ms),
    st.builds(save_xid, some_xid),
    st.builds(unremove, some_xid),
    st.builds(confirm, some_xid),
    st.builds(continue_, some_xid, some_data, some_ms, some_ms),
    st.builds(open_, some_xid),
)


@settings(max_examples=400)
@given(records=st.lists(some_record, max_size=40))
def test_any_records_do_what_the_format_says(records: list[bytes]) -> None:
    check_against_the_reference(b"".join(records))


@settings(max_examples=400)
@given(records=st.lists(some_record, min_size=1, max_size=20), junk=st.binary(max_size=40), data=st.data())
def test_any_records_with_any_bytes_among_them_replay_or_stop_as_the_format_says(
    records: list[bytes], junk: bytes, data: st.DataObject
) -> None:
    contents = b"".join(records)
    at = data.draw(st.integers(0, len(contents)))
    check_against_the_reference(contents[:at] + junk + contents[at:])


# Single promises, by name.


def items_of(*records: bytes) -> list[bytes]:
    """The data of the items that these records leave, open reads not among them."""
    window, _ = replayed(b"".join(records))
    return [item.data for item in iter(lambda: window.take(False), None)]


def test_an_empty_file_is_an_empty_queue() -> None:
    window, end = replayed(b"")
    assert (window.items, end.offset, end.records, end.problem) == (0, 0, 0, None)


def test_a_remove_of_nothing_is_ignored() -> None:
    assert items_of(REMOVE, open_(1), addx(b"a")) == [b"a"]


@pytest.mark.parametrize("record", [unremove(5), confirm(5), save_xid(5)])
def test_a_record_that_names_what_is_not_open_is_ignored(record: bytes) -> None:
    assert items_of(addx(b"a"), addx(b"b"), open_(1), record) == [b"b"]


def test_the_item_of_a_continue_is_added_though_what_it_confirms_is_not_open() -> None:
    assert items_of(addx(b"a"), continue_(5, b"b")) == [b"a", b"b"]


def test_a_continue_confirms_and_adds() -> None:
    assert items_of(addx(b"a"), open_(1), continue_(1, b"b"), unremove(1)) == [b"b"]


def test_an_unremoved_item_goes_to_the_head() -> None:
    assert items_of(addx(b"a"), addx(b"b"), addx(b"c"), open_(1), open_(2), unremove(1)) == [b"a", b"c"]


def test_a_second_opening_under_an_xid_finishes_the_first() -> None:
    assert items_of(addx(b"a"), addx(b"b"), open_(1), open_(1), unremove(1), unremove(1)) == [b"b"]


def test_an_item_of_the_earliest_releases_was_added_at_the_time_of_the_replay() -> None:
    window, _ = replayed(add(b"a", 7))
    assert seen(window.take(False)) == (b"a", NOW_MS, 7000)


@pytest.mark.parametrize("record", [REMOVE_TENTATIVE, add_xid(1, b"b")], ids=["REMOVE_TENTATIVE", "ADD_XID"])
def test_records_of_releases_before_2_1_are_refused_by_name(record: bytes) -> None:
    with pytest.raises(UnsupportedRecord, match=r"^(REMOVE_TENTATIVE|ADD_XID)$"):
        replay(addx(b"a") + record, Window(), NOW_MS)
