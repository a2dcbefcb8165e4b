"""kestrel-convert, interrupted: the same command resumes it, with the same result."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.journal.fileset import current_name
from kestrel.testing.faults import KillableDisk, ProcessDied, UnsyncedDisk
from kestrel.tools.convert import targets
from kestrel.tools.convert.sources import Family, FamilyItem, FolderSums, sum_families
from tests.journal.handwritten import add, addx
from tests.journal.restarts import NOW_MS, files_of
from tests.sample import of_each_kind
from tests.scroll.handwritten import WRITER, put
from tests.tools.conftest import Convert, error_of
from tests.tools.converted import served
from tests.tools.test_convert import BOTH_WAYS, MADE, OTHER
from tests.tools.tool_processes import fill
from tests.torture.convert import torture

GOING_ON = "kestrel-convert: resuming the earlier run in {}/new.converting\n"


@pytest.fixture(autouse=True)
def small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files in many parts, so that a conversion can end at many places."""
    monkeypatch.setattr(targets, "PART_BYTES", 40)


def path_of(descriptor: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % descriptor)


class CountingDisk(KillableDisk):
    """Counts the bytes written to the files of each queue in the new folder."""

    def __init__(self) -> None:
        super().__init__()
        self.written: Counter[bytes] = Counter()

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data)
        folder, name = os.path.split(path_of(descriptor))
        if folder.endswith(b"/queues"):
            self.written[name.partition(b".")[0]] += len(data)


class CheckingDisk(KillableDisk):
    """Checks that all files of the new folder are durable when it is marked as verified, and published."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = 0

    def write(self, descriptor: int, data: bytes) -> None:
        folder, name = os.path.split(path_of(descriptor))
        if name == b"state.new" and b'"is_verified": true' in data:
            self.check(folder + b"/queues")
        super().write(descriptor, data)

    def rename(self, old: bytes, new: bytes) -> None:
        if old.endswith(b"/queues"):
            self.check(old)
        super().rename(old, new)

    def check(self, queues: bytes) -> None:
        written = files_of(Path(os.fsdecode(queues)))
        assert self.medium.left_of(queues) == {os.fsencode(name): contents for name, contents in written.items()}
        self.marks += 1


class Conversion:
    """A conversion of a folder to the other kind."""

    def __init__(self, tmp_path: Path, kind: str, convert_it: Convert) -> None:
        files = dict(MADE[kind])
        files.pop("old", None)  # the add time of its item depends on the run
        self.source = fill(tmp_path / "old", files)
        self.target = tmp_path / "new"
        self.staging = tmp_path / "new.converting"
        self.kind = kind
        self.places = f"{kind}:{self.source}", f"{OTHER[kind]}:{self.target}"
        self._convert_it = convert_it
        self._clock_ms = count(NOW_MS, 1000)
        self.expected = served(kind, self.source)

    def run(self, disk: Disk | None = None, *options: str) -> tuple[int, str, str]:
        """Start or resume the conversion, a second later than the last time."""
        return self._convert_it(*options, *self.places, disk=disk or UnsyncedDisk(), now_ms=next(self._clock_ms))

    def dies(self, calls: int, *options: str) -> bool:
        """Run the conversion until an operation of the disk. Return False if it ended before."""
        disk = KillableDisk()
        disk.die_after(calls)
        try:
            assert self.run(disk, *options)[0] == 0
        except ProcessDied:
            return True
        return False

    def resume(self) -> str:
        """Resume or repeat the conversion, which must end with a report. Return what it said besides."""
        status, out, said = self.run()
        assert (status, out.startswith("queue ")) == (0, True)
        self.check()
        return said

    def begin(self) -> None:
        """Run the conversion until a place in its middle, where the process dies."""
        assert self.dies(calls_of(self) * 2 // 3)

    def check(self) -> None:
        """Check that the target is complete, and that nothing else is left."""
        assert served(OTHER[self.kind], self.target) == self.expected
        assert not self.staging.exists()
        assert not (self.target / ".kestrel" / "converted").exists()

    def clear(self) -> None:
        """Remove the target and the unfinished conversion."""
        for folder in (self.target, self.staging):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=list(OTHER))
def conversion(request: pytest.FixtureRequest, tmp_path: Path, convert_it: Convert) -> Iterator[Conversion]:
    yield Conversion(tmp_path, request.param, convert_it)


def names_of_calls(conversion: Conversion, *options: str) -> list[str]:
    """Return the operations of the disk in a whole run."""
    disk = KillableDisk()
    assert conversion.run(disk, *options)[0] == 0
    conversion.clear()
    return disk.calls


def calls_of(conversion: Conversion) -> int:
    """Return the number of operations of the disk in a whole run."""
    return len(names_of_calls(conversion))


STEP = 20
"""Distance of the operations that are tried in any case."""


def some_places(calls: list[str]) -> list[int]:
    """Return a sample of operations, with the first and the last of each pair of neighbouring names."""
    return of_each_kind(list(pairwise(["", *calls])), STEP)


# Crashes.


def test_conversion_killed_at_any_operation_resumes(conversion: Conversion) -> None:
    for calls in some_places(names_of_calls(conversion)):
        assert conversion.dies(calls)
        if conversion.target.exists():
            assert served(OTHER[conversion.kind], conversion.target) == conversion.expected  # never incomplete
        conversion.resume()
        conversion.clear()


def test_conversion_killed_repeatedly_ends(conversion: Conversion) -> None:
    ends = 0
    while conversion.dies(ends):
        ends += 1
    assert ends > 50
    conversion.check()


def test_start_over_killed_at_any_operation_trusts_no_old_state(conversion: Conversion) -> None:
    assert conversion.dies(calls_of(conversion) - 9)
    assert b'"is_verified": true' in (conversion.staging / "state").read_bytes()
    assert not conversion.target.exists()
    verified = shutil.copytree(conversion.staging, conversion.source.with_name("verified"))
    for calls in some_places(names_of_calls(conversion, "--anew")):
        shutil.copytree(verified, conversion.staging)
        assert conversion.dies(calls, "--anew")
        conversion.resume()
        conversion.clear()


def test_conversion_resumes_after_any_failed_operation(conversion: Conversion) -> None:
    calls = names_of_calls(conversion)
    for place in some_places(calls):
        failing = KillableDisk()
        failing.fail(calls[place], errno.EIO, times=1, after=calls[:place].count(calls[place]))
        status, _, said = conversion.run(failing)
        assert (status != 0) <= said.startswith("kestrel-convert: ")
        assert failing.open_descriptors == set()
        if status:
            conversion.resume()
        conversion.check()
        conversion.clear()


@pytest.mark.parametrize(
    "damage",
    [
        lambda contents: contents[: len(contents) // 2],
        lambda contents: contents[: len(contents) // 2].ljust(len(contents), b"\0"),
        lambda contents: contents + b"something",
        lambda contents: b"\xff" * len(contents),
    ],
    ids=["cut", "zeros", "longer", "other"],
)
def test_files_damaged_by_a_power_failure_are_written_again(
    conversion: Conversion, damage: Callable[[bytes], bytes]
) -> None:
    whole = calls_of(conversion)
    for calls in range(whole // 3, whole, 5):
        assert conversion.dies(calls)
        if conversion.target.exists():
            break
        for name, contents in files_of(conversion.staging / "queues").items():
            fill(conversion.staging / "queues", {name: damage(contents)})
        state = conversion.staging / "state"
        if state.exists():  # verified files were synced
            state.write_text(state.read_text().replace('"is_verified": true', '"is_verified": false'))
        conversion.resume()
        conversion.clear()


def test_only_durable_files_are_marked_as_verified(conversion: Conversion) -> None:
    disk = CheckingDisk()
    assert conversion.run(disk)[0] == 0
    assert disk.marks == 2
    conversion.check()


def test_killed_processes_have_the_same_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = torture(tmp_path, seed=1, items=5000, kills=3)
    output = capsys.readouterr().out
    assert failed == 0, output
    assert re.search(r"^\d+ passed, 0 failed$", output.splitlines()[-1])


# Resuming.


def test_resumed_conversion_says_so_and_writes_nothing_twice(tmp_path: Path, convert_it: Convert) -> None:
    work = b"".join(addx(b"%d" % number * 9, number) for number in range(500))
    source = fill(tmp_path / "old", {"a": addx(b"a"), "work": work})
    places = f"journal:{source}", f"scroll:{tmp_path}/new"
    first, second = CountingDisk(), CountingDisk()
    first.fail("write", errno.EIO, after=300)
    assert convert_it(*places, disk=first)[0] == 1
    assert first.written.total() > 5000
    left = sum(map(len, files_of(tmp_path / "new.converting" / "queues").values()))
    status, _, said = convert_it(*places, disk=second)
    assert (status, said) == (0, GOING_ON.format(tmp_path))
    whole = sum(map(len, files_of(tmp_path / "new").values()))
    assert (second.written.total(), second.written[b"a"]) == (whole - left, 0)


def test_items_without_add_time_get_that_of_the_first_run(tmp_path: Path, convert_it: Convert) -> None:
    source = fill(tmp_path / "old", {"old": add(b"no time"), "work": addx(b"x")})
    places = f"journal:{source}", f"scroll:{tmp_path}/new"
    disk = KillableDisk()
    disk.fail("cut", errno.EIO)
    disk.fail("sync_folder", errno.EIO, after=3)
    assert convert_it(*places, disk=disk, now_ms=NOW_MS)[0] == 1
    assert convert_it(*places, now_ms=NOW_MS + 5000)[0] == 0
    (held,) = served("scroll", tmp_path / "new")[b"old"]
    assert held.add_ms == NOW_MS


def test_queues_with_any_name_are_resumed(tmp_path: Path, convert_it: Convert) -> None:
    files = {os.fsdecode(current_name(name)): addx(name) for name in (b"caf\xc3\xa9", b"\xff", b"work")}
    source = fill(tmp_path / "old", files)
    places = f"journal:{source}", f"scroll:{tmp_path}/new"
    disk = KillableDisk()
    disk.fail("sync", errno.EIO, after=4)  # the state is durable by then, but not all files
    assert convert_it(*places, disk=disk)[0] == 1
    assert b'"sums": {' in (tmp_path / "new.converting" / "state").read_bytes()
    status, _, said = convert_it(*places)
    assert (status, said) == (0, GOING_ON.format(tmp_path))
    assert served("scroll", tmp_path / "new") == served("journal", source)


@pytest.mark.parametrize("most_bytes", [20, 200])
def test_pending_writes_are_limited(tmp_path: Path, most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_MOST_PENDING_BYTES", most_bytes)
    files = targets.ResumableFiles(Disk(), os.fsencode(tmp_path))
    made = [files.file(b"%d" % number) for number in range(30)]
    given = 0
    for number in range(90):
        made[number % 30].append(b"%03d" % number)
        given += 3
        assert given - sum(map(len, files_of(tmp_path).values())) <= most_bytes
    files.finish()
    assert files_of(tmp_path) == {str(each): b"%03d%03d%03d" % (each, each + 30, each + 60) for each in range(30)}


def test_interruption_tells_how_to_continue(conversion: Conversion) -> None:
    class Interrupted(Disk):
        def sync(self, descriptor: int) -> None:
            raise KeyboardInterrupt

    said = error_of(conversion.run, 130, Interrupted())
    assert said == "kestrel-convert: run the same command to continue\nkestrel-convert: interrupted\n"
    status, _, said = conversion.run(None, "-q")
    assert (status, said) == (0, "")
    conversion.check()


def test_run_killed_before_its_report_is_reported_by_the_next(conversion: Conversion) -> None:
    whole = calls_of(conversion)
    _, told, _ = conversion.run()
    conversion.clear()
    shutil.copytree(conversion.source, conversion.source.with_name("kept"))
    for calls in range(whole - 8, whole):
        assert conversion.dies(calls)
        assert conversion.target.exists()
        shutil.rmtree(conversion.source)
        fill(conversion.source, {"work": b"\xee"})  # it is no longer needed
        status, out, said = conversion.run()
        assert (status, said) == (0, "")
        assert out.endswith(told)
        conversion.check()
        conversion.clear()
        shutil.rmtree(conversion.source)
        shutil.copytree(conversion.source.with_name("kept"), conversion.source)


def test_staging_folder_is_removed_after_the_rename_is_durable(conversion: Conversion) -> None:
    for calls in range(calls_of(conversion) - 12, calls_of(conversion)):
        assert conversion.dies(calls)
        if conversion.target.exists():
            break
        conversion.clear()
    notes = files_of(conversion.staging)
    notes.pop("lock", None)
    syncs: list[tuple[bytes, bool]] = []

    class RecordingDisk(Disk):
        def sync_folder(self, path: bytes) -> None:
            super().sync_folder(path)
            syncs.append((path, notes.items() <= files_of(conversion.staging).items()))

    assert conversion.run(RecordingDisk())[0] == 0
    assert syncs[0] == (os.fsencode(conversion.target.parent), True)
    conversion.check()


def test_failed_report_is_written_by_the_next_run(conversion: Conversion, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, open("/dev/full", "w") as full:
        patched.setattr(sys, "stdout", full)
        assert error_of(conversion.run, 1).startswith("kestrel-convert: standard output cannot be written: ")
    assert served(OTHER[conversion.kind], conversion.target) == conversion.expected
    conversion.resume()


def test_missing_verified_folder_starts_over(conversion: Conversion) -> None:
    whole = calls_of(conversion)
    calls = whole
    while not conversion.staging.exists() or conversion.target.exists():
        conversion.clear()
        calls -= 1
        assert conversion.dies(calls)
    shutil.rmtree(conversion.staging / "queues")
    assert "starting over" in conversion.resume()


# Starting over.


def test_changed_source_starts_over_with_a_message(conversion: Conversion) -> None:
    conversion.begin()
    more = {"journal": {"ev": addx(b"other")}, "scroll": {"zoo.5": WRITER + put(1, b"other")}}[conversion.kind]
    fill(conversion.source, more)
    conversion.expected = served(conversion.kind, conversion.source)
    said = conversion.resume()
    assert said == f"kestrel-convert: the source has changed since {conversion.staging} was begun: starting over\n"


def test_overwritten_source_file_starts_over(conversion: Conversion) -> None:
    conversion.begin()
    name = {"journal": "ev+b", "scroll": "zoo.5"}[conversion.kind]
    contents = (conversion.source / name).read_bytes()
    (conversion.source / name).write_bytes(contents[:-1] + b"?")
    os.utime(conversion.source / name, ns=(1, 1))
    conversion.expected = served(conversion.kind, conversion.source)
    assert "starting over" in conversion.resume()


def test_anew_starts_over(conversion: Conversion) -> None:
    conversion.begin()
    status, _, said = conversion.run(None, "--anew")
    assert (status, said) == (0, "")
    conversion.check()


def test_unfinished_conversion_of_another_source_is_refused(conversion: Conversion, convert_it: Convert) -> None:
    conversion.begin()
    other = shutil.copytree(conversion.source, conversion.source.with_name("other"))
    said = error_of(convert_it, 2, f"{conversion.kind}:{other}", conversion.places[1])
    assert said == (
        f"kestrel-convert: {conversion.staging} is of another conversion, from {' to '.join(conversion.places)}, which"
        " is not finished: finish that, start this one over with --anew, or name another target\n"
    )
    assert convert_it("--anew", f"{conversion.kind}:{other}", conversion.places[1])[0] == 0
    conversion.check()


@pytest.mark.parametrize("state", [b"", b"{}", b"[]", b'{"version": 2}', b"\xff", b'{"version": 1}', b"null"])
def test_invalid_state_is_ignored(conversion: Conversion, state: bytes) -> None:
    conversion.begin()
    (conversion.staging / "state").write_bytes(state)
    assert conversion.resume() == ""


def test_staging_folder_of_others_is_refused(conversion: Conversion) -> None:
    for names in (["mine"], ["state"], ["lock", "notes"]):
        fill(conversion.staging, dict.fromkeys(names, b""))
        assert f"{conversion.staging} exists, and no earlier run made it: rename it" in error_of(conversion.run, 2)
        assert sorted(os.listdir(conversion.staging)) == sorted(names)
        conversion.clear()
    conversion.staging.write_bytes(b"a file")
    assert conversion.run()[0] == 2
    assert conversion.staging.read_bytes() == b"a file"
    conversion.staging.unlink()
    conversion.staging.symlink_to(conversion.source.parent)  # it may be on another disk, where renames fail
    assert conversion.run()[0] == 2


def test_concurrent_conversions_to_a_target_are_refused(conversion: Conversion) -> None:
    conversion.staging.mkdir()
    lock = FolderLock(os.fsencode(conversion.staging / "lock"))
    said = error_of(conversion.run, 75)
    assert said == "kestrel-convert: another conversion to the same target is running: wait for it\n"
    lock.release()
    conversion.resume()


def test_target_filled_meanwhile_is_refused(conversion: Conversion) -> None:
    conversion.target.mkdir()
    disk = KillableDisk()
    disk.before("sync_folder", lambda: fill(conversion.target, {"mine": b""}))
    assert f"{conversion.target} is no longer empty: empty it" in error_of(conversion.run, 1, disk)
    assert files_of(conversion.target) == {"mine": b""}
    (conversion.target / "mine").unlink()
    conversion.resume()


# A full disk.


def test_target_without_enough_room_is_refused_before_writing(conversion: Conversion) -> None:
    disk = CountingDisk()
    disk.free_bytes = lambda folder: 10  # type: ignore[method-assign]
    status, out, said = conversion.run(disk)
    assert (status, out, disk.written.total()) == (73, "", 0)
    assert said.startswith("kestrel-convert: the target needs about ")
    assert said.endswith("and its disk has 10 B: make room, or name a target on another disk\n")
    conversion.resume()


def test_room_is_checked_on_the_disk_of_the_target(conversion: Conversion) -> None:
    asked = []
    disk = Disk()

    def free_bytes(folder: bytes) -> int:
        asked.append(folder)
        return 1 << 30

    disk.free_bytes = free_bytes  # type: ignore[method-assign]
    assert conversion.run(disk)[0] == 0
    assert asked == [os.fsencode(conversion.staging)]


def test_written_files_need_no_room_again(conversion: Conversion) -> None:
    assert conversion.dies(calls_of(conversion) - 12)  # everything is written
    disk = Disk()
    disk.free_bytes = lambda folder: 3 * 4096  # type: ignore[method-assign]
    status, _, said = conversion.run(disk)
    assert (status, said) == (0, f"kestrel-convert: resuming the earlier run in {conversion.staging}\n")
    conversion.check()


@BOTH_WAYS
def test_many_small_files_need_more_room_than_their_lengths(tmp_path: Path, kind: str, convert_it: Convert) -> None:
    files = {"journal": {"q%d": addx(b"x")}, "scroll": {"q%d.1": WRITER + put(1, b"x")}}[kind]
    source = fill(tmp_path / "old", {name % number: each for name, each in files.items() for number in range(100)})
    disk = Disk()
    disk.free_bytes = lambda folder: 300_000  # type: ignore[method-assign]
    assert convert_it(f"{kind}:{source}", f"{OTHER[kind]}:{tmp_path}/new", disk=disk)[0] == 73


def test_conversion_resumes_after_a_full_disk(conversion: Conversion) -> None:
    for room in range(2000, 6000, 300):
        disk = KillableDisk()
        disk.room = room
        disk.free_bytes = lambda folder: 1 << 30  # type: ignore[method-assign]
        status, _, said = conversion.run(disk)
        assert status in (0, 1)
        if status:
            assert said.endswith("No space left on device; make room on the disk and run this again\n")
            assert not conversion.target.exists()
            status, _, said = conversion.run()
        assert status == 0
        conversion.check()
        conversion.clear()


def test_estimated_size_is_near_the_real_size(
    tmp_path: Path, convert_it: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[FolderSums] = []

    def noted(families: Iterable[tuple[Family, Iterable[FamilyItem]]]) -> FolderSums:
        sums.append(sum_families(families))
        return sums[-1]

    monkeypatch.setattr("kestrel.tools.convert.command.sum_families", noted)
    items = [addx(b"%d" % number * 9, number) for number in range(500)]
    source = fill(tmp_path / "0", {"ev": b"".join(items), "ev+a": b"".join(items[100::2]), "ev+b": b"".join(items)})
    for number, kind in enumerate(("scroll", "journal"), 1):
        target_folder = tmp_path / str(number)
        assert convert_it(f"{OTHER[kind]}:{source}", f"{kind}:{target_folder}")[0] == 0
        taken = sum(map(len, files_of(target_folder).values()))
        estimated = sums[-2].scroll_bytes if kind == "scroll" else sums[-2].journal_bytes
        assert taken * 0.9 < estimated < taken * 1.3
        source = target_folder
