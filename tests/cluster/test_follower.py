"""Who is in a server set, as a client of it knows."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kestrel.address import Address
from kestrel.cluster.follower import Follower, Members, ZooKeeperAway
from kestrel.cluster.member import Member
from kestrel.cluster.uri import parse_server_set
from tests.cluster.zookeeper import ZooKeeper, running_zookeeper
from tests.server.running import own_port

PATIENCE_S = 60.0


def member(number: int) -> Member:
    return Member(Address("127.0.0.1", number), {"memcache": Address("127.0.0.1", number)})


def join(zookeeper: ZooKeeper, path: str, each: Member) -> str:
    node: str = zookeeper.client.create(f"{path}/member_", each.to_json(), sequence=True, makepath=True)
    return node


class Followed:
    """A follower, and what it has told."""

    def __init__(self, zookeeper: ZooKeeper, path: str, timeout_s: float = 10.0) -> None:
        self.told: queue.Queue[Members] = queue.Queue()
        uri = parse_server_set(f"zk://{zookeeper.hosts}{path}")
        self.follower = Follower(uri, self.told.put, session_timeout_s=timeout_s).start()

    def next(self) -> Members:
        return self.told.get(timeout=PATIENCE_S)

    def close(self) -> None:
        self.follower.close()


@pytest.fixture
def followed(zookeeper: ZooKeeper, prefix: str) -> Iterator[Followed]:
    with closing(Followed(zookeeper, prefix)) as followed:
        yield followed


def test_sets_that_are_not_there_have_no_members(followed: Followed) -> None:
    assert followed.next() == followed.follower.members == Members()


def test_those_who_come_and_go_are_told(followed: Followed, zookeeper: ZooKeeper, prefix: str) -> None:
    assert followed.next() == Members()
    join(zookeeper, f"{prefix}/read", member(1))
    assert followed.next() == Members((member(1),), ())
    join(zookeeper, f"{prefix}/write", member(1))
    assert followed.next() == Members((member(1),), (member(1),))
    second = join(zookeeper, f"{prefix}/read", member(2))
    assert followed.next() == Members((member(1), member(2)), (member(1),))
    zookeeper.client.delete(second)
    assert followed.next() == Members((member(1),), (member(1),))


def test_who_left_last_is_still_known(followed: Followed, zookeeper: ZooKeeper, prefix: str) -> None:
    followed.next()
    first = join(zookeeper, f"{prefix}/read", member(1))
    assert followed.next() == Members((member(1),), ())
    zookeeper.client.delete(first)
    join(zookeeper, f"{prefix}/write", member(3))
    assert followed.next() == Members((member(1),), (member(3),))
    join(zookeeper, f"{prefix}/read", member(2))
    assert followed.next() == Members((member(2),), (member(3),))


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"serviceEndpoint": {"host": "a"}}', b"[" * 50_000])
def test_what_is_no_member_is_passed_over(
    data: bytes, followed: Followed, zookeeper: ZooKeeper, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    followed.next()
    zookeeper.client.create(f"{prefix}/read/member_", data, sequence=True, makepath=True)
    join(zookeeper, f"{prefix}/read", member(1))
    told = followed.next()
    if told == Members():
        told = followed.next()
    assert told == Members((member(1),), ())
    assert [record.getMessage() for record in caplog.records if "is no member of a server set" in record.getMessage()]


def test_while_zookeeper_is_away_members_stay_and_then_are_followed_again(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path) as zookeeper:
        join(zookeeper, "/sets/read", member(1))
        with closing(Followed(zookeeper, "/sets", 1.0)) as followed:
            assert followed.next() == Members((member(1),), ())
            zookeeper.kill()
            assert followed.follower.members == Members((member(1),), ())
            zookeeper.start()
            join(zookeeper, "/sets/read", member(2))
            assert followed.next() == Members((member(1), member(2)), ())
            zookeeper.kill()
            zookeeper.forget()
            zookeeper.start()
            join(zookeeper, "/sets/write", member(3))
            assert followed.next() == Members((member(1), member(2)), (member(3),))


def test_no_zookeeper_is_said_with_the_reason() -> None:
    with own_port() as port, closing(Follower(parse_server_set(f"zk://127.0.0.1:{port}/sets")).start()) as follower:
        with pytest.raises(ZooKeeperAway, match=rf"zk://127\.0\.0\.1:{port}/sets: Connection refused"):
            follower.wait(0.5)
        assert follower.members is None


