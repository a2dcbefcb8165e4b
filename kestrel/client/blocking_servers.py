"""The servers of the blocking client, the choice among them, and their connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from kestrel.address import Address
from kestrel.client.choice import GETS_PER_SERVER, RandomChoice, StayingChoice
from kestrel.client.errors import NoServer
from kestrel.client.members import Addresses, FixedServers, FollowedServers, parse_addresses, parse_single_server_set
from kestrel.client.plan import Plan, follow, search, somewhere
from kestrel.client.pool import ConnectionPool
from kestrel.tls import TlsOptions

Q = TypeVar("Q")
T = TypeVar("T")


class BlockingServers:
    """One server, several servers that share the work, or the current members of a server set.

    Raises ValueError for an invalid server, OSError for unusable TLS files, and `KazooMissing`. `seconds` is a
    monotonic clock.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        protocol: str,
        tls: TlsOptions | None,
        timeout_s: float,
        seconds: Callable[[], float],
        *,
        random: Random | None = None,
        gets_per_server: int = GETS_PER_SERVER,
    ) -> None:
        given = [servers] if isinstance(servers, str) else list(servers)
        uri = parse_single_server_set(given)
        self.members: FixedServers | FollowedServers = (
            FixedServers(parse_addresses(given, protocol)) if uri is None else FollowedServers(uri, protocol, timeout_s)
        )
        chance = random or Random()
        self.writes: RandomChoice[Address] = RandomChoice(
            (), chance, seconds, no_server_reason=self.members.no_server_reason.writes
        )
        """Choice of servers for puts."""
        self.reads: StayingChoice[Address] = StayingChoice(
            (), chance, seconds, gets_per_server=gets_per_server, no_server_reason=self.members.no_server_reason.reads
        )
        """Choice of servers for gets."""
        context, server_name = (None, None) if tls is None else (tls.context(), tls.server_name)
        self.pool = ConnectionPool((), timeout_s, context, server_name)
        self.addresses: tuple[Address, ...] = ()
        """All servers, as of the last `wait_until_known` or `refresh`."""
        self._met: Addresses | None = None
        self.refresh()

    @property
    def is_alone(self) -> bool:
        """Whether there is only one server, and always will be."""
        return self.members.is_alone

    def wait_until_known(self) -> None:
        """Wait until the servers are known. Raises `NoServer`."""
        self._use(self.members.wait())

    def refresh(self) -> None:
        """Use the current members of the server set. Neither waits nor fails."""
        known = self.members.known
        if known is not None:
            self._use(known)

    def all_servers(self) -> tuple[Address, ...]:
        """Return all servers, for requests to every one of them. Raises `NoServer`."""
        self.wait_until_known()
        if not self.addresses:
            raise NoServer(self.members.no_server_reason.all)
        return self.addresses

    def _use(self, addresses: Addresses) -> None:
        if addresses is self._met:
            return
        self._met = addresses
        self.addresses = addresses.all
        self.reads.use(addresses.reads)
        self.writes.use(addresses.writes)
        self.pool.use(self.addresses)

    def somewhere(self, choice: RandomChoice[Address], ask: Callable[[Address], T], *, repeats: bool = False) -> T:
        """Ask a server, and others if it fails, as `plan.somewhere` describes."""
        self.wait_until_known()
        plan: Plan[Address, T, T] = somewhere(choice, repeats=repeats)
        return follow(plan, self._then_refresh(ask))

    def search(self, ask: Callable[[Address, int], T | None], timeout_ms: int) -> T | None:
        """Ask servers in turn for an item, as `plan.search` describes."""
        self.wait_until_known()
        plan: Plan[tuple[Address, int], T | None, T | None]
        plan = search(self.reads, timeout_ms, is_alone=self.is_alone)
        return follow(plan, self._then_refresh(lambda question: ask(*question)))

    def _then_refresh(self, ask: Callable[[Q], T]) -> Callable[[Q], T]:
        """Wrap `ask` so that it refreshes the servers after each request."""

        def ask_and_refresh(question: Q) -> T:
            try:
                return ask(question)
            finally:
                self.refresh()

        return ask_and_refresh

    def close(self) -> None:
        """Close all connections, and stop following the server set. The servers can be asked again."""
        self.pool.close()
        self.members.close()
