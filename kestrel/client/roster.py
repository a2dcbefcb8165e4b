"""The servers of the Twisted client: who is asked, and what becomes of those that are not asked any more."""

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
    """Who is asked, nobody at first. Those that leave get no new request; what is under way with them ends as it would
    have, and then their connections do.
    """

    def __init__(
        self, random: Random, seconds: Callable[[], float], gets_per_server: int, no_server_reason: NoServerReasons
    ) -> None:
        self.writes: RandomChoice[Server] = RandomChoice((), random, seconds, no_server_reason=no_server_reason.writes)
        """For putting items."""
        self.reads: StayingChoice[Server] = StayingChoice(
            (), random, seconds, gets_per_server=gets_per_server, no_server_reason=no_server_reason.reads
        )
        """For taking them."""
        self.servers: list[Server] = []
        """All, those for taking items first."""
        self._no_server_reason = no_server_reason.all
        self._left: WeakSet[Server] = WeakSet()
        """Those with which somebody may still have to do."""

    def use(self, reads: Sequence[Server], writes: Sequence[Server]) -> None:
        """From now on it is these."""
        before, self.servers = self.servers, list(dict.fromkeys([*reads, *writes]))
        self.reads.use(reads)
        self.writes.use(writes)
        for server in set(before).difference(self.servers):
            self._left.add(server)
            server.leave()

    def all_servers(self) -> list[Server]:
        """All servers, for what every one of them is asked. Raises `NoServer`."""
        if not self.servers:
            raise NoServer(self._no_server_reason)
        return self.servers

    def all_backing_off(self) -> bool:
        """Whether all are left alone for a while, since they could not be connected to."""
        return all(server.is_backing_off for server in self.servers)

    def close(self) -> list[Coroutine[Any, Any, None]]:
        """Begin nothing more; what is to be awaited until all connections have ended."""
        servers = [*self.servers, *self._left]
        for server in servers:  # what one of them has not done must not go to the next
            server.shut()
        return [server.close() for server in servers]
