"""kestrel-qpack on scrolls: it verifies them, but does not pack them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from kestrel.disk.lock import FolderLock
from kestrel.testing.faults import FaultyDisk
from tests.journal.handwritten import REMOVE, addx
from tests.journal.restarts import files_of
from tests.scroll.handwritten import DELETED, READER, WRITER, put, read_done, read_head, sealed, targets
from tests.tools.conftest import Pack
from tests.tools.tool_processes import fill

FILES = {
    "work.1000": WRITER + put(1, b"one") + put(2, b"two") + targets(0, b"x") + put(3, b"for x"),
    "work.2000": WRITER + put(4, b"four"),
    "work.read.:own": READER + read_head(1) + read_done(),
    "work.read.x": READER + read_head(0) + read_done(2),
    "zoo.5": WRITER + put(1, b"z"),
}
SHARED_BYTES = len(FILES["work.1000"] + FILES["work.2000"])
WORK_BYTES = SHARED_BYTES + len(FILES["work.read.:own"])
X_BYTES = SHARED_BYTES + len(FILES["work.read.x"])
NOT_PACKED = "a scroll is not packed: the server erases its files as soon as no queue needs them"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "queues", FILES)


# Verifying.


def test_verify_reports_files_and_items_of_each_queue(folder: Path, pack: Pack) -> None:
    assert pack("--verify", folder) == (
        0,
        f"work: ok: 3 files, 2 of them shared, {WORK_BYTES} bytes, 2 items\n"
        f"work+x: ok: 3 files, 2 of them shared, {X_BYTES} bytes, 3 items\n"
        f"zoo: ok: 1 file, {len(FILES['zoo.5'])} bytes, 1 item\n",
        "",
    )
    assert files_of(folder) == FILES
    assert not (folder / ".kestrel").exists()


def test_json_has_an_object_for_each_queue(folder: Path, pack: Pack) -> None:
    fill(folder, {"work.read.x": READER + b"\x01" + read_head(1)})
    status, out, _ = pack("--verify", "--json", folder)
    first, second, third = map(json.loads, out.splitlines())
    assert status == 1
    assert first == {
        "queue": "work",
        "state": "ok",
        "items": 2,
        "files": 3,
        "shared_files": 2,
        "bytes_before": WORK_BYTES,
        "bytes_after": WORK_BYTES,
        "damage": [],
    }
    assert (second["state"], second["items"]) == ("damaged", 4)
    assert second["damage"] == [
        {
            "file": "work.read.x",
            "offset": 4,
            "problem": "a READ_HEAD without its id",
            "kind": "damaged",
            "bytes_behind": 10,
        }
    ]
    assert (third["queue"], third["files"], third["shared_files"]) == ("zoo", 1, 0)


@pytest.mark.parametrize(
    ("end", "state", "status", "says"),
    [
        (b"\x80", "damaged", 1, "damaged: work.2000, offset 33: impossible header of 0 words; 1 byte from there on"),
        (b"\x86", "unfinished", 0, "unfinished: work.2000, offset 33: the last record is cut short (1 byte)"),
        (targets(0, b"x"), "unfinished", 0, "unfinished: work.2000, offset 33: the last record is cut short (8 bytes)"),
        (bytes(100), "ok", 0, ""),
        (bytes(9) + b"\1", "unfinished", 0, "unfinished: work.2000, offset 33: zeros before other bytes"),
    ],
)
def test_end_of_writer_file_is_the_state_of_its_queues(
    folder: Path, pack: Pack, end: bytes, state: str, status: int, says: str
) -> None:
    fill(folder, {"work.2000": FILES["work.2000"] + end})
    found, out, said = pack("--verify", folder)
    assert found == status
    assert [line.split(": ")[:2] for line in out.splitlines()] == [["work", state], ["work+x", state], ["zoo", "ok"]]
    assert said.startswith(f"kestrel-qpack: {says}" if says else "") and said.count("\n") == bool(says)


@pytest.mark.parametrize(
    ("end", "problem", "size"),
    [(b"\x86", "the last record is cut short", 1), (bytes(9) + b"\1", "zeros before other bytes", 10)],
)
def test_unfinished_writer_file_before_a_later_one_is_damaged(
    folder: Path, pack: Pack, end: bytes, problem: str, size: int
) -> None:
    fill(folder, {"work.1000": FILES["work.1000"] + end, "work.3000": WRITER})
    status, out, said = pack("--verify", "--queue", "work", folder)
    offset = len(FILES["work.1000"])
    where = f"damaged: work.1000, offset {offset}: {problem}, and a later file follows it; {size} byte"
    assert (status, out.split(": ")[1]) == (1, "damaged")
    assert said.startswith(f"kestrel-qpack: {where}")


def test_file_without_items_after_the_last_item_is_not_damaged(folder: Path, pack: Pack) -> None:
    fill(folder, {"work.2000": FILES["work.2000"] + b"\x86", "work.3000": WRITER + b"\x86"})
    status, out, said = pack("--verify", "--queue", "work", folder)
    assert (status, out.split(": ")[1], said.count("unfinished: ")) == (0, "unfinished", 2)


def test_damaged_reader_file_affects_only_its_queue(folder: Path, pack: Pack) -> None:
    fill(folder, {"work.read.x": b"\xff" * 20})
    status, out, said = pack("--verify", folder)
    assert (status, [line.split(": ")[1] for line in out.splitlines()]) == (1, ["ok", "damaged", "ok"])
    assert said.startswith("kestrel-qpack: damaged: work.read.x, offset 0: it does not begin with 26 3c 26 03; 20 ")
    status, out, said = pack("--verify", "--queue", "work", folder)
    assert (status, out.count("\n"), said) == (0, 1, "")


def test_deleted_queue_is_reported(folder: Path, pack: Pack) -> None:
    deleted = sealed(read_head(0), DELETED)
    fill(folder, {"work.read.x": deleted})
    status, out, said = pack("--verify", "--queue", "work+x", folder)
    assert (status, said) == (0, "")
    size = SHARED_BYTES + len(deleted)
    assert out == f"work+x: deleted: 3 files, 2 of them shared, {size} bytes, 0 items\n"


def test_reader_file_with_a_lost_name_has_status_1(folder: Path, pack: Pack) -> None:
    name = "zoo.read.::" + "0" * 32
    fill(folder, {name: READER + read_head(0)})
    status, out, said = pack("--verify", folder)
    assert (status, out.splitlines()[2]) == (1, f"{name}: unnamed: 2 files, 43 bytes, 1 item")
    assert said == f"kestrel-qpack: {name}: the name of its queue is not known, so no server serves it\n"
    assert json.loads(pack("--verify", "--json", folder)[1].splitlines()[2])["queue"] is None


def test_reader_file_without_a_queue_has_status_1(folder: Path, pack: Pack) -> None:
    fill(folder, {"work.read.a.b": READER + read_head(0), "work.read.c.d": b"not one", "work.read.e.f~~1": READER})
    status, out, said = pack("--verify", folder)
    assert (status, out.count("\n")) == (1, 3)
    assert said == (
        "kestrel-qpack: work.read.a.b is a reader file, but no queue has that name, so no server reads it: rename it\n"
    )
    assert pack("--verify", "--queue", "work", folder)[::2] == (0, "")


def test_unreadable_file_without_a_queue_is_ignored(tmp_path: Path, pack: Pack) -> None:
    fill(tmp_path, {"work.read.a.b": READER})
    disk = FaultyDisk()
    disk.fail("open_read", errno.EACCES)
    assert pack("--verify", tmp_path, disk=disk) == (0, "", "")
    assert disk.calls.count("open_read") == 1


@pytest.mark.parametrize("operation", ["open_read", "read"])
def test_unreadable_file_is_reported_and_others_are_read(folder: Path, pack: Pack, operation: str) -> None:
    disk = FaultyDisk()
    disk.fail(operation, errno.EIO, after=3, times=1)
    status, out, said = pack("--verify", "--json", folder, disk=disk)
    assert (status, [json.loads(line)["state"] for line in out.splitlines()]) == (1, ["failed", "ok"])
    assert said.startswith("kestrel-qpack: scroll work: cannot be read: Input/output error; copy the folder")
    assert disk.open_descriptors == set()


# Packing.


def test_scroll_is_not_packed(folder: Path, pack: Pack) -> None:
    fill(folder, {"mail": addx(b"gone") + REMOVE + addx(b"kept")})
    status, out, said = pack(folder)
    assert (status, said) == (0, "")
    packed, *others = out.splitlines()
    assert packed == "mail: packed: 1 file, 51 -> 25 bytes, 1 item"
    assert others == [f"{name}: unchanged: {NOT_PACKED}" for name in ("work", "work+x", "zoo")]
    assert files_of(folder) == {**FILES, "mail": addx(b"kept")}
    out = pack("--json", "--queue", "work+x", folder)[1]
    assert json.loads(out) == {"queue": "work+x", "state": "unchanged", "reason": NOT_PACKED}


def test_folder_is_not_locked_if_nothing_is_packed(folder: Path, pack: Pack) -> None:
    assert pack(folder)[0] == 0
    assert not (folder / ".kestrel").exists()
    fill(folder, {"mail": addx(b"a")})
    (folder / ".kestrel").mkdir()
    lock = FolderLock(os.fsencode(folder / ".kestrel" / "lock"))
    assert pack(folder)[0] == 75
    assert pack("--queue", "work", folder)[:2] == (0, f"work: unchanged: {NOT_PACKED}\n")
    lock.release()
