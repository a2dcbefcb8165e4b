"""kestrel-convert: journals to scrolls and back, with the same items."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sys
from pathlib import Path

import pytest

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.errors import StorageError
from kestrel.journal.fileset import current_name
from kestrel.scroll.name_encoding import EscapedNames, stem_of
from kestrel.storage.folder_resources import claim_folder
from kestrel.testing.faults import FaultyDisk
from kestrel.tools import progress
from kestrel.tools.convert import command as convert
from kestrel.tools.convert import sources as convert_sources
from kestrel.tools.convert import targets as convert_targets
from kestrel.tools.convert.conversion_folders import ConversionFolder
from kestrel.tools.files.folder import check_owner
from tests.journal.handwritten import REMOVE, RandomTakes, add, addx, confirm, open_, save_xid, unremove
from tests.journal.restarts import NOW_MS, files_of
from tests.scroll.handwritten import DELETED, READER, WRITER, T, errors, put, read_done, read_head, sealed, targets
from tests.scroll.test_recorded import GOLDEN as SCROLL_GOLDEN
from tests.server.running import Processes
from tests.tools.conftest import Convert, RefusingDisk, error_of
from tests.tools.converted import Held, served
from tests.tools.test_progress import Terminal
from tests.tools.test_qpack import CASES, GOLDEN
from tests.tools.tool_processes import fill, run

JOURNALS = {
    "work.1000": addx(b"gone") + addx(b"open", 5, 6) + addx(b"a") + addx(b"also open"),
    "work.2000": REMOVE + open_(4) + addx(b"b"),
    "work": addx(b"c") + REMOVE + open_(2) + addx(b"d") + addx(b"e") + open_(3) + confirm(3) + b"\x02\x10",
    "failed": addx(b"x") + addx(b"y") + addx(b"z") + open_(1) + open_(2) + save_xid(4) + unremove(2) + open_(3),
    "empty": b"",
    "old": add(b"without a time", NOW_MS // 1000 + 60),
    "ev": addx(b"1", 1) + addx(b"2", 2, 99),
    "ev+a": addx(b"1", 1) + addx(b"2", 2, 99),
    "ev+b": addx(b"2", 2, 99) + addx(b"only b", 3),
}
SCROLLS = {
    "work.1000": WRITER + put(1, b"one") + put(2, b"two", errors=2) + targets(0, b"x") + put(3, b"for x"),
    "work.2000": WRITER + put(4, b"four", expiry_ms=NOW_MS + 1) + put(5, b"five") + bytes(50),
    "work.read.:own": READER + read_head(1) + read_done(4),
    "work.read.x": READER + read_head(0) + read_done(2) + errors(_3=7),
    "zoo.5": WRITER + put(1, b"z"),
    "none.7": WRITER,
    "none.read.": READER + read_head(9),
    "gone.8": WRITER + put(1, b"deleted"),
    "gone.read.": sealed(read_head(0), DELETED),
    "archive~work.3": WRITER + put(1, b"archived"),
}
UNREAD = READER + read_head(0)
MADE = {"journal": JOURNALS, "scroll": SCROLLS}
OTHER = {"journal": "scroll", "scroll": "journal"}
BOTH_WAYS = pytest.mark.parametrize("kind", list(OTHER))

Places = tuple[str, str]


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    return fill(tmp_path / "journals", JOURNALS)


@pytest.fixture
def scrolls(tmp_path: Path) -> Path:
    return fill(tmp_path / "scrolls", SCROLLS)


@pytest.fixture
def places(tmp_path: Path, journals: Path) -> Places:
    """Return the arguments that convert the journals to scrolls in a new folder."""
    return f"journal:{journals}", f"scroll:{tmp_path}/new"


# Converted items.


def test_journals_become_scrolls_with_their_items(
    tmp_path: Path, journals: Path, places: Places, convert_it: Convert
) -> None:
    status, out, said = convert_it(*places)
    sizes = [sum(map(len, files_of(folder).values())) for folder in (journals, tmp_path / "new")]
    assert (status, said) == (0, "")
    assert out == (
        "queue   items  bytes of data  compared\n"
        "empty       0              0     equal\n"
        "ev          2              2     equal\n"
        "ev+a        2              2     equal\n"
        "ev+b        2              7     equal\n"
        "failed      3              3     equal\n"
        "old         1             14     equal\n"
        "work        5             16     equal\n"
        f"7 queues, 15 items: journal:{journals}, {sizes[0]} -> scroll:{tmp_path}/new, {sizes[1]} bytes\n"
    )
    found = served("scroll", tmp_path / "new")
    assert found == served("journal", journals)
    assert [held.data for held in found[b"work"]] == [b"also open", b"open", b"c", b"d", b"e"]
    assert [(held.data, held.errors) for held in found[b"failed"]] == [(b"x", 0), (b"y", 4), (b"z", 0)]
    assert found[b"empty"] == []
    assert found[b"ev+b"] == [Held(b"2", 2, 99, 0), Held(b"only b", 3, 0, 0)]


def test_scrolls_become_journals_with_their_items(tmp_path: Path, scrolls: Path, convert_it: Convert) -> None:
    assert convert_it(f"scroll:{scrolls}", f"journal:{tmp_path}/new")[0] == 0
    found = served("journal", tmp_path / "new")
    assert found == served("scroll", scrolls)
    assert sorted(found) == [b"none", b"work", b"work+x", b"zoo"]
    assert [(held.data, held.errors) for held in found[b"work"]] == [(b"two", 2), (b"five", 0)]
    assert [(held.data, held.errors, held.expiry_ms) for held in found[b"work+x"]] == [
        (b"one", 0, 0),
        (b"for x", 7, 0),
        (b"four", 0, NOW_MS + 1),
        (b"five", 0, 0),
    ]


@BOTH_WAYS
def test_source_is_unchanged_and_target_has_its_kind(tmp_path: Path, kind: str, convert_it: Convert) -> None:
    source, target = fill(tmp_path / "old", MADE[kind]), tmp_path / "new"
    assert convert_it(f"{kind}:{source}", f"{OTHER[kind]}:{target}")[0] == 0
    assert files_of(source) == MADE[kind]
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]
    claim_folder(Disk(), os.fsencode(target), OTHER[kind])
    with pytest.raises(StorageError, match=f"belongs to {OTHER[kind]}"):
        claim_folder(Disk(), os.fsencode(target), kind)


def there_and_back(kind: str, source: Path, convert_it: Convert) -> None:
    """Convert a folder to the other kind and back. A server must serve the same items of all three."""
    found = served(kind, source)
    new, back = source.parent / "there", source.parent / "back"
    assert convert_it("-q", f"{kind}:{source}", f"{OTHER[kind]}:{new}") == (0, "", "")
    assert served(OTHER[kind], new) == found
    assert convert_it("-q", f"{OTHER[kind]}:{new}", f"{kind}:{back}") == (0, "", "")
    assert served(kind, back) == found


DAMAGED_JOURNALS = {"08a_bad_opcode_tail", "08e_zero_tail", "08n_corrupt_archive"}


@pytest.mark.parametrize("case", CASES)
def test_recorded_journals_keep_their_items_there_and_back(tmp_path: Path, case: str, convert_it: Convert) -> None:
    source = shutil.copytree(GOLDEN / case / "journal", tmp_path / "old")
    if case not in DAMAGED_JOURNALS:
        there_and_back("journal", source, convert_it)
        return
    said = error_of(convert_it, 1, f"journal:{source}", f"scroll:{tmp_path}/there")
    assert "damaged: work" in said
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("folder", sorted(SCROLL_GOLDEN.glob("*/journal*")), ids=lambda path: "/".join(path.parts[-2:]))
def test_recorded_scrolls_keep_their_items_there_and_back(tmp_path: Path, folder: Path, convert_it: Convert) -> None:
    source = shutil.copytree(folder, tmp_path / "old")
    if folder.parent.name == "L22_head_beyond_tail":
        said = error_of(convert_it, 1, f"scroll:{source}", f"journal:{tmp_path}/there")
        assert "its id 99 is beyond the last item, 3" in said
        Path(source, "work.read.").unlink()
    there_and_back("scroll", source, convert_it)


@pytest.mark.parametrize("seed", range(6))
def test_random_history_keeps_its_items_there_and_back(
    tmp_path: Path, seed: int, convert_it: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_sources, "_WINDOWS_BYTES", 400)
    monkeypatch.setattr(convert_sources, "_LEAST_WINDOW_BYTES", 100)
    monkeypatch.setattr(convert_targets, "_MOST_ERRORS", 3)
    if seed % 2:
        small = QueueSettings(default_journal_size_bytes=500)
        monkeypatch.setattr(convert_targets, "QueueSettings", lambda: small)
    chance = random.Random(seed)
    names = ("ev", "ev+a", "ev+b", "ev+c", "ev+b+d", "work", "gone+child")
    records: dict[str, list[bytes]] = {name: [] for name in names}
    takes = {name: RandomTakes(chance) for name in names}
    for number in range(600):
        item = addx(b"%d" % number * chance.randrange(9), number // 4, chance.choice((0, 0, 1, 10**13)))
        for name in chance.choice((names[:4], names[:4], names[:4], names[1:2], names[4:5], names[5:6], names[6:])):
            records[name].append(item)
        name = chance.choice(names)
        records[name].append(takes[name].record())
    source = fill(tmp_path / "old", {name: b"".join(each) for name, each in records.items()})
    there_and_back("journal", source, convert_it)


@pytest.mark.parametrize(
    "name", [b"caf\xe9", b"\xff:,\xa0", b"+x", b"x+", b"a+b+c", b"a+", b"n" * 200, b"\xe9" * 100, b"p+" + b"\xe9" * 100]
)
def test_queue_names_are_kept(tmp_path: Path, name: bytes, convert_it: Convert) -> None:
    source = fill(tmp_path / "old", {os.fsdecode(current_name(name)): addx(b"item"), "p": b""})
    there_and_back("journal", source, convert_it)
    assert served("journal", tmp_path / "back") == {name: [Held(b"item", 1, 0, 0)], b"p": []}


def test_queue_name_too_long_for_a_journal_is_refused(tmp_path: Path, convert_it: Convert) -> None:
    name = b"\xe9" * 150
    source = fill(tmp_path / "old", {f"{os.fsdecode(stem_of(name))}.1": WRITER + put(1, b"x")})
    EscapedNames(Disk(), os.fsencode(source)).remember(stem_of(name), name)
    assert [*served("scroll", source)] == [name]
    said = error_of(convert_it, 1, f"scroll:{source}", f"journal:{tmp_path}/new")
    assert "cannot be kept in a journal, whose file has the same name" in said


def test_queue_created_again_is_not_deleted(tmp_path: Path, convert_it: Convert) -> None:
    files = {
        "work.2": WRITER + put(5, b"again"),
        "work.read.": READER + read_head(4),
        "work.read.:own": sealed(DELETED),  # left by a crash when it had children
        "work.read.x": sealed(DELETED),
    }
    source = fill(tmp_path / "old", files)
    there_and_back("scroll", source, convert_it)
    assert served("journal", tmp_path / "there") == {b"work": [Held(b"again", T, 0, 0)]}
    fill(source, {"work.read.:own": READER + read_head(5)})
    assert convert_it(f"scroll:{source}", f"journal:{tmp_path}/other")[0] == 0
    assert served("journal", tmp_path / "other") == served("scroll", source) == {b"work": []}


def test_item_in_two_writer_files_is_converted_once(tmp_path: Path, convert_it: Convert) -> None:
    one, two, three = (put(number, data) for number, data in enumerate((b"one", b"two", b"three"), 1))
    source = fill(tmp_path / "old", {"work.1": WRITER + one + two, "work.2": WRITER + two + three})
    there_and_back("scroll", source, convert_it)
    assert [held.data for held in served("journal", tmp_path / "there")[b"work"]] == [b"one", b"two", b"three"]


# Families.


def test_items_of_a_parent_and_its_children_are_written_once(tmp_path: Path, convert_it: Convert) -> None:
    shared = [addx(b"%d" % number * 500, number) for number in range(100)]
    names = ["ev", *(f"ev+{number}" for number in range(5))]
    source = fill(tmp_path / "old", {name: b"".join(shared[taken:]) for taken, name in enumerate(names)})
    assert convert_it("-q", f"journal:{source}", f"scroll:{tmp_path}/new") == (0, "", "")
    (writer,) = [contents for contents in files_of(tmp_path / "new").values() if contents.startswith(WRITER)]
    assert writer == WRITER + b"".join(put(number + 1, b"%d" % number * 500, number) for number in range(100))
    assert served("scroll", tmp_path / "new") == served("journal", source)


# Refusals.


@BOTH_WAYS
def test_folder_in_use_is_refused_with_75(tmp_path: Path, kind: str, convert_it: Convert) -> None:
    source = fill(tmp_path / "old", MADE[kind])
    (source / ".kestrel").mkdir()
    lock = FolderLock(os.fsencode(source / ".kestrel" / "lock"))
    said = error_of(convert_it, 75, f"{kind}:{source}", f"{OTHER[kind]}:{tmp_path}/new")
    assert said.endswith(f"(process {os.getpid()}) owns the queue folder {source}: stop it first\n")
    assert os.listdir(tmp_path) == ["old"]
    lock.release()
    assert convert_it(f"{kind}:{source}", f"{OTHER[kind]}:{tmp_path}/new")[0] == 0


def test_source_is_locked_only_during_the_conversion(
    tmp_path: Path, journals: Path, places: Places, convert_it: Convert
) -> None:
    disk = FaultyDisk()
    refused = []

    def try_to_convert() -> None:
        status, _, said = convert_it(f"journal:{journals}", f"scroll:{tmp_path}/other")
        refused.append((status, "owns the queue folder" in said))

    disk.before("sync", try_to_convert)
    assert convert_it(*places, disk=disk)[0] == 0
    assert refused == [(75, True)]
    FolderLock(os.fsencode(journals / ".kestrel" / "lock")).release()


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("journal:{0}/missing", "scroll:{0}/new", "there is no folder {0}/missing: name the folder of the queues"),
        ("journal:{0}/journals", "scroll:{0}/journals", "both are the same folder: name another target"),
        ("journal:{0}/journals", "scroll:{0}/link", "both are the same folder: name another target"),
        ("journal:{0}/journals", "journal:{0}/new", "both are journals: copy the folder, or name one of the other"),
        ("journal:{0}/journals", "scroll:{0}/journals/new", "one of the two folders is in the other"),
        ("journal:{0}/journals", "scroll:{0}/no/new", "there is no folder {0}/no for the target: make it first"),
        ("journal:{0}/journals", "scroll:{0}/file", "{0}/file exists and is not a folder: name another target"),
        ("journal:{0}/journals", "scroll:{0}/scrolls", "the folder {0}/scrolls exists and is not empty"),
        ("journal:{0}/scrolls", "scroll:{0}/new", "the folder {0}/scrolls has no journals; it has gone, none, work"),
        ("scroll:{0}/journals", "journal:{0}/new", "the folder {0}/journals has no scrolls; it has empty"),
        ("scroll:{0}/none", "journal:{0}/new", "the folder {0}/none has no scrolls; it has no queues"),
        ("scroll:{0}/noted", "journal:{0}/new", "the folder {0}/noted is of the kind journal: name it"),
    ],
)
def test_invalid_places_are_refused_without_changes(
    tmp_path: Path, journals: Path, scrolls: Path, source: str, target: str, says: str, convert_it: Convert
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "none").mkdir()
    (tmp_path / "link").symlink_to(journals)
    fill(tmp_path / "noted" / ".kestrel", {"storage-journal": b""})
    claim_folder(Disk(), os.fsencode(tmp_path / "noted"), "journal")
    before = sorted(os.listdir(tmp_path))
    said = error_of(convert_it, 2, source.format(tmp_path), target.format(tmp_path))
    assert said.startswith("kestrel-convert: " + says.format(tmp_path))
    assert sorted(os.listdir(tmp_path)) == before
    assert (files_of(journals), files_of(scrolls)) == (JOURNALS, SCROLLS)
    assert [path for path in tmp_path.glob("*/.kestrel") if path.parent.name != "noted"] == []
    assert not (tmp_path / "noted" / ".kestrel" / "lock").exists()


@pytest.mark.parametrize("source", ["new.converting", "new.converting/queues"])
def test_source_in_the_staging_folder_is_refused(tmp_path: Path, source: str, convert_it: Convert) -> None:
    folder = fill(tmp_path / source, JOURNALS)
    fill(tmp_path / "new.converting", {"lock": b""})
    files = files_of(folder)
    said = error_of(convert_it, 2, "--anew", f"journal:{folder}", f"scroll:{tmp_path}/new")
    assert said == (
        f"kestrel-convert: the target would be made in {tmp_path}/new.converting, where the source is: rename that\n"
    )
    assert files_of(folder) == files


@pytest.mark.parametrize("text", ["folder", "memory:x", "journal:", ""])
def test_place_without_a_kind_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        convert.main([text, "scroll:/x"])
    assert end.value.code == 2
    assert "names no kind and folder: write it as in journal:/var/spool/kestrel" in capsys.readouterr().err


def test_folder_with_both_kinds_is_refused(journals: Path, places: Places, convert_it: Convert) -> None:
    fill(journals, {"zoo.5": SCROLLS["zoo.5"]})
    assert "has journals and scrolls, and a server serves one kind" in error_of(convert_it, 1, *places)


def test_file_without_records_is_questioned_first(journals: Path, places: Places, convert_it: Convert) -> None:
    (journals / "LICENSE").write_bytes(b"Apache License")
    said = error_of(convert_it, 1, *places)
    assert said.startswith("kestrel-convert: damaged: LICENSE, offset 0: ")
    assert "; is this a folder of queues? If it is, start the server once on it" in said


@pytest.mark.parametrize(
    ("kind", "name", "end", "says"),
    [
        ("journal", "work.2000", b"\xee", "damaged: work.2000, offset 28: unknown opcode 238; 1 byte"),
        ("scroll", "work.2000", b"\x80", "damaged: work.2000, offset 70: impossible header"),
        ("scroll", "zoo.5", put(1, b"z"), "damaged: zoo.5, offset 30: the id 1 is not higher than the one before it"),
        ("scroll", "work.read.x", b"\x01", "damaged: work.read.x, offset 4: a READ_HEAD without its id"),
    ],
)
def test_damage_is_refused_with_its_place_and_a_remedy(
    tmp_path: Path, kind: str, name: str, end: bytes, says: str, convert_it: Convert
) -> None:
    good = READER if ".read." in name else MADE[kind][name].rstrip(b"\0")
    files = {**MADE[kind], name: good + end + read_head(1) * (good == READER)}
    source = fill(tmp_path / "old", files)
    said = error_of(convert_it, 1, f"{kind}:{source}", f"{OTHER[kind]}:{tmp_path}/new")
    assert said.startswith("kestrel-convert: " + says)
    assert "start the server once on this folder" in said
    assert files_of(source) == files
    assert not (tmp_path / "new").exists()
    served(kind, source)  # a server starts with it


def test_item_too_large_for_the_other_kind_is_refused(
    places: Places, convert_it: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_targets.ScrollTarget, "max_data_bytes", 8)
    said = error_of(convert_it, 1, *places)
    assert said == (
        "kestrel-convert: the queue old has an item of 14 bytes, and an item of a scroll has at most 8:"
        " take it from the queue first\n"
    )


@BOTH_WAYS
def test_item_of_the_maximum_size_is_converted(
    tmp_path: Path, kind: str, convert_it: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fill(tmp_path / "old", MADE[kind])
    largest = max(len(held.data) for items in served(kind, source).values() for held in items)
    monkeypatch.setattr(convert_targets.TARGETS[OTHER[kind]], "max_data_bytes", largest)
    assert convert_it("-q", f"{kind}:{source}", f"{OTHER[kind]}:{tmp_path}/new") == (0, "", "")
    assert served(OTHER[kind], tmp_path / "new") == served(kind, source)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {f"{os.fsdecode(stem_of(bytes(200)))}.1": WRITER + put(1, b"x")},
            "its name is not known, since .kestrel/names/ does not have it: move",
        ),
        (
            {"work.1": WRITER + put(1, b"x"), "work.read.x": UNREAD, "work:2bx.1": WRITER + put(1, b"y")},
            "the queue work+x exists twice: rename the files of one of the two\n",
        ),
    ],
    ids=["lost name", "name of another queue"],
)
def test_scroll_without_a_usable_name_is_refused(
    tmp_path: Path, files: dict[str, bytes], says: str, convert_it: Convert
) -> None:
    source = fill(tmp_path / "old", files)
    assert says in error_of(convert_it, 1, f"scroll:{source}", f"journal:{tmp_path}/new")
    assert not (tmp_path / "new").exists()


def test_mount_point_as_target_is_refused(
    tmp_path: Path, places: Places, convert_it: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.setattr("kestrel.tools.convert.conversion_folders.os.path.ismount", lambda path: path.endswith(b"/new"))
    said = error_of(convert_it, 2, *places)
    assert said == (f"kestrel-convert: {tmp_path}/new is a mount point: name a folder in it that does not exist yet\n")
    assert not (tmp_path / "new.converting").exists()


def test_files_of_another_user_are_refused(
    tmp_path: Path, journals: Path, places: Places, convert_it: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr("kestrel.tools.convert.conversion_folders.os.geteuid", lambda: owner + 1)
    assert f"belong to user {owner}, and the new ones would not" in error_of(convert_it, 73, *places)
    assert os.listdir(tmp_path) == ["journals"]
    assert files_of(journals) == JOURNALS
    assert not (journals / ".kestrel").exists()  # its owner could not open the lock in it


def test_file_erased_meanwhile_has_no_owner_to_check(journals: Path) -> None:
    place = ConversionFolder.parse(f"journal:{journals}")
    source = place.open(Disk(), NOW_MS)
    assert b"work.1000" in source.file_names
    (journals / "work.1000").unlink()
    check_owner(place.path, source.file_names, "kestrel-convert")


def test_target_folder_without_permission_is_refused_with_73(
    tmp_path: Path, places: Places, convert_it: Convert
) -> None:
    disk = RefusingDisk(errno.EACCES, b".converting")
    said = error_of(convert_it, 73, *places, disk=disk)
    assert said == (
        f"kestrel-convert: user {os.geteuid()} cannot create {tmp_path}/new.converting, which becomes the target: name"
        " a target in a folder that this user can write to\n"
    )


def test_forbidden_source_is_refused_and_read_only_source_converted(
    tmp_path: Path, journals: Path, places: Places, convert_it: Convert
) -> None:
    said = error_of(convert_it, 73, *places, disk=RefusingDisk(errno.EACCES, os.fsencode(journals)))
    assert said.startswith(f"kestrel-convert: the folder {journals} cannot be used: ")
    assert os.listdir(tmp_path) == ["journals"]
    assert convert_it("-q", *places, disk=RefusingDisk(errno.EROFS, os.fsencode(journals))) == (0, "", "")
    assert not (journals / ".kestrel").exists()


def test_scroll_without_items_and_readers_is_no_queue_unless_damaged(tmp_path: Path, convert_it: Convert) -> None:
    source = fill(tmp_path / "old", {"none.1": WRITER})
    status, out, _ = convert_it(f"scroll:{source}", f"journal:{tmp_path}/new")
    assert (status, out.splitlines()[1:]) == (
        0,
        [f"0 queues, 0 items: scroll:{source}, 4 -> journal:{tmp_path}/new, 0 bytes"],
    )
    assert served("journal", tmp_path / "new") == served("scroll", source) == {}
    fill(source, {"none.1": WRITER + b"\x80"})
    said = error_of(convert_it, 1, f"scroll:{source}", f"journal:{tmp_path}/other")
    assert said.startswith("kestrel-convert: damaged: none.1, offset 4: ")


# Comparison.


@BOTH_WAYS
def test_new_folder_with_other_items_is_discarded(tmp_path: Path, kind: str, convert_it: Convert) -> None:
    class Corrupting(Disk):
        def write(self, descriptor: int, data: bytes) -> None:
            super().write(descriptor, data.replace(b"five", b"fife").replace(b"only b", b"lonely"))

    source, target = fill(tmp_path / "old", MADE[kind]), tmp_path / "new"
    said = error_of(convert_it, 1, f"{kind}:{source}", f"{OTHER[kind]}:{target}", disk=Corrupting())
    assert said.startswith(f"kestrel-convert: queue {'ev+b' if kind == 'journal' else 'work'}: the new folder and the")
    assert not target.exists()
    assert convert_it("-q", "--anew", f"{kind}:{source}", f"{OTHER[kind]}:{target}") == (0, "", "")
    assert served(OTHER[kind], target) == served(kind, source)


def test_source_changed_meanwhile_is_refused(
    tmp_path: Path, journals: Path, places: Places, convert_it: Convert
) -> None:
    disk = FaultyDisk()
    disk.before("sync_folder", lambda: disk.before("sync_folder", lambda: fill(journals, {"work": b""})))
    said = error_of(convert_it, 1, *places, disk=disk)
    assert said == "kestrel-convert: the source has changed during the conversion: stop the server that uses it\n"
    assert not (tmp_path / "new").exists()


# Output.


def test_json_has_an_object_for_each_queue_and_a_summary(tmp_path: Path, scrolls: Path, convert_it: Convert) -> None:
    status, out, said = convert_it("--json", f"scroll:{scrolls}", f"journal:{tmp_path}/new")
    *queues, summary = map(json.loads, out.splitlines())
    assert (status, said) == (0, "")
    assert queues[1] == {"queue": "work", "state": "equal", "items": 2, "data_bytes": 7}
    assert summary == {
        "summary": {
            "source": f"scroll:{scrolls}",
            "target": f"journal:{tmp_path}/new",
            "queues": 4,
            "items": 7,
            "bytes_before": sum(len(each) for name, each in SCROLLS.items() if name != "archive~work.3"),
            "bytes_after": sum(map(len, files_of(tmp_path / "new").values())),
        }
    }


def test_each_phase_shows_its_progress_on_a_terminal(
    places: Places, convert_it: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "LARGE_BYTES", 1)
    monkeypatch.setattr(progress, "_EVERY_S", 0)
    assert convert_it("-q", *places)[0] == 0
    shown = terminal.getvalue()
    parts = [shown.index(f"{part}: ") for part in ("reading", "writing", "comparing")]
    assert parts == sorted(parts)
    assert shown.endswith("\r\x1b[K")


def test_reader_file_without_a_queue_is_reported(tmp_path: Path, scrolls: Path, convert_it: Convert) -> None:
    fill(scrolls, {"odd name.read.x": UNREAD})
    status, _, said = convert_it(f"scroll:{scrolls}", f"journal:{tmp_path}/new")
    assert (status, said.count("\n")) == (0, 1)
    assert said.startswith("kestrel-convert: odd name.read.x is a reader file, but no queue has that name")


# Real servers.


def test_servers_use_converted_folders_there_and_back(tmp_path: Path, processes: Processes) -> None:
    datas = [b"%d " % number + b"x" * (number % 97) for number in range(10_000)]
    processes.arguments = ("--storage", "journal:0")
    server = processes.serve()
    with server.connect() as client:
        client.put(b"work", *datas)
        client.ask(b"set ev+a 0 0 1\r\na\r\n", b"STORED\r\n")
        client.put(b"ev", *datas)
        assert client.get(b"work/open") == datas[0]
        server.stop()
    for number, kind in enumerate(("scroll", "journal"), 1):
        done = run("convert", f"{OTHER[kind]}:{tmp_path}/{number - 1}", f"{kind}:{tmp_path}/{number}")
        assert (done.returncode, done.stderr) == (0, b"")
        processes.arguments = ("--storage", f"{kind}:{number}")
        server = processes.serve()
        with server.connect() as client:
            for queue in (b"work", b"ev+a") if number == 2 else (b"ev",):
                if queue == b"ev+a":
                    assert client.get(queue) == b"a"
                client.send(b"get %b\r\n" % queue * len(datas))
                for data in datas:
                    client.expect(b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue, len(data), data))
        server.stop()
