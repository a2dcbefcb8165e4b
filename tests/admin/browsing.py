"""The admin port of a server in memory, and requests to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPResponse
from io import BytesIO
from typing import Any

from attrs import frozen
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from kestrel.admin.server_view import ServerView
from kestrel.admin.site import AdminPort, AdminSite
from kestrel.config.load import loads
from kestrel.storage.interfaces import IStorage
from kestrel.testing.server import MemoryClient, MemoryServer


@frozen
class Reply:
    """A response. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed as JSON."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The error message of a refused request."""
        assert list(self.json) == ["error"]
        sentence: str = self.json["error"]
        return sentence


class _Received(BytesIO):
    """A socket for http.client. It stays open, so that the bytes left over can be checked."""

    def makefile(self, _: str) -> BytesIO:
        return self

    def close(self) -> None:
        pass


def reply_in(data: bytes, method: str = "GET") -> Reply:
    """Parse exactly one response. Raises `http.client.HTTPException` if it is incomplete."""
    received: Any = _Received(data)
    response = HTTPResponse(received, method=method)
    response.begin()
    body = response.read()
    assert received.read() == b"", "there is more than one reply"
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def request(method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """Return the bytes of a request, to localhost unless another host is given."""
    given = {"Host": "localhost:2223", **(headers or {})}
    if body or method == "POST":
        given.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


class Admin:
    """A server in memory with its admin port. `config` is TOML. `clock` is the port's own clock, if it has one."""

    def __init__(
        self,
        config: str = "",
        *,
        server: MemoryServer | None = None,
        storage: IStorage | None = None,
        clock: IReactorTime | None = None,
        is_trusted: bool = False,
    ) -> None:
        self.server = server or MemoryServer(storage, config=loads(config))
        self.is_ready = True
        self.server_sets: dict[str, bool] = {}
        clock = clock or self.server.clock
        server_view = ServerView(
            self.server.core,
            self.server.control,
            "memory:",
            clock.seconds,
            lambda: self.is_ready,
            lambda: self.server_sets,
        )
        self.port = AdminPort(server_view, clock)
        self.site: AdminSite = self.port.site(is_trusted=is_trusted)
        factories: Any = self.server.factories
        factories["admin"] = self.site

    def connect(self) -> MemoryClient:
        """Return a new connection to the admin port."""
        return self.server.connect("admin")

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        """Send a request on a new connection, and return the response."""
        client = self.connect()
        reply = reply_in(client.ask(request(method, path, headers, body)), method)
        client.disconnect()
        return reply

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Get a page."""
        return self.ask("GET", path, headers)

    def post(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Post a change."""
        return self.ask("POST", path, headers)

    def send(self, *requests: bytes) -> list[bytes]:
        """Return the reply to a memcache client."""
        client = self.server.connect()
        replies = [client.ask(each) for each in requests]
        client.disconnect()
        return replies

    def advance(self, seconds: float, step: float = 10) -> None:
        """Advance the time in steps, as it passes in a real server."""
        for each in _steps(seconds, step):
            self.server.advance(each)


class WorkingClock(Clock):
    """The clock of a server in memory, which also advances while a test is busy. `longest_s` is the longest time that
    others had to wait for their turn.
    """

    def __init__(self, server: MemoryServer) -> None:
        super().__init__()
        self._server = server
        self._worked_s = 0.0
        self._turn_began_s = 0.0
        self.longest_s = 0.0
        self.turns = 0

    def work(self, seconds: float) -> None:
        """Be busy for that time."""
        self._worked_s += seconds
        self.longest_s = max(self.longest_s, self._worked_s - self._turn_began_s)

    def seconds(self) -> float:
        return self._server.clock.seconds() + self._worked_s

    def callLater(self, when: float, what: Callable[..., Any], *args: Any, **named: Any) -> Any:
        def turn() -> None:
            self.turns += 1
            self._turn_began_s = self._worked_s
            what(*args, **named)

        return self._server.clock.callLater(when, turn)


def _steps(seconds: float, step: float) -> Iterator[float]:
    while seconds > 0:
        yield min(step, seconds)
        seconds -= step
