"""Clients of the server, and their building blocks.

| module | contents |
|---|---|
| `client`, `errors` | `Client`, for Twisted programs |
| `blocking`, `errors` | `BlockingClient`, for scripts and Spark workers, on plain sockets |
| `asyncio_client`, `errors` | `AsyncClient`, for asyncio programs |
| `requests` | the methods of `Client` and `AsyncClient` |
| `memcache`, `thrift` | every request as a `call.Call`, without I/O, to write other clients |
| `dialect` | a common interface to the requests of both protocols, and the refusals that end a connection |
| `plan`, `choice`, `backoff` | which of several servers is asked next, and when a request is repeated |
| `members` | the list of servers: fixed addresses, or the members of a server set |
| `arguments`, `put_batch` | argument checks and batches, for all clients |
| `connection` | a blocking connection, and a pool of them |
| `asyncio_connection` | an asyncio connection, and all connections to one server |
| `retrying_server` | a blocking client of one server that retries until it answers |
| `pipeline`, `server` | a Twisted connection, and all connections to one server |
| `roster` | the servers of the Twisted client, and how they follow a server set |
| `openssl` | TLS for Twisted's endpoints |

Only `client`, `server`, `pipeline`, `openssl` and `roster` import Twisted.
"""
