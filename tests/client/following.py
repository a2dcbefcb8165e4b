"""Server sets without ZooKeeper, whose members a test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kestrel.address import Address
from kestrel.cluster.follower import Members, ZooKeeperUnavailable
from kestrel.cluster.member import Member
from kestrel.cluster.uri import ServerSetUri

SETS = "zk://zk1/services/kestrel"


def member(address: str, protocol: str = "memcache") -> Member:
    """Return a member that serves a protocol at an address."""
    host, _, port = address.rpartition(":")
    where = Address(host, int(port))
    return Member(where, {protocol: where})


def members(*addresses: str, writes: Iterable[str] | None = None, protocol: str = "memcache") -> Members:
    """Return sets with these members, or with others in the write set."""
    reads, to_write = addresses, addresses if writes is None else tuple(writes)
    return Members(*(tuple(member(address, protocol) for address in some) for some in (reads, to_write)))


class FakeFollower:
    """A started follower."""

    def __init__(self, sets: FakeSets, changed: Callable[[Members], object]) -> None:
        self._sets = sets
        self.changed = changed
        self.is_closed = False

    @property
    def members(self) -> Members | None:
        """The current members."""
        return None if self.is_closed else self._sets.members

    @property
    def problem(self) -> str:
        """The reason why the members are unknown."""
        return "Connection refused"

    def wait(self, timeout_s: float) -> Members:
        """Call `at_each_wait`, and return the members."""
        self._sets.waited_s.append(timeout_s)
        self._sets.at_each_wait()
        if self._sets.members is None:
            raise ZooKeeperUnavailable(f"zk1: {self.problem}")
        return self._sets.members

    def close(self) -> None:
        """Record the call."""
        self.is_closed = True


class FakeSets:
    """Two server sets and all their followers. The members are unknown at first."""

    def __init__(self) -> None:
        self.members: Members | None = None
        self.followers: list[FakeFollower] = []
        self.waited_s: list[float] = []
        self.at_each_wait: Callable[[], None] = lambda: None

    def follow(self, uri: ServerSetUri, changed: Callable[[Members], object]) -> FakeFollower:
        """Follow the sets, like `kestrel.cluster.follower`."""
        follower = FakeFollower(self, changed)
        self.followers.append(follower)
        if self.members is not None:
            changed(self.members)
        return follower

    def become(self, new: Members) -> None:
        """Replace the members, and notify the followers."""
        self.members = new
        for follower in self.followers:
            if not follower.is_closed:
                follower.changed(new)
