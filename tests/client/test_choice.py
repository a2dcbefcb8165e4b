"""Which server is asked next, and how long one that failed is left alone."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from kestrel.client.backoff import Backoff
from kestrel.client.choice import RandomChoice, StayingChoice

SERVERS = ["a", "b", "c"]


class Clock:
    """Shows what a test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_random(clock: Clock, servers: list[str] = SERVERS) -> RandomChoice[str]:
    return RandomChoice(servers, Random(1), clock, first_backoff_s=1, longest_backoff_s=8)


def make_staying(clock: Clock, gets_per_server: int = 3) -> StayingChoice[str]:
    return StayingChoice(SERVERS, Random(1), clock, gets_per_server=gets_per_server)


def test_puts_go_to_all_servers_at_random(clock: Clock) -> None:
    choice = make_random(clock)
    chosen = [choice.next() for _ in range(300)]
    assert all(60 < chosen.count(server) < 140 for server in SERVERS)
    assert len(set(pairwise(chosen))) == 9


def test_a_server_that_was_asked_already_is_not_asked_again(clock: Clock) -> None:
    choice = make_random(clock)
    assert {choice.next({"a"}) for _ in range(50)} == {"b", "c"}
    assert choice.next({"a", "b", "c"}) is None


def test_a_server_that_failed_is_left_alone_until_its_time_is_up(clock: Clock) -> None:
    choice = make_random(clock)
    choice.failed("a")
    assert {choice.next() for _ in range(50)} == {"b", "c"}
    assert choice.next({"b", "c"}) is None
    clock.now_s += 1
    assert {choice.next() for _ in range(50)} == {"a", "b", "c"}


def test_requests_that_fail_together_are_one_failure(clock: Clock) -> None:
    choice = make_random(clock)
    for _ in range(40):
        choice.failed("a")
        clock.now_s += 0.01
    clock.now_s += 0.6
    assert {choice.next() for _ in range(50)} == {"a", "b", "c"}
    choice.failed("a")
    clock.now_s += 1 - 0.01
    assert {choice.next() for _ in range(50)} == {"b", "c"}  # and this is the second


def test_a_server_that_answers_is_asked_again_at_once(clock: Clock) -> None:
    choice = make_random(clock)
    choice.failed("a")
    choice.answered("a")
    assert {choice.next() for _ in range(50)} == {"a", "b", "c"}


def test_while_all_have_failed_the_one_whose_time_ends_first_is_asked(clock: Clock) -> None:
    choice = make_random(clock)
    for server in ("b", "a", "c"):
        choice.failed(server)
        clock.now_s += 0.001
    for server in ("a", "c"):
        choice.failed(server)
    assert choice.next() == "b"
    assert choice.next({"b"}) in ("a", "c")
    assert choice.next({"a", "b", "c"}) is None


def test_the_only_server_is_asked_however_often_it_failed(clock: Clock) -> None:
    choice = make_random(clock, ["a"])
    for _ in range(3):
        choice.failed("a")
        assert choice.next() == "a"


def test_without_a_server_nobody_is_next(clock: Clock) -> None:
    choice = make_random(clock, [])
    assert choice.next() is None
    choice.use(["a"])
    assert choice.next() == "a"
    choice.use([])
    assert choice.next() is None


def test_servers_that_come_are_asked_and_those_that_left_are_not(clock: Clock) -> None:
    choice = make_random(clock)
    choice.use(["c", "d"])
    assert {choice.next() for _ in range(50)} == {"c", "d"}


def test_a_server_that_stays_is_left_alone_as_before(clock: Clock) -> None:
    choice = make_random(clock)
    choice.failed("a")
    choice.use(["a", "d"])
    assert {choice.next() for _ in range(50)} == {"d"}
    clock.now_s += 1
    assert {choice.next() for _ in range(50)} == {"a", "d"}


def test_a_server_that_comes_back_begins_anew(clock: Clock) -> None:
    choice = make_random(clock)
    choice.failed("a")
    choice.use(["b"])
    choice.use(["a", "b"])
    assert {choice.next() for _ in range(50)} == {"a", "b"}


def test_what_is_told_of_a_server_that_left_is_of_no_account(clock: Clock) -> None:
    choice = make_staying(clock)
    choice.use(["b"])
    choice.failed("a")
    choice.answered("a")
    choice.was_empty("a")
    choice.use(["a"])
    assert choice.next() == "a"


def test_gets_stay_with_a_server_that_stays_and_leave_one_that_left(clock: Clock) -> None:
    choice = make_staying(clock, gets_per_server=5)
    server = choice.next()
    others = [other for other in SERVERS if other != server]
    assert server is not None
    choice.use([server, "d", "e"])
    assert [choice.next() for _ in range(4)] == [server] * 4
    assert choice.next() in ("d", "e")
    choice.use(others)
    assert choice.next() in others


def test_gets_stay_with_a_server_for_so_many_and_then_move_on(clock: Clock) -> None:
    choice = make_staying(clock)
    chosen = [choice.next() for _ in range(30)]
    for start in range(0, 30, 3):
        assert len(set(chosen[start : start + 3])) == 1
        assert start == 0 or chosen[start] != chosen[start - 1]
    assert set(chosen) == set(SERVERS)


def test_gets_move_on_from_a_server_that_was_empty(clock: Clock) -> None:
    choice = make_staying(clock)
    for _ in range(20):
        server = choice.next()
        assert server is not None
        choice.was_empty(server)
        assert choice.next() != server


def test_gets_move_on_from_a_server_that_failed(clock: Clock) -> None:
    choice = make_staying(clock, gets_per_server=100)
    server = choice.next()
    assert server is not None
    choice.failed(server)
    assert server not in {choice.next() for _ in range(50)}


def test_that_another_server_was_empty_moves_nobody(clock: Clock) -> None:
    choice = make_staying(clock, gets_per_server=100)
    server = choice.next()
    choice.was_empty(next(other for other in SERVERS if other != server))
    assert choice.next() == server


def test_gets_stay_with_the_only_server(clock: Clock) -> None:
    choice = StayingChoice(["a"], Random(1), clock, gets_per_server=2)
    for _ in range(5):
        assert choice.next() == "a"
        choice.was_empty("a")


def test_pauses_double_up_to_the_longest_and_are_never_the_same_for_all() -> None:
    backoff = Backoff(Random(1), first_s=1, longest_s=8)
    for whole_s in (1, 2, 4, 8, 8, 8):
        pause_s = backoff.failed(1000)
        assert whole_s / 2 <= pause_s <= whole_s
        assert backoff.ends_s == 1000 + pause_s
    assert len({Backoff(Random(seed)).failed(0) for seed in range(10)}) == 10


def test_after_an_answer_pauses_are_short_again() -> None:
    backoff = Backoff(Random(1), first_s=1, longest_s=8)
    for _ in range(4):
        backoff.failed(1000)
    backoff.answered()
    assert backoff.ends_s < 0
    assert backoff.failed(1000) <= 1
