"""A server in a set of a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError
from zope.interface.verify import verifyObject

from kestrel.address import Address
from kestrel.cluster.member import Member
from kestrel.cluster.uri import parse_hosts
from kestrel.cluster.zookeeper import zookeeper_client
from kestrel.server.announcer import IServerSet
from kestrel.server.server_set import ServerSet, acl_of
from tests.child import PATIENCE_S
from tests.cluster.zookeeper import ZooKeeper


def member(number: int) -> Member:
    return Member(Address("192.0.2.1", number), {"memcache": Address("192.0.2.1", number)})


@contextmanager
def session(zookeeper: ZooKeeper, **options: Any) -> Iterator[Any]:
    client = zookeeper_client(parse_hosts(zookeeper.hosts), PATIENCE_S, **options)
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def members(zookeeper: ZooKeeper, path: str) -> list[int]:
    """Return the ports of the members."""
    client = zookeeper.client
    client.sync(path)
    data = [client.get(f"{path}/{node}")[0] for node in sorted(client.get_children(path))]
    return [json.loads(each)["serviceEndpoint"]["port"] for each in data]


def test_member_is_listed_once_under_kestrels_name(zookeeper: ZooKeeper, prefix: str) -> None:
    with session(zookeeper) as client:
        server_set = ServerSet(client, f"{prefix}/read", member(1))
        assert verifyObject(IServerSet, server_set)
        server_set.leave()
        server_set.join()
        server_set.join()
        assert zookeeper.client.get_children(f"{prefix}/read") == ["member_0000000000"]
        assert members(zookeeper, f"{prefix}/read") == [1]
        server_set.leave()
        server_set.leave()
        assert members(zookeeper, f"{prefix}/read") == []


def test_member_ends_with_its_session(zookeeper: ZooKeeper, prefix: str) -> None:
    with session(zookeeper) as client:
        ServerSet(client, f"{prefix}/read", member(1)).join()
    assert members(zookeeper, f"{prefix}/read") == []


def test_node_of_an_earlier_session_is_removed_and_others_stay(
    zookeeper: ZooKeeper, prefix: str
) -> None:
    path = f"{prefix}/write"
    with session(zookeeper) as killed, session(zookeeper) as other, session(zookeeper) as again:
        ServerSet(killed, path, member(1)).join()
        ServerSet(other, path, member(2)).join()
        zookeeper.client.create(f"{path}/member_", b"no member at all", sequence=True)
        zookeeper.client.create(f"{path}/somebody's", b"{}")
        server_set = ServerSet(again, path, member(1))
        server_set.join()
        data = [zookeeper.client.get(f"{path}/{node}") for node in zookeeper.client.get_children(path)]
        owners = {stat.ephemeralOwner for each, stat in data if each == member(1).to_json()}
        assert owners == {again.client_id[0]}
        assert len(data) == 4
        server_set.leave()
        assert len(zookeeper.client.get_children(path)) == 3


def test_removed_member_is_added_again(zookeeper: ZooKeeper, prefix: str) -> None:
    with session(zookeeper) as client:
        server_set = ServerSet(client, f"{prefix}/read", member(1))
        server_set.join()
        zookeeper.client.delete(prefix, recursive=True)
        server_set.join()
        assert members(zookeeper, f"{prefix}/read") == [1]
        server_set.join()
        assert members(zookeeper, f"{prefix}/read") == [1]


def test_check_reads_only_its_own_node(
    zookeeper: ZooKeeper, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(zookeeper) as client:
        joined, left = (ServerSet(client, f"{prefix}/{name}", member(1)) for name in ("read", "write"))
        joined.join()
        left.leave()
        monkeypatch.setattr(client, "get_children", None)
        joined.join()
        left.leave()
        joined.leave()
        assert members(zookeeper, f"{prefix}/read") == []


def test_changed_member_is_replaced(zookeeper: ZooKeeper, prefix: str) -> None:
    with session(zookeeper) as client:
        ServerSet(client, f"{prefix}/read", Member(Address("192.0.2.1", 1), {})).join()
        ServerSet(client, f"{prefix}/read", member(1)).join()
        [node] = zookeeper.client.get_children(f"{prefix}/read")
        assert zookeeper.client.get(f"{prefix}/read/{node}")[0] == member(1).to_json()


def test_member_joins_again_after_its_session_expired(zookeeper: ZooKeeper, prefix: str) -> None:
    with session(zookeeper) as client:
        server_set = ServerSet(client, f"{prefix}/read", member(1))
        server_set.join()
        connected = client.handler.event_object()
        client.add_listener(lambda state: connected.set() if state == "CONNECTED" else None)
        zookeeper.expire(client)
        assert connected.wait(60)
        assert members(zookeeper, f"{prefix}/read") == []
        server_set.join()
        assert members(zookeeper, f"{prefix}/read") == [1]


def test_others_may_read_but_not_change_a_member_with_creator(zookeeper: ZooKeeper, prefix: str) -> None:
    path = f"{prefix}/read"
    with (
        session(zookeeper, credentials="kestrel:secret", acl=acl_of("everyone-read-creator-all")) as client,
        session(zookeeper, credentials="somebody:else") as other,
        session(zookeeper, credentials="kestrel:secret") as again,
    ):
        ServerSet(client, path, member(1)).join()
        [node] = other.get_children(path)
        assert other.get(f"{path}/{node}")[0] == member(1).to_json()
        with pytest.raises(NoAuthError):
            other.delete(f"{path}/{node}")
        with pytest.raises(NoAuthError):
            ServerSet(other, path, member(2)).join()
        ServerSet(again, path, member(1)).leave()
        assert client.get_children(path) == []


def test_list_of_access_entries_is_used_unchanged(zookeeper: ZooKeeper, prefix: str) -> None:
    acl = acl_of(("world:anyone:r", "digest:me:hash=:cdrwa"))
    assert [(each.perms, each.id.scheme, each.id.id) for each in acl] == [
        (1, "world", "anyone"),
        (31, "digest", "me:hash="),
    ]
    with session(zookeeper, acl=acl_of(("world:anyone:cdrwa",))) as client:
        ServerSet(client, f"{prefix}/read", member(1)).join()
        assert members(zookeeper, f"{prefix}/read") == [1]


def test_stale_member_that_cannot_be_removed_is_ignored(zookeeper: ZooKeeper, prefix: str) -> None:
    path = f"{prefix}/read"
    zookeeper.client.ensure_path(prefix)
    zookeeper.client.create(path, acl=acl_of(("world:anyone:cr",)))
    with session(zookeeper) as killed, session(zookeeper) as again:
        ServerSet(killed, path, member(1)).join()
        ServerSet(again, path, member(1)).join()
        assert members(zookeeper, path) == [1, 1]
