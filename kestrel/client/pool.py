"""Blocking connections to several servers, kept from one request to the next."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from kestrel.address import Address
from kestrel.client.connection import BlockingConnection


class ConnectionPool:
    """As many connections to each server as were in use at a time. `server_name` is whose certificate is wanted.

    Those to other servers than the `addresses` are not kept.

    A process that was forked has none of its parent's: both would read the replies to each other's requests.
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
        """Keep connections to these from now on. Connections to others end when nobody uses them any more."""
        before = self._idle
        self._idle = {address: before.pop(address, []) for address in dict.fromkeys(addresses)}
        for idle in before.values():
            for connection in idle:
                connection.close()

    def take(self, address: Address) -> BlockingConnection:
        """A connection for oneself, to be given back. Raises `CannotConnect`.

        One that was kept is looked at first: servers hang up on clients that are idle, and when they are restarted.
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
        """Keep the connection for the next request, if it is still of use."""
        idle = self._idle.get(address)
        if connection.is_usable and idle is not None:
            idle.append(connection)
        else:
            connection.close()

    @contextmanager
    def using(self, address: Address) -> Iterator[BlockingConnection]:
        """A connection for the time of a `with`."""
        connection = self.take(address)
        try:
            yield connection
        finally:
            self.give_back(address, connection)

    def close(self) -> None:
        """Hang up on all servers, also where a connection is in use."""
        for connection in list(self._all):
            connection.close()
        for idle in self._idle.values():
            idle.clear()
