"""A ZooKeeper client that reconnects forever, with short pauses, and reports why it cannot."""

from __future__ import annotations

import atexit
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.states import KeeperState

from kestrel.address import Address
from kestrel.tls import TlsOptions

MAX_ZOOKEEPER_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""Limit of a response in bytes. Half a million members of a set fit, and ZooKeeper limits other data to one MiB."""


class ZooKeeperConnection(ConnectionHandler):  # type: ignore[misc]
    """A replacement for the connection of a client whose handler stores a `problem`. It overrides private parts of
    kazoo.
    """

    def __init__(self, client: KazooClient) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger)
        self._first_pause_s: float = client._conn_retry.delay
        self._longest_pause_s: float = client._conn_retry.max_delay
        self._pause_s = self._first_pause_s

    def _read(self, length: int, timeout: float) -> Any:
        if not 0 <= length <= MAX_ZOOKEEPER_RESPONSE_BYTES:
            self.handler.problem = "the server is not a ZooKeeper"
            raise ConnectionDropped(f"an answer of {length} bytes")
        return super()._read(length, timeout)

    def _expand_client_hosts(self) -> Any:
        try:
            found = super()._expand_client_hosts()
        except UnicodeError:  # longer than a name can be
            found = []
        if not found:
            self.handler.problem = "its host name is unknown"
        return found

    def _connect_attempt(self, host: str, number: str, port: int, retry: Any) -> Any:
        """Connect, and stay connected as long as the session lasts."""
        began_s, times = time.monotonic(), self.handler.connect_count
        try:
            status = super()._connect_attempt(host, number, port, retry)
        except Exception:
            self.handler.problem = "the server is not a ZooKeeper"
            status = None
            if self.client._state != KeeperState.CONNECTING:
                self.client._session_callback(KeeperState.CONNECTING)
        if self.client._stopped.is_set():
            return status
        if status is STOP_CONNECTING:
            self.handler.problem = "the credentials are refused"
        if time.monotonic() - began_s > self._longest_pause_s:
            self._pause_s = self._first_pause_s
        elif self.handler.connect_count != times:
            self.client._stopped.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
        return None


MIN_RECONNECT_DELAY_S: Final = 0.1
MAX_RECONNECT_DELAY_S: Final = 1.0
"""Limit of the pause between two attempts to connect, which is also at most a quarter of the session timeout. kazoo's
own pauses grow to an hour.
"""

RESPONSE_TIMEOUT_S: Final = 30.0
"""Limit of the wait for a response. kazoo would wait forever for a response that is lost with its session."""

MIN_CONNECT_TIMEOUT_S: Final = 0.25
MAX_CONNECT_TIMEOUT_S: Final = 10.0
"""Upper bound of the time for one attempt to connect, however long the session timeout is."""

_kazoo_logger = logging.getLogger("kestrel.zookeeper")
"""kazoo logs a line for each attempt. Callers of the client log the results."""
_kazoo_logger.addHandler(logging.NullHandler())
_kazoo_logger.propagate = False


class _TimedAsyncResult(AsyncResult):  # type: ignore[misc]
    """The result of a request, with a timeout."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the response. Blocks. Raises kazoo's errors, and KazooTimeoutError after the timeout."""
        if not block or timeout is not None:
            return super().get(block, timeout)
        try:
            return super().get(timeout=RESPONSE_TIMEOUT_S)
        except KazooTimeoutError:
            raise KazooTimeoutError(f"no answer for {RESPONSE_TIMEOUT_S:.0f} s") from None


class ZooKeeperHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """A handler that makes kazoo's connections. With TLS it verifies the host name, which kazoo does not do.

    An attempt to connect gets a third of the session timeout, where kazoo would use all of it. So after an attempt
    without an answer, as from a ZooKeeper that is starting, another one can still keep the session.

    After the session timeout without a connection, `forget` is called before each attempt. The session is over by then.
    A ZooKeeper that has lost data would otherwise refuse a client that has seen later transactions.
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
        """The reason why the last attempt failed, or an empty string."""
        self.connect_count = 0
        """Number of connections made to ZooKeeper."""

    def start(self) -> None:
        """Start kazoo's threads, but do not wait for them when the process ends."""
        super().start()
        atexit.unregister(self.stop)

    def async_result(self) -> AsyncResult:
        return _TimedAsyncResult(self)

    def select(self, *arguments: Any, **named: Any) -> Any:
        """Wait for sockets, as kazoo does, but limit the wait for the answer to an attempt to connect."""
        read_ahead = [each for each in arguments[0] if isinstance(each, ssl.SSLSocket) and each.pending()]
        if read_ahead:  # two responses came in one TLS record
            return read_ahead, [], []
        if self._away_since_s is not None and len(arguments) == 4 and arguments[3] is not None:
            arguments = (*arguments[:3], min(arguments[3], self._longest_attempt_s))
        return super().select(*arguments, **named)

    def on_state_change(self, state: object) -> None:
        self._away_since_s = None if state == "CONNECTED" else time.monotonic()
        self.connect_count += state == "CONNECTED"

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: object
    ) -> socket.socket:
        """Connect to a host, for kazoo. Raises OSError."""
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
    """Return a kazoo client that is not started.

    `credentials` are ``user:password`` of the digest scheme. `acl` is kazoo's list for the nodes that it makes. None
    means open to all. Raises the errors of `TlsOptions.context`.
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
    """Return the reason why the client has no connection, as a part of a sentence."""
    return getattr(client.handler, "problem", "") or "no answer"
