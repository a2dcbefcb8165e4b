"""Where a server set says that this server is: one address for each protocol, which others can connect to.

Imports ifaddr, which comes with the extra cluster: `require_kazoo` first.
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
"""The first of them that is served is the main endpoint."""

_NAME: Final = re.compile(r"[\w.-]+")
_ADVICE: Final = "say advertiseAddress in [zookeeper]"


def advertised_member(
    listening: Mapping[str, Sequence[Address]], advertise_address: str | None, host_addresses: Iterable[IPAddress]
) -> Member:
    """The member that this server is, by protocol where it listens, and the addresses that this host has.

    Of several addresses of a protocol the first counts that is not this machine's alone. `advertise_address` stands for
    the host of all of them. Without it a wildcard is the first address of the host that others may reach. Raises
    `CannotServe` where clients would be sent to what they cannot reach.
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
        # By IPv6's wildcard those of IPv4 are heard as well.
        if not (each.is_loopback or each.is_link_local) and (address.version == 6 or each.version == 4):
            return str(each)
    raise CannotServe(f"this host has no address that a server set could name: {_ADVICE}", EX_CONFIG)


def _is_loopback(host: str) -> bool:
    address = _parsed(host)
    return address is not None and address.is_loopback


def check_advertise_address(host: str) -> None:
    """Raise `CannotServe` unless that can stand for a host: a name, or a number."""
    address = _parsed(host)
    if address is not None and address.is_unspecified:
        raise CannotServe(f"advertiseAddress in [zookeeper] is no wildcard: nobody can connect to {host}", EX_CONFIG)
    if address is None and not _NAME.fullmatch(host):
        raise CannotServe(
            f"advertiseAddress in [zookeeper] is a host without a port, and not {host!r}: ports are as listened on",
            EX_CONFIG,
        )


def _parsed(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def addresses_of_host() -> Iterator[IPAddress]:
    """All addresses of this host, as the system lists its interfaces."""
    for adapter in ifaddr.get_adapters():
        for each in adapter.ips:
            yield ipaddress.ip_address(each.ip if isinstance(each.ip, str) else each.ip[0])
