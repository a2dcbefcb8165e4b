"""A kazoo connection that survives invalid and oversized responses.

kazoo's own connection ends for good after an invalid response or refused credentials. It accepts a response of two
gigabytes, and reconnects ten times a second to a server that hangs up.
"""

from __future__ import annotations

import time
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.states import KeeperState

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
