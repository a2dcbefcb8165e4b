"""Which servers are asked, and when a request is repeated: cases beyond those in test_blocking.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kestrel.client.choice import ServerChoices, run_blocking
from kestrel.client.errors import AllInUse, BadReply, ClientFailure, ConnectionFailed, NoServer, ServerError
from tests.client.first_choice import FirstOfAll


class Servers(ServerChoices[str]):
    """Servers with the given answers, the last of which repeats. The requests are recorded."""

    is_alone = False

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__(FirstOfAll(), lambda: 0.0)
        self.answers: Mapping[str, list[Any]] = answers
        self.asked: list[Any] = []
        self.before_each: Callable[[], object] = lambda: None
        self.use(list(answers), list(answers))

    async def ask(self, server: str, *wait_ms: int) -> Any:
        self.before_each()
        self.asked.append((server, *wait_ms) if wait_ms else server)
        answers = self.answers[server]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(self, *, repeats: bool = False) -> Any:
        return run_blocking(self.somewhere(self.writes, self.ask, repeats=repeats))

    def get(self, timeout_ms: int) -> Any:
        return run_blocking(self.search(self.ask, timeout_ms))


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
    servers.before_each = lambda: servers.reads.use(next(turns, ["b", "c"]))
    assert servers.get(10_000) == "item"
    assert servers.asked == [("a", 0), ("b", 0), ("b", 1000), ("c", 1000)]


def test_search_ends_when_all_servers_have_left() -> None:
    servers = Servers(a=[None])
    servers.before_each = lambda: servers.reads.use([])
    with pytest.raises(NoServer):
        servers.get(10_000)


def test_coroutine_of_a_blocking_client_must_not_wait() -> None:
    class Waiting:
        def __await__(self) -> Any:
            yield

    async def wait() -> None:
        await Waiting()

    with pytest.raises(RuntimeError, match="waited for something"):
        run_blocking(wait())


def test_server_with_all_connections_in_use_gets_no_pause() -> None:
    servers = Servers(a=[AllInUse("all in use"), "yes"], b=["no"])
    assert servers.put() == "no", "another one has it meanwhile"
    assert servers.put() == "yes"
    servers = Servers(a=[AllInUse("all in use"), b"an item"], b=[None])
    assert servers.get(0) is None
    assert servers.get(0) == b"an item"
