"""The scroll backend: the contents and names of its files, restarts, and the use of memory."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from kestrel.errors import ItemTooLarge, QueueFailed
from kestrel.scroll.records import MAX_DATA_BYTES
from kestrel.storage.total_memory import MemoryLimit
from tests.scroll.handwritten import READER, errors, put, read_done, read_head, reader_file, writer_file
from tests.scroll.independent import queues_in
from tests.scroll.storages import Opener

FIRST = "work.1700000000000"
NEW_READER = reader_file(0)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# Contents of the files.


def test_items_are_written_as_records_of_libkestrel(start: Opener) -> None:
    scrolls, queue = start.queue()
    scrolls.put(queue, b"a", b"")
    scrolls.put(queue, bytes(range(256)), add_ms=1, expiry_ms=2)
    scrolls.commit(queue)
    expected = writer_file(b"a", b"") + put(3, bytes(range(256)), add_ms=1, expiry_ms=2)
    assert scrolls.files() == {FIRST: expected, "work.read.": NEW_READER}


def test_nothing_is_written_before_the_commit(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b", b"c")
    before = scrolls.files()
    scrolls.put(queue, b"d")
    queue.take(False)
    queue.confirm([queue.take(True).xid])
    queue.put_back([queue.take(True).xid], True)
    queue.clear()
    assert scrolls.files() == before
    scrolls.commit(queue)
    assert scrolls.files() != before


def test_each_commit_of_takes_writes_one_head(start: Opener) -> None:
    scrolls, queue = start.queue(*[b"a"] * 103)
    for _ in range(3):
        scrolls.take(queue)
    scrolls.take(queue, 100)
    assert scrolls.reader() == NEW_READER + b"".join(map(read_head, (1, 2, 3, 103)))


def test_open_read_is_not_written(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b")
    before = scrolls.files()
    xid = queue.take(True).xid
    scrolls.commit(queue)
    queue.put_back([xid], False)
    scrolls.commit(queue)
    assert scrolls.files() == before


def test_confirms_out_of_order_are_written_as_done(start: Opener) -> None:
    scrolls, queue = start.queue(*numbers(1, 8))
    xids = [queue.take(True).xid for _ in range(8)]
    for confirmed, expected in [
        ([2], read_done(2)),
        ([7, 5], read_done(5, 7)),
        ([1], read_head(2)),
        ([3, 8], read_head(3) + read_done(8)),
        ([6, 4], read_done(6) + read_head(8)),
    ]:
        before = scrolls.reader()
        assert queue.confirm([xids[number - 1] for number in confirmed]) == len(confirmed)
        scrolls.commit(queue)
        assert scrolls.reader() == before + expected


def test_failed_reads_are_written_as_error_counts(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b")
    xids = [queue.take(True).xid, queue.take(True).xid]
    queue.put_back([xids[1]], True)
    scrolls.commit(queue)
    queue.put_back([queue.take(True).xid], True)
    queue.put_back([xids[0]], True)
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + errors(_2=1) + errors(_2=2, _1=1)


def test_changes_of_a_batch_are_written_in_order(start: Opener) -> None:
    scrolls, queue = start.queue(*numbers(1, 7))
    xids = [queue.take(True).xid for _ in range(6)]
    queue.confirm([xids[2], xids[4]])
    queue.put_back([xids[1]], True)
    queue.confirm([xids[0]])
    queue.confirm([xids[5]])
    queue.take(False)
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + read_done(3, 5) + errors(_2=1) + read_head(1) + read_done(6) + read_head(3)


def test_item_put_and_taken_in_one_batch_is_written(start: Opener) -> None:
    scrolls, queue = start.queue()
    scrolls.put(queue, b"a")
    queue.take(False)
    scrolls.commit(queue)
    assert scrolls.files() == {FIRST: writer_file(b"a"), "work.read.": NEW_READER + read_head(1)}


def test_clear_moves_the_head_up_to_open_reads(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b", b"c", b"d")
    queue.take(False)
    queue.take(True)
    queue.clear()
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + read_head(1) + read_done(3, 4)


def test_clear_of_many_items_writes_one_head(start: Opener) -> None:
    scrolls, queue = start.queue(*[b"a"] * 10_000)
    queue.clear()
    scrolls.commit(queue)
    assert scrolls.reader() == NEW_READER + read_head(10_000)


def test_batch_is_one_write_to_each_changed_file(start: Opener) -> None:
    scrolls, family = start.family(*[b"a"] * 20)
    scrolls.disk.done.clear()
    scrolls.put(family, *[b"b"] * 100)
    scrolls.put(family[1], *[b"for x"] * 100)
    for queue in family[:2]:
        queue.confirm([queue.take(True).xid, queue.take(True).xid][1:])
        queue.take(False)
    scrolls.commit(*family)
    assert scrolls.disk.writes() == {FIRST: 1, "work.read.:own": 1, "work.read.x": 1}


def test_empty_commit_writes_nothing(start: Opener) -> None:
    scrolls, queue = start.queue(b"a")
    scrolls.disk.done.clear()
    scrolls.commit(queue)
    assert scrolls.disk.done == []


def test_file_sizes_are_reported(start: Opener) -> None:
    scrolls, queue = start.queue(b"four")
    assert (queue.stats["logsize"], queue.stats["journal_bytes"], queue.disk_bytes) == (33, 33, 33 + 36)
    scrolls.take(queue)
    assert (queue.stats["logsize"], queue.disk_bytes) == (33, 54)


def test_largest_item_is_stored_and_a_larger_one_refused(start: Opener) -> None:
    scrolls, queue = start.queue(bytes(MAX_DATA_BYTES))
    with pytest.raises(ItemTooLarge):
        scrolls.put(queue, bytes(MAX_DATA_BYTES + 1))
    assert [len(data) for data in start.again(scrolls).data()] == [MAX_DATA_BYTES]


# Restarts.


def test_errors_of_open_read_survive_clear_and_restart(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b")
    queue.put_back([queue.take(True).xid], True)
    queue.take(True)
    queue.clear()
    scrolls.commit(queue)
    for opened in (start.crashed(scrolls), start.again(scrolls)):
        assert [(item.data, item.errors) for item in opened.take_all()] == [(b"a", 1)]


def test_ids_continue_without_a_writer_file(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b")
    scrolls.take_all(queue)
    scrolls.close(compacts=True)
    assert scrolls.files() == {"work.read.": reader_file(2)}
    again = start(scrolls.folder)
    again.put_and_commit(again.queue(), b"c")
    (name,) = again.writers()
    assert again.files()[name] == writer_file(b"c", first_id=3)
    assert again.data() == [b"c"]


def test_restart_continues_the_same_files(start: Opener) -> None:
    scrolls, queue = start.queue(b"a", b"b")
    queue.take(False)
    again = start.again(scrolls)
    again.put(again.queue(), b"c")
    again.take(again.queue())
    assert again.files() == {FIRST: writer_file(b"a", b"b", b"c"), "work.read.": reader_file(1) + read_head(2)}


@pytest.mark.parametrize("torn_bytes", range(1, 18))
def test_torn_new_reader_file_is_rewritten(start: Opener, torn_bytes: int) -> None:
    scrolls = start()
    scrolls.disk.fail("write", errno.EIO, times=1, torn_bytes=torn_bytes)
    with pytest.raises(QueueFailed):
        scrolls.queue()
    queue = scrolls.queue()
    scrolls.put_and_commit(queue, b"a", b"b")
    scrolls.take(queue)
    assert start.crashed(scrolls).data() == [b"b"]


def test_stop_succeeds_with_items_of_an_unreadable_reader(start: Opener) -> None:
    scrolls, _ = start.family(b"a", children=1)
    scrolls.close()
    again = start(scrolls.folder, arrange=lambda disk: disk.cannot_read("work.read.x"))
    queue = again.queue()
    again.put(queue, b"b")
    again.storage.delete(queue)
    again.commit(queue)
    again.close()
    last = start(scrolls.folder)
    assert list(last.loaded) == [b"work+x"]
    assert last.data(b"work+x") == [b"a"]


# Names.


def hashed(name: bytes) -> str:
    return hashlib.blake2b(name, digest_size=16).hexdigest()


def escaped(first: int, last: int) -> str:
    return "".join(f":{byte:02x}" for byte in range(first, last + 1))


NAMES = {
    b"work": "work.read.",
    b"A-Z_0-9": "A-Z_0-9.read.",
    b"caf\xe9": "caf:e9.read.",
    b"a b.c:d/e": "a:20b:2ec:3ad:2fe.read.",
    b"work+x": "work.read.x",
    b"work+x+y": "work.read.x:2by",
    b"work+:own": "work.read.:3aown",
    b"work+a.b": "work.read.a:2eb",
    b"+x": ":2bx.read.",
    b"x+": "x:2b.read.",
    b"+": ":2b.read.",
    b"a++": "a.read.:2b",
    bytes(range(0x80, 0xB0)): escaped(0x80, 0xAF) + ".read.",
    b"n" * 200: f"::{hashed(b'n' * 200)}.read.",
    b"work+" + b"\xff" * 150: "work.read.::" + hashed(b"\xff" * 150),
    bytes(range(1, 201)): escaped(1, 42) + ".read.::" + hashed(bytes(range(44, 201))),
}
"""Queue names, and the names of their reader files."""


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_queue_has_documented_file_names_and_survives_a_crash(start: Opener, name: bytes) -> None:
    scrolls, _ = start.queue(b"data", bytes(range(256)), name=name)
    assert [file for file in scrolls.files() if ".read." in file] == [NAMES[name]]
    assert list(queues_in(scrolls.folder)) == [name]
    again = start.crashed(scrolls)
    assert list(again.loaded) == [name]
    assert again.data(name) == [b"data", bytes(range(256))]


FOREIGN = {
    "work": b"no scroll",
    "work.bak": b"x",
    "work.read": b"x",
    "work.2026010112000000": b"sixteen digits",
    "work.1x": b"x",
    "work.1.read.": b"x",
    ".1": b"x",
    "caf\xe9.1": b"x",
    "archive~work.1700000000000": writer_file(b"a"),
    "work.read.x.y": READER,
    "work.pack": b"x",
}
MISSPELT = {
    "a:b.123": writer_file(b"a") + b"\x86\0",
    "a:B7.12": writer_file(),
    "a:41.12": writer_file(b"a"),
    "a:b.read.": b"",
    "a:b.read.~~5": b"x",
    "::00112233445566778899aabbccddeeff.7": writer_file(b"a") + b"\x86",
    "::00112233445566778899aabbccddeeff.read.x": b"junk",
}


@pytest.mark.parametrize("files", [FOREIGN, MISSPELT], ids=["foreign names", "other encodings"])
def test_files_of_no_queue_are_left_alone(start: Opener, tmp_path: Path, files: dict[str, bytes]) -> None:
    (tmp_path / "queues" / "work.5").mkdir(parents=True)
    scrolls = start.over(files)
    assert scrolls.loaded == {}
    assert scrolls.files() == files
    scrolls.put_and_commit(scrolls.queue(), b"a")
    scrolls.checkpoint()
    scrolls.close()
    assert {name: contents for name, contents in scrolls.files().items() if name in files} == files


def test_misencoded_reader_file_and_its_items_are_left_alone(start: Opener) -> None:
    files = {"work.1": writer_file(b"a"), "work.2": writer_file(b"b", first_id=2), "work.read.a:B": NEW_READER}
    scrolls = start.over(files)
    assert scrolls.loaded == {}
    scrolls.put_and_commit(scrolls.queue(), b"c")
    assert scrolls.data() == [b"c"]
    scrolls.commit(scrolls.queue())
    scrolls.checkpoint()
    scrolls.close()
    left = scrolls.files()
    assert {name: contents[: len(files[name])] for name, contents in left.items() if name in files} == files
    assert (left["work.1"], left["work.read.a:B"]) == (files["work.1"], NEW_READER)


@pytest.mark.parametrize("names", [("work.0", "work.5"), ("work.1", "work.01"), ("work.000", "work.0")], ids=str)
def test_writer_file_may_have_any_number(start: Opener, names: tuple[str, str]) -> None:
    scrolls = start.over({names[0]: writer_file(b"1", b"2"), names[1]: writer_file(*numbers(3, 8), first_id=3)})
    assert scrolls.queue().items == 8
    assert scrolls.data() == numbers(1, 8)


# Memory.


@pytest.mark.parametrize("end", ["delete", "close", "clear"])
def test_unused_memory_is_not_counted(start: Opener, end: str) -> None:
    scrolls, family = start.family(*[bytes(1000)] * 10, memory=MemoryLimit(1 << 30))
    assert scrolls.memory.used_bytes >= 30_000
    if end == "close":
        scrolls.close()
    for queue in family:
        if end == "delete":
            scrolls.storage.delete(queue)
        elif end == "clear":
            queue.clear()
            scrolls.commit(queue)
    assert scrolls.memory.used_bytes == 0
