"""Clients of the server, and what they are made of.

| module | for whom |
|---|---|
| `client`, `errors` | a Twisted program: `Client` |
| `blocking`, `errors` | a script or a Spark worker: `BlockingClient`, on plain sockets |
| `memcache`, `thrift` | who writes a client of another kind: every request as a `call.Call`, without I/O |
| `dialect` | the same, for a client that does not care which of the two protocols it speaks |
| `plan`, `choice`, `backoff` | which of several servers is asked next, and when a request is repeated |
| `members` | who the servers are: those that are named, or the members of a server set |
| `arguments`, `put_batch` | what else both clients have in common |
| `connection`, `pool` | one blocking connection that carries out calls, and those that are kept |
| `blocking_servers` | the servers of the blocking client: who, which is next, and their connections |
| `pipeline`, `server` | one connection of Twisted's, and all to a server |
| `roster`, `member_servers` | the servers of the Twisted client, and how they follow a server set |
| `closing_errors` | the refusals with which a server hangs up |
| `openssl` | TLS on Twisted's endpoints |

`client`, `server`, `pipeline`, `openssl`, `roster` and `member_servers` import Twisted, and none of the others does.
"""
