"""Certificates and keys in PEM files, as pyOpenSSL and Twisted want them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from OpenSSL.crypto import X509, Error
from twisted.internet.ssl import Certificate, PrivateCertificate

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

MAX_PEM_BYTES: Final = 16 * 1024 * 1024
"""More than all authorities of the world take. A device, or a log by mistake, is not read to its end."""


def load_certificates(path: str) -> list[Certificate]:
    """The certificates in a file, of which there is one at least.

    Raises OSError, whose text names the file, where it cannot be read or used.
    """
    try:
        found = [Certificate.loadPEM(pem) for pem in _CERTIFICATE.findall(_read(path))]
    except Error as error:
        raise OSError(f"{path}: a certificate cannot be read: {error}") from error
    if not found:
        raise OSError(f"{path}: there is no certificate in it")
    return found


def load_certificate_and_key(cert_file: str, key_file: str) -> tuple[PrivateCertificate, list[X509]]:
    """The first certificate of the file with its key, and those between it and its authority.

    Raises OSError, whose text names the file, where one cannot be read or used.
    """
    own, *chain = load_certificates(cert_file)
    try:
        key_and_certificate = _read(key_file) + b"\n" + own.dumpPEM()
        return PrivateCertificate.loadPEM(key_and_certificate), [certificate.original for certificate in chain]
    except (Error, ValueError) as error:
        raise OSError(f"{key_file}: the key cannot be used: {error}") from error


def _read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        data = file.read(MAX_PEM_BYTES + 1)
    if len(data) > MAX_PEM_BYTES:
        raise OSError(f"{path}: this is no file of certificates: it is larger than {MAX_PEM_BYTES} bytes")
    return data
