"""ZooKeeper server sets, which list the servers of queues. Servers join them (`kestrel.server.server_set`), and clients
follow them.

| module | content |
|---|---|
| `member` | the entry of one server in a set, as JSON that Twitter's programs also read and write |
| `uri` | the URI of server sets: ``zk://zk1,zk2/services/kestrel``; the check for kazoo |
| `zookeeper` | a ZooKeeper client, for servers and clients, that survives invalid responses |
| `follower` | the current members of both sets |

There are two sets below a path: ``read`` has the servers for gets, ``write`` the servers for puts. No module imports
Twisted. Functions that block say so. kazoo implements the ZooKeeper protocol.
"""
