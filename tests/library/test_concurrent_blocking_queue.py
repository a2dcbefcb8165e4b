"""A queue of objects in memory: items, limits, waiters, and callbacks that use the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kestrel.library import ConcurrentBlockingQueue, FullPolicy
from tests.programs import arrivals


def queue_of(*items: object, **options: Any) -> tuple[ConcurrentBlockingQueue[Any], Clock]:
    """Return a queue with these items, and its clock."""
    clock = Clock()
    queue: ConcurrentBlockingQueue[Any] = ConcurrentBlockingQueue(clock, **options)
    for item in items:
        queue.put(item)
    return queue, clock


def drained(queue: ConcurrentBlockingQueue[Any]) -> list[object]:
    """Take all items, head first."""
    found = []
    while (item := arrivals(queue.poll())[0]) is not None:
        found.append(item)
    return found


# Items in, items out.


def test_any_object_is_an_item() -> None:
    queue, _ = queue_of(0, False, b"", ())
    assert drained(queue) == [0, False, b"", ()]


@pytest.mark.parametrize("what", [None, Deferred(), Failure(ValueError())])
def test_none_deferreds_and_failures_are_rejected(what: object) -> None:
    queue, _ = queue_of()
    waiting = arrivals(queue.get())
    for put in (queue.put, queue.put_head):
        with pytest.raises(TypeError):
            put(what)
    assert (waiting, queue.size) == ([], 0)


def test_predicate_that_raises_fails_its_poll_and_keeps_the_item() -> None:
    queue, _ = queue_of("x")
    (error,) = arrivals(queue.poll_if(lambda item: 1 / 0 > 0))
    assert isinstance(error, ZeroDivisionError)
    assert arrivals(queue.get()) == ["x"]


@pytest.mark.parametrize("do", [ConcurrentBlockingQueue.flush, ConcurrentBlockingQueue.close])
def test_predicate_that_empties_the_queue_gets_nothing(do: Callable[[Any], None]) -> None:
    queue, _ = queue_of("x", "y")
    assert arrivals(queue.poll_if(lambda item: do(queue) is None)) == [None]
    assert queue.size == 0


# A full queue.


@pytest.mark.parametrize("take", [ConcurrentBlockingQueue.get, ConcurrentBlockingQueue.poll])
@pytest.mark.parametrize("full_policy", FullPolicy)
def test_items_for_waiters_do_not_count_as_full(full_policy: FullPolicy, take: Callable[[Any], Any]) -> None:
    queue, clock = queue_of(max_items=1, full_policy=full_policy)
    taken = []
    for item in range(300):  # after a hundred items, the others follow in the next turn
        assert queue.put(item)
        taken.append(arrivals(take(queue)))
    clock.advance(0)
    assert taken == [[item] for item in range(300)]
    assert (queue.size, queue.dropped_count) == (0, 0)


def test_items_that_waiters_may_not_take_count_as_full() -> None:
    queue, clock = queue_of(max_items=1)
    for _ in range(100):
        assert queue.put(0)
        queue.poll()
    queue.put(1)
    refused = arrivals(queue.poll_if(lambda item: item > 1))
    assert (refused, queue.put(2)) == ([], False)
    clock.advance(0)
    assert (refused, queue.size) == ([None], 1)


def test_max_items_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="max_items"):
        queue_of(max_items=-1)


# Waiters.


@pytest.mark.parametrize("deadline_s", [0, -1])
def test_get_without_time_is_a_poll(deadline_s: float) -> None:
    queue, clock = queue_of("x")
    assert arrivals(queue.get(deadline_s)) == ["x"]
    assert arrivals(queue.get(deadline_s)) == [None]
    assert not clock.getDelayedCalls()


def test_closed_queue_is_empty_and_refuses_puts() -> None:
    queue, clock = queue_of()
    waiting = [arrivals(queue.get()), arrivals(queue.get(60))]
    queue.close()
    queue.close()
    assert waiting == [[None], [None]]
    assert (queue.put("x"), queue.put_head("x"), queue.size) == (False, False, 0)
    assert [arrivals(queue.get()), arrivals(queue.get(5)), arrivals(queue.poll())] == [[None]] * 3
    assert not clock.getDelayedCalls()
    queue, _ = queue_of("x")
    queue.close()
    assert (queue.size, arrivals(queue.get())) == (0, [None])


# Callbacks that use the queue.

CHAIN = 10_000


def test_ten_thousand_gets_in_a_callback_chain_end() -> None:
    queue, clock = queue_of(*range(1, CHAIN + 1))
    seen: list[int] = []

    def got(item: int) -> None:
        seen.append(item)
        if item < CHAIN:
            queue.get().addCallback(got)

    queue.get().addCallback(got)
    assert len(seen) == 100  # the others follow in the next turn
    clock.advance(0)
    assert seen == list(range(1, CHAIN + 1))


def test_ten_thousand_waiters_that_put_for_the_next_are_served() -> None:
    queue, clock = queue_of()
    seen: list[int] = []

    def got(item: int) -> None:
        seen.append(item)
        queue.put(item + 1)

    for _ in range(CHAIN):
        queue.get().addCallback(got)
    queue.put(1)
    assert seen == list(range(1, CHAIN + 1))
    assert (queue.size, clock.getDelayedCalls()) == (1, [])


def test_ten_thousand_puts_and_gets_in_callbacks_end() -> None:
    queue, _ = queue_of()
    seen: list[int] = []

    def got(item: int) -> None:
        seen.append(item)
        if item < CHAIN:
            queue.get().addCallback(got)
            queue.put(item + 1)

    queue.get().addCallback(got)
    queue.put(1)
    assert seen == list(range(1, CHAIN + 1))


def test_calls_in_callbacks_keep_their_order() -> None:
    queue, _ = queue_of()
    seen: list[tuple[str, object]] = []

    def told(name: str, arrival: Deferred[Any]) -> None:
        arrival.addCallback(lambda item: seen.append((name, item)))

    def first(item: object) -> None:
        seen.append(("first", item))
        queue.put("c")
        told("third", queue.get())
        told("poller", queue.poll())

    queue.get().addCallback(first)
    told("second", queue.get())
    queue.put("a")
    queue.put("b")
    assert seen == [("first", "a"), ("second", "c"), ("poller", None), ("third", "b")]


def test_callback_may_cancel_another_waiter() -> None:
    queue, _ = queue_of()
    first, second, third = queue.get(), queue.get(), queue.get()
    seen = arrivals(second)
    first.addCallback(lambda item: second.cancel())
    last = arrivals(third)
    queue.put("a")
    queue.put("b")
    assert [type(each) for each in seen] == [CancelledError]
    assert last == ["b"]


def test_callback_may_close_the_queue() -> None:
    queue, _ = queue_of()
    first, second = queue.get(), queue.get()
    first.addCallback(lambda item: queue.close())
    seen = arrivals(second)
    queue.put("a")
    assert seen == [None]
    assert not queue.put("b")


def test_callback_that_raises_does_not_affect_other_waiters() -> None:
    queue, _ = queue_of()
    first, second = queue.get(), queue.get()
    first.addCallback(lambda item: 1 / 0)
    seen, errors = arrivals(second), arrivals(first)
    queue.put("a")
    queue.put("b")
    assert seen == ["b"]
    assert isinstance(errors[0], ZeroDivisionError)
