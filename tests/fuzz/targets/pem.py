"""Files with certificates and keys."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from kestrel.pem import load_certificate_and_key, load_certificates
from tests.fuzz.choices import Choices, with_choices
from tests.fuzz.scratch_folder import scratch_folder
from tests.fuzz.target import CORPUS, Target

BEGIN, END = b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n"
KEY_BEGIN, KEY_END = b"-----BEGIN PRIVATE KEY-----\n", b"-----END PRIVATE KEY-----\n"


def check(data: bytes) -> None:
    """Check that files are loaded, or refused by an OSError with the file name. The key is at the end of the data."""
    choices = Choices(data)
    key_bytes = 8 * choices.number(256)
    contents = choices.rest()
    with scratch_folder() as folder:
        folder.mkdir()
        cert_file, key_file = folder / "cert.pem", folder / "key.pem"
        cert_file.write_bytes(contents)
        key_file.write_bytes(contents[-key_bytes:])
        with suppress(OSError):
            assert load_certificates(str(cert_file))
        try:
            load_certificate_and_key(str(cert_file), str(key_file))
        except OSError as error:
            assert str(cert_file) in str(error) or str(key_file) in str(error)


def seeds() -> Mapping[str, bytes]:
    """Return seeds that contain the certificate in the corpus, because a new certificate would differ."""
    certificate = (CORPUS / "pem" / "certificate").read_bytes()
    return {
        "chain": with_choices(certificate + b"\n" + certificate, 0),
        "key": with_choices(
            certificate + KEY_BEGIN + b"MEECAQAwEwYHKoZIzj0CAQYIKoZIzj0DAQcEJzAlAgEBBCA=\n" + KEY_END, 14
        ),
        "empty": with_choices(BEGIN + b"AAAA\n" + END, 0),
    }


WORDS = (BEGIN, END, KEY_BEGIN, KEY_END, b"MII", b"Proc-Type: 4,ENCRYPTED\n", b"RSA ", b"EC ", b"ENCRYPTED ")

TARGET = Target(check, seeds, lambda: WORDS)
