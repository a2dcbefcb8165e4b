"""Crashes of a process or machine with a parent and two children in one journal, at every step of a scenario.

Scenarios run as in `tests/storage/test_crashes.py`. After each crash each queue must be as it was after one of its
records, and not before the last acknowledged one. An item put to one queue must be in no other. The items are numbers,
and no number is put twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.scroll.handwritten import DELETED, WRITER, put, read_done, read_head, reader_file, sealed, targets
from tests.storage.backends import Backend, scroll_only
from tests.storage.crash_trials import (
    NAME,
    PACES,
    SYNCS,
    CrashedFolder,
    CrashedStartTests,
    CrashTrial,
    Pace,
    RestartCache,
    StorageRun,
    TrackedQueue,
    check_torn_writes,
)
from tests.storage.histories import item_of

pytestmark = [pytest.mark.usefixtures("report_unhandled_failures"), scroll_only]


class Family:
    """A parent with two children, while their storage runs."""

    def __init__(self, run: StorageRun) -> None:
        self.run = run
        self.parent = run.queue()
        self.left = run.queue(NAME + b"+left")
        self.right = run.queue(NAME + b"+right")

    def create(self) -> None:
        """Create all three queues."""
        for queue in (self.parent, self.left, self.right):
            assert queue.store.failure is None

    def put(self, items: int = 1) -> None:
        """Put this many items to the parent and its existing children."""
        self.put_but_to(None, items)

    def put_but_to(self, full: TrackedQueue | None, items: int = 1) -> None:
        """Put this many items to all existing queues except a full one."""
        queues = [each for each in (self.parent, self.left, self.right) if each.exists and each is not full]
        for _ in range(items):
            self.run.put(queues)


Scenario: TypeAlias = Callable[[Family], Iterator[None]]
"""Operations on a family. Each yield ends a step."""


def of(scenario: Scenario) -> Callable[[StorageRun], Iterator[None]]:
    """Return the scenario with a family of this storage."""
    return lambda run: scenario(Family(run))


def full_queues_get_no_items(family: Family) -> Iterator[None]:
    family.create()
    family.put(2)
    yield
    family.put_but_to(family.left, 2)
    yield
    family.left.get()
    family.put()
    family.put_but_to(family.right, 2)
    yield
    family.put_but_to(family.parent)
    family.parent.get(4)
    yield
    family.right.get(3)
    family.put_but_to(family.left)
    yield
    family.left.get(5)
    yield


def one_confirms_and_another_has_open_reads(family: Family) -> Iterator[None]:
    family.create()
    family.put(4)
    first = [family.left.open() for _ in range(3)]
    others = [family.right.open() for _ in range(2)]
    yield
    family.left.confirm(first[1])
    family.put()
    yield
    family.right.put_back(*others)
    family.left.confirm(first[2])
    family.parent.get(2)
    yield
    family.right.get(2)
    family.left.put_back(first[0])
    opened = family.parent.open()
    family.put(3)
    yield
    family.left.get(2)
    family.parent.confirm(opened)
    family.right.confirm(family.right.open())
    yield
    family.parent.clear()
    yield


def a_child_is_deleted_and_recreated(family: Family) -> Iterator[None]:
    family.create()
    family.put(3)
    yield
    family.left.get()
    family.right.open()
    yield
    family.left.delete()
    family.put(2)
    yield
    family.right.put()
    family.left.put()
    family.put()
    yield
    family.parent.get(4)
    family.left.get()
    yield
    family.left.delete()
    yield
    family.right.clear()
    family.put(2)
    yield


def the_parent_is_deleted_and_recreated(family: Family) -> Iterator[None]:
    family.create()
    family.put(3)
    yield
    family.left.get()
    family.parent.get(2)
    family.parent.delete()
    yield
    family.left.put()
    family.put(2)
    yield
    family.parent.put()
    family.put()
    family.right.get(4)
    yield
    family.left.get(3)
    yield
    family.parent.delete()
    family.left.delete()
    family.right.delete()
    yield
    family.right.put()
    yield
    family.put()
    yield


def children_are_created_later(family: Family) -> Iterator[None]:
    family.parent.put(3)
    yield
    family.parent.get()
    opened = family.parent.open()
    yield
    assert family.left.store.items == 0
    family.put(2)
    yield
    family.parent.confirm(opened)
    family.left.get()
    yield
    family.parent.put()
    assert family.right.store.items == 0
    family.put(2)
    yield
    family.right.get()
    family.parent.get(4)
    yield
    family.left.get(2)
    family.put()
    yield


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (
        full_queues_get_no_items,
        one_confirms_and_another_has_open_reads,
        a_child_is_deleted_and_recreated,
        the_parent_is_deleted_and_recreated,
        children_are_created_later,
    )
}


SYNCS_AND_PACES = [
    pytest.param(sync_journal_ms, PACES[pace], id=f"{sync}-{pace}")
    for sync, sync_journal_ms in SYNCS.items()
    for pace in (PACES if sync == "synced" else ["threads run a job every other step"])
]


@pytest.mark.parametrize(("sync_journal_ms", "pace"), SYNCS_AND_PACES)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_crash_at_any_step_keeps_each_queue_and_mixes_none(
    folder: Path, restarts: RestartCache, backend: Backend, scenario: Scenario, sync_journal_ms: int | None, pace: Pace
) -> None:
    CrashTrial(folder, of(scenario), sync_journal_ms, pace, backend).check_every_crash(restarts)


# Each byte of a write.


def one_change_of_each_kind(run: StorageRun) -> None:
    family = Family(run)
    family.create()
    family.put()
    family.left.put(2)
    family.put()
    opened = [family.left.open() for _ in range(4)]
    family.left.put_back(opened[0], opened[2])
    family.left.confirm(opened[1])
    family.left.confirm(opened[3])
    family.right.put()
    family.right.get()
    family.put_but_to(family.right)
    family.parent.get()


@pytest.mark.parametrize("pace", [PACES["threads run at once"], PACES["threads run seldom"]], ids=["at once", "seldom"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_writes_cut_at_any_byte_keep_the_whole_records(
    folder: Path, restarts: RestartCache, backend: Backend, scenario: Scenario, pace: Pace
) -> None:
    written = check_torn_writes(folder, of(scenario), pace, backend, one_change_of_each_kind, restarts)
    assert {".read." in torn.name for torn in written} == {False, True}


# Crashes during a start.

PARENT = NAME
LEFT = NAME + b"+left"
RIGHT = NAME + b"+right"


def items(*numbers: int, first_id: int | None = None) -> bytes:
    """Return records of these items. The id of an item is its number less 1000, or counts from `first_id`."""
    ids = (number - 1000 if first_id is None else first_id + place for place, number in enumerate(numbers))
    return b"".join(put(item_id, *item_of(number)) for item_id, number in zip(ids, numbers, strict=True))


def writer(*records: bytes) -> bytes:
    """Return a writer file."""
    return WRITER + b"".join(records)


DELETED_FILE = sealed(read_head(1) + read_done() + DELETED)


TWO = {"work.1000": writer(items(1001, 1002, 1003)), "work.2000": writer(items(1004, 1005))}

FAMILY = {"work.read.:own": reader_file(2), "work.read.left": reader_file(0, 2, 3), "work.read.right": reader_file(4)}

CRASHED_FOLDERS = {
    "a truncated last item": CrashedFolder(
        {PARENT: (1002,)}, {"work.1000": writer(items(1001, 1002, 1003)[:-5]), "work.read.": reader_file(1)}
    ),
    "targets before some items": CrashedFolder(
        {PARENT: (1001, 1003), LEFT: (1002, 1003), RIGHT: (1001, 1003)},
        {
            "work.1000": writer(
                *(targets(1, b"left"), items(1001)),
                *(targets(0, b"left"), items(1002)),
                *(items(1003), targets(0, b"left")[:-1]),
            ),
            **{name: reader_file(0) for name in FAMILY},
        },
    ),
    "zeros at the end": CrashedFolder(
        {PARENT: (1002, 1003)}, {"work.1000": writer(items(1001, 1002, 1003), bytes(99)), "work.read.": reader_file(1)}
    ),
    "temporary files": CrashedFolder(
        {PARENT: (1005,)},
        {
            **TWO,
            "work.2000~~3000": writer(items(1004)),
            "work.read.": reader_file(4),
            "work.read.~~3001": reader_file(5),
            "work.read.left~~3002": reader_file(3)[:5],
        },
    ),
    "a truncated reader file": CrashedFolder(
        {PARENT: (1003, 1004, 1005)}, {**TWO, "work.read.": reader_file(2, 5)[:-3]}
    ),
    "a reader file with other contents": CrashedFolder(
        {PARENT: (1001, 1002, 1003, 1004, 1005)}, {**TWO, "work.read.": b"something else"}
    ),
    "no reader file": CrashedFolder({PARENT: (1001, 1002, 1003, 1004, 1005)}, TWO),
    "readers at different positions": CrashedFolder(
        {PARENT: (1003, 1004, 1005), LEFT: (1001, 1004, 1005), RIGHT: (1005,)}, {**TWO, **FAMILY}
    ),
    "a deleted reader": CrashedFolder(
        {PARENT: (1003, 1004, 1005), RIGHT: (1005,)}, {**TWO, **FAMILY, "work.read.left": DELETED_FILE}
    ),
    "only deleted readers": CrashedFolder({}, {**TWO, **dict.fromkeys(FAMILY, DELETED_FILE)}),
    "damage in the middle": CrashedFolder(
        {PARENT: (1002, 1004, 1005)},
        {**TWO, "work.1000": writer(items(1001, 1002), b"\x86\xff", items(1003)), "work.read.": reader_file(1)},
    ),
    "a writer file with other contents": CrashedFolder(
        {PARENT: (1002, 1003)}, {**TWO, "work.2000": b"something else", "work.read.": reader_file(1)}
    ),
    "an unneeded writer file": CrashedFolder({PARENT: (1005,)}, {**TWO, "work.read.": reader_file(4)}),
    "only unneeded files": CrashedFolder(
        {PARENT: (), LEFT: ()}, {**TWO, "work.read.:own": reader_file(5), "work.read.left": reader_file(5)}
    ),
    "a head beyond the last item without a checksum": CrashedFolder(
        {PARENT: (1001, 1002, 1003, 1004, 1005)}, {**TWO, "work.read.": reader_file(9)}
    ),
    "repeated ids": CrashedFolder(
        {PARENT: (1002, 1003, 1006)},
        {**TWO, "work.2000": writer(items(1004, 1005, 1006, first_id=2)), "work.read.": reader_file(1)},
    ),
    "many writer files": CrashedFolder(
        {PARENT: tuple(range(1004, 1012)), LEFT: (1003, *range(1006, 1012))},
        {
            **{f"work.{number}": writer(items(number)) for number in range(1001, 1012)},
            "work.read.:own": reader_file(3),
            "work.read.left": reader_file(2, 4, 5),
        },
    ),
    "all of these": CrashedFolder(
        {PARENT: (1003, 1004), RIGHT: (1003, 1004, 1006)},
        {
            "work.1000": writer(items(1001, 1002, 1003), b"\xff", items(1011)),
            "work.2000": writer(items(1004), targets(0, b"left"), items(1005), targets(0, b"right"), items(1006)),
            "work.3000": writer(targets(1, b"right"), items(1007)[:-1]),
            "work.read.:own": reader_file(2, 5, 6)[:-8] + b"\x91",
            "work.read.left": DELETED_FILE,
            "work.read.right": reader_file(2, 5),
            "work.read.right~~4000": reader_file(2),
            "work.4000~~4001": writer(items(1012)),
            ".kestrel/hints/work": b"not even a hint",
        },
    ),
}


class TestCrashedStarts(CrashedStartTests):
    folders = CRASHED_FOLDERS
