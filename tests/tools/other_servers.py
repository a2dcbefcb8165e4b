"""Imitations of darner and siberite servers.

Both have one open read for each connection, which returns at its end. They close the connection after an error.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Final

from tests.child import join

_KEY: Final = re.compile(rb"([^/]+)((?:/[a-z]+)*)")


class OtherServer(ThreadingTCPServer):
    """A server with queues. `on_get` is called with the number of gets before each reply to a get."""

    allow_reuse_address = True
    daemon_threads = True
    version = b""

    def __init__(self, on_get: Callable[[int], object] = lambda _: None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.queues: dict[bytes, deque[bytes]] = {}
        self.held: dict[bytes, int] = {}
        """The number of open reads of each queue."""
        self.lock = threading.RLock()
        self.on_get = on_get
        self.gets = 0
        self.connections = 0

    @property
    def address(self) -> str:
        """The address for kestrel-cli."""
        return f"127.0.0.1:{self.server_address[1]}"

    def fill(self, queue: bytes, *items: bytes) -> None:
        """Put items."""
        with self.lock:
            self.queues.setdefault(queue, deque()).extend(items)

    def items(self, queue: bytes) -> list[bytes]:
        """Return the items that are not open."""
        with self.lock:
            return list(self.queues.get(queue, ()))

    def stats(self) -> Iterator[bytes]:
        """Yield the lines of the reply to `stats`."""
        yield b"STAT uptime 5"
        yield b"STAT version %b" % self.version

    def holding(self, name: bytes) -> deque[bytes]:
        """Return the items of a queue or cursor, which is created if necessary."""
        return self.queues.setdefault(name, deque())

    def has_none(self, item: bytes) -> bool:
        """Return whether the server treats this item as none."""
        return False


class Darner(OtherServer):
    """Allows any character except a slash in names. Replies to unknown requests with a bare ``ERROR``."""

    version = b"0.2.5"
    unknown = b"ERROR \r\n"
    busy = b"CLIENT_ERROR close current item first\r\n"

    def stats(self) -> Iterator[bytes]:
        yield from super().stats()
        yield b"STAT curr_items 7"
        for name, items in sorted(self.queues.items()):
            yield b"STAT queue_%b_items %d" % (name, len(items))
            yield b"STAT queue_%b_waiters 0" % name
            yield b"STAT queue_%b_open_transactions %d" % (name, self.held.get(name, 0))


class Siberite(OtherServer):
    """Has cursors, with names after a dot. Treats an empty item as none, and loses it."""

    version = b"siberite-0.6.4"
    unknown = b"ERROR Unknown command\r\n"
    busy = b"CLIENT_ERROR Close current item first\r\n"

    def __init__(self, on_get: Callable[[int], object] = lambda _: None) -> None:
        super().__init__(on_get)
        self.cursors: dict[bytes, deque[bytes]] = {}

    def stats(self) -> Iterator[bytes]:
        yield from super().stats()
        for name, items in [*sorted(self.queues.items()), *sorted(self.cursors.items())]:
            yield b"STAT queue_%b_items %d" % (name, len(items))
            yield b"STAT queue_%b_open_transactions %d" % (name, self.held.get(name, 0))

    def holding(self, name: bytes) -> deque[bytes]:
        return (self.cursors if b"." in name else self.queues).setdefault(name, deque())

    def has_none(self, item: bytes) -> bool:
        return not item


class _Connection(StreamRequestHandler):
    server: Darner | Siberite

    def setup(self) -> None:
        super().setup()
        self._open: tuple[bytes, bytes] | None = None
        with self.server.lock:
            self.server.connections += 1

    def handle(self) -> None:
        while line := self.rfile.readline().rstrip(b"\r\n"):
            word, _, rest = line.partition(b" ")
            with self.server.lock:
                if line == b"stats":
                    self.wfile.write(b"\r\n".join([*self.server.stats(), b"END\r\n"]))
                elif word == b"get" and (key := _KEY.fullmatch(rest)):
                    self.server.gets += 1
                    self.server.on_get(self.server.gets)
                    if not self._get(key[1], key[2]):
                        return
                else:
                    self.wfile.write(self.server.unknown)
                    return

    def finish(self) -> None:
        with self.server.lock:
            self._end(is_done=False)
            self.server.connections -= 1
        super().finish()

    def _get(self, queue: bytes, options: bytes) -> bool:
        """Reply, and return whether the connection stays open."""
        if options in (b"/close", b"/close/open", b"/abort"):
            self._end(is_done=options != b"/abort")
            if options != b"/close/open":
                self.wfile.write(b"END\r\n")
                return True
        elif self._open is not None:
            self.wfile.write(self.server.busy)
            return False
        items = self.server.holding(queue)
        item = items.popleft() if items else None
        if item is None or self.server.has_none(item):
            self.wfile.write(b"END\r\n")
            return True
        if options in (b"/open", b"/close/open"):
            self._open = (queue, item)
            self.server.held[queue] = self.server.held.get(queue, 0) + 1
        self.wfile.write(b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue, len(item), item))
        return True

    def _end(self, *, is_done: bool) -> None:
        if self._open is not None:
            queue, item = self._open
            self._open = None
            self.server.held[queue] -= 1
            if not is_done:
                self.server.holding(queue).appendleft(item)


@contextmanager
def serving(server: OtherServer) -> Iterator[None]:
    """Serve during the block."""
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        join(thread)
        server.server_close()
