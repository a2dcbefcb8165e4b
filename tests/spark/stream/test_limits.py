"""How an amount is shared out."""

from __future__ import annotations

from kestrel.spark.stream.queue_reader import FairShares, RoundRobin


def shares(amount: int, wanted: list[int]) -> list[int]:
    """What each gets that wants so much."""
    left = FairShares(amount, len(wanted))
    given = []
    for each in wanted:
        given.append(min(each, left.next()))
        left.used(each)
    return given


def test_those_who_want_much_get_the_same() -> None:
    assert shares(30, [99, 99, 99]) == [10, 10, 10]


def test_what_one_does_not_want_is_left_to_those_after_it() -> None:
    assert shares(30, [2, 99, 99]) == [2, 14, 14]
    assert shares(30, [99, 99, 2]) == [10, 10, 2]


def test_no_more_is_given_than_there_is() -> None:
    assert shares(2, [99, 99, 99]) == [1, 1, 0]
    assert shares(0, [99]) == [0]


def test_who_takes_more_than_its_share_takes_nothing_from_the_others() -> None:
    assert shares(30, [1 << 40, 99, 99]) == [10, 10, 10]


def test_each_time_another_one_is_first_whoever_comes_and_goes() -> None:
    turns = RoundRobin()
    assert turns.of(("a", "b", "c")) == ["b", "c", "a"]
    assert turns.of(("a", "b", "c")) == ["c", "a", "b"]
    assert turns.of(("a", "b")) == ["b", "a"]
    assert turns.of(("a",)) == ["a"]
    assert turns.of(()) == []
    assert turns.of(("a", "b")) == ["b", "a"]
