"""The data of a server in a server set."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.address import Address
from kestrel.cluster.member import MAX_MEMBER_BYTES, Member, parse_member

MEMBER = Member(
    Address("192.0.2.1", 22133),
    {"memcache": Address("192.0.2.1", 22133), "thrift": Address("192.0.2.1", 2229), "text": Address("mq1", 2222)},
)


def test_json_is_that_of_twitters_server_sets() -> None:
    assert MEMBER.to_json() == (
        b'{"serviceEndpoint": {"host": "192.0.2.1", "port": 22133}, "additionalEndpoints": '
        b'{"memcache": {"host": "192.0.2.1", "port": 22133}, "thrift": {"host": "192.0.2.1", "port": 2229}, '
        b'"text": {"host": "mq1", "port": 2222}}, "status": "ALIVE"}'
    )


hosts = st.from_regex(r"[\w.:-]{1,40}", fullmatch=True)
addresses = st.builds(Address, hosts, st.integers(1, 65535))


@given(st.builds(Member, addresses, st.dictionaries(st.text(), addresses)))
def test_written_member_can_be_read(member: Member) -> None:
    assert parse_member(member.to_json()) == member


def test_unknown_fields_are_ignored() -> None:
    said = json.loads(MEMBER.to_json()) | {"shard": 3, "metadata": {"a": "b"}}
    assert parse_member(json.dumps(said).encode()) == MEMBER


def test_main_endpoint_is_used_if_a_member_names_no_protocol() -> None:
    member = parse_member(b'{"serviceEndpoint": {"host": "a", "port": 1}, "additionalEndpoints": {}}')
    assert member.address_of("thrift") == Address("a", 1)
    assert MEMBER.address_of("thrift") == Address("192.0.2.1", 2229)
    assert MEMBER.address_of("http") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"{}",
        b'{"serviceEndpoint": {"host": "", "port": 1}}',
        b'{"serviceEndpoint": {"host": "a b", "port": 1}}',
        b'{"serviceEndpoint": {"host": "a\\n", "port": 1}}',
        b'{"serviceEndpoint": {"host": "a", "port": true}}',
        b'{"serviceEndpoint": {"host": "a", "port": 0}}',
        b'{"serviceEndpoint": {"host": "a", "port": 65536}}',
        b'{"serviceEndpoint": {"host": "a", "port": "1"}}',
        b'{"serviceEndpoint": {"host": "a", "port": 1}, "status": "DEAD"}',
        b'{"serviceEndpoint": {"host": "a", "port": 1}, "additionalEndpoints": [1]}',
        b'{"serviceEndpoint": {"host": "a", "port": 1}, "additionalEndpoints": {"thrift": 1}}',
        b'{"serviceEndpoint": {"host": "a", "port": 1}}' + b" " * MAX_MEMBER_BYTES,
        b"[" * MAX_MEMBER_BYTES,
        b"\xff",
    ],
)
def test_invalid_member_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_member(data)
