"""TLS for ports that listen: files that can be read again while clients are connected.

Who connects after that is shown the new certificate; those who are connected keep what they have agreed on.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import CertificateOptions, TLSVersion, trustRootFromCertificates
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

from kestrel.pem import load_certificate_and_key, load_certificates

MINIMUM_VERSIONS: Final = {"1.2": TLSVersion.TLSv1_2, "1.3": TLSVersion.TLSv1_3}
"""What may be asked for as the oldest version. Those before are broken (RFC 8996)."""


@frozen(kw_only=True)
class TlsFiles:
    """What a port shows to its clients, and whom it lets in. Files are in PEM."""

    certificate: str
    """The server's, with those between it and its authority behind it."""
    private_key: str
    """May be the same file."""
    client_authorities: str | None = None
    """Who must have signed a client's certificate; None: clients need none."""
    minimum: str = "1.2"
    """A key of `MINIMUM_VERSIONS`."""

    def load(self) -> CertificateOptions:
        """Read them. Slow, and safe in a thread. Raises OSError, whose text names the file that cannot be used."""
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
        options.getContext()  # fails now rather than with the first client: a key that belongs to another certificate
        return options


@implementer(IOpenSSLServerConnectionCreator)
class ReloadableTls:
    """What TLS connections of one port are made with."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._options = files.load()

    def use(self, options: CertificateOptions) -> None:
        """Make connections with these from now on: what `files.load` has brought."""
        self._options = options

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """One connection."""
        return SSL.Connection(self._options.getContext(), None)
