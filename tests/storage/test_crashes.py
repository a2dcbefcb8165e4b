"""Wherever the process or the machine dies, acknowledged items are there at the next start, once and in order.

A *scenario* changes one queue step by step, and each step ends with a commit. It runs once. Before each disk operation
the test computes the files that a crash would leave, with half of a write done. A start from these files must find a
state of the queue that is not older than the last promised one.

The limits are so small that a few items exceed the memory and the files several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

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
    CrashedFolder,
    CrashedStartTests,
    CrashTrial,
    LyingDisk,
    Pace,
    RestartCache,
    StorageRun,
    TrackedQueue,
    check_torn_writes,
    files_after_crash,
)
from tests.storage.histories import State, item_of

pytestmark = pytest.mark.usefixtures("report_unhandled_failures")

AT_ONCE = PACES["threads run at once"]

each_pace = pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
two_paces = pytest.mark.parametrize("pace", [AT_ONCE, PACES["threads run seldom"]], ids=["at once", "seldom"])
each_sync = pytest.mark.parametrize("sync_journal_ms", SYNCS.values(), ids=SYNCS)

# Scenarios.

Scenario: TypeAlias = Callable[[TrackedQueue], Iterator[None]]
"""Changes to a queue. Each yield ends a step."""


def on_one_queue(scenario: Scenario) -> Callable[[StorageRun], Iterator[None]]:
    """Return a scenario for a whole storage, which has one queue."""
    return lambda run: scenario(run.queue())


def put_in_steps(queue: TrackedQueue, *counts: int) -> Iterator[None]:
    """Put that many items in each step."""
    for count in counts:
        queue.put(count)
        yield


def puts_then_drain(queue: TrackedQueue) -> Iterator[None]:
    yield from put_in_steps(queue, 4, 4, 4, 4, 4)
    while queue.history.items:
        queue.get(4)
        yield


def alternating_puts_and_gets(queue: TrackedQueue) -> Iterator[None]:
    yield from put_in_steps(queue, 4, 5)
    for _ in range(5):
        queue.put()
        queue.get()
        yield
        queue.get()
        queue.put()
        yield


def late_confirms_and_aborts(queue: TrackedQueue) -> Iterator[None]:
    queue.put(4)
    xids = [queue.open()]
    yield
    for _ in range(4):
        queue.put(3)
        xids.append(queue.open())
        yield
        queue.get()
        yield
    queue.put_back(xids[3], xids[1])
    yield
    queue.confirm(xids[0])
    xid = queue.open()
    yield
    queue.put_back(xids[4])
    queue.confirm(xid)
    yield
    queue.get(3)
    yield


def repeatedly_emptied(queue: TrackedQueue) -> Iterator[None]:
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


def flushed_backlog(queue: TrackedQueue) -> Iterator[None]:
    for puts in (3, 1):
        yield from put_in_steps(queue, *[5] * puts)
        xid = queue.open()
        queue.get_from_memory(at_most=5)
        yield
        queue.clear()
        yield
        queue.put(2)
        queue.put_back(xid)
        yield
        queue.clear()
        queue.put()
        yield
        queue.get()
        yield


def deleted_and_recreated(queue: TrackedQueue) -> Iterator[None]:
    yield from put_in_steps(queue, 4, 4, 4, 4)
    queue.open()
    queue.get_from_memory(at_most=5)
    queue.delete()
    yield from put_in_steps(queue, 5, 5, 5)
    queue.get(2)
    yield
    queue.delete()
    yield
    yield from put_in_steps(queue, 2)
    queue.get(2)
    yield


def continued_work(queue: TrackedQueue) -> Iterator[None]:
    yield from put_in_steps(queue, 4, 4, 4)
    for _ in range(5):
        xids = [queue.open(), queue.open(), queue.open()]
        yield
        queue.continue_(xids[1], xids[0])
        yield
        queue.get()
        queue.continue_(xids[2])
        yield


each_scenario = pytest.mark.parametrize(
    "scenario",
    [
        puts_then_drain,
        alternating_puts_and_gets,
        late_confirms_and_aborts,
        repeatedly_emptied,
        flushed_backlog,
        deleted_and_recreated,
    ],
)

CheckEveryCrash: TypeAlias = Callable[..., None]


@pytest.fixture
def check_every_crash(folder: Path, restarts: RestartCache, backend: Backend) -> CheckEveryCrash:
    """A function that runs a scenario and checks a crash before each disk operation."""

    def check(scenario: Scenario, sync_journal_ms: int | None, pace: Pace = AT_ONCE, **options: Any) -> None:
        trial = CrashTrial(folder, on_one_queue(scenario), sync_journal_ms, pace, backend, **options)
        trial.check_every_crash(restarts)

    return check


@each_pace
@each_sync
@each_scenario
def test_crash_at_any_operation_keeps_promised_items(
    check_every_crash: CheckEveryCrash, scenario: Scenario, sync_journal_ms: int | None, pace: Pace
) -> None:
    check_every_crash(scenario, sync_journal_ms, pace)


@journal_only
@each_pace
@each_sync
def test_crash_never_leaves_both_items_of_a_continue(
    check_every_crash: CheckEveryCrash, sync_journal_ms: int | None, pace: Pace
) -> None:
    check_every_crash(continued_work, sync_journal_ms, pace)


# The harness: it computes what a crash leaves, and it finds disks that break their promises.


def without_inodes(path: str, contents: bytes) -> bytes:
    """Return a file's contents. In a segment log, replace inodes and times by 0, because they differ in each run."""
    if not path.startswith(".kestrel/segments/"):
        return contents
    whole, position = b"", 0
    for segment in decode_segments(contents):
        position += len(encode_segment(segment))
        whole += encode_segment(segment._replace(inode=0, next_inode=0, written_ns=0))
    torn = bytearray(contents[position:])
    # The checksum, the inodes and the time of a half-written record.
    for varying in (slice(4, 8), slice(16, 32), slice(40, 48)):
        torn[varying] = bytes(len(torn[varying]))
    return whole + bytes(torn)


def crash_now(run: StorageRun, sync_journal_ms: int | None) -> tuple[dict[str, Mapping[str, bytes]], list[str]]:
    """Return the files that each kind of crash would leave now, and the promised states of the queues."""
    promises = [
        f"{name!r} is {queue.history.promise(sync_journal_ms, has_machine_died=has_machine_died)}"
        for name, queue in run.queues.items()
        for has_machine_died in (False, True)
    ]
    left = {
        crash: {path: without_inodes(path, contents) for path, contents in files.items()}
        for crash, files in files_after_crash(run)
    }
    return left, promises


@each_pace
@each_sync
def test_computed_crash_equals_a_real_one(
    folder: Path, backend: Backend, sync_journal_ms: int | None, pace: Pace
) -> None:
    trial = CrashTrial(folder, on_one_queue(flushed_backlog), sync_journal_ms, pace, backend)
    expected: list[object] = []
    whole = trial.run(look=lambda run: expected.append(crash_now(run, sync_journal_ms)))
    assert len(expected) == len(whole.disk.calls) > 50
    for calls in range(0, len(expected), 3):
        run = trial.run(calls)
        assert run.disk.is_dead
        assert crash_now(run, sync_journal_ms) == expected[calls], f"after {calls} operations"


class ForgetfulDisk(CrashDisk):
    """A disk that omits every other write."""

    def write(self, descriptor: int, data: bytes) -> None:
        if self.calls.count("write") % 2:
            self._check("write")
        else:
            super().write(descriptor, data)


def too_few_items_for_a_second_file(queue: TrackedQueue) -> Iterator[None]:
    yield from put_in_steps(queue, 1, 1, 1, 1)
    queue.get()
    yield


@pytest.mark.parametrize("sync_journal_ms", [0, 500])
def test_disk_with_false_syncs_is_found(check_every_crash: CheckEveryCrash, sync_journal_ms: int) -> None:
    with pytest.raises(AssertionError, match=r"the machine died.* a start found"):
        check_every_crash(too_few_items_for_a_second_file, sync_journal_ms, make_disk=LyingDisk)


@journal_only
def test_disk_with_wrong_writes_is_found(check_every_crash: CheckEveryCrash) -> None:
    with pytest.raises(AssertionError, match=r"the process died.* a start found"):
        check_every_crash(too_few_items_for_a_second_file, None, make_disk=ForgetfulDisk)


# Torn writes.


def change_in_every_way(run: StorageRun) -> None:
    """Make a record of each kind."""
    queue = run.queue()
    queue.put(3)
    xid = queue.open()
    queue.get()
    queue.put_back(xid)
    queue.confirm(queue.open())
    if IContinue.providedBy(queue.store):
        queue.continue_(queue.open())


@two_paces
@each_scenario
def test_whole_records_of_a_torn_write_count(
    folder: Path, restarts: RestartCache, backend: Backend, scenario: Scenario, pace: Pace
) -> None:
    check_torn_writes(folder, on_one_queue(scenario), pace, backend, change_in_every_way, restarts)


@journal_only
@two_paces
def test_torn_continue_leaves_one_of_its_items(
    folder: Path, restarts: RestartCache, backend: Backend, pace: Pace
) -> None:
    check_torn_writes(folder, on_one_queue(continued_work), pace, backend, change_in_every_way, restarts)


# Crashes in a start.


def records(*numbers: int) -> bytes:
    """Return the records of puts of these items."""
    return b"".join(addx(*item_of(number)) for number in numbers)


def left(items: State, files: dict[str, bytes]) -> CrashedFolder:
    """Return files of the queue "work", and the items that a start finds in them."""
    return CrashedFolder({NAME: items} if items else {}, files)


PACK = {
    "work.1000": records(1001, 1002, 1003) + open_(7),
    "work.2000": open_(8) + REMOVE + records(1004, 1005),
    "work.2000.pack": records(1001) + open_(7) + records(1002) + open_(8) + records(1004, 1005),
}

LEFT_FILES = {
    "a last record that is cut short": left(
        (1001, 1002, 1003), {"work": records(1001, 1002) + open_(1) + records(1003, 1004)[:-7]}
    ),
    "zeros at the end": left((1002,), {"work": records(1001, 1002) + REMOVE + bytes(99)}),
    "a temporary file": left((1001,), {"work": records(1001), "work~~123": records(1002, 1003)[:-1]}),
    "only a temporary file": left((), {"work~~123": records(1001)}),
    "open reads": left(
        (1002, 1001, 1003, 1004), {"work": records(1003, 1002, 1001) + open_(6) + open_(3) + open_(5) + records(1004)}
    ),
    "a pack and the files that it replaces": left(
        (1001, 1002, 1004, 1005, 1006), {**PACK, "work.3000": records(1006), "work": records(1007)[:-1]}
    ),
    "a pack and some of the files that it replaces": left(
        (1002, 1004, 1005),
        {"work.2000": PACK["work.2000"], "work.2000.pack": PACK["work.2000.pack"], "work": b"\6\7\0\0\0"},
    ),
    "two packs": left(
        (1001, 1002, 1004, 1005, 1006), {**PACK, "work.1500.pack": PACK["work.1000"], "work": records(1006)}
    ),
    "damage in a rotated file": left(
        (1001, 1002, 1004, 1005),
        {"work.1000": records(1001, 1002) + b"\xff" + records(1003), "work.2000": records(1004), "work": records(1005)},
    ),
    "a rotated file that is no journal": left(
        (1001, 1002), {"work.1000": records(1001), "work.2000": b"\xffsomething else", "work": records(1002)}
    ),
    "no current file": left((1001, 1002), {"work.1000": records(1001), "work.2000": records(1002)}),
    "files of a deleted queue": left((1001,), {"work": records(1001), ".kestrel/erase/17": records(1002)}),
    "many rotated files": left(
        tuple(range(1004, 1013)),
        {
            **{f"work.{number}": records(number) + REMOVE * (number < 1004) for number in range(1001, 1012)},
            "work": records(1012),
        },
    ),
    "all of these": left(
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


@journal_only
class TestCrashedStarts(CrashedStartTests):
    folders = LEFT_FILES
