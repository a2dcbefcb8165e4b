"""A worker's next steps, as a table: results on the left, the steps that follow on the right."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

import pytest

from kestrel.client.choice import run_blocking
from kestrel.client.errors import CannotConnect, ConnectionFailed, OpenReadsError, ServerError
from kestrel.errors import BadQueueName
from kestrel.worker.slot import MAX_OUTAGE_PAUSE_S, MAX_RETRY_PAUSE_S, Slot, WorkerCounts, WorkerRules


class LongestPauses(Random):
    """Randomness that shortens no pause."""

    def uniform(self, a: float, b: float) -> float:
        """Return the upper limit."""
        return b


STOP: Final = "the worker is told to stop while this step runs"

TAKE: Final = ("take", "work", 1.0)
CONFIRM: Final = ("end_read", True)
RETURN: Final = ("end_read", False)
ASIDE: Final = ("put_aside", "failed")
CALL: Final = [("call", retries_left) for retries_left in range(4)]


def pause(seconds: float) -> tuple[str, float]:
    """Return the step of a pause."""
    return "pause", seconds


class OutOfResults(BaseException):
    """The slot has taken one step more than it has results."""


class ScriptedSlot(Slot):
    """A slot that gets results: values, failures to raise, or `STOP`, which is True. It records its steps."""

    def __init__(self, rules: WorkerRules, number: int = 0) -> None:
        super().__init__(rules, number)
        self.results: deque[Any] = deque()
        self.steps: list[tuple[Any, ...]] = []
        self.calls = 0

    def do(self, *step: Any) -> bool:
        """Record a step, and return or raise its result."""
        self.steps.append(step)
        if not self.results:
            raise OutOfResults
        result = self.results.popleft()
        if result is STOP:
            self.is_stopping = True
        if isinstance(result, Exception):
            raise result
        return bool(result)

    async def take(self, queue: bytes, wait_s: float) -> bytes | None:
        self.calls = 0
        return b"item" if self.do("take", queue.decode(), wait_s) else None

    async def call(self, item: bytes) -> None:
        self.calls += 1
        if not self.do("call", self._rules.retries + 1 - self.calls):
            raise LookupError

    async def put_aside(self, error_queue: bytes, item: bytes) -> bool:
        return self.do("put_aside", error_queue.decode())

    async def end_read(self, confirms: bool) -> None:
        self.do("end_read", confirms)

    async def pause(self, seconds: float) -> None:
        self.do("pause", seconds)


def make_slot(
    queues: Sequence[str] = ("work",), *, retries: int = 2, error_queue: str | None = None, number: int = 0
) -> ScriptedSlot:
    """Return a slot whose pauses are not random."""
    return ScriptedSlot(WorkerRules(queues, 2, retries, 1.0, error_queue, random=LongestPauses()), number)


def steps_of(slot: ScriptedSlot, results: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the steps of a slot that gets these results."""
    slot.results.extend(results)
    with suppress(OutOfResults):
        run_blocking(slot.run())
    return slot.steps


PLAIN: Final = {
    "no item": ([False, False], [TAKE, TAKE, TAKE], {}),
    "an item is called and confirmed": ([True, True, True], [TAKE, CALL[2], CONFIRM, TAKE], {"done": 1}),
    "a call that fails once is repeated": (
        [True, False, True, True, True],
        [TAKE, CALL[2], pause(1.0), CALL[1], CONFIRM, TAKE],
        {"done": 1, "failed_calls": 1},
    ),
    "an item that always fails returns, and the slot pauses": (
        [True, False, True, False, True, False, True, True, True],
        [TAKE, CALL[2], pause(1.0), CALL[1], pause(2.0), CALL[0], RETURN, pause(4.0), TAKE, CALL[2]],
        {"returned": 1, "failed_calls": 3},
    ),
    "a success ends the growth of the pauses": (
        [True, False, True, True, True, True, False],
        [TAKE, CALL[2], pause(1.0), CALL[1], CONFIRM, TAKE, CALL[2], pause(1.0)],
        {"done": 1, "failed_calls": 2},
    ),
    "a server that cannot be reached is asked again after growing pauses": (
        [CannotConnect("away"), True, ServerError("quiescent"), True, ConnectionFailed("reset"), True, False],
        [TAKE, pause(0.5), TAKE, pause(1.0), TAKE, pause(2.0), TAKE, TAKE],
        {},
    ),
    "an answer ends the growth of the pauses": (
        [CannotConnect("away"), True, False, CannotConnect("away")],
        [TAKE, pause(0.5), TAKE, TAKE, pause(0.5)],
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
        [TAKE, CALL[2], pause(1.0), RETURN, pause(2.0)],
        {"returned": 1, "failed_calls": 1},
    ),
    "a stop during an outage": ([CannotConnect("away"), STOP], [TAKE, pause(0.5)], {}),
}

WITH_ERROR_QUEUE: Final = {
    "an item that always fails is put aside, then confirmed": (
        [True, False, True, False, True, True, True],
        [TAKE, CALL[1], pause(1.0), CALL[0], ASIDE, CONFIRM, TAKE, CALL[1]],
        {"moved": 1, "failed_calls": 2},
    ),
    "an error queue that is full": (
        [True, False, True, False, False, True, True],
        [TAKE, CALL[1], pause(1.0), CALL[0], ASIDE, RETURN, pause(2.0), TAKE],
        {"returned": 1, "failed_calls": 2},
    ),
    "an error queue that cannot be reached": (
        [True, False, True, False, ConnectionFailed("reset"), True, True],
        [TAKE, CALL[1], pause(1.0), CALL[0], ASIDE, RETURN, pause(2.0), TAKE],
        {"returned": 1, "failed_calls": 2},
    ),
    "an item that was put aside and cannot be confirmed": (
        [True, False, True, False, True, ConnectionFailed("reset")],
        [TAKE, CALL[1], pause(1.0), CALL[0], ASIDE, CONFIRM, TAKE],
        {"moved": 1, "unconfirmed": 1, "failed_calls": 2},
    ),
    "a stop before the last retry": (
        [True, False, STOP, True, True],
        [TAKE, CALL[1], pause(1.0), RETURN, pause(2.0)],
        {"returned": 1, "failed_calls": 1},
    ),
}


@pytest.mark.parametrize(("results", "steps", "counts"), PLAIN.values(), ids=PLAIN)
def test_steps_without_an_error_queue(results: list[Any], steps: list[tuple[Any, ...]], counts: dict[str, int]) -> None:
    slot = make_slot()
    assert steps_of(slot, results) == steps
    assert slot.counts == WorkerCounts(**counts)


@pytest.mark.parametrize(("results", "steps", "counts"), WITH_ERROR_QUEUE.values(), ids=WITH_ERROR_QUEUE)
def test_steps_with_an_error_queue(results: list[Any], steps: list[tuple[Any, ...]], counts: dict[str, int]) -> None:
    slot = make_slot(retries=1, error_queue="failed")
    assert steps_of(slot, results) == steps
    assert slot.counts == WorkerCounts(**counts)


def queues_of(steps: Sequence[tuple[Any, ...]]) -> list[tuple[str, float]]:
    return [(step[1], step[2]) for step in steps if step[0] == "take"]


def test_queues_are_polled_in_turn_with_waits_when_empty() -> None:
    steps = steps_of(make_slot(["a", "b", "c"]), [False, False, False, True, True, True, False])
    assert queues_of(steps) == [("a", 0), ("b", 0), ("c", 1.0), ("a", 1.0), ("b", 0), ("c", 0)]


def test_each_slot_begins_with_another_queue() -> None:
    first = [queues_of(steps_of(make_slot(["a", "b", "c"], number=number), []))[0][0] for number in range(4)]
    assert first == ["a", "b", "c", "a"]


def test_a_queue_that_fails_does_not_slow_the_others() -> None:
    failure = ServerError("its journal failed")
    steps = steps_of(make_slot(["a", "b"]), [True, True, True, failure, True, True, True, failure, failure])
    assert [step for step in steps if step[0] == "pause"] == [pause(0.5)]
    assert steps[-1][0] == "pause"


def pauses_of(slot: ScriptedSlot, results: Sequence[Any]) -> list[float]:
    return [step[1] for step in steps_of(slot, results) if step[0] == "pause"]


def test_pauses_have_a_maximum_and_are_random() -> None:
    fails = [True, *[False, True] * 20]
    assert pauses_of(make_slot(), [CannotConnect("away"), True] * 10)[-1] == MAX_OUTAGE_PAUSE_S
    assert pauses_of(make_slot(retries=20), fails)[-1] == MAX_RETRY_PAUSE_S
    pauses = pauses_of(ScriptedSlot(WorkerRules("work", 1, 20, 1.0, None, random=Random(1))), fails)
    assert all(0.5 * 2**number <= pause_s <= 2**number for number, pause_s in enumerate(pauses[:6]))
    assert len({pause_s / 2**number for number, pause_s in enumerate(pauses[:6])}) == 6


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
