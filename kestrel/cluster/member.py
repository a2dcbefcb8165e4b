"""The entry of one server in a server set: the JSON of Twitter's server sets, which Finagle also reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kestrel.address import Address

READ: Final = "read"
WRITE: Final = "write"
SERVER_SETS: Final = (READ, WRITE)
"""The two sets, by the last part of their paths."""

MAX_MEMBER_BYTES: Final = 64 * 1024
"""Limit of a member in bytes. Kestrel's own have a few hundred."""

_HOST: Final = re.compile(r"[\w.:%-]{1,255}")
_ALIVE: Final = "ALIVE"


class Member(NamedTuple):
    """A server of a set, and its addresses."""

    service: Address
    """The main endpoint."""
    additional: Mapping[str, Address]
    """The endpoints by protocol: memcache, thrift, text. Members of other programs may have none."""

    def address_of(self, protocol: str) -> Address | None:
        """Return the address for a protocol, or None if the server does not support it.

        A member without `additional` endpoints is assumed to support every protocol, at its main endpoint.
        """
        return self.additional.get(protocol) if self.additional else self.service

    def to_json(self) -> bytes:
        said = {
            "serviceEndpoint": self.service._asdict(),
            "additionalEndpoints": {name: address._asdict() for name, address in self.additional.items()},
            "status": _ALIVE,
        }
        return json.dumps(said).encode("ascii")


def parse_member(data: bytes) -> Member:
    """Parse the JSON of a member. Raises ValueError if it is invalid or the member is not alive."""
    if len(data) > MAX_MEMBER_BYTES:
        raise ValueError(f"it has {len(data)} bytes; limit={MAX_MEMBER_BYTES}")
    try:
        said = json.loads(data)
    except RecursionError:
        raise ValueError("its JSON is too deep") from None
    if not isinstance(said, dict):
        raise ValueError("it is not a JSON object")
    if said.get("status", _ALIVE) != _ALIVE:
        raise ValueError("its status is not ALIVE")
    additional = said.get("additionalEndpoints") or {}
    if not isinstance(additional, dict):
        raise ValueError("its additionalEndpoints are not a JSON object")
    return Member(_address(said.get("serviceEndpoint")), {name: _address(each) for name, each in additional.items()})


def _address(said: Any) -> Address:
    match said:
        case {"host": str(host), "port": int(port)} if _HOST.fullmatch(host) and port is not True and 0 < port <= 65535:
            return Address(host, port)
    raise ValueError("one of its endpoints has no host and port")
