"""Certificates for the time of a test."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_FROM: Final = datetime.datetime(2020, 1, 1)
_TO: Final = datetime.datetime(2120, 1, 1)


class Authority:
    """Signs certificates, and leaves everything in a folder: ``ca.pem``, ``NAME.pem``, ``NAME.key``."""

    def __init__(self, folder: Path, name: str = "test authority", signed_by: Authority | None = None) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = signed_by or self
        certificate = (
            issuer._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(issuer._key, hashes.SHA256())
        )
        self.ca_file = str(self._write("ca.pem", certificate.public_bytes(serialization.Encoding.PEM)))

    def sign(
        self,
        host: str,
        until: datetime.datetime = _TO,
        names: Sequence[str] | None = None,
        since: datetime.datetime = _FROM,
    ) -> tuple[str, str]:
        """A certificate for that host, and its key: the paths of both. `names`: those it is for instead."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        builder = self._builder(subject, key.public_key(), until, since)
        alternatives = [x509.DNSName(name) for name in ([host] if names is None else names)]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        cert_file = self._write(f"{host}.pem", certificate.public_bytes(serialization.Encoding.PEM))
        return str(cert_file), str(self._write(f"{host}.key", private))

    def _builder(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        until: datetime.datetime = _TO,
        since: datetime.datetime = _FROM,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
        )

    def _write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path
