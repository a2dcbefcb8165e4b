"""The subject of a client's certificate, which is the client's name."""

from __future__ import annotations

from OpenSSL.crypto import X509


def certificate_subject(certificate: X509) -> bytes:
    """Return the subject of a client's certificate in RFC 4514 format, ``CN=orders,O=Example``, in UTF-8."""
    return certificate.to_cryptography().subject.rfc4514_string().encode()
