"""The model of what a crash may leave of a queue admits what it should, and nothing else."""

from __future__ import annotations

from itertools import chain, combinations, permutations

import pytest

from tests.storage.histories import OneFile, State, TwoFiles

SYNCED = 0
NEVER = None


def every(numbers: int) -> list[State]:
    """All that can be made of the numbers up to that one, in every order."""
    sets = chain.from_iterable(combinations(range(1, numbers + 1), size) for size in range(numbers + 1))
    return [order for each in sets for order in permutations(each)]


def admitted(
    history: OneFile | TwoFiles, sync_journal_ms: int | None = SYNCED, *, of_machine: bool = False
) -> set[State]:
    """What a start may find, of all that can be made of six items."""
    promise = history.promise(sync_journal_ms, has_machine_died=of_machine)
    return {found for found in every(6) if promise.admits(found)}


@pytest.mark.parametrize("kind", [OneFile, TwoFiles])
def test_what_was_acknowledged_is_there_once_and_in_order(kind: type[OneFile] | type[TwoFiles]) -> None:
    history = kind()
    for number in (1, 2, 3):
        history.put(number)
    history.take(1, 0)
    history.acknowledge(history.commit())
    assert admitted(history) == {(2, 3)}


def test_of_one_file_each_record_counts_with_all_before_it() -> None:
    history = OneFile()
    history.put(1)
    history.acknowledge(history.commit())
    history.put(2)
    history.take(1, 7)
    history.put(3)
    history.put_back(7)
    history.take(1, 0)
    assert admitted(history) == {(1,), (1, 2), (1, 2, 3), (2, 3)}


def test_of_two_files_each_may_have_been_written_alone_up_to_any_record() -> None:
    history = TwoFiles((1, 2))
    history.put(3)
    history.take(1, 7)
    history.take(2, 8)
    history.take(3, 0)
    history.confirm(8)
    history.confirm(7)
    history.put(4)
    history.put(5)
    after_puts = {(1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5)}
    removed = [set(), {3}, {2, 3}, {1, 2, 3}]
    assert admitted(history) == {tuple(n for n in state if n not in gone) for state in after_puts for gone in removed}


def test_of_two_files_the_items_are_written_before_the_removals() -> None:
    history = TwoFiles((1,))
    history.put(2)
    history.take(1, 0)
    history.put(3)
    assert history.on_the_way() == [(1,), (1, 2), (1, 2, 3), (2, 3)]


@pytest.mark.parametrize("kind", [OneFile, TwoFiles])
def test_what_is_open_is_there_and_what_was_put_back_too(kind: type[OneFile] | type[TwoFiles]) -> None:
    history = kind((1, 2, 3))
    for xid in (1, 2):
        history.take(xid, xid)
    history.put_back(2)
    history.acknowledge(history.commit())
    assert admitted(history) == {(1, 2, 3)}


def test_a_restart_of_one_file_brings_what_is_open_first_and_of_two_files_what_was_put_first() -> None:
    for history, order in ((OneFile((1, 2, 3)), (2, 1, 3)), (TwoFiles((1, 2, 3)), (1, 2, 3))):
        for xid in (1, 2):
            history.take(xid, xid)
        history.put_back(1)
        history.acknowledge(history.commit())
        assert admitted(history) == {order}


@pytest.mark.parametrize("kind", [OneFile, TwoFiles])
def test_a_deleted_queue_may_be_there_until_that_is_acknowledged(kind: type[OneFile] | type[TwoFiles]) -> None:
    history = kind()
    history.put(1)
    history.put(2)
    history.acknowledge(history.commit())
    history.delete()
    moment = history.commit()
    history.put(3)
    assert admitted(history) == {(), (1,), (1, 2), (3,)}
    history.acknowledge(moment)
    assert admitted(history) == {(), (3,)}


@pytest.mark.parametrize("kind", [OneFile, TwoFiles])
def test_a_machine_may_lose_what_is_not_synced(kind: type[OneFile] | type[TwoFiles]) -> None:
    history = kind((1,))
    history.put(2)
    history.acknowledge(history.commit())
    synced = history.last_acknowledged()
    history.put(3)
    history.acknowledge(history.commit())
    assert admitted(history, 500, of_machine=True) == {(1,), (1, 2), (1, 2, 3)}
    history.sync(synced)
    assert admitted(history, 500, of_machine=True) == {(1, 2), (1, 2, 3)}
    assert admitted(history, 500) == {(1, 2, 3)}
    assert admitted(history, SYNCED, of_machine=True) == {(1, 2, 3)}
    assert admitted(history, NEVER, of_machine=True) == {(1,), (1, 2), (1, 2, 3)}


def test_a_machine_may_lose_a_file_whose_items_have_all_been_removed_and_not_that_others_were_before() -> None:
    history = TwoFiles((1, 2, 3, 4))
    for number in (1, 2, 3, 4):
        history.take(number, number)
    history.confirm(3)
    history.commit()
    history.confirm(1)
    history.commit()
    history.confirm(2)
    history.acknowledge(history.commit())
    any_of_three = {(*each, 4) for size in range(4) for each in combinations((1, 2, 3), size)}
    assert admitted(history, NEVER, of_machine=True) == any_of_three
    assert admitted(history, SYNCED, of_machine=True) == admitted(history, NEVER) == {(4,)}
