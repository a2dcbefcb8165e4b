"""Histories of a scroll's items for each of its queues, compared with an independent reader."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

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
)
from tests.scroll.independent import queues_in
from tests.scroll.test_independent import FOLDERS, GOLDEN
from tests.spark.tables import histories_in
from tests.tools.tool_processes import fill

IDS = st.integers(1, 9)
NAMES = st.sampled_from([b":own", b"a", b"b"])
PUTS = st.tuples(st.none() | st.builds(targets, st.integers(0, 1), NAMES), st.integers(0, 2))
READER_RECORDS = st.one_of(
    st.builds(read_head, st.integers(0, 9)),
    st.builds(read_done, IDS, IDS),
    st.builds(lambda first, more: done_ranges((first, first + more)), IDS, st.integers(0, 3)),
    st.builds(lambda item_id, count: errors(**{f"_{item_id}": count}), IDS, st.integers(0, 3)),
    st.just(DELETED),
)
READERS = st.dictionaries(st.sampled_from([":own", "a", "b"]), st.lists(READER_RECORDS, min_size=1, max_size=4))


def left_in(folder: Path | str, **options: str) -> dict[bytes, list[tuple[int, bytes, int]]]:
    """Return the remaining items of the histories, in order. A queue without items is omitted."""
    left: dict[bytes, list[dict[str, Any]]] = {}
    for row in histories_in(folder, **options):
        if row["state"] == "queued":
            left.setdefault(row["queue"].encode("latin-1"), []).append(row)
        else:
            assert (row["state"], row["position"]) == ("done", None)
    for rows in left.values():
        rows.sort(key=lambda row: row["position"])
        assert [row["position"] for row in rows] == list(range(len(rows)))
    return {queue: [(row["item_id"], row["data"], row["errors"]) for row in rows] for queue, rows in left.items()}


def found_in(folder: Path | str) -> dict[bytes, list[tuple[int, bytes, int]]]:
    """Return the items that the independent reader finds."""
    found = {name: queue.items for name, queue in queues_in(Path(folder)).items() if queue.items}
    return {name: [(each.id, each.data, each.errors) for each in items] for name, items in found.items()}


@given(st.lists(st.lists(PUTS, max_size=4), min_size=1, max_size=3), READERS)
def test_remaining_items_are_those_of_an_independent_reader(
    files: list[list[tuple[bytes | None, int]]], readers: dict[str, list[bytes]]
) -> None:
    with TemporaryDirectory() as folder:
        item_id = 0
        for number, puts in enumerate(files, 1):
            contents = WRITER
            for who, count in puts:
                item_id += 1
                contents += (who or b"") + put(item_id, b"%d" % item_id, errors=count)
            Path(folder, f"work.{number}").write_bytes(contents)
        for name, records in readers.items():
            Path(folder, f"work.read.{name}").write_bytes(sealed(b"".join(records)))
        assert left_in(folder) == found_in(folder)


REFUSED = "L22_head_beyond_tail"
"""A start refuses the reader file of this recording: it has no checksum, and its head is beyond the last item."""


@pytest.mark.parametrize(("case", "folder"), [each for each in FOLDERS if each[0] != REFUSED])
def test_remaining_scroll_items_match_the_reader(case: str, folder: str) -> None:
    assert left_in(GOLDEN / case / folder) == found_in(GOLDEN / case / folder)


def test_histories_use_a_reader_file_that_a_start_refuses() -> None:
    folder = GOLDEN / REFUSED / "journal"
    assert (left_in(folder), len(found_in(folder)[b"work"])) == ({}, 3)


def test_item_whose_id_does_not_rise_is_ignored(tmp_path: Path) -> None:
    second = WRITER + put(3, b"ignored") + put(6, b"c")
    fill(tmp_path, {"work.1": WRITER + put(1, b"a") + put(5, b"b"), "work.2": second})
    assert left_in(tmp_path) == {b"work": [(1, b"a", 0), (5, b"b", 0), (6, b"c", 0)]}


def test_trailing_targets_do_not_apply_to_next_file(tmp_path: Path) -> None:
    fill(tmp_path, {"work.1": WRITER + put(1, b"a") + targets(0, b"x"), "work.2": WRITER + put(2, b"b")})
    fill(tmp_path, {"work.read.:own": READER + read_head(0), "work.read.x": READER + read_head(0)})
    assert left_in(tmp_path) == found_in(tmp_path)
    assert {queue: len(left) for queue, left in left_in(tmp_path).items()} == {b"work": 2, b"work+x": 2}


def test_number_of_returns_is_never_negative(tmp_path: Path) -> None:
    fill(tmp_path, {"work.1": WRITER + put(1, b"a", errors=-3)})
    assert [row["errors"] for row in histories_in(tmp_path)] == [0]


@pytest.mark.parametrize("pattern", ["work+x", "work+nosuch", "*x", "work"])
def test_histories_of_some_queues_are_a_part_of_all(tmp_path: Path, pattern: str) -> None:
    fill(tmp_path, {"work.1": WRITER + put(1, b"a") + put(2, b"b"), "other.1": WRITER + put(1, b"c")})
    fill(tmp_path, {"work.read.x": READER + read_head(1), "work.read.y": READER + read_head(2)})
    everything = histories_in(tmp_path)
    assert {row["queue"] for row in everything} == {"work+x", "work+y", "other"}
    chosen = [row for row in everything if fnmatchcase(row["queue"], pattern)]
    assert histories_in(tmp_path, queue=pattern) == chosen


def test_archive_alone_has_the_items_that_all_readers_have_done(tmp_path: Path) -> None:
    (tmp_path / "archive~work.1").write_bytes(WRITER + put(1, b"a") + put(2, b"b"))
    assert left_in(tmp_path) == {}
    assert [row["state"] for row in histories_in(tmp_path)] == ["done", "done"]


def test_archive_and_folder_of_one_server_belong_together(tmp_path: Path) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    live.mkdir()
    archive.mkdir()
    (archive / "archive~work.1").write_bytes(WRITER + put(1, b"a"))
    fill(live, {"work.2": WRITER + put(2, b"b") + put(3, b"c"), "work.read.:own": READER + read_head(2)})
    rows = histories_in(live, archive, server="mill")
    assert [(row["item_id"], row["state"]) for row in rows] == [(1, "done"), (2, "done"), (3, "queued")]
