"""Which servers are asked, and when a request is repeated: cases beyond those in test_blocking.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kestrel.client.choice import RandomChoice, StayingChoice
from kestrel.client.errors import AllInUse, BadReply, ClientFailure, ConnectionFailed, NoServer, ServerError
from kestrel.client.plan import follow, search, somewhere
from tests.client.first_choice import FirstOfAll


class Servers:
    """Servers with the given answers, the last of which repeats. The requests are recorded."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers: Mapping[str, list[Any]] = answers
        self.asked: list[Any] = []
        self.writes = RandomChoice(list(answers), FirstOfAll(), lambda: 0.0)
        self.reads = StayingChoice(list(answers), FirstOfAll(), lambda: 0.0)

    def ask(self, question: Any) -> Any:
        self.asked.append(question)
        server = question if isinstance(question, str) else question[0]
        answers = self.answers[server]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(self, *, repeats: bool = False) -> Any:
        return follow(somewhere(self.writes, repeats=repeats), self.ask)

    def get(self, timeout_ms: int) -> Any:
        return follow(search(self.reads, timeout_ms, is_alone=False), self.ask)


@pytest.mark.parametrize("failure", [ConnectionFailed("hm"), BadReply("hm")])
def test_uncertain_request_is_repeated_only_if_allowed(failure: ClientFailure) -> None:
    servers = Servers(a=[failure], b=["yes"])
    with pytest.raises(type(failure)):
        servers.put()
    assert servers.asked == ["a"]
    assert Servers(a=[failure], b=["yes"]).put(repeats=True) == "yes"


def test_search_fails_only_if_all_servers_fail() -> None:
    servers = Servers(a=[ConnectionFailed("a")], b=[None])
    assert servers.get(1000) is None
    assert servers.asked == [("a", 0), ("b", 0), ("b", 1000)]
    with pytest.raises(ServerError, match="b"):
        Servers(a=[ConnectionFailed("a")], b=[ServerError("b")]).get(1000)


def test_request_without_servers_fails() -> None:
    servers = Servers()
    servers.writes.no_server_reason = "nobody is there"
    with pytest.raises(NoServer, match=r"^nobody is there$"):
        servers.put()
    for timeout_ms in (0, 5000):
        with pytest.raises(NoServer, match="there is no server"):
            servers.get(timeout_ms)
    assert servers.asked == []


def test_search_uses_the_servers_of_each_step() -> None:
    servers = Servers(a=[None], b=[None], c=["item"])
    turns = iter([["a"], ["a", "b"], ["b"], ["b", "c"]])
    servers.reads.use(next(turns))

    def ask(question: Any) -> Any:
        servers.reads.use(next(turns, ["b", "c"]))
        return servers.ask(question)

    assert follow(search(servers.reads, 10_000, is_alone=False), ask) == "item"
    assert servers.asked == [("a", 0), ("b", 0), ("b", 1000), ("c", 1000)]


def test_search_ends_when_all_servers_have_left() -> None:
    servers = Servers(a=[None])

    def ask(question: Any) -> Any:
        servers.reads.use([])
        return servers.ask(question)

    with pytest.raises(NoServer):
        follow(search(servers.reads, 10_000, is_alone=False), ask)


def test_server_with_all_connections_in_use_gets_no_pause() -> None:
    servers = Servers(a=[AllInUse("all in use"), "yes"], b=["no"])
    assert servers.put() == "no", "another one has it meanwhile"
    assert servers.put() == "yes"
    servers = Servers(a=[AllInUse("all in use"), b"an item"], b=[None])
    assert servers.get(0) is None
    assert servers.get(0) == b"an item"
