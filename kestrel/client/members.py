"""Who is asked: the servers that somebody names, or the members of a server set as they are at present."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias
from weakref import finalize

from kestrel.address import DEFAULT_PORTS, Address, parse_address
from kestrel.client.errors import NoServer
from kestrel.cluster.kazoo_extra import require_kazoo
from kestrel.cluster.member import READ, WRITE, Member
from kestrel.cluster.uri import ServerSetUri, is_server_set, parse_server_set
from kestrel.errors import KestrelError

if TYPE_CHECKING:  # it imports kazoo, which is an extra
    from kestrel.cluster.follower import Members


class Addresses(NamedTuple):
    """Where to go, each address once."""

    reads: tuple[Address, ...]
    """For items."""
    writes: tuple[Address, ...]
    """With items."""

    @property
    def all(self) -> tuple[Address, ...]:
        """For what every server is asked."""
        return tuple(dict.fromkeys(self.reads + self.writes))


class NoServerReasons(NamedTuple):
    """What is said where there is no server, a sentence for each."""

    reads: str = "there is no server"
    writes: str = "there is no server"
    all: str = "there is no server"


class StartedFollower(Protocol):
    """What a `kestrel.cluster.follower.Follower` is that was started."""

    @property
    def members(self) -> Members | None:
        """As far as is known."""

    @property
    def problem(self) -> str:
        """Why it is not."""

    def wait(self, timeout_s: float) -> Members:
        """Until it is known; raises a KestrelError."""

    def close(self) -> None:
        """The end; may block for a moment."""


Follow: TypeAlias = Callable[[ServerSetUri, Callable[["Members"], object]], StartedFollower]
"""Begins to follow a server set. What it is given is called in another thread, at first and after each change."""


def follow_zookeeper(uri: ServerSetUri, changed: Callable[[Members], object]) -> StartedFollower:
    """The members as ZooKeeper tells them. Raises OSError for a file of TLS that cannot be used."""
    from kestrel.cluster.follower import Follower

    return Follower(uri, changed).start()


def addresses_of(members: Members, protocol: str) -> Addresses:
    """Where the members speak that protocol."""
    return Addresses(_addresses_speaking(members.reads, protocol), _addresses_speaking(members.writes, protocol))


def _addresses_speaking(members: Iterable[Member], protocol: str) -> tuple[Address, ...]:
    found = dict.fromkeys(member.address_of(protocol) for member in members)
    return tuple(address for address in found if address is not None)


def parse_single_server_set(servers: Sequence[object]) -> ServerSetUri | None:
    """The server set that stands in place of servers, if there is one.

    Raises ValueError with a sentence, also where one stands beside others, OSError for a file of its TLS that cannot be
    used, and `KazooMissing`.
    """
    if not any(isinstance(server, str) and is_server_set(server) for server in servers):
        return None
    if len(servers) > 1:
        raise ValueError("a server set (zk://...) stands in place of all servers, and not beside others")
    uri = parse_server_set(str(servers[0]))
    if uri.tls is not None:
        uri.tls.context()
    require_kazoo()
    return uri


def parse_addresses(servers: Iterable[str], protocol: str) -> tuple[Address, ...]:
    """The addresses that are named, each once. Raises ValueError with a sentence."""
    found = tuple(dict.fromkeys(parse_address(server, DEFAULT_PORTS[protocol]) for server in servers))
    if not found:
        raise ValueError("there must be at least one server")
    return found


class FixedServers:
    """Servers that somebody names: always the same ones."""

    no_server_reason: Final = NoServerReasons()

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self._addresses = Addresses(addresses, addresses)
        self.is_alone = len(addresses) == 1

    @property
    def known(self) -> Addresses:
        """Who is asked."""
        return self._addresses

    def wait(self) -> Addresses:
        """The same."""
        return self._addresses

    def close(self) -> None:
        """Nothing is to be done."""


class FollowedServers:
    """The members of a server set that speak a protocol, for those who may block.

    It is followed from when somebody wants to know, in a process that was forked anew: threads are not in a fork.
    """

    is_alone: Final = False
    """Whether there is one server, now and later."""

    def __init__(self, uri: ServerSetUri, protocol: str, timeout_s: float, follow: Follow = follow_zookeeper) -> None:
        self.uri = uri
        self.no_server_reason = no_server_reasons(uri, protocol)
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._follow = follow
        self._follower: StartedFollower | None = None
        self._process = os.getpid()
        self._finalizer: finalize[[StartedFollower, int], FollowedServers] | None = None
        self._members: Members | None = None
        self._addresses: Addresses | None = None

    @property
    def known(self) -> Addresses | None:
        """Who is asked, as far as that is known; the same object until it changes. Never blocks."""
        follower = self._own_follower()
        members = None if follower is None else follower.members
        return None if members is None else self._addresses_of(members)

    def wait(self) -> Addresses:
        """Who is asked. Blocks until it is known, for so long at most; then it is a `NoServer`."""
        return self._addresses_of(self.members())

    def members(self) -> Members:
        """All members, whatever they speak; blocks in the same way."""
        follower = self._own_follower()
        try:
            if follower is None:
                self._process = os.getpid()
                follower = self._follower = self._follow(self.uri, _ignore_change)
                self._finalizer = finalize(self, _close_in_thread, follower, self._process)
                self._finalizer.atexit = False
            members = follower.members
            return follower.wait(self._timeout_s) if members is None else members
        except KestrelError as error:
            raise NoServer(str(error)) from error
        except OSError as error:  # a file of TLS, which was there before
            raise NoServer(f"{self.uri}: {error}") from error

    def close(self) -> None:
        """Follow no more, until somebody wants to know again. May block for a moment."""
        follower, self._follower = self._own_follower(), None
        if self._finalizer is not None:
            self._finalizer.detach()
        if follower is not None:
            follower.close()

    def _own_follower(self) -> StartedFollower | None:
        return self._follower if self._process == os.getpid() else None

    def _addresses_of(self, members: Members) -> Addresses:
        if self._addresses is None or members is not self._members:
            self._members = members
            self._addresses = addresses_of(members, self._protocol)
        return self._addresses


def _close_in_thread(follower: StartedFollower, process: int) -> None:
    # Its client is gone, and was not closed. That may be found out in any thread, and none of them should wait.
    if process == os.getpid():
        Thread(target=follower.close, name="server-set-close", daemon=True).start()


def no_server_reasons(uri: ServerSetUri, protocol: str) -> NoServerReasons:
    """What is said where no member of it speaks that protocol."""
    who = f"no server that speaks {protocol} is in"
    return NoServerReasons(
        f"{who} the {READ} set of {uri}", f"{who} the {WRITE} set of {uri}", f"{who} the sets of {uri}"
    )


def _ignore_change(_: object) -> None:
    """Whoever may block looks when he needs it."""
