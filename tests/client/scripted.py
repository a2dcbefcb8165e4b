"""A server that says what a test tells it to, right or wrong."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.child import join
from tests.server.running import PATIENCE_S

Connection = Callable[[socket.socket], None]
"""What the server does with a connection; after that it hangs up."""


class ScriptedServer:
    """Does with each connection what the next entry of the script says, one connection at a time."""

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
        except Exception as error:  # told by the test's own thread
            self._error = error

    def wait_until_over(self) -> None:
        """Return when the script has been played, and the last connection has ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the script is not over"

    def close(self) -> None:
        """End, and fail if the script went wrong."""
        self._is_closing = True
        with suppress(OSError):  # one that accepts is woken up
            socket.create_connection(self._listener.getsockname(), PATIENCE_S).close()
        join(self._thread)
        self._listener.close()
        if self._error is not None:
            raise self._error


@contextmanager
def scripted(*script: Connection, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """A server that plays the script, for the time of a `with`."""
    server = ScriptedServer(script, tls)
    try:
        yield server
    finally:
        server.close()


def talk(*exchanges: tuple[bytes, bytes]) -> Connection:
    """Wait for exactly that, answer this; and so on."""

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
    """The same; then wait until the client hangs up."""

    def play(connection: socket.socket) -> None:
        talk(*exchanges)(connection)
        with suppress(ConnectionError):
            assert connection.recv(1) == b"", "the client says more than it should"

    return play


def reset(*exchanges: tuple[bytes, bytes]) -> Connection:
    """The same; then end the connection as a machine does that has crashed."""

    def play(connection: socket.socket) -> None:
        talk(*exchanges)(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return play
