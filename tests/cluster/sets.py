"""Server sets in a real ZooKeeper, in which are the servers that a test says."""

from __future__ import annotations

from kestrel.address import Address
from kestrel.cluster.member import SERVER_SETS, Member
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import Server

SERVED = 'queuePath = "queues"\nmaxOpenTransactions = 100\n'
"""Of a server that joins no set by itself."""


def member_of(server: Server) -> Member:
    """What it would say of itself."""
    where = {protocol: Address("127.0.0.1", server.port_of(protocol)) for protocol in ("memcache", "thrift")}
    return Member(where["memcache"], where)


class Sets:
    """Two server sets that a test writes."""

    def __init__(self, zookeeper: ZooKeeper, path: str) -> None:
        self.uri = f"zk://{zookeeper.hosts}{path}"
        self._zookeeper = zookeeper
        self._path = path
        self._nodes: dict[tuple[int, str], str] = {}

    def join(self, server: Server, *names: str) -> None:
        """Have it be in these sets, or both."""
        for name in names or SERVER_SETS:
            self._nodes[server.pid, name] = self.put(name, member_of(server).to_json())

    def put(self, name: str, data: bytes) -> str:
        """Have that stand in that set."""
        node: str = self._zookeeper.client.create(
            f"{self._path}/{name}/member_", data, sequence=True, makepath=True
        )
        return node

    def leave(self, server: Server, *names: str) -> None:
        """Have it be in them no more."""
        for name in names or SERVER_SETS:
            self._zookeeper.client.delete(self._nodes.pop((server.pid, name)))

    def replace(self, old: Server, new: Server, name: str) -> None:
        """Replace one server by another in that set, in one transaction: no client sees both servers in it."""
        transaction = self._zookeeper.client.transaction()
        transaction.delete(self._nodes.pop((old.pid, name)))
        transaction.create(f"{self._path}/{name}/member_", member_of(new).to_json(), sequence=True)
        _, self._nodes[new.pid, name] = transaction.commit()


def items(server: Server) -> int:
    """How many are in the queue ``work``."""
    with server.connect() as client:
        return int(client.stats().get("queue_work_items", "0"))
