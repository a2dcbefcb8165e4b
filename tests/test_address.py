"""Server addresses."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

from kestrel.address import DEFAULT_PORTS, Address, parse_address, show_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("mq1", "mq1", 22133),
        ("mq1.example.org:1", "mq1.example.org", 1),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]", "::1", 22133),
        ("[fe80::1%eth0]:2229", "fe80::1%eth0", 2229),
    ],
)
def test_address_has_a_host_and_an_optional_port(text: str, host: str, port: int) -> None:
    assert parse_address(text, DEFAULT_PORTS["memcache"]) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":1", "mq1:", "mq1:0", "mq1:65536", "mq1:port", "::1", "[::1", "a b", "tls://mq1", "mq1?tls", "mq1:1\n"],
)
def test_invalid_address_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (address|port)"):
        parse_address(text, 1)


@pytest.mark.parametrize("text", ["mq1:1", "[::1]:2229"])
def test_address_is_formatted_as_written(text: str) -> None:
    assert str(parse_address(text, 9)) == text


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (IPv4Address("TCP", "127.0.0.1", 22133), "127.0.0.1:22133"),
        (IPv6Address("TCP", "::1", 22133), "[::1]:22133"),
        (UNIXAddress(b"/run/kestrel/admin.sock"), "/run/kestrel/admin.sock"),
        (UNIXAddress(b""), "a Unix socket"),
        (UNIXAddress(None), "a Unix socket"),
    ],
)
def test_socket_address_is_shown_as_clients_write_it(address: object, shown: str) -> None:
    assert show_address(address) == shown
