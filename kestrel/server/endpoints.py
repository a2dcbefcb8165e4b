"""The endpoints that the server listens on."""

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
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from kestrel.address import show_address
from kestrel.config.model import Config
from kestrel.net.queue_server import CODEC_FACTORIES
from kestrel.net.tls_endpoint import TlsServerEndpoint
from kestrel.server.startup_errors import EX_CONFIG, EX_UNAVAILABLE, CannotServe

ADMIN: Final = "admin"
"""Name of the admin port, which is listened on in addition to the protocols."""

SERVED: Final = (*CODEC_FACTORIES, ADMIN)

_LAST_PORT: Final = 65535
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?")
_EVERY_ADDRESS: Final = re.compile(r"^(0\.0\.0\.0|\[::\])(?=:)")
_NUMBERS: Final = re.compile(r"[0-9.]+")


def endpoints_to_serve(config: Config, given: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the endpoint strings of each protocol and of the admin port: those in `given`, or else of the
    configured port. The list of a protocol that is turned off is empty.
    """
    everybodys, admins = config.listen_address, config.admin.listen_address
    ports = {
        "memcache": (config.memcache_listen_port, everybodys),
        "text": (config.text_listen_port, everybodys),
        "thrift": (config.thrift_listen_port, everybodys),
        ADMIN: (config.admin.http_port, admins),
    }
    return {
        each: list(given.get(each, ())) or _configured(port, address, config) for each, (port, address) in ports.items()
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
    """Return True if Twisted listens on an endpoint only with `listenTCP` or `adoptStreamPort`.

    A socket from systemd may be a Unix socket; the hub's `adoptStreamPort` leaves these to the reactor.
    """
    return endpoint.partition(":")[0].lower() in ("tcp", "tcp6", "systemd")


def parse_endpoint(reactor: Any, endpoint: str) -> IStreamServerEndpoint:
    """Parse an endpoint string. Raises `CannotServe`."""
    try:
        server: IStreamServerEndpoint = serverFromString(reactor, endpoint)
    except OSError as error:  # a certificate or key file cannot be read
        name = error.filename
        reason = f"cannot read {os.fsdecode(name)}: {error.strerror}" if isinstance(name, str | bytes) else error
        raise CannotServe(f"cannot listen on {endpoint!r}: {reason}", EX_CONFIG) from error
    except Exception as error:  # endpoint parsers, including plugins, may raise any exception
        if isinstance(error, LookupError) and endpoint.startswith("systemd:"):
            sentence = f"{endpoint!r} is not one of the sockets that systemd passed to this process"
        else:
            sentence = f"{endpoint!r} is not a valid endpoint ({error}); write it like tcp:22133"
        raise CannotServe(sentence, EX_CONFIG) from error
    _check_place(server, endpoint)
    return server


def _check_place(server: IStreamServerEndpoint, endpoint: str) -> None:
    """Raise `CannotServe` for an invalid port or address. Host names are not looked up."""
    while isinstance(server, TlsServerEndpoint):
        server = server.inner
    # Twisted's endpoints have no public attributes for these.
    port, interface = getattr(server, "_port", None), getattr(server, "_interface", None)
    if isinstance(port, int) and not 0 <= port <= _LAST_PORT:
        raise CannotServe(f"{endpoint!r}: {port} is not a port; use a number from 0 to {_LAST_PORT}", EX_CONFIG)
    if isinstance(interface, str) and not _is_address(interface):
        raise CannotServe(
            f"{endpoint!r}: {interface!r} is not an address to listen on; write it like 127.0.0.1, or omit it",
            EX_CONFIG,
        )


def _is_address(interface: str) -> bool:
    if not interface or isIPAddress(interface) or isIPv6Address(interface):
        return True
    return _HOST_NAME.fullmatch(interface) is not None and not _NUMBERS.fullmatch(interface)


def listen(
    server: IStreamServerEndpoint, protocol: str, endpoint: str, factory: IProtocolFactory
) -> Deferred[IListeningPort]:
    """Listen on a parsed endpoint. Fails with `CannotServe`, whose message names the setting to change."""

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

    The defaults of Twisted's endpoints and of plugins are small. A second `listen` on the socket replaces them.
    """
    listening = getattr(port, "socket", None)
    if isinstance(listening, socket.socket) and "backlog=" not in endpoint and not endpoint.startswith("systemd:"):
        listening.listen(backlog)


def port_number(port: IListeningPort) -> int | None:
    """Return the number of a TCP port, even if the system chose it, or None for other kinds of port."""
    return getattr(port.getHost(), "port", None)


def describe(port: IListeningPort, protocol: str) -> str:
    """Return the address of a port for the log: of the admin port a URL that a browser on this machine can open."""
    where = show_address(port.getHost())
    if protocol != ADMIN or port_number(port) is None:
        return where
    scheme = "https" if isinstance(getattr(port, "factory", None), TLSMemoryBIOFactory) else "http"
    return f"{scheme}://{_EVERY_ADDRESS.sub('localhost', where)}/"
