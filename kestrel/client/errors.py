"""What a client is told when a request failed: did the connection fail, or did the server say no.

Whoever has put an item needs to know whether it may put it again:

| error | was it carried out | again |
|---|---|---|
| `CannotConnect` | no: the server has not had the whole request | yes, elsewhere |
| `ConnectionFailed` | nobody knows | only if an item may come twice |
| `ServerError` | no, as far as the server can tell | yes, elsewhere or later |
| `RequestError` | no | no: it will fail again |

A queue name that cannot be is a `kestrel.errors.BadQueueName` before anything is sent.
"""

from __future__ import annotations

from kestrel import errors


class ClientFailure(errors.KestrelError):
    """A request did not succeed."""


class ConnectionFailed(ClientFailure):
    """The connection ended, or nothing came in time. Whether the request was carried out is not known."""


class CannotConnect(ConnectionFailed):
    """No connection, or it ended before the server had the whole request or began with it: it was not carried out."""


class NoServer(CannotConnect):
    """There is nobody to ask: a server set has no such server, or ZooKeeper did not say who is in it."""


class AllInUse(CannotConnect):
    """All connections that this client may have to the server are in use: nothing is wrong with the server."""


class BadReply(ConnectionFailed):
    """What came is no reply to the request; nothing that follows on this connection can be trusted."""


class Refused(ClientFailure):
    """The server's answer is no. The connection is in step, but the server may hang up after such an answer."""


class ServerError(Refused):
    """The server will not or cannot now; later or another server may."""


class RequestError(Refused, errors.ClientError):
    """The request is wrong; the same one will fail again."""


class OpenReadsError(RequestError):
    """The request does not go with the open reads of this connection.

    More are to be confirmed than are open (those that timed out will come again, or have), or one more than
    maxOpenTransactions was asked for, or a plain get came while a read of that queue was open.
    """
