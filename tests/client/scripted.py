"""A server that follows the script of a test, with valid or invalid replies."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from tests.child import join
from tests.memcache_text import set_, value
from tests.server.running import PATIENCE_S

PUT: Final = set_(b"work", b"a")
GET: Final = b"get work\r\n"
ITEM: Final = value(b"work", b"a")
READ_ONLY: Final = b"SERVER_ERROR the server is ReadOnly\r\n"

Connection = Callable[[socket.socket], None]
"""Handles a connection. The server closes it afterwards."""


class ScriptedServer:
    """Handles one connection after the other, each with the next entry of the script."""

    def __init__(self, script: Sequence[Connection], tls: ssl.SSLContext | None) -> None:
        self._script = script
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self._thread = threading.Thread(target=self._serve)
        self._error: Exception | None = None
        self._is_closing = False
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread.start()

    def _serve(self) -> None:
        try:
            for play in self._script:
                connection, _ = self._listener.accept()
                assert not self._is_closing, "the client has not connected as often as the script says"
                connection.settimeout(PATIENCE_S)
                with connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True) as used:
                    play(used)
        except Exception as error:  # raised by `close`
            self._error = error

    def wait_until_over(self) -> None:
        """Wait for the end of the script and of its last connection."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the script is not over"

    def close(self) -> None:
        """Stop the server. Raise the error of the script, if any."""
        self._is_closing = True
        with suppress(OSError):  # end a pending accept
            socket.create_connection(self._listener.getsockname(), PATIENCE_S).close()
        join(self._thread)
        self._listener.close()
        if self._error is not None:
            raise self._error


@contextmanager
def scripted(*script: Connection, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """Provide a server that follows the script."""
    server = ScriptedServer(script, tls)
    try:
        yield server
    finally:
        server.close()


def talk(*exchanges: tuple[bytes, bytes]) -> Connection:
    """Handle a connection that sends exactly these requests, with these replies."""

    def play(connection: socket.socket) -> None:
        for request, reply in exchanges:
            received = b""
            while len(received) < len(request):
                data = connection.recv(len(request) - len(received))
                assert data, f"the client hung up after {received!r}"
                received += data
            assert received == request
            connection.sendall(reply)

    return play


def talk_and_stay(*exchanges: tuple[bytes, bytes]) -> Connection:
    """Handle a connection like `talk`, then wait until the client closes it."""

    def play(connection: socket.socket) -> None:
        talk(*exchanges)(connection)
        with suppress(ConnectionError):
            assert connection.recv(1) == b"", "the client sent more than the script expects"

    return play


def reset(*exchanges: tuple[bytes, bytes]) -> Connection:
    """Handle a connection like `talk`, then reset it."""

    def play(connection: socket.socket) -> None:
        talk(*exchanges)(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return play
