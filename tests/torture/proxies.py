"""TCP proxies that cut the connections of clients at any byte of a request or reply.

Each client connects to a proxy of its own, so that it need not know the port of the running server. One thread
forwards the bytes of all connections.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import suppress
from typing import Final, Self

from tests.child import PATIENCE_S, join

REQUEST, REPLY = 0, 1
CUT_KINDS: Final = ("drop", "in a request", "in a reply", "half-close")
"""How a connection is cut: now, after some more bytes of one direction, or by an end of file that the server sees."""


class _Connection:
    """A connection of a client and its connection to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers = server, client
        self.bytes_until_cut: list[int | None] = [None, None]
        """Bytes that are still forwarded in each direction before the cut; None: no limit."""

    def abort(self) -> None:
        for writer in self.writers:
            with suppress(OSError):
                writer.transport.abort()


class ClientProxy:
    """A port for one client, forwarded to the server's port of the client's protocol."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.port = 0
        self.last_cut_s = 0.0
        """Time of the last cut, in seconds of `time.monotonic`."""
        self.connections: set[_Connection] = set()


class ProxyNetwork:
    """All proxies. `ports` has the server's port for each protocol. A context manager."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        join(self._thread)
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def new_proxy(self, protocol: str) -> ClientProxy:
        """Return a new proxy."""
        proxy = ClientProxy(protocol)
        asyncio.run_coroutine_threadsafe(self._listen(proxy), self._loop).result(PATIENCE_S)
        return proxy

    async def _listen(self, proxy: ClientProxy) -> None:
        async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.CancelledError):
                await self._join(proxy, reader, writer)
            with suppress(OSError):
                writer.transport.abort()

        server = await asyncio.start_server(joined, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]

    async def _join(self, proxy: ClientProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.ports.get(proxy.protocol)
        if port is None:
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        connection = _Connection(writer, to_server)
        proxy.connections.add(connection)
        try:
            request = asyncio.ensure_future(self._forward(proxy, connection, REQUEST, reader))
            await self._forward(proxy, connection, REPLY, from_server)
            request.cancel()
            with suppress(asyncio.CancelledError):
                await request
            writer.close()
        finally:
            proxy.connections.discard(connection)
            with suppress(OSError):
                to_server.transport.abort()

    async def _forward(
        self, proxy: ClientProxy, connection: _Connection, direction: int, reader: asyncio.StreamReader
    ) -> None:
        writer = connection.writers[direction]
        with suppress(OSError, RuntimeError):  # RuntimeError: it has been half-closed
            while data := await reader.read(65536):
                left = connection.bytes_until_cut[direction]
                if left is not None:
                    data = data[:left]
                    connection.bytes_until_cut[direction] = left - len(data)
                writer.write(data)
                await writer.drain()
                if connection.bytes_until_cut[direction] == 0:
                    proxy.last_cut_s = time.monotonic()
                    await asyncio.sleep(0.001)  # let the forwarded bytes arrive before the end
                    connection.abort()
                    return
            if writer.can_write_eof():
                writer.write_eof()

    def cut(self, proxy: ClientProxy, kind: str, rng: random.Random) -> None:
        """Cut the client's open connections."""
        bytes_left = rng.choice((1, 3, rng.randrange(1, 100), rng.randrange(1, 20_000)))
        self._loop.call_soon_threadsafe(self._cut, proxy, kind, bytes_left)

    @staticmethod
    def _cut(proxy: ClientProxy, kind: str, bytes_left: int) -> None:
        for connection in tuple(proxy.connections):
            proxy.last_cut_s = time.monotonic()
            if kind == "drop":
                connection.abort()
            elif kind == "half-close":
                with suppress(OSError, RuntimeError):
                    connection.writers[REQUEST].write_eof()
            else:
                connection.bytes_until_cut[REQUEST if kind == "in a request" else REPLY] = bytes_left
