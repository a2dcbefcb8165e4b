"""The endpoints of the server: valid and invalid ones, and their descriptions."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.testing import MemoryReactorClock, StringTransport

from kestrel.server.endpoints import describe, parse_endpoint
from kestrel.server.startup_errors import CannotServe


@pytest.mark.parametrize(
    ("protocol", "address", "told"),
    [
        ("memcache", IPv4Address("TCP", "0.0.0.0", 22133), "0.0.0.0:22133"),
        ("admin", IPv4Address("TCP", "127.0.0.1", 2223), "http://127.0.0.1:2223/"),
        ("admin", IPv4Address("TCP", "0.0.0.0", 2223), "http://localhost:2223/"),
        ("admin", IPv6Address("TCP", "::", 2223), "http://localhost:2223/"),
        ("admin", IPv6Address("TCP", "::1", 2223), "http://[::1]:2223/"),
        ("admin", UNIXAddress(b"/run/kestrel/admin.sock"), "/run/kestrel/admin.sock"),
    ],
)
def test_ports_are_described_by_address_or_url(
    protocol: str, address: IAddress, told: str
) -> None:
    port = StringTransport(hostAddress=address)  # of a port, only getHost is asked
    assert describe(port, protocol) == told  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", ["ssl:0:privateKey=/nosuch.pem", "reloadtls:0:certKey=/nosuch.pem"])
def test_a_file_that_cannot_be_read_is_named(endpoint: str) -> None:
    with pytest.raises(CannotServe) as failed:
        parse_endpoint(MemoryReactorClock(), endpoint)
    assert str(failed.value).endswith(": cannot read /nosuch.pem: No such file or directory")


@pytest.mark.parametrize("interface", ["", "127.0.0.1", r"\:\:1", "localhost", "mq-1.example.org"])
def test_an_address_or_host_name_can_be_listened_on(interface: str) -> None:
    parse_endpoint(MemoryReactorClock(), f"tcp:65535:interface={interface}")


@pytest.mark.parametrize("endpoint", ["tcp:65536", "tcp:1:interface=foo bar", "tcp:1:interface=999.1.1.1"])
def test_an_invalid_port_or_address_is_refused_before_listening(endpoint: str) -> None:
    with pytest.raises(CannotServe, match=r"65536 is not a port|is not an address to listen on"):
        parse_endpoint(MemoryReactorClock(), endpoint)
