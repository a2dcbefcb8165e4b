"""Certificates of a test."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_ORGANIZATION: Final = "Example"
_UNIT: Final = "queues"


def subject(name: str) -> str:
    """Return the subject of the certificate for a name, as in an allow-list."""
    return f"CN={name},OU={_UNIT},O={_ORGANIZATION}"


class Authority:
    """Signs certificates, and writes them to a folder: ``ca.pem``, ``NAME.pem``, ``NAME.key``."""

    def __init__(self, folder: Path, name: str = "test authority", signed_by: Authority | None = None) -> None:
        self.folder = folder
        parent = None if signed_by is None else signed_by._ca
        self._ca: trustme.CA = trustme.CA(parent, organization_name=_ORGANIZATION, organization_unit_name=name)
        self.ca_file = self._write("ca.pem", self._ca.cert_pem)

    def sign(
        self,
        host: str,
        until: datetime.datetime | None = None,
        names: Sequence[str] | None = None,
        since: datetime.datetime | None = None,
    ) -> tuple[str, str]:
        """Return the paths of a certificate for a host, or for `names` instead, and of its key."""
        made = self._ca.issue_cert(
            host,
            common_name=host,
            organization_name=_ORGANIZATION,
            organization_unit_name=_UNIT,
            not_before=since,
            not_after=until,
        )
        certificate = made.cert_chain_pems[0]
        if names is not None:
            certificate = self._for_names(certificate, names)
        return self._write(f"{host}.pem", certificate), self._write(f"{host}.key", made.private_key_pem)

    def _for_names(self, pem: trustme.Blob, names: Sequence[str]) -> trustme.Blob:
        """Return the certificate with other names, each encoded as a DNS name.

        trustme always adds a name, and encodes numbers as addresses.
        """
        given = x509.load_pem_x509_certificate(pem.bytes())
        builder = (
            x509.CertificateBuilder()
            .subject_name(given.subject)
            .issuer_name(given.issuer)
            .public_key(given.public_key())
            .serial_number(given.serial_number)
            .not_valid_before(given.not_valid_before_utc)
            .not_valid_after(given.not_valid_after_utc)
        )
        if names:
            hosts = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            builder = builder.add_extension(hosts, critical=False)
        key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return trustme.Blob(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _write(self, name: str, pem: trustme.Blob) -> str:
        path = self.folder / name
        pem.write_to_path(path)
        return str(path)
