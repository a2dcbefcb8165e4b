"""Clients of the server, and their building blocks.

| module | contents |
|---|---|
| `client`, `errors` | `Client`, for Twisted programs |
| `blocking`, `errors` | `BlockingClient`, for scripts and Spark workers, on plain sockets |
| `asyncio_client`, `errors` | `AsyncClient`, for asyncio programs |
| `requests` | the methods of all clients, as coroutines |
| `memcache`, `thrift` | every request as a `call.Call`, without I/O, to write other clients |
| `dialect` | a common interface to the requests of both protocols, and the refusals that end a connection |
| `choice`, `backoff` | which of several servers is asked next, and when a request is repeated |
| `members` | the servers: fixed addresses, or the members of a server set |
| `arguments`, `put_batch` | argument checks and batches, for all clients |
| `connection` | a blocking connection, and a pool of them |
| `retrying_server` | a blocking client of one server that retries until it answers |
| `pipeline`, `server` | a Twisted connection, and all connections to one server |
| `openssl` | TLS for Twisted's endpoints |

Only `client`, `server`, `pipeline` and `openssl` import Twisted.
"""
