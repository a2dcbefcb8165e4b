"""Creation of the announcer from the configuration, and the addresses that the server advertises.

Imports kazoo and ifaddr, which the extra `cluster` installs. Call `require_kazoo` first.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

import ifaddr
from twisted.internet.interfaces import IReactorTime

from kestrel.address import Address
from kestrel.cluster.member import SERVER_SETS, Member
from kestrel.cluster.uri import ServerSetUri, parse_hosts
from kestrel.cluster.zookeeper import zookeeper_client
from kestrel.config.model import ZooKeeperSettings
from kestrel.server.announcer import Announcer, IServerSet, run_in_daemon_thread
from kestrel.server.server_set import ServerSet, acl_of
from kestrel.server.startup_errors import EX_CONFIG, CannotServe
from kestrel.tls import TlsOptions

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

PROTOCOLS: Final = ("memcache", "thrift", "text")
"""Protocols in order of preference: the first one that is served becomes the main endpoint."""

_NAME: Final = re.compile(r"[\w.-]+")
_ADVICE: Final = "set advertiseAddress in [zookeeper]"

MIN_SESSION_MS: Final = 100
MAX_SESSION_MS: Final = 24 * 60 * 60 * 1000
"""Longest session timeout that can be configured. ZooKeeper may grant another one."""


def check_zookeeper(settings: ZooKeeperSettings) -> None:
    """Raise `CannotServe` for invalid settings, without connecting to ZooKeeper."""
    _uri_of(settings)
    if not MIN_SESSION_MS <= settings.session_timeout_ms <= MAX_SESSION_MS:
        raise CannotServe("sessionTimeout in [zookeeper] must be from 100ms to 1d", EX_CONFIG)
    if settings.advertise_address is not None:
        check_advertise_address(settings.advertise_address)
    for name in (settings.client_initializer, settings.server_set_initializer):
        if name is not None:
            _named(name)


def make_announcer(
    settings: ZooKeeperSettings, member: Member, clock: IReactorTime, schedule: Callable[..., object]
) -> Announcer:
    """Create an announcer of `member`, without starting it. Raises `CannotServe`.

    `schedule` calls a function on the reactor's thread.
    """
    uri = _uri_of(settings)
    make_client = _client_of if settings.client_initializer is None else _named(settings.client_initializer)
    make_set = _server_set if settings.server_set_initializer is None else _named(settings.server_set_initializer)
    try:
        client = make_client(settings)
        sets = {name: make_set(settings, client, f"{uri.path}/{name}", member) for name in SERVER_SETS}
    except Exception as error:  # a custom initializer may raise any exception
        reason = str(error) or type(error).__name__
        raise CannotServe(f"cannot create ZooKeeper's client: {reason}", EX_CONFIG) from error
    _check_methods(client, "clientInitializer", "add_listener", "start_async", "stop", "close")
    for each in sets.values():
        _check_methods(each, "serverSetInitializer", "join", "leave")
    return Announcer(client, sets, str(uri), clock, run_in_daemon_thread(schedule), schedule)


def _check_methods(made: object, maker: str, *names: str) -> None:
    missing = [name for name in names if not callable(getattr(made, name, None))]
    if missing:
        raise CannotServe(
            f"the object that {maker} in [zookeeper] returns has no {' and no '.join(missing)}", EX_CONFIG
        )


def _uri_of(settings: ZooKeeperSettings) -> ServerSetUri:
    try:
        hosts = parse_hosts(settings.host, settings.port)
    except ValueError as error:
        raise CannotServe(f"host in [zookeeper]: {error}", EX_CONFIG) from error
    if settings.acl == "everyone-read-creator-all" and settings.credentials is None:
        raise CannotServe(f'acl = "{settings.acl}" in [zookeeper] needs credentials, which are the creator', EX_CONFIG)
    return ServerSetUri(hosts, settings.path_prefix, settings.credentials, _tls_of(settings))


def _tls_of(settings: ZooKeeperSettings) -> TlsOptions | None:
    files = (settings.ca_file, settings.cert_file, settings.key_file, settings.server_name)
    if not settings.tls:
        if any(files):
            raise CannotServe(
                "caFile, certFile, keyFile and serverName in [zookeeper] have no effect without tls = true", EX_CONFIG
            )
        return None
    options = TlsOptions(*files)
    try:
        options.context()
    except OSError as error:
        reason = f"cannot use {error.filename}, named in [zookeeper]: {error.strerror}"
        raise CannotServe(reason, EX_CONFIG) from error
    except ValueError as error:
        raise CannotServe(f"keyFile in [zookeeper] has no effect without certFile: {error}", EX_CONFIG) from error
    return options


def _client_of(settings: ZooKeeperSettings) -> Any:
    """Create the client of the built-in ``clientInitializer``."""
    uri = _uri_of(settings)
    session_timeout_s = settings.session_timeout_ms / 1000
    acl = acl_of(settings.acl)
    return zookeeper_client(uri.hosts, session_timeout_s, credentials=uri.credentials, acl=acl, tls=uri.tls)


def _server_set(_: ZooKeeperSettings, client: Any, path: str, member: Member) -> IServerSet:
    """Create the server set of the built-in ``serverSetInitializer``."""
    return ServerSet(client, path, member)


def _named(name: str) -> Any:
    """Import the callable with a dotted name. Raises `CannotServe`."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # importing runs the module, which may raise any exception
        raise CannotServe(f"cannot import {name}, named in [zookeeper]: {error}", EX_CONFIG) from error
    if not callable(found):
        raise CannotServe(f"{name}, named in [zookeeper], is not callable", EX_CONFIG)
    return found


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
