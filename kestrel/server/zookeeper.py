"""Creation of the announcer from the configuration. Imports kazoo; call `require_kazoo` first."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from kestrel.cluster.member import SERVER_SETS, Member
from kestrel.cluster.uri import ServerSetUri, parse_hosts
from kestrel.cluster.zookeeper import zookeeper_client
from kestrel.config.model import ZooKeeperSettings
from kestrel.server.advertised_member import check_advertise_address
from kestrel.server.announcer import Announcer, run_in_daemon_thread
from kestrel.server.interfaces import IServerSet
from kestrel.server.server_set import ServerSet, acl_of
from kestrel.server.startup_errors import EX_CONFIG, CannotServe
from kestrel.tls import TlsOptions

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


def make_announcer(settings: ZooKeeperSettings, member: Member, reactor: Any) -> Announcer:
    """Create an announcer of `member`, without starting it. Raises `CannotServe`."""
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
    schedule = reactor.callFromThread
    return Announcer(client, sets, str(uri), reactor, run_in_daemon_thread(schedule), schedule)


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
