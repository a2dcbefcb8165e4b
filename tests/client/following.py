"""Server sets without ZooKeeper: who is in them is what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kestrel.address import Address
from kestrel.cluster.follower import Members, ZooKeeperUnavailable
from kestrel.cluster.member import Member
from kestrel.cluster.uri import ServerSetUri

SETS = "zk://zk1/services/kestrel"


def member(address: str, protocol: str = "memcache") -> Member:
    """One that speaks that there."""
    host, _, port = address.rpartition(":")
    where = Address(host, int(port))
    return Member(where, {protocol: where})


def members(*addresses: str, writes: Iterable[str] | None = None, protocol: str = "memcache") -> Members:
    """These in both sets, or others in that for puts."""
    reads, to_write = addresses, addresses if writes is None else tuple(writes)
    return Members(*(tuple(member(address, protocol) for address in some) for some in (reads, to_write)))


class FakeFollower:
    """One that has been started."""

    def __init__(self, sets: FakeSets, changed: Callable[[Members], object]) -> None:
        self._sets = sets
        self.changed = changed
        self.is_closed = False

    @property
    def members(self) -> Members | None:
        """As the sets are now."""
        return None if self.is_closed else self._sets.members

    @property
    def problem(self) -> str:
        """Always the same."""
        return "Connection refused"

    def wait(self, timeout_s: float) -> Members:
        """Nothing happens while somebody waits, but for what the test says."""
        self._sets.waited_s.append(timeout_s)
        self._sets.at_each_wait()
        if self._sets.members is None:
            raise ZooKeeperUnavailable(f"zk1: {self.problem}")
        return self._sets.members

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True


class FakeSets:
    """Two server sets, and all who ever followed them. Nobody knows them at first."""

    def __init__(self) -> None:
        self.members: Members | None = None
        self.followers: list[FakeFollower] = []
        self.waited_s: list[float] = []
        self.at_each_wait: Callable[[], None] = lambda: None

    def follow(self, uri: ServerSetUri, changed: Callable[[Members], object]) -> FakeFollower:
        """What a client follows them with."""
        follower = FakeFollower(self, changed)
        self.followers.append(follower)
        if self.members is not None:
            changed(self.members)
        return follower

    def become(self, told: Members) -> None:
        """Have these in them from now on, and tell it."""
        self.members = told
        for follower in self.followers:
            if not follower.is_closed:
                follower.changed(told)
