"""The address that a server announces in server sets."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from kestrel.address import Address
from kestrel.server.startup_errors import CannotServe
from kestrel.server.zookeeper import addresses_of_host, advertised_member, check_advertise_address

HOST = [ip_address(each) for each in ("127.0.0.1", "169.254.7.7", "fe80::1", "fd00::2", "192.0.2.2", "192.0.2.3")]


def test_first_protocol_of_the_list_is_the_main_endpoint() -> None:
    listening = {"text": [Address("192.0.2.9", 3)], "thrift": [Address("192.0.2.9", 2)]}
    listening["memcache"] = [Address("mq1", 1)]
    member = advertised_member(listening, None, [])
    assert member.service == Address("mq1", 1)
    assert member.additional == {protocol: address for protocol, [address] in listening.items()}
    del listening["memcache"]
    assert advertised_member(listening, None, []).service == Address("192.0.2.9", 2)


@pytest.mark.parametrize(("wildcard", "told"), [("0.0.0.0", "192.0.2.2"), ("::", "fd00::2")])
def test_wildcard_is_replaced_by_the_first_reachable_address(wildcard: str, told: str) -> None:
    assert advertised_member({"memcache": [Address(wildcard, 1)]}, None, HOST).service == Address(told, 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_address_is_refused_with_the_way_out(host: str) -> None:
    with pytest.raises(CannotServe, match="their own machine: listen on another address, or set advertiseAddress"):
        advertised_member({"memcache": [Address("192.0.2.2", 1)], "thrift": [Address(host, 2)]}, None, HOST)


def test_first_address_that_is_no_loopback_is_used() -> None:
    listening = {"memcache": [Address("127.0.0.1", 1), Address("0.0.0.0", 2), Address("192.0.2.9", 3)]}
    assert advertised_member(listening, None, HOST).service == Address("192.0.2.2", 2)


@pytest.mark.parametrize("host", ["mq1", "mq1.example", "192.0.2.1", "fd00::2"])
def test_host_can_be_advertised(host: str) -> None:
    check_advertise_address(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_wildcard_cannot_be_advertised(host: str) -> None:
    with pytest.raises(CannotServe, match="no client can reach"):
        check_advertise_address(host)


@pytest.mark.parametrize("host", ["192.0.2.1:22133", "mq1:1", "a b", "tcp://mq1", "[::1]"])
def test_invalid_host_cannot_be_advertised(host: str) -> None:
    with pytest.raises(CannotServe, match="must be a host without a port"):
        check_advertise_address(host)


def test_host_without_an_address_is_refused_with_the_way_out() -> None:
    with pytest.raises(CannotServe, match="no address that a server set could name: set advertiseAddress"):
        advertised_member({"memcache": [Address("0.0.0.0", 1)]}, None, HOST[:4])


def test_advertised_address_replaces_all_hosts_but_no_port() -> None:
    listening = {"memcache": [Address("127.0.0.1", 1)], "thrift": [Address("0.0.0.0", 2)]}
    member = advertised_member(listening, "mq1.example", [])
    assert member.additional == {"memcache": Address("mq1.example", 1), "thrift": Address("mq1.example", 2)}


def test_server_without_ports_is_refused() -> None:
    with pytest.raises(CannotServe, match="no protocol is served on a port"):
        advertised_member({}, "mq1", HOST)


def test_this_host_has_addresses() -> None:
    assert any(address.is_loopback for address in addresses_of_host())
