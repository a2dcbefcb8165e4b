"""One server that is asked again and again until it answers: for programs that would rather wait than fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Final, Self, TypeVar

from kestrel.address import DEFAULT_PORTS, parse_address
from kestrel.client.arguments import check_options
from kestrel.client.backoff import Backoff
from kestrel.client.call import Call
from kestrel.client.errors import ClientFailure, RequestError
from kestrel.client.plan import naming_server
from kestrel.client.pool import ConnectionPool
from kestrel.client.thrift import ThriftCalls
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tls import TlsOptions

T = TypeVar("T")

PATIENCE_S: Final = 120.0
"""How long a server may be away: time enough for a restart."""

LONGEST_PAUSE_S: Final = 5.0


class RetryingServer:
    """One server, over thrift. For one thread.

    What is asked must be something that may be carried out twice. `patience_s` is how long it is asked again, 0 for
    never; `timeout_s` how long it may be silent while it owes an answer, and how long connecting may take. An address
    that is none, and a time that is none, is a ValueError; a file of `tls` that is of no use an OSError. `seconds`,
    `sleep` and `random` are for tests.
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
        self.address = parse_address(server, DEFAULT_PORTS["thrift"])
        context, server_name = (None, None) if tls is None else (tls.context(), tls.server_name)
        self._pool = ConnectionPool([self.address], timeout_s, context, server_name)
        self._calls = ThriftCalls(max_item_bytes=max_item_bytes)
        self._patience_s = patience_s
        self._seconds = seconds
        self._sleep = sleep
        self._random = random or Random()

    def __str__(self) -> str:
        return str(self.address)

    def close(self) -> None:
        """Hang up. It can be used again."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask_once(self, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """The server's answer. Raises `ClientFailure`, whose text names the server; `BadQueueName` as `ThriftCalls`."""
        try:
            call = make_call(self._calls)
            with naming_server(self.address), self._pool.using(self.address) as connection:
                return connection.ask(call)
        except RequestError as error:  # which of several servers will not, is worth knowing here
            error.args = (f"{self}: {error}",)
            raise

    def ask(self, make_call: Callable[[ThriftCalls], Call[T]]) -> T:
        """The same, with pauses and new attempts while the connection fails or the server says that it cannot now.

        `RequestError` is raised at once; when the patience is over, the failure of the last attempt, which is then.
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
