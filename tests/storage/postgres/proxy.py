"""A proxy between a client and its database that breaks connections as a test requires."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

PATIENCE_S: Final = 10.0


class Proxy:
    """A proxy that forwards bytes between its own Unix socket and that of a server."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        self._server = server
        self._listening = socket.socket(socket.AF_UNIX)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.allowed: int | None = None
        """Number of bytes that clients may still send before their connection breaks. None: no limit."""
        self.loses: bytes | None = None
        """Bytes in a reply at which the connection breaks. The reply is not forwarded. None: forward all replies."""
        self.tells_server = True
        """True: the server's connection breaks together with the client's."""

    def __enter__(self) -> Proxy:
        self._listening.bind(str(self.folder / ".s.PGSQL.5432"))
        self._listening.listen()
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        self._break(self._listening, *self._sockets)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for each in (self._listening, *self._sockets):
            each.close()

    def _start(self, function: object, *args: object) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._is_closed:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                self._sockets += [client, server]
                self._start(self._pass_requests, client, server)
                self._start(self._pass_answers, client, server)

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.allowed is not None:
                    data = data[: self.allowed]
                    self.allowed -= len(data)
                server.sendall(data)
                if self.allowed == 0:
                    break
        if self.tells_server:
            self._break(client, server)

    def _pass_answers(self, client: socket.socket, server: socket.socket) -> None:
        held = b""
        with suppress(OSError):
            while data := server.recv(65536):
                if self.loses is None:
                    client.sendall(held + data)
                    held = b""
                else:
                    held += data
                    if self.loses in held:
                        break
        self._break(client)
        if self.tells_server:
            self._break(server)

    def _break(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
