"""A worker's next steps, as a table: results on the left, the steps that follow on the right."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import pytest

from kestrel.client.errors import CannotConnect, ConnectionFailed, OpenReadsError, ServerError
from kestrel.errors import BadQueueName
from kestrel.worker.slot import (
    MAX_OUTAGE_PAUSE_S,
    MAX_RETRY_PAUSE_S,
    CallFunction,
    EndRead,
    PauseFor,
    PutAside,
    Slot,
    Step,
    TakeItem,
    WorkerCounts,
    WorkerRules,
)


class LongestPauses(Random):
    """Randomness that shortens no pause."""

    def uniform(self, a: float, b: float) -> float:
        """Return the upper limit."""
        return b


STOP: Final = "the worker is told to stop while this step runs"

TAKE: Final = TakeItem(b"work", 1.0)
CONFIRM: Final = EndRead(True)
RETURN: Final = EndRead(False)
ASIDE: Final = PutAside(b"failed")
CALL: Final = [CallFunction(retries_left) for retries_left in range(4)]


def make_slot(
    queues: Sequence[str] = ("work",), *, retries: int = 2, error_queue: str | None = None, number: int = 0
) -> Slot:
    """Return a slot whose pauses are not random."""
    return Slot(WorkerRules(queues, 2, retries, 1.0, error_queue), number, LongestPauses())


def steps_of(slot: Slot, results: Sequence[Any]) -> list[Step]:
    """Return the steps of a slot that gets these results: values, failures to throw, or `STOP`, which returns True."""
    plan = slot.steps()
    steps = [next(plan)]
    for result in results:
        if result is STOP:
            slot.is_stopping = True
        try:
            steps.append(plan.throw(result) if isinstance(result, Exception) else plan.send(bool(result)))
        except StopIteration:
            break
    return steps


PLAIN: Final = {
    "no item": ([False, False], [TAKE, TAKE, TAKE], {}),
    "an item is called and confirmed": ([True, True, True], [TAKE, CALL[2], CONFIRM, TAKE], {"done": 1}),
    "a call that fails once is repeated": (
        [True, False, True, True, True],
        [TAKE, CALL[2], PauseFor(1.0), CALL[1], CONFIRM, TAKE],
        {"done": 1, "failed_calls": 1},
    ),
    "an item that always fails returns, and the slot pauses": (
        [True, False, True, False, True, False, True, True, True],
        [TAKE, CALL[2], PauseFor(1.0), CALL[1], PauseFor(2.0), CALL[0], RETURN, PauseFor(4.0), TAKE, CALL[2]],
        {"returned": 1, "failed_calls": 3},
    ),
    "a success ends the growth of the pauses": (
        [True, False, True, True, True, True, False],
        [TAKE, CALL[2], PauseFor(1.0), CALL[1], CONFIRM, TAKE, CALL[2], PauseFor(1.0)],
        {"done": 1, "failed_calls": 2},
    ),
    "a server that cannot be reached is asked again after growing pauses": (
        [CannotConnect("away"), True, ServerError("quiescent"), True, ConnectionFailed("reset"), True, False],
        [TAKE, PauseFor(0.5), TAKE, PauseFor(1.0), TAKE, PauseFor(2.0), TAKE, TAKE],
        {},
    ),
    "an answer ends the growth of the pauses": (
        [CannotConnect("away"), True, False, CannotConnect("away")],
        [TAKE, PauseFor(0.5), TAKE, TAKE, PauseFor(0.5)],
        {},
    ),
    "a confirm that fails is counted, and the next item is taken": (
        [True, True, OpenReadsError("too late"), True],
        [TAKE, CALL[2], CONFIRM, TAKE, CALL[2]],
        {"unconfirmed": 1},
    ),
    "a stop while waiting": ([STOP], [TAKE, CALL[2]], {}),
    "a stop between items": ([True, True, STOP], [TAKE, CALL[2], CONFIRM], {"done": 1}),
    "a stop during a call": ([True, STOP, True], [TAKE, CALL[2], CONFIRM], {"done": 1}),
    "a stop before a retry": (
        [True, False, STOP, True, True],
        [TAKE, CALL[2], PauseFor(1.0), RETURN, PauseFor(2.0)],
        {"returned": 1, "failed_calls": 1},
    ),
    "a stop during an outage": ([CannotConnect("away"), STOP], [TAKE, PauseFor(0.5)], {}),
}

WITH_ERROR_QUEUE: Final = {
    "an item that always fails is put aside, then confirmed": (
        [True, False, True, False, True, True, True],
        [TAKE, CALL[1], PauseFor(1.0), CALL[0], ASIDE, CONFIRM, TAKE, CALL[1]],
        {"moved": 1, "failed_calls": 2},
    ),
    "an error queue that is full": (
        [True, False, True, False, False, True, True],
        [TAKE, CALL[1], PauseFor(1.0), CALL[0], ASIDE, RETURN, PauseFor(2.0), TAKE],
        {"returned": 1, "failed_calls": 2},
    ),
    "an error queue that cannot be reached": (
        [True, False, True, False, ConnectionFailed("reset"), True, True],
        [TAKE, CALL[1], PauseFor(1.0), CALL[0], ASIDE, RETURN, PauseFor(2.0), TAKE],
        {"returned": 1, "failed_calls": 2},
    ),
    "an item that was put aside and cannot be confirmed": (
        [True, False, True, False, True, ConnectionFailed("reset")],
        [TAKE, CALL[1], PauseFor(1.0), CALL[0], ASIDE, CONFIRM, TAKE],
        {"moved": 1, "unconfirmed": 1, "failed_calls": 2},
    ),
    "a stop before the last retry": (
        [True, False, STOP, True, True],
        [TAKE, CALL[1], PauseFor(1.0), RETURN, PauseFor(2.0)],
        {"returned": 1, "failed_calls": 1},
    ),
}


@pytest.mark.parametrize(("results", "steps", "counts"), PLAIN.values(), ids=PLAIN)
def test_steps_without_an_error_queue(results: list[Any], steps: list[Step], counts: dict[str, int]) -> None:
    slot = make_slot()
    assert steps_of(slot, results) == steps
    assert slot.counts == WorkerCounts(**counts)


@pytest.mark.parametrize(("results", "steps", "counts"), WITH_ERROR_QUEUE.values(), ids=WITH_ERROR_QUEUE)
def test_steps_with_an_error_queue(results: list[Any], steps: list[Step], counts: dict[str, int]) -> None:
    slot = make_slot(retries=1, error_queue="failed")
    assert steps_of(slot, results) == steps
    assert slot.counts == WorkerCounts(**counts)


def queues_of(steps: Sequence[Step]) -> list[tuple[str, float]]:
    return [(step.queue.decode(), step.wait_s) for step in steps if isinstance(step, TakeItem)]


def test_several_queues_are_asked_in_turn_and_waited_for_when_all_are_empty() -> None:
    steps = steps_of(make_slot(["a", "b", "c"]), [False, False, False, True, True, True, False])
    assert queues_of(steps) == [("a", 0), ("b", 0), ("c", 1.0), ("a", 1.0), ("b", 0), ("c", 0)]


def test_each_slot_begins_with_another_queue() -> None:
    first = [queues_of(steps_of(make_slot(["a", "b", "c"], number=number), []))[0][0] for number in range(4)]
    assert first == ["a", "b", "c", "a"]


def test_a_queue_that_fails_does_not_slow_the_others() -> None:
    failure = ServerError("its journal failed")
    steps = steps_of(make_slot(["a", "b"]), [True, True, True, failure, True, True, True, failure, failure])
    assert [step for step in steps if isinstance(step, PauseFor)] == [PauseFor(0.5)]
    assert isinstance(steps[-1], PauseFor)


def pauses_of(slot: Slot, results: Sequence[Any]) -> list[float]:
    return [step.seconds for step in steps_of(slot, results) if isinstance(step, PauseFor)]


def test_pauses_have_a_maximum_and_are_random() -> None:
    fails = [True, *[False, True] * 20]
    assert pauses_of(make_slot(), [CannotConnect("away"), True] * 10)[-1] == MAX_OUTAGE_PAUSE_S
    assert pauses_of(make_slot(retries=20), fails)[-1] == MAX_RETRY_PAUSE_S
    pauses = pauses_of(Slot(WorkerRules("work", 1, 20, 1.0, None), 0, Random(1)), fails)
    assert all(0.5 * 2**number <= pause <= 2**number for number, pause in enumerate(pauses[:6]))
    assert len({pause / 2**number for number, pause in enumerate(pauses[:6])}) == 6


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a b", 1, 3, 1.0, None), BadQueueName),
        (("work", 1, 3, 1.0, "a b"), BadQueueName),
        (([], 1, 3, 1.0, None), ValueError),
        (("work", 0, 3, 1.0, None), ValueError),
        (("work", 1, -1, 1.0, None), ValueError),
        (("work", 1, 3, 0.0, None), ValueError),
        (("work", 1, 3, float("nan"), None), ValueError),
        (("work", 1, 3, 1.0, b"work"), ValueError),
        (([1], 1, 3, 1.0, None), TypeError),
    ],
)
def test_invalid_options_are_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        WorkerRules(*arguments)
