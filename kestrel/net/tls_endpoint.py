"""The endpoints `reloadtls:` and `mtls:`, for ports with TLS.

    reloadtls:22134:certKey=cert.pem:privateKey=key.pem
    mtls:22134:certKey=cert.pem:privateKey=key.pem:caCerts=clients.pem:minimum=1.3:interface=127.0.0.1

Twisted's `ssl:` reads its files only once. Its `tls:` reads a whole folder again when a client asks for an unknown
name, but does not notice a renewed certificate. Neither requires client certificates.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, wrapServerTLS
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocolFactory,
    IStreamServerEndpoint,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import IPlugin
from zope.interface import implementer

from kestrel.net.ports import TlsListener
from kestrel.net.tls import MINIMUM_VERSIONS, ReloadableTls, TlsFiles


@implementer(IStreamServerEndpoint)
class TlsServerEndpoint:
    """An endpoint that speaks TLS over an inner endpoint."""

    def __init__(self, inner: IStreamServerEndpoint, tls: ReloadableTls) -> None:
        self._listening = wrapServerTLS(tls, inner)
        self.inner = inner
        self.tls = tls

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """Listen for clients of `protocolFactory`."""
        return self._listening.listen(protocolFactory)


@implementer(IPlugin, IStreamServerEndpointStringParser)
class TlsEndpointParser:
    """A parser of endpoint strings with one prefix."""

    def __init__(self, prefix: str, *, requires_client_certificate: bool) -> None:
        self.prefix = prefix
        self._requires_client_certificate = requires_client_certificate

    def parseStreamServer(  # type: ignore[override]  # its arguments are those of the string
        self,
        reactor: Any,
        port: str,
        certKey: str | None = None,
        privateKey: str | None = None,
        caCerts: str | None = None,
        minimum: str = "1.2",
        interface: str = "",
        backlog: str = "50",
    ) -> TlsServerEndpoint:
        """Return the endpoint for the arguments of a string. Raises ValueError or OSError with the reason."""
        if certKey is None:
            raise ValueError(f"{self.prefix}: needs certKey=FILE, the server's certificate")
        if self._requires_client_certificate and caCerts is None:
            raise ValueError(f"{self.prefix}: needs caCerts=FILE, the authorities of client certificates")
        if not self._requires_client_certificate and caCerts is not None:
            raise ValueError(f"{self.prefix}: does not use caCerts; write mtls:")
        if minimum not in MINIMUM_VERSIONS:
            raise ValueError(f"minimum is one of {', '.join(MINIMUM_VERSIONS)}, not {minimum}")
        endpoint = TCP6ServerEndpoint if ":" in interface else TCP4ServerEndpoint
        files = TlsFiles(
            certificate=certKey,
            private_key=privateKey or certKey,
            client_authorities=caCerts,
            minimum=minimum,
        )
        return TlsServerEndpoint(
            endpoint(TlsListener(reactor), int(port), int(backlog), interface), ReloadableTls(files)
        )
