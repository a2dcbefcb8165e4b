"""A stream of an archive has each record of each new file exactly once, whatever happens meanwhile."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.spark.columns import RECORDS
from kestrel.spark.options import BadJournal, SourceFailed
from kestrel.spark.table.options import MOST_FILES
from kestrel.testing.faults import FaultyDisk
from tests.journal.handwritten import addx
from tests.scroll.handwritten import WRITER, put, read_head
from tests.scroll.storages import Opener, Scrolls
from tests.spark.stream.tailing import Stream, came, data
from tests.spark.tables import source, table
from tests.tools.tool_processes import fill

SMALL = QueueSettings(default_journal_size_bytes=500)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path)
    yield opener
    opener.stop_all()


class Blind(Disk):
    """A disk on which files can only be listed."""

    def length(self, path: bytes) -> int:
        raise AssertionError(path)

    open_read = length


def handed_on(scrolls: Scrolls, *items: bytes) -> None:
    """Put and take items one by one. Threads move the files later."""
    for item in items:
        scrolls.put_and_commit(scrolls.queue(), item)
        scrolls.now_ms += 1000
    opened = scrolls.queue()
    for _ in items:
        assert scrolls.fill(opened).take(False) is not None
    for _, outcome in scrolls.storage.commit([opened]):
        outcome.addErrback(lambda failure: None)


# Files that a server moves to the archive.


def test_stream_of_archived_files_equals_the_table(start: Opener, archive: Path) -> None:
    stream = Stream(archive)
    scrolls = start(archive=archive, settings=SMALL)
    rows = stream.poll()
    assert rows == []
    for number in range(3):
        handed_on(scrolls, *[b"%d-%d" % (number, each) * 20 for each in range(9)])
        scrolls.threads.run_all()
        rows += stream.poll()
    assert len(list(archive.iterdir())) > 3
    expected = [{**row, "file_order": None} for row in table(archive)]
    assert sorted(rows, key=lambda row: row["item_id"] or 0) == sorted(expected, key=lambda row: row["item_id"] or 0)
    assert {row["kind"] for row in rows} == {"archived"}


def test_new_file_with_a_former_name_is_read(archive: Path) -> None:
    stream = Stream(archive)
    came(archive, "work.1", b"a", b"b")
    assert data(stream.poll()) == [b"a", b"b"]
    came(archive, "work.1", b"another", b"life", b"of it")
    assert data(stream.poll()) == [b"another", b"life", b"of it"]


# Batches.


def test_batch_has_a_limited_number_of_files_lowest_numbers_first(archive: Path) -> None:
    for number in range(5):
        came(archive, f"{'ab'[number % 2]}.{number}", b"%d" % number)
    stream = Stream(archive, maxFiles="2")
    assert [sorted(data(batch)) for batch in stream.drain()] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]


def test_default_limit_is_a_thousand_files(archive: Path) -> None:
    reader = Stream(archive).reader
    assert MOST_FILES == 1000
    assert reader.getDefaultReadLimit() == ReadMaxFiles(1000)


# The beginning of a new stream.


def test_start_at_the_latest_file_happens_once(archive: Path) -> None:
    came(archive, "work.1", b"before")
    stream = Stream(archive, startingOffsets="latest")
    assert stream.poll() == []
    came(archive, "work.2", b"while it is stopped")
    stream.restart()
    assert data(stream.poll()) == [b"while it is stopped"]


def test_batch_of_later_files_is_the_same_after_a_restart(archive: Path) -> None:
    came(archive, "work.1", b"before")
    stream = Stream(archive, startingOffsets="latest")
    start = stream.reader.initialOffset()
    came(archive, "work.2", b"new")
    end = stream.reader.latestOffset(start, ReadAllAvailable())
    came(archive, "work.3", b"newer")
    stream.restart()
    stream.offsets = [stream.reader.initialOffset(), end]
    assert data(stream.batch()) == [b"new"]
    assert data(stream.poll()) == [b"newer"]


def test_stream_from_a_time_omits_files_finished_before(archive: Path) -> None:
    for name, modified_s in (("a.1", 2000), ("b.2", 1000), ("a.3", 3000)):
        os.utime(came(archive, name, name.encode()), (modified_s, modified_s))
    stream = Stream(archive, startingOffsets="1970-01-01T00:33:20")
    assert sorted(data(stream.poll())) == [b"a.1", b"a.3"]
    came(archive, "b.4", b"b.4")
    stream.restart()
    assert data(stream.poll()) == [b"b.4"]


def test_trigger_available_now_reads_everything_there(archive: Path) -> None:
    for number in range(5):
        came(archive, f"work.{number}", b"%d" % number)
    reader = Stream(archive, maxFiles="2").reader
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ReadAllAvailable())["files"] == 5
    assert reader.reportLatestOffset() == {**begin, "files": 5}


def test_offset_size_is_independent_of_file_count(archive: Path) -> None:
    for number in range(500):
        came(archive, f"queue{number}.{number}", b"x")
    stream = Stream(archive)
    assert len(stream.poll()) == 500
    assert list(stream.offsets[-1]) == ["index", "files"]
    assert len(repr(stream.offsets[-1])) < 80


def test_files_that_arrive_during_a_round_are_for_the_next(archive: Path) -> None:
    for number in range(3):
        came(archive, f"work.{number}", b"%d" % number)
    stream = Stream(archive, maxFiles="2")
    stream.reader.prepareForTriggerAvailableNow()
    came(archive, "work.9", b"9")
    Stream(archive).plan()  # another listing finds it
    assert [data(batch) for batch in stream.drain()] == [[b"0", b"1"], [b"2"]]
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    assert [data(batch) for batch in stream.drain()] == [[b"9"]]


def test_check_of_an_unchanged_archive_opens_no_file(archive: Path) -> None:
    for number in range(3):
        came(archive, f"work.{number}", b"x")
    stream = Stream(archive)
    stream.poll()
    stream.reader._disk = Blind()
    assert stream.poll() == []


def test_file_missing_during_check_is_read_on_return(archive: Path) -> None:
    path = came(archive, "work.1", b"a")
    aside = archive.parent / "aside"
    stream = Stream(archive)
    disk = stream.reader._disk = FaultyDisk()
    disk.before("open_read", lambda: path.rename(aside))
    assert stream.poll() == []
    aside.rename(path)
    assert data(stream.poll()) == [b"a"]


# Accepted files.


def test_archives_of_several_servers_are_one_stream(tmp_path: Path) -> None:
    for server in ("a", "b"):
        (tmp_path / server / "archive").mkdir(parents=True)
        came(tmp_path / server / "archive", "work.1", server.encode())
    stream = Stream(f"{tmp_path}/?/archive", index=tmp_path / "audit.index")
    assert {(row["server"], row["data"]) for row in stream.poll()} == {("a", b"a"), ("b", b"b")}
    (tmp_path / "c" / "archive").mkdir(parents=True)
    came(tmp_path / "c" / "archive", "work.1", b"c")
    assert [(row["server"], row["data"]) for row in stream.poll()] == [("c", b"c")]


def test_other_files_are_ignored(archive: Path) -> None:
    for name in ("archive~work.1~~", ".archive~work.1.Xyz", "archive~work.1.gz", "archive~work.read.", "README"):
        (archive / name).write_bytes(WRITER + put(1, b"x"))
    (archive / "archive~work.7").mkdir()
    fill(archive, {"notes": b"Do not clean before May.", "README": b""})
    came(archive, "work.2", b"a")
    assert data(Stream(archive).poll()) == [b"a"]


@pytest.mark.parametrize("contents", [addx(b"a"), WRITER + put(1, b"a")], ids=["journal", "scroll"])
def test_folder_of_live_queues_is_refused(archive: Path, contents: bytes) -> None:
    (archive / "work.1700000000000").write_bytes(contents)
    came(archive, "work.1", b"a")
    with pytest.raises(SourceFailed, match=r"has queues of a server that may be running: a stream reads"):
        Stream(archive).poll()


def test_file_and_missing_folder_are_refused(archive: Path) -> None:
    path = came(archive, "work.1", b"a")
    with pytest.raises(SourceFailed, match=r"archive~work.1 is a file: name the folder of an archive"):
        Stream(path).poll()
    with pytest.raises(SourceFailed, match=r"there is no .*/gone: name a folder"):
        Stream(archive / "gone").poll()


# Removed files.


def test_unread_removed_file_raises_error_with_remedy(archive: Path) -> None:
    path = came(archive, "work.1", b"a")
    came(archive, "work.2", b"b")
    stream = Stream(archive)
    assert stream.plan()
    path.unlink()
    with pytest.raises(SourceFailed, match=r'archive~work.1 was deleted before it was read: option\("ignoreMiss'):
        stream.batch()
    stream.restart(ignoreMissingFiles="true")
    assert data(stream.batch()) == [b"b"]


def test_file_removed_during_a_task_is_an_error(archive: Path) -> None:
    path = came(archive, "work.1", b"a")
    for ignores, outcome in (("false", None), ("true", [])):
        stream = Stream(archive, ignoreMissingFiles=ignores)
        assert stream.plan()
        (task,) = stream.reader.partitions(*stream.offsets)
        aside = path.rename(archive.parent / "aside")
        if outcome is None:
            with pytest.raises(BadJournal, match=r'archive~work.1: vanished: .*; option\("ignoreMissingFiles"'):
                list(stream.reader.read(task))
        else:
            assert list(stream.reader.read(task)) == outcome
        shutil.move(aside, path)


def test_unreadable_file_fails_the_batch_in_every_mode(archive: Path) -> None:
    path = came(archive, "work.1", b"a", b"b")
    stream = Stream(archive)
    assert stream.plan()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(BadJournal, match=r"unreadable: .*shorter.*; start the stream again to resume"):
        stream.batch()
    path.write_bytes(whole)
    stream.restart()
    assert data(stream.batch()) == [b"a", b"b"]


def test_damage_is_reported_and_raised_with_failfast(archive: Path, caplog: pytest.LogCaptureFixture) -> None:
    (archive / "archive~work.1").write_bytes(WRITER + put(2, b"a") + put(1, b"b"))
    stream = Stream(archive)
    with caplog.at_level(logging.WARNING, "kestrel.spark"):
        assert data(stream.poll()) == [b"a"]
    assert "archive~work.1, offset 30: damaged: " in caplog.text
    stream.restart(mode="FAILFAST")
    with pytest.raises(BadJournal, match=r"offset 30: damaged"):
        stream.batch()


# Columns and options.


def test_columns_are_those_of_the_table(archive: Path) -> None:
    options = {"index": "/i", "maxFiles": "7", "ignoreMissingFiles": "TRUE"}
    assert source(archive, **options).schema() == RECORDS
    assert source(archive, payload="false", **options).schema().names == RECORDS.names[:-1]


def test_columns_can_be_chosen_and_data_omitted(archive: Path) -> None:
    (archive / "archive~work.1").write_bytes(WRITER + put(7, b"abc") + read_head(7))
    asked = StructType([StructField("item_id", LongType()), StructField("queue", StringType())])
    reader = source(archive, index=f"{archive.parent}/audit.index").streamReader(asked)
    begin = reader.initialOffset()
    (task,) = reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
    assert rows[0] == {"item_id": 7, "queue": "work"}
    with pytest.raises(SourceFailed, match=r"there is no column data with option"):
        source(archive, index="/i", payload="false").streamReader(RECORDS)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r'needs an index of the files seen: option\("index", "/srv/checkpoints/audit.index"\)'),
        ({"index": "audit.index"}, r"index must be an absolute path such as .*, not 'audit.index'"),
        ({"index": "s3://checkpoints/audit"}, r"index must be an absolute path"),
        ({"index": "/i", "maxFiles": "0"}, r"maxFiles must be a whole number of at least 1, not '0'"),
        ({"index": "/i", "ignoreMissingFiles": "yes"}, r"ignoreMissingFiles must be true or false, not 'yes'"),
        ({"index": "/i", "view": "errors"}, r"there is no option view: the options are server, queue, payload, mode, "),
        ({"index": "/i", "maxfile": "1"}, r"there is no option maxfile; did you mean maxFiles\?"),
    ],
)
def test_invalid_option_is_refused(archive: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceFailed, match=sentence):
        source(archive, **options).streamReader(RECORDS)


def test_table_refuses_the_options_of_a_stream(archive: Path) -> None:
    with pytest.raises(SourceFailed, match=r"there is no option index"):
        source(archive, index="/i").reader(RECORDS)
