"""What a program is told to be safe is safe, all of it."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import QueueFailed
from kestrel.library.handle import DurabilityTracker
from kestrel.storage.barrier import Batch


def outcome_of(safe: Deferred[None]) -> list[str | None]:
    """What it has told: None where all is safe, or why something is lost."""
    told: list[str | None] = []
    safe.addCallbacks(told.append, lambda failure: told.append(failure.getErrorMessage()))
    return told


@pytest.fixture
def batches() -> list[Batch]:
    """Three that are under way."""
    return [Batch(), Batch(), Batch()]


@pytest.fixture
def safety(batches: list[Batch]) -> DurabilityTracker:
    """Of a queue of which something is in each."""
    safety = DurabilityTracker()
    for batch in batches:
        safety.add_batch(batch)
    return safety


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_it_is_told_when_every_batch_is_safe_and_not_before(
    safety: DurabilityTracker, batches: list[Batch], order: tuple[int, ...]
) -> None:
    told = outcome_of(safety.safe())
    for number in order:
        assert told == []
        batches[number].settle(None)
    assert told == [None]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_loss_in_any_batch_is_told_when_the_others_are_known(
    safety: DurabilityTracker, batches: list[Batch], lost: int
) -> None:
    told = outcome_of(safety.safe())
    for number, batch in enumerate(batches):
        assert told == []
        batch.settle(QueueFailed("the disk is gone") if number == lost else None)
    assert told == ["the disk is gone"]


def test_what_is_done_afterwards_is_not_waited_for(safety: DurabilityTracker, batches: list[Batch]) -> None:
    told = outcome_of(safety.safe())
    safety.add_batch(Batch())
    for batch in batches:
        batch.settle(None)
    assert told == [None]


def test_a_loss_that_nobody_was_told_is_told_who_asks_next_and_once(
    safety: DurabilityTracker, batches: list[Batch]
) -> None:
    for batch in batches:
        batch.settle(QueueFailed("the disk is gone"))
    assert outcome_of(safety.safe()) == ["the disk is gone"]
    assert outcome_of(safety.safe()) == [None]
