"""Errors of failed client requests: the connection failed, or the server refused.

The error tells whether a failed put may be tried again:

| error | was it carried out | try again |
|---|---|---|
| `CannotConnect` | no: the server did not receive the whole request | yes, elsewhere |
| `ConnectionFailed` | unknown | only if duplicates are acceptable |
| `ServerError` | no, as far as the server can tell | yes, elsewhere or later |
| `RequestError` | no | no: it will fail again |

An invalid queue name raises `kestrel.errors.BadQueueName` before anything is sent.
"""

from __future__ import annotations

from kestrel import errors


class ClientFailure(errors.KestrelError):
    """Base class of the errors of failed requests."""


class ConnectionFailed(ClientFailure):
    """The connection ended or timed out. Whether the request was carried out is unknown."""


class CannotConnect(ConnectionFailed):
    """The connection failed before the server had the whole request or began with it. It was not carried out."""


class NoServer(CannotConnect):
    """No server is known: a server set has no suitable member, or ZooKeeper did not supply the members."""


class AllInUse(CannotConnect):
    """All connections that the client may have to the server are in use. The server itself is fine."""


class BadReply(ConnectionFailed):
    """The server sent a malformed reply. Nothing that follows on the connection can be trusted."""


class Refused(ClientFailure):
    """The server refused the request. Later replies can still be read, but the server may close the connection."""


class ServerError(Refused):
    """The server refuses for now. It may accept the request later, or another server may."""


class RequestError(Refused, errors.ClientError):
    """The request is invalid and will fail again."""


class OpenReadsError(RequestError):
    """The request conflicts with the open reads of the connection.

    Causes: a confirm of more reads than are open, because some timed out; an open of more than maxOpenTransactions; a
    plain get while a read of that queue was open.
    """
