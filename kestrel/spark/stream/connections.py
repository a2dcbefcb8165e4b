"""The driver's connections to the servers of a stream. An unavailable server does not delay the others."""

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
    """A server that does not answer, or failed recently and is not asked yet."""


class ServerRefused(SourceFailed):
    """A permanent refusal by a server."""

    @classmethod
    def by(cls, address: str, error: RequestError) -> ServerRefused:
        """Return the error with the server's address in front."""
        return cls(f"{address}: {error}")


class SendRequest(Protocol):
    """The type of `ServerConnections.ask` and `ServerConnections.ask_once`."""

    def __call__(self, address: str, make_call: Callable[[ThriftCalls], Call[T]]) -> T: ...


class ServerConnections:
    """Connections to the servers, each opened at its first request. Tests replace `seconds` and `random`."""

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
        """Return the server's response, with retries until the option ``patience`` is exceeded. Raises `SourceFailed`.

        The call must be idempotent.
        """
        try:
            return self._server(address).ask(make_call)
        except RequestError as error:
            raise ServerRefused.by(address, error) from None
        except ClientFailure as failure:
            raise SourceFailed(str(failure)) from None

    def ask_once(self, address: str, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """Return the server's response without a retry. Raises `ServerUnavailable` (logged) or `ServerRefused`.

        A server that fails is not asked during a pause. The pause grows with each failure, and is at least as long as
        the failed request took.
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
            logger.warning("%s; the stream continues without it, and retries in %.1f s", failure, pause_s)
            raise ServerUnavailable from None
        pauses.answered()
        return answer

    def hang_up(self, address: str) -> None:
        """Close the connection to one server; the next request opens a new one."""
        self._server(address).close()

    def close(self) -> None:
        """Close all connections. Later requests open new ones."""
        for server in self._open.values():
            server.close()

    def _server(self, address: str) -> RetryingServer:
        if address not in self._open:
            self._open[address] = self._servers.open(address)
        return self._open[address]
