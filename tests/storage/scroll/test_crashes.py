"""Wherever a process dies that has a parent and its children in one journal: each queue is there, and is its own.

A scenario is lived through as in `test_crashes`, of a parent with two children. After each death each of the three
must be what it was after one of its records, none before the last that was promised, and an item that was put to one
of them alone is in none of the others. The items are numbers, and no number is put twice, so that each tells where it
belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.reader_file import ReaderState, encode_state
from kestrel.scroll.records import (
    READER_MAGIC,
    WRITER_MAGIC,
    Targets,
    encode_put,
    encode_read_done,
    encode_read_head,
    encode_targets,
)
from tests.storage.backends import Backend, scroll_only
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
    write_files,
)
from tests.storage.histories import State, item_of

pytestmark = [pytest.mark.usefixtures("last_words"), scroll_only]


class Family:
    """A parent with two children, in a run of their storage."""

    def __init__(self, run: StorageRun) -> None:
        self.run = run
        self.parent = run.queue()
        self.left = run.queue(NAME + b"+left")
        self.right = run.queue(NAME + b"+right")

    def make(self) -> None:
        """All three are there from now on."""
        for queue in (self.parent, self.left, self.right):
            assert queue.store.failure is None

    def put(self, items: int = 1) -> None:
        """Put so many items to the parent, and so to all that are there."""
        self.put_but_to(None, items)

    def put_but_to(self, full: TrackedQueue | None, items: int = 1) -> None:
        """The same while one of them is full, which goes without."""
        queues = [each for each in (self.parent, self.left, self.right) if each.exists and each is not full]
        for _ in range(items):
            self.run.put(queues)


Scenario: TypeAlias = Callable[[Family], Iterator[None]]
"""What happens to a family; each yield ends a step."""


def of(scenario: Scenario) -> Callable[[StorageRun], Iterator[None]]:
    """The scenario, of a family in that run."""
    return lambda run: scenario(Family(run))


def all_get_what_the_parent_gets(family: Family) -> Iterator[None]:
    family.make()
    for _ in range(3):
        family.put(3)
        yield
    family.parent.get(9)
    yield
    family.left.get(4)
    family.right.get(1)
    yield
    family.put(2)
    family.left.get(7)
    yield
    family.right.get(10)
    yield
    family.put()
    yield


def some_are_put_to_one_child_alone(family: Family) -> Iterator[None]:
    family.make()
    family.put()
    family.left.put()
    yield
    family.right.put(2)
    family.put()
    family.left.put(2)
    yield
    family.left.get(3)
    family.right.get()
    yield
    family.right.put()
    family.left.put()
    family.put(2)
    yield
    family.parent.get(3)
    family.left.get()
    yield
    family.left.put(3)
    yield
    family.right.get(5)
    yield


def a_full_child_goes_without(family: Family) -> Iterator[None]:
    family.make()
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


def one_confirms_and_another_holds(family: Family) -> Iterator[None]:
    family.make()
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
    held = family.parent.open()
    family.put(3)
    yield
    family.left.get(2)
    family.parent.confirm(held)
    family.right.confirm(family.right.open())
    yield
    family.parent.clear()
    yield


def a_child_is_deleted_and_made_again(family: Family) -> Iterator[None]:
    family.make()
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


def the_parent_is_deleted_and_made_again(family: Family) -> Iterator[None]:
    family.make()
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


def children_come_later(family: Family) -> Iterator[None]:
    family.parent.put(3)
    yield
    family.parent.get()
    held = family.parent.open()
    yield
    assert family.left.store.items == 0
    family.put(2)
    yield
    family.parent.confirm(held)
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


def a_backlog_of_one_while_the_others_are_empty(family: Family) -> Iterator[None]:
    family.make()
    for _ in range(4):
        family.put(4)
        family.parent.get(4)
        yield
        family.left.get(4)
        yield
    family.right.get(10)
    family.put(2)
    yield
    family.right.get_from_memory(at_most=4)
    family.left.clear()
    family.parent.get(2)
    yield
    family.right.clear()
    yield


def the_last_child_that_is_left_is_deleted_while_another_is_being_made(family: Family) -> Iterator[None]:
    family.make()
    family.put(4)
    family.right.delete()
    yield
    family.parent.get()
    family.parent.delete()
    yield
    family.left.put()
    family.left.get(2)
    yield
    family.right.put()
    family.left.delete()
    yield
    family.right.put()
    yield


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (
        all_get_what_the_parent_gets,
        some_are_put_to_one_child_alone,
        a_full_child_goes_without,
        one_confirms_and_another_holds,
        a_child_is_deleted_and_made_again,
        the_parent_is_deleted_and_made_again,
        children_come_later,
        a_backlog_of_one_while_the_others_are_empty,
        the_last_child_that_is_left_is_deleted_while_another_is_being_made,
    )
}


SYNCS_AND_PACES = [
    pytest.param(sync_journal_ms, PACES[pace], id=f"{sync}-{pace}")
    for sync, sync_journal_ms in SYNCS.items()
    for pace in (PACES if sync == "synced" else ["threads run a job every other step"])
]


@pytest.mark.parametrize(("sync_journal_ms", "pace"), SYNCS_AND_PACES)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_wherever_the_process_or_the_machine_dies_each_queue_is_there_and_its_own(
    folder: Path, restarts: RestartCache, backend: Backend, scenario: Scenario, sync_journal_ms: int | None, pace: Pace
) -> None:
    CrashTrial(folder, of(scenario), sync_journal_ms, pace, backend).check_every_crash(restarts)


class LyingDisk(CrashDisk):
    """Says that it has synced a file, and has not."""

    def sync(self, descriptor: int) -> None:
        self._check("sync")


@pytest.mark.parametrize("sync_journal_ms", [0, 500])
def test_a_disk_that_lies_about_its_syncs_is_found_out(
    folder: Path, restarts: RestartCache, backend: Backend, sync_journal_ms: int
) -> None:
    pace = PACES["threads run at once"]
    scenario = of(all_get_what_the_parent_gets)
    with pytest.raises(AssertionError, match=r"the machine died.* a start found"):
        CrashTrial(folder, scenario, sync_journal_ms, pace, backend, make_disk=LyingDisk).check_every_crash(restarts)


# Each byte of a write.


def something_of_everything(run: StorageRun) -> None:
    family = Family(run)
    family.make()
    family.put()
    family.left.put(2)
    family.put()
    held = [family.left.open() for _ in range(4)]
    family.left.put_back(held[0], held[2])
    family.left.confirm(held[1])
    family.left.confirm(held[3])
    family.right.put()
    family.right.get()
    family.put_but_to(family.right)
    family.parent.get()


@pytest.mark.parametrize("pace", [PACES["threads run at once"], PACES["threads run seldom"]], ids=["at once", "seldom"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_of_writes_that_were_cut_short_at_any_byte_the_whole_records_count(
    folder: Path, restarts: RestartCache, backend: Backend, scenario: Scenario, pace: Pace
) -> None:
    written = check_torn_writes(folder, of(scenario), pace, backend, something_of_everything, restarts)
    assert {".read." in torn.name for torn in written} == {False, True}


# A start that dies.

PARENT = NAME
LEFT = NAME + b"+left"
RIGHT = NAME + b"+right"


def items(*numbers: int, first_id: int | None = None) -> bytes:
    """These items, put; each has its number less a thousand for an id, or they are numbered from that id on."""
    ids = (number - 1000 if first_id is None else first_id + place for place, number in enumerate(numbers))
    return b"".join(encode_put(item_id, *item_of(number)) for item_id, number in zip(ids, numbers, strict=True))


def writer(*records: bytes) -> bytes:
    """A writer file."""
    return WRITER_MAGIC + b"".join(records)


def reader(head: int, *done: int) -> bytes:
    """A reader file."""
    return READER_MAGIC + encode_read_head(head) + encode_read_done(done)


def for_alone(*readers: bytes) -> bytes:
    """The next item is for these."""
    return encode_targets(Targets(frozenset(readers), False))


def for_all_but(*readers: bytes) -> bytes:
    """The next item is for all but these."""
    return encode_targets(Targets(frozenset(readers), True))


DELETED_FILE = encode_state(ReaderState(DoneSet(1), is_deleted=True))


class Ruin(NamedTuple):
    """What was left of a journal, and the items that a start finds in its queues. Their numbers are greater than a
    run's."""

    items: dict[bytes, State]
    files: dict[str, bytes]


TWO = {"work.1000": writer(items(1001, 1002, 1003)), "work.2000": writer(items(1004, 1005))}

FAMILY = {"work.read.:own": reader(2), "work.read.left": reader(0, 2, 3), "work.read.right": reader(4)}

RUINS = {
    "a last item that is cut short": Ruin(
        {PARENT: (1002,)}, {"work.1000": writer(items(1001, 1002, 1003)[:-5]), "work.read.": reader(1)}
    ),
    "nothing but the beginning of a magic": Ruin(
        {PARENT: (1003,)}, {**TWO, "work.2000": WRITER_MAGIC[:3], "work.read.": reader(2)}
    ),
    "the last item has lost its bytes to the one whose readers are named": Ruin(
        {PARENT: (1001,), LEFT: (1001,), RIGHT: (1001,)},
        {
            "work.1000": writer(items(1001), for_alone(b"left")),
            **{name: reader(0) for name in FAMILY},
        },
    ),
    "readers who are named, in the midst of it": Ruin(
        {PARENT: (1001, 1003), LEFT: (1002, 1003), RIGHT: (1001, 1003)},
        {
            "work.1000": writer(
                *(for_all_but(b"left"), items(1001)),
                *(for_alone(b"left"), items(1002)),
                *(items(1003), for_alone(b"left")[:-1]),
            ),
            **{name: reader(0) for name in FAMILY},
        },
    ),
    "zeros at the end": Ruin(
        {PARENT: (1002, 1003)}, {"work.1000": writer(items(1001, 1002, 1003), bytes(99)), "work.read.": reader(1)}
    ),
    "temporary files": Ruin(
        {PARENT: (1005,)},
        {
            **TWO,
            "work.2000~~3000": writer(items(1004)),
            "work.read.": reader(4),
            "work.read.~~3001": reader(5),
            "work.read.left~~3002": reader(3)[:5],
        },
    ),
    "a reader file that is cut short": Ruin({PARENT: (1003, 1004, 1005)}, {**TWO, "work.read.": reader(2, 5)[:-3]}),
    "a reader file that is cut short in its magic": Ruin(
        {PARENT: (1001, 1002, 1003, 1004, 1005)}, {**TWO, "work.read.": READER_MAGIC[:2]}
    ),
    "a reader file that is none": Ruin(
        {PARENT: (1001, 1002, 1003, 1004, 1005)}, {**TWO, "work.read.": b"something else"}
    ),
    "no reader file": Ruin({PARENT: (1001, 1002, 1003, 1004, 1005)}, TWO),
    "readers that are not equally far": Ruin(
        {PARENT: (1003, 1004, 1005), LEFT: (1001, 1004, 1005), RIGHT: (1005,)}, {**TWO, **FAMILY}
    ),
    "a reader that is deleted": Ruin(
        {PARENT: (1003, 1004, 1005), RIGHT: (1005,)}, {**TWO, **FAMILY, "work.read.left": DELETED_FILE}
    ),
    "a parent that is deleted": Ruin(
        {LEFT: (1001, 1004, 1005), RIGHT: (1005,)}, {**TWO, **FAMILY, "work.read.:own": DELETED_FILE}
    ),
    "readers all of whom are deleted": Ruin({}, {**TWO, **dict.fromkeys(FAMILY, DELETED_FILE)}),
    "damage in the midst": Ruin(
        {PARENT: (1002, 1004, 1005)},
        {**TWO, "work.1000": writer(items(1001, 1002), b"\x86\xff", items(1003)), "work.read.": reader(1)},
    ),
    "a writer file that is none": Ruin(
        {PARENT: (1002, 1003)}, {**TWO, "work.2000": b"something else", "work.read.": reader(1)}
    ),
    "a writer file of zeros": Ruin({PARENT: (1002, 1003)}, {**TWO, "work.2000": bytes(60), "work.read.": reader(1)}),
    "a writer file that nobody needs any more": Ruin({PARENT: (1005,)}, {**TWO, "work.read.": reader(4)}),
    "nothing that anybody needs": Ruin(
        {PARENT: (), LEFT: ()}, {**TWO, "work.read.:own": reader(5), "work.read.left": reader(5)}
    ),
    "a head beyond the last item": Ruin(
        {PARENT: ()}, {**TWO, "work.read.": encode_state(ReaderState(DoneSet(9)))}
    ),
    "a head beyond the last item and no checksum": Ruin(
        {PARENT: (1001, 1002, 1003, 1004, 1005)}, {**TWO, "work.read.": reader(9)}
    ),
    "ids that were there before": Ruin(
        {PARENT: (1002, 1003, 1006)},
        {**TWO, "work.2000": writer(items(1004, 1005, 1006, first_id=2)), "work.read.": reader(1)},
    ),
    "many writer files": Ruin(
        {PARENT: tuple(range(1004, 1012)), LEFT: (1003, *range(1006, 1012))},
        {
            **{f"work.{number}": writer(items(number)) for number in range(1001, 1012)},
            "work.read.:own": reader(3),
            "work.read.left": reader(2, 4, 5),
        },
    ),
    "all of it": Ruin(
        {PARENT: (1003, 1004), RIGHT: (1003, 1004, 1006)},
        {
            "work.1000": writer(items(1001, 1002, 1003), b"\xff", items(1011)),
            "work.2000": writer(items(1004), for_alone(b"left"), items(1005), for_alone(b"right"), items(1006)),
            "work.3000": writer(for_all_but(b"right"), items(1007)[:-1]),
            "work.read.:own": reader(2, 5, 6)[:-8] + b"\x91",
            "work.read.left": DELETED_FILE,
            "work.read.right": reader(2, 5),
            "work.read.right~~4000": reader(2),
            "work.4000~~4001": writer(items(1012)),
            ".kestrel/hints/work": b"not even a hint",
        },
    ),
}


def nothing_more(run: StorageRun) -> Iterator[None]:
    yield


def a_little_more(run: StorageRun) -> Iterator[None]:
    queues = [*run.queues.values()]
    for queue in queues:
        assert queue.store.items == len(queue.history.items)
    if queues:
        run.put(queues)
        yield
        queues[0].get()
        queues[-1].put()
    yield


@pytest.mark.parametrize(
    ("sync_journal_ms", "scenario"),
    [(None, nothing_more), *((sync_journal_ms, a_little_more) for sync_journal_ms in SYNCS.values())],
    ids=["nothing more", *SYNCS],
)
@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_a_start_that_dies_anywhere_is_taken_up_by_the_next(
    folder: Path,
    restarts: RestartCache,
    backend: Backend,
    ruin: Ruin,
    sync_journal_ms: int | None,
    scenario: Callable[[StorageRun], Iterator[None]],
) -> None:
    pace = PACES["threads run at once"]
    trial = CrashTrial(folder, scenario, sync_journal_ms, pace, backend, files=ruin.files, items=ruin.items)
    trial.check_every_crash(restarts)


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_starts_that_die_one_after_the_other_each_a_little_later_are_taken_up_by_the_next(
    folder: Path, restarts: RestartCache, backend: Backend, ruin: Ruin
) -> None:
    left = folder / "left"
    write_files(left, ruin.files)
    crash_in_each_start(left, backend)
    assert restarts.found_in(left) == ruin.items
