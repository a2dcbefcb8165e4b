"""kestrel-qpack: packing and verifying journals, crashes and failures."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.errors import FolderInUse
from kestrel.journal.rewrite import ReplacementRecords
from kestrel.testing.faults import FaultyDisk, ProcessDied
from kestrel.tools import packing
from kestrel.tools.qpack import main
from tests.disk.test_lock import owned
from tests.journal.handwritten import REMOVE, RandomTakes, addx, confirm, open_, save_xid, state_dump, unremove
from tests.journal.restarts import files_of, restarted_errors, restarted_items, set_aside
from tests.tools.conftest import Pack, RefusingDisk, error_of
from tests.tools.tool_processes import fill, run

GOLDEN = Path(__file__).parents[1] / "journal" / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/journal/"))

FILES = {
    "work.1000": addx(b"gone") + addx(b"open", 5, 6) + addx(b"a") + addx(b"also open"),
    "work.2000": REMOVE + open_(4) + addx(b"b"),
    "work": addx(b"c") + REMOVE + open_(2) + addx(b"d") + addx(b"e") + open_(3) + confirm(3),
    "work2": addx(b"another"),
    "foreign.txt": b"foreign",
}
ITEMS = [(b"also open", 1, 0), (b"open", 5, 6), (b"c", 1, 0), (b"d", 1, 0), (b"e", 1, 0)]
PACKED = b"".join(addx(*item) for item in ITEMS)
"""`b` was opened under 3 and confirmed, `a` was taken."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "queues", FILES)


def use_small_window(monkeypatch: pytest.MonkeyPatch, max_memory_size_bytes: int) -> None:
    """Have the tool keep little of a queue in memory."""
    settings = QueueSettings(max_memory_size_bytes=max_memory_size_bytes)
    monkeypatch.setattr("kestrel.tools.packing.SETTINGS", settings)
    monkeypatch.setattr("kestrel.tools.files.journal_contents.SETTINGS", settings)


# Packing.


def test_files_of_a_queue_become_one_with_its_items(folder: Path, pack: Pack) -> None:
    before = sum(len(contents) for name, contents in FILES.items() if name.partition(".")[0] == "work")
    assert pack(folder) == (
        0,
        f"work: packed: 3 files, {before} -> {len(PACKED)} bytes, 5 items\n"
        "work2: unchanged: 1 file, 28 -> 28 bytes, 1 item\n",
        "",
    )
    assert files_of(folder) == {"work": PACKED, "work2": FILES["work2"], "foreign.txt": b"foreign"}
    assert files_of(folder / ".kestrel" / "erase") == {}
    assert restarted_items(folder) == ITEMS


def test_items_keep_their_errors(tmp_path: Path, pack: Pack) -> None:
    items = [addx(b"%d" % number) for number in range(5)]
    aborted = open_(1) + unremove(1) + open_(1) + open_(2) + save_xid(3) + unremove(2)
    fill(tmp_path, {"work.1000": b"".join(items) + aborted, "work": open_(2)})
    packed = items[0] + open_(1) + items[1] + open_(2)
    packed += save_xid(3) + unremove(2) + save_xid(1) + unremove(1) + b"".join(items[2:])
    for done in ("packed", "unchanged"):
        status, out, said = pack(tmp_path)
        assert (status, said) == (0, "")
        assert f"work: {done}: " in out
        assert f"{len(packed)} bytes, 5 items" in out
        assert files_of(tmp_path) == {"work": packed}
    assert restarted_errors(tmp_path) == [1, 3, 0, 0, 0]


def test_new_file_with_other_errors_is_discarded(tmp_path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"work": addx(b"a") + REMOVE + addx(b"b") + open_(1) + unremove(1)})

    def runs(replacement: ReplacementRecords, *args: object) -> list[bytes]:
        written = addx(b"b") + open_(1) + save_xid(errors) + unremove(1)
        replacement.size = len(written)
        return [written]

    monkeypatch.setattr(ReplacementRecords, "runs", runs)
    errors = 2
    assert "the new file and the old ones differ" in error_of(pack, 1, tmp_path)
    assert restarted_errors(tmp_path) == [1]
    errors = 1
    assert pack(tmp_path)[0] == 0
    assert restarted_errors(tmp_path) == [1]


def test_only_the_named_queues_are_packed(tmp_path: Path, pack: Pack) -> None:
    fill(tmp_path, {name: addx(b"x") + REMOVE for name in ("a", "b", "c")})
    status, out, _ = pack("--queue", "c", "--queue", "a", tmp_path)
    assert (status, [line.partition(":")[0] for line in out.splitlines()]) == (0, ["c", "a"])
    assert files_of(tmp_path) == {"a": b"", "b": addx(b"x") + REMOVE, "c": b""}


@pytest.mark.parametrize("case", CASES)
def test_recorded_journals_keep_their_items(case: str, tmp_path: Path, pack: Pack) -> None:
    recorded = GOLDEN / case / "journal"
    names = {name.partition(".")[0].partition("~")[0] for name in files_of(recorded)}
    packed = Path(shutil.copytree(recorded, tmp_path / "packed"))
    other = Path(shutil.copytree(recorded, tmp_path / "other"))
    assert pack(packed)[0] == 0
    assert set(files_of(packed)) == names
    for name in names:
        items = restarted_items(packed, name.encode("latin-1"))
        expected = restarted_items(other, name.encode("latin-1"))
        if case in ("07a_old_add", "08_truncations"):  # the add time of these items is the time of the replay
            items, expected = [item[::2] for item in items], [item[::2] for item in expected]
        assert items == expected


def test_queue_larger_than_the_window_keeps_its_order(
    tmp_path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_window(monkeypatch, 1000)
    items = [(b"%d" % number * 30, number, 0) for number in range(1000)]
    records = [addx(*item) for item in items]
    fill(
        tmp_path,
        {
            "work.1": b"".join(records[:400]),
            "work.2": REMOVE * 100 + open_(1) + b"".join(records[400:900]),
            "work": REMOVE * 500 + b"".join(records[900:]),
        },
    )
    assert pack(tmp_path)[0] == 0
    kept = [items[100], *items[601:]]
    assert files_of(tmp_path) == {"work": b"".join(addx(*item) for item in kept)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"work": addx(b"a") + state_dump(3)}, {"work": addx(b"a")}),
        ({"work.1": addx(b"a"), "empty.1": addx(b"x") + REMOVE}, {"work": addx(b"a"), "empty": b""}),
        (
            {"work.1": addx(b"old"), "work.2.pack": addx(b"new"), "work": addx(b"last"), "work~~9": b"torn"},
            {"work": addx(b"new") + addx(b"last")},
        ),
    ],
    ids=["state dump", "no current file", "interrupted packing"],
)
def test_unusual_files_are_packed(
    tmp_path: Path, pack: Pack, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    fill(tmp_path, before)
    assert pack(tmp_path)[0] == 0
    assert files_of(tmp_path) == after


def test_json_has_an_object_for_each_queue(folder: Path, pack: Pack) -> None:
    (folder / "work2").write_bytes(b"\xee" + addx(b"x"))
    status, out, _ = pack("--verify", "--json", folder)
    first, second = map(json.loads, out.splitlines())
    assert status == 1
    assert first["state"] == "ok"
    assert (first["items"], first["files"], first["bytes_after"], first["damage"]) == (5, 3, len(PACKED), [])
    assert second == {
        "queue": "work2",
        "state": "damaged",
        "items": 0,
        "files": 1,
        "bytes_before": 23,
        "bytes_after": 0,
        "damage": [
            {"file": "work2", "offset": 0, "problem": "unknown opcode 238", "kind": "damaged", "bytes_behind": 23}
        ],
    }


# Damage.


def test_damage_is_repaired_and_reported(tmp_path: Path, pack: Pack) -> None:
    fill(tmp_path, {"work.1": addx(b"a") + b"\xeedamage", "work": addx(b"b") + addx(b"c")[:5]})
    status, out, said = pack(tmp_path)
    assert (status, out) == (0, "work: packed: 2 files, 56 -> 44 bytes, 2 items\n")
    assert "damaged: work.1, offset 22: unknown opcode 238; 7 bytes" in said
    assert "unfinished: work, offset 22: the last record is cut short (5 bytes)" in said
    assert said.count(".kestrel/damaged/") == 2
    assert files_of(tmp_path) == {"work": addx(b"a") + addx(b"b")}
    assert sorted(set_aside(tmp_path)) == sorted([b"\xeedamage", addx(b"c")[:5]])


@pytest.mark.parametrize("option", ["--verify", "--dry-run"])
def test_verify_changes_nothing_and_reports_the_contents(folder: Path, pack: Pack, option: str) -> None:
    status, out, said = pack(option, folder)
    assert (status, said) == (0, "")
    assert out.splitlines()[0].startswith("work: ok: 3 files, ")
    assert f"-> {len(PACKED)} bytes, 5 items" in out
    assert files_of(folder) == FILES
    assert not (folder / ".kestrel").exists()


@pytest.mark.parametrize(("end", "state", "status"), [(b"\xee", "damaged", 1), (b"\x02\x15", "unfinished", 0)])
def test_verify_tells_damage_from_an_unfinished_end(
    tmp_path: Path, pack: Pack, end: bytes, state: str, status: int
) -> None:
    fill(tmp_path, {"work": addx(b"a") + end})
    found, out, said = pack("--verify", tmp_path)
    assert (found, out.startswith(f"work: {state}: 1 file, ")) == (status, True)
    assert said.startswith(f"kestrel-qpack: {state}: work, offset 22: ")
    assert files_of(tmp_path) == {"work": addx(b"a") + end}


# Comparing.


def test_new_file_with_other_items_is_discarded(folder: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    write = packing.write_temporary

    def write_wrongly(disk: Disk, folder: bytes, queue: bytes, number: int, runs: Iterator[bytes], *more: Any) -> None:
        write(disk, folder, queue, number, [b"".join(runs).replace(b"also", b"ALSO")], *more)

    monkeypatch.setattr(packing, "write_temporary", write_wrongly)
    said = error_of(pack, 1, "--queue", "work", folder)
    assert "the new file and the old ones differ" in said
    assert not [name for name in files_of(folder) if "~" in name]
    assert restarted_items(folder) == ITEMS


# Crashes and failures.


def kill(folder: Path, calls: int) -> FaultyDisk:
    """Pack on a disk that ends the process after some operations."""
    disk = FaultyDisk()
    disk.list_files(os.fsencode(folder))
    disk.die_after(calls)
    try:
        main([str(folder)], disk)
    except ProcessDied:
        return disk
    return disk


CALLS = 70
"""More operations than packing this folder takes."""


def test_tried_crashes_reach_the_end(folder: Path) -> None:
    disk = FaultyDisk()
    main([str(folder)], disk)
    assert 30 < len(disk.calls) < CALLS


@pytest.mark.parametrize("calls", range(CALLS))
def test_crash_of_the_process_or_machine_loses_and_duplicates_nothing(folder: Path, calls: int) -> None:
    disk = kill(folder, calls)
    left = folder.with_name("left")
    disk.medium.copy(os.fsencode(folder), os.fsencode(left))
    assert restarted_items(left) == ITEMS
    assert restarted_items(left, b"work2") == [(b"another", 1, 0)]
    assert restarted_items(Path(shutil.copytree(folder, folder.with_name("started")))) == ITEMS
    assert main([str(folder)]) == 0
    assert files_of(folder) == {"work": PACKED, "work2": FILES["work2"], "foreign.txt": b"foreign"}


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_folder", "open_read", "read"])
@pytest.mark.parametrize("after", range(5))
def test_failed_disk_operation_is_reported_and_loses_nothing(
    folder: Path, pack: Pack, operation: str, after: int
) -> None:
    disk = FaultyDisk()
    disk.fail(operation, errno.ENOSPC, after=after, torn_bytes=10)
    status, _, said = pack(folder, disk=disk)
    assert (status == 0) == (said == "")
    assert status in (0, 1)
    if status:
        assert "nothing is lost: " in said and "No space left on device; make room" in said
    assert disk.open_descriptors == set()
    assert restarted_items(folder) == ITEMS
    assert restarted_items(folder, b"work2") == [(b"another", 1, 0)]


def test_full_disk_leaves_no_temporary_file(folder: Path, pack: Pack) -> None:
    disk = FaultyDisk()
    disk.room = 20
    status, out, said = pack("--json", folder, disk=disk)
    assert status == 1
    first, second = map(json.loads, out.splitlines())
    assert (first["state"], second["state"]) == ("failed", "unchanged")
    sentence = "queue work: not packed, and nothing is lost: No space left on device; make room on the disk"
    assert said.startswith(f"kestrel-qpack: {sentence}")
    assert first["reason"].startswith(sentence)
    assert not [name for name in files_of(folder) if "~" in name]
    assert restarted_items(folder) == ITEMS


# The folder.


def test_folder_in_use_is_refused_with_75_but_verified(folder: Path) -> None:
    (folder / ".kestrel").mkdir()
    with owned(folder / ".kestrel" / "lock") as owner:
        done = run("qpack", folder)
        assert (done.returncode, done.stdout) == (75, b"")
        assert done.stderr.decode() == (
            f"kestrel-qpack: another server (process {owner.pid}) owns the queue folder {folder}:"
            " stop it first, or check the files with --verify\n"
        )
        assert run("qpack", "--verify", folder).returncode == 0
        assert files_of(folder) == FILES
    assert run("qpack", folder).returncode == 0


def test_folder_is_locked_only_while_packing(folder: Path, pack: Pack) -> None:
    disk = FaultyDisk()
    lock = os.fsencode(folder / ".kestrel" / "lock")
    refused = []

    def try_to_own() -> None:
        with pytest.raises(FolderInUse):
            FolderLock(lock)
        refused.append(True)

    disk.before("pack published", try_to_own)
    assert pack(folder, disk=disk)[0] == 0
    assert refused == [True]
    FolderLock(lock).release()


def test_missing_folder_is_not_created(tmp_path: Path, pack: Pack) -> None:
    for arguments in ([], ["--verify"]):
        said = error_of(pack, 2, *arguments, tmp_path / "missing")
        assert said == f"kestrel-qpack: there is no folder {tmp_path}/missing: name the folder of the queues\n"
    assert not (tmp_path / "missing").exists()


def test_missing_queue_is_reported_before_packing(folder: Path, pack: Pack) -> None:
    said = error_of(pack, 2, "--queue", "work", "--queue", "nothing", folder)
    assert said == f"kestrel-qpack: there is no queue nothing in {folder}: it has work, work2\n"
    assert files_of(folder) == FILES


def test_read_only_folder_has_status_73(folder: Path, pack: Pack) -> None:
    said = error_of(pack, 73, folder, disk=RefusingDisk(errno.EROFS, b""))
    assert said.startswith(f"kestrel-qpack: the folder {folder} cannot be used: ")
    assert "Read-only file system; mount it for writing" in said


def test_files_of_another_user_are_refused(folder: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr("kestrel.tools.qpack.os.geteuid", lambda: owner + 1)
    assert f"belong to user {owner}, and the new ones would not" in error_of(pack, 73, folder)
    assert files_of(folder) == FILES
    assert pack("--verify", folder)[0] == 0


def test_interruption_is_reported_and_loses_nothing(folder: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(packing, "publish", interrupt)
    assert error_of(pack, 130, folder) == "kestrel-qpack: interrupted\n"
    assert restarted_items(folder) == ITEMS


@pytest.mark.parametrize("seed", range(5))
def test_random_history_keeps_its_items(tmp_path: Path, pack: Pack, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_window(monkeypatch, 200)
    chance = random.Random(seed)
    files: dict[str, bytes] = {}
    takes = RandomTakes(chance)
    for name in ("work.1", "work.2", "work.3", "work.10", "work"):
        puts = (addx(chance.randbytes(chance.randrange(50)), chance.randrange(1 << 40)) for _ in range(300))
        files[name] = b"".join(takes.record() if chance.random() < 0.5 else next(puts) for _ in range(300))
    files["work"] += open_(9001) + open_(9002) + open_(9003) + unremove(9002) + save_xid(7) + unremove(9001)
    fill(tmp_path / "a", files)
    fill(tmp_path / "b", files)
    assert pack(tmp_path / "a")[0] == 0
    assert set(files_of(tmp_path / "a")) == {"work"}
    errors = restarted_errors(tmp_path / "b")
    assert max(errors) == 7
    assert restarted_errors(tmp_path / "a") == errors
    assert restarted_items(tmp_path / "a") == restarted_items(tmp_path / "b")
