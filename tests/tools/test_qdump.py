"""kestrel-qdump on journals."""

from __future__ import annotations

import base64
import errno
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kestrel.config.model import QueueSettings
from kestrel.testing.faults import FaultyDisk
from tests.child import Child
from tests.journal import reference
from tests.journal.handwritten import (
    REMOVE,
    REMOVE_TENTATIVE,
    add,
    add_xid,
    addx,
    confirm,
    continue_,
    open_,
    save_xid,
    state_dump,
    unremove,
)
from tests.journal.restarts import NOW_MS, files_of
from tests.tools.conftest import Dump, error_of
from tests.tools.test_qpack import CASES, GOLDEN
from tests.tools.tool_processes import ENVIRONMENT, check_large_dump, command, fill, run
from tests.torture.damage import replayed


def objects(out: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the records and the summaries of JSON output."""
    *records, last = [json.loads(line) for line in out.splitlines()]
    return records, last["summary"]


# Records.


def test_each_record_is_a_line_with_its_fields(tmp_path: Path, dump: Dump) -> None:
    contents = [
        addx(b"one", 1_700_000_000_000, 1_700_000_000_001),
        add(b"two", 1_700_000_000),
        add_xid(5, b"three", 0),
        continue_(6, b"", 1),
        REMOVE,
        REMOVE_TENTATIVE,
        save_xid(7),
        open_(8),
        unremove(8),
        confirm(5),
        state_dump(9, add_xid(1, b"x")),
    ]
    fill(tmp_path, {"work": b"".join(contents)})
    status, out, said = dump(tmp_path / "work")
    assert (status, said) == (0, "")
    epoch = "2023-11-14T22:13:20"
    assert out.decode().splitlines()[:12] == [
        "file work",
        f"           0  ADDX                  3 bytes, added {epoch}.000Z (1700000000000),"
        f" expires {epoch}.001Z (1700000000001)",
        f"          24  ADD                   3 bytes, expires {epoch}.000Z (1700000000000)",
        "          36  ADD_XID               xid 5, 5 bytes, added 1970-01-01T00:00:00.000Z (0), no expiry",
        "          66  CONTINUE              xid 6, 0 bytes, added 1970-01-01T00:00:00.001Z (1), no expiry",
        "          91  REMOVE",
        "          92  REMOVE_TENTATIVE",
        "          93  SAVE_XID              xid 7",
        "          98  REMOVE_TENTATIVE_XID  xid 8",
        "         103  UNREMOVE              xid 8, one error more",
        "         108  CONFIRM_REMOVE        xid 5",
        "         113  STATE_DUMP            xid 9, restates 1 open read",
    ]


def test_unremove_record_shows_its_error_count(tmp_path: Path, dump: Dump) -> None:
    again = [open_(1) + unremove(1), *(open_(1) + save_xid(errors) + unremove(1) for errors in (1, 0, 5))]
    fill(tmp_path, {"work": addx(b"one") + b"".join(again)})
    _, out, _ = dump(tmp_path / "work")
    lines = [line.split(None, 1)[1] for line in out.decode().splitlines() if "  UNREMOVE  " in line]
    told = ["one error more", "1 error", "0 errors", "5 errors"]
    assert lines == [f"UNREMOVE              xid 1, {each}" for each in told]
    records, _ = objects(dump("--json", tmp_path / "work")[1])
    assert [record["errors"] for record in records if record["record"] == "UNREMOVE"] == [None, 1, 0, 5]
    assert all("errors" not in record for record in records if record["record"] != "UNREMOVE")


def test_time_outside_the_calendar_is_shown_as_a_number(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work": addx(b"", (1 << 63) - 1, -(1 << 63))})
    status, out, _ = dump(tmp_path / "work")
    assert status == 0
    assert b"added 9223372036854775807, expires -9223372036854775808\n" in out


def test_data_is_shown_on_one_line_with_escapes(tmp_path: Path, dump: Dump) -> None:
    shown = {
        b"plain": "plain",
        "caf\u00e9 \u65e5".encode(): "caf\u00e9 \u65e5",
        b"a\nb\r\t\\": r"a\nb\r\t\\",
        b"\x1b[2J\x00\x7f": r"\x1b[2J\x00\x7f",
        b"\xff\xfe": r"\xff\xfe",
        "\x9b2J".encode(): r"\x9b2J",
    }
    fill(tmp_path, {"work": b"".join(map(addx, shown))})
    out = dump("-d", tmp_path / "work")[1].decode()
    assert [line.partition("no expiry  ")[2] for line in out.split("\n")[1 : 1 + len(shown)]] == list(shown.values())


def test_data_is_shown_only_with_d(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work": addx(b"secret")})
    for form in ([], ["--json"], ["-q"], ["-q", "-d"]):
        assert b"secret" not in dump(*form, tmp_path / "work")[1]
        assert base64.b64encode(b"secret") not in dump(*form, tmp_path / "work")[1]


def test_json_has_an_object_for_each_record_and_a_summary(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work": addx(b"\xff", 5, 6) + open_(1) + add(b"x")})
    records, (summary,) = objects(dump("--json", "-d", tmp_path / "work")[1])
    usual = {"queue": "work", "file": "work"}
    one = {"data_bytes": 1, "add_ms": 5, "expiry_ms": 6, "data": "/w=="}
    two = {"data_bytes": 1, "add_ms": None, "expiry_ms": None, "data": "eA=="}
    assert records == [
        {**usual, "offset": 0, "record": "ADDX", "bytes": 22, **one},
        {**usual, "offset": 22, "record": "REMOVE_TENTATIVE_XID", "bytes": 5, "xid": 1},
        {**usual, "offset": 27, "record": "ADD", "bytes": 10, **two},
    ]
    assert summary["records"] == {"ADDX": 1, "REMOVE_TENTATIVE_XID": 1, "ADD": 1}
    assert (summary["items"], summary["data_bytes"], summary["open_reads"], summary["expired"]) == (2, 2, 1, 1)


# The raw forms.


def test_option_a_prints_the_data_of_all_added_items(tmp_path: Path, dump: Dump) -> None:
    contents = addx(b"\x00\xff") + REMOVE + add(b"b") + add_xid(1, b"c") + open_(3) + continue_(3, b"d\n")
    fill(tmp_path, {"work": contents + state_dump(1, add_xid(1, b"no"))})
    assert dump("-A", tmp_path / "work") == (0, b"\x00\xff\nb\nc\nd\n\n", "")


def test_option_q_prints_open_reads_before_other_items(tmp_path: Path, dump: Dump) -> None:
    contents = b"".join(map(addx, (b"gone", b"a", b"b", b"c"))) + REMOVE + open_(7) + open_(3)
    fill(tmp_path, {"work": contents})
    assert dump("-Q", tmp_path / "work") == (0, b"b\na\nc\n", "")


@pytest.mark.parametrize("case", CASES)
def test_recorded_journals_have_the_items_of_a_restart(case: str, dump: Dump) -> None:
    folder = GOLDEN / case / "journal"
    before = files_of(folder)
    for name, files in replayed(before).items():
        items = reference.items_after(*(file.before for file in files), now_ms=NOW_MS)
        _, out, _ = dump("-Q", "--queue", name, folder)
        assert out == b"".join(data + b"\n" for data, _, _ in items)
        _, (summary,) = objects(dump("-q", "--json", "--queue", name, folder)[1])
        assert summary["items"] == len(items)
    assert files_of(folder) == before
    assert not (folder / ".kestrel").exists()


# Which files.


def test_file_stands_for_all_files_of_its_queue(tmp_path: Path, dump: Dump) -> None:
    files = {"work.500": b"replaced", "work.1000.pack": b"packed", "work.900": b"replaced too", "work.10000": b"later"}
    files |= {"work.9999": b"late", "work": b"last", "work~~1": b"temporary", "work2": b"another queue's"}
    fill(tmp_path, {name: addx(data) for name, data in files.items()})
    for name in ("work", "work.9999", "work.500", "work.1000.pack", "work~~1"):
        assert dump("-Q", tmp_path / name) == (0, b"packed\nlate\nlater\nlast\n", "")
    assert dump("-Q", tmp_path / "work", tmp_path / "work.9999")[1].count(b"packed") == 1
    (tmp_path / "work").unlink()
    assert dump("-Q", tmp_path / "work") == (0, b"packed\nlate\nlater\n", "")


def test_this_file_reads_only_that_file(tmp_path: Path, dump: Dump) -> None:
    files = {"work": REMOVE + addx(b"b"), "work.1": addx(b"a"), "work~~1": addx(b"c"), "work.1.1700": addx(b"d")}
    fill(tmp_path, files)
    for name, data in (("work", b"b\n"), ("work.1", b"a\n"), ("work~~1", b"c\n"), ("work.1.1700", b"d\n")):
        assert dump("-Q", "--this-file", tmp_path / name) == (0, data, "")


def test_folder_stands_for_all_or_the_named_queues(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"b": addx(b"1"), "a": addx(b"2"), "c": addx(b"3"), "foreign.txt": b"\xee", "t~~1": b""})
    assert dump("-Q", tmp_path)[1] == b"2\n1\n3\n"
    assert dump("-Q", "--queue", "c", "--queue", "a", f"{tmp_path}/")[1] == b"3\n2\n"


def test_queue_name_is_that_of_its_file(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"caf\u00e9": addx(b"1"), "\x9bx": addx(b"2")})
    assert dump("-Q", "--queue", "caf\u00e9", tmp_path)[1] == b"1\n"
    assert "queue caf\u00e9: 1 file" in dump("-q", tmp_path / "caf\u00e9")[1].decode()
    assert r"queue \x9bx: 1 file" in dump("-q", tmp_path / "\x9bx")[1].decode()


def test_relative_path_needs_no_slash(tmp_path: Path, dump: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path, {"work": addx(b"a")}))
    assert dump("-Q", "work") == dump("-Q", ".") == (0, b"a\n", "")


# Damage.


def test_damage_is_reported_with_its_place_and_status_1(tmp_path: Path, dump: Dump) -> None:
    files = {"work.1": addx(b"a") + b"\xee" + addx(b"lost"), "work": addx(b"b")}
    fill(tmp_path, files)
    status, out, said = dump("-q", tmp_path / "work")
    sentence = "damaged: work.1, offset 22: unknown opcode 238; 26 bytes from there on cannot be read"
    assert (status, said) == (1, f"kestrel-qdump: {sentence}\n")
    assert f"  {sentence}\n" in out.decode()
    assert dump("-Q", tmp_path / "work")[:2] == (1, b"a\nb\n")
    assert dump("-A", tmp_path / "work")[:2] == (1, b"a\nb\n")
    _, (summary,) = objects(dump("--json", tmp_path / "work")[1])
    assert summary["damage"] == [
        {"file": "work.1", "offset": 22, "problem": "unknown opcode 238", "kind": "damaged", "bytes_behind": 26}
    ]
    assert files_of(tmp_path) == files


def test_unfinished_last_record_is_a_warning(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work": addx(b"a") + addx(b"b")[:-1]})
    status, out, said = dump(tmp_path / "work")
    assert status == 0
    assert "unfinished: work, offset 22: the last record is cut short (21 bytes)" in said
    assert said.removeprefix("kestrel-qdump: ").strip() in out.decode()


def test_damaged_queue_does_not_hide_others(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"a": b"\xee", "b": addx(b"kept")})
    assert dump("-Q", tmp_path)[:2] == (1, b"kept\n")


def test_unreadable_file_is_reported_and_others_are_read(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"a": addx(b"1"), "b": addx(b"2")})
    disk = FaultyDisk()
    disk.fail("read", errno.EIO, times=1)
    status, out, said = dump("-Q", tmp_path, disk=disk)
    assert (status, out) == (1, b"2\n")
    assert said.startswith("kestrel-qdump: queue a: Input/output error; ")
    assert disk.open_descriptors == set()


def test_items_on_disk_before_damage_are_printed(tmp_path: Path, dump: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kestrel.tools.files.journal_contents.SETTINGS", QueueSettings(max_memory_size_bytes=3))
    items = [b"%d" % number for number in range(100)]
    damaged = b"".join(map(addx, items)) + b"\xee" + addx(b"lost")
    fill(tmp_path, {"work.1": damaged, "work": REMOVE + damaged})
    status, out, _ = dump("-Q", tmp_path / "work")
    assert (status, out.split()) == (1, items[1:] + items)


# Files that change.


def test_files_renamed_or_erased_during_a_read_are_read(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work.1": addx(b"a"), "work": addx(b"b")})
    disk = FaultyDisk()

    def replace() -> None:
        (tmp_path / "work.1").unlink()
        (tmp_path / "work").rename(tmp_path / "work.2")
        (tmp_path / "work").write_bytes(b"")

    disk.before("read", replace)
    assert dump("-Q", tmp_path / "work", disk=disk) == (0, b"a\nb\n", "")


@pytest.mark.parametrize("opened", [0, 1])
def test_files_renamed_during_open_are_found_again(tmp_path: Path, dump: Dump, opened: int) -> None:
    fill(tmp_path, {"work.1": addx(b"a"), "work": addx(b"b")})
    disk = FaultyDisk()

    def rotate() -> None:
        (tmp_path / "work").rename(tmp_path / "work.2")
        (tmp_path / "work").write_bytes(addx(b"c"))
        (tmp_path / "work.1").rename(tmp_path / "work.2.pack")

    def later() -> None:
        disk.before("open_read", rotate)

    disk.before("open_read", later if opened else rotate)
    assert dump("-Q", tmp_path / "work", disk=disk) == (0, b"a\nc\n", "")
    assert disk.open_descriptors == set()


def test_queue_deleted_meanwhile_is_reported(tmp_path: Path, dump: Dump) -> None:
    fill(tmp_path, {"work": addx(b"a")})
    disk = FaultyDisk()
    disk.before("open_read", (tmp_path / "work").unlink)
    said = error_of(dump, 1, "-Q", tmp_path / "work", disk=disk)
    assert said.startswith("kestrel-qdump: there is no queue work in ")


# Invalid arguments, and the end.


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{folder}/nothing"], "there is no {folder}/nothing: {folder} has work"),
        (["{folder}/nowhere/work"], "there is no folder {folder}/nowhere: name one that has journals"),
        (["{folder}/foreign.txt"], "foreign.txt is not the name of a journal file; use --this-file to read it anyway"),
        (["--this-file", "{folder}/nothing"], "there is no file {folder}/nothing: name one that exists"),
        (["--this-file", "{folder}"], "--this-file needs a file, and {folder} is a folder"),
        (["--queue", "work", "{folder}/work"], "--queue needs a folder, and {folder}/work is not one"),
        (["--queue", "no.name", "{folder}"], "no queue can have the name 'no.name'"),
        (["--queue", "\u65e5", "{folder}"], "no queue can have the name '\u65e5'"),
        (["-A", "-Q", "{folder}"], "not allowed with argument"),
        ([], "required: PATH"),
    ],
)
def test_invalid_arguments_have_status_2(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    fill(tmp_path, {"work": addx(b"a"), "foreign.txt": b""})
    done = run("qdump", *(each.format(folder=tmp_path) for each in arguments))
    assert (done.returncode, done.stdout) == (2, b"")
    assert sentence.format(folder=tmp_path) in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_broken_pipe_ends_it_without_an_error(tmp_path: Path) -> None:
    fill(tmp_path, {"work": addx(b"x" * 100) * 20_000})
    pipe = subprocess.PIPE
    for form in ("-A", "-Q", "-d", "--json"):
        with Child(command("qdump", form, tmp_path / "work"), stdout=pipe, stderr=pipe, env=ENVIRONMENT) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


@pytest.mark.parametrize("tool", ["qdump", "qpack"])
def test_failed_output_is_reported(tmp_path: Path, tool: str) -> None:
    fill(tmp_path, {"work": addx(b"x") * 10_000})
    with open("/dev/full", "wb") as full:
        done = run(tool, tmp_path, stdout=full)
    sentence = "standard output cannot be written: No space left on device; make room on the disk and run this again"
    assert (done.returncode, done.stderr.decode()) == (1, f"kestrel-{tool}: {sentence}\n")


def test_ascii_locale_does_not_break_the_output(tmp_path: Path) -> None:
    fill(tmp_path, {"work": addx("\u65e5".encode())})
    environment = {**ENVIRONMENT, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run("qdump", "-d", tmp_path / "work", env=environment, check=True)
    assert "\u65e5\n".encode() in done.stdout


# Large queues.


@pytest.mark.parametrize("form", ["-Q", "-q"])
def test_large_queue_needs_little_memory(tmp_path: Path, form: str) -> None:
    """100 MB, a quarter of which was removed."""
    record = addx(b"x" * 10_000)
    with (tmp_path / "work.1").open("wb") as rotated:
        for _ in range(5000):
            rotated.write(record)
    with (tmp_path / "work").open("wb") as current:
        for _ in range(5000):
            current.write(record + (REMOVE if _ % 2 else b""))
    check_large_dump(form, tmp_path / "work", items=7500, most_mib=40)
