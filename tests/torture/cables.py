"""A network between clients and a server, a cable for each client, that breaks in the midst of a request or reply.

One thread passes all bytes on. The server behind it goes and comes; a client only ever sees its cable.
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
KINDS: Final = ("drop", "in a request", "in a reply", "half-close")
"""How a connection is cut: at once; behind some more bytes of what goes one way; or the server sees an end."""


class _Link:
    """One connection of a client, and that to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers = server, client
        self.may_pass: list[int | None] = [None, None]
        """How many bytes still go each way before it is cut; None: all."""

    def abort(self) -> None:
        for writer in self.writers:
            with suppress(OSError):
                writer.transport.abort()


class Cable:
    """A port of its own for one client, which leads to whatever serves its protocol."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.port = 0
        self.cut_s = 0.0
        """When a connection of it was last cut, in the seconds of time.monotonic."""
        self.links: set[_Link] = set()


class Network:
    """All cables. `ports` says where each protocol is served now; to be closed."""

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

    def cable(self, protocol: str) -> Cable:
        """A new one."""
        cable = Cable(protocol)
        asyncio.run_coroutine_threadsafe(self._listen(cable), self._loop).result(PATIENCE_S)
        return cable

    async def _listen(self, cable: Cable) -> None:
        async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.CancelledError):
                await self._join(cable, reader, writer)
            with suppress(OSError):
                writer.transport.abort()

        server = await asyncio.start_server(joined, "127.0.0.1", 0)
        cable.port = server.sockets[0].getsockname()[1]

    async def _join(self, cable: Cable, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.ports.get(cable.protocol)
        if port is None:
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        link = _Link(writer, to_server)
        cable.links.add(link)
        try:
            request = asyncio.ensure_future(self._pass_on(cable, link, REQUEST, reader))
            await self._pass_on(cable, link, REPLY, from_server)
            request.cancel()
            with suppress(asyncio.CancelledError):
                await request
            writer.close()
        finally:
            cable.links.discard(link)
            with suppress(OSError):
                to_server.transport.abort()

    async def _pass_on(self, cable: Cable, link: _Link, way: int, reader: asyncio.StreamReader) -> None:
        writer = link.writers[way]
        with suppress(OSError, RuntimeError):  # RuntimeError: it has been half-closed
            while data := await reader.read(65536):
                left = link.may_pass[way]
                if left is not None:
                    data = data[:left]
                    link.may_pass[way] = left - len(data)
                writer.write(data)
                await writer.drain()
                if link.may_pass[way] == 0:
                    cable.cut_s = time.monotonic()
                    await asyncio.sleep(0.001)  # what has been passed on arrives, before the end does
                    link.abort()
                    return
            if writer.can_write_eof():
                writer.write_eof()

    def cut(self, cable: Cable, kind: str, dice: random.Random) -> None:
        """Cut the client's connections, if there are any."""
        bytes_left = dice.choice((1, 3, dice.randrange(1, 100), dice.randrange(1, 20_000)))
        self._loop.call_soon_threadsafe(self._cut, cable, kind, bytes_left)

    @staticmethod
    def _cut(cable: Cable, kind: str, bytes_left: int) -> None:
        for link in tuple(cable.links):
            cable.cut_s = time.monotonic()
            if kind == "drop":
                link.abort()
            elif kind == "half-close":
                with suppress(OSError, RuntimeError):
                    link.writers[REQUEST].write_eof()
            else:
                link.may_pass[REQUEST if kind == "in a request" else REPLY] = bytes_left
