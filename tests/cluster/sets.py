"""Server sets in a real ZooKeeper, whose members the test adds and removes."""

from __future__ import annotations

from kestrel.address import Address
from kestrel.cluster.member import SERVER_SETS, Member
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import Server

SERVED = 'queuePath = "queues"\nmaxOpenTransactions = 100\n'
"""Settings of a server that joins no set by itself."""


def member_of(server: Server) -> Member:
    """Return the member that the server would announce."""
    where = {protocol: Address("127.0.0.1", server.port_of(protocol)) for protocol in ("memcache", "thrift")}
    return Member(where["memcache"], where)


class Sets:
    """Two server sets that a test changes."""

    def __init__(self, zookeeper: ZooKeeper, path: str) -> None:
        self.uri = f"zk://{zookeeper.hosts}{path}"
        self._zookeeper = zookeeper
        self._path = path
        self._nodes: dict[tuple[int, str], str] = {}

    def join(self, server: Server, *names: str) -> None:
        """Add the server to these sets, or to both."""
        for name in names or SERVER_SETS:
            self._nodes[server.pid, name] = self.put(name, member_of(server).to_json())

    def put(self, name: str, data: bytes) -> str:
        """Add a member with this data to the set, and return its node."""
        node: str = self._zookeeper.client.create(
            f"{self._path}/{name}/member_", data, sequence=True, makepath=True
        )
        return node

    def leave(self, server: Server, *names: str) -> None:
        """Remove the server from these sets, or from both."""
        for name in names or SERVER_SETS:
            self._zookeeper.client.delete(self._nodes.pop((server.pid, name)))

    def replace(self, old: Server, new: Server, name: str) -> None:
        """Replace a server in that set by another, in one transaction: no client sees both servers in it."""
        transaction = self._zookeeper.client.transaction()
        transaction.delete(self._nodes.pop((old.pid, name)))
        transaction.create(f"{self._path}/{name}/member_", member_of(new).to_json(), sequence=True)
        _, self._nodes[new.pid, name] = transaction.commit()


def items(server: Server) -> int:
    """Return the number of items in the queue ``work``."""
    with server.connect() as client:
        return int(client.stats().get("queue_work_items", "0"))
