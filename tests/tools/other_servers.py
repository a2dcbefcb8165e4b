"""Servers that speak like darner and siberite, as far as a client can tell, for tests without either.

Both give out items as open reads, one a connection, and put them back at its end. They hang up after an error.
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
    """One of them, with its queues. `on_get` is called before each get is answered, with how many there were."""

    allow_reuse_address = True
    daemon_threads = True
    version = b""

    def __init__(self, on_get: Callable[[int], object] = lambda _: None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.queues: dict[bytes, deque[bytes]] = {}
        self.held: dict[bytes, int] = {}
        """How many are open."""
        self.lock = threading.RLock()
        self.on_get = on_get
        self.gets = 0
        self.connections = 0

    @property
    def address(self) -> str:
        """As kestrel-cli takes it."""
        return f"127.0.0.1:{self.server_address[1]}"

    def fill(self, queue: bytes, *items: bytes) -> None:
        """Put these."""
        with self.lock:
            self.queues.setdefault(queue, deque()).extend(items)

    def items(self, queue: bytes) -> list[bytes]:
        """What can be taken."""
        with self.lock:
            return list(self.queues.get(queue, ()))

    def stats(self) -> Iterator[bytes]:
        """Lines of its answer."""
        yield b"STAT uptime 5"
        yield b"STAT version %b" % self.version

    def holding(self, name: bytes) -> deque[bytes]:
        """What a name has, which is made by that."""
        return self.queues.setdefault(name, deque())

    def has_none(self, item: bytes) -> bool:
        """Whether it says of this item that there is none."""
        return False


class Darner(OtherServer):
    """Names have any characters but a slash. A request that it does not know is an ``ERROR`` without a word."""

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
    """Has cursors, behind a dot, which here are what is left to them. It gives an empty item for none, and loses it."""

    version = b"siberite-0.6.4"
    unknown = b"ERROR Unknown command\r\n"
    busy = b"CLIENT_ERROR Close current item first\r\n"

    def __init__(self, on_get: Callable[[int], object] = lambda _: None) -> None:
        super().__init__(on_get)
        self.cursors: dict[bytes, deque[bytes]] = {}

    def stats(self) -> Iterator[bytes]:
        yield from super().stats()
        for name, items in sorted(self.queues.items()):
            yield b"STAT queue_%b_items %d" % (name, len(items))
            yield b"STAT queue_%b_open_transactions %d" % (name, self.held.get(name, 0))
        for name, items in sorted(self.cursors.items()):
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
        """Answer. Whether it goes on."""
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
    """The time in which it serves."""
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        join(thread)
        server.server_close()
