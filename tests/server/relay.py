"""A network between clients and a server: it stays while the server goes and comes, and breaks where a test says so."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

_BYTES = 65536


class Relay:
    """Passes bytes on between a port of its own and that of a server on this machine. To be closed."""

    def __init__(self) -> None:
        self.target: int | None = None
        """The server's port; None: nobody is there, and connections are hung up on."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_closed = False
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        with suppress(OSError):  # whoever accepts is woken up
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections, with whatever is on its way."""
        with self._lock:
            broken, self._sockets = self._sockets, set()
        for each in broken:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _start(self, function: object, *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._is_closed:
                client, _ = self._listening.accept()
                self._start(self._join, client)

    def _join(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.target is None:
                return
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                with self._lock:
                    self._sockets |= {client, server}
                self._start(self._pass_on, server, client)
                self._pass_on(client, server)

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
