"""The servers of the Twisted client, and those that have left."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any
from weakref import WeakSet

from kestrel.client.choice import RandomChoice, StayingChoice
from kestrel.client.errors import NoServer
from kestrel.client.members import NoServerReasons
from kestrel.client.server import Server


class Roster:
    """The servers to ask, none at first.

    A server that leaves gets no new requests. Its connections end when the requests in progress have finished.
    """

    def __init__(
        self, random: Random, seconds: Callable[[], float], gets_per_server: int, no_server_reason: NoServerReasons
    ) -> None:
        self.writes: RandomChoice[Server] = RandomChoice((), random, seconds, no_server_reason=no_server_reason.writes)
        """Choice of servers for puts."""
        self.reads: StayingChoice[Server] = StayingChoice(
            (), random, seconds, gets_per_server=gets_per_server, no_server_reason=no_server_reason.reads
        )
        """Choice of servers for gets."""
        self.servers: list[Server] = []
        """All servers, those for gets first."""
        self._no_server_reason = no_server_reason.all
        self._left: WeakSet[Server] = WeakSet()
        """Servers that have left and may still have requests in progress."""

    def use(self, reads: Sequence[Server], writes: Sequence[Server]) -> None:
        """Use these servers for gets and puts from now on. Other servers leave."""
        before, self.servers = self.servers, list(dict.fromkeys([*reads, *writes]))
        self.reads.use(reads)
        self.writes.use(writes)
        for server in set(before).difference(self.servers):
            self._left.add(server)
            server.leave()

    def all_servers(self) -> list[Server]:
        """Return all servers, for requests to every one of them. Raises `NoServer`."""
        if not self.servers:
            raise NoServer(self._no_server_reason)
        return self.servers

    def all_backing_off(self) -> bool:
        """Return True if all servers are backing off after failed connection attempts."""
        return all(server.is_backing_off for server in self.servers)

    def close(self) -> list[Coroutine[Any, Any, None]]:
        """Make all further requests fail. Return coroutines that close the connections and wait for their end."""
        servers = [*self.servers, *self._left]
        for server in servers:  # a request that fails at one of them must not move to the next
            server.shut()
        return [server.close() for server in servers]
