"""The queue of waiters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kestrel.queues.waiters import Waiter, WaiterQueue
from tests.costs import costs_about_the_same


def waiter(*, is_blocking: bool = True) -> Waiter:
    return Waiter(lambda item, error: None, opens=False, peeks=False, is_blocking=is_blocking)


def test_non_blocking_waiters_are_those_made_or_created_so() -> None:
    line = WaiterQueue()
    first, second, third = waiter(), waiter(is_blocking=False), waiter()
    for each in (first, second, third):
        line.join(each)
    assert line.non_blocking() == [second]
    line.make_non_blocking(first)
    assert line.non_blocking() == [second, first]
    line.leave(second)
    line.leave(first)
    assert (line.non_blocking(), line.all()) == ([], [third])


def test_waiter_made_non_blocking_before_join_stays_so() -> None:
    line = WaiterQueue()
    hasty = waiter()
    line.make_non_blocking(hasty)
    assert line.non_blocking() == []
    line.join(hasty)
    assert line.non_blocking() == [hasty]


def test_many_blocking_waiters_cost_no_more_than_few() -> None:
    def prepared(is_blocking: int) -> Callable[[], object]:
        line = WaiterQueue()
        for _ in range(is_blocking):
            line.join(waiter())

        def look() -> None:
            for _ in range(1000):
                line.join(waiter())
                assert line.non_blocking() == []

        return look

    assert costs_about_the_same(partial(prepared, 1), partial(prepared, 50_000))
