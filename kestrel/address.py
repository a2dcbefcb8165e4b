"""Addresses of servers: ``host``, ``host:port`` or ``[::1]:port``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

DEFAULT_PORTS: Final[Mapping[str, int]] = {"memcache": 22133, "thrift": 2229}
"""Default ports, by protocol."""

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w-]+)\]|(?P<host>[^\s:\[\]/?#@]+))(?::(?P<port>[0-9]{1,5}))?"
)


class Address(NamedTuple):
    """A host name or IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int) -> Address:
    """Parse an address. Raises ValueError with the reason."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no address; write host, host:port or [::1]:port")
    port = int(match["port"] or default_port)
    if not 0 < port <= 65535:
        raise ValueError(f"{port} is no port")
    return Address(match["ipv6"] or match["host"], port)


def show_address(address: object) -> str:
    """Return the address of a socket, as Twisted has it, for messages: ``host:port``, or the path of a Unix socket."""
    host, port = getattr(address, "host", None), getattr(address, "port", None)
    if host is not None and port is not None:
        return str(Address(host, port))
    name = getattr(address, "name", str(address))
    return os.fsdecode(name) if name else "a Unix socket"  # the socket of a client has no path
