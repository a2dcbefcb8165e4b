"""The present servers of a list and of a server set."""

from __future__ import annotations

import threading

import pytest

from kestrel.address import Address
from kestrel.cluster.follower import Members
from kestrel.cluster.member import READ, WRITE, Member
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.server_directory import ServerDirectory
from tests.child import join
from tests.spark.stream.fakes import SET, A, B, C, Followed, member


@pytest.fixture
def followed() -> Followed:
    return Followed()


def reads(followed: Followed, patience_s: float = 0) -> ServerDirectory:
    return ServerDirectory(SET, READ, patience_s, followed.follow)


def test_list_has_only_its_own_servers() -> None:
    named = ServerDirectory(None, READ, 0, fixed=(A, B))
    assert named.addresses() == (A, B)
    assert named.expects(B) and not named.expects(C)
    named.close()


def test_members_that_join_and_leave_are_followed(followed: Followed) -> None:
    present = reads(followed)
    followed.reads(A)
    assert present.addresses() == (A,)
    followed.reads(B, A)
    assert present.addresses() == (B, A)
    followed.reads(B)
    assert present.addresses() == (B,)
    assert present.expects(A)


def test_gets_and_puts_have_separate_sets(followed: Followed) -> None:
    followed.reads(A)
    followed.writes(B)
    assert reads(followed).addresses() == (A,)
    assert ServerDirectory(SET, WRITE, 0, followed.follow).addresses() == (B,)


def test_member_without_thrift_is_ignored_and_an_address_counts_once(followed: Followed) -> None:
    foreign = Member(Address("c", 2229), {})
    memcache = Member(Address("b", 22133), {"memcache": Address("b", 22133)})
    followed.members = Members((member(A), memcache, foreign, member(A)))
    assert reads(followed).addresses() == (A, C)


def test_set_is_followed_only_between_first_use_and_close(followed: Followed) -> None:
    followed.reads(A)
    present = reads(followed)
    present.close()
    assert followed.followers == 0
    present.addresses()
    present.addresses()
    assert followed.followers == 1
    present.close()
    present.close()
    assert followed.followers == 0


def test_first_use_waits_for_zookeeper(followed: Followed) -> None:
    present = reads(followed, 60)

    def come() -> None:
        followed.reads()
        followed.reads(A)

    coming = threading.Thread(target=come, daemon=True)
    present.known()
    coming.start()
    assert present.addresses() == (A,)
    join(coming)


def test_unreachable_zookeeper_is_reported_without_the_password(followed: Followed) -> None:
    with pytest.raises(SourceFailed) as caught:
        reads(followed, 0.01).addresses()
    assert str(caught.value) == (
        "zk://zk1:2181/services/kestrel is not known after 10ms (patience): Connection refused. The driver and "
        "every worker must be able to reach ZooKeeper; without it, name the servers: "
        'option("servers", "mq1,mq2")'
    )


def test_empty_set_is_reported_with_the_way_out(followed: Followed) -> None:
    followed.members = Members((Member(Address("b", 22133), {"memcache": Address("b", 22133)}),))
    with pytest.raises(SourceFailed) as caught:
        reads(followed, 0.01).addresses()
    assert str(caught.value) == (
        "after 10ms (patience) there is no server in zk://zk1:2181/services/kestrel/read that speaks thrift: "
        "configure that path on the servers, and check that their status is Up"
    )


def test_empty_set_is_still_known(followed: Followed) -> None:
    present = reads(followed)
    assert not present.is_known(0) and present.known() == ()
    followed.reads()
    assert present.is_known(0) and present.known() == ()
