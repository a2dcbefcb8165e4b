"""The index of an archive stream: crashes, damage, and wrong files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.arrivals import Arrival, Arrivals
from tests.spark.stream.tailing import Stream, came

A = Arrival("one", b"/srv/archive", b"archive~work.1", 0, 100, b"sample")
B = Arrival("two", "/srv/\u00e9".encode(), b"archive~\xff.2", 50, 60, None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.index"


def opened(path: Path) -> Arrivals:
    index = Arrivals(str(path))
    index.catch_up()
    return index


def appended(path: Path, *arrivals: Arrival) -> Arrivals:
    index = Arrivals(str(path))
    with index.locked() as append:
        append(arrivals)
    return index


def test_appended_entries_are_read_in_order_by_every_process(path: Path) -> None:
    first = appended(path, A, B)
    again = opened(path)
    assert first.files == again.files == [A, B]
    assert again.id == first.id != ""
    assert again.known(b"/srv/archive", b"archive~work.1") == A
    assert again.known(b"/srv/archive", b"archive~work.2") is None


def test_open_index_sees_the_entries_of_others(path: Path) -> None:
    index = appended(path, A)
    appended(path, B)
    index.catch_up()
    assert index.files == [A, B]


def test_index_can_be_read_only_by_its_owner(path: Path) -> None:
    appended(path, A)
    assert path.stat().st_mode & 0o777 == 0o600


def test_crash_at_any_byte_keeps_the_recorded_entries(path: Path) -> None:
    appended(path, A)
    told = path.read_bytes()
    appended(path, B)
    whole = path.read_bytes()
    for size in range(len(told), len(whole)):
        path.write_bytes(whole[:size])
        assert opened(path).files == [A]
        assert appended(path, B).files == opened(path).files == [A, B]
    assert path.read_bytes() == whole


def test_incomplete_new_index_is_made_again(path: Path) -> None:
    head = appended(path).id
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert opened(path).id not in ("", head)


@pytest.mark.parametrize(
    "contents", [b"notes\n", b"precious", b"[1, 2]\n", b"\0" * 2000, b'["kestrel arrivals 9", "x"]\n']
)
def test_file_of_something_else_is_refused_and_unchanged(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)
    with pytest.raises(SourceFailed, match=r"audit.index is not an archive stream's index: name another file"):
        opened(path)
    assert path.read_bytes() == contents


@pytest.mark.parametrize(
    "line", [b"x", b"[]", b'["one", "/a", "b", 2, 1, null]', b'["one", "/a", "b", 0, 1, "zz"]', b"\0"]
)
def test_damaged_line_is_named(path: Path, line: bytes) -> None:
    appended(path, A)
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(SourceFailed, match=r"line 3 of the index .* is damaged: restore a copy"):
        opened(path)


def test_index_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    stream = Stream(tmp_path, index=tmp_path / "missing" / "audit.index")
    with pytest.raises(SourceFailed, match=r"the index cannot be read and written: .*audit.index: No such file"):
        stream.poll()


# Index and checkpoint.


@pytest.fixture
def stream(archive: Path) -> Stream:
    """Return a stream that has read one file."""
    stream = Stream(archive)
    came(archive, "work.1", b"1")
    stream.poll()
    return stream


def test_index_of_another_checkpoint_is_refused(stream: Stream, path: Path) -> None:
    os.unlink(path)
    for _ in range(2):  # the second call gets the index of the first
        stream.restart()
        with pytest.raises(SourceFailed, match=r"the checkpoint is not of the index .*: restore the index that was"):
            stream.poll()
        with pytest.raises(SourceFailed, match=r"the checkpoint is not of the index"):
            stream.batch()


def test_index_older_than_the_checkpoint_is_refused(stream: Stream, archive: Path, path: Path) -> None:
    older = path.read_bytes()
    came(archive, "work.2", b"2")
    stream.poll()
    path.write_bytes(older)
    stream.restart()
    with pytest.raises(SourceFailed, match=r"the checkpoint is not of the index .* or of a later state of it"):
        stream.batch()


def test_index_replaced_while_the_stream_runs_is_refused(stream: Stream, path: Path) -> None:
    os.unlink(path)
    with pytest.raises(SourceFailed, match=r"the index .* was replaced while the stream ran"):
        stream.poll()
