"""Who may ask the admin port for something: no page of another site, and to change anything, administrators.

A browser sends what any page tells it to, to any address, this machine's own among them. A page of another site cannot
read the answer, but would do harm by asking, if it were heard: so what changes something is a POST, and one that a page
of another site has sent is refused. And a site can say that its own name means this machine (DNS rebinding), and then
read as well: so the name that was asked for must be one that this server knows as its own.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from twisted.web.http_headers import Headers

from kestrel.admin.request_response import HttpError


def check_host(headers: Headers, more_names: Collection[str]) -> None:
    """Raise `HttpError` unless what was asked for by name is this machine: its address, its name, or one configured."""
    given = _values(headers, b"host")
    if not given:
        return  # no browser
    if len(given) > 1:
        raise HttpError(400, "there is more than one Host header")
    name = _host_name(given[0])
    if name in ("localhost", "") or name.endswith(".localhost") or _is_address(name):
        return
    own = socket.gethostname().lower()
    if name in (own, own.partition(".")[0]) or name in {each.lower() for each in more_names}:
        return
    raise HttpError(403, f"this server does not know itself as {name}: name it in hostNames, in the table [admin]")


def is_cross_site(headers: Headers) -> bool:
    """Whether the page of another site has sent this. Programs say nothing of where they come from."""
    hosts = [host.lower() for host in _values(headers, b"host") if host]
    return any(site not in ("same-origin", "none") for site in _values(headers, b"sec-fetch-site")) or any(
        _authority(origin) not in hosts for origin in _values(headers, b"origin")
    )


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for value in headers.getRawHeaders(name) or ()]


def _host_name(host: str) -> str:
    """Without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        raise HttpError(400, "the Host header is none") from None


def _authority(origin: str) -> str | None:
    """Its host with its port; None where it has none."""
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
