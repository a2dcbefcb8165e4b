"""The driver's connections to the servers of a stream: one that is away does not keep the others waiting."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from random import Random
from typing import Protocol, TypeVar

from kestrel.client.backoff import Backoff
from kestrel.client.call import Call
from kestrel.client.errors import ClientFailure, RequestError
from kestrel.client.retrying_server import RetryingServer
from kestrel.client.thrift import ThriftCalls
from kestrel.spark.failures import SourceFailed
from kestrel.spark.stream.servers import StreamServers

T = TypeVar("T")

logger = logging.getLogger("kestrel.spark")


class ServerUnavailable(Exception):
    """The server did not answer, or did not a moment ago: to be asked another time."""


class ServerRefused(SourceFailed):
    """The server's answer is no, and will be."""

    @classmethod
    def by(cls, address: str, error: RequestError) -> ServerRefused:
        """Whose answer it is stands before it."""
        return cls(f"{address}: {error}")


class SendRequest(Protocol):
    """`ServerConnections.ask` or `ServerConnections.ask_once`."""

    def __call__(self, address: str, make_call: Callable[[ThriftCalls], Call[T]]) -> T: ...


class ServerConnections:
    """One for each server, made when it is first asked. `seconds` and `random` are for tests."""

    def __init__(
        self, servers: StreamServers, *, seconds: Callable[[], float] = time.monotonic, random: Random | None = None
    ) -> None:
        self._servers = servers
        self._seconds = seconds
        self._random = random or Random()
        self._open: dict[str, RetryingServer] = {}
        self._pauses: dict[str, Backoff] = {}
        self._waits_until_s: dict[str, float] = {}

    def ask(self, address: str, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """The server's answer, for which it has as long as the patience says. Raises `SourceFailed`.

        What is asked must be something that may be carried out twice.
        """
        try:
            return self._server(address).ask(make_call)
        except RequestError as error:
            raise ServerRefused.by(address, error) from None
        except ClientFailure as failure:
            raise SourceFailed(str(failure)) from None

    def ask_once(self, address: str, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """The answer if it comes now. Raises `ServerUnavailable`, which the log is told of, and `ServerRefused`.

        A server that fails is then left alone: for longer each time, and for as long as it had kept us waiting.
        """
        began_s = self._seconds()
        if began_s < self._waits_until_s.get(address, began_s):
            raise ServerUnavailable
        pauses = self._pauses.setdefault(address, Backoff(self._random))
        try:
            answer = self._server(address).ask_once(make_call)
        except RequestError as error:
            raise ServerRefused.by(address, error) from None
        except ClientFailure as failure:
            now_s = self._seconds()
            pause_s = max(pauses.failed(now_s), now_s - began_s)
            self._waits_until_s[address] = now_s + pause_s
            logger.warning("%s; the stream goes on without it, and asks again in %.1f s", failure, pause_s)
            raise ServerUnavailable from None
        pauses.answered()
        return answer

    def hang_up(self, address: str) -> None:
        """Have the next request go over a new connection."""
        self._server(address).close()

    def close(self) -> None:
        """Hang up on all of them. They can be asked again."""
        for server in self._open.values():
            server.close()

    def _server(self, address: str) -> RetryingServer:
        if address not in self._open:
            self._open[address] = self._servers.open(address)
        return self._open[address]
