"""The admin port of a server in memory, and whoever asks it for something."""

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
    """What was answered. `headers` by their names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Why it was refused, for people."""
        assert list(self.json) == ["error"]
        sentence: str = self.json["error"]
        return sentence


class _Received(BytesIO):
    """A socket, as far as http.client wants one; it stays open, so that what is left over can be looked at."""

    def makefile(self, _: str) -> BytesIO:
        return self

    def close(self) -> None:
        pass


def reply_in(data: bytes, method: str = "GET") -> Reply:
    """The one reply that these bytes are; raises `http.client.HTTPException` if it has not come whole."""
    received: Any = _Received(data)
    response = HTTPResponse(received, method=method)
    response.begin()
    body = response.read()
    assert received.read() == b"", "there is more than one reply"
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def request(method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """A request as it is sent, to localhost unless it says otherwise."""
    given = {"Host": "localhost:2223", **(headers or {})}
    if body or method == "POST":
        given.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


class Admin:
    """A server in memory with its admin port. `config` is TOML; `clock` is the port's own, if it has one."""

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
        """A connection to the admin port."""
        return self.server.connect("admin")

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        """Ask for something, on a connection of its own."""
        client = self.connect()
        reply = reply_in(client.ask(request(method, path, headers, body)), method)
        client.disconnect()
        return reply

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Ask for a page."""
        return self.ask("GET", path, headers)

    def post(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Ask for a change."""
        return self.ask("POST", path, headers)

    def send(self, *requests: bytes) -> list[bytes]:
        """What a memcache client is answered."""
        client = self.server.connect()
        replies = [client.ask(each) for each in requests]
        client.disconnect()
        return replies

    def advance(self, seconds: float, step: float = 10) -> None:
        """Let time go by in steps, as it does."""
        for each in _steps(seconds, step):
            self.server.advance(each)


class WorkingClock(Clock):
    """The clock of a server in memory, as the admin port has it, which goes on while a test says that it works.

    `longest_s` is how long others had to wait for their turn at the most.
    """

    def __init__(self, server: MemoryServer) -> None:
        super().__init__()
        self._server = server
        self._worked_s = 0.0
        self._turn_began_s = 0.0
        self.longest_s = 0.0
        self.turns = 0

    def work(self, seconds: float) -> None:
        """Be busy so long."""
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
