"""The folder of a report: other files are never lost, and an unfinished report is recognised."""

from __future__ import annotations

import json
from pathlib import Path
from stat import S_IMODE

import pytest

from kestrel.scroll.records import READER_MAGIC
from kestrel.spark.report.report_folder import PAGE, SUMMARY, TABLES, ReportFolder
from kestrel.tools.tool_runner import ToolFailed
from tests.journal.handwritten import REMOVE


def test_report_replaces_an_older_one(tmp_path: Path) -> None:
    folder = ReportFolder(str(tmp_path / "new" / "report"))
    for number in range(2):
        folder.check([], is_forced=False)
        folder.begin()
        folder.finish(f"page {number}", {"kestrel_report": 1, "number": number})
    assert folder.page.read_text() == "page 1"
    assert json.loads((tmp_path / "new/report/summary.json").read_text())["number"] == 1
    assert sorted(path.name for path in folder.page.parent.iterdir()) == ["index.html", "summary.json"]


def test_interrupted_report_has_no_page_and_can_be_made_again(tmp_path: Path) -> None:
    folder = ReportFolder(str(tmp_path))
    folder.begin()
    folder.finish("page", {"kestrel_report": 1, "state": "finished"})
    folder.begin()
    assert not folder.page.exists()
    assert json.loads((tmp_path / "summary.json").read_text())["state"] == "unfinished"
    folder.check([], is_forced=False)


@pytest.mark.parametrize("summary", [None, "[]", "{}", "no json", "\xff"])
def test_folder_of_something_else_needs_force(tmp_path: Path, summary: str | None) -> None:
    (tmp_path / "diary.txt").write_text("mine")
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary, "latin-1")
    folder = ReportFolder(str(tmp_path))
    with pytest.raises(ToolFailed, match=r"not empty and not a report: name another folder, or .* --force"):
        folder.check([], is_forced=False)
    folder.check([], is_forced=True)
    folder.begin()
    assert (tmp_path / "diary.txt").read_text() == "mine"


def test_empty_folder_is_used(tmp_path: Path) -> None:
    ReportFolder(str(tmp_path)).check([], is_forced=False)


@pytest.mark.parametrize("out", ["spool", "spool/report", ".", "link"])
def test_force_writes_no_report_among_queues(tmp_path: Path, out: str) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "link").symlink_to("spool")
    with pytest.raises(ToolFailed, match=r"overlaps the queue folder .*spool: name another folder with --out"):
        ReportFolder(str(tmp_path / out)).check([str(tmp_path / "spool")], is_forced=True)


def test_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolFailed, match="is not a folder: name another one with --out"):
        ReportFolder(str(tmp_path / "file")).check([], is_forced=True)


@pytest.mark.parametrize("table", TABLES)
def test_force_does_not_overwrite_a_file_named_like_a_table(
    tmp_path: Path, table: str
) -> None:
    (tmp_path / table).mkdir()
    (tmp_path / table / "precious").write_bytes(b"")
    with pytest.raises(ToolFailed, match=f"contains {table}, which .*: name another folder with --out"):
        ReportFolder(str(tmp_path)).check([], is_forced=True)


@pytest.mark.parametrize("form", ["a link", "a file"])
def test_table_does_not_replace_a_link_or_file(tmp_path: Path, form: str) -> None:
    folder = ReportFolder(str(tmp_path / "report"))
    folder.begin()
    table = tmp_path / "report" / "depth"
    table.symlink_to(tmp_path) if form == "a link" else table.write_text("mine")
    with pytest.raises(ToolFailed, match="contains depth, which is not a table of a report"):
        folder.check([], is_forced=True)


@pytest.mark.parametrize("is_report", [True, False])
@pytest.mark.parametrize("name", [".kestrel/lock", "work", "work.1700000000000", "work.read.client"])
def test_force_writes_no_report_among_queues_that_are_not_read(
    tmp_path: Path, name: str, is_report: bool
) -> None:
    folder = ReportFolder(str(tmp_path))
    if is_report:
        folder.begin()
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(READER_MAGIC.ljust(4, b"\0") if ".read." in name else REMOVE)
    with pytest.raises(ToolFailed, match="has queues in it: name another folder with --out"):
        folder.check([], is_forced=True)


def test_file_with_queue_name_only_is_no_queue(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    ReportFolder(str(tmp_path)).check([], is_forced=True)


def test_table_of_an_earlier_report_is_replaced_but_nothing_else(tmp_path: Path) -> None:
    folder = ReportFolder(str(tmp_path))
    folder.begin()
    table = tmp_path / "queues"
    table.mkdir()
    for name in ("part-00000-a1.c000.snappy.parquet", ".part-00000-a1.c000.snappy.parquet.crc", "_SUCCESS"):
        (table / name).write_bytes(b"")
    folder.check([], is_forced=False)
    (table / "part-00000").write_bytes(REMOVE)
    with pytest.raises(ToolFailed, match="contains queues, which is not a table of a report"):
        folder.check([], is_forced=True)


@pytest.mark.parametrize("name", [PAGE, SUMMARY, f".{PAGE}", f".{SUMMARY}"])
def test_targets_of_links_in_the_folder_are_not_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "diary.txt").write_text("mine")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / name).symlink_to(tmp_path / "diary.txt")
    folder = ReportFolder(str(tmp_path / "report"))
    folder.begin()
    folder.finish("page", {})
    assert (tmp_path / "diary.txt").read_text() == "mine"
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [PAGE, SUMMARY]
    assert folder.page.read_text() == "page"


def test_page_and_summary_can_be_read_only_by_their_owner(tmp_path: Path) -> None:
    folder = ReportFolder(str(tmp_path / "report"))
    folder.begin()
    folder.finish("page", {})
    assert [S_IMODE(path.stat().st_mode) for path in (tmp_path / "report").iterdir()] == [0o600, 0o600]
