"""The names of clients."""

from __future__ import annotations

from OpenSSL.crypto import X509


def certificate_subject(certificate: X509) -> bytes:
    """The subject of a client's certificate, as RFC 4514 writes it: ``CN=orders,O=Example``, in UTF-8."""
    return certificate.to_cryptography().subject.rfc4514_string().encode()
