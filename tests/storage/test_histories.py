"""The model of a queue admits exactly the states that a crash may leave."""

from __future__ import annotations

from itertools import chain, combinations, permutations

import pytest

from tests.storage.histories import History, OneFile, State, TwoFiles

SYNCED = 0
NEVER = None

either_kind = pytest.mark.parametrize("kind", [OneFile, TwoFiles])


def all_states(numbers: int) -> list[State]:
    """Return all ordered selections of the numbers up to this one."""
    sets = chain.from_iterable(combinations(range(1, numbers + 1), size) for size in range(numbers + 1))
    return [order for each in sets for order in permutations(each)]


def admitted(history: History, sync_journal_ms: int | None = SYNCED, *, has_machine_died: bool = False) -> set[State]:
    """Return the admitted states of up to six items."""
    promise = history.promise(sync_journal_ms, has_machine_died=has_machine_died)
    return {found for found in all_states(6) if promise.admits(found)}


def commit(history: History) -> None:
    history.acknowledge(history.commit())


def put(history: History, *numbers: int) -> None:
    for number in numbers:
        history.put(number)


def open_(history: History, *numbers: int) -> None:
    """Open the items at the head, each with its number as xid."""
    for number in numbers:
        history.take(number, number)


@either_kind
def test_acknowledged_state_is_the_only_one_admitted(kind: type[History]) -> None:
    history = kind()
    put(history, 1, 2, 3)
    history.take(1, 0)
    commit(history)
    assert admitted(history) == {(2, 3)}


def test_one_file_admits_each_later_state() -> None:
    history = OneFile()
    put(history, 1)
    commit(history)
    put(history, 2)
    open_(history, 1)
    put(history, 3)
    history.put_back(1)
    history.take(1, 0)
    assert admitted(history) == {(1,), (1, 2), (1, 2, 3), (2, 3)}


def test_two_files_admit_any_length_of_each() -> None:
    history = TwoFiles((1, 2))
    put(history, 3)
    open_(history, 1, 2)
    history.take(3, 0)
    history.confirm(2)
    history.confirm(1)
    put(history, 4, 5)
    after_puts = {(1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5)}
    removed = [set(), {3}, {2, 3}, {1, 2, 3}]
    assert admitted(history) == {tuple(n for n in state if n not in gone) for state in after_puts for gone in removed}


def test_two_files_write_items_before_removals() -> None:
    history = TwoFiles((1,))
    put(history, 2)
    history.take(1, 0)
    put(history, 3)
    assert history.on_the_way() == [(1,), (1, 2), (1, 2, 3), (2, 3)]


@pytest.mark.parametrize(
    ("kind", "aborted", "order"),
    [(OneFile, 2, (1, 2, 3)), (OneFile, 1, (2, 1, 3)), (TwoFiles, 2, (1, 2, 3)), (TwoFiles, 1, (1, 2, 3))],
)
def test_only_one_file_restores_open_items_first(kind: type[History], aborted: int, order: State) -> None:
    history = kind((1, 2, 3))
    open_(history, 1, 2)
    history.put_back(aborted)
    commit(history)
    assert admitted(history) == {order}


@either_kind
def test_deleted_queue_may_exist_until_acknowledged(kind: type[History]) -> None:
    history = kind()
    put(history, 1, 2)
    commit(history)
    history.delete()
    moment = history.commit()
    put(history, 3)
    assert admitted(history) == {(), (1,), (1, 2), (3,)}
    history.acknowledge(moment)
    assert admitted(history) == {(), (3,)}


@either_kind
def test_power_failure_may_lose_unsynced_changes(kind: type[History]) -> None:
    history = kind((1,))
    put(history, 2)
    commit(history)
    synced = history.last_acknowledged()
    put(history, 3)
    commit(history)
    assert admitted(history, 500, has_machine_died=True) == {(1,), (1, 2), (1, 2, 3)}
    history.sync(synced)
    assert admitted(history, 500, has_machine_died=True) == {(1, 2), (1, 2, 3)}
    assert admitted(history, 500) == {(1, 2, 3)}
    assert admitted(history, SYNCED, has_machine_died=True) == {(1, 2, 3)}
    assert admitted(history, NEVER, has_machine_died=True) == {(1,), (1, 2), (1, 2, 3)}


def test_power_failure_may_lose_fully_removed_files() -> None:
    history = TwoFiles((1, 2, 3, 4))
    open_(history, 1, 2, 3, 4)
    for number in (3, 1, 2):
        history.confirm(number)
    commit(history)
    any_of_three = {(*each, 4) for size in range(4) for each in combinations((1, 2, 3), size)}
    assert admitted(history, NEVER, has_machine_died=True) == any_of_three
    assert admitted(history, SYNCED, has_machine_died=True) == admitted(history, NEVER) == {(4,)}
