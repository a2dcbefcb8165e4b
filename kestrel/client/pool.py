"""A pool of blocking connections to several servers."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from kestrel.address import Address
from kestrel.client.connection import BlockingConnection


class ConnectionPool:
    """A pool that keeps as many connections to each server as were in use at the same time.

    Connections to servers outside `addresses` are not kept. `server_name` is the expected name in certificates.

    A forked process does not use the connections of its parent: both would read each other's replies.
    """

    def __init__(
        self,
        addresses: Iterable[Address],
        timeout_s: float,
        tls: ssl.SSLContext | None,
        server_name: str | None,
    ) -> None:
        self._idle: dict[Address, list[BlockingConnection]] = {address: [] for address in addresses}
        self._all: WeakSet[BlockingConnection] = WeakSet()
        self._timeout_s = timeout_s
        self._tls = tls
        self._server_name = server_name

    def use(self, addresses: Iterable[Address]) -> None:
        """Keep connections to these servers from now on. Connections to other servers are closed when they are no
        longer in use.
        """
        before = self._idle
        self._idle = {address: before.pop(address, []) for address in dict.fromkeys(addresses)}
        for idle in before.values():
            for connection in idle:
                connection.close()

    def take(self, address: Address) -> BlockingConnection:
        """Return a connection for exclusive use; pass it to `give_back` afterwards. Raises `CannotConnect`.

        An idle connection is checked first, because servers close idle connections, and all when they restart.
        """
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_at_rest():
                return connection
        connection = BlockingConnection.to(address, self._timeout_s, self._tls, self._server_name)
        self._all.add(connection)
        return connection

    def give_back(self, address: Address, connection: BlockingConnection) -> None:
        """Keep a connection for the next request if it is still usable, otherwise close it."""
        idle = self._idle.get(address)
        if connection.is_usable and idle is not None:
            idle.append(connection)
        else:
            connection.close()

    @contextmanager
    def using(self, address: Address) -> Iterator[BlockingConnection]:
        """Provide a connection for exclusive use in a `with` block. Raises `CannotConnect`."""
        connection = self.take(address)
        try:
            yield connection
        finally:
            self.give_back(address, connection)

    def close(self) -> None:
        """Close all connections, including those in use."""
        for connection in list(self._all):
            connection.close()
        for idle in self._idle.values():
            idle.clear()
