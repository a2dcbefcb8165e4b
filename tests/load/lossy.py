"""A server that loses, duplicates or changes items."""

from __future__ import annotations

import socketserver
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.child import join

Mangled = Callable[[bytes, int], list[bytes]]
"""Returns the items to store instead of the n-th item."""


class LossyServer(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, mangled: Mangled, delete_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mangled = mangled
        self.items: deque[bytes] = deque()
        self.puts = 0
        self.deletes = 0
        self.delete_s = delete_s
        """Duration of the deletion of a queue."""
        self.lock = threading.Lock()
        self.answers = threading.Event()
        """While it is not set, requests get no reply."""
        self.answers.set()

    @property
    def address(self) -> str:
        """The address of the server."""
        return f"127.0.0.1:{self.server_address[1]}"

    def put(self, data: bytes) -> None:
        with self.lock:
            self.items.extend(self.mangled(data, self.puts))
            self.puts += 1

    def take(self, wait_s: float) -> bytes | None:
        deadline = time.monotonic() + wait_s
        while True:
            with self.lock:
                if self.items:
                    return self.items.popleft()
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.002)


class _Handler(socketserver.StreamRequestHandler):
    """The part of the memcache protocol that the tools use."""

    server: LossyServer

    def handle(self) -> None:
        while line := self.rfile.readline():
            word, key, *more = *line.split(), b""
            if word == b"set":
                data = self.rfile.read(int(more[2]))
                self.rfile.read(2)
                self.server.put(data)
                reply = b"STORED\r\n"
            elif word == b"get":
                queue, _, options = key.partition(b"/t=")
                item = self.server.take(min(0.2, int(options or 0) / 1000))
                reply = b"" if item is None else b"VALUE %b 0 %d\r\n%b\r\n" % (queue, len(item), item)
                reply += b"END\r\n"
            elif word == b"dump_stats":
                reply = b"queue '%b' {\r\n  items=%d\r\n}\r\nEND\r\n" % (key or b"any", len(self.server.items))
            else:
                reply = b"DELETED\r\n" if word == b"delete" else b"END\r\n"
                if word == b"delete":
                    time.sleep(self.server.delete_s)
                    self.server.deletes += 1
            if not self.server.answers.is_set():
                self.server.answers.wait()
                return
            self.wfile.write(reply)


@contextmanager
def lossy(mangled: Mangled, *, delete_s: float = 0.0) -> Iterator[LossyServer]:
    """Provide a server."""
    with LossyServer(mangled, delete_s) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.answers.set()
            server.shutdown()
            join(thread)
