"""The table has exactly the records of the files, however they are split and whatever is requested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.disk.reader import PART_BYTES
from kestrel.spark.columns import RECORDS
from kestrel.spark.table import slices
from kestrel.spark.table.planned_file import PlannedFile
from kestrel.spark.table.slices import FileSlice, plan_tasks
from tests.journal import handwritten as journal
from tests.scroll import handwritten as scroll
from tests.spark.tables import (
    NOTHING,
    Row,
    journal_rows,
    planned_files,
    read_slices,
    records,
    scroll_rows,
    table,
)

JOURNALS = sorted((Path(__file__).parents[2] / "journal" / "golden").glob("*/journal"))
SCROLLS = sorted(path for path in (Path(__file__).parents[2] / "scroll" / "golden").glob("*/journal*") if path.is_dir())


def expected_of(path: Path) -> list[Row]:
    contents = path.read_bytes()
    if ".read." in path.name:
        return scroll_rows(contents, is_reader=True)
    is_writer = contents.startswith(scroll.WRITER) or path.parents[2].name == "scroll"
    return scroll_rows(contents, is_reader=False) if is_writer else journal_rows(contents)


@pytest.mark.parametrize("folder", [*JOURNALS, *SCROLLS], ids=lambda path: f"{path.parent.name}/{path.name}")
@pytest.mark.parametrize("payload", ["true", "false"])
def test_recorded_files_have_all_their_records(folder: Path, payload: str) -> None:
    files: dict[str, list[Row]] = {}
    for row in table(folder, payload=payload):
        assert (row["server"], row["folder"]) == (str(folder), str(folder))
        files.setdefault(row["file"], []).append({name: row.get(name) for name in NOTHING})
    there = [file.owner.file for file in planned_files(folder)]
    assert there and set(files) <= set(there)
    for name in there:
        expected = expected_of(folder / name)
        if payload == "false":
            expected = [{**row, "data": None} for row in expected]
        assert files.get(name, []) == expected


def test_recorded_files_have_rows_of_every_kind() -> None:
    rows = [row for folder in (*JOURNALS, *SCROLLS) for row in table(folder, payload="false")]
    assert {"ADDX", "REMOVE", "ADD", "ADD_XID", "CONTINUE", "PUT", "READ_HEAD", "READ_DONE"} <= {
        row["op"] for row in rows
    }
    assert {"current", "rotated", "pack", "writer", "reader"} == {row["kind"] for row in rows}


# Random files.

TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
XIDS = st.integers(-(1 << 31), (1 << 31) - 1)
DATA = st.binary(max_size=9)
OF_JOURNALS = st.one_of(
    st.builds(journal.add, DATA, XIDS),
    st.builds(journal.addx, DATA, TIMES, TIMES | st.just(0)),
    st.builds(journal.add_xid, XIDS, DATA, TIMES, TIMES),
    st.builds(journal.continue_, XIDS, DATA, st.integers(0, 1 << 45), TIMES),
    st.builds(journal.state_dump, XIDS, st.builds(journal.add_xid, XIDS, DATA)),
    st.builds(journal.save_xid, XIDS),
    st.builds(journal.unremove, XIDS),
    st.builds(journal.confirm, XIDS),
    st.builds(journal.open_, XIDS),
    st.sampled_from([journal.REMOVE, journal.REMOVE_TENTATIVE]),
)
JOURNAL_FILES = st.lists(OF_JOURNALS, max_size=12).map(b"".join) | st.lists(
    OF_JOURNALS | st.binary(max_size=12), max_size=8
).map(b"".join)

IDS = st.integers(-3, 6) | st.sampled_from([(1 << 62) - 1, 1 << 62, -(1 << 63)])
PUTS = st.builds(scroll.put, st.integers(1, 30), DATA, TIMES, TIMES | st.just(0), st.integers(-1, 3))
OF_SCROLLS = st.one_of(
    PUTS,
    st.builds(scroll.put, IDS, DATA),
    st.builds(scroll.read_head, IDS),
    st.lists(IDS, max_size=3).map(lambda ids: scroll.read_done(*ids)),
    st.lists(st.tuples(IDS, IDS), max_size=3).map(lambda ranges: scroll.done_ranges(*ranges)),
    st.sampled_from([scroll.errors(_7=1, _8=-1), scroll.errors(), scroll.DELETED]),
    st.sampled_from([scroll.targets(0), scroll.targets(1, b"x", b":own"), scroll.targets(2, b"x")]),
    st.builds(scroll.held, IDS, st.sampled_from([b"", b"spark"])),
    st.builds(scroll.with_data, st.integers(9, 15), DATA),
    st.builds(lambda data: b"\x87" + scroll.put(9, data)[1:25] + b"????" + data, DATA),
)
SCROLL_FILES = st.lists(PUTS | st.just(scroll.targets(1, b"x")), max_size=12).map(b"".join) | st.lists(
    OF_SCROLLS | st.binary(max_size=12), max_size=8
).map(b"".join)


@contextmanager
def planned(name: str, contents: bytes) -> Iterator[PlannedFile]:
    """Return the plan of a file of that name."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(contents)
        [file] = planned_files(path)
        yield file


def read_in_slices(file: PlannedFile, begins: list[int], names: list[str] | None = None) -> list[Row]:
    schema = RECORDS if names is None else StructType([RECORDS[name] for name in names])
    stops = [*begins[1:], file.size]
    parts = [FileSlice(file, start, stop) for start, stop in zip(begins, stops, strict=True)]
    return read_slices(parts, schema)


def some_of(begins: list[int], dice: st.DataObject) -> list[int]:
    """Return the places where slices may begin: 0, and the beginnings of records."""
    chosen = dice.draw(st.lists(st.sampled_from(begins), unique=True)) if begins else []
    return sorted({0, *chosen})


def check_rows(file: PlannedFile, begins: list[int], expected: list[Row], dice: st.DataObject) -> None:
    """Compare all columns, and some of them in any order."""
    assert records(read_in_slices(file, begins)) == expected
    names = dice.draw(st.lists(st.sampled_from(RECORDS.names), unique=True, min_size=1))
    asked = read_in_slices(file, begins, names)
    assert [{name: row[name] for name in names if name in NOTHING} for row in asked] == [
        {name: row[name] for name in names if name in NOTHING} for row in expected
    ]
    assert all(list(row) == names for row in asked)


@given(JOURNAL_FILES, st.data())
def test_journal_records_are_independent_of_slices(
    contents: bytes, dice: st.DataObject
) -> None:
    expected = journal_rows(contents)
    if not contents or contents[0] > 9 or contents[:4] in (scroll.WRITER, scroll.READER):
        return
    with planned("work", contents) as file:
        begins = some_of([row["offset"] for row in expected], dice)
        check_rows(file, begins, expected, dice)


@given(SCROLL_FILES, st.booleans(), st.data())
def test_scroll_records_are_independent_of_slices(
    contents: bytes, is_reader: bool, dice: st.DataObject
) -> None:
    contents = (scroll.READER if is_reader else scroll.WRITER) + contents
    expected = scroll_rows(contents, is_reader=is_reader)
    with planned("work.read.x" if is_reader else "work.1", contents) as file:
        items = [row["offset"] for row in expected if row["op"] == "PUT"]  # planning has checked them
        begins = [0] if is_reader else some_of(items, dice)
        check_rows(file, begins, expected, dice)


# Plans of large files.


def large_journal() -> tuple[bytes, list[Row]]:
    """Return some parts of a journal file, with records of many sizes and one larger than a part, and its rows."""
    contents, rows = [], []
    offset = 0
    for n, size in enumerate(SIZES):
        for record in (journal.addx(bytes([65 + n % 26]) * size, n), journal.open_(n)):
            [row] = journal_rows(record)  # the reference reader is slow for long files
            rows.append({**row, "offset": offset})
            contents.append(record)
            offset += len(record)
    return b"".join(contents), rows


def large_scroll() -> tuple[bytes, list[Row]]:
    """Return some parts of a writer file, and its rows."""
    contents = scroll.WRITER + b"".join(
        (scroll.targets(0, b"x") if n % 5 == 0 else b"") + scroll.put(n + 1, bytes([65 + n % 26]) * size, n, n % 3)
        for n, size in enumerate(SIZES)
    )
    return contents, scroll_rows(contents, is_reader=False)


SIZES = [3, 70_000, 40, 5000, *(100 for _ in range(90))] * 30 + [PART_BYTES + 5]
LARGE = {"work": large_journal(), "work.1": large_scroll()}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("most", [1, PART_BYTES // 3, PART_BYTES, 1 << 40])
@pytest.mark.parametrize("payload", [True, False])
def test_large_file_in_parts_has_all_records(
    tmp_path: Path, name: str, most: int, payload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SMALLEST_BYTES", 1)
    contents, expected = LARGE[name]
    (tmp_path / name).write_bytes(contents)
    tasks = plan_tasks(Disk(), planned_files(tmp_path / name), most, 1)
    parts = [each for task in tasks for each in task.slices]
    assert len(parts) > 1
    assert (parts[0].start, parts[-1].stop) == (0, len(contents))
    assert [each.start for each in parts[1:]] == [each.stop for each in parts[:-1]]
    schema = StructType([field for field in RECORDS if payload or field.name != "data"])
    rows = [row for task in tasks for row in read_slices(task.slices, schema)]
    assert [{name: row.get(name) for name in NOTHING} for row in rows] == [
        {**row, "data": row["data"] if payload else None} for row in expected
    ]
