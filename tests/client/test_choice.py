"""Which server is asked next, and the pause of a failed server."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from kestrel.client.choice import Backoff, RandomChoice, StayingChoice

SERVERS = ["a", "b", "c"]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_random(clock: Clock, servers: list[str] = SERVERS) -> RandomChoice[str]:
    return RandomChoice(servers, Random(1), clock)


def make_staying(clock: Clock, gets_per_server: int = 3) -> StayingChoice[str]:
    return StayingChoice(SERVERS, Random(1), clock, gets_per_server=gets_per_server)


def test_puts_go_to_all_servers_at_random(clock: Clock) -> None:
    choice = make_random(clock)
    chosen = [choice.next() for _ in range(300)]
    assert all(60 < chosen.count(server) < 140 for server in SERVERS)
    assert len(set(pairwise(chosen))) == 9


def test_server_is_not_asked_twice_for_a_request(clock: Clock) -> None:
    choice = make_random(clock)
    assert {choice.next({"a"}) for _ in range(50)} == {"b", "c"}
    assert choice.next({"a", "b", "c"}) is None


def test_failed_server_is_skipped_during_its_pause(clock: Clock) -> None:
    choice = make_random(clock)
    choice.failed("a")
    assert {choice.next() for _ in range(50)} == {"b", "c"}
    assert choice.next({"b", "c"}) is None
    clock.now_s += 1
    assert {choice.next() for _ in range(50)} == {"a", "b", "c"}


def test_failures_in_quick_succession_count_once(clock: Clock) -> None:
    choice = make_random(clock)
    for _ in range(20):
        choice.failed("a")
        clock.now_s += 0.01
    clock.now_s += 0.3
    assert {choice.next() for _ in range(50)} == {"a", "b", "c"}
    choice.failed("a")
    clock.now_s += 0.5 - 0.01
    assert {choice.next() for _ in range(50)} == {"b", "c"}  # the pause of a second failure is longer


def test_answer_ends_the_pause(clock: Clock) -> None:
    choice = make_random(clock)
    choice.failed("a")
    choice.answered("a")
    assert {choice.next() for _ in range(50)} == {"a", "b", "c"}


def test_first_server_to_end_pause_is_tried(clock: Clock) -> None:
    choice = make_random(clock)
    for server in ("b", "a", "c"):
        choice.failed(server)
        clock.now_s += 0.001
    for server in ("a", "c"):
        choice.failed(server)
    assert choice.next() == "b"
    assert choice.next({"b"}) in ("a", "c")
    assert choice.next({"a", "b", "c"}) is None


def test_single_server_is_asked_despite_failures(clock: Clock) -> None:
    choice = make_random(clock, ["a"])
    for _ in range(3):
        choice.failed("a")
        assert choice.next() == "a"


def test_no_server_is_chosen_from_an_empty_list(clock: Clock) -> None:
    choice = make_random(clock, [])
    assert choice.next() is None
    choice.use(["a"])
    assert choice.next() == "a"
    choice.use([])
    assert choice.next() is None


def test_remaining_server_keeps_its_pause(clock: Clock) -> None:
    choice = make_random(clock)
    choice.failed("a")
    choice.use(["a", "d"])
    assert {choice.next() for _ in range(50)} == {"d"}
    clock.now_s += 1
    assert {choice.next() for _ in range(50)} == {"a", "d"}


def test_returning_server_has_no_pause(clock: Clock) -> None:
    choice = make_random(clock)
    choice.failed("a")
    choice.use(["b"])
    choice.use(["a", "b"])
    assert {choice.next() for _ in range(50)} == {"a", "b"}


def test_results_of_removed_servers_are_ignored(clock: Clock) -> None:
    choice = make_staying(clock)
    choice.use(["b"])
    choice.failed("a")
    choice.answered("a")
    choice.was_empty("a")
    choice.use(["a"])
    assert choice.next() == "a"


def test_gets_leave_only_removed_servers(clock: Clock) -> None:
    choice = make_staying(clock, gets_per_server=5)
    server = choice.next()
    others = [other for other in SERVERS if other != server]
    assert server is not None
    choice.use([server, "d", "e"])
    assert [choice.next() for _ in range(4)] == [server] * 4
    assert choice.next() in ("d", "e")
    choice.use(others)
    assert choice.next() in others


def test_gets_stay_when_another_server_is_empty(clock: Clock) -> None:
    choice = make_staying(clock, gets_per_server=100)
    server = choice.next()
    choice.was_empty(next(other for other in SERVERS if other != server))
    assert choice.next() == server


def test_gets_stay_with_a_single_server(clock: Clock) -> None:
    choice = StayingChoice(["a"], Random(1), clock, gets_per_server=2)
    for _ in range(5):
        assert choice.next() == "a"
        choice.was_empty("a")


def test_pauses_double_up_to_a_maximum_with_random_parts() -> None:
    backoff = Backoff(Random(1), first_s=1, longest_s=8)
    for whole_s in (1, 2, 4, 8, 8, 8):
        pause_s = backoff.failed(1000)
        assert whole_s / 2 <= pause_s <= whole_s
        assert backoff.ends_s == 1000 + pause_s
    assert len({Backoff(Random(seed)).failed(0) for seed in range(10)}) == 10


def test_answer_resets_the_pauses() -> None:
    backoff = Backoff(Random(1), first_s=1, longest_s=8)
    for _ in range(4):
        backoff.failed(1000)
    backoff.answered()
    assert backoff.ends_s < 0
    assert backoff.failed(1000) <= 1
