"""A `FaultyDatabase` finds calls that break the rules of `IDatabase`. The contract suite uses its other faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import StorageError
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue, WriteBatch
from kestrel.testing.contract.backend import DeferredOutcome
from kestrel.testing.databases import FaultyDatabase, MemoryDatabase, MemoryTables

ITEM = StoredItem(1, b"item", 5, 0, 0)
WORK = QueueChanges(StoredQueue(b"work", 1, 4, 0, 1), True, False, (), (ITEM,), {})
EMPTY = QueueChanges(StoredQueue(b"work", 0, 0, 1, 1), False, False, ((1, 1),), (), {})
TWICE = QueueChanges(StoredQueue(b"work", 2, 8, 0, 1), False, False, (), (ITEM,), {})


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def database(tables: MemoryTables) -> FaultyDatabase:
    return opened(tables)


def opened(tables: MemoryTables) -> FaultyDatabase:
    """Return a database that owns the tables."""
    database = FaultyDatabase(MemoryDatabase(tables))
    result_of(database.list_queues())
    database.calls.clear()
    return database


def result_of(deferred: Deferred[Any]) -> Any:
    """Return the result of a Deferred that has fired, or raise its failure."""
    outcome = DeferredOutcome(deferred)
    assert outcome.is_there
    return outcome.result()


def apply(database: FaultyDatabase, number: int, *changes: QueueChanges) -> None:
    result_of(database.apply(WriteBatch(number, changes)))


# Faults.


def test_number_and_start_of_failures_can_be_chosen(database: FaultyDatabase) -> None:
    database.fail("apply", StorageError("no"), times=1, after=1)
    outcomes = [DeferredOutcome(database.apply(WriteBatch(number, [WORK]))).has_failed for number in (1, 2, 3)]
    assert outcomes == [False, True, False]


# Complaints.


Call = Callable[[FaultyDatabase], object]


def lose_result(database: FaultyDatabase) -> None:
    """Send batch 2 to a database that is away, so that its outcome is unknown."""
    database.go_away()
    DeferredOutcome(database.apply(WriteBatch(2, [WORK])))
    database.mend()


def hold_result(database: FaultyDatabase) -> None:
    """Leave batch 2 pending."""
    database.hold("apply")
    database.apply(WriteBatch(2, [EMPTY]))


def batch(number: int, *changes: QueueChanges) -> Call:
    return lambda database: database.apply(WriteBatch(number, changes))


def close(database: FaultyDatabase) -> Deferred[None]:
    return database.close()


def read(position: int, n: int) -> Call:
    return lambda database: database.read_after(b"work", position, n, 1)


UNREPEATED = "a batch of unknown outcome was not repeated unchanged"


@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        ([lambda database: database.list_queues()], "list_queues was called twice"),
        ([close, batch(2, EMPTY)], "apply after close"),
        ([close, close], "close was called twice"),
        ([batch(1, EMPTY)], "batch 1 after batch 1"),
        ([hold_result, batch(3, EMPTY)], "apply while another apply is pending"),
        ([lose_result, batch(3, EMPTY)], UNREPEATED),
        ([lose_result, batch(2, EMPTY)], UNREPEATED),
        ([batch(2)], "batch 2 changes nothing"),
        ([batch(2, EMPTY, EMPTY)], "a queue has two entries in batch 2"),
        ([batch(2, TWICE)], "b'work' puts position 1 after 1"),
        ([batch(2, EMPTY._replace(removed=((3, 2),)))], "removed range 3 to 2 follows -1"),
        ([batch(2, EMPTY._replace(errors={1: 1}))], "positions [1] are removed and also put or counted"),
        ([batch(2, EMPTY._replace(is_deleted=True))], "b'work' is deleted and has other changes"),
        ([read(0, 0)], "read_after with n = 0"),
        ([batch(2, EMPTY), read(0, 1)], "read_after 0, below `floor` = 1"),
    ],
)
def test_wrong_call_is_refused_and_recorded(database: FaultyDatabase, calls: list[Call], complaint: str) -> None:
    apply(database, 1, WORK)
    for call in calls[:-1]:
        call(database)
    assert database.complaints == []
    with pytest.raises(AssertionError):
        calls[-1](database)
    assert database.complaints == [complaint]


def test_batch_of_unknown_outcome_may_be_repeated(database: FaultyDatabase) -> None:
    apply(database, 1, WORK)
    lose_result(database)
    apply(database, 2, WORK)
    apply(database, 3, EMPTY)
    assert database.complaints == []


def test_batch_that_changes_while_applied_is_found(database: FaultyDatabase) -> None:
    puts = [ITEM]
    database.hold("apply")
    outcome = DeferredOutcome(database.apply(WriteBatch(1, [WORK._replace(puts=puts)])))
    puts.clear()
    database.release("apply")
    assert outcome.has_failed
    assert database.complaints == ["batch 1 was changed while it was being applied"]


def test_tables_refuse_wrong_item_counts(tables: MemoryTables) -> None:
    tables.own(object())
    with pytest.raises(AssertionError, match="has 1 items of 4 bytes"):
        tables.apply(WriteBatch(1, [WORK._replace(queue=WORK.queue._replace(items=2))]), 1)
    assert tables.queues == {}
