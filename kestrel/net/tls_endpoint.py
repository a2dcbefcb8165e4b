"""The endpoints `reloadtls:` and `mtls:`, for ports with TLS, whose files can be reloaded.

    reloadtls:22134:certKey=cert.pem:privateKey=key.pem
    mtls:22134:certKey=cert.pem:privateKey=key.pem:caCerts=clients.pem:minimum=1.3:interface=127.0.0.1

Twisted's `ssl:` reads its files only once. Its `tls:` reads a whole folder again when a client asks for an unknown
name, but does not notice a renewed certificate. Neither requires client certificates. After a reload, new connections
use the new certificate, and existing ones are not affected.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import frozen
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, wrapServerTLS
from twisted.internet.interfaces import (
    IListeningPort,
    IOpenSSLServerConnectionCreator,
    IProtocolFactory,
    IStreamServerEndpoint,
    IStreamServerEndpointStringParser,
)
from twisted.internet.ssl import CertificateOptions, TLSVersion, trustRootFromCertificates
from twisted.plugin import IPlugin
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

from kestrel.net.ports import TlsListener
from kestrel.pem import load_certificate_and_key, load_certificates

MINIMUM_VERSIONS: Final = {"1.2": TLSVersion.TLSv1_2, "1.3": TLSVersion.TLSv1_3}
"""The oldest versions that can be configured. Earlier ones are insecure (RFC 8996)."""


@frozen(kw_only=True)
class TlsFiles:
    """The certificate and key of a port, and the authorities of its clients, as PEM files."""

    certificate: str
    """The server's certificate, followed by those between it and its authority."""
    private_key: str
    """The private key, which may be in the same file."""
    client_authorities: str | None = None
    """Authorities that must have signed a client's certificate. None: clients need no certificate."""
    minimum: str = "1.2"
    """The oldest version: a key of `MINIMUM_VERSIONS`."""

    def load(self) -> CertificateOptions:
        """Load the files. This is slow, and safe in a thread. Raises OSError, whose text names the unusable file."""
        own, chain = load_certificate_and_key(self.certificate, self.private_key)
        trusted = None
        if self.client_authorities is not None:
            trusted = trustRootFromCertificates(load_certificates(self.client_authorities))
        options = CertificateOptions(
            privateKey=own.privateKey.original,
            certificate=own.original,
            extraCertChain=chain,
            trustRoot=trusted,
            raiseMinimumTo=MINIMUM_VERSIONS[self.minimum],
        )
        # No protocol is negotiated by ALPN: a client that offers some gets the one of the port. Twisted would end the
        # handshake.
        options.getContext().set_alpn_select_callback(_select_no_protocol)
        return options


def _select_no_protocol(connection: SSL.Connection, offered: list[bytes]) -> Any:
    return SSL.NO_OVERLAPPING_PROTOCOLS


@implementer(IOpenSSLServerConnectionCreator)
class ReloadableTls:
    """The TLS options of one port, for its new connections."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._options = files.load()

    def use(self, options: CertificateOptions) -> None:
        """Use `options`, from `files.load`, for new connections."""
        self._options = options

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        return SSL.Connection(self._options.getContext(), None)


@implementer(IStreamServerEndpoint)
class TlsServerEndpoint:
    """An endpoint that speaks TLS over an inner endpoint."""

    def __init__(self, inner: IStreamServerEndpoint, tls: ReloadableTls) -> None:
        self._listening = wrapServerTLS(tls, inner)
        self.inner = inner
        self.tls = tls

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
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
