"""Files with certificates and keys."""

from __future__ import annotations

from contextlib import suppress

from kestrel.pem import load_certificate_and_key, load_certificates
from tests.fuzz.choices import Choices
from tests.fuzz.scratch_folder import scratch_folder
from tests.fuzz.target import Target

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


WORDS = (BEGIN, END, KEY_BEGIN, KEY_END, b"MII", b"Proc-Type: 4,ENCRYPTED\n", b"RSA ", b"EC ", b"ENCRYPTED ")

TARGET = Target(check, lambda: WORDS)
