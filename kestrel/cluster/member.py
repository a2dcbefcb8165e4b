"""What a server set holds of one server: the JSON of Twitter's server sets, which Finagle reads as well."""

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
"""Bytes of a member that are looked at; one of ours has a few hundred."""

_HOST: Final = re.compile(r"[\w.:%-]{1,255}")
_ALIVE: Final = "ALIVE"


class Member(NamedTuple):
    """A server, and where it listens."""

    service: Address
    """Its main endpoint."""
    additional: Mapping[str, Address]
    """All that it speaks, by protocol: memcache, thrift, text. A foreign one may not say."""

    def address_of(self, protocol: str) -> Address | None:
        """Where it speaks that; None if it does not."""
        return self.additional.get(protocol) if self.additional else self.service

    def to_json(self) -> bytes:
        """As it stands in ZooKeeper."""
        said = {
            "serviceEndpoint": self.service._asdict(),
            "additionalEndpoints": {name: address._asdict() for name, address in self.additional.items()},
            "status": _ALIVE,
        }
        return json.dumps(said).encode("ascii")


def parse_member(data: bytes) -> Member:
    """What somebody has put there. Raises ValueError for what is no member, or none that is alive."""
    if len(data) > MAX_MEMBER_BYTES:
        raise ValueError(f"it has {len(data)} bytes, and no more than {MAX_MEMBER_BYTES} are looked at")
    try:
        said = json.loads(data)
    except RecursionError:
        raise ValueError("its JSON is too deep") from None
    if not isinstance(said, dict):
        raise ValueError("it is no JSON object")
    if said.get("status", _ALIVE) != _ALIVE:
        raise ValueError("it does not say that it is alive")
    additional = said.get("additionalEndpoints") or {}
    if not isinstance(additional, dict):
        raise ValueError("its additionalEndpoints are no JSON object")
    return Member(
        _address(said.get("serviceEndpoint")), {name: _address(each) for name, each in additional.items()}
    )


def _address(said: Any) -> Address:
    match said:
        case {"host": str(host), "port": int(port)} if _HOST.fullmatch(host) and port is not True and 0 < port <= 65535:
            return Address(host, port)
    raise ValueError("an endpoint of it has no host and port")
