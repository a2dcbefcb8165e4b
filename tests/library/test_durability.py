"""DurabilityTracker reports whether all changes of a queue are safe."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import QueueFailed
from kestrel.library.handle import DurabilityTracker
from kestrel.storage.barrier import Batch


def outcome_of(safe: Deferred[None]) -> list[str | None]:
    """Return a list that gets None when all is safe, or the reason of a loss."""
    told: list[str | None] = []
    safe.addCallbacks(told.append, lambda failure: told.append(failure.getErrorMessage()))
    return told


@pytest.fixture
def batches() -> list[Batch]:
    """Return three batches that are not safe yet."""
    return [Batch(), Batch(), Batch()]


@pytest.fixture
def safety(batches: list[Batch]) -> DurabilityTracker:
    """Return the tracker of a queue with changes in each batch."""
    safety = DurabilityTracker()
    for batch in batches:
        safety.add_batch(batch)
    return safety


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_safe_fires_when_every_batch_is_safe(
    safety: DurabilityTracker, batches: list[Batch], order: tuple[int, ...]
) -> None:
    told = outcome_of(safety.safe())
    for number in order:
        assert told == []
        batches[number].settle(None)
    assert told == [None]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_loss_in_any_batch_is_reported_when_all_have_ended(
    safety: DurabilityTracker, batches: list[Batch], lost: int
) -> None:
    told = outcome_of(safety.safe())
    for number, batch in enumerate(batches):
        assert told == []
        batch.settle(QueueFailed("the disk is gone") if number == lost else None)
    assert told == ["the disk is gone"]


def test_later_batches_are_not_waited_for(safety: DurabilityTracker, batches: list[Batch]) -> None:
    told = outcome_of(safety.safe())
    safety.add_batch(Batch())
    for batch in batches:
        batch.settle(None)
    assert told == [None]
