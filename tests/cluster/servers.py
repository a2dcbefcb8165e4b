"""Real servers that join server sets, and what ZooKeeper has of them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError

from kestrel.cluster.member import READ, SERVER_SETS, WRITE
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import Server, eventually

IN_SETS: Final = {"Up": {READ, WRITE}, "WriteAvoid": {READ}, "ReadOnly": {READ}, "Quiescent": set[str]()}
"""What the documents say of each status."""


def config(zookeeper: ZooKeeper, prefix: str, more: str = "", session_timeout: str = "10s") -> str:
    """Of a server that joins the sets below that path. `more` are further settings of ``[zookeeper]``.

    A server that a busy machine keeps waiting is still in the sets.
    """
    return (
        '\n[zookeeper]\nhost = "127.0.0.1"\n'
        f'port = {zookeeper.port}\npathPrefix = "{prefix}"\n'
        f'sessionTimeout = "{session_timeout}"\nadvertiseAddress = "127.0.0.1"\n{more}\n'
    )


def members(client: Any, prefix: str) -> dict[str, list[int]]:
    """The ports of the main endpoints in both sets; none where ZooKeeper does not say."""
    return {name: _ports(client, f"{prefix}/{name}") for name in SERVER_SETS}


def _ports(client: Any, path: str) -> list[int]:
    ports = []
    with suppress(NoNodeError, ConnectionLoss, SessionExpiredError):
        for node in client.get_children(path):
            with suppress(NoNodeError):
                data, _ = client.get(f"{path}/{node}")
                ports.append(json.loads(data)["serviceEndpoint"]["port"])
    return sorted(ports)


def expected(statuses: dict[int, str]) -> dict[str, list[int]]:
    """What the sets should be, of servers by port."""
    return {name: sorted(port for port, status in statuses.items() if name in IN_SETS[status]) for name in SERVER_SETS}


def await_members(zookeeper: ZooKeeper, prefix: str, statuses: dict[int, str]) -> None:
    """Return as soon as the sets hold exactly those."""
    wanted = expected(statuses)
    eventually(lambda: members(zookeeper.client, prefix) == wanted, f"the members are {wanted}")


def set_status(server: Server, status: str) -> None:
    """As an operator does."""
    with server.connect() as client:
        client.ask(b"status %b\r\n" % status.encode(), b"END\r\n")
