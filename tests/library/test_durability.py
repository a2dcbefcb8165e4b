"""DurabilityTracker reports whether all changes of a queue are safe."""

from __future__ import annotations

import pytest

from kestrel.library.handle import DurabilityTracker
from kestrel.storage.barrier import Batch
from tests.programs import arrivals


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
    told = arrivals(safety.safe())
    for number in order:
        assert told == []
        batches[number].settle(None)
    assert told == [None]


def test_later_batches_are_not_waited_for(safety: DurabilityTracker, batches: list[Batch]) -> None:
    told = arrivals(safety.safe())
    safety.add_batch(Batch())
    for batch in batches:
        batch.settle(None)
    assert told == [None]
