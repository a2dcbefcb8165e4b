"""Makes the endpoint strings `reloadtls:` and `mtls:` known to Twisted."""

from kestrel.net.tls_endpoint import TlsEndpointParser

reloadtls = TlsEndpointParser("reloadtls", requires_client_certificate=False)
mtls = TlsEndpointParser("mtls", requires_client_certificate=True)
