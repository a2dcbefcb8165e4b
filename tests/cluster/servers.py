"""Real servers that join server sets, and their members in ZooKeeper."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError

from kestrel.cluster.member import READ, SERVER_SETS, WRITE
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import Server, eventually

IN_SETS: Final = {"Up": {READ, WRITE}, "WriteAvoid": {READ}, "ReadOnly": {READ}, "Quiescent": set[str]()}
"""The sets of each status, as documented."""


def config(zookeeper: ZooKeeper, prefix: str, more: str = "", session_timeout: str = "10s") -> str:
    """Return the settings of a server that joins the sets below that path. `more` are further settings of
    ``[zookeeper]``.

    With this session timeout, a server that is slow on a busy machine stays in the sets.
    """
    return (
        '\n[zookeeper]\nhost = "127.0.0.1"\n'
        f'port = {zookeeper.port}\npathPrefix = "{prefix}"\n'
        f'sessionTimeout = "{session_timeout}"\nadvertiseAddress = "127.0.0.1"\n{more}\n'
    )


def members(client: Any, prefix: str) -> dict[str, list[int]]:
    """Return the ports of the main endpoints in both sets. A set that ZooKeeper does not return is empty."""
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
    """Return the expected ports of both sets, from the status of each server's port."""
    return {name: sorted(port for port, status in statuses.items() if name in IN_SETS[status]) for name in SERVER_SETS}


def await_members(zookeeper: ZooKeeper, prefix: str, statuses: dict[int, str]) -> None:
    """Return as soon as the sets contain exactly these servers."""
    wanted = expected(statuses)
    eventually(lambda: members(zookeeper.client, prefix) == wanted, f"the members are {wanted}")


def set_status(server: Server, status: str) -> None:
    """Change the status as an operator would."""
    with server.connect() as client:
        client.ask(b"status %b\r\n" % status.encode(), b"END\r\n")
