"""A faulty database fails as it is told, and finds out who calls it otherwise than `IDatabase` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import DatabaseAway, OwnershipLost, StorageError, StorageInUse, StorageRefused
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.databases import FaultyDatabase, MemoryDatabase, MemoryTables

ITEM = StoredItem(1, b"item", 5, 0, 0)
WORK = QueueChanges(StoredQueue(b"work", 1, 4, 0, 1), True, False, (), (ITEM,), {})
EMPTY = QueueChanges(StoredQueue(b"work", 0, 0, 1, 1), False, False, ((1, 1),), (), {})
TWICE = QueueChanges(StoredQueue(b"work", 2, 8, 0, 1), False, False, (), (ITEM,), {})


def opened(tables: MemoryTables | None = None) -> FaultyDatabase:
    """One that belongs to us."""
    database = FaultyDatabase(MemoryDatabase(tables or MemoryTables()))
    ended(database.list_queues())
    database.calls.clear()
    return database


def ended(deferred: Deferred[Any]) -> Any:
    """What it has fired with; raises its failure."""
    outcome = DeferredOutcome(deferred)
    assert outcome.is_there
    return outcome.result()


def items_of(database: FaultyDatabase) -> list[StoredItem]:
    return list(ended(database.read_after(b"work", 0, 10, 100)))


# Faults.


def test_what_fails_is_not_done_and_goes_well_when_it_is_mended() -> None:
    database = opened()
    database.fail("apply", StorageError("no"))
    for number in (1, 2):
        with pytest.raises(StorageError, match="no"):
            ended(database.apply(WriteBatch(number, [WORK])))
    assert items_of(database) == []
    database.mend()
    ended(database.apply(WriteBatch(3, [WORK])))
    assert items_of(database) == [ITEM]


def test_it_fails_so_often_as_it_is_told_when_so_many_have_gone_well() -> None:
    database = opened()
    database.fail("apply", StorageError("no"), times=1, after=1)
    outcomes = [DeferredOutcome(database.apply(WriteBatch(number, [WORK]))).has_failed for number in (1, 2, 3)]
    assert outcomes == [False, True, False]


@pytest.mark.parametrize(("is_done", "found"), [(False, []), (True, [ITEM])])
def test_one_that_is_away_has_applied_a_batch_or_not_and_cannot_be_read(
    is_done: bool, found: list[StoredItem]
) -> None:
    tables = MemoryTables()
    database = opened(tables)
    database.go_away(is_done=is_done)
    with pytest.raises(DatabaseAway):
        ended(database.apply(WriteBatch(1, [WORK])))
    with pytest.raises(DatabaseAway):
        items_of(database)
    assert tables.read_after(b"work", 0, 10, 100) == found


def test_one_without_room_refuses_puts_alone() -> None:
    database = opened()
    ended(database.apply(WriteBatch(1, [WORK])))
    database.refuse_puts()
    with pytest.raises(StorageRefused):
        ended(database.apply(WriteBatch(2, [WORK])))
    ended(database.apply(WriteBatch(3, [EMPTY])))


def test_changes_of_one_queue_fail_and_those_of_others_do_not() -> None:
    database = opened()
    database.fail_changes_of(b"work")
    other = WORK._replace(queue=WORK.queue._replace(name=b"other"))
    ended(database.apply(WriteBatch(1, [other])))
    with pytest.raises(StorageError):
        ended(database.apply(WriteBatch(2, [other, WORK])))


def test_ownership_is_lost() -> None:
    database = opened()
    database.lose_ownership()
    with pytest.raises(OwnershipLost):
        ended(database.apply(WriteBatch(1, [WORK])))


def test_what_is_held_is_done_and_answered_when_it_is_released() -> None:
    tables = MemoryTables()
    database = opened(tables)
    database.hold("apply")
    outcome = DeferredOutcome(database.apply(WriteBatch(1, [WORK])))
    assert ([outcome.is_there], database.held("apply")) == ([False], 1)
    assert tables.read_after(b"work", 0, 10, 100) == [ITEM]
    database.release("apply")
    assert ([outcome.is_there], database.held("apply")) == ([True], 0)


def test_the_tables_have_one_owner() -> None:
    tables = MemoryTables()
    first = opened(tables)
    second = FaultyDatabase(MemoryDatabase(tables))
    with pytest.raises(StorageInUse):
        ended(second.list_queues())
    ended(second.close())
    ended(first.close())
    opened(tables)


# Complaints.


def lose_the_answer(database: FaultyDatabase) -> None:
    """A batch with number 2 may have been applied or not."""
    database.go_away()
    DeferredOutcome(database.apply(WriteBatch(2, [WORK])))
    database.mend()


def hold_an_answer(database: FaultyDatabase) -> None:
    """A batch is being applied."""
    database.hold("apply")
    database.apply(WriteBatch(2, [EMPTY]))


def applied(number: int, *changes: QueueChanges) -> Callable[[FaultyDatabase], object]:
    """Apply that batch."""
    return lambda database: database.apply(WriteBatch(number, changes))


@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        ([lambda database: database.list_queues()], "list_queues was called twice"),
        ([lambda database: database.close(), applied(2, EMPTY)], "apply after close"),
        ([lambda database: database.close(), lambda database: database.close()], "close was called twice"),
        ([applied(1, EMPTY)], "batch 1 after batch 1"),
        ([hold_an_answer, applied(3, EMPTY)], "apply while another apply is pending"),
        ([lose_the_answer, applied(3, EMPTY)], "a batch of unknown outcome was not repeated unchanged"),
        ([lose_the_answer, applied(2, EMPTY)], "a batch of unknown outcome was not repeated unchanged"),
        ([applied(2)], "batch 2 changes nothing"),
        ([applied(2, EMPTY, EMPTY)], "a queue has two entries in batch 2"),
        ([applied(2, TWICE)], "b'work' puts position 1 after 1"),
        ([applied(2, EMPTY._replace(removed=((3, 2),)))], "removed range 3 to 2 follows -1"),
        ([applied(2, EMPTY._replace(errors={1: 1}))], "positions [1] are removed and also put or counted"),
        ([applied(2, EMPTY._replace(is_deleted=True))], "b'work' is deleted and has other changes"),
        ([lambda database: database.read_after(b"work", 0, 0, 1)], "read_after with n = 0"),
        (
            [applied(2, EMPTY), lambda database: database.read_after(b"work", 0, 1, 1)],
            "read_after 0, below `floor` = 1",
        ),
    ],
)
def test_a_wrong_call_is_refused_and_remembered(
    calls: list[Callable[[FaultyDatabase], object]], complaint: str
) -> None:
    database = opened()
    ended(database.apply(WriteBatch(1, [WORK])))
    for call in calls[:-1]:
        call(database)
    assert database.complaints == []
    with pytest.raises(AssertionError):
        calls[-1](database)
    assert database.complaints == [complaint]


def test_the_same_batch_may_come_again_when_its_answer_was_lost() -> None:
    database = opened()
    ended(database.apply(WriteBatch(1, [WORK])))
    lose_the_answer(database)
    ended(database.apply(WriteBatch(2, [WORK])))
    ended(database.apply(WriteBatch(3, [EMPTY])))
    assert database.complaints == []


def test_a_batch_that_changes_while_it_is_applied_is_found() -> None:
    database = opened()
    puts = [ITEM]
    database.hold("apply")
    outcome = DeferredOutcome(database.apply(WriteBatch(1, [WORK._replace(puts=puts)])))
    puts.clear()
    database.release("apply")
    assert outcome.has_failed
    assert database.complaints == ["batch 1 was changed while it was being applied"]


def test_figures_that_contradict_the_items_are_found_by_the_tables() -> None:
    tables = MemoryTables()
    tables.own(object())
    with pytest.raises(AssertionError, match="has 1 items of 4 bytes"):
        tables.apply(WriteBatch(1, [WORK._replace(queue=WORK.queue._replace(items=2))]), 1)
    assert tables.queues == {}
