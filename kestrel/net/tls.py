"""TLS for listening ports, with files that can be reloaded.

New connections use the new certificate. Existing ones are not affected.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import frozen
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import CertificateOptions, TLSVersion, trustRootFromCertificates
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

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
        """Return OpenSSL's object for a new connection, with the current options."""
        return SSL.Connection(self._options.getContext(), None)
