"""Twisted plugin that registers the endpoint strings `reloadtls:` and `mtls:`."""

from kestrel.net.tls_endpoint import TlsEndpointParser

reloadtls = TlsEndpointParser("reloadtls", requires_client_certificate=False)
mtls = TlsEndpointParser("mtls", requires_client_certificate=True)
