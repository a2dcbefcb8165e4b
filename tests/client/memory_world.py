"""Servers in memory, and a Twisted client of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kestrel.client.client import Client
from kestrel.config.model import Config, QueueOverrides
from kestrel.testing.network import MemoryEndpoint, MemoryNetwork
from kestrel.testing.server import MemoryServer

CONFIG = Config(
    max_open_transactions=100,
    queues={
        b"small": QueueOverrides({"max_items": 2}),
        b"quick": QueueOverrides({"open_transaction_timeout_ms": 5000}),
    },
)


class World:
    """Some servers in memory, and a client of them that gets these options."""

    def __init__(self, servers: int = 1, protocol: str = "memcache", **options: Any) -> None:
        self.network = MemoryNetwork()
        self.protocol: Any = protocol
        self.servers = [MemoryServer(clock=self.network.clock, config=CONFIG) for _ in range(servers)]
        self.endpoints: Sequence[MemoryEndpoint] = [self.network.endpoint(server, protocol) for server in self.servers]
        self.client = Client(self.network.clock, self.endpoints, self.protocol, **options)
        self.run, self.begin, self.result = self.network.run, self.network.begin, self.network.result
        self.advance, self.settle = self.network.advance, self.network.settle

    @property
    def server(self) -> MemoryServer:
        """The only server."""
        [server] = self.servers
        return server

    @property
    def endpoint(self) -> MemoryEndpoint:
        """The endpoint of the only server."""
        [endpoint] = self.endpoints
        return endpoint

    def put(self, *items: bytes, queue: str = "work") -> None:
        """Put items with the client."""
        assert self.run(self.client.put_many(queue, items)) == len(items)

    def left(self, queue: str = "work") -> list[bytes]:
        """Take all items with another client."""
        other = Client(self.network.clock, self.endpoints, self.protocol)
        left = []
        while (data := self.run(other.get(queue))) is not None:
            left.append(data)
        self.run(other.close())
        return left


async def work_on(
    client: Client, what: Any = None, queue: str = "work", timeout: float = 0, hold: float = 60
) -> bytes | None:
    """Read an item reliably. Await or raise `what` while the read is open."""
    async with client.reliable_get(queue, timeout=timeout, hold=hold) as item:
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            await what
    return item
