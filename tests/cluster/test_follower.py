"""The members of a server set, as its follower reports them."""

from __future__ import annotations

import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import CodeType

import pytest

from kestrel.address import Address
from kestrel.cluster.follower import Follower, Members, ZooKeeperUnavailable
from kestrel.cluster.member import Member
from kestrel.cluster.uri import parse_server_set
from tests import child
from tests.cluster.zookeeper import ZooKeeper, running_zookeeper
from tests.server.running import eventually, own_port

PATIENCE_S = 60.0


def member(number: int) -> Member:
    return Member(Address("127.0.0.1", number), {"memcache": Address("127.0.0.1", number)})


def join(zookeeper: ZooKeeper, path: str, each: Member) -> str:
    node: str = zookeeper.client.create(f"{path}/member_", each.to_json(), sequence=True, makepath=True)
    return node


class Followed:
    """A follower and its reports."""

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


def test_missing_sets_have_no_members(followed: Followed) -> None:
    assert followed.next() == followed.follower.members == Members()


def test_members_that_join_and_leave_are_reported(followed: Followed, zookeeper: ZooKeeper, prefix: str) -> None:
    assert followed.next() == Members()
    join(zookeeper, f"{prefix}/read", member(1))
    assert followed.next() == Members((member(1),), ())
    join(zookeeper, f"{prefix}/write", member(1))
    assert followed.next() == Members((member(1),), (member(1),))
    second = join(zookeeper, f"{prefix}/read", member(2))
    assert followed.next() == Members((member(1), member(2)), (member(1),))
    zookeeper.client.delete(second)
    assert followed.next() == Members((member(1),), (member(1),))


def test_last_member_that_left_is_still_known(followed: Followed, zookeeper: ZooKeeper, prefix: str) -> None:
    followed.next()
    first = join(zookeeper, f"{prefix}/read", member(1))
    assert followed.next() == Members((member(1),), ())
    zookeeper.client.delete(first)
    join(zookeeper, f"{prefix}/write", member(3))
    assert followed.next() == Members((member(1),), (member(3),))
    join(zookeeper, f"{prefix}/read", member(2))
    assert followed.next() == Members((member(2),), (member(3),))


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"serviceEndpoint": {"host": "a"}}', b"[" * 50_000])
def test_invalid_members_are_ignored(
    data: bytes, followed: Followed, zookeeper: ZooKeeper, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    followed.next()
    zookeeper.client.create(f"{prefix}/read/member_", data, sequence=True, makepath=True)
    join(zookeeper, f"{prefix}/read", member(1))
    told = followed.next()
    if told == Members():
        told = followed.next()
    assert told == Members((member(1),), ())
    assert any("is not a member of a server set" in record.getMessage() for record in caplog.records)


def test_members_stay_while_zookeeper_is_away_and_are_followed_again(tmp_path: Path) -> None:
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


def test_unreachable_zookeeper_is_reported_with_the_reason() -> None:
    with own_port() as port, closing(Follower(parse_server_set(f"zk://127.0.0.1:{port}/sets")).start()) as follower:
        with pytest.raises(ZooKeeperUnavailable, match=rf"zk://127\.0\.0\.1:{port}/sets: Connection refused"):
            follower.wait(0.5)
        assert follower.members is None


class Interrupted(Exception):
    pass


def interrupt(*_: object) -> None:
    raise Interrupted


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Make SIGUSR1 raise `Interrupted`, as SIGINT raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def codes_of(thread: int) -> list[CodeType]:
    """Return the code objects of its stack, the innermost first."""
    return [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]


@pytest.mark.usefixtures("interruptible")
def test_signal_that_wakes_no_thread_ends_the_wait() -> None:
    # The signal comes just before the thread begins to wait. Python handles it when the thread runs again.
    def signal_from_beside() -> None:
        eventually(lambda: Follower.wait.__code__ in codes_of(waiting)[1:], "it waits")
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    waiting = threading.get_ident()
    beside = threading.Thread(target=signal_from_beside, daemon=True)
    with own_port() as port, closing(Follower(parse_server_set(f"zk://127.0.0.1:{port}/sets")).start()) as follower:
        began_s = time.monotonic()
        with pytest.raises(Interrupted):
            beside.start()
            follower.wait(PATIENCE_S)
        assert time.monotonic() - began_s < PATIENCE_S / 2
    child.join(beside)
