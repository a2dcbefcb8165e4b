"""ZooKeeper server sets: who serves queues, and where. Servers join them (`kestrel.server.server_set`), clients follow
them.

| module | what is in it |
|---|---|
| `member` | what stands in a set of one server, as JSON that Twitter's programs read and write too |
| `uri` | which sets are meant: ``zk://zk1,zk2/services/kestrel`` |
| `kazoo_extra` | whether kazoo is there, which comes with the extra ``cluster`` |
| `kazoo_connection` | kazoo's connection, which nothing that is sent can end for good |
| `zookeeper` | a client of ZooKeeper, as servers and clients have it |
| `follower` | the members of both sets as they are at present |

Below the path of the sets are two of them: in ``read`` are the servers that gets may go to, in ``write`` those that
puts may go to. No module imports Twisted; what blocks says so. ZooKeeper is spoken to by kazoo.
"""
