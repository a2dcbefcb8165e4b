"""kestrel-qdump on scrolls, which it recognises by itself."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.scroll.name_encoding import reader_part, stem_of
from kestrel.storage.scroll.storage import ScrollStorage
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.threads import SteppedThreads
from tests.journal.handwritten import addx, i64
from tests.journal.restarts import files_of
from tests.scroll.handwritten import (
    DELETED,
    READER,
    WRITER,
    T,
    checksum,
    done_ranges,
    errors,
    put,
    read_done,
    read_head,
    sealed,
    targets,
    with_data,
)
from tests.scroll.independent import queues_in
from tests.tools.conftest import Dump, error_of
from tests.tools.tool_processes import check_large_dump, fill

UNREAD = READER + read_head(0)

GOLDEN = Path(__file__).parents[1] / "scroll" / "golden"
RECORDED = sorted(path for path in GOLDEN.glob("*/journal*/") if path.is_dir())

FILES = {
    "work.1000": WRITER + put(1, b"one") + put(2, b"two") + targets(0, b"x") + put(3, b"for x"),
    "work.2000": WRITER + targets(1, b"x", b"y") + put(4, b"for work") + put(5, b"five"),
    "work.read.:own": READER + read_head(1) + read_done(),
    "work.read.x": READER + read_head(0) + read_done(2),
    "work.read.y": READER + read_head(5) + read_done(),
}
"""`work` has two, for work, five; `work+x` has one, for x, five; `work+y` has nothing."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "queues", FILES)


def objects(out: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records and the last object of JSON output."""
    *records, last = [json.loads(line) for line in out.splitlines()]
    return records, last


def summaries(dump: Dump, *arguments: object) -> dict[str | None, dict[str, Any]]:
    """Return the summary of each queue, by name."""
    _, last = objects(dump("-q", "--json", *arguments)[1])
    return {queue["queue"]: queue for queue in last["summary"]}


# Records.


def test_each_record_is_a_line_with_its_fields(tmp_path: Path, dump: Dump) -> None:
    written = put(7, b"one", expiry_ms=T + 1), targets(0, b"x", b":own"), put(8, b"", errors=2)
    written += targets(1, b"gone", b"::hash"), put(9, b"again"), with_data(12, b"\7"), with_data(15, b"abc"), b"\x30"
    done = read_head(7), read_done(9, 10, 11, 13), read_done(), done_ranges((20, 99), (200, 200)), errors(_8=1, _14=0)
    done += with_data(14, i64(9) + b"spark"), with_data(14, b""), DELETED
    done = checksum(READER), *done, checksum(b"".join(done))
    fill(tmp_path, {"work.1": WRITER + b"".join(written), "work.read.x": READER + b"".join(done)})
    status, out, said = dump(tmp_path)
    assert (status, said) == (0, "")
    lines = out.decode().splitlines()
    epoch = "2023-11-14T22:13:20"
    offsets = [str(4 + sum(map(len, each[:index]))).rjust(12) for each in (written, done) for index in range(len(each))]
    assert [line[:12] for line in lines[1:9] + lines[10:20]] == offsets
    assert [lines[0], lines[9]] == ["file work.1", "file work.read.x"]
    assert [line[14:] for line in lines[1:9] + lines[10:20]] == [
        f"PUT                   id 7, 3 bytes, added {epoch}.000Z ({T}), expires {epoch}.001Z ({T + 1})",
        "TARGETS               the next item is for work and work+x alone",
        f"PUT                   id 8, 0 bytes, added {epoch}.000Z ({T}), no expiry, 2 errors",
        "TARGETS               the next item is for all but ::hash and work+gone",
        f"PUT                   id 9, 5 bytes, added {epoch}.000Z ({T}), no expiry",
        "TARGETS               no list of readers: it says nothing",
        "CHECKSUM              no CRC-32: it matches nothing",
        "UNKNOWN               command 3, 1 byte",
        f"CHECKSUM              CRC-32 {crc32(READER):08x} of the records before it",
        "READ_HEAD             all up to id 7",
        "READ_DONE             ids 9 to 11, id 13",
        "READ_DONE             none",
        "DONE_RANGES           ids 20 to 99, id 200",
        "ERRORS                id 8 has 1, id 14 has 0",
        "HELD                  spark reads by ids, and has released all up to id 9",
        "HELD                  no reader reads by ids",
        "DELETED",
        f"CHECKSUM              CRC-32 {crc32(b''.join(done[1:-1])):08x} of the records before it",
    ]


def test_long_list_is_cut_except_in_json(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work.read.": READER + read_done(*range(10, 110, 2))})
    assert b"id 48, and 30 more\n" in dump(tmp_path)[1]
    records, _ = objects(dump("--json", tmp_path)[1])
    assert records[0]["done"] == [[item_id, item_id] for item_id in range(10, 110, 2)]


def test_summary_has_the_items_and_position_of_each_queue(tmp_path: Path, dump: Dump) -> None:
    items = put(1, b"gone") + put(2, b"ab", T + 5, 1) + put(3, b"c", T) + put(4, b"d", T + 9)
    done = sealed(read_head(1) + read_done(3, 9, 10) + errors(_2=1))
    fill(tmp_path, {"work.1": WRITER + items + bytes(9), "work.2": WRITER, "work.read.": done})
    status, out, said = dump("-q", tmp_path)
    assert (status, said) == (0, "")
    epoch = "2023-11-14T22:13:20"
    assert out.decode().splitlines() == [
        f"scroll work: 2 files, {len(items) + 17} bytes, next id 11",
        f"  work.1: {len(items) + 13} bytes, 4 records: PUT 4",
        "  work.2: 4 bytes, no records",
        "  all files: 4 records: PUT 4",
        f"queue work: 1 file, {len(done)} bytes",
        f"  work.read.: {len(done)} bytes, 5 records: CHECKSUM 2, ERRORS 1, READ_DONE 1, READ_HEAD 1",
        "  left: 2 items, 3 bytes of data",
        "  of these, expired by now: 1",
        f"  oldest: added {epoch}.005Z ({T + 5})",
        f"  newest: added {epoch}.009Z ({T + 9})",
        "  done: all up to id 1, and beyond it 3 ids in 2 ranges",
        "  error counts: 1",
    ]


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (READER + read_head(0) + read_done(), "nothing"),
        (sealed(read_head(0) + read_done(2)), "1 id in 1 range"),
        (sealed(read_head(8)), "all up to id 8"),
        (None, "nothing: there is no reader file"),
    ],
)
def test_done_ids_are_summarised(tmp_path: Path, dump: Dump, contents: bytes | None, says: str) -> None:
    fill(tmp_path, {"work.1": WRITER + put(1, b"a")} | ({} if contents is None else {"work.read.": contents}))
    assert f"  done: {says}\n" in dump("-q", tmp_path)[1].decode()


def test_json_has_an_object_for_each_record_queue_and_scroll(folder: Path, dump: Dump) -> None:
    records, last = objects(dump("--json", "-d", folder)[1])
    writer, reader = {"scroll": "work", "file": "work.2000"}, {"scroll": "work", "queue": "work+x"}
    item = {"record": "PUT", "errors": 0, "add_ms": T, "expiry_ms": None}
    assert records[4:7] == [
        {**writer, "offset": 4, "record": "TARGETS", "bytes": 10, "all_but": ["work+x", "work+y"]},
        {**writer, "offset": 14, **item, "bytes": 33, "id": 4, "data_bytes": 8, "data": "Zm9yIHdvcms="},
        {**writer, "offset": 47, **item, "bytes": 29, "id": 5, "data_bytes": 4, "data": "Zml2ZQ=="},
    ]
    done = {"record": "READ_DONE", "bytes": 13, "done": [[2, 2]]}
    assert records[-3] == {**reader, "file": "work.read.x", "offset": 13, **done}
    assert {queue["queue"]: queue["items"] for queue in last["summary"]} == {"work": 3, "work+x": 3, "work+y": 0}
    assert last["summary"][1] == {
        "queue": "work+x",
        "scroll": "work",
        "bytes": 26,
        "records": {"READ_HEAD": 1, "READ_DONE": 1},
        "files": [{"file": "work.read.x", "bytes": 26, "records": {"READ_HEAD": 1, "READ_DONE": 1}}],
        "items": 3,
        "data_bytes": 12,
        "expired": 0,
        "oldest_add_ms": T,
        "newest_add_ms": T,
        "head": 0,
        "done_beyond_head": 1,
        "done_ranges": 1,
        "error_counts": 0,
        "is_deleted": False,
        "damage": [],
    }
    (scroll,) = last["scrolls"]
    assert (scroll["scroll"], scroll["next_id"], scroll["records"]) == ("work", 6, {"PUT": 5, "TARGETS": 2})


# The raw forms.


def test_option_q_prints_the_items_of_each_queue(folder: Path, dump: Dump) -> None:
    assert dump("-Q", folder) == (0, b"two\nfor work\nfive\none\nfor x\nfive\n", "")


def test_option_a_prints_each_item_of_the_queues_once(folder: Path, dump: Dump) -> None:
    assert dump("-A", folder)[1] == b"one\ntwo\nfor x\nfor work\nfive\n"
    assert dump("-A", folder / "work.read.x")[1] == b"one\ntwo\nfor x\nfive\n"
    assert dump("-A", folder / "work.read.y", folder / "work.read.:own")[1] == b"one\ntwo\nfor work\nfive\n"
    fill(folder, {"work.3000": WRITER + targets(0, b"gone") + put(6, b"for a queue that is gone")})
    assert dump("-A", folder)[1].endswith(b"five\nfor a queue that is gone\n")
    assert dump("-A", folder / "work.read.x")[1].endswith(b"five\n")


# Which files.


def test_writer_file_names_a_scroll_and_reader_file_a_queue(folder: Path, dump: Dump) -> None:
    assert set(summaries(dump, folder / "work.1000")) == {"work", "work+x", "work+y"}
    assert set(summaries(dump, folder / "work.read.x")) == {"work+x"}
    assert set(summaries(dump, folder / "work.read.x", folder / "work.read.y")) == {"work+x", "work+y"}
    assert set(summaries(dump, folder / "work.read.x", folder / "work.1000")) == {"work", "work+x", "work+y"}
    assert set(summaries(dump, *sorted(folder.iterdir()))) == {"work", "work+x", "work+y"}
    assert dump("-A", *sorted(folder.iterdir()))[1].count(b"five") == 1


def test_option_q_refuses_a_writer_file_of_several_queues(folder: Path, dump: Dump) -> None:
    said = error_of(dump, 2, "-Q", folder / "work.1000")
    files = "work.read.:own, work.read.x, work.read.y"
    assert said == (
        f"kestrel-qdump: work.1000 is for 3 queues: name the reader file of one ({files}), or the folder, for all of"
        " them\n"
    )
    assert dump("-Q", folder / "work.read.x") == (0, b"one\nfor x\nfive\n", "")


def test_option_q_prints_the_only_queue_of_a_writer_file(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work.1": WRITER + put(1, b"a"), "work.2": WRITER + put(2, b"b"), "work.read.": UNREAD})
    assert dump("-Q", tmp_path / "work.1") == (0, b"a\nb\n", "")


def test_queues_are_selected_by_name(folder: Path, dump: Dump) -> None:
    assert dump("-Q", "--queue", "work+x", "--queue", "work", folder)[1] == b"one\nfor x\nfive\ntwo\nfor work\nfive\n"
    assert dump("-Q", folder / "work")[1] == b"two\nfor work\nfive\n"
    assert dump("-Q", folder / "work+x")[1] == b"one\nfor x\nfive\n"
    _, _, said = dump("--queue", "work+z", folder)
    assert said == f"kestrel-qdump: there is no queue work+z in {folder}: it has work, work+x, work+y\n"


def test_erased_or_temporary_file_stands_for_its_scroll(folder: Path, dump: Dump) -> None:
    (folder / "work.read.x~~9").write_bytes(b"torn")
    for name in ("work.500", "work.read.x~~9", "work.1000~~7"):
        assert set(summaries(dump, folder / name)) == {"work", "work+x", "work+y"}
    for name in ("work.read.z", "other.read.x", "other.1"):
        said = error_of(dump, 2, folder / name)
        assert said.startswith(f"kestrel-qdump: there is no {folder}/{name}: {folder} has work, ")


def test_folder_may_have_journals_and_scrolls(folder: Path, dump: Dump) -> None:
    fill(folder, {"mail": addx(b"m2"), "mail.1": addx(b"m1"), "zoo.5": WRITER + put(1, b"z"), "foreign.txt": b"\xee"})
    assert dump("-Q", folder)[1].split() == b"m1 m2 two for work five one for x five z".split()
    assert dump("-Q", "--queue", "zoo", "--queue", "mail", folder)[1] == b"z\nm1\nm2\n"
    _, last = objects(dump("-q", "--json", folder)[1])
    assert [queue["queue"] for queue in last["summary"]] == ["mail", "work", "work+x", "work+y", "zoo"]
    assert [scroll["scroll"] for scroll in last["scrolls"]] == ["work", "zoo"]


def test_queue_may_have_a_journal_and_a_scroll(tmp_path: Path, dump: Dump) -> None:
    files = {"work": addx(b"c"), "work.3": addx(b"b"), "work.5": WRITER + put(1, b"s"), "work.read.": UNREAD}
    fill(tmp_path, files)
    assert dump("-Q", tmp_path) == dump("-Q", "--queue", "work", tmp_path) == (0, b"b\nc\ns\n", "")
    for name, items in (("work", b"b\nc\n"), ("work.3", b"b\nc\n"), ("work.5", b"s\n"), ("work.read.", b"s\n")):
        assert dump("-Q", tmp_path / name) == (0, items, "")


def test_temporary_files_are_not_a_scroll(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work.5~~6": WRITER + put(1, b"a"), "work.read.x~~6": READER})
    assert dump("-Q", tmp_path) == (0, b"", "")
    assert error_of(dump, 2, tmp_path / "work.read.x~~6").endswith(f": {tmp_path} has no queues; name another folder\n")


def test_files_are_ordered_by_their_first_ids(tmp_path: Path, dump: Dump) -> None:
    files = {
        "work.9": WRITER + put(1, b"a") + put(2, b"b"),
        "work.10": WRITER + put(0, b"no") + put(5, b"e") + put(6, b"f"),
        "work.300": WRITER + put(2, b"no") + put(3, b"c") + put(4, b"d"),
        "work.400": WRITER,
        "work.2": WRITER + put(6, b"no") + put(7, b"g"),
    }
    fill(tmp_path, files)
    assert dump("-Q", tmp_path) == dump("-A", tmp_path) == (0, b"a\nb\nc\nd\ne\nf\ng\n", "")
    lines = dump(tmp_path)[1].decode().splitlines()
    assert sum(line.endswith("ignored: its id is not higher than all before it") for line in lines) == 3
    assert summaries(dump, tmp_path)["work"]["items"] == 7


def test_queue_name_is_decoded_from_its_file(tmp_path: Path, dump: Dump) -> None:
    long = b"n" * 200
    stem = stem_of(long).decode()
    files = {"caf:e9.1": WRITER + put(1, b"1"), ":2bx.1": WRITER + put(1, b"2"), f"{stem}.1": WRITER + put(1, b"3")}
    fill(tmp_path, files)
    fill(tmp_path / ".kestrel" / "names", {stem[2:]: long})
    assert dump("-Q", "--queue", "caf\u00e9", "--queue", "+x", "--queue", long.decode(), tmp_path)[1] == b"1\n2\n3\n"
    assert "queue caf\u00e9: 0 files" in dump("-q", tmp_path / "caf:e9.1")[1].decode()


def test_long_name_of_a_child_is_shown_in_full(tmp_path: Path, dump: Dump) -> None:
    long = b"+" * 100
    part = reader_part(b"work", long)
    files = {"work.1": WRITER + targets(0, part) + put(1, b"a"), f"work.read.{part.decode()}": READER}
    fill(tmp_path, files)
    fill(tmp_path / ".kestrel" / "names", {part.decode()[2:]: long})
    assert f"TARGETS               the next item is for work+{long.decode()} alone\n" in dump(tmp_path)[1].decode()
    assert dump("-Q", "--queue", f"work+{long.decode()}", tmp_path)[1] == b"a\n"


def test_queue_with_a_lost_name_is_shown_by_its_file(tmp_path: Path, dump: Dump) -> None:
    name = "work.read.::" + "0" * 32
    fill(tmp_path, {"work.1": WRITER + put(1, b"a"), name: READER + read_head(0)})
    status, out, _ = dump("-q", tmp_path)
    assert (status, f"queue of {name}: 1 file" in out.decode()) == (0, True)
    assert b"its name is not known, so no server serves it: .kestrel/names/ does not have it\n" in out
    assert dump("-Q", tmp_path / name)[1] == b"a\n"
    assert summaries(dump, tmp_path)[None]["items"] == 1


def test_scroll_with_an_invalid_name_is_shown_by_its_files(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"odd:name.1": WRITER + put(1, b"a")})
    lines = dump("-q", tmp_path)[1].decode().splitlines()
    assert "queue of odd:name: 0 files, 0 bytes" in lines
    assert "  its name is not known, so no server serves it: no queue's name is spelled like that" in lines


def test_reader_file_without_a_queue_is_reported(folder: Path, dump: Dump) -> None:
    fill(folder, {"work.read.a.b": READER + read_head(0)})
    said = "work.read.a.b is a reader file, but no queue has that name, so no server reads it: rename it\n"
    assert dump("-q", folder)[::2] == (0, f"kestrel-qdump: {said}")
    assert dump("-q", "--queue", "work", folder)[2] == dump("-q", folder / "work.1000")[2] == ""


def test_archived_files_are_read_with_this_file(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"archive~work.1": WRITER + put(1, b"a"), "archive~work.2": WRITER + put(2, b"b")})
    said = f"kestrel-qdump: {tmp_path}: no queues; 2 archived files: use --this-file of kestrel-qdump\n"
    assert dump(tmp_path) == (0, b"", said)
    assert dump("-Q", "--this-file", tmp_path / "archive~work.1", tmp_path / "archive~work.2") == (0, b"a\nb\n", "")


def test_deleted_queue_has_no_items(folder: Path, dump: Dump) -> None:
    fill(folder, {"work.read.x": sealed(read_head(0), DELETED)})
    assert dump("-Q", folder / "work.read.x") == (0, b"", "")
    assert b"  it is deleted: a server erases what there still is of it\n" in dump("-q", folder)[1]
    queue = summaries(dump, folder)["work+x"]
    assert (queue["is_deleted"], queue["items"]) == (True, 0)


def test_reader_file_own_of_a_parent_takes_precedence(tmp_path: Path, dump: Dump) -> None:
    files = {"work.1": WRITER + put(1, b"a"), "work.read.": READER + read_head(1), "work.read.:own": UNREAD}
    fill(tmp_path, files)
    assert dump("-Q", tmp_path) == dump("-Q", tmp_path / "work.read.") == (0, b"a\n", "")


def test_next_id_follows_the_highest_done_id(folder: Path, dump: Dump) -> None:
    fill(folder, {"work.read.y": sealed(read_head(7) + read_done(40))})
    for path in (folder, folder / "work.read.x"):
        assert b", next id 41\n" in dump("-q", path)[1]


# One file alone.


def test_this_file_uses_the_format_of_the_first_bytes(folder: Path, dump: Dump) -> None:
    fill(folder, {"a.b.c": FILES["work.1000"], "mail~~1": FILES["work.read.x"]})
    for name, scroll in (("work.1000", "work"), ("a.b.c", "a.b.c")):
        assert dump("-Q", "--this-file", folder / name)[1] == b"one\ntwo\nfor x\n"
        out = dump("-q", "--this-file", folder / name)[1].decode()
        assert out.startswith(f"scroll {scroll}: 1 file, {len(FILES['work.1000'])} bytes, next id 4\n")
        assert "  in it: 3 items, 11 bytes of data\n" in out
        _, last = objects(dump("-q", "--json", "--this-file", folder / name)[1])
        assert (last["summary"], last["scrolls"][0]["items"]) == ([], 3)
    for name, queue in (("work.read.x", "queue work+x"), ("mail~~1", "queue of mail~~1")):
        out = dump("-q", "--this-file", folder / name)[1].decode()
        assert out.startswith(f"{queue}: 1 file, 26 bytes\n") and "left" not in out and "not known" not in out
        assert out.endswith("  done: 1 id in 1 range\n")
        _, last = objects(dump("-q", "--json", "--this-file", folder / name)[1])
        assert ("items" in last["summary"][0], "scrolls" in last) == (False, False)


def test_this_file_in_neither_format_is_an_error(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work": b"\x7fELF"})
    said = "kestrel-qdump: work is neither a journal file of Kestrel nor a file of a scroll\n"
    assert dump("--this-file", tmp_path / "work") == (1, b"", said)


# Damage.


def test_damage_is_reported_with_its_place_and_status_1(folder: Path, dump: Dump) -> None:
    damaged = {
        "work.1000": WRITER + put(1, b"one") + b"\x80" + put(2, b"lost"),
        "work.read.x": READER + read_head(1) + b"\x00\x00later",
        "work.read.y": b"else" + read_head(1),
    }
    files = fill(folder, damaged) and files_of(folder)
    first = "damaged: work.1000, offset 32: impossible header of 0 words; 30 bytes from there on cannot be read"
    second = "unfinished: work.read.x, offset 13: zeros before other bytes (7 bytes), by a crash, or it is being"
    second += " written"
    third = "damaged: work.read.y, offset 0: it does not begin with 26 3c 26 03; 13 bytes from there on cannot be read"
    status, out, said = dump("-q", folder)
    assert (status, said) == (1, "".join(f"kestrel-qdump: {each}\n" for each in (first, second, third)))
    assert all(f"  {each}\n" in out.decode() for each in (first, second, third))
    assert dump("-Q", folder / "work.read.y")[:2] == (1, b"one\nfive\n")
    assert dump("-Q", folder / "work.read.y")[2] == f"kestrel-qdump: {first}\nkestrel-qdump: {third}\n"
    _, last = objects(dump("-q", "--json", folder)[1])
    assert [damage["kind"] for queue in last["summary"] for damage in queue["damage"]] == ["unfinished", "damaged"]
    assert last["scrolls"][0]["damage"][0]["bytes_behind"] == 30
    assert files_of(folder) == files


def test_zeros_are_the_end_or_the_last_that_is_read(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"a.1": WRITER + put(1, b"a") + bytes(3_000_000)})
    assert dump("-Q", tmp_path) == (0, b"a\n", "")
    fill(tmp_path, {"a.1": WRITER + put(1, b"a") + bytes(3_000_000) + b"\1"})
    status, out, said = dump("-Q", tmp_path)
    assert (status, out) == (0, b"a\n")
    assert "unfinished: a.1, offset 30: zeros before other bytes (3000001 bytes)" in said


def test_unreadable_file_is_reported_and_others_are_read(tmp_path: Path, dump: Dump) -> None:
    contents = WRITER + put(1, b"1")
    fill(tmp_path, {"a.1": contents, "b.1": contents, "a.read.": READER, "b.read.": READER})
    disk = FaultyDisk()
    disk.fail("read", errno.EIO, times=1)
    status, out, said = dump("-Q", tmp_path, disk=disk)
    assert (status, out) == (1, b"1\n")
    assert said.startswith("kestrel-qdump: scroll a: Input/output error; ")
    assert disk.open_descriptors == set()


# Files that change.


def test_files_replaced_or_erased_during_a_read_are_read(folder: Path, dump: Dump) -> None:
    disk = FaultyDisk()

    def go_on() -> None:
        (folder / "work.1000").unlink()
        (folder / "work.read.x~~1").write_bytes(READER + read_head(5))
        (folder / "work.read.x~~1").rename(folder / "work.read.x")

    disk.before("read", go_on)
    assert dump("-Q", folder / "work.read.x", disk=disk) == (0, b"one\nfor x\nfive\n", "")


def test_files_changed_during_open_are_found_again(folder: Path, dump: Dump) -> None:
    disk = FaultyDisk()

    def rotate() -> None:
        (folder / "work.1000").unlink()
        fill(folder, {"work.3000": WRITER + put(6, b"six")})

    disk.before("open_read", rotate)
    assert dump("-Q", folder / "work.read.x", disk=disk) == (0, b"five\nsix\n", "")
    assert disk.open_descriptors == set()


def test_items_put_and_done_during_open_are_not_left(folder: Path, dump: Dump) -> None:
    class Busy(Disk):
        def open_read(self, path: bytes) -> int:
            if path.endswith(b"/work.2000"):
                fill(folder, {"work.2000": FILES["work.2000"] + put(6, b"six"), "work.read.x": READER + read_head(6)})
            return super().open_read(path)

    assert dump("-Q", folder / "work.read.x", disk=Busy()) == (0, b"", "")


def test_queue_or_scroll_deleted_meanwhile_is_reported(folder: Path, dump: Dump) -> None:
    disk = FaultyDisk()
    disk.before("open_read", (folder / "work.read.x").unlink)
    sentence = "kestrel-qdump: work.read.x no longer exists: its queue was deleted\n"
    assert dump("-Q", folder / "work.read.x", disk=disk) == (1, b"", sentence)

    def erase_all() -> None:
        for path in folder.iterdir():
            path.unlink()

    disk = FaultyDisk()
    disk.before("open_read", erase_all)
    said = error_of(dump, 1, "-Q", folder / "work.read.y", disk=disk)
    assert said == "kestrel-qdump: the scroll work no longer exists: its queues were deleted\n"
    assert disk.open_descriptors == set()


# Recorded scrolls and a server.


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_recorded_scrolls_have_the_items_of_another_reader(folder: Path, dump: Dump) -> None:
    before = files_of(folder)
    check_queues(folder, dump)
    assert files_of(folder) == before
    assert not (folder / ".kestrel").exists()


def check_queues(folder: Path, dump: Dump) -> None:
    """Check that it prints the items of every queue that the independent reader finds."""
    expected = queues_in(folder)
    found = summaries(dump, folder)
    assert set(found) == {name.decode("latin-1") for name in expected}
    for name, queue in expected.items():
        spelled = name.decode("latin-1")
        status, out, said = dump("-Q", "--queue", spelled, folder)
        is_damaged = "L22_head_beyond_tail" in folder.parts
        assert (status, out) == (int(is_damaged), b"".join(item.data + b"\n" for item in queue.items)), said
        added = sorted(item.add_ms for item in queue.items) or [None]
        summary = [found[spelled][each] for each in ("items", "data_bytes", "oldest_add_ms", "newest_add_ms")]
        assert summary == [len(queue.items), sum(len(item.data) for item in queue.items), added[0], added[-1]]


@pytest.mark.parametrize("seed", range(4))
def test_random_scrolls_have_the_items_of_another_reader(tmp_path: Path, dump: Dump, seed: int) -> None:
    chance = random.Random(seed)
    threads = SteppedThreads()
    times = iter(range(T, T + 100_000, 7))
    storage = ScrollStorage(os.fsencode(tmp_path), Clock(), threads, reserve_bytes=1, now_ms=lambda: next(times))
    settings = QueueSettings(max_memory_size_bytes=2000, max_journal_size_bytes=2000)
    storage.start(lambda name: settings)
    threads.run_all()
    names = [b"work", b"work+x", b"work+y\xff", b"caf\xe9", b"work+" + b"long" * 45]
    queues = [storage.queue(name, settings) for name in names]
    xids: list[list[int]] = [[] for _ in queues]
    for step in range(300):
        family = [queue for queue in queues if chance.random() < 0.7]
        if family:
            storage.put(family, chance.randbytes(chance.randrange(40)), next(times), chance.choice([0, 1, T * 2]))
        for queue, opened in zip(queues, xids, strict=True):
            if chance.random() < 0.6 and (item := queue.take(opens := chance.random() < 0.5)) is not None and opens:
                opened.append(item.xid)
            if opened and chance.random() < 0.4:
                xid = opened.pop(chance.randrange(len(opened)))
                if chance.random() < 0.7:
                    queue.confirm([xid])
                else:
                    queue.put_back([xid], True)
        storage.commit(queues)
        threads.run_all()
        if step % 100 == 99:
            check_queues(tmp_path, dump)
    storage.close()
    threads.run_all()
    check_queues(tmp_path, dump)


# Large scrolls.


@pytest.mark.parametrize("form", ["-Q", "-q"])
def test_large_scroll_needs_little_memory(tmp_path: Path, form: str) -> None:
    """100 MB, no item of which is done."""
    data = b"x" * 10_000
    with (tmp_path / "work.1").open("wb") as file:
        file.write(WRITER)
        for item_id in range(1, 10_001):
            file.write(put(item_id, data))
    check_large_dump(form, tmp_path / "work", items=10_000, most_mib=20)
