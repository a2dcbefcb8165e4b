"""Which servers are asked, and when a request is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kestrel.client.choice import RandomChoice, StayingChoice
from kestrel.client.errors import (
    AllInUse,
    BadReply,
    CannotConnect,
    ClientFailure,
    ConnectionFailed,
    NoServer,
    RequestError,
    ServerError,
)
from kestrel.client.plan import follow, follow_async, search, somewhere
from tests.client.first_choice import FirstOfAll


class Servers:
    """Servers that answer as a test says, one after the other; what they are asked is noted."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers: Mapping[str, list[Any]] = answers
        self.asked: list[Any] = []
        self.names = list(answers)
        self.writes = RandomChoice(self.names, FirstOfAll(), lambda: 0.0)
        self.reads = StayingChoice(self.names, FirstOfAll(), lambda: 0.0)

    def ask(self, question: Any) -> Any:
        self.asked.append(question)
        server = question if isinstance(question, str) else question[0]
        answers = self.answers[server]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask_and_await(self, question: Any) -> Any:
        await asyncio.sleep(0)
        return self.ask(question)

    def put(self, *, repeats: bool = False) -> Any:
        return follow(somewhere(self.writes, repeats=repeats), self.ask)

    def get(self, timeout_ms: int) -> Any:
        return follow(search(self.reads, timeout_ms, is_alone=len(self.names) == 1), self.ask)


def test_one_server_is_enough_where_it_answers() -> None:
    servers = Servers(a=["yes"], b=["no"])
    assert servers.put() == "yes"
    assert servers.asked == ["a"]


@pytest.mark.parametrize("failure", [ServerError("no"), CannotConnect("no")])
def test_what_was_certainly_not_done_is_asked_elsewhere(failure: ClientFailure) -> None:
    servers = Servers(a=[failure], b=["yes"])
    assert [servers.put(), servers.put()] == ["yes", "yes"]
    assert servers.asked == ["a", "b", "b"]


@pytest.mark.parametrize("failure", [ConnectionFailed("hm"), BadReply("hm")])
def test_what_may_have_been_done_is_asked_elsewhere_only_where_that_is_wanted(failure: ClientFailure) -> None:
    servers = Servers(a=[failure], b=["yes"])
    with pytest.raises(type(failure)):
        servers.put()
    assert servers.asked == ["a"]
    assert Servers(a=[failure], b=["yes"]).put(repeats=True) == "yes"


def test_a_wrong_request_is_asked_once() -> None:
    servers = Servers(a=[RequestError("no")], b=["yes"])
    for _ in range(2):
        with pytest.raises(RequestError):
            servers.put()
    assert servers.asked == ["a", "a"]


def test_where_nobody_will_the_last_ones_failure_is_told() -> None:
    servers = Servers(a=[ServerError("a")], b=[ServerError("b")])
    with pytest.raises(ServerError, match="b"):
        servers.put()


def test_a_server_alone_is_asked_once_for_the_whole_time() -> None:
    servers = Servers(a=[None])
    assert servers.get(5000) is None
    assert servers.asked == [("a", 5000)]


def test_several_are_asked_without_waiting_and_then_each_for_a_second() -> None:
    servers = Servers(a=[None], b=[None])
    assert servers.get(2500) is None
    assert servers.asked == [("a", 0), ("b", 0), ("a", 1000), ("b", 1000), ("a", 500), ("b", 0)]


def test_a_search_ends_with_the_first_item() -> None:
    servers = Servers(a=[None], b=[None, "item"])
    assert servers.get(2500) == "item"
    assert servers.asked == [("a", 0), ("b", 0), ("a", 1000), ("b", 1000)]


def test_a_search_goes_on_where_some_fail_and_fails_where_all_do() -> None:
    servers = Servers(a=[ConnectionFailed("a")], b=[None])
    assert servers.get(1000) is None
    assert servers.asked == [("a", 0), ("b", 0), ("b", 1000)]
    with pytest.raises(ServerError, match="b"):
        Servers(a=[ConnectionFailed("a")], b=[ServerError("b")]).get(1000)


def test_where_there_is_no_server_that_is_said() -> None:
    servers = Servers()
    servers.writes.no_server_reason = "nobody is there"
    with pytest.raises(NoServer, match=r"^nobody is there$"):
        servers.put()
    for timeout_ms in (0, 5000):
        with pytest.raises(NoServer, match="there is no server"):
            servers.get(timeout_ms)
    assert servers.asked == []


def test_a_put_that_is_refused_finds_a_server_that_has_come_meanwhile() -> None:
    servers = Servers(a=[ServerError("no")], b=["yes"])
    servers.writes.use(["a"])

    def ask(server: str) -> Any:
        servers.writes.use(["b"])
        return servers.ask(server)

    assert follow(somewhere(servers.writes), ask) == "yes"
    assert servers.asked == ["a", "b"]


def test_a_search_goes_on_with_those_who_are_there_at_each_step() -> None:
    servers = Servers(a=[None], b=[None], c=["item"])
    turns = iter([["a"], ["a", "b"], ["b"], ["b", "c"]])
    servers.reads.use(next(turns))

    def ask(question: Any) -> Any:
        servers.reads.use(next(turns, ["b", "c"]))
        return servers.ask(question)

    assert follow(search(servers.reads, 10_000, is_alone=False), ask) == "item"
    assert servers.asked == [("a", 0), ("b", 0), ("b", 1000), ("c", 1000)]


def test_a_search_whose_servers_have_all_left_ends() -> None:
    servers = Servers(a=[None])

    def ask(question: Any) -> Any:
        servers.reads.use([])
        return servers.ask(question)

    with pytest.raises(NoServer):
        follow(search(servers.reads, 10_000, is_alone=False), ask)


def test_a_plan_is_the_same_where_answers_are_awaited() -> None:
    servers = Servers(a=[ServerError("no")], b=["yes"])
    assert asyncio.run(follow_async(somewhere(servers.writes), servers.ask_and_await)) == "yes"
    assert servers.asked == ["a", "b"]
    servers = Servers(a=[None], b=["item"])
    plan = search(servers.reads, 0, is_alone=False)
    assert asyncio.run(follow_async(plan, servers.ask_and_await)) == "item"


def test_a_server_to_which_all_our_connections_are_in_use_is_not_left_alone() -> None:
    servers = Servers(a=[AllInUse("all in use"), "yes"], b=["no"])
    assert servers.put() == "no", "another one has it meanwhile"
    assert servers.put() == "yes"
    servers = Servers(a=[AllInUse("all in use"), b"an item"], b=[None])
    assert servers.get(0) is None
    assert servers.get(0) == b"an item"
