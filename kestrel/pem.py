"""Certificates and keys from PEM files, for pyOpenSSL and Twisted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from OpenSSL.crypto import X509, Error
from twisted.internet.error import VerifyError
from twisted.internet.ssl import Certificate, PrivateCertificate

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

MAX_PEM_BYTES: Final = 16 * 1024 * 1024
"""Limit of a PEM file, above the size of any list of authorities, so that a device or a log is not read to its end."""


def load_certificates(path: str) -> list[Certificate]:
    """Return the certificates in a file, at least one.

    Raises OSError, whose text names the file, if it cannot be read or used.
    """
    try:
        found = [Certificate.loadPEM(pem) for pem in _CERTIFICATE.findall(_read(path))]
    except Error as error:
        raise OSError(f"{path}: a certificate cannot be read: {error}") from error
    if not found:
        raise OSError(f"{path}: it has no certificate")
    return found


def load_certificate_and_key(cert_file: str, key_file: str) -> tuple[PrivateCertificate, list[X509]]:
    """Return the first certificate in `cert_file` with its private key, and the other certificates in `cert_file`.

    Raises OSError, whose text names the file, if a file cannot be read or used.
    """
    own, *chain = load_certificates(cert_file)
    try:
        key_and_certificate = _read(key_file) + b"\n" + own.dumpPEM()
        return PrivateCertificate.loadPEM(key_and_certificate), [certificate.original for certificate in chain]
    except (Error, ValueError, VerifyError) as error:  # the last: it is the key of another certificate
        raise OSError(f"{key_file}: the key cannot be used: {error}") from error


def _read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        data = file.read(MAX_PEM_BYTES + 1)
    if len(data) > MAX_PEM_BYTES:
        raise OSError(f"{path}: the file is too large for certificates: it is larger than {MAX_PEM_BYTES} bytes")
    return data
