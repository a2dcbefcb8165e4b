"""The addresses that a server advertises in a server set: one for each protocol, reachable by clients.

Imports ifaddr, which the extra `cluster` installs. Call `require_kazoo` first.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import ifaddr

from kestrel.address import Address
from kestrel.cluster.member import Member
from kestrel.server.startup_errors import EX_CONFIG, CannotServe

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

PROTOCOLS: Final = ("memcache", "thrift", "text")
"""Protocols in order of preference: the first one that is served becomes the main endpoint."""

_NAME: Final = re.compile(r"[\w.-]+")
_ADVICE: Final = "set advertiseAddress in [zookeeper]"


def advertised_member(
    listening: Mapping[str, Sequence[Address]], advertise_address: str | None, host_addresses: Iterable[IPAddress]
) -> Member:
    """Return the server set member for this server, from the addresses that it listens on and those of its host.

    A protocol with several addresses uses the first that is not a loopback address. `advertise_address` replaces the
    host of every address. Without it, a wildcard becomes the first address of the host that clients may reach. Raises
    `CannotServe` if clients could not reach the address.
    """
    hosts = list(host_addresses)
    endpoints = {}
    for protocol in PROTOCOLS:
        addresses = listening.get(protocol)
        if addresses:
            best = next((each for each in addresses if not _is_loopback(each.host)), addresses[0])
            endpoints[protocol] = Address(advertise_address or _advertised_host(best.host, hosts), best.port)
    if not endpoints:
        raise CannotServe("no protocol is served on a port that a server set could name", EX_CONFIG)
    return Member(next(iter(endpoints.values())), endpoints)


def _advertised_host(host: str, host_addresses: Iterable[IPAddress]) -> str:
    address = _parsed(host)
    if address is None:
        return host
    if _is_loopback(host):
        raise CannotServe(
            f"a server set would send clients to {host}, which is their own machine: "
            f"listen on another address, or {_ADVICE}",
            EX_CONFIG,
        )
    if not address.is_unspecified:
        return host
    for each in host_addresses:
        # A socket on the wildcard of IPv6 also accepts IPv4.
        if not (each.is_loopback or each.is_link_local) and (address.version == 6 or each.version == 4):
            return str(each)
    raise CannotServe(f"this host has no address that a server set could name: {_ADVICE}", EX_CONFIG)


def _is_loopback(host: str) -> bool:
    address = _parsed(host)
    return address is not None and address.is_loopback


def check_advertise_address(host: str) -> None:
    """Raise `CannotServe` unless `host` is a host name or an IP address that is not a wildcard."""
    address = _parsed(host)
    if address is not None and address.is_unspecified:
        raise CannotServe(
            f"advertiseAddress in [zookeeper] must not be a wildcard: no client can reach {host}", EX_CONFIG
        )
    if address is None and not _NAME.fullmatch(host):
        raise CannotServe(
            f"advertiseAddress in [zookeeper] must be a host without a port, not {host!r}: the server adds its ports",
            EX_CONFIG,
        )


def _parsed(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def addresses_of_host() -> Iterator[IPAddress]:
    """Yield all addresses of this host's network interfaces."""
    for adapter in ifaddr.get_adapters():
        for each in adapter.ips:
            yield ipaddress.ip_address(each.ip if isinstance(each.ip, str) else each.ip[0])
