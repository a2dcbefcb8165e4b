"""The choice of the server for each request, as in Kestrel's clients.

A put is sent to a random server. Gets stay with one server for a while, which avoids asking many empty ones, and move
on when it is empty. Puts and gets use separate choices: a server whose disk is full can still serve gets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from random import Random
from typing import Final, Generic, NamedTuple, TypeVar

from kestrel.client.backoff import INITIAL_BACKOFF_S, MAX_BACKOFF_S, Backoff
from kestrel.client.errors import NoServer

S = TypeVar("S", bound=Hashable)

GETS_PER_SERVER: Final = 100

NO_SERVER: Final = "there is no server"


class NoServerReasons(NamedTuple):
    """Error messages for when there is no server."""

    reads: str = NO_SERVER
    writes: str = NO_SERVER
    all: str = NO_SERVER


class RandomChoice(Generic[S]):
    """A random choice of a server for each request. A server that failed is not chosen for a while (`Backoff`).

    While all servers are backing off, the one whose backoff ends first is chosen. `seconds` is a monotonic clock.
    `no_server_reason` is the error message for an empty list of servers.
    """

    def __init__(
        self,
        servers: Iterable[S],
        random: Random,
        seconds: Callable[[], float],
        *,
        first_backoff_s: float = INITIAL_BACKOFF_S,
        longest_backoff_s: float = MAX_BACKOFF_S,
        no_server_reason: str = NO_SERVER,
    ) -> None:
        self._random = random
        self._seconds = seconds
        self._first_backoff_s = first_backoff_s
        self._longest_backoff_s = longest_backoff_s
        self._backoffs: dict[S, Backoff] = {}
        self.no_server_reason = no_server_reason
        self.use(servers)

    def use(self, servers: Iterable[S]) -> None:
        """Choose among these servers from now on. Servers that remain keep their backoff."""
        known = self._backoffs
        self._backoffs = {server: known.get(server) or self._backoff() for server in servers}

    def _backoff(self) -> Backoff:
        return Backoff(self._random, self._first_backoff_s, self._longest_backoff_s)

    def next(self, besides: Collection[S] = ()) -> S | None:
        """Return the server to ask now, other than those in `besides`, or None if there is none.

        A server that is backing off is returned only if all servers are.
        """
        now_s = self._seconds()
        ready = [server for server, backoff in self._backoffs.items() if backoff.ends_s <= now_s]
        if ready:
            left = [server for server in ready if server not in besides]
            return self._one_of(left) if left else None
        resting = [server for server in self._backoffs if server not in besides]
        return min(resting, key=lambda server: self._backoffs[server].ends_s, default=None)

    def _one_of(self, servers: Sequence[S]) -> S:
        return self._random.choice(servers)

    def failed(self, server: S) -> None:
        """Note that a server failed or refused: back off. Further failures during the backoff are ignored."""
        backoff, now_s = self._backoffs.get(server), self._seconds()
        if backoff is not None and backoff.ends_s <= now_s:
            backoff.failed(now_s)

    def answered(self, server: S) -> None:
        """Note that a server answered: reset its backoff."""
        backoff = self._backoffs.get(server)
        if backoff is not None:
            backoff.answered()


class StayingChoice(RandomChoice[S]):
    """A choice that stays with one server for `gets_per_server` requests, unless it is empty or fails."""

    def __init__(
        self,
        servers: Iterable[S],
        random: Random,
        seconds: Callable[[], float],
        *,
        gets_per_server: int = GETS_PER_SERVER,
        no_server_reason: str = NO_SERVER,
    ) -> None:
        super().__init__(servers, random, seconds, no_server_reason=no_server_reason)
        self._gets_per_server = gets_per_server
        self._current: S | None = None
        self._left = 0

    def _one_of(self, servers: Sequence[S]) -> S:
        current = self._current
        if current is None or current not in servers or self._left == 0:
            others = [server for server in servers if server != current]
            current = self._current = super()._one_of(others or servers)
            self._left = self._gets_per_server
        self._left -= 1
        return current

    def was_empty(self, server: S) -> None:
        """Note that a server answered without an item: choose another one next time."""
        self.answered(server)
        if server == self._current:
            self._left = 0


class ServerChoices(Generic[S]):
    """The servers of a client, and the choices among them for puts and gets. There are none at first."""

    def __init__(
        self, random: Random, seconds: Callable[[], float], gets_per_server: int, no_server_reason: NoServerReasons
    ) -> None:
        self.writes: RandomChoice[S] = RandomChoice((), random, seconds, no_server_reason=no_server_reason.writes)
        """Choice of servers for puts."""
        self.reads: StayingChoice[S] = StayingChoice(
            (), random, seconds, gets_per_server=gets_per_server, no_server_reason=no_server_reason.reads
        )
        """Choice of servers for gets."""
        self.servers: tuple[S, ...] = ()
        """All servers, those for gets first."""
        self._no_server_reason = no_server_reason.all

    def use(self, reads: Sequence[S], writes: Sequence[S]) -> None:
        """Use these servers for gets and puts from now on."""
        self.servers = tuple(dict.fromkeys([*reads, *writes]))
        self.reads.use(reads)
        self.writes.use(writes)

    def all_servers(self) -> tuple[S, ...]:
        """Return all servers, for requests to every one of them. Raises `NoServer`."""
        if not self.servers:
            raise NoServer(self._no_server_reason)
        return self.servers
