"""TLS for clients on plain sockets."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


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
        """What connections are made with. Raises OSError where a file cannot be read or used."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context
