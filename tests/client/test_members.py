"""The blocking client with a server set instead of addresses."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrel.address import Address
from kestrel.client.blocking import BlockingClient
from kestrel.client.client import Client
from kestrel.client.errors import CannotConnect, NoServer
from kestrel.client.members import FollowedServers, addresses_of, parse_single_server_set
from kestrel.cluster.follower import Members
from kestrel.cluster.member import Member
from kestrel.cluster.uri import KazooMissing, parse_server_set
from kestrel.testing.network import MemoryNetwork
from tests.client.following import SETS, FakeSets, member, members
from tests.client.scripted import GET, ITEM, PUT, READ_ONLY, scripted, talk, talk_and_stay
from tests.memcache_text import END, STORED
from tests.server.running import PATIENCE_S, Processes, Server


@pytest.fixture
def sets() -> FakeSets:
    return FakeSets()


def follow(sets: FakeSets, protocol: str = "memcache") -> FollowedServers:
    return FollowedServers(parse_server_set(SETS), protocol, 7.0, sets.follow)


# Arguments.


@pytest.mark.parametrize("servers", [[SETS, "mq1"], ["mq1", SETS], [SETS, SETS]])
def test_server_set_must_be_the_only_server(servers: list[str]) -> None:
    for make in (BlockingClient, lambda given: Client(MemoryNetwork().clock, given)):
        with pytest.raises(ValueError, match="must be the only server given"):
            make(servers)


@pytest.mark.parametrize("servers", ["zk://me:secret@zk1", "zk://me:secret@zk1,/k"])
def test_error_for_an_invalid_server_set_hides_the_password(servers: str) -> None:
    for make in (BlockingClient, lambda given: Client(MemoryNetwork().clock, given)):
        with pytest.raises(ValueError) as caught:
            make(servers)
        assert "secret" not in str(caught.value)


def test_missing_file_is_reported_by_the_constructor(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        BlockingClient(f"zks://zk1/k?ca={tmp_path}/none.pem")


def test_missing_kazoo_is_reported_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("kestrel.cluster.uri.find_spec", lambda name: None)
    with pytest.raises(KazooMissing, match=r"pip install 'kestrel-mq\[cluster\]'"):
        BlockingClient(SETS)
    assert parse_single_server_set(["mq1"]) is None


# Addresses.


def test_addresses_are_those_of_the_protocol_each_once() -> None:
    a, b = Address("a", 1), Address("b", 2)
    both = Member(a, {"memcache": a, "thrift": b})
    text = Member(Address("c", 3), {"text": Address("c", 3)})
    foreign = Member(Address("d", 4), {})
    told = Members((text, both, both, foreign), (Member(b, {"memcache": a}), text))
    assert addresses_of(told, "memcache") == ((a, Address("d", 4)), (a,))
    assert addresses_of(told, "thrift") == ((b, Address("d", 4)), ())
    assert addresses_of(told, "memcache").all == (a, Address("d", 4))


# Following.


def test_server_set_is_followed_at_first_use(sets: FakeSets) -> None:
    followed = follow(sets)
    assert followed.known is None and not sets.followers
    sets.at_each_wait = lambda: sets.become(members("a:1"))
    assert followed.wait().reads == (Address("a", 1),)
    assert sets.waited_s == [7.0] and len(sets.followers) == 1
    assert followed.known is followed.wait() is followed.known


def test_unreachable_zookeeper_is_an_error_and_is_retried(sets: FakeSets) -> None:
    followed = follow(sets)
    for _ in range(2):
        with pytest.raises(NoServer, match="zk1: Connection refused"):
            followed.wait()
    sets.become(members("a:1"))
    assert followed.wait().writes == (Address("a", 1),)
    assert len(sets.followers) == 1


def test_changes_are_seen_without_waiting(sets: FakeSets) -> None:
    followed = follow(sets)
    sets.become(members("a:1"))
    followed.wait()
    sets.become(members("b:1", writes=["c:1"]))
    assert followed.known == followed.wait() == ((Address("b", 1),), (Address("c", 1),))
    assert not sets.waited_s


def test_forked_process_follows_the_set_itself(sets: FakeSets, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = follow(sets)
    sets.become(members("a:1"))
    followed.wait()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert followed.known is None
    followed.close()
    assert not sets.followers[0].is_closed
    assert followed.wait().reads == (Address("a", 1),)
    assert len(sets.followers) == 2
    followed.close()
    assert [follower.is_closed for follower in sets.followers] == [False, True]


def test_closed_follower_can_be_used_again(sets: FakeSets) -> None:
    followed = follow(sets)
    sets.become(members("a:1"))
    followed.wait()
    followed.close()
    followed.close()
    assert followed.known is None
    assert followed.wait().reads == (Address("a", 1),)
    assert [follower.is_closed for follower in sets.followers] == [True, False]


# The blocking client of a server set.


def make_client(sets: FakeSets, monkeypatch: pytest.MonkeyPatch, protocol: Any = "memcache") -> BlockingClient:
    def followed(uri: Any, protocol: str, timeout_s: float) -> FollowedServers:
        return FollowedServers(uri, protocol, timeout_s, sets.follow)

    monkeypatch.setattr("kestrel.client.members.FollowedServers", followed)
    return BlockingClient(SETS, protocol, timeout_s=PATIENCE_S)


@pytest.fixture
def client(sets: FakeSets, monkeypatch: pytest.MonkeyPatch) -> BlockingClient:
    return make_client(sets, monkeypatch)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    with Processes(tmp_path) as processes:
        yield [processes.serve(f'queuePath = "queues{number}"\n') for number in range(2)]


def test_puts_use_the_write_set_and_gets_the_read_set(client: BlockingClient, sets: FakeSets) -> None:
    with scripted(talk((GET, END))) as reads, scripted(talk((PUT, STORED))) as writes, client:
        sets.become(members(reads.address, writes=[writes.address]))
        assert client.put("work", b"a")
        assert client.get("work") is None


def test_administration_uses_both_sets(client: BlockingClient, sets: FakeSets) -> None:
    version = talk((b"version\r\n", b"VERSION 1\r\n"))
    with scripted(version) as reads, scripted(version) as writes, client:
        sets.become(members(reads.address, writes=[writes.address]))
        assert client.version() == {reads.address: "1", writes.address: "1"}


def test_empty_set_is_named_in_the_error(client: BlockingClient, sets: FakeSets) -> None:
    sets.become(Members((member("a:1", "thrift"),), ()))
    with pytest.raises(
        CannotConnect, match="no server that speaks memcache is in the read set of zk://zk1:2181/services"
    ):
        client.get("work", timeout=5)
    with pytest.raises(NoServer, match="is in the write set of zk://zk1:2181/services/kestrel"):
        client.put_many("work", [b"a"])
    with pytest.raises(NoServer, match="is in the sets of"):
        client.flush("work")
    with pytest.raises(NoServer, match="is in the read set of"):
        list(client.monitor("work", 1))


def test_removed_server_is_not_asked_and_its_connection_ends(client: BlockingClient, sets: FakeSets) -> None:
    with scripted(talk_and_stay((PUT, STORED))) as one, scripted(talk((PUT, STORED))) as two, client:
        sets.become(members(one.address))
        assert client.put("work", b"a")
        sets.become(members(two.address))
        assert client.put("work", b"a")
        one.wait_until_over()


def test_refused_put_goes_to_a_new_server(client: BlockingClient, sets: FakeSets) -> None:
    with scripted(talk((PUT, STORED))) as two:

        def refuse(connection: Any) -> None:
            sets.become(members(two.address))
            talk((PUT, READ_ONLY))(connection)

        with scripted(refuse) as one, client:
            sets.become(members(one.address))
            assert client.put("work", b"a")


def test_waiting_get_continues_at_a_new_server(client: BlockingClient, sets: FakeSets) -> None:
    with scripted(talk((b"get work/t=1000\r\n", ITEM))) as two:

        def leave(connection: Any) -> None:
            talk((GET, END), (b"get work/t=1000\r\n", b""))(connection)
            sets.become(members(two.address))
            connection.sendall(END)  # as a stopping server does for all waiters

        with scripted(leave) as one, client:
            sets.become(members(one.address))
            assert client.get("work", timeout=2) == b"a"


def test_item_of_a_removed_server_is_confirmed(client: BlockingClient, sets: FakeSets) -> None:
    reliable_read = talk_and_stay((b"get work/open\r\n", ITEM), (b"confirm work 1\r\n", END))
    with scripted(reliable_read) as one, scripted(talk((GET, END))) as two, client:
        sets.become(members(one.address))
        with client.reliable_get("work") as item:
            assert item == b"a"
            sets.become(members(two.address))
            assert client.get("work") is None
        one.wait_until_over()


def test_thrift_item_of_removed_server_is_confirmed_elsewhere(
    servers: list[Server], sets: FakeSets, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = [f"127.0.0.1:{server.port_of('thrift')}" for server in servers]
    client = make_client(sets, monkeypatch, "thrift")
    sets.members = members(one, protocol="thrift")
    with client:
        client.put("work", b"a")
        with client.reliable_get("work") as item:
            assert item == b"a"
            sets.members = members(two, protocol="thrift")
            assert client.get("work") is None
            client._servers.pool.close()
        sets.members = members(one, protocol="thrift")
        assert client.get("work") is None


def test_thousands_of_changes_leave_no_state(client: BlockingClient, sets: FakeSets) -> None:
    with scripted(talk((PUT, STORED), (PUT, STORED))) as one, client:
        for number in range(1, 3000):
            sets.become(members(f"gone:{number}"))
            client._servers.wait_until_known()
        sets.become(members(one.address))
        assert client.put("work", b"a") and client.put("work", b"a")
        servers = client._servers
        assert len(servers.reads._backoffs) == len(servers.writes._backoffs) == len(servers.pool._idle) == 1
