"""Histories of a journal's items, compared with a second implementation and with the server's recovery."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.client.blocking import BlockingClient
from kestrel.spark.queue_history import ItemHistory, QueueHistory
from tests.journal import reference
from tests.journal.handwritten import (
    REMOVE,
    REMOVE_TENTATIVE,
    add,
    add_xid,
    addx,
    confirm,
    continue_,
    open_,
    save_xid,
    state_dump,
    unremove,
)
from tests.journal.restarts import restarted_errors, restarted_items
from tests.journal.test_recorded import CASES, GOLDEN
from tests.server.running import Processes
from tests.spark.history.model import told
from tests.spark.tables import histories_in
from tests.spark.times import at, ms_of

XIDS = st.integers(1, 3)
TIMES = st.integers(1, 9)
RECORDS = st.one_of(
    st.just(REMOVE),
    st.just(REMOVE),
    st.builds(lambda time: addx(b"a", time), TIMES),
    st.builds(lambda time: addx(b"bc", time, 5), TIMES),
    st.builds(open_, XIDS),
    st.builds(confirm, XIDS),
    st.builds(unremove, XIDS),
    st.builds(lambda errors, xid: save_xid(errors) + unremove(xid), XIDS, XIDS),
    st.builds(lambda xid, time: continue_(xid, b"c", time), XIDS, TIMES),
    st.sampled_from([REMOVE_TENTATIVE, add(b"old"), add_xid(2, b"x", 4), save_xid(7), state_dump(1), b"\xff"]),
)
FILES = st.lists(st.lists(RECORDS, max_size=25).map(b"".join), min_size=1, max_size=3)


def named(files: list[bytes]) -> list[tuple[str, bytes]]:
    """The last one is the current file."""
    return [(f"work.{number}" if number < len(files) else "work", each) for number, each in enumerate(files, 1)]


def as_told(row: dict[str, Any]) -> tuple[Any, ...]:
    places = (row[name] for name in ("file", "offset", "state", "opens", "aborts", "errors", "xid", "position"))
    return (
        *places,
        bracket(row, "taken"),
        bracket(row, "removed"),
    )


def bracket(row: dict[str, Any], event: str) -> tuple[int | None, int | None]:
    return ms_of(row[f"{event}_after"]), ms_of(row[f"{event}_before"])


@given(FILES)
def test_any_history_is_that_of_the_second_implementation(files: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        for name, contents in named(files):
            Path(folder, name).write_bytes(contents)
        found = {(row["file"], row["offset"]): as_told(row) for row in histories_in(folder)}
    assert found == {(each.file, each.offset): tuple(each) for each in told(named(files))}


@given(FILES)
def test_remaining_items_are_those_after_a_start(files: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        for name, contents in named(files):
            Path(folder, name).write_bytes(contents)
        rows = histories_in(folder)
        left = sorted((row for row in rows if row["position"] is not None), key=lambda row: row["position"])
        found = list(recovered(Path(folder)))
    if any(reference.read(each).problem for each in files[:-1]):
        # A start drops the removals behind damage in a rotated file, and delivers items again.
        assert Counter(row["data"] for row in left) <= Counter(data for data, _ in found)
    else:
        assert [(row["data"], row["errors"]) for row in left] == found


def recovered(folder: Path) -> Iterator[tuple[bytes, int]]:
    items, errors = restarted_items(folder), restarted_errors(folder)
    yield from zip((data for data, _, _ in items), errors, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_remaining_journal_items_match_a_start(case: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / case / "journal", tmp_path / "journal")
    rows = histories_in(tmp_path / "journal")
    assert rows
    for queue in {row["queue"] for row in rows}:
        left = [row for row in rows if row["queue"] == queue and row["position"] is not None]
        left.sort(key=lambda row: row["position"])
        found = restarted_items(tmp_path / "journal", queue.encode("latin-1"))
        assert [row["data"] for row in left] == [data for data, _, _ in found]


# Bounds of times.


def only(folder: Path, contents: bytes) -> list[dict[str, Any]]:
    (folder / "work").write_bytes(contents)
    return sorted(histories_in(folder), key=lambda row: row["offset"])


def test_removal_is_between_the_adds_before_and_after_it(tmp_path: Path) -> None:
    first, second, _ = only(tmp_path, addx(b"a", 10) + addx(b"b", 20) + REMOVE + REMOVE + addx(b"c", 30))
    for row in (first, second):
        assert bracket(row, "removed") == (20, 30)
        assert bracket(row, "taken") == (20, 30)


def test_bounds_are_unknown_only_where_the_clock_was_set_back(tmp_path: Path) -> None:
    contents = addx(b"a", 4_102_444_800_000) + REMOVE + addx(b"b", 20) + REMOVE + addx(b"c", 30)
    first, second, _ = only(tmp_path, contents)
    assert bracket(first, "removed") == (None, None)
    assert bracket(second, "removed") == (20, 30)


def test_removed_items_are_returned_whatever_their_times() -> None:
    history = QueueHistory()
    for number in range(100):
        history.put(ItemHistory("work", number, 1000 if number else 4_102_444_800_000, None, 1, None))
        history.drop_head()
    assert len(history.gone) == 99


def test_beginning_of_a_rewritten_file_has_no_times(tmp_path: Path) -> None:
    """A rewrite begins with the open reads, each behind its item, and then has the items of the queue, with their old
    times.
    """
    failing = addx(b"failed", 20) + open_(1) + save_xid(3) + unremove(1)
    rewritten = addx(b"held", 10) + open_(7) + failing + addx(b"c", 30)
    held, failed, _, _ = only(tmp_path, rewritten + confirm(7) + addx(b"d", 90))
    assert bracket(held, "taken") == (10, 90)
    assert bracket(held, "removed") == (30, 90)
    assert (failed["errors"], failed["taken_before"]) == (3, at(90))


# Expired and discarded items.


@pytest.mark.parametrize(
    ("expiry_ms", "expected"), [(0, "no"), (15, "yes"), (20, "maybe"), (25, "maybe"), (30, "no"), (31, "no")]
)
def test_bounds_tell_whether_a_removed_item_had_expired(
    tmp_path: Path, expiry_ms: int, expected: str
) -> None:
    first, *_ = only(tmp_path, addx(b"a", 10, expiry_ms) + addx(b"b", 20) + REMOVE + addx(b"c", 30))
    assert first["expired"] == expected


def test_confirmed_and_remaining_items_have_not_expired(tmp_path: Path) -> None:
    rows = only(tmp_path, addx(b"a", 10, 1) + addx(b"b", 20, 1) + open_(1) + confirm(1))
    assert [row["expired"] for row in rows] == [None, None]


FULL = addx(b"a", 1) + addx(b"b", 2) + REMOVE + addx(b"c", 3) + REMOVE + open_(1) + addx(b"d", 4)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [(2, ["maybe", "no", None, None]), ({"work": 2}, ["maybe", "no", None, None]), ({"other": 2}, [None] * 4)],
)
def test_removal_from_full_kestrel_queue_may_be_discard(
    tmp_path: Path, limits: Any, expected: list[str | None]
) -> None:
    (tmp_path / "work").write_bytes(FULL)
    rows = sorted(histories_in(tmp_path, limits=limits), key=lambda row: row["offset"])
    assert [row["discarded"] for row in rows] == expected


def test_taken_item_is_not_reported_as_maybe_discarded(tmp_path: Path) -> None:
    config = 'queuePath = "queues"\n[[queues]]\nname = "work"\nmaxItems = 2\ndiscardOldWhenFull = true\n'
    with Processes(tmp_path) as processes:
        server = processes.serve(config)
        with BlockingClient(f"127.0.0.1:{server.port}") as client:
            for data in (b"a", b"b", b"c"):
                client.put("work", data)
            assert (client.get("work"), client.get("work")) == (b"b", b"c")
            client.put("work", b"d")
        rows = histories_in(tmp_path / "queues", limits=2)
    told = {row["data"]: row["discarded"] for row in rows}
    assert told == {b"a": "maybe", b"b": "no", b"c": "no", b"d": None}


# Several queues.


def test_histories_without_data_differ_only_in_the_data(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(addx(b"a", 10) + open_(1) + addx(b"bc", 20))
    rows = histories_in(tmp_path)
    assert [row["data"] for row in rows] == [b"a", b"bc"]
    assert histories_in(tmp_path, payload="false") == [{**row, "data": None} for row in rows]
