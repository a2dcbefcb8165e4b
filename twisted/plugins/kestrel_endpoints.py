"""Makes the endpoint strings `reloadtls:` and `mtls:` known to Twisted."""

from kestrel.net.tls_endpoint import TlsParser

reloadtls = TlsParser("reloadtls", asks_clients=False)
mtls = TlsParser("mtls", asks_clients=True)
