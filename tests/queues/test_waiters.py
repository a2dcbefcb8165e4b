"""The line of those who wait for an item."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kestrel.queues.waiters import Waiter, WaitingLine
from tests.costs import costs_about_the_same


def waiter(*, patient: bool = True) -> Waiter:
    return Waiter(lambda item, error: None, opens=False, peeks=False, patient=patient)


def test_who_comes_first_is_served_first() -> None:
    line = WaitingLine()
    first, second, third = waiter(), waiter(), waiter()
    for each in (first, second, third):
        line.join(each)
    assert (line.first(), len(line), line.all()) == (first, 3, [first, second, third])
    assert (line.leave(second), line.leave(second)) == (True, False)
    assert line.all() == [first, third]


def test_the_impatient_are_those_who_came_so_and_those_who_became_it() -> None:
    line = WaitingLine()
    first, second, third = waiter(), waiter(patient=False), waiter()
    for each in (first, second, third):
        line.join(each)
    assert line.impatient() == [second]
    line.lose_patience(first)
    assert line.impatient() == [second, first]
    line.leave(second)
    line.leave(first)
    assert (line.impatient(), line.all()) == ([], [third])


def test_who_loses_patience_before_standing_in_line_stands_there_without() -> None:
    line = WaitingLine()
    hasty = waiter()
    line.lose_patience(hasty)
    assert line.impatient() == []
    line.join(hasty)
    assert line.impatient() == [hasty]


def test_a_long_line_of_the_patient_takes_no_longer_than_a_short_one() -> None:
    def prepared(patient: int) -> Callable[[], object]:
        line = WaitingLine()
        for _ in range(patient):
            line.join(waiter())

        def look() -> None:
            for _ in range(1000):
                line.join(waiter())
                assert line.impatient() == []

        return look

    assert costs_about_the_same(partial(prepared, 1), partial(prepared, 50_000))
