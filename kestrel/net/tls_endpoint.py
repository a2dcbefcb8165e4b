"""`reloadtls:` and `mtls:`, endpoint strings of ports with TLS.

    reloadtls:22134:certKey=cert.pem:privateKey=key.pem
    mtls:22134:certKey=cert.pem:privateKey=key.pem:caCerts=clients.pem:minimum=1.3:interface=127.0.0.1

Twisted has `ssl:`, which reads its files once, and `tls:`, which reads a whole folder again whenever a client asks for
a name that is not there, and a renewed certificate not before. Neither asks clients who they are.
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

from kestrel.net.paced_port import TlsListener
from kestrel.net.tls import MINIMUM_VERSIONS, ReloadableTls, TlsFiles


@implementer(IStreamServerEndpoint)
class TlsServerEndpoint:
    """Listens on what lies below it, and speaks TLS there."""

    def __init__(self, inner: IStreamServerEndpoint, tls: ReloadableTls) -> None:
        self._listening = wrapServerTLS(tls, inner)
        self.inner = inner
        self.tls = tls

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """Listen for clients of that factory."""
        return self._listening.listen(protocolFactory)


@implementer(IPlugin, IStreamServerEndpointStringParser)
class TlsEndpointParser:
    """Makes endpoints of strings with that prefix."""

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
        """The endpoint. Raises ValueError or OSError with a sentence."""
        if certKey is None:
            raise ValueError(f"{self.prefix}: needs certKey=FILE, the server's certificate")
        if self._requires_client_certificate and caCerts is None:
            raise ValueError(f"{self.prefix}: needs caCerts=FILE, who must have signed the certificates of clients")
        if not self._requires_client_certificate and caCerts is not None:
            raise ValueError(f"{self.prefix}: asks clients for no certificates; where caCerts is given, write mtls:")
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
