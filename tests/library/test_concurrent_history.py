"""Random histories of a concurrent queue, compared with a model."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from kestrel.library import ConcurrentBlockingQueue, FullPolicy
from tests.programs import arrivals


class Model:
    """A list of items and a list of waiters with deadlines. `answers` has the result of each get."""

    def __init__(self, max_items: int | None, full_policy: FullPolicy) -> None:
        self.max_items = max_items
        self.full_policy = full_policy
        self.items: list[int] = []
        self.line: list[tuple[int, float | None]] = []
        self.answers: dict[int, list[Any]] = {}
        self.dropped = 0

    def put(self, item: int) -> bool:
        """Give an item to the first waiter or append it, within the limit."""
        full = self.max_items is not None and len(self.items) >= self.max_items
        if full and self.full_policy is FullPolicy.REFUSE_PUTS:
            return False
        self.items.append(item)
        while self.max_items is not None and len(self.items) > self.max_items:
            self.items.pop(0)
            self.dropped += 1
        self.serve()
        return True

    def serve(self) -> None:
        """Give items to the waiters, in order."""
        while self.items and self.line:
            self.answers[self.line.pop(0)[0]] = [self.items.pop(0)]

    def get(self, number: int, ends_at: float | None) -> None:
        """Add a waiter."""
        self.answers[number] = []
        self.line.append((number, ends_at))
        self.serve()

    def poll(self, number: int) -> None:
        """Take the head, or None."""
        self.answers[number] = [self.items.pop(0) if self.items else None]

    def leave(self, number: int) -> bool:
        """Remove a waiter, and return whether it was waiting."""
        before = len(self.line)
        self.line = [each for each in self.line if each[0] != number]
        return len(self.line) < before

    def now_is(self, now: float) -> None:
        """End the waiters whose deadline has passed."""
        for number, ends_at in list(self.line):
            if ends_at is not None and ends_at <= now:
                self.leave(number)
                self.answers[number] = [None]


class ConcurrentHistory(RuleBasedStateMachine):
    """Applies each operation to the queue and the model."""

    @initialize(max_items=st.sampled_from([None, 0, 1, 3]), full_policy=st.sampled_from(FullPolicy))
    def begin(self, max_items: int | None, full_policy: FullPolicy) -> None:
        self.clock = Clock()
        self.queue: ConcurrentBlockingQueue[int] = ConcurrentBlockingQueue(
            self.clock, max_items=max_items, full_policy=full_policy
        )
        self.model = Model(max_items, full_policy)
        self.gets: list[Deferred[int | None]] = []
        self.answers: list[list[Any]] = []
        self.last_item = 0

    def asked(self, get: Deferred[int | None]) -> None:
        """Record a get."""
        self.gets.append(get)
        self.answers.append(arrivals(get))

    @rule()
    def put(self) -> None:
        self.last_item += 1
        assert self.queue.put(self.last_item) == self.model.put(self.last_item)

    @rule()
    def put_head(self) -> None:
        self.last_item += 1
        assert self.queue.put_head(self.last_item)
        self.model.items.insert(0, self.last_item)
        self.model.serve()

    @rule(deadline_s=st.sampled_from([None, 1, 2, 5]))
    def get(self, deadline_s: float | None) -> None:
        ends_at = None if deadline_s is None else self.clock.seconds() + deadline_s
        self.model.get(len(self.gets), ends_at)
        self.asked(self.queue.get(deadline_s))

    @rule()
    def poll(self) -> None:
        self.model.poll(len(self.gets))
        self.asked(self.queue.poll())

    @rule(remainder=st.integers(0, 1))
    def poll_if(self, remainder: int) -> None:
        number = len(self.gets)
        if self.model.items and self.model.items[0] % 2 == remainder:
            self.model.poll(number)
        else:
            self.model.answers[number] = [None]
        self.asked(self.queue.poll_if(lambda item: item % 2 == remainder))

    @precondition(lambda self: self.gets)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.gets) - 1))
        was_waiting = self.model.leave(number)
        self.gets[number].cancel()
        if was_waiting:
            (error,) = self.answers[number]
            assert isinstance(error, CancelledError)
            self.model.answers[number] = [error]

    @rule(seconds=st.sampled_from([0.5, 1, 3]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now_is(self.clock.seconds())

    @rule()
    def flush(self) -> None:
        self.queue.flush()
        self.model.items.clear()

    @rule()
    def evict(self) -> None:
        self.queue.evict_waiters()
        for number, _ in self.model.line:
            self.model.answers[number] = [None]
        self.model.line.clear()

    @invariant()
    def results_are_equal(self) -> None:
        assert dict(enumerate(self.answers)) == self.model.answers

    @invariant()
    def counts_are_equal(self) -> None:
        assert self.queue.size == len(self.model.items)
        assert self.queue.waiter_count == len(self.model.line)
        assert self.queue.dropped_count == self.model.dropped

    @invariant()
    def only_waiters_have_timers(self) -> None:
        assert len(self.clock.getDelayedCalls()) == sum(ends_at is not None for _, ends_at in self.model.line)


def test_queue_behaves_like_its_model() -> None:
    run_state_machine_as_test(
        ConcurrentHistory, settings=settings(max_examples=100, stateful_step_count=50, deadline=None)
    )
