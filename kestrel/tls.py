"""TLS for clients on plain sockets."""

from __future__ import annotations

import errno
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TlsOptions:
    """How a client proves who the server is, and who it is itself. Files are in PEM.

    The server's certificate is always verified, and so is that it is one for the host.
    """

    ca_file: str | None = None
    """Who may have signed the server's certificate; None: whoever this machine trusts."""
    cert_file: str | None = None
    """The client's own certificate, where the server wants one, with those between it and the CA behind it."""
    key_file: str | None = None
    """Its private key; None: it stands in `cert_file`."""
    server_name: str | None = None
    """The name that the server's certificate must be for; None: the host that is connected to."""

    def context(self) -> ssl.SSLContext:
        """What connections are made with.

        Raises OSError, with its `filename`, where a file cannot be read or used; ValueError for a key without a
        certificate.
        """
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("a key_file is of no use without the cert_file that it belongs to")
        if self.ca_file is not None:
            _check_certificates(self.ca_file)
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False  # a certificate without a subjectAltName names nobody
        if self.cert_file is not None:
            _check_certificates(self.cert_file)
            key_file = self.key_file or self.cert_file
            Path(key_file).read_bytes()
            try:
                context.load_cert_chain(self.cert_file, key_file, password="")  # rather than ask for one
            except ssl.SSLError as error:
                raise OSError(errno.EINVAL, f"no key to the certificate in {self.cert_file}", key_file) from error
        return context


def _check_certificates(path: str) -> None:
    """Raise OSError unless there are certificates in that file."""
    Path(path).read_bytes()  # whose errors name the file
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise OSError(errno.EINVAL, "no certificates that can be read", path) from error
