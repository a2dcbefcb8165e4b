"""kestrel-convert, interrupted: the same command goes on where it was, and the end is the same."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.journal.fileset import current_name
from kestrel.testing.faults import KillableDisk, ProcessDied, UnsyncedDisk
from kestrel.tools.convert import resumable_files
from kestrel.tools.convert.families import FolderSums
from kestrel.tools.convert.targets import TARGETS
from tests.journal.handwritten import add, addx
from tests.journal.restarts import NOW_MS, files_of
from tests.sample import of_each_kind
from tests.scroll.handwritten import WRITER, put
from tests.tools.conftest import Convert
from tests.tools.converted import served
from tests.tools.test_convert import BOTH_WAYS, MADE, OTHER
from tests.tools.tool_processes import fill
from tests.torture.convert import torture

GOING_ON = "kestrel-convert: resuming the earlier run in {}/new.converting\n"


@pytest.fixture(autouse=True)
def small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is written in many parts, so that there are many places to end in."""
    monkeypatch.setattr(resumable_files, "PART_BYTES", 40)


class CountingDisk(KillableDisk):
    """It counts the bytes that were written to files in the new folder, and knows the stems of these."""

    def __init__(self) -> None:
        super().__init__()
        self.written_bytes = 0
        self.stems: set[bytes] = set()
        self._in_queues: set[int] = set()

    def open_append(self, path: bytes) -> int:
        descriptor = super().open_append(path)
        folder, name = os.path.split(path)
        if folder.endswith(b"/queues"):
            self._in_queues.add(descriptor)
            self.stems.add(name.partition(b".")[0])
        else:
            self._in_queues.discard(descriptor)
        return descriptor

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data)
        self.written_bytes += len(data) * (descriptor in self._in_queues)


class ChangingDisk(Disk):
    """It knows in which order folders were synced, and what was in them renamed and erased."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[str, bytes]] = []

    def sync_folder(self, path: bytes) -> None:
        self.changes.append(("sync_folder", path))
        super().sync_folder(path)

    def rename(self, old_path: bytes, new_path: bytes) -> None:
        self.changes.append(("rename", old_path))
        super().rename(old_path, new_path)

    def erase(self, path: bytes) -> None:
        self.changes.append(("erase", path))
        super().erase(path)

    def erase_folder(self, path: bytes) -> None:
        self.changes.append(("erase_folder", path))
        super().erase_folder(path)


class ForgetfulDisk(Disk):
    """It notes what a power failure could take of the new folder, whenever a family or all of it is said to be done."""

    def __init__(self) -> None:
        super().__init__()
        self.could_be_lost: list[set[bytes]] = []
        self._paths: dict[int, bytes] = {}
        self._unsynced: set[bytes] = set()

    def open_append(self, path: bytes) -> int:
        if b"/queues/" in path and not self.is_there(path):
            self._unsynced.add(os.path.dirname(path))
        descriptor = super().open_append(path)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, data: bytes) -> None:
        path = self._paths.get(descriptor, b"")
        if b"/queues/" in path:
            self._unsynced.add(path)
        elif path.endswith(b"/done"):
            self.could_be_lost.append(set(self._unsynced))
        super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._unsynced.discard(self._paths.get(descriptor, b""))
        super().sync(descriptor)

    def sync_folder(self, path: bytes) -> None:
        self._unsynced.discard(path)
        super().sync_folder(path)

    def rename(self, old_path: bytes, new_path: bytes) -> None:
        if old_path.endswith(b"/queues"):
            self.could_be_lost.append(set(self._unsynced))
        super().rename(old_path, new_path)


class Way:
    """From one folder to the other."""

    def __init__(self, tmp_path: Path, kind: str, convert_it: Convert) -> None:
        files = dict(MADE[kind])
        files.pop("old", None)  # the add time of its item is that of a run
        self.source = fill(tmp_path / "old", files)
        self.target = tmp_path / "new"
        self.staging = tmp_path / "new.converting"
        self.kind = kind
        self.places = f"{kind}:{self.source}", f"{OTHER[kind]}:{self.target}"
        self._convert_it = convert_it
        self._clock_ms = count(NOW_MS, 1000)
        self.expected = served(kind, self.source)

    def run(self, disk: Disk | None = None, *options: str) -> tuple[int, str, str]:
        """Let it go on, a second later than the last time."""
        return self._convert_it(*options, *self.places, disk=disk or UnsyncedDisk(), now_ms=next(self._clock_ms))

    def dies(self, calls: int, *options: str) -> bool:
        """Let it end before that operation of the disk. Returns whether it did, or came to its end before."""
        disk = KillableDisk()
        disk.die_after(calls)
        try:
            assert self.run(disk, *options)[0] == 0
        except ProcessDied:
            return True
        return False

    def goes_on(self) -> None:
        """Let it come to its end, and tell of it."""
        status, out, _ = self.run()
        assert (status, out.startswith("queue ")) == (0, True)
        self.check()

    def check(self) -> None:
        """The target is there and whole, and nothing is left beside it."""
        assert served(OTHER[self.kind], self.target) == self.expected
        assert not self.staging.exists()
        assert not (self.target / ".kestrel" / "converted").exists()

    def clear(self) -> None:
        """Begin at the beginning."""
        for folder in (self.target, self.staging):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=list(OTHER))
def way(request: pytest.FixtureRequest, tmp_path: Path, convert_it: Convert) -> Iterator[Way]:
    yield Way(tmp_path, request.param, convert_it)


def names_of_calls(way: Way, *options: str) -> list[str]:
    """The operations of the disk that a whole run has."""
    disk = KillableDisk()
    assert way.run(disk, *options)[0] == 0
    way.clear()
    return disk.calls


def calls_of(way: Way) -> int:
    """How many they are."""
    return len(names_of_calls(way))


STEP = 20
"""Of so many operations one is tried, whatever it is."""


def some_places(calls: list[str]) -> list[int]:
    """Which of these operations end the process or fail: a sample, with the first and the last of each that follows
    another one."""
    return of_each_kind(list(pairwise(["", *calls])), STEP)


# Killed.


def test_killed_at_any_operation_of_the_disk_it_goes_on_and_ends_the_same(way: Way) -> None:
    for calls in some_places(names_of_calls(way)):
        assert way.dies(calls)
        if way.target.exists():
            assert served(OTHER[way.kind], way.target) == way.expected  # it is never there in part
        way.goes_on()
        way.clear()


def test_killed_again_and_again_it_comes_to_its_end(way: Way) -> None:
    ends = 0
    while way.dies(ends):
        ends += 1
    assert ends > 50
    way.check()


def test_killed_while_it_begins_anew_it_trusts_nothing_of_before(way: Way) -> None:
    assert way.dies(calls_of(way) - 9)
    assert b'"is_verified": true' in (way.staging / "state").read_bytes()
    assert not way.target.exists()
    verified = shutil.copytree(way.staging, way.source.with_name("verified"))
    for calls in some_places(names_of_calls(way, "--anew")):
        shutil.copytree(verified, way.staging)
        assert way.dies(calls, "--anew")
        way.goes_on()
        way.clear()


def test_each_operation_of_the_disk_may_fail_and_it_goes_on(way: Way) -> None:
    calls = names_of_calls(way)
    for place in some_places(calls):
        failing = KillableDisk()
        failing.fail(calls[place], errno.EIO, times=1, after=calls[:place].count(calls[place]))
        status, _, said = way.run(failing)
        assert (status != 0) <= said.startswith("kestrel-convert: ")
        assert failing.open_descriptors == set()
        if status:
            way.goes_on()
        way.check()
        way.clear()


@BOTH_WAYS
@pytest.mark.parametrize("left", ["cut", "zeros", "longer", "other"])
def test_whatever_a_power_failure_left_of_the_files_they_come_out_right(
    tmp_path: Path, kind: str, left: str, convert_it: Convert
) -> None:
    way = Way(tmp_path, kind, convert_it)
    whole = calls_of(way)
    for calls in range(whole // 3, whole, 5):
        assert way.dies(calls)
        if way.target.exists():
            break
        (way.staging / "done").unlink(missing_ok=True)
        written = files_of(way.staging / "queues")
        for name, contents in written.items():
            middle = len(contents) // 2
            fill(
                way.staging / "queues",
                {
                    name: {
                        "cut": contents[:middle],
                        "zeros": contents[:middle] + bytes(len(contents) - middle),
                        "longer": contents + b"something",
                        "other": b"\xff" * len(contents),
                    }[left]
                },
            )
        state = way.staging / "state"
        if state.exists():  # what was verified is synced before
            state.write_text(state.read_text().replace('"is_verified": true', '"is_verified": false'))
        assert way.run()[0] == 0
        way.check()
        way.clear()


def test_nothing_is_said_to_be_done_that_a_power_failure_could_take(way: Way) -> None:
    disk = ForgetfulDisk()
    assert way.run(disk)[0] == 0
    assert len(disk.could_be_lost) > 3
    assert set().union(*disk.could_be_lost) == set()
    way.check()


def test_killed_conversions_have_the_same_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = torture(tmp_path, seed=1, item_count=5000, kills=3)
    output = capsys.readouterr().out
    assert failed == 0, output
    assert re.search(r"^\d+ passed, 0 failed$", output.splitlines()[-1])


# Going on.


def test_it_says_that_it_goes_on_and_writes_nothing_twice(tmp_path: Path, convert_it: Convert) -> None:
    source = fill(tmp_path / "old", {"work": b"".join(addx(b"%d" % number * 9, number) for number in range(500))})
    places = f"journal:{source}", f"scroll:{tmp_path}/new"
    first, second = CountingDisk(), CountingDisk()
    first.fail("write", errno.EIO, after=300)
    assert convert_it(*places, disk=first)[0] == 1
    assert first.written_bytes > 5000
    left = sum(map(len, files_of(tmp_path / "new.converting" / "queues").values()))
    status, _, said = convert_it(*places, disk=second)
    assert (status, said) == (0, GOING_ON.format(tmp_path))
    whole = sum(map(len, files_of(tmp_path / "new").values()))
    assert second.written_bytes == whole - left


def test_queues_that_are_written_are_not_touched_again(tmp_path: Path, convert_it: Convert) -> None:
    source = fill(tmp_path / "old", {name: addx(name.encode() * 9) for name in ("a", "b", "c", "d")})
    places = f"journal:{source}", f"scroll:{tmp_path}/new"

    class FailingAtC(CountingDisk):
        def open_append(self, path: bytes) -> int:
            if b"/queues/c." in path:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().open_append(path)

    first, second = FailingAtC(), CountingDisk()
    status, _, said = convert_it(*places, disk=first)
    assert (status, f"{tmp_path}/new.converting/queues/c." in said) == (1, True)
    assert convert_it(*places, disk=second)[0] == 0
    assert (first.stems, second.stems) == ({b"a", b"b"}, {b"c", b"d"})
    assert served("scroll", tmp_path / "new") == served("journal", source)


def test_items_without_an_add_time_have_that_of_the_first_run(tmp_path: Path, convert_it: Convert) -> None:
    source = fill(tmp_path / "old", {"old": add(b"no time"), "work": addx(b"x")})
    places = f"journal:{source}", f"scroll:{tmp_path}/new"
    disk = KillableDisk()
    disk.fail("cut", errno.EIO)
    disk.fail("sync_folder", errno.EIO, after=3)
    assert convert_it(*places, disk=disk, now_ms=NOW_MS)[0] == 1
    assert convert_it(*places, now_ms=NOW_MS + 5000)[0] == 0
    (held,) = served("scroll", tmp_path / "new")[b"old"]
    assert held.add_ms == NOW_MS


def test_queues_of_any_name_are_known_to_the_run_that_goes_on(tmp_path: Path, convert_it: Convert) -> None:
    files = {os.fsdecode(current_name(name)): addx(name) for name in (b"caf\xc3\xa9", b"\xff", b"work")}
    source = fill(tmp_path / "old", files)
    places = f"journal:{source}", f"scroll:{tmp_path}/new"
    disk = KillableDisk()
    disk.fail("sync", errno.EIO, after=4)  # the state is on the medium by then, and not all of the files
    assert convert_it(*places, disk=disk)[0] == 1
    assert b'"sums": {' in (tmp_path / "new.converting" / "state").read_bytes()
    status, _, said = convert_it(*places)
    assert (status, said) == (0, GOING_ON.format(tmp_path))
    assert served("scroll", tmp_path / "new") == served("journal", source)


@pytest.mark.parametrize("most_bytes", [20, 200])
def test_what_waits_to_be_written_is_bounded_for_all_files_together(
    tmp_path: Path, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable_files, "_MOST_PENDING_BYTES", most_bytes)
    files = resumable_files.ResumableFiles(Disk(), os.fsencode(tmp_path))
    made = [files.file(b"%d" % number) for number in range(30)]
    given = 0
    for number in range(90):
        made[number % 30].append(b"%03d" % number)
        given += 3
        assert given - sum(map(len, files_of(tmp_path).values())) <= most_bytes
    files.finish()
    assert files_of(tmp_path) == {str(each): b"%03d%03d%03d" % (each, each + 30, each + 60) for each in range(30)}


def test_an_interruption_is_a_word_and_the_same_command_goes_on(way: Way) -> None:
    class Interrupted(Disk):
        def sync(self, descriptor: int) -> None:
            raise KeyboardInterrupt

    status, _, said = way.run(Interrupted())
    assert status == 130
    assert said == "kestrel-convert: run the same command to continue\nkestrel-convert: interrupted\n"
    status, _, said = way.run(None, "-q")
    assert (status, said) == (0, "")
    way.check()


def test_what_ended_right_before_it_told_of_it_tells_of_it(way: Way) -> None:
    whole = calls_of(way)
    _, told, _ = way.run()
    way.clear()
    shutil.copytree(way.source, way.source.with_name("kept"))
    for calls in range(whole - 8, whole):
        assert way.dies(calls)
        assert way.target.exists()
        shutil.rmtree(way.source)
        fill(way.source, {"work": b"\xee"})  # it is not needed any more
        status, out, said = way.run()
        assert (status, said) == (0, "")
        assert out.endswith(told)
        way.check()
        way.clear()
        shutil.rmtree(way.source)
        shutil.copytree(way.source.with_name("kept"), way.source)


def test_the_notes_are_erased_when_the_name_of_the_target_is_on_the_medium(way: Way) -> None:
    for calls in range(calls_of(way) - 12, calls_of(way)):
        assert way.dies(calls)
        if way.target.exists():
            break
        way.clear()
    disk = ChangingDisk()
    assert way.run(disk)[0] == 0
    assert disk.changes[0] == ("sync_folder", os.fsencode(way.target.parent))
    assert ("erase_folder", os.fsencode(way.staging)) in disk.changes
    way.check()


def test_a_report_that_cannot_be_written_is_written_by_the_next_run(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, open("/dev/full", "w") as full:
        patched.setattr(sys, "stdout", full)
        status, _, said = way.run()
        assert (status, said.startswith("kestrel-convert: standard output cannot be written: ")) == (1, True)
    assert served(OTHER[way.kind], way.target) == way.expected
    way.goes_on()


def test_a_reader_of_the_report_that_left_had_heard_enough(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with monkeypatch.context() as patched, open(theirs, "w") as left:
        patched.setattr(sys, "stdout", left)
        assert way.run() == (0, "", "")
    way.check()


def test_where_the_new_folder_is_gone_though_it_was_verified_it_begins_anew(way: Way) -> None:
    whole = calls_of(way)
    calls = whole
    while not way.staging.exists() or way.target.exists():
        way.clear()
        calls -= 1
        assert way.dies(calls)
    shutil.rmtree(way.staging / "queues")
    status, _, said = way.run()
    assert (status, "starting over" in said) == (0, True)
    way.check()


# Begun anew.


def test_where_the_source_has_changed_since_it_begins_anew_and_says_so(way: Way) -> None:
    assert way.dies(calls_of(way) * 2 // 3)
    more = {"journal": {"ev": addx(b"other")}, "scroll": {"zoo.5": WRITER + put(1, b"other")}}[way.kind]
    fill(way.source, more)
    way.expected = served(way.kind, way.source)
    status, _, said = way.run()
    assert status == 0
    assert said == f"kestrel-convert: the source has changed since {way.staging} was begun: starting over\n"
    way.check()


def test_where_a_file_of_the_source_was_written_over_since_it_begins_anew(way: Way) -> None:
    assert way.dies(calls_of(way) * 2 // 3)
    name = {"journal": "ev+b", "scroll": "zoo.5"}[way.kind]
    contents = (way.source / name).read_bytes()
    (way.source / name).write_bytes(contents[:-1] + b"?")
    os.utime(way.source / name, ns=(1, 1))
    way.expected = served(way.kind, way.source)
    status, _, said = way.run()
    assert (status, "starting over" in said) == (0, True)
    way.check()


def test_anew_begins_at_the_beginning(way: Way) -> None:
    assert way.dies(calls_of(way) * 2 // 3)
    status, _, said = way.run(None, "--anew")
    assert (status, said) == (0, "")
    way.check()


def test_what_an_earlier_conversion_left_is_not_taken_for_another_one(way: Way, convert_it: Convert) -> None:
    assert way.dies(calls_of(way) * 2 // 3)
    other = shutil.copytree(way.source, way.source.with_name("other"))
    status, _, said = convert_it(f"{way.kind}:{other}", way.places[1])
    assert status == 2
    assert said == (
        f"kestrel-convert: {way.staging} is of another conversion, from {way.places[0]} to {way.places[1]}, which is"
        " not finished: finish that, start this one over with --anew, or name another target\n"
    )
    assert convert_it("--anew", f"{way.kind}:{other}", way.places[1])[0] == 0
    way.check()


@pytest.mark.parametrize("state", [b"", b"{}", b"[]", b'{"version": 2}', b"\xff", b'{"version": 1}', b"null"])
def test_a_state_that_is_not_understood_is_none(way: Way, state: bytes) -> None:
    assert way.dies(calls_of(way) * 2 // 3)
    (way.staging / "state").write_bytes(state)
    status, _, said = way.run()
    assert (status, said) == (0, "")
    way.check()


def test_a_folder_of_somebody_else_is_left_alone(way: Way) -> None:
    for names in (["mine"], ["state"], ["lock", "notes"]):
        fill(way.staging, dict.fromkeys(names, b""))
        status, _, said = way.run()
        assert (status, f"{way.staging} exists, and no earlier run made it: rename it" in said) == (2, True)
        assert sorted(os.listdir(way.staging)) == sorted(names)
        way.clear()
    way.staging.write_bytes(b"a file")
    assert way.run()[0] == 2
    assert way.staging.read_bytes() == b"a file"
    way.staging.unlink()
    way.staging.symlink_to(way.source.parent)  # perhaps to another disk, from which nothing can be renamed
    assert way.run()[0] == 2


def test_two_conversions_to_the_same_target_do_not_meet(way: Way) -> None:
    way.staging.mkdir()
    lock = FolderLock(os.fsencode(way.staging / "lock"))
    status, _, said = way.run()
    assert (status, said) == (75, "kestrel-convert: another conversion to the same target is running: wait for it\n")
    lock.release()
    assert way.run()[0] == 0
    way.check()


def test_an_empty_target_is_replaced_and_one_that_was_filled_meanwhile_is_not(way: Way) -> None:
    way.target.mkdir()
    disk = KillableDisk()
    disk.before("sync_folder", lambda: fill(way.target, {"mine": b""}))
    status, _, said = way.run(disk)
    assert (status, f"{way.target} is no longer empty: empty it" in said) == (1, True)
    assert files_of(way.target) == {"mine": b""}
    (way.target / "mine").unlink()
    assert way.run()[0] == 0
    way.check()


# A full disk.


def test_where_there_is_no_room_for_the_target_it_says_so_before_it_writes(way: Way) -> None:
    disk = CountingDisk()
    disk.free_bytes = lambda folder: 10  # type: ignore[method-assign]
    status, out, said = way.run(disk)
    assert (status, out, disk.written_bytes) == (73, "", 0)
    assert said.startswith("kestrel-convert: the target needs about ")
    assert said.endswith("and its disk has 10 B: make room, or name a target on another disk\n")
    assert way.run()[0] == 0
    way.check()


def test_the_room_is_that_of_the_disk_on_which_the_target_is_made(way: Way) -> None:
    asked = []
    disk = Disk()

    def free_bytes(folder: bytes) -> int:
        asked.append(folder)
        return 1 << 30

    disk.free_bytes = free_bytes  # type: ignore[method-assign]
    assert way.run(disk)[0] == 0
    assert asked == [os.fsencode(way.staging)]


def test_what_an_earlier_run_has_written_needs_no_room_again(way: Way) -> None:
    assert way.dies(calls_of(way) - 12)  # all is written
    disk = Disk()
    disk.free_bytes = lambda folder: 3 * 4096  # type: ignore[method-assign]
    status, _, said = way.run(disk)
    assert (status, said) == (0, f"kestrel-convert: resuming the earlier run in {way.staging}\n")
    way.check()


@BOTH_WAYS
def test_many_small_files_take_more_room_than_their_lengths(tmp_path: Path, kind: str, convert_it: Convert) -> None:
    files = {"journal": {"q%d": addx(b"x")}, "scroll": {"q%d.1": WRITER + put(1, b"x")}}[kind]
    source = fill(tmp_path / "old", {name % number: each for name, each in files.items() for number in range(100)})
    disk = Disk()
    disk.free_bytes = lambda folder: 300_000  # type: ignore[method-assign]
    assert convert_it(f"{kind}:{source}", f"{OTHER[kind]}:{tmp_path}/new", disk=disk)[0] == 73


def test_a_disk_that_is_full_in_the_midst_is_a_sentence_and_with_room_it_goes_on(way: Way) -> None:
    for room in range(2000, 6000, 300):
        disk = KillableDisk()
        disk.room = room
        disk.free_bytes = lambda folder: 1 << 30  # type: ignore[method-assign]
        status, _, said = way.run(disk)
        assert status in (0, 1)
        if status:
            assert said.endswith("No space left on device; make room on the disk and run this again\n")
            assert not way.target.exists()
            status, _, said = way.run()
        assert status == 0
        way.check()
        way.clear()


def test_the_estimate_is_near_what_the_target_takes(
    tmp_path: Path, convert_it: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    for target in TARGETS.values():

        def noted(sums: FolderSums, needed_bytes: Callable[[FolderSums], int] = target.needed_bytes) -> int:
            asked.append(needed_bytes(sums))
            return asked[-1]

        monkeypatch.setattr(target, "needed_bytes", staticmethod(noted))
    items = [addx(b"%d" % number * 9, number) for number in range(500)]
    source = fill(tmp_path / "0", {"ev": b"".join(items), "ev+a": b"".join(items[100::2]), "ev+b": b"".join(items)})
    for number, kind in enumerate(("scroll", "journal"), 1):
        target_folder = tmp_path / str(number)
        assert convert_it(f"{OTHER[kind]}:{source}", f"{kind}:{target_folder}")[0] == 0
        taken = sum(map(len, files_of(target_folder).values()))
        assert taken * 0.9 < asked.pop() < taken * 1.3
        source = target_folder
