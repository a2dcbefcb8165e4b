"""A client of ZooKeeper, as servers and clients have it: it tries for ever, soon again, and says why it cannot."""

from __future__ import annotations

import atexit
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler

from kestrel.address import Address
from kestrel.cluster.kazoo_connection import ZooKeeperConnection
from kestrel.tls import TlsOptions

MIN_RECONNECT_DELAY_S: Final = 0.1
MAX_RECONNECT_DELAY_S: Final = 1.0
"""Between two attempts to connect, and never more than a quarter of the session's time: kazoo's own pauses grow to an
hour, in which nobody would know of its return."""

RESPONSE_TIMEOUT_S: Final = 30.0
"""How long an answer is waited for. kazoo would wait for ever for one that the end of a session has swallowed."""

MIN_CONNECT_TIMEOUT_S: Final = 0.25
MAX_CONNECT_TIMEOUT_S: Final = 10.0
"""However short or long a session may be, an attempt to connect gets so long."""

_kazoo_logger = logging.getLogger("kestrel.zookeeper")
"""kazoo tells a line of each attempt; whoever has the client tells what came of them."""
_kazoo_logger.addHandler(logging.NullHandler())
_kazoo_logger.propagate = False


class _TimedAsyncResult(AsyncResult):  # type: ignore[misc]
    """To a request: it comes, or that it does not."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """What came. Blocks; raises kazoo's errors, and KazooTimeoutError when it is too late."""
        if not block or timeout is not None:
            return super().get(block, timeout)
        try:
            return super().get(timeout=RESPONSE_TIMEOUT_S)
        except KazooTimeoutError:
            raise KazooTimeoutError(f"no answer for {RESPONSE_TIMEOUT_S:.0f} s") from None


class ZooKeeperHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Makes kazoo's connections: over TLS with the name of the host verified, which kazoo would not do by itself.

    An attempt to connect gets a third of the session's time, where kazoo would give it all of it: who is let in and not
    answered, as by a ZooKeeper that just begins, tries again soon enough to keep the session.

    After so long without a session `forget` is called before each attempt. The session is over by then, and a ZooKeeper
    that has lost its data, or gone back to older ones, would never take anybody who has seen later ones.
    """

    def __init__(self, tls: TlsOptions | None, session_timeout_s: float, forget: Callable[[], None]) -> None:
        super().__init__()
        self._context = None if tls is None else tls.context()
        self._server_name = None if tls is None else tls.server_name
        self._session_timeout_s = session_timeout_s
        self._longest_attempt_s = min(max(MIN_CONNECT_TIMEOUT_S, session_timeout_s / 3), MAX_CONNECT_TIMEOUT_S)
        self._forget = forget
        self._away_since_s: float | None = time.monotonic()
        self.problem = ""
        """Why the last attempt failed; nothing after one that did not."""
        self.connect_count = 0
        """How often there was a connection to ZooKeeper."""

    def start(self) -> None:
        """As kazoo's, but a process that ends waits for none of these threads."""
        super().start()
        atexit.unregister(self.stop)

    def async_result(self) -> AsyncResult:
        """What kazoo waits for answers with."""
        return _TimedAsyncResult(self)

    def select(self, *arguments: Any, **named: Any) -> Any:
        """What kazoo waits with, for an answer to its attempt as well: readers, writers, troubled, and how long."""
        read_ahead = [each for each in arguments[0] if isinstance(each, ssl.SSLSocket) and each.pending()]
        if read_ahead:  # two answers came as one record of TLS
            return read_ahead, [], []
        if self._away_since_s is not None and len(arguments) == 4 and arguments[3] is not None:
            arguments = (*arguments[:3], min(arguments[3], self._longest_attempt_s))
        return super().select(*arguments, **named)

    def on_state_change(self, state: object) -> None:
        """A listener of the client's."""
        self._away_since_s = None if state == "CONNECTED" else time.monotonic()
        self.connect_count += state == "CONNECTED"

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: object
    ) -> socket.socket:
        """What kazoo calls, with the number of a host and its name. Raises OSError."""
        timeout = self._longest_attempt_s if timeout is None else min(timeout, self._longest_attempt_s)
        away_since_s = self._away_since_s
        if away_since_s is not None and time.monotonic() - away_since_s > self._session_timeout_s:
            self._forget()
        try:
            connection = socket.create_connection(address, timeout)
            if self._context is not None:
                connection = _start_tls(connection, self._context, self._server_name or hostname or address[0])
        except OSError as error:
            self.problem = _reason(error)
            raise
        self.problem = ""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _start_tls(connection: socket.socket, context: ssl.SSLContext, name: str) -> socket.socket:
    try:
        return context.wrap_socket(connection, server_hostname=name)
    except BaseException:
        connection.close()
        raise


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no answer"
    return error.strerror or str(error)


def zookeeper_client(
    hosts: Sequence[Address],
    session_timeout_s: float,
    *,
    credentials: str | None = None,
    acl: Any = None,
    tls: TlsOptions | None = None,
) -> Any:
    """A client that is not started. `credentials` are ``user:password`` of the digest scheme; `acl` is that of the
    nodes it makes, a list of kazoo's, none: open to all.

    Raises OSError for a file of `tls` that cannot be used.
    """

    def forget() -> None:
        client.last_zxid = 0

    longest_pause_s = min(MAX_RECONNECT_DELAY_S, session_timeout_s / 4)
    connector = ZooKeeperHandler(tls, session_timeout_s, forget)
    client = KazooClient(
        ",".join(map(str, hosts)),
        timeout=session_timeout_s,
        handler=connector,
        auth_data=None if credentials is None else [("digest", credentials)],
        default_acl=acl,
        connection_retry={
            "max_tries": -1,
            "delay": min(MIN_RECONNECT_DELAY_S, longest_pause_s),
            "max_delay": longest_pause_s,
        },
        logger=_kazoo_logger,
    )
    client._connection = ZooKeeperConnection(client)
    client.add_listener(connector.on_state_change)
    return client


def connection_problem(client: Any) -> str:
    """Why it has no connection, as far as that is known, as a part of a sentence."""
    return getattr(client.handler, "problem", "") or "no answer"
