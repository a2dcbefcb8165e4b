"""How a person is told where the server listens."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.testing import StringTransport

from kestrel.server.endpoints import describe


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (IPv4Address("TCP", "127.0.0.1", 22133), "127.0.0.1:22133"),
        (IPv6Address("TCP", "::1", 22133), "[::1]:22133"),
        (UNIXAddress(b"/run/kestrel/admin.sock"), "/run/kestrel/admin.sock"),
    ],
    ids=["IPv4", "IPv6", "UNIX"],
)
def test_where_it_listens_is_told_as_clients_would_write_it(address: IAddress, told: str) -> None:
    port = StringTransport(hostAddress=address)  # of a port, only getHost is asked
    assert describe(port) == told  # type: ignore[arg-type]
