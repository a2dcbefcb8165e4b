"""A queue of objects in memory: nobody is ever blocked, nothing is lost, and everyone is served in turn."""

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
    """A queue with these items, and its clock."""
    clock = Clock()
    queue: ConcurrentBlockingQueue[Any] = ConcurrentBlockingQueue(clock, **options)
    for item in items:
        queue.put(item)
    return queue, clock


def drained(queue: ConcurrentBlockingQueue[Any]) -> list[object]:
    """All that is in it, head first."""
    found = []
    while (item := arrivals(queue.poll())[0]) is not None:
        found.append(item)
    return found


# Items in, items out.


def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    queue, _ = queue_of()
    assert [queue.put(item) for item in ("first", ["second"], 3)] == [True] * 3
    assert (queue.size, len(queue)) == (3, 3)
    assert [arrivals(queue.get()) for _ in range(3)] == [["first"], [["second"]], [3]]
    assert queue.size == 0


def test_any_object_is_an_item() -> None:
    queue, _ = queue_of(0, False, b"", ())
    assert drained(queue) == [0, False, b"", ()]


@pytest.mark.parametrize("what", [None, Deferred(), Failure(ValueError())])
def test_but_not_what_would_be_the_answer_of_a_get_itself(what: object) -> None:
    queue, _ = queue_of()
    waiting = arrivals(queue.get())
    for put in (queue.put, queue.put_head):
        with pytest.raises(TypeError):
            put(what)
    assert (waiting, queue.size) == ([], 0)


def test_a_predicate_that_raises_fails_its_own_poll_and_the_item_stays() -> None:
    queue, _ = queue_of("x")
    (error,) = arrivals(queue.poll_if(lambda item: 1 / 0 > 0))
    assert isinstance(error, ZeroDivisionError)
    assert arrivals(queue.get()) == ["x"]


@pytest.mark.parametrize("do", [ConcurrentBlockingQueue.flush, ConcurrentBlockingQueue.close])
def test_a_predicate_that_drops_what_it_is_asked_about_brings_nothing(do: Callable[[Any], None]) -> None:
    queue, _ = queue_of("x", "y")
    assert arrivals(queue.poll_if(lambda item: do(queue) is None)) == [None]
    assert queue.size == 0


# A full queue.


@pytest.mark.parametrize("take", [ConcurrentBlockingQueue.get, ConcurrentBlockingQueue.poll])
@pytest.mark.parametrize("full_policy", FullPolicy)
def test_it_is_not_full_of_what_is_for_those_in_line(full_policy: FullPolicy, take: Callable[[Any], Any]) -> None:
    queue, clock = queue_of(max_items=1, full_policy=full_policy)
    taken = []
    for item in range(300):  # after a hundred at once the rest is handed over in the next turn
        assert queue.put(item)
        taken.append(arrivals(take(queue)))
    clock.advance(0)
    assert taken == [[item] for item in range(300)]
    assert (queue.size, queue.dropped_count) == (0, 0)


def test_it_is_full_of_what_those_in_line_may_not_take() -> None:
    queue, clock = queue_of(max_items=1)
    for _ in range(100):
        assert queue.put(0)
        queue.poll()
    queue.put(1)
    refused = arrivals(queue.poll_if(lambda item: item > 1))
    assert (refused, queue.put(2)) == ([], False)
    clock.advance(0)
    assert (refused, queue.size) == ([None], 1)


def test_a_number_of_items_is_not_negative() -> None:
    with pytest.raises(ValueError, match="max_items"):
        queue_of(max_items=-1)


# Those who wait.


@pytest.mark.parametrize("deadline_s", [0, -1])
def test_a_deadline_that_is_over_is_a_poll(deadline_s: float) -> None:
    queue, clock = queue_of("x")
    assert arrivals(queue.get(deadline_s)) == ["x"]
    assert arrivals(queue.get(deadline_s)) == [None]
    assert not clock.getDelayedCalls()


def test_a_closed_queue_has_nothing_and_takes_nothing() -> None:
    queue, clock = queue_of()
    waiting = [arrivals(queue.get()), arrivals(queue.get(60))]
    queue.close()
    queue.close()
    assert waiting == [[None], [None]]
    assert (queue.put("x"), queue.put_head("x"), queue.size) == (False, False, 0)
    assert [arrivals(queue.get()), arrivals(queue.get(5)), arrivals(queue.poll())] == [[None]] * 3
    assert not clock.getDelayedCalls()


def test_a_close_drops_what_is_left() -> None:
    queue, _ = queue_of("x")
    queue.close()
    assert (queue.size, arrivals(queue.get())) == (0, [None])


# Callbacks that use the queue.

CHAIN = 10_000


def test_ten_thousand_gets_in_a_chain_end() -> None:
    queue, clock = queue_of(*range(1, CHAIN + 1))
    seen: list[int] = []

    def got(item: int) -> None:
        seen.append(item)
        if item < CHAIN:
            queue.get().addCallback(got)

    queue.get().addCallback(got)
    assert len(seen) == 100  # the rest is for the next turn
    clock.advance(0)
    assert seen == list(range(1, CHAIN + 1))


def test_ten_thousand_who_wait_and_put_for_the_next_are_all_served_within_the_first_put() -> None:
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


def test_ten_thousand_puts_and_gets_in_the_callbacks_of_each_other_end() -> None:
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


def test_what_a_callback_puts_and_asks_for_keeps_its_place() -> None:
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


def test_a_callback_that_cancels_another_takes_nothing_from_it() -> None:
    queue, _ = queue_of()
    first, second, third = queue.get(), queue.get(), queue.get()
    seen = arrivals(second)
    first.addCallback(lambda item: second.cancel())
    last = arrivals(third)
    queue.put("a")
    queue.put("b")
    assert [type(each) for each in seen] == [CancelledError]
    assert last == ["b"]


def test_a_callback_that_closes_the_queue_ends_the_line() -> None:
    queue, _ = queue_of()
    first, second = queue.get(), queue.get()
    first.addCallback(lambda item: queue.close())
    seen = arrivals(second)
    queue.put("a")
    assert seen == [None]
    assert not queue.put("b")


def test_a_callback_that_fails_keeps_nobody_from_being_served() -> None:
    queue, _ = queue_of()
    first, second = queue.get(), queue.get()
    first.addCallback(lambda item: 1 / 0)
    seen, errors = arrivals(second), arrivals(first)
    queue.put("a")
    queue.put("b")
    assert seen == ["b"]
    assert isinstance(errors[0], ZeroDivisionError)
