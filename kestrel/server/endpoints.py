"""Where the server listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import quoteStringArgument, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from twisted.python.failure import Failure

from kestrel.config.model import Config
from kestrel.net.protocols import PROTOCOLS
from kestrel.server.failures import EX_CONFIG, EX_UNAVAILABLE, CannotServe


def endpoints_to_serve(config: Config, given: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The endpoint strings of each protocol: those that are given for it, or its configured port."""
    ports = {
        "memcache": config.memcache_listen_port,
        "text": config.text_listen_port,
        "thrift": config.thrift_listen_port,
    }
    address = quoteStringArgument(config.listen_address)
    configured = {
        protocol: [] if port is None else [f"tcp:{port}:interface={address}:backlog={config.connection_backlog}"]
        for protocol, port in ports.items()
    }
    return {protocol: list(given.get(protocol, ())) or configured[protocol] for protocol in PROTOCOLS}


def is_plain_tcp(endpoint: str) -> bool:
    """Whether nothing but TCP is meant: what Twisted listens on by `listenTCP` alone."""
    return endpoint.partition(":")[0].lower() in ("tcp", "tcp6")


def parse_endpoint(reactor: Any, endpoint: str) -> IStreamServerEndpoint:
    """What an endpoint string means; raises `CannotServe`."""
    try:
        server: IStreamServerEndpoint = serverFromString(reactor, endpoint)
    except Exception as error:  # endpoint parsers, plugins among them, raise what they like
        sentence = f"{endpoint!r} is no endpoint that can be listened on ({error}); write it as in tcp:22133"
        raise CannotServe(sentence, EX_CONFIG) from error
    return server


def listen(reactor: Any, protocol: str, endpoint: str, factory: IProtocolFactory) -> Deferred[IListeningPort]:
    """Listen on an endpoint string. Raises or fails with `CannotServe`, which says what to change for the protocol."""
    server = parse_endpoint(reactor, endpoint)

    def failed(failure: Failure) -> Failure:
        error = failure.value
        cause = error.socketError if isinstance(error, CannotListenError) else error
        reason = getattr(cause, "strerror", None) or cause
        way_out = f"change {protocol}ListenPort, or name another endpoint with --{protocol}"
        return Failure(CannotServe(f"cannot listen on {endpoint}: {reason}; {way_out}", EX_UNAVAILABLE))

    listening: Deferred[IListeningPort] = server.listen(factory)
    return listening.addErrback(failed)


def port_number(port: IListeningPort) -> int | None:
    """The number of a TCP port, also one that the system has picked; None for what has no number."""
    return getattr(port.getHost(), "port", None)


def describe(port: IListeningPort) -> str:
    """Where that port listens, for a person."""
    address = port.getHost()
    host = getattr(address, "host", None)
    return f"{host}:{port_number(port)}" if host is not None else str(getattr(address, "name", address))
