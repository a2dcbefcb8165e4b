"""Twisted's endpoints for clients, and TLS on them."""

from __future__ import annotations

from typing import Any, Final

from OpenSSL import SSL
from OpenSSL.crypto import X509
from service_identity.cryptography import extract_patterns
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred, fail
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.ssl import (
    PrivateCertificate,
    TLSVersion,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.address import Address
from kestrel.client.errors import CannotConnect
from kestrel.pem import load_certificate_and_key, load_certificates
from kestrel.tls import TlsOptions

_Codes: Final = SSL.X509VerificationCodes

_REASONS: Final[dict[int, str]] = {
    _Codes.ERR_CERT_NOT_YET_VALID: "it is not valid yet",
    _Codes.ERR_CERT_HAS_EXPIRED: "it has expired",
    _Codes.ERR_DEPTH_ZERO_SELF_SIGNED_CERT: "it is self-signed",
}
"""Reasons for the most common verification errors. All others are reported as an untrusted signature."""


def server_endpoint(reactor: Any, address: Address, tls: TlsOptions | None, timeout_s: float) -> IStreamClientEndpoint:
    """Return an endpoint that connects to `address`, over TLS if `tls` is given. Raises OSError for unusable files."""
    endpoint: IStreamClientEndpoint = HostnameEndpoint(reactor, *address, timeout=timeout_s)
    return endpoint if tls is None else tls_endpoint(tls, address.host, endpoint)


def tls_endpoint(options: TlsOptions, host: str, endpoint: IStreamClientEndpoint) -> IStreamClientEndpoint:
    """Wrap an endpoint that connects to `host` in TLS. Raises OSError for an unusable file.

    With an invalid host name, the returned endpoint fails every connection with `CannotConnect`.
    """
    try:
        return wrapClientTLS(client_tls(options, host), endpoint)
    except ValueError as error:
        return _FailingEndpoint(f"{options.server_name or host!r} is not a valid host name: {error}")


@implementer(IStreamClientEndpoint)
class _FailingEndpoint:
    """An endpoint whose connections all fail with a fixed reason."""

    def __init__(self, why: str) -> None:
        self._why = why

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Fail with `CannotConnect`."""
        return fail(CannotConnect(self._why))


def client_tls(options: TlsOptions, host: str) -> IOpenSSLClientConnectionCreator:
    """Return Twisted's TLS options for connections to `host`, with TLS 1.2 or later.

    A connection fails unless the server's certificate is for `host`, or for the `server_name` of the options. Raises
    OSError for an unusable file.
    """
    root = None if options.ca_file is None else trustRootFromCertificates(load_certificates(options.ca_file))
    own: PrivateCertificate | None = None
    extra: dict[str, Any] = {"raiseMinimumTo": TLSVersion.TLSv1_2}
    if options.cert_file is not None:
        own, extra["extraCertChain"] = load_certificate_and_key(
            options.cert_file, options.key_file or options.cert_file
        )
    name = options.server_name or host
    return _VerifiedConnectionCreator(optionsForClientTLS(name, root, own, extraCertificateOptions=extra), name)


@implementer(IOpenSSLClientConnectionCreator)
class _VerifiedConnectionCreator:
    """A creator of TLS connections that fail unless the server's certificate is for the given name.

    Twisted's own check accepts a certificate that contains no names, and only logs that it could not verify it. This
    check rejects every certificate that cannot be verified.
    """

    def __init__(self, creator: IOpenSSLClientConnectionCreator, name: str) -> None:
        self._creator = creator
        self._name = name
        self._id = IPAddress_ID(name) if isIPAddress(name) or isIPv6Address(name) else DNS_ID(name)

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Create a connection that verifies the server's certificate."""
        connection: SSL.Connection = self._creator.clientConnectionForTLS(tlsProtocol)

        def verify(connection: SSL.Connection, certificate: X509, error: int, depth: int, is_trusted: int) -> bool:
            if not is_trusted:
                return refuse(_REASONS.get(error, "it is not signed by a trusted authority"))
            if depth:  # only the last certificate of the chain names the server
                return True
            try:
                verify_service_identity(extract_patterns(certificate.to_cryptography()), [self._id], [])
            except Exception:
                return refuse(f"it is not for {self._name}")
            return True

        def refuse(why: str) -> bool:
            tlsProtocol.failVerification(Failure(CannotConnect(f"certificate verify failed: {why}")))
            return False

        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, verify)
        return connection
