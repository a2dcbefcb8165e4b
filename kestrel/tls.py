"""TLS for clients on plain sockets."""

from __future__ import annotations

import errno
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TlsOptions:
    """The TLS options of a client. All files are in PEM format.

    The server's certificate and host name are always verified.
    """

    ca_file: str | None = None
    """Authorities that the server's certificate may be signed by. None: those that this machine trusts."""
    cert_file: str | None = None
    """The client's own certificate, if the server requires one, followed by those between it and its CA."""
    key_file: str | None = None
    """The private key of the client's certificate. None: it is in `cert_file`."""
    server_name: str | None = None
    """Name that the server's certificate must be for. None: the host of the connection."""

    def context(self) -> ssl.SSLContext:
        """Return the context for connections.

        Raises OSError, with its `filename`, if a file cannot be read or used, and ValueError for a key without a
        certificate.
        """
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("a key_file needs the cert_file of its certificate")
        if self.ca_file is not None:
            _check_certificates(self.ca_file)
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False  # a certificate must have a subjectAltName
        if self.cert_file is not None:
            _check_certificates(self.cert_file)
            key_file = self.key_file or self.cert_file
            Path(key_file).read_bytes()
            try:
                # an empty password, so that OpenSSL does not ask for one
                context.load_cert_chain(self.cert_file, key_file, password="")
            except ssl.SSLError as error:
                raise OSError(errno.EINVAL, f"no key to the certificate in {self.cert_file}", key_file) from error
        return context


def _check_certificates(path: str) -> None:
    """Raise OSError unless the file has certificates."""
    Path(path).read_bytes()  # its errors name the file
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise OSError(errno.EINVAL, "no certificates that can be read", path) from error
