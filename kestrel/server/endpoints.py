"""Where the server listens."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import quoteStringArgument, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.python.failure import Failure

from kestrel.address import Address
from kestrel.config.model import Config
from kestrel.net.codec_factories import CODEC_FACTORIES
from kestrel.net.tls_endpoint import TlsServerEndpoint
from kestrel.server.startup_errors import EX_CONFIG, EX_UNAVAILABLE, CannotServe

ADMIN: Final = "admin"
"""What is listened on besides the protocols."""

SERVED: Final = (*CODEC_FACTORIES, ADMIN)

_LAST_PORT: Final = 65535
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?")
_NUMBERS: Final = re.compile(r"[0-9.]+")


def endpoints_to_serve(config: Config, given: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The endpoint strings of each protocol, and of the admin port: those that are given, or its configured port."""
    everybodys, admins = config.listen_address, config.admin.listen_address
    ports = {
        "memcache": (config.memcache_listen_port, everybodys),
        "text": (config.text_listen_port, everybodys),
        "thrift": (config.thrift_listen_port, everybodys),
        ADMIN: (config.admin.http_port, admins),
    }
    return {
        each: list(given.get(each, ())) or _configured(port, address, config)
        for each, (port, address) in ports.items()
    }


def _configured(port: int | None, address: str, config: Config) -> list[str]:
    if port is None:
        return []
    arguments = {"interface": address, "backlog": str(config.connection_backlog)}
    prefix = "tcp"
    tls = config.tls
    if tls is not None:
        prefix = "reloadtls" if tls.ca_file is None else "mtls"
        files = {"certKey": tls.cert_file, "privateKey": tls.key_file, "caCerts": tls.ca_file}
        arguments |= {name: file for name, file in files.items() if file is not None}
        arguments["minimum"] = tls.minimum_version
    return [":".join([prefix, str(port), *(f"{name}={quoteStringArgument(each)}" for name, each in arguments.items())])]


def is_plain_tcp(endpoint: str) -> bool:
    """Whether nothing but TCP can be meant: what Twisted listens on by `listenTCP` or `adoptStreamPort` alone.

    What systemd has opened may be a Unix socket as well, which the hub's `adoptStreamPort` leaves to the reactor.
    """
    return endpoint.partition(":")[0].lower() in ("tcp", "tcp6", "systemd")


def parse_endpoint(reactor: Any, endpoint: str) -> IStreamServerEndpoint:
    """What an endpoint string means; raises `CannotServe`."""
    try:
        server: IStreamServerEndpoint = serverFromString(reactor, endpoint)
    except OSError as error:  # a file that it names, of a certificate or a key, cannot be read
        name = error.filename
        reason = f"{os.fsdecode(name)} cannot be read: {error.strerror}" if isinstance(name, str | bytes) else error
        raise CannotServe(f"{endpoint!r} cannot be listened on: {reason}", EX_CONFIG) from error
    except Exception as error:  # endpoint parsers, plugins among them, raise what they like
        if isinstance(error, LookupError) and endpoint.startswith("systemd:"):
            sentence = f"{endpoint!r} is none of the sockets that systemd gave this process"
        else:
            sentence = f"{endpoint!r} is no endpoint that can be listened on ({error}); write it as in tcp:22133"
        raise CannotServe(sentence, EX_CONFIG) from error
    _check_place(server, endpoint)
    return server


def _check_place(server: IStreamServerEndpoint, endpoint: str) -> None:
    """Raise `CannotServe` where there can be no such port, or no such address. Names of hosts are not looked up."""
    while isinstance(server, TlsServerEndpoint):
        server = server.inner
    # What Twisted's own endpoints know of themselves, and do not tell.
    port, interface = getattr(server, "_port", None), getattr(server, "_interface", None)
    if isinstance(port, int) and not 0 <= port <= _LAST_PORT:
        raise CannotServe(f"{endpoint!r}: {port} is no port; it is a number from 0 to {_LAST_PORT}", EX_CONFIG)
    if isinstance(interface, str) and not _is_address(interface):
        raise CannotServe(
            f"{endpoint!r}: {interface!r} is no address to listen on; write it as in 127.0.0.1, or leave it out",
            EX_CONFIG,
        )


def _is_address(interface: str) -> bool:
    if not interface or isIPAddress(interface) or isIPv6Address(interface):
        return True
    return _HOST_NAME.fullmatch(interface) is not None and not _NUMBERS.fullmatch(interface)


def listen(
    server: IStreamServerEndpoint, protocol: str, endpoint: str, factory: IProtocolFactory
) -> Deferred[IListeningPort]:
    """Listen on what an endpoint string means. Fails with `CannotServe`, which says what to change for the protocol."""

    def failed(failure: Failure) -> Failure:
        error = failure.value
        cause = error.socketError if isinstance(error, CannotListenError) else error
        reason = getattr(cause, "strerror", None) or cause
        setting = "httpPort in [admin]" if protocol == ADMIN else f"{protocol}ListenPort"
        way_out = f"change {setting}, or name another endpoint with --{protocol}"
        return Failure(CannotServe(f"cannot listen on {endpoint}: {reason}; {way_out}", EX_UNAVAILABLE))

    listening: Deferred[IListeningPort] = server.listen(factory)
    return listening.addErrback(failed)


def use_backlog(port: IListeningPort, endpoint: str, backlog: int) -> None:
    """Set how many connections may wait to be accepted, unless the endpoint string or systemd has set it.

    Twisted's endpoints, and plugins, have small defaults of their own. A second `listen` replaces them.
    """
    listening = getattr(port, "socket", None)
    if isinstance(listening, socket.socket) and "backlog=" not in endpoint and not endpoint.startswith("systemd:"):
        listening.listen(backlog)


def port_number(port: IListeningPort) -> int | None:
    """The number of a TCP port, also one that the system has picked; None for what has no number."""
    return getattr(port.getHost(), "port", None)


def describe(port: IListeningPort) -> str:
    """Where that port listens, for a person."""
    address = port.getHost()
    host, number = getattr(address, "host", None), port_number(port)
    if host is not None and number is not None:
        return str(Address(host, number))
    name = getattr(address, "name", None)
    return str(address) if name is None else os.fsdecode(name)
