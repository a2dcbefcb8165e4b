"""A client of one server that retries until the server answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Final, Self, TypeVar

from kestrel.address import DEFAULT_PORTS, parse_address
from kestrel.client.arguments import check_options
from kestrel.client.call import Call
from kestrel.client.choice import Backoff, naming_server
from kestrel.client.connection import ConnectionPool
from kestrel.client.errors import ClientFailure, RequestError
from kestrel.client.thrift import ThriftCalls
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

T = TypeVar("T")

PATIENCE_S: Final = 120.0
"""How long a server may be unreachable; long enough for a restart."""

LONGEST_PAUSE_S: Final = 5.0


class RetryingServer:
    """A client of one thrift server that retries failed requests. Use it in one thread only.

    Requests must be safe to carry out twice. `patience_s` is how long a request is retried, 0 for never. `timeout_s`
    limits the time to connect, and how long the server may be silent while it owes an answer. Raises
    ValueError for an invalid address or time, and OSError for an unusable file of `tls`. `seconds`, `sleep` and
    `random` are for tests.
    """

    def __init__(
        self,
        server: str,
        *,
        tls: TlsOptions | None = None,
        timeout_s: float = 10.0,
        patience_s: float = PATIENCE_S,
        max_item_bytes: int = MAX_ITEM_BYTES,
        seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Random | None = None,
    ) -> None:
        check_options(timeout_s, tls)
        self._pool = ConnectionPool(timeout_s, tls)
        self.address = self._pool.keep(parse_address(server, DEFAULT_PORTS["thrift"]))
        self._calls = ThriftCalls(max_item_bytes=max_item_bytes)
        self._patience_s = patience_s
        self._seconds = seconds
        self._sleep = sleep
        self._random = random or Random()

    def __str__(self) -> str:
        return str(self.address)

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask_once(self, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """Send the request that `make_call` makes once, and return the value of its reply.

        Raises `ClientFailure` with the server's name, and `BadQueueName`.
        """
        try:
            call = make_call(self._calls)
            with naming_server(self.address), self._pool.using(self.address) as connection:
                return connection.ask(call)
        except RequestError as error:  # naming_server leaves these without the server's name
            error.args = (f"{self}: {error}",)
            raise

    def ask(self, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """Send the request that `make_call` makes, and return the value of its reply.

        After a connection failure or `ServerError` it is made and sent again, with pauses. Raises `RequestError` and
        `BadQueueName` at once, and the last failure when the patience is over.
        """
        backoff = Backoff(self._random, longest_s=LONGEST_PAUSE_S)
        ends_s = self._seconds() + self._patience_s
        while True:
            try:
                return self.ask_once(make_call)
            except RequestError:
                raise
            except ClientFailure:
                now_s = self._seconds()
                if now_s >= ends_s:
                    raise
                self._sleep(min(backoff.failed(now_s), ends_s - now_s))
