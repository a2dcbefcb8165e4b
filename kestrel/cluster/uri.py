"""The URI of server sets: ``zk://[USER:PASSWORD@]HOST[:PORT][,HOST...]/PATH``, or ``zks://`` over TLS."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final
from urllib.parse import parse_qsl, unquote

from kestrel.address import Address, parse_address
from kestrel.errors import KestrelError
from kestrel.tls import TlsOptions

DEFAULT_PORT: Final = 2181

_PLAIN: Final = "zk"
_TLS: Final = "zks"
_URI: Final = re.compile(
    r"(?P<scheme>\w*)://(?:(?P<user>[^/?#]*)@)?(?P<hosts>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?(?:#(?P<rest>.*))?",
    re.DOTALL,
)
"""urllib is not used, because it does not support several hosts, and some releases refuse IPv6 numbers among them."""
_TLS_FIELDS: Final = {"ca": "ca_file", "cert": "cert_file", "key": "key_file", "server-name": "server_name"}


@dataclass(frozen=True)
class ServerSetUri:
    """The location of two server sets. As text, it has no password."""

    hosts: tuple[Address, ...]
    """The ZooKeeper servers."""
    path: str
    """The path above the sets ``read`` and ``write``."""
    credentials: str | None = field(default=None, repr=False)
    """``user:password`` for ZooKeeper's digest scheme."""
    tls: TlsOptions | None = None

    def __str__(self) -> str:
        scheme = _PLAIN if self.tls is None else _TLS
        return f"{scheme}://{','.join(map(str, self.hosts))}{self.path}"


def is_server_set(text: str) -> bool:
    """Return True if the text is the URI of server sets, not the address of a server."""
    return text.startswith((f"{_PLAIN}://", f"{_TLS}://"))


def parse_hosts(text: str, default_port: int = DEFAULT_PORT) -> tuple[Address, ...]:
    """Parse ZooKeeper servers, separated by commas. Raises ValueError with the reason."""
    return tuple(parse_address(each.strip(), default_port) for each in text.split(","))


def parse_server_set(text: str) -> ServerSetUri:
    """Parse the URI of server sets. Raises ValueError with the reason, which never has the password."""
    match = _URI.fullmatch(text)
    if match is None:
        raise ValueError(f"a server set is named as zk://host:{DEFAULT_PORT}/path")
    scheme, user_info, hosts, path, query, fragment = match.groups("")
    if "@" in path + query + fragment:  # the beginning of a password was parsed as a host
        raise ValueError("before the @ of a server set, write %2F for /, %3F for ? and %23 for #")
    shown = f"{scheme}://{hosts}{path}"
    if scheme not in (_PLAIN, _TLS):
        raise ValueError(f"{shown!r} is not a URI of server sets; write zk://host:{DEFAULT_PORT}/path")
    path = path.rstrip("/")
    if not path or "//" in path or fragment:
        raise ValueError(f"{shown!r} has no path of the server sets; write zk://{hosts or 'host'}/path")
    credentials = unquote(user_info) if user_info else None
    if credentials is not None and not all(credentials.partition(":")):
        raise ValueError(f"{shown!r}: write USER:PASSWORD before the @")
    return ServerSetUri(parse_hosts(hosts), path, credentials, _tls_of(scheme, query, shown))


def _tls_of(scheme: str, query: str, shown: str) -> TlsOptions | None:
    try:
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError(f"{shown!r}: the part after the ? cannot be parsed") from None
    given: dict[str, str] = {}
    for name, value in options:
        if name not in _TLS_FIELDS or not value:
            raise ValueError(f"{shown!r}: after the ? write {', '.join(f'{each}=...' for each in _TLS_FIELDS)}")
        given[_TLS_FIELDS[name]] = value
    if scheme == _PLAIN:
        if given:
            raise ValueError(f"{shown!r}: the options after the ? need TLS; write zks://")
        return None
    return TlsOptions(**given)


class KazooMissing(KestrelError):
    """A missing kazoo library."""

    def __init__(self) -> None:
        super().__init__("ZooKeeper needs the library kazoo: pip install 'kestrel-mq[cluster]'")


def require_kazoo() -> None:
    """Raise `KazooMissing` unless `zookeeper` and `follower`, which import it, can be imported."""
    if find_spec("kazoo") is None:
        raise KazooMissing
