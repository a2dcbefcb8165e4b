"""The files of folders, their queues, and their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.scroll.name_encoding import EscapedNames
from kestrel.spark.options import SourceFailed
from kestrel.spark.table.planned_file import FileKind, PlannedFile
from tests.journal.handwritten import addx
from tests.scroll.handwritten import READER, WRITER, put, read_head
from tests.spark.disks import LivelyDisk
from tests.spark.tables import planned_files as files
from tests.tools.tool_processes import fill

A = addx(b"a")
LONG = b"long" * 60


def names(found: list[PlannedFile]) -> list[tuple[str, int | None]]:
    return [(file.owner.file, file.order) for file in found]


def test_rotated_files_are_in_order_before_the_current_one(tmp_path: Path) -> None:
    fill(tmp_path, {"work": A, "work.1000": A, "work.900": A, "other": A})
    of_work = [file for file in files(tmp_path) if file.owner.queue == "work"]
    assert names(of_work) == [("work.900", 0), ("work.1000", 1), ("work", 2)]
    assert [file.kind for file in of_work] == [FileKind.ROTATED, FileKind.ROTATED, FileKind.CURRENT]
    assert {file.owner.journal for file in of_work} == {"work"}


def test_pack_replaces_the_files_up_to_its_number(tmp_path: Path) -> None:
    fill(tmp_path, {"work": A, "work.1": A, "work.5": A, "work.5.pack": A, "work.2.pack": A, "work.7": A, "work~~9": A})
    assert names(files(tmp_path)) == [("work.5.pack", 0), ("work.7", 1), ("work", 2)]


def test_other_files_and_folders_are_ignored(tmp_path: Path) -> None:
    fill(tmp_path, {"work": A, "notes.txt": b"notes"})
    (tmp_path / ".kestrel").mkdir()
    (tmp_path / ".hidden").write_bytes(A)
    assert names(files(tmp_path)) == [("work", 0)]


def test_name_is_spelled_as_in_its_file(tmp_path: Path) -> None:
    fill(tmp_path, {"café": A, "<b>": A})
    assert {file.owner.queue for file in files(tmp_path)} == {"café", "<b>"}


def test_only_writer_files_are_ordered_by_first_id(tmp_path: Path) -> None:
    fill(tmp_path, {"work.1": WRITER + put(5, b"b"), "work.2": WRITER + put(1, b"a"), "work.3": WRITER})
    fill(tmp_path, {"work.read.": READER, "work.read.x": READER + read_head(1)})
    found = files(tmp_path)
    assert names(found) == [("work.read.", None), ("work.read.x", None), ("work.2", 0), ("work.1", 1), ("work.3", 2)]
    assert [file.owner.queue for file in found] == ["work", "work+x", "work", "work", "work"]
    assert {file.owner.journal for file in found} == {"work"}
    assert [file.reader for file in found[:2]] == [b":own", b"x"]


def test_first_item_behind_many_other_records_is_found(tmp_path: Path) -> None:
    fill(tmp_path, {"work.1": WRITER + read_head(1) * 2000 + put(0, b"") + put(3, b"c")})
    fill(tmp_path, {"work.2": WRITER + put(2, b"b"), "work.read.": READER})
    assert [file.owner.file for file in files(tmp_path)] == ["work.read.", "work.2", "work.1"]


def test_archived_files_come_before_the_live_files_of_their_server(tmp_path: Path) -> None:
    spool, archive = tmp_path / "s1" / "spool", tmp_path / "s1" / "archive"
    fill(spool, {"work.20": WRITER + put(9, b"c"), "work.read.": READER})
    fill(archive, {"archive~work.10": WRITER + put(1, b"a"), "archive~work.11": WRITER + put(4, b"b")})
    for found in (files(spool, archive, server="s"), files(archive, spool, server="s"), files(tmp_path / "*" / "*")):
        assert names(found) == [
            ("work.read.", None),
            ("archive~work.10", 0),
            ("archive~work.11", 1),
            ("work.20", 2),
        ]
        assert [file.kind for file in found[1:]] == [FileKind.ARCHIVED, FileKind.ARCHIVED, FileKind.WRITER]
        assert len({(file.owner.server, file.owner.journal) for file in found}) == 1


@pytest.mark.parametrize("at", [b"/spool", b"/archive"])
@pytest.mark.parametrize("is_copied", [False, True])
def test_file_archived_meanwhile_is_read_once(tmp_path: Path, at: bytes, is_copied: bool) -> None:
    """While it is moved to another file system, it is in both places."""
    writers = {"work.1": WRITER + put(1, b"a"), "work.2": WRITER + put(2, b"b")}
    spool = fill(tmp_path / "spool", {**writers, "work.read.": READER})
    archive = fill(tmp_path / "archive", {})

    def move() -> None:
        (archive / "archive~work.1").write_bytes((spool / "work.1").read_bytes())
        if not is_copied:
            (spool / "work.1").unlink()

    for paths in ((archive, spool), (spool, archive)):
        disk = LivelyDisk(move, folder=at)
        found = files(*paths, server="s", disk=disk)
        stems = [file.owner.file.removeprefix("archive~") for file in found if not file.is_reader]
        assert stems == ["work.1", "work.2"]
        (archive / "archive~work.1").unlink()
        (spool / "work.1").write_bytes(WRITER + put(1, b"a"))


def test_long_name_is_known_from_live_files_and_archive(
    tmp_path: Path,
) -> None:
    spool, archive = fill(tmp_path / "spool", {}), fill(tmp_path / "archive", {})
    known = EscapedNames(Disk(), str(spool).encode())
    stem = known.stem_of(LONG)
    known.remember(stem, LONG)
    fill(spool, {f"{stem.decode()}.2": WRITER + put(2, b"b"), f"{stem.decode()}.read.": READER})
    (archive / f"archive~{stem.decode()}.1").write_bytes(WRITER + put(1, b"a"))
    found = files(spool, archive, server="s")
    assert [file.kind.value for file in found] == ["reader", "archived", "writer"]
    assert {(file.owner.journal, file.owner.queue) for file in found} == {(LONG.decode(), LONG.decode())}


def test_unknown_name_is_that_of_its_files(tmp_path: Path) -> None:
    stem = EscapedNames(Disk(), b"").stem_of(LONG).decode()
    fill(tmp_path, {f"{stem}.1": WRITER + put(1, b"a"), f"{stem}.read.x": READER})
    found = files(tmp_path)
    assert [(file.owner.journal, file.owner.queue) for file in found] == [(stem, f"{stem}.read.x"), (stem, stem)]


@pytest.mark.parametrize("contents", [{"work": A}, {"work.1": WRITER + put(1, b"a"), "work.read.": READER}])
def test_same_queue_in_two_folders_of_a_server_is_refused(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    one, two = fill(tmp_path / "one", contents), fill(tmp_path / "two", contents)
    with pytest.raises(SourceFailed) as raised:
        files(one, two, server="s")
    assert str(raised.value) == (
        f"queue work of server s is in {one} and in {two}: read them separately, each "
        'with its own option("server", ...)'
    )
    assert len(files(one, two)) == 2 * len(contents)


# Single files.


def test_first_bytes_determine_type_of_single_file(tmp_path: Path) -> None:
    damaged = tmp_path / ".kestrel" / "damaged"
    fill(damaged, {"work.5.tail": A})
    fill(tmp_path, {"archive~work.123": WRITER + put(1, b"a"), "work": A, "empty": b"", "work.read.x": READER})
    [tail] = files(damaged / "work.5.tail")
    assert (tail.kind, tail.owner.format, tail.owner.queue) == (FileKind.ALONE, "journal", "work.5.tail")
    [archived] = files(tmp_path / "archive~work.123")
    assert (archived.owner.format, archived.owner.journal, archived.is_reader) == ("scroll", "work", False)
    [reader] = files(tmp_path / "work.read.x")
    assert (reader.owner.queue, reader.reader, reader.order) == ("work+x", b"x", None)
    [empty] = files(tmp_path / "empty")
    assert (empty.owner.queue, empty.size) == ("empty", 0)


def test_single_files_of_a_journal_are_in_its_order(tmp_path: Path) -> None:
    fill(tmp_path, {"work": A, "work.1000": A, "work.900": A})
    assert names(files(tmp_path / "work*")) == [("work.900", 0), ("work.1000", 1), ("work", 2)]


def test_file_named_beside_its_folder_is_read_once(tmp_path: Path) -> None:
    fill(tmp_path, {"work": A, "work.900": A})
    assert names(files(tmp_path / "work", tmp_path)) == [("work.900", 0), ("work", 1)]


def test_file_of_neither_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes")
    with pytest.raises(SourceFailed, match=r"/notes is neither a journal file of Kestrel nor a file of a scroll"):
        files(tmp_path / "notes")


# Chosen queues.


def queues(found: list[PlannedFile]) -> set[str]:
    return {file.owner.queue for file in found}


def test_pattern_chooses_queues(tmp_path: Path) -> None:
    fill(tmp_path, {"work": A, "work2": A, "Work": A, "other": A})
    assert queues(files(tmp_path, queue="work")) == {"work"}
    assert queues(files(tmp_path, queue="work*")) == {"work", "work2"}
    assert queues(files(tmp_path, queue="[ow]*")) == {"work", "work2", "other"}
    assert files(tmp_path, queue="nothing") == []


@pytest.mark.parametrize("pattern", ["work+x", "work+[x]", "*+x", "w*+x", "work+*"])
def test_child_includes_the_writer_files_that_it_reads(tmp_path: Path, pattern: str) -> None:
    fill(tmp_path, {"work.1": WRITER + put(1, b"a"), "other.1": WRITER + put(1, b"a")})
    for name in ("work.read.x", "work.read.", "other.read."):
        (tmp_path / name).write_bytes(READER)
    found = [file.owner.file for file in files(tmp_path, queue=pattern)]
    assert sorted(found) == ["work.1", "work.read.", "work.read.x"]


def test_child_without_a_reader_includes_its_archived_files(tmp_path: Path) -> None:
    fill(tmp_path, {"archive~work.1": WRITER + put(1, b"a")})
    assert [file.owner.file for file in files(tmp_path, queue="work+x")] == ["archive~work.1"]
