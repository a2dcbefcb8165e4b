"""Paths and patterns, and the servers of their files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kestrel.spark.options import SourceFailed
from kestrel.spark.table.options import JournalLocation, absolute_path, find_locations


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Two servers with a folder each, and a file beside them."""
    for server in ("s1", "s2"):
        (tmp_path / server / "spool").mkdir(parents=True)
        (tmp_path / server / "spool" / "work").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def places(*paths: Path | str, server: str | None = None) -> list[JournalLocation]:
    return find_locations([str(path) for path in paths], server)


def test_folder_is_its_own_server(fleet: Path) -> None:
    spool = fleet / "s1" / "spool"
    assert places(spool) == [JournalLocation(str(spool), os.fsencode(spool))]


def test_option_names_the_server_of_all_paths(fleet: Path) -> None:
    found = places(fleet / "s1" / "spool", fleet / "*" / "spool", server="mine")
    assert {place.server for place in found} == {"mine"}
    assert len(found) == 2


def test_first_wildcard_of_a_pattern_names_the_servers(fleet: Path) -> None:
    assert [place.server for place in places(fleet / "s*" / "sp?ol")] == ["s1", "s2"]
    assert [place.folder for place in places(fleet / "s[2-9]" / "spool")] == [os.fsencode(fleet / "s2" / "spool")]


def test_folder_of_the_files_of_a_pattern_is_named(fleet: Path) -> None:
    spool = fleet / "s1" / "spool"
    assert places(spool / "w*") == [JournalLocation(str(spool), os.fsencode(spool), b"work")]
    assert [(place.server, place.file_name) for place in places(fleet / "s?" / "spool" / "*")] == [
        ("s1", b"work"),
        ("s2", b"work"),
    ]


def test_file_is_one_file_of_its_folder(fleet: Path) -> None:
    spool = fleet / "s1" / "spool"
    assert places(spool / "work") == [JournalLocation(str(spool), os.fsencode(spool), b"work")]


def test_files_matched_by_several_paths_are_there_once(fleet: Path) -> None:
    spool = fleet / "s1" / "spool"
    assert len(places(spool, f"{spool}/", f"{spool}/../spool", f"file:{spool}", fleet / "*" / "spool")) == 2


def test_linked_folder_is_listed_once_under_first_name(fleet: Path) -> None:
    (fleet / "current").symlink_to("s1")
    spool = fleet / "current" / "spool"
    assert [place.server for place in places(fleet / "*" / "spool")] == ["current", "s2"]
    assert places(spool, fleet / "s1" / "spool") == [JournalLocation(str(spool), os.fsencode(spool))]


def test_file_reached_through_links_is_there_once(fleet: Path) -> None:
    (fleet / "current").symlink_to("s1")
    spool = fleet / "current" / "spool"
    assert places(spool / "work", fleet / "s1" / "spool" / "*") == [
        JournalLocation(str(spool), os.fsencode(spool), b"work")
    ]


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}", "FILE:{}"])
def test_uri_of_a_file_is_its_path(fleet: Path, form: str) -> None:
    spool = fleet / "with space" / "spool"
    spool.mkdir(parents=True)
    uri = form.format(str(spool).replace(" ", "%20"))
    assert [place.folder for place in places(uri)] == [os.fsencode(spool)]


def test_uri_may_name_any_bytes(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    assert [place.folder for place in places(f"file://{tmp_path}/caf%e9")] == [folder]


def test_existing_path_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a1").mkdir()
    found = places(tmp_path / "a[1]")
    assert found == [JournalLocation(str(tmp_path / "a[1]"), os.fsencode(tmp_path / "a[1]"))]


def test_relative_path_is_found(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fleet)
    assert [place.server for place in places("*/spool")] == ["s1", "s2"]
    assert [place.folder for place in places("s1/spool")] == [os.fsencode(fleet / "s1" / "spool")]


def test_name_of_the_working_folder_is_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "a[1]*"
    for folder in (here / "s1" / "spool", here / "b[1]", tmp_path / "a1" / "s2" / "spool", tmp_path / "a1" / "only"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    expected = [JournalLocation("s1", os.fsencode(here / "s1" / "spool"))]
    assert places("*/spool") == places("./b*/../*/spool") == places(absolute_path("*/spool")) == expected
    assert [place.folder for place in places("s1", "b[1]")] == [os.fsencode(here / "s1"), os.fsencode(here / "b[1]")]
    assert [place.server for place in places("../a[1]/*/spool")] == ["a1"]
    with pytest.raises(SourceFailed, match="nothing matches only: name a folder"):
        places("only")


def test_existing_and_absolute_paths_are_unchanged(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fleet)
    assert absolute_path("s1/../s2/") == str(fleet / "s2")
    assert absolute_path("/data/*/spool") == "/data/*/spool"


def test_escaped_wildcard_names_no_server(fleet: Path) -> None:
    (fleet / "a*").mkdir()
    (fleet / "s1").rename(fleet / "a*" / "s1")
    assert [place.server for place in places(fleet / "a[*]" / "s?" / "spool")] == ["s1"]


def test_control_characters_are_escaped_in_the_servers_name(tmp_path: Path) -> None:
    (tmp_path / "a\nb").mkdir()
    (tmp_path / "a\nb" / "spool").mkdir()
    assert [place.server for place in places(tmp_path / "*" / "spool")] == ["a\\nb"]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("{}/nowhere", "there is no .*/nowhere: name a folder of journals that every worker can see"),
        ("{}/*/nowhere", "nothing matches .*/nowhere: name a folder"),
        ("hdfs://host/journals", "journals are read from folders that every worker can see, not from hdfs:"),
        ("s3a://bucket/journals", "not from s3a:"),
        ("file://host/journals", "not from file:"),
        ("file:", "not from file:"),
    ],
)
def test_missing_path_is_named(fleet: Path, path: str, sentence: str) -> None:
    with pytest.raises(SourceFailed, match=sentence):
        places(path.format(fleet))


def test_special_file_does_not_match_and_cannot_be_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "lost").symlink_to("nowhere")
    with pytest.raises(SourceFailed, match=r"there is no .*/pipe"):
        places(tmp_path / "pipe")
    with pytest.raises(SourceFailed, match="nothing matches"):
        places(tmp_path / "*")
