"""Wherever the process or the machine dies: what was acknowledged is there at the next start, once and in order.

A *scenario* is what happens to one queue, step by step; each step ends with a commit. It is lived through once, and
before each of the disk's operations it is looked what a death in its place would leave, with a half-done write. What
a start makes of the files that are left (the process died) and of what the medium holds (the machine did) must be
a state that the queue was in after one of its records, and none before the last that was promised.

The limits are so small that a backlog of a few items is several times what memory and files may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from kestrel.journal.segments import decode_segments, encode_segment
from kestrel.storage.interfaces import IContinue
from tests.journal.handwritten import REMOVE, addx, open_
from tests.storage.backends import Backend, journal_only
from tests.storage.crash_trials import (
    NAME,
    PACES,
    SYNCS,
    CrashDisk,
    CrashTrial,
    Pace,
    RestartCache,
    StorageRun,
    TrackedQueue,
    check_torn_writes,
    crash_in_each_start,
    files_after_crash,
    write_files,
)
from tests.storage.histories import State, item_of

pytestmark = pytest.mark.usefixtures("last_words")

# Scenarios.

Scenario: TypeAlias = Callable[[TrackedQueue], Iterator[None]]
"""What happens to a queue; each yield ends a step."""


def of(scenario: Scenario) -> Callable[[StorageRun], Iterator[None]]:
    """The scenario, of the one queue of a run."""
    return lambda run: scenario(run.queue())


def many_puts_then_a_drain(queue: TrackedQueue) -> Iterator[None]:
    for _ in range(5):
        queue.put(4)
        yield
    while queue.history.items:
        queue.get(4)
        yield


def puts_and_plain_gets_interleaved_at_a_depth(queue: TrackedQueue) -> Iterator[None]:
    queue.put(4)
    yield
    queue.put(5)
    yield
    for _ in range(5):
        queue.put()
        queue.get()
        yield
        queue.get()
        queue.put()
        yield


def open_reads_held_across_everything_then_confirmed_or_put_back(queue: TrackedQueue) -> Iterator[None]:
    queue.put(4)
    held = [queue.open()]
    yield
    for _ in range(4):
        queue.put(3)
        held.append(queue.open())
        yield
        queue.get()
        yield
    queue.put_back(held[3], held[1])
    yield
    queue.confirm(held[0])
    again = queue.open()
    yield
    queue.put_back(held[4])
    queue.confirm(again)
    yield
    queue.get(3)
    yield


def emptied_again_and_again(queue: TrackedQueue) -> Iterator[None]:
    for each in range(5):
        queue.put(2)
        yield
        if each % 2:
            queue.get(2)
        else:
            queue.get()
            xid = queue.open()
            yield
            queue.confirm(xid)
        yield


def clear_in_the_middle_of_a_backlog(queue: TrackedQueue) -> Iterator[None]:
    for puts in (3, 1):
        for _ in range(puts):
            queue.put(5)
            yield
        held = queue.open()
        queue.get_from_memory(at_most=5)
        yield
        queue.clear()
        yield
        queue.put(2)
        queue.put_back(held)
        yield
        queue.clear()
        queue.put()
        yield
        queue.get()
        yield


def delete_and_re_create(queue: TrackedQueue) -> Iterator[None]:
    for _ in range(4):
        queue.put(4)
        yield
    queue.open()
    queue.get_from_memory(at_most=5)
    queue.delete()
    queue.put(5)
    yield
    for _ in range(2):
        queue.put(5)
        yield
    queue.get(2)
    yield
    queue.delete()
    yield
    queue.put(2)
    yield
    queue.get(2)
    yield


def drain_while_more_is_put(queue: TrackedQueue) -> Iterator[None]:
    for _ in range(3):
        queue.put(4)
        yield
    while queue.history.items:
        queue.get()
        queue.put()
        yield
        queue.get(2)
        yield


def open_reads_only_and_many(queue: TrackedQueue) -> Iterator[None]:
    held: list[int] = []
    for _ in range(6):
        queue.put(2)
        held += [queue.open(), queue.open()]
        yield
    queue.confirm(*held[3:6])
    yield
    queue.put_back(held[10], held[2], held[0])
    yield
    held += [queue.open(), queue.open(), queue.open()]
    yield
    queue.confirm(*held[11:])
    yield
    queue.put_back(held[1])
    queue.get()
    yield


def work_that_goes_on_in_steps(queue: TrackedQueue) -> Iterator[None]:
    for _ in range(3):
        queue.put(4)
        yield
    for _ in range(5):
        held = [queue.open(), queue.open(), queue.open()]
        yield
        queue.continue_(held[1], held[0])
        yield
        queue.get()
        queue.continue_(held[2])
        yield


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (
        many_puts_then_a_drain,
        puts_and_plain_gets_interleaved_at_a_depth,
        open_reads_held_across_everything_then_confirmed_or_put_back,
        emptied_again_and_again,
        clear_in_the_middle_of_a_backlog,
        delete_and_re_create,
        drain_while_more_is_put,
        open_reads_only_and_many,
    )
}


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_wherever_the_process_or_the_machine_dies_the_queue_is_there_once_and_in_order(
    folder: Path, restarts: RestartCache, backend: Backend, scenario: Scenario, sync_journal_ms: int | None, pace: Pace
) -> None:
    CrashTrial(folder, of(scenario), sync_journal_ms, pace, backend).check_every_crash(restarts)


@journal_only
@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
def test_wherever_the_process_or_the_machine_dies_a_step_of_work_and_the_next_are_never_both_there(
    folder: Path, restarts: RestartCache, backend: Backend, sync_journal_ms: int | None, pace: Pace
) -> None:
    CrashTrial(folder, of(work_that_goes_on_in_steps), sync_journal_ms, pace, backend).check_every_crash(restarts)


# The harness itself: what a death leaves is known without one, and a storage that breaks its word is found out.


def without_inodes(path: str, contents: bytes) -> bytes:
    """The contents of a file; of a segment log with 0 in place of the inodes, which are others in each run."""
    if not path.startswith(".kestrel/segments/"):
        return contents
    whole, position = b"", 0
    for segment in decode_segments(contents):
        position += len(encode_segment(segment))
        whole += encode_segment(segment._replace(inode=0, next_inode=0))
    torn = bytearray(contents[position:])
    for varying in (slice(4, 8), slice(16, 32)):  # the checksum and the inodes of a record that is half written
        torn[varying] = bytes(len(torn[varying]))
    return whole + bytes(torn)


def told(run: StorageRun, sync_journal_ms: int | None) -> tuple[dict[str, Mapping[str, bytes]], list[str]]:
    """What a death now leaves in files, and what is promised of the queues."""
    promises = [
        f"{name!r} is {queue.history.promise(sync_journal_ms, has_machine_died=has_machine_died)}"
        for name, queue in run.queues.items()
        for has_machine_died in (False, True)
    ]
    left = {
        death: {path: without_inodes(path, contents) for path, contents in files.items()}
        for death, files in files_after_crash(run)
    }
    return left, promises


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
@pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
def test_what_a_death_would_leave_is_what_it_leaves(
    folder: Path, backend: Backend, sync_journal_ms: int | None, pace: Pace
) -> None:
    trial = CrashTrial(folder, of(clear_in_the_middle_of_a_backlog), sync_journal_ms, pace, backend)
    expected: list[object] = []
    whole = trial.run(look=lambda run: expected.append(told(run, sync_journal_ms)))
    assert len(expected) == len(whole.disk.calls) > 50
    for calls in range(0, len(expected), 3):
        run = trial.run(calls)
        assert run.disk.is_dead
        assert told(run, sync_journal_ms) == expected[calls], f"after {calls} operations"


class LyingDisk(CrashDisk):
    """Says that it has synced a file, and has not."""

    def sync(self, descriptor: int) -> None:
        self._check("sync")


class ForgetfulDisk(CrashDisk):
    """Says that it has written, and every other time it has not."""

    def write(self, descriptor: int, data: bytes) -> None:
        if self.calls.count("write") % 2:
            self._check("write")
        else:
            super().write(descriptor, data)


class RepeatingDisk(CrashDisk):
    """Writes everything twice."""

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data)
        super().write(descriptor, data)


class SwappingDisk(CrashDisk):
    """Writes the second before the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._first: bytes | None = None

    def write(self, descriptor: int, data: bytes) -> None:
        if self._first is None:
            self._first = data
            self._check("write")
        else:
            super().write(descriptor, data)
            super().write(descriptor, self._first)
            self._first = None


def too_little_for_a_second_file(queue: TrackedQueue) -> Iterator[None]:
    for _ in range(4):
        queue.put()
        yield
    queue.get()
    yield


def check_with(
    make_disk: Callable[[Path], CrashDisk],
    folder: Path,
    restarts: RestartCache,
    backend: Backend,
    sync_journal_ms: int | None,
) -> None:
    pace = PACES["threads run at once"]
    scenario = of(too_little_for_a_second_file)
    CrashTrial(folder, scenario, sync_journal_ms, pace, backend, make_disk=make_disk).check_every_crash(restarts)


@pytest.mark.parametrize("sync_journal_ms", [0, 500])
def test_a_disk_that_lies_about_its_syncs_is_found_out(
    folder: Path, restarts: RestartCache, backend: Backend, sync_journal_ms: int
) -> None:
    with pytest.raises(AssertionError, match=r"the machine died.* a start found"):
        check_with(LyingDisk, folder, restarts, backend, sync_journal_ms)


@journal_only
@pytest.mark.parametrize("make_disk", [ForgetfulDisk, RepeatingDisk, SwappingDisk])
def test_what_a_disk_does_wrong_when_it_writes_is_found_out(
    folder: Path, restarts: RestartCache, backend: Backend, make_disk: Callable[[Path], CrashDisk]
) -> None:
    with pytest.raises(AssertionError, match=r"the process died.* a start found"):
        check_with(make_disk, folder, restarts, backend, None)


@pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
def test_a_disk_that_does_nothing_wrong_is_not_found_out(
    folder: Path, restarts: RestartCache, backend: Backend, sync_journal_ms: int | None
) -> None:
    check_with(CrashDisk, folder, restarts, backend, sync_journal_ms)


# Each byte of a write.


def a_record_of_each_kind(run: StorageRun) -> None:
    queue = run.queue()
    queue.put(3)
    held = queue.open()
    queue.get()
    queue.put_back(held)
    queue.confirm(queue.open())
    if IContinue.providedBy(queue.store):
        queue.continue_(queue.open())


@pytest.mark.parametrize("pace", [PACES["threads run at once"], PACES["threads run seldom"]], ids=["at once", "seldom"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_of_a_write_that_was_cut_short_at_any_byte_the_whole_records_count(
    folder: Path, restarts: RestartCache, backend: Backend, scenario: Scenario, pace: Pace
) -> None:
    check_torn_writes(folder, of(scenario), pace, backend, a_record_of_each_kind, restarts)


@journal_only
@pytest.mark.parametrize("pace", [PACES["threads run at once"], PACES["threads run seldom"]], ids=["at once", "seldom"])
def test_of_a_step_of_work_and_the_next_that_are_cut_short_at_any_byte_one_is_there(
    folder: Path, restarts: RestartCache, backend: Backend, pace: Pace
) -> None:
    check_torn_writes(folder, of(work_that_goes_on_in_steps), pace, backend, a_record_of_each_kind, restarts)


# A start that dies.


def records(*numbers: int) -> bytes:
    """These items, put."""
    return b"".join(addx(*item_of(number)) for number in numbers)


class Ruin(NamedTuple):
    """What was left of a queue, and the items that a start finds in it. Their numbers are greater than a run's."""

    items: State
    files: dict[str, bytes]


PACK = {
    "work.1000": records(1001, 1002, 1003) + open_(7),
    "work.2000": open_(8) + REMOVE + records(1004, 1005),
    "work.2000.pack": records(1001) + open_(7) + records(1002) + open_(8) + records(1004, 1005),
}

RUINS = {
    "a last record that is cut short": Ruin(
        (1001, 1002, 1003), {"work": records(1001, 1002) + open_(1) + records(1003, 1004)[:-7]}
    ),
    "zeros at the end": Ruin((1002,), {"work": records(1001, 1002) + REMOVE + bytes(99)}),
    "a temporary file": Ruin((1001,), {"work": records(1001), "work~~123": records(1002, 1003)[:-1]}),
    "a temporary file alone": Ruin((), {"work~~123": records(1001)}),
    "open reads": Ruin(
        (1002, 1001, 1003, 1004), {"work": records(1003, 1002, 1001) + open_(6) + open_(3) + open_(5) + records(1004)}
    ),
    "a pack and what it replaces": Ruin(
        (1001, 1002, 1004, 1005, 1006), {**PACK, "work.3000": records(1006), "work": records(1007)[:-1]}
    ),
    "a pack and a part of what it replaces": Ruin(
        (1002, 1004, 1005),
        {"work.2000": PACK["work.2000"], "work.2000.pack": PACK["work.2000.pack"], "work": b"\6\7\0\0\0"},
    ),
    "two packs": Ruin(
        (1001, 1002, 1004, 1005, 1006), {**PACK, "work.1500.pack": PACK["work.1000"], "work": records(1006)}
    ),
    "damage in a rotated file": Ruin(
        (1001, 1002, 1004, 1005),
        {"work.1000": records(1001, 1002) + b"\xff" + records(1003), "work.2000": records(1004), "work": records(1005)},
    ),
    "a rotated file that is no journal": Ruin(
        (1001, 1002), {"work.1000": records(1001), "work.2000": b"\xffsomething else", "work": records(1002)}
    ),
    "no current file": Ruin((1001, 1002), {"work.1000": records(1001), "work.2000": records(1002)}),
    "files of a deleted queue": Ruin((1001,), {"work": records(1001), ".kestrel/erase/17": records(1002)}),
    "many rotated files": Ruin(
        tuple(range(1004, 1013)),
        {
            **{f"work.{number}": records(number) + REMOVE * (number < 1004) for number in range(1001, 1012)},
            "work": records(1012),
        },
    ),
    "all of it": Ruin(
        (1001, 1002, 1004, 1005, 1006, 1008),
        {
            **PACK,
            "work.3000": records(1006) + b"\xff" + records(1007),
            "work": records(1008, 1009)[:-9],
            "work~~123": records(1010),
            ".kestrel/erase/17": records(1011),
            ".kestrel/damaged/work.3000.5": b"an older copy",
        },
    ),
}


def nothing_more(queue: TrackedQueue) -> Iterator[None]:
    yield


def a_little_more(queue: TrackedQueue) -> Iterator[None]:
    queue.put()
    yield
    queue.get()
    queue.put()
    yield


@journal_only
@pytest.mark.parametrize("scenario", [nothing_more, a_little_more])
@pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)
@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_a_start_that_dies_anywhere_is_taken_up_by_the_next(
    folder: Path, restarts: RestartCache, backend: Backend, ruin: Ruin, sync_journal_ms: int | None, scenario: Scenario
) -> None:
    pace = PACES["threads run at once"]
    trial = CrashTrial(folder, of(scenario), sync_journal_ms, pace, backend, files=ruin.files, items={NAME: ruin.items})
    trial.check_every_crash(restarts)


@journal_only
@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_starts_that_die_one_after_the_other_each_a_little_later_are_taken_up_by_the_next(
    folder: Path, restarts: RestartCache, backend: Backend, ruin: Ruin
) -> None:
    left = folder / "left"
    write_files(left, ruin.files)
    crash_in_each_start(left, backend)
    assert restarts.found_in(left).get(NAME, ()) == ruin.items
