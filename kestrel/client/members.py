"""The servers of a client: fixed addresses, or the current members of a server set."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar
from weakref import finalize

from kestrel.address import DEFAULT_PORTS, Address, parse_address
from kestrel.client.choice import NO_SERVER_REASONS, NoServerReasons, ServerChoices
from kestrel.client.errors import NoServer
from kestrel.cluster.member import READ, WRITE, Member
from kestrel.cluster.uri import ServerSetUri, is_server_set, parse_server_set, require_kazoo
from kestrel.errors import KestrelError

if TYPE_CHECKING:  # it imports kazoo, which is an extra
    from kestrel.cluster.follower import Follower, Members


S = TypeVar("S", bound=Hashable)


class Addresses(NamedTuple):
    """The addresses of servers, without duplicates."""

    reads: tuple[Address, ...]
    """Servers for gets."""
    writes: tuple[Address, ...]
    """Servers for puts."""

    @property
    def all(self) -> tuple[Address, ...]:
        """Servers for gets and puts, for requests to all servers."""
        return tuple(dict.fromkeys(self.reads + self.writes))


Follow: TypeAlias = Callable[[ServerSetUri, Callable[["Members"], object]], "Follower"]
"""Function that starts to follow a server set. It calls its callback in another thread, at first and after each change.
"""


def follow_zookeeper(uri: ServerSetUri, changed: Callable[[Members], object]) -> Follower:
    """Start to follow a server set in ZooKeeper. Raises OSError for an unusable TLS file."""
    from kestrel.cluster.follower import Follower

    return Follower(uri, changed).start()


def addresses_of(members: Members, protocol: str) -> Addresses:
    """Return the addresses at which the members speak `protocol`."""
    return Addresses(_addresses_speaking(members.reads, protocol), _addresses_speaking(members.writes, protocol))


def _addresses_speaking(members: Iterable[Member], protocol: str) -> tuple[Address, ...]:
    found = dict.fromkeys(member.address_of(protocol) for member in members)
    return tuple(address for address in found if address is not None)


def parse_single_server_set(servers: Sequence[object]) -> ServerSetUri | None:
    """Parse the server set given in place of servers. Return None if there is none.

    Raises ValueError if it is invalid or given together with other servers, OSError for an unusable TLS file, and
    `KazooMissing` without the library kazoo.
    """
    if not any(isinstance(server, str) and is_server_set(server) for server in servers):
        return None
    if len(servers) > 1:
        raise ValueError("a server set (zk://...) must be the only server given")
    uri = parse_server_set(str(servers[0]))
    if uri.tls is not None:
        uri.tls.context()
    require_kazoo()
    return uri


class FixedServers:
    """A fixed list of servers."""

    no_server_reason: Final = NO_SERVER_REASONS

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self.known = Addresses(addresses, addresses)
        self.is_alone = len(addresses) == 1

    def wait(self) -> Addresses:
        """Return the addresses of the servers."""
        return self.known

    def close(self) -> None:
        """Do nothing."""


class FollowedServers:
    """The members of a server set that speak a protocol.

    Following starts when the members are first requested. It starts again in a forked process, which has no threads of
    its parent. `changed` is called in another thread when the members are first known, and after each change.
    """

    is_alone: Final = False
    """Whether there is only one server, and always will be."""

    def __init__(
        self,
        uri: ServerSetUri,
        protocol: str,
        timeout_s: float,
        follow: Follow = follow_zookeeper,
        changed: Callable[[Members], object] = lambda members: None,
    ) -> None:
        self.uri = uri
        who = f"no server that speaks {protocol} is in"
        self.no_server_reason = NoServerReasons(
            f"{who} the {READ} set of {uri}", f"{who} the {WRITE} set of {uri}", f"{who} the sets of {uri}"
        )
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._follow = follow
        self._changed = changed
        self._follower: Follower | None = None
        self._process = os.getpid()
        self._finalizer: finalize[[Follower, int], FollowedServers] | None = None
        self._members: Members | None = None
        self._addresses: Addresses | None = None

    @property
    def known(self) -> Addresses | None:
        """The addresses of the members, or None while they are unknown; the same object until they change. Never
        blocks.
        """
        follower = self._own_follower()
        members = None if follower is None else follower.members
        return None if members is None else self._addresses_of(members)

    def wait(self) -> Addresses:
        """Wait until the members are known, and return their addresses. Raises `NoServer` after the timeout."""
        return self._addresses_of(self.members())

    def members(self) -> Members:
        """Wait until the members are known, and return all of them, whatever their protocols. Raises `NoServer`."""
        follower = self.follower()
        try:
            return follower.members or follower.wait(self._timeout_s)
        except KestrelError as error:
            raise NoServer(str(error)) from error

    def follower(self) -> Follower:
        """Return the follower, and start it if necessary. Raises `NoServer` for a TLS file that has become unusable."""
        follower = self._own_follower()
        if follower is None:
            self._process = os.getpid()
            try:
                follower = self._follower = self._follow(self.uri, self._changed)
            except OSError as error:
                raise NoServer(f"{self.uri}: {error}") from error
            self._finalizer = finalize(self, _close_in_thread, follower, self._process)
            self._finalizer.atexit = False
        return follower

    @property
    def is_following(self) -> bool:
        """Whether `close` has something to stop."""
        return self._own_follower() is not None

    def close(self) -> None:
        """Stop following until the members are requested again. May block for a moment."""
        follower, self._follower = self._own_follower(), None
        if self._finalizer is not None:
            self._finalizer.detach()
        if follower is not None:
            follower.close()

    def _own_follower(self) -> Follower | None:
        return self._follower if self._process == os.getpid() else None

    def _addresses_of(self, members: Members) -> Addresses:
        if self._addresses is None or members is not self._members:
            self._members = members
            self._addresses = addresses_of(members, self._protocol)
        return self._addresses


def _close_in_thread(follower: Follower, process: int) -> None:
    # The client was garbage-collected without being closed. That can happen in any thread, which must not block.
    if process == os.getpid():
        Thread(target=follower.close, name="server-set-close", daemon=True).start()


def parse_servers(servers: str | Sequence[str], protocol: str, timeout_s: float) -> FixedServers | FollowedServers:
    """Return the servers that a client is given: addresses, or one server set in their place.

    Raises ValueError for invalid servers, OSError for an unusable TLS file, and `KazooMissing`.
    """
    given = [servers] if isinstance(servers, str) else list(servers)
    uri = parse_single_server_set(given)
    if uri is not None:
        return FollowedServers(uri, protocol, timeout_s)
    addresses = tuple(dict.fromkeys(parse_address(server, DEFAULT_PORTS[protocol]) for server in given))
    if not addresses:
        raise ValueError("there must be at least one server")
    return FixedServers(addresses)


class Roster(ServerChoices[S]):
    """The servers of a client, by the addresses of `members`. They are known after the first `meet`.

    `make` returns the server at an address. A member that stays keeps its server. `leave` is called with each server
    that leaves.
    """

    def __init__(
        self,
        members: FixedServers | FollowedServers,
        make: Callable[[Address], S],
        leave: Callable[[S], object],
        random: Random,
        seconds: Callable[[], float],
        gets_per_server: int,
    ) -> None:
        super().__init__(random, seconds, gets_per_server, members.no_server_reason)
        self.members = members
        self._make = make
        self._leave = leave
        self._met: Addresses | None = None
        self._by_address: dict[Address, S] = {}
        self._keeps_servers = False

    @property
    def is_alone(self) -> bool:
        return self.members.is_alone

    def refresh(self) -> None:
        """Use the current members, if they are known. Neither waits nor fails.

        If a new member cannot be used, the servers stay. The next request calls `meet`, which raises the error.
        """
        known = self.members.known
        if known is not None:
            with suppress(OSError):
                self.meet(known)

    def keep_servers(self) -> None:
        self._keeps_servers = True

    def meet(self, addresses: Addresses) -> None:
        """Use the servers at these addresses from now on. Raises OSError for an unusable TLS file; nothing changes."""
        if addresses is self._met or self._keeps_servers:
            return
        before = self._by_address
        servers = {each: before[each] if each in before else self._make(each) for each in addresses.all}
        self._met, self._by_address = addresses, servers
        self.use([servers[each] for each in addresses.reads], [servers[each] for each in addresses.writes])
        for address, server in before.items():
            if address not in servers:
                self._leave(server)
