"""Checks of HTTP headers that keep pages of other sites away from the admin port.

A page of any site can make a browser send requests to this server, although it cannot read the responses. Therefore
all changes are POST requests, and POST requests from pages of other sites are refused. A site can also point its own
name at this machine (DNS rebinding) and then read responses. Therefore the Host header must be a name of this server.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from twisted.web.http_headers import Headers

from kestrel.admin.request_response import HttpError


def check_host(headers: Headers, more_names: Collection[str]) -> None:
    """Raise `HttpError` unless the Host header is an address, this machine's name, localhost or one of `more_names`.

    A request without a Host header is accepted, since browsers always send one.
    """
    given = _values(headers, b"host")
    if not given:
        return
    if len(given) > 1:
        raise HttpError(400, "the request has more than one Host header")
    name = _host_name(given[0])
    if name in ("localhost", "") or name.endswith(".localhost") or _is_address(name):
        return
    own = socket.gethostname().lower()
    if name in (own, own.partition(".")[0]) or name in {each.lower() for each in more_names}:
        return
    raise HttpError(403, f"{name} is not a name of this server; to allow it, add it to hostNames in the table [admin]")


def is_cross_site(headers: Headers) -> bool:
    """Return whether a page of another site sent the request.

    Browsers say so in the Sec-Fetch-Site or Origin header. A request without these headers comes from a program.
    """
    hosts = [host.lower() for host in _values(headers, b"host") if host]
    return any(site not in ("same-origin", "none") for site in _values(headers, b"sec-fetch-site")) or any(
        _authority(origin) not in hosts for origin in _values(headers, b"origin")
    )


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for value in headers.getRawHeaders(name) or ()]


def _host_name(host: str) -> str:
    """Return the host name in a Host header, without its port and in lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        raise HttpError(400, "the Host header is invalid") from None


def _authority(origin: str) -> str | None:
    """Return the host and port in an Origin header, an empty string if it has none, or None if it is invalid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
